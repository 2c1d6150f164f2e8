"""The recipe of a whole model: rotate it, migrate outliers, decide the format of each weight, round it by GPTQ."""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor, nn

from ...bundle import Family, Format
from ...errors import ParameterError
from .collect_activations import InputGroup, Observations, observe
from .expert_recipes import choose_expert_integers, decide_stacks
from .experts import ExpertLayer, bare_stacks, expert_layers
from .gptq import DAMPING, ScaleCast, choose_integers, identity_scales
from .layers import LinearLayer, linear_layers, parameter_names, tables
from .mixing import BUDGET, mix
from .output_error import HIGHER, OUTLIER, group_error, input_scale, lm_head_divergence, stands_out, static_is_enough
from .recipe import LARGEST_LIMIT, SATURATING_LIMIT, Recipe, WeightRecipe, limit_notes, rounding_notes
from .rotation import rotate
from .smoothing import migrate
from .turning import turn_inputs

# Block sizes of int4 that kernels support, coarsest first.
BLOCKS: dict[Family, tuple[int, ...]] = {"onnxruntime": (128, 64, 32, 16), "tensorrt": (128, 64, 32)}
# Divergence in nats that int4 for the LM head alone may cost; int8 costs a few hundredths of it.
LM_HEAD_DIVERGENCE_LIMIT = 2e-3
# Inputs per scale of int8 tables that are looked up and not multiplied: a finer scale costs only a few bytes.
TABLE_BLOCK = 32
# Names listed in a note.
SHOWN = 3


@dataclass(frozen=True)
class RecipeOptions:
    """block: of int4. static_activations: use static scales even where scales per row are possible, if they are as
    good.

    rotating: for int8, rotate the residual stream first (`rotation.py`). turning: for int8 on ONNX Runtime, rotate
    inputs with outliers at run time (`turning.py`). migrating: move outliers into the weights (`smoothing.py`).
    second_order: round weights by GPTQ, not each to nearest. mixing: for int4, keep the layers that cost most in int8
    (`mixing.py`), within budget, a share of the bytes in fp32. damping: of GPTQ (`gptq.py`). limit: of int8 weights,
    see `WeightRecipe`. hold: rounds scales, for graphs that store them in half precision.
    """

    block: int = 32
    static_activations: bool = False
    migrating: bool = True
    rotating: bool = True
    turning: bool = True
    second_order: bool = True
    mixing: bool = True
    budget: float = BUDGET
    damping: float = DAMPING
    limit: int = SATURATING_LIMIT
    scale_cast: ScaleCast = identity_scales


def recipe_steps(format: Format) -> tuple[str, ...]:
    """What `choose` announces for weights in this format, which is not `float`."""
    first, last = ("rotate",) if format == "int8" else (), ("mix formats",) if format == "int4" else ()
    return (*first, "read activations", "migrate outliers", "choose scales", "round weights", *last)


def choose(
    model: nn.Module,
    token_batches: Sequence[Tensor],
    format: Format,
    family: Family,
    options: RecipeOptions | None = None,
    step: Callable[[str], None] = lambda _: None,
) -> Recipe:
    """How to store the weights of `model` in `format` for the engines of `family`.

    Changes the model's weights in place, but its logits stay the same except for rounding (`rotation.py`,
    `smoothing.py`).
    The weights are finite (`check_finite`). token_batches: calibration data, each [1, T] int64. step: called with each
    of `recipe_steps` as it begins. Raises `ParameterError` for fp8 on ONNX Runtime and for a block size that no kernel
    supports.
    """
    search = _Search(model, token_batches, format, family, options or RecipeOptions())
    return search.recipe(step)


