"""Peak memory and time of a build, on a random Llama of 300 M parameters with a draft of a tenth.

    python benchmarks/build_memory.py [--precision int8] [--engine tensorrt-rtx] [--hidden 2048 --layers 24]

The build runs in its own process. Its peak resident memory (mapped files included) is compared with 1.3 x the fp32
bytes of the larger checkpoint + 1.5 GB, or for quantized weights with the build's own estimate
(`exporter/memory.py`).
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import torch
from hardware import describe_hardware
from specexport.bundle import FORMATS
from specexport.exporter import memory as memory_check
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

VOCABULARY = 32000
TOKENIZER = Path(__file__).parent.parent / "examples/demo_pair/target"


def make_checkpoint(folder: Path, hidden: int, layers: int) -> int:
    """A random fp16 checkpoint with the demo tokenizer; returns its number of parameters."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        vocab_size=VOCABULARY,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).half()
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(TOKENIZER).save_pretrained(folder)
    return int(model.num_parameters())


@click.command()
@click.option("--precision", default="fp32", show_default=True)
@click.option("--engine", default="onnxruntime", show_default=True)
@click.option("--hidden", default=1024, show_default=True)
@click.option("--layers", default=17, show_default=True)
def main(precision: str, engine: str, hidden: int, layers: int) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        parameters = make_checkpoint(folder / "target", hidden, layers)
        make_checkpoint(folder / "draft", hidden // 2, 4)
        command = [
            Path(sys.executable).with_name("specexport"),
            "build",
            "--target",
            folder / "target",
            "--draft",
            folder / "draft",
        ]
        command += [
            "--precision",
            precision,
            "--engine",
            engine,
            "--output",
            folder / "bundle",
            "--cache",
            folder / "cache",
        ]
        result = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
        if result.returncode:
            sys.exit(result.stderr)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        quantized = precision in FORMATS
        limit = (
            memory_check.export_bytes(parameters, "fp32", True, VOCABULARY)
            if quantized
            else 1.3 * 4 * parameters + 1.5e9
        )
        print(describe_hardware())
        print(f"target {parameters / 1e6:.0f} M parameters, {4 * parameters / 1e9:.2f} GB in fp32")
        print(result.stderr, end="")
        print(f"peak memory {peak / 1e9:.2f} GB, limit {limit / 1e9:.2f} GB: {'kept' if peak <= limit else 'EXCEEDED'}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
