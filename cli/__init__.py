"""The command line: parse, call one public function, print. Data goes to stdout, everything else to stderr.

A command imports what it needs when it is called, so that `--help` and a wrong option are answered at once.
"""

from . import bench, build, bundle, calibrate, chat, doctor, generate, serve, tune
from .group import completion, main

__all__ = ["main"]

for command in (
    bench.bench,
    build.build,
    calibrate.calibrate,
    chat.chat,
    bundle.compile_plans,
    completion,
    doctor.doctor,
    generate.generate,
    bundle.inspect,
    bundle.push,
    serve.serve,
    tune.tune,
    bundle.verify,
):
    main.add_command(command)
