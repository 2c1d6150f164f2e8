"""The recipe of a whole model: rotate it, decide the format of each weight, round it by GPTQ."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from ...bundle import Family, Format, Precision
from .collect_activations import InputGroup, input_scale, observe, rewritable
from .experts import ExpertLayer, bare_stacks, expert_layers
from .fake_quant import output_error, sampled_outputs
from .gptq import DAMPING, choose_integers
from .layers import linear_layers, parameter_names, tables
from .mixing import BUDGET, mix
from .recipe import LARGEST_LIMIT, SATURATING_LIMIT, Recipe, WeightRecipe
from .rotation import rotate
from .sensitivity import lm_head_divergence
from .smoothing import smooth
from .turning import turned, worthwhile_turns

# Inputs per scale of int4, of all weights for CUDA, and of int8 tables that are only looked up: there a finer scale
# costs but a few bytes.
BLOCK = 32
# Divergence in nats that int4 for the LM head alone may cost; int8 costs a few hundredths of it.
LM_HEAD_DIVERGENCE_LIMIT = 2e-3
# In int8 and fp8, layers stay in float if their relative squared error is this many times the model's median and above
# the minimum: if all errors are small, an outlier does not matter.
OUTLIER, MIN_ERROR = 8.0, 1e-2
# Names listed in a note.
SHOWN = 3


@dataclass(frozen=True)
class RecipeOptions:
    """limit: of int8 weights on ONNX Runtime, see `WeightRecipe`. scale_type: of the graph, for GPUs. floats: names of
    weights that stay as they are.

    The others are for measurements. rotating: for int8, rotate the residual stream and inputs with outliers
    (`rotation.py`, `turning.py`). smoothing: move outliers into the weights (`smoothing.py`). second_order: round
    weights by GPTQ, not each to nearest; damping: see `gptq.py`. mixing: for int4, keep the layers that cost most in
    int8 (`mixing.py`), within budget, a share of the bytes in fp32.
    """

    limit: int = SATURATING_LIMIT
    scale_type: Precision = "fp32"
    floats: tuple[str, ...] = ()
    rotating: bool = True
    smoothing: bool = True
    second_order: bool = True
    mixing: bool = True
    budget: float = BUDGET
    damping: float = DAMPING


def recipe_steps(format: Format) -> tuple[str, ...]:
    """What `choose` announces for weights in this format, which is not `float`."""
    first, last = ("rotate",) if format == "int8" else (), ("mix formats",) if format == "int4" else ()
    return (*first, "read activations", "choose scales", "round weights", *last)


def choose(
    model: nn.Module,
    token_batches: Sequence[Tensor],
    format: Format,
    family: Family,
    options: RecipeOptions | None = None,
    step: Callable[[str], None] = lambda _: None,
) -> Recipe:
    """How to store the weights of `model` in `format`, which is not `float`, for the engines of `family`.

    Changes the model's weights in place, but its logits stay the same except for rounding. The weights are finite
    (`check_finite`). token_batches: calibration data, each [1, T] int64. step: called with each of `recipe_steps` as it
    begins.
    """
    return _Choice(model, token_batches, format, family, options or RecipeOptions()).recipe(step)


class _Choice:
    def __init__(
        self, model: nn.Module, token_batches: Sequence[Tensor], format: Format, family: Family, options: RecipeOptions
    ) -> None:
        self.model = model
        longest = getattr(getattr(model, "config", None), "max_position_embeddings", None) or sys.maxsize
        self.token_batches = [batch[:, :longest] for batch in token_batches]
        self.format = format
        self.family = family
        self.options = options
        self.blocks = family == "onnxruntime-cuda"  # all weights by blocks, no activations
        self.groups: list[InputGroup] = []
        self.weights: dict[str, WeightRecipe] = {}
        self.notes: list[str] = []

    def recipe(self, step: Callable[[str], None]) -> Recipe:
        # The steps of fp8 grow with the values; int4 gains less than the same bytes would gain elsewhere
        # (docs/internals/log.md).
        # Where no activations are rounded, there are no outliers among them to spread.
        rotating, rotated = self.options.rotating and self.format == "int8" and not self.blocks, None
        if self.format == "int8":
            step("rotate")
            rotated = rotate(self.model, self.token_batches[0]) if rotating else None
            self.notes += [rotated] if rotated else []
        step("read activations")
        observed = observe(self.model, self.token_batches)
        self.groups = [one for one in observed if not {layer.weight for layer in one.layers} & {*self.options.floats}]
        if rotating and self.family == "onnxruntime":
            self.turn_inputs()
        # What smoothing gains for fp8, for static scales and after a rotation is noise (docs/internals/log.md).
        if self.format == "int4" or (self.format == "int8" and self.family == "onnxruntime" and rotated is None):
            self.smooth()
        step("choose scales")
        self.decide()
        self.decide_head()
        self.decide_table()
        self.decide_experts()
        self.note_the_rest()
        step("round weights")
        self.choose_integers(self.weights)
        if self.format == "int4":
            step("mix formats")
            if self.options.mixing:
                self.mix()
        self.note_rounding()
        order = {name: place for place, name in enumerate(parameter_names(self.model).values())}
        return Recipe(dict(sorted(self.weights.items(), key=lambda item: order[item[0]])), tuple(self.notes))

    def turn_inputs(self) -> None:
        turns = worthwhile_turns(rewritable(self.model, self.groups))
        self.groups = [turned(group, turns[group]) if group in turns else group for group in self.groups]
        if turns:
            rotate = "layers rotate their" if len(turns) > 1 else "layer rotates its"
            self.notes.append(f"{len(turns)} {rotate} inputs by Hadamard matrices at run time")

    def smooth(self) -> None:
        if self.options.smoothing:
            recipes = {group: self.of_layer(group, self.format) for group in rewritable(self.model, self.groups)}
            changed = smooth(self.model, self.token_batches[0], recipes)
            self.groups = [changed.get(group, group) for group in self.groups]

    def of_layer(self, group: InputGroup, format: Format) -> WeightRecipe:
        """The recipe of the group's layers in `format`, with activations as the family rounds them."""
        recipe = self.of_shape(group.inputs, format)
        if recipe.format == "int4":
            return replace(recipe, importance=group.mean_square.numpy())
        return replace(recipe, input_scale=input_scale(group, recipe)) if self.family == "tensorrt" else recipe

    def of_shape(self, inputs: int, format: Format) -> WeightRecipe:
        """The recipe for this number of inputs: int8 instead of int4 if no block size divides it, float where all are
        by blocks.
        """
        ours, scale_type = self.family == "onnxruntime", self.options.scale_type
        if self.blocks:
            if inputs % BLOCK:
                return WeightRecipe("float")
            return WeightRecipe(format, BLOCK, LARGEST_LIMIT, scale_type=scale_type, weight_only=format == "int8")
        if format == "int4":
            if inputs % BLOCK == 0:
                return WeightRecipe("int4", block=BLOCK, signed=ours, scale_type=scale_type)
            format = "int8"
        return WeightRecipe(format, limit=self.options.limit if ours else LARGEST_LIMIT, scale_type=scale_type)

    def decide(self) -> None:
        """Decide by group: layers that share an input share a format, so that engines can merge them."""
        kept = []
        recipes = {group: self.of_layer(group, self.format) for group in self.groups}
        unfit = [group for group, recipe in recipes.items() if recipe.format != self.format]
        for group in self.outliers(recipes) if self.format != "int4" else ():
            recipes[group] = WeightRecipe("float")
            kept += [layer.weight for layer in group.layers]
        for group, recipe in recipes.items():
            self.weights |= {layer.weight: recipe for layer in group.layers}
        names = [f"{layer.weight} ({group.inputs} inputs)" for group in unfit for layer in group.layers]
        self.note(names, f"{'float' if self.blocks else 'int8'}: no block of {BLOCK} inputs divides theirs")
        self.note(kept, f"float: in {self.format} their error would be above {OUTLIER:g} times the model's median")

    def outliers(self, recipes: Mapping[InputGroup, WeightRecipe]) -> list[InputGroup]:
        """Groups with a layer whose error would be far larger than the others'."""
        errors = {
            group: max(output_error(group.rows, sampled_outputs(layer), recipe) for layer in group.layers)
            for group, recipe in recipes.items()
        }
        typical = statistics.median(errors.values()) if errors else 0.0
        return [group for group, error in errors.items() if error > max(OUTLIER * typical, MIN_ERROR)]

    def decide_head(self) -> None:
        """Keep the LM head in int8 if int4 for it alone changes the model's distributions too much."""
        if self.format != "int4" or not self.groups:
            return
        group = self.groups[-1]
        for layer in group.layers:
            if self.weights[layer.weight].format == "int4":
                divergence = lm_head_divergence(group.rows, layer.matrix, self.weights[layer.weight])
                if divergence > LM_HEAD_DIVERGENCE_LIMIT:
                    self.weights[layer.weight] = self.of_layer(group, "int8")
                    self.note(
                        [layer.weight],
                        f"int8: the last layer in int4 alone moves the model's distributions by {divergence:.4f} nats",
                    )

    def decide_table(self) -> None:
        """Decide on the token embeddings, unless they are the LM head too, and on what else has a row for each token
        (Gemma 3n's and 4's per-layer embeddings, half of the weights). A lookup rounds no activations.
        """
        model: Any = self.model
        text, tokens = model.config.get_text_config(), len(model.get_input_embeddings().weight)
        sizes = {tokens, getattr(text, "vocab_size_per_layer_input", tokens)}  # Gemma 3n's is a little smaller
        for name, table in tables(self.model).items():
            if len(table) not in sizes or name in {*self.weights, *self.options.floats} or self.format == "fp8":
                continue  # in fp8, a lookup of one row has nothing to gain
            recipe = self.of_shape(table.shape[1], self.format)
            if recipe.format == "float":
                self.note([name], f"float: no block of {BLOCK} inputs divides theirs")
            finer = recipe.format == "int8" and self.family == "onnxruntime" and table.shape[1] % BLOCK == 0
            self.weights[name] = replace(recipe, limit=LARGEST_LIMIT, block=BLOCK if finer else recipe.block)

    def decide_experts(self) -> None:
        """Decide on stacks of experts. On ONNX Runtime always int8: it has no fast int4 product of experts (log.md)."""
        if self.blocks:
            experts = [layer.weight for layer in expert_layers(self.model)]
            self.note(experts, "float: ONNX Runtime's CUDA provider multiplies picked weights in float only")
            return
        form: Format = "int8" if self.family == "onnxruntime" else self.format
        stacks = {layer.weight: self.of_stack(layer, form) for layer in expert_layers(self.model)}
        self.weights |= stacks
        if self.format != form:
            self.note(stacks, f"{form}: ONNX Runtime multiplies experts in {self.format} slower than in fp32")

    def of_stack(self, layer: ExpertLayer, format: Format) -> WeightRecipe:
        """The stack's recipe in `format`.

        On ONNX Runtime, weights are within the limit at which no host saturates: only weights that are constants where
        they are multiplied can be stored as uint8, whose products are exact everywhere, not those that a Gather selects
        (`session_options.py`). For TensorRT the activations are not quantized: one scale for all rows would have to
        cover the expert with the largest inputs.
        """
        recipe = self.of_shape(layer.matrix.shape[1], format)
        if self.family == "onnxruntime":
            return replace(recipe, limit=SATURATING_LIMIT)
        return replace(recipe, weight_only=True)

    def mix(self) -> None:
        """Raise the layers that cost most in int4 to int8, and round these again."""
        mixed, notes = mix(
            self.model,
            self.groups,
            self.token_batches,
            self.weights,
            lambda group, layer: self.of_layer(group, "int8"),
            self.options.budget,
            turning=self.family == "onnxruntime",
        )
        self.weights |= mixed
        self.choose_integers(mixed)
        self.notes += notes

    def choose_integers(self, recipes: Mapping[str, WeightRecipe]) -> None:
        """Round by GPTQ, except tables and what several places use: a lookup's error depends only on its own row."""
        if not self.options.second_order:
            return
        names = {layer.weight for group in rewritable(self.model, self.groups) for layer in group.layers}
        names |= {layer.weight for layer in expert_layers(self.model)}
        wanted = {
            name: recipe for name, recipe in recipes.items() if name in names and recipe.format in ("int8", "int4")
        }
        chosen = choose_integers(self.model, self.token_batches, wanted, self.options.damping)
        self.weights |= chosen.weights
        if chosen.experts:
            self.notes.append(
                f"{chosen.fitted} of {chosen.experts} products of experts saw enough calibration tokens for GPTQ"
            )

    def note_rounding(self) -> None:
        stacks = {layer.weight for layer in expert_layers(self.model)}
        others = [recipe for name, recipe in self.weights.items() if name not in stacks]
        if count := sum(recipe.stored is not None for recipe in others):
            self.notes.append(f"{count} of {len(others)} weights are rounded by GPTQ")

    def note_the_rest(self) -> None:
        known = {*self.weights, *self.options.floats}
        unread = (layer.weight for layer in linear_layers(self.model) if layer.weight not in known)
        self.note(unread, "float: no calibration text reached them")
        bare = bare_stacks(self.model)
        for kind in dict.fromkeys(bare.values()):
            self.note((name for name, stored_as in bare.items() if stored_as == kind), f"float: experts {kind}")

    def note(self, names: Iterable[str], reason: str) -> None:
        distinct = list(dict.fromkeys(names))
        if distinct:
            more = f" and {len(distinct) - SHOWN} more" if len(distinct) > SHOWN else ""
            self.notes.append(f"{', '.join(distinct[:SHOWN])}{more} kept in {reason}")