class _Search:
    def __init__(
        self, model: nn.Module, token_batches: Sequence[Tensor], format: Format, family: Family, options: RecipeOptions
    ) -> None:
        if format == "fp8" and family == "onnxruntime":
            raise ParameterError(
                "found the format fp8 for ONNX Runtime, which computes int8 and int4; fp8 needs TensorRT", "precision"
            )
        if format == "int4" and options.block not in BLOCKS[family]:
            blocks = ", ".join(str(block) for block in BLOCKS[family])
            raise ParameterError(f"found int4 blocks of {options.block}, expected one of {blocks}", "block")
        self.model = model
        longest = getattr(getattr(model, "config", None), "max_position_embeddings", None) or sys.maxsize
        self.token_batches = [batch[:, :longest] for batch in token_batches]
        self.format = format
        self.family = family
        self.options = options
        self.notes: list[str] = []
        self.weights: dict[str, WeightRecipe] = {}

    def recipe(self, step: Callable[[str], None]) -> Recipe:
        if self.format == "float":
            return Recipe({})
        rotated = None
        # The steps of fp8 grow with the values; int4 gains less than the same bytes would gain elsewhere
        # (docs/internals/log.md).
        if self.format == "int8":
            step("rotate")
            rotated = rotate(self.model, self.token_batches[0]) if self.options.rotating else None
        step("read activations")
        observations = observe(self.model, self.token_batches)
        step("migrate outliers")
        observations = self.without_outliers(observations, norms=rotated is None)
        step("choose scales")
        self.decide(observations)
        self.decide_head(observations)
        self.decide_tables()
        self.decide_experts()
        self.note_the_rest()
        step("round weights")
        self.choose_integers(observations, self.weights)
        self.round_experts()
        if self.format == "int4":
            step("mix formats")
            if self.options.mixing:
                self.mix(observations)
        stacks = {layer.weight for layer in expert_layers(self.model)}
        layers = {layer.weight for layer in linear_layers(self.model)} | stacks
        self.notes += rounding_notes(self.weights, layers, stacks, self.family == "onnxruntime")
        self.notes += [rotated] if rotated else []
        self.notes += limit_notes(self.weights, layers, self.family == "onnxruntime")
        order = {name: place for place, name in enumerate(parameter_names(self.model).values())}
        return Recipe(dict(sorted(self.weights.items(), key=lambda item: order[item[0]])), tuple(self.notes))

    def without_outliers(self, observations: Observations, norms: bool) -> Observations:
        """Remove outliers; returns the observations of the changed model. norms: whether norms may be scaled too; a
        rotated stream has no outliers.
        """
        tokens = self.token_batches[0]
        if self.options.turning and self.format == "int8" and self.family == "onnxruntime":
            observations, turned = turn_inputs(self.model, observations, tokens, self.of_layer)
            if turned:
                rotate = "layers rotate their" if len(turned) > 1 else "layer rotates its"
                self.notes.append(f"{len(turned)} {rotate} inputs by Hadamard matrices at run time")
        if self.options.migrating:
            rule: Literal["smoothquant", "awq"] = "awq" if self.format == "int4" else "smoothquant"
            observations, _ = migrate(self.model, observations, tokens, rule, self.of_layer, norms)
        return observations

    def of_layer(self, group: InputGroup, layer: LinearLayer, format: Format | None = None) -> WeightRecipe:
        """The layer's recipe in `format`, with activations as the family rounds them."""
        found = self.of_shape(group.inputs, format or self.format)
        if found.format == "int4":
            return replace(found, importance=group.mean_square.numpy())
        if found.format in ("int8", "fp8") and self.family == "tensorrt":
            return replace(found, input_scale=input_scale(group, found))
        return found

    def of_shape(self, inputs: int, format: Format) -> WeightRecipe:
        """The recipe for this number of inputs: int8 instead of int4 if no block size divides it."""
        if format == "int4":
            for block in BLOCKS[self.family]:
                if block <= self.options.block and inputs % block == 0:
                    return WeightRecipe("int4", block=block, signed=self.family == "onnxruntime")
            format = "int8"
        return WeightRecipe(format, limit=self.options.limit if self.family == "onnxruntime" else LARGEST_LIMIT)

    def decide(self, observations: Observations) -> None:
        """Decide by group: layers that share an input share a format, so that engines can merge them."""
        recipes = {group: [self.of_layer(group, layer) for layer in group.layers] for group in observations.groups}
        errors = {group: group_error(group, recipes[group]) for group in recipes}
        typical = statistics.median(errors.values()) if errors else 0.0
        kept, unfit = [], []
        for group, chosen in recipes.items():
            if self.format == "int4" and chosen[0].format == "int8":
                unfit += [f"{layer.weight} ({group.inputs} inputs)" for layer in group.layers]
            if stands_out(errors[group], typical, chosen[0].format):
                chosen = [self.of_layer(group, layer, HIGHER[self.format]) for layer in group.layers]
                kept += [layer.weight for layer in group.layers]
            elif self.options.static_activations and chosen[0].format == "int8" and self.family == "onnxruntime":
                scale = static_is_enough(group, chosen[0])
                chosen = [replace(found, input_scale=scale) for found in chosen]
            for layer, found in zip(group.layers, chosen, strict=True):
                self.weights[layer.weight] = found
        smallest = BLOCKS[self.family][-1]
        self.note(unfit, f"int8: no int4 block of {smallest} inputs or more divides theirs")
        self.note_outliers(kept, self.format)

    def decide_head(self, observations: Observations) -> None:
        """Keep the LM head in int8 if int4 for it alone changes the model's distributions too much."""
        if not observations.groups:
            return
        group = observations.groups[-1]
        for layer in group.layers:
            if self.weights[layer.weight].format == "int4":
                divergence = lm_head_divergence(group.rows, layer.matrix, self.weights[layer.weight])
                if divergence > LM_HEAD_DIVERGENCE_LIMIT:
                    self.weights[layer.weight] = self.of_layer(group, layer, "int8")
                    self.note(
                        [layer.weight],
                        f"int8: the last layer in int4 alone moves the model's distributions by {divergence:.4f} nats",
                    )

    def decide_experts(self) -> None:
        """Decide on stacks of experts. On ONNX Runtime always int8: it has no fast int4 product of experts (log.md)."""
        form: Format = "int8" if self.family == "onnxruntime" else self.format
        chosen, kept = decide_stacks(self.model, self.token_batches, form, self.of_stack)
        self.weights |= chosen
        self.note_outliers(kept, form)
        if self.format != form:
            others = (name for name in chosen if name not in kept)
            self.note(others, f"{form}: ONNX Runtime multiplies experts in {self.format} slower than in fp32")

    def of_stack(self, layer: ExpertLayer, format: Format) -> WeightRecipe:
        """The stack's recipe in `format`.

        On ONNX Runtime, weights are within the limit at which no host saturates: only weights that are constants where
        they are multiplied can be stored as uint8, whose products are exact everywhere, not those that a Gather selects
        (`products.py`). For TensorRT the activations are not quantized: one scale for all rows would have to cover the
        expert with the largest inputs.
        """
        found = self.of_shape(layer.matrix.shape[1], format)
        ours = self.family == "onnxruntime"
        return replace(found, limit=SATURATING_LIMIT if ours else found.limit, weight_only=not ours)

    def round_experts(self) -> None:
        options = self.options
        if options.second_order:
            found = choose_expert_integers(
                self.model, self.token_batches, self.weights, options.scale_cast, options.damping
            )
            self.weights |= found.recipes
            if found.experts:
                self.notes.append(
                    f"{found.fitted} of {found.experts} products of experts saw enough calibration tokens for GPTQ"
                )

    def decide_tables(self) -> None:
        """Decide on the token embeddings, unless they are the LM head too. A lookup rounds no activations."""
        model: Any = self.model
        of_tokens = model.get_input_embeddings().weight
        for name, table in tables(model).items():
            if table is not of_tokens or name in self.weights:
                continue
            found = self.of_shape(table.shape[1], self.format)
            if found.format == "fp8":
                continue  # a lookup reads one row, so there is nothing to gain
            finer = found.format == "int8" and self.family == "onnxruntime" and table.shape[1] % TABLE_BLOCK == 0
            self.weights[name] = replace(found, limit=LARGEST_LIMIT, block=TABLE_BLOCK if finer else found.block)

    def mix(self, observations: Observations) -> None:
        """Raise the layers that cost most in int4 to int8, and round these again."""
        mixed = mix(
            self.model,
            observations,
            self.token_batches,
            self.weights,
            lambda group, layer: self.of_layer(group, layer, "int8"),
            self.options.budget,
        )
        self.weights |= mixed.weights
        self.choose_integers(mixed.observations, mixed.weights)
        self.notes += mixed.notes

    def choose_integers(self, observations: Observations, among: Mapping[str, WeightRecipe]) -> None:
        """Choose the integers of layers that are used once and are not tables: a lookup's error depends only on its own
        row.
        """
        if not self.options.second_order:
            return
        looked_up = tables(self.model)
        once = [layer.weight for group in observations.groups if group.calls == 1 for layer in group.layers]
        names = [
            name
            for name, uses in Counter(once).items()
            if uses == 1 and name in among and name not in looked_up and self.weights[name].format in ("int8", "int4")
        ]
        options = self.options
        found = choose_integers(
            self.model, self.token_batches, self.weights, names, options.scale_cast, options.damping
        )
        self.weights |= found

    def note_the_rest(self) -> None:
        names = [layer.weight for layer in linear_layers(self.model)]
        names += [layer.weight for layer in expert_layers(self.model)]
        unread = (name for name in names if name not in self.weights)
        self.note(unread, "float: no calibration text reached them")
        bare = bare_stacks(self.model)
        for kind in dict.fromkeys(bare.values()):
            self.note((name for name, own in bare.items() if own == kind), f"float: experts {kind}")

    def note_outliers(self, names: Iterable[str], format: Format) -> None:
        reason = f"in {format} their error would be above {OUTLIER:g} times the model's median"
        self.note(names, f"{HIGHER[format]}: {reason}")

    def note(self, names: Iterable[str], reason: str) -> None:
        found = list(dict.fromkeys(names))
        if found:
            more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
            self.notes.append(f"{', '.join(found[:SHOWN])}{more} kept in {reason}")
