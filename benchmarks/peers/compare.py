"""specexport and its peers on the same requests, greedy, interleaved, one computing at a time.

    python benchmarks/peers/compare.py TARGET [DRAFT] --bundle int8=B.bundle [--bundle fp32=A.bundle]
        [--peers llamacpp,openvino] [--prompts examples/prompts/tasks.jsonl]

TARGET and DRAFT are checkpoint folders (`benchmarks/synthetic_pair.py` makes a pair, `scripts/smollm2.py` a real
target); each peer converts them itself, once. Without DRAFT, systems with prompt lookup draft with that. All others are
compared with the first bundle. With transformers among the peers, each system's divergence from its fp32 model is
measured on the prompts. Needs the environments of `benchmarks/peers/setup.py`, and a quiet machine.
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
from divergence import EXACT, measure
from figures import first_table, markdown, route_table, rows, width_table
from interleave import Kept, System, run
from process import RunnerError, RunnerProcess
from prompts import read_requests
from specexport import SpecExportError
from specexport.calibration.measuring.journal import Journal

sys.path.insert(0, str(Path(__file__).parent.parent))
from hardware import describe_hardware

WIDTHS = [1, 2, 3, 5, 8]
SETTINGS = ("k", "threads", "requests", "new_tokens", "prompt_tokens", "capacity", "context")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path, nargs="?", help="default: none")
    parser.add_argument(
        "--bundle", action="append", default=[], metavar="NAME=PATH", help="bundle of specexport; may be repeated"
    )
    parser.add_argument(
        "--peers", default=",".join(PEERS), help="comma-separated, `none` for none; default: %(default)s"
    )
    parser.add_argument("--prompts", type=Path, help="JSONL file as specexport bench reads it; default: code and prose")
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--prompt-tokens", type=int, default=64, help="longer texts are cut to it, messages are not")
    parser.add_argument("--k", type=int, default=4, help="draft tokens per round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--capacity", type=int, default=1024)
    parser.add_argument("--plain-only", action="store_true")
    parser.add_argument("--context", type=int, default=256, help="tokens of context before the passes of several rows")
    parser.add_argument("--no-widths", action="store_true", help="leave out the passes of several rows")
    parser.add_argument("--journal", type=Path, help="file of finished results, from which the same command resumes")
    parser.add_argument("--json", type=Path, help="write all figures here too")
    arguments = parser.parse_args()
    for model in filter(None, (arguments.target, arguments.draft)):
        if not model.is_dir():
            parser.error(f"there is no folder {model}; give a checkpoint in the format of Hugging Face")
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


def commands(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """The command that starts each system, by its name; bundles first."""
    found = {}
    for bundle in arguments.bundle:
        name, path = bundle.split("=", 1)
        found[f"specexport {name}"] = SPECEXPORT.command(Path(path), None, arguments.threads, arguments.capacity)
    for name in arguments.peers:
        found[name] = PEERS[name].command(arguments.target, arguments.draft, arguments.threads, arguments.capacity)
    return found


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def start(arguments: argparse.Namespace, stack: ExitStack) -> list[RunnerProcess]:
    logs = Path(tempfile.mkdtemp(prefix="specexport-peers-"))
    runners = []
    for name, command in commands(arguments).items():
        note(f"loading {name}")
        runner = RunnerProcess(name, command, logs / f"{name.replace(' ', '-')}.log")
        stack.callback(runner.close)
        runners.append(runner)
    return runners


def open_journal(arguments: argparse.Namespace, runners: list[RunnerProcess], tokens: list[list[int]]) -> Journal:
    """The journal; its header is what must be equal for one run to continue another."""
    header = {name: getattr(arguments, name) for name in (*SETTINGS, "plain_only")}
    header |= {"systems": {runner.name: runner.hello for runner in runners}, "tokens": tokens}
    models = [arguments.target, *([arguments.draft] if arguments.draft else [])]
    models += [Path(bundle.split("=", 1)[1]) for bundle in arguments.bundle]
    header |= {"models": {str(model.resolve()): stamp(model) for model in models}}
    journal = Journal.open(arguments.journal, header)
    if journal.replaced:
        note(f"{arguments.journal} belonged to another run and is replaced")
    return journal


def stamp(model: Path) -> list[list[Any]]:
    """Name, size and time of each file of a checkpoint or bundle; it differs between builds."""
    files = sorted(path for path in model.rglob("*") if path.is_file())
    return [[str(path.relative_to(model)), path.stat().st_size, path.stat().st_mtime_ns] for path in files]


def measure_widths(runners: list[RunnerProcess], context: int, kept: Kept | None) -> dict[str, dict[str, float]]:
    found = {}
    for runner in runners:
        key = f"widths of {runner.name}"
        row = kept.finished.get(key) if kept else None
        if row is None:
            row = runner.ask({"widths": WIDTHS, "context": context, "repeats": 15})["milliseconds"]
            if kept:
                kept.add(key, row)
        found[runner.name] = row
    return found


def compare(arguments: argparse.Namespace, stack: ExitStack) -> dict[str, Any]:
    requests = read_requests(arguments.target, arguments.prompts, arguments.prompt_tokens, arguments.new_tokens)
    requests = requests[: arguments.requests]
    runners = start(arguments, stack)
    sequences = [request.tokens for request in requests]
    journal = open_journal(arguments, runners, sequences) if arguments.journal else None
    if journal:
        stack.callback(journal.close)
    modes = (False,) if arguments.plain_only else (False, True)
    systems = [
        System(runner.name, runner, mode)
        for mode in modes
        for runner in runners
        if runner.hello["speculative"] or not mode
    ]
    answers = run(systems, requests, arguments.k, note, journal)
    able = [] if arguments.no_widths else [runner for runner in runners if runner.hello["widths"]]
    widths = measure_widths(able, arguments.context, journal)
    exact = next((runner for runner in runners if runner.name == EXACT), None)
    divergences = {}
    if exact:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shown = [runner for runner in runners if runner.hello["logits"]]
        divergences = measure(exact, shown, sequences, folder, journal)
    reference = runners[0].name
    return {
        "hardware": describe_hardware(),
        "versions": {runner.name: runner.hello["versions"] for runner in runners},
        "reference": reference,
        "settings": {name: getattr(arguments, name) for name in SETTINGS} | {"requests": len(requests)},
        "rows": rows(answers, reference, divergences),
        "by_route": route_table(answers, [request.route for request in requests]),
        "first_tokens": first_table(answers, requests, reference),
        "widths": widths,
        "divergences": {name: asdict(found) for name, found in divergences.items()},
        "ms_per_token": {
            f"{name} {'speculative' if mode else 'plain'}": [one.ms_per_token for one in found]
            for (name, mode), found in answers.items()
        },
    }


def show(found: dict[str, Any]) -> None:
    settings = found["settings"]
    print(found["hardware"])
    for name, versions in found["versions"].items():
        print(f"{name}: " + ", ".join(f"{package} {version}" for package, version in versions.items()))
    print(
        f"{settings['requests']} requests, at most {settings['new_tokens']} new tokens each, greedy, "
        f"k = {settings['k']}, {settings['threads']} threads each"
    )
    for divergence in list(found["divergences"].values())[:1]:
        print(f"divergence over {divergence['rows']} tokens of the prompts")
    print("\n" + markdown(found["rows"], found["reference"]))
    print("\n" + found["by_route"])
    print("\n" + found["first_tokens"])
    if found["widths"]:
        print("\n" + width_table(found["widths"]))


def main() -> None:
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the runners, which are suspended, end too
    with ExitStack() as stack:
        try:
            found = compare(arguments, stack)
        except (RunnerError, SpecExportError, OSError) as error:  # OSError: not a checkpoint, in several lines
            sys.exit(f"compare.py: {str(error).splitlines()[0]}")
    show(found)
    if arguments.json:
        arguments.json.write_text(
            json.dumps(found | {"rows": [asdict(row) for row in found["rows"]]}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
