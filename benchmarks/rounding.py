"""What a quantization recipe for a checkpoint loses, without a build: nats, agreement, perplexity, bytes, notes.

    python benchmarks/rounding.py CHECKPOINT [--precision int4] [--family tensorrt] [--nearest] [--no-rotation]
        [--no-smoothing] [--no-mixing] [--budget 0.2] [--damping 0.01] [--groups 8]

Computed in torch, on the held-out part of the shipped texts. --groups N: for N groups of layers, the estimated
divergence if only that group were in int4, and the true one, on the texts that were used for the estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import click
import torch
from hardware import describe_hardware
from specexport.errors import SpecExportError
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.weights.choose import RecipeOptions, choose
from specexport.exporter.weights.collect_activations import observe
from specexport.exporter.weights.fidelity import calibration_tokens, measure_fidelity, split
from specexport.exporter.weights.gptq import DAMPING
from specexport.exporter.weights.mixing import BUDGET, bytes_of
from specexport.exporter.weights.recipe import Recipe
from specexport.exporter.weights.sensitivity import divergences
from specexport.exporter.weights.texts import read_texts
from torch import Tensor


@click.command()
@click.argument("checkpoint")
@click.option("--precision", default="int4", show_default=True, type=click.Choice(["int4", "int8", "fp8"]))
@click.option("--family", default="onnxruntime", show_default=True, type=click.Choice(["onnxruntime", "tensorrt"]))
@click.option("--nearest", is_flag=True, help="Round to nearest, not by GPTQ.")
@click.option("--rotation/--no-rotation", default=True, show_default=True)
@click.option("--smoothing/--no-smoothing", default=True, show_default=True)
@click.option("--mixing/--no-mixing", default=True, show_default=True)
@click.option("--budget", default=BUDGET, show_default=True, help="Budget of the mix, as a share of the bytes in fp32.")
@click.option("--damping", default=DAMPING, show_default=True, help="Damping of GPTQ.")
@click.option("--groups", default=0, help="Groups whose estimate is compared with their true divergence.")
def main(
    checkpoint: str, precision: Any, family: Any, nearest: bool, rotation: bool, groups: int, **options: Any
) -> None:
    try:
        found = find_checkpoint(checkpoint)
        used, held = split(calibration_tokens(found.tokenizer, read_texts(None)))
        model: Any = found.load("fp32")
    except SpecExportError as error:
        raise SystemExit(f"rounding.py: {error}") from None
    begin = perf_counter()
    chosen = RecipeOptions(limit=127, second_order=not nearest, rotating=rotation, **options)
    recipe = choose(model, used, precision, family, chosen)
    took = perf_counter() - begin
    lost = measure_fidelity(model, recipe, held, own_texts=False)
    print(describe_hardware())
    part = bytes_of(model, recipe.weights) / bytes_of(model, {})
    print(f"{precision} for {family}, {options}: {took:.0f} s; {part:.4f} of fp32's bytes")
    more = lost.perplexity / lost.exact_perplexity - 1
    print(f"{lost.divergence:.4f} nats, {lost.agreement:.1%}, perplexity {more:+.1%}, {lost.tokens} held-out tokens")
    print(*recipe.notes, sep="\n")
    if groups:
        compare(model, recipe, used, groups)


def compare(model: torch.nn.Module, recipe: Recipe, texts: Sequence[Tensor], count: int) -> None:
    groups = [
        group
        for group in observe(model, texts[:1])
        if all(recipe.weights[layer.weight].format == "int4" for layer in group.layers)
    ]
    taken = groups[:: max(1, len(groups) // count)]
    names = [[layer.weight for layer in group.layers] for group in taken]
    candidates: Any = {name: {"int4": recipe.weights[name]} for group in names for name in group}
    estimated = divergences(model, texts, candidates, {})
    for group in names:
        alone = Recipe({name: recipe.weights[name] for name in group})
        true = measure_fidelity(model, alone, texts, own_texts=False).divergence
        print(f"{group[0]}: {sum(estimated[name]['int4'] for name in group):.5f} by estimate, {true:.5f} measured")


if __name__ == "__main__":
    main()
