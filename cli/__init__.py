"""The command line: parse, call one public function, print. Data goes to stdout, everything else to stderr.

A command imports what it needs when it is called, so that `--help` and a wrong option are answered at once.
"""

from . import (
    add_draft,
    bench,
    build,
    calibrate,
    chat,
    compile,
    completion,
    doctor,
    dump,
    generate,
    inspect,
    push,
    remove_draft,
    serve,
    triton_repository,
    tune,
    verify,
)
from .group import main

__all__ = ["main"]

main.add_command(add_draft.add_draft)
main.add_command(bench.bench)
main.add_command(build.build)
main.add_command(calibrate.calibrate)
main.add_command(chat.chat)
main.add_command(compile.compile_plans)
main.add_command(completion.completion)
main.add_command(doctor.doctor)
main.add_command(dump.dump)
main.add_command(generate.generate)
main.add_command(inspect.inspect)
main.add_command(push.push)
main.add_command(remove_draft.remove_draft)
main.add_command(serve.serve)
main.add_command(triton_repository.triton_repository)
main.add_command(tune.tune)
main.add_command(verify.verify)
