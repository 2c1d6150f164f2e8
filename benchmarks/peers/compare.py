"""specexport and its peers on the same requests, greedy, in turn, one computing at a time.

    python benchmarks/peers/compare.py TARGET DRAFT --bundle int8=B.bundle [--bundle fp32=A.bundle]
        [--peers llamacpp,openvino]

TARGET and DRAFT are checkpoint folders (`benchmarks/synthetic_pair.py` makes a pair); each peer converts them itself,
once. The first bundle is what the others are held against. Needs the environments of `benchmarks/peers/setup.py`, and a
machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from catalogue import PEERS, SPECEXPORT
from figures import markdown, rows, width_table
from interleave import System, run
from process import RunnerError, RunnerProcess
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parent.parent))
from hardware import describe_hardware

PROMPTS = Path(__file__).parent.parent.parent / "examples/prompts"
WIDTHS = [1, 2, 3, 5, 8]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument(
        "--bundle", action="append", default=[], metavar="NAME=PATH", help="of specexport; may be repeated"
    )
    parser.add_argument(
        "--peers", default=",".join(PEERS), help="comma-separated, `none` for none; default: %(default)s"
    )
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--prompt-tokens", type=int, default=64, help="longer prompts are cut to it")
    parser.add_argument("--k", type=int, default=4, help="tokens drafted in a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--capacity", type=int, default=1024)
    parser.add_argument("--plain-only", action="store_true")
    parser.add_argument("--context", type=int, default=256, help="tokens in front of the passes of several rows")
    parser.add_argument("--no-widths", action="store_true", help="leave out the passes of several rows")
    parser.add_argument("--json", type=Path, help="write all figures here too")
    arguments = parser.parse_args()
    chosen = [] if arguments.peers == "none" else arguments.peers.split(",")
    for name in chosen:
        if name not in PEERS:
            parser.error(f"--peers names {name!r}; there are {', '.join(PEERS)}")
    for bundle in arguments.bundle:
        if "=" not in bundle:
            parser.error(f"--bundle is {bundle!r}; it must be NAME=PATH")
    if not chosen and not arguments.bundle:
        parser.error("there is nothing to compare; give --bundle or --peers")
    arguments.peers = chosen
    return arguments


def read_prompts(target: Path, count: int, longest: int) -> list[list[int]]:
    """Prompts of the routes code and prose in turn, as token ids of the target's tokenizer."""
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    files = [(PROMPTS / f"{route}.jsonl").read_text(encoding="utf-8").splitlines() for route in ("code", "prose")]
    texts = [
        json.loads(line)["prompt"]
        for lines in zip(*(reversed(lines) for lines in files), strict=False)
        for line in lines
    ]
    return [tokenizer.encode(text).ids[:longest] for text in texts[:count]]


def commands(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """What starts each system, by its name; bundles first."""
    found = {}
    for bundle in arguments.bundle:
        name, path = bundle.split("=", 1)
        found[f"specexport {name}"] = SPECEXPORT.command(Path(path), None, arguments.threads, arguments.capacity)
    for name in arguments.peers:
        found[name] = PEERS[name].command(arguments.target, arguments.draft, arguments.threads, arguments.capacity)
    return found


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def compare(arguments: argparse.Namespace, stack: ExitStack) -> dict[str, Any]:
    logs = Path(tempfile.mkdtemp(prefix="specexport-peers-"))
    runners = []
    for name, command in commands(arguments).items():
        note(f"loading {name}")
        runner = RunnerProcess(name, command, logs / f"{name.replace(' ', '-')}.log")
        stack.callback(runner.close)
        runners.append(runner)
    modes = (False,) if arguments.plain_only else (False, True)
    systems = [
        System(runner.name, runner, mode)
        for mode in modes
        for runner in runners
        if runner.hello["speculative"] or not mode
    ]
    prompts = read_prompts(arguments.target, arguments.requests, arguments.prompt_tokens)
    answers = run(systems, prompts, arguments.new_tokens, arguments.k, note)
    widths = {}
    if not arguments.no_widths:
        able = [runner for runner in runners if runner.hello["widths"]]
        widths = {
            runner.name: runner.ask({"widths": WIDTHS, "context": arguments.context, "repeats": 15})["milliseconds"]
            for runner in able
        }
    reference = runners[0].name
    return {
        "hardware": describe_hardware(),
        "versions": {runner.name: runner.hello["versions"] for runner in runners},
        "reference": reference,
        "settings": {
            name: getattr(arguments, name)
            for name in ("k", "threads", "requests", "new_tokens", "prompt_tokens", "capacity")
        },
        "rows": rows(answers, reference),
        "widths": widths,
        "ms_per_token": {
            f"{name} {'speculative' if mode else 'plain'}": [one.ms_per_token for one in found]
            for (name, mode), found in answers.items()
        },
    }


def main() -> None:
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the runners, which are stopped, end too
    with ExitStack() as stack:
        try:
            found = compare(arguments, stack)
        except (RunnerError, FileNotFoundError) as error:
            sys.exit(f"compare.py: {error}")
    settings = found["settings"]
    print(found["hardware"])
    for name, versions in found["versions"].items():
        print(f"{name}: " + ", ".join(f"{package} {version}" for package, version in versions.items()))
    print(
        f"{settings['requests']} requests of at most {settings['prompt_tokens']} tokens, "
        f"{settings['new_tokens']} new tokens each, greedy, k = {settings['k']}, {settings['threads']} threads each\n"
    )
    print(markdown(found["rows"], found["reference"]))
    if found["widths"]:
        print("\n" + width_table(found["widths"]))
    if arguments.json:
        arguments.json.write_text(json.dumps(found | {"rows": [asdict(row) for row in found["rows"]]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
