"""The runs that are killed: a build, a calibration and a tuning of a small pair, and what must hold after each kill."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors import safe_open
from specexport.bundle import Bundle
from specexport.cli import main
from specexport.exporter.build import build
from specexport.exporter.options import BuildOptions

from . import forks
from .fuzz_case import answers, judge
from .good import PROMPTS
from .kills import Trial
from .small_pair import save_pair

LIMIT = 60.0  # seconds for an answer


def import_exporter(folder: Path) -> None:
    """Import what the forks need, and save the pair in `folder`."""
    import onnxruntime  # noqa: F401
    import torch.export  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401

    _in_fork(lambda: save_pair(folder), folder)


def small_build(folder: Path, output: Path, cache: Path, force: bool = False) -> None:
    """Build the pair in `folder`."""
    options = BuildOptions(max_seq_len=64, prompt_chunk=16, cache=cache, force=force)
    build(str(folder / "target"), str(folder / "draft"), output, options)


def trials(folder: Path) -> dict[str, Trial]:
    """The trials by name, with all files in `folder`."""
    import sklearn.isotonic  # noqa: F401

    import_exporter(folder)
    prompts = folder / "prompts.jsonl"
    _write_prompts(prompts)
    intact = folder / "intact.bundle"
    _in_fork(lambda: small_build(folder, intact, folder / "stages"), folder)
    return {
        "build": _build(folder),
        "calibrate": _calibrate(intact, folder, prompts),
        "tune": _tune(intact, folder, prompts),
    }


def _in_fork(work: forks.Work, folder: Path) -> None:
    done = forks.run(work, folder / "log")
    if not done.fine:
        raise RuntimeError(done.told)


def _write_prompts(path: Path) -> None:
    lines = (PROMPTS / "prose.jsonl").read_text(encoding="utf-8").splitlines()[:60]
    rows = [{"route": "prose", "prompt": json.loads(line)["prompt"][:20]} for line in lines]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def _build(folder: Path) -> Trial:
    """Builds; every second one replaces a bundle, and then the old or the new bundle must be there, complete."""
    output, ended = folder / "out.bundle", [0]

    def check() -> None:
        if output.exists():
            Bundle.open(output)
        elif ended[0] % 2 and not any(folder.glob(".out.bundle.tmp-*/old/manifest.json")):
            raise AssertionError("the bundle that was to be replaced is gone")

    def done() -> None:
        Bundle.open(output)
        left = [path.name for path in folder.glob(".out.bundle*")]
        if left:
            raise AssertionError(f"left behind: {left}")
        ended[0] += 1
        shutil.rmtree(folder / "stages")
        if not ended[0] % 2:
            shutil.rmtree(output)

    return Trial(lambda: small_build(folder, output, folder / "stages", True), check, done)


def _calibrate(intact: Path, folder: Path, prompts: Path) -> Trial:
    """Calibrations: the bundle must give the same answers, whatever a calibration has left in it."""
    bundle = Path(shutil.copytree(intact, folder / "calibrated.bundle"))
    made = ("costs.json", "policy.json", "survival.json", "report.md")
    expected: list[object] = []

    def check() -> None:
        if not expected:
            _in_fork(
                lambda: (folder / "expected").write_text(json.dumps(answers(intact, policy=False)), encoding="utf-8"),
                folder,
            )
            expected.extend(json.loads((folder / "expected").read_text(encoding="utf-8")))
        outcome = judge(bundle, expected, True, LIMIT)
        if outcome.kind != "right":
            raise AssertionError(f"{outcome.kind}: {outcome.told}")

    def done() -> None:
        check()
        names = {path.name for path in bundle.iterdir()}
        if not names.issuperset(made[:2]) or any(name.startswith(".") or name == "calibration" for name in names):
            raise AssertionError(f"a whole run has left {sorted(names)}")
        for name in made:
            (bundle / name).unlink(missing_ok=True)

    def run() -> None:
        few = ["--limit", "24", "--max-new-tokens", "8", "--threads", "1"]
        main(["calibrate", str(bundle), "--prompts", str(prompts), *few])

    return Trial(run, check, done)


def _tune(intact: Path, folder: Path, prompts: Path) -> Trial:
    """Tunings: the draft must be complete or absent, and the target's answers are used again."""
    output = folder / "draft.tuned"
    options = ["--draft", str(folder / "draft"), "--epochs", "2", "--answers", "1", "--max-new-tokens", "24"]
    options += ["--general", "0"]

    def check() -> None:
        if output.exists():
            json.loads((output / "config.json").read_text(encoding="utf-8"))
            with safe_open(output / "model.safetensors", "np") as weights:
                assert weights.keys()

    def done() -> None:
        check()
        if not output.exists():
            raise AssertionError("a whole run has written no draft")
        shutil.rmtree(output)
        (folder / "draft.tuned.answers.jsonl").unlink()

    def run() -> None:
        main(["tune", str(intact), "--prompts", str(prompts), "-o", str(output), *options, "--force"])

    return Trial(run, check, done)
