"""Rotates a model's residual stream, so that none of its channels is an outlier. Free at run time.

An RMSNorm without gain commutes with orthogonal matrices. So with the gains folded into the linear layers that read the
norms, the stream can be rotated where it is written and rotated back where it is read (Ashkboos et al. 2024, SliceGPT,
arXiv 2401.15024, section 3.1; QuaRot, arXiv 2404.00456, section 4, stage 1). This needs no knowledge of architectures:
a pass over a few tokens finds what reads and writes the stream, and the rotation is tried with hooks first. If the
logits change by more than rounding, the model has other readers or writers, and nothing is done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .layers import LinearLayer, NormReaders, hooked, logits_of, parameter_names

# Largest Hadamard factor: products with several small ones are cheaper than with a large one.
LARGEST_FACTOR = 64
SEED = 0


class Rotation:
    """A randomized Hadamard transform Q = diag(signs) . (F1 x F2 x ...), [H, H], the same for every equal width.

    The width is split into powers of two, whose factors are Hadamard matrices (Sylvester's), and an odd rest, whose
    factor is a Hartley matrix. Both are symmetric, orthogonal, and have no entry above sqrt(2 / size).
    """

    def __init__(self, width: int) -> None:
        assert width > 0
        generator = torch.Generator().manual_seed(SEED)
        self.signs = torch.randint(0, 2, (width,), generator=generator).float() * 2 - 1
        self.factors = [hadamard(size) if size & (size - 1) == 0 else _hartley(size) for size in _sizes(width)]

    def apply(self, rows: Tensor) -> Tensor:
        """rows . Q, [..., H], computed and returned in fp32."""
        return self._mixed(rows.float() * self.signs)

    def back(self, rows: Tensor) -> Tensor:
        """rows . Q^T."""
        return self._mixed(rows.float()) * self.signs

    def _mixed(self, rows: Tensor) -> Tensor:
        sizes = [factor.shape[0] for factor in self.factors]
        mixed = rows.reshape(-1, *sizes)
        for axis, factor in enumerate(self.factors, 1):
            mixed = (mixed.transpose(axis, -1) @ factor).transpose(axis, -1)
        return mixed.reshape(rows.shape)


def _sizes(width: int) -> list[int]:
    """Factors of the width: powers of two up to LARGEST_FACTOR, then the odd rest."""
    sizes, rest = [], width
    while rest % 2 == 0:
        size = math.gcd(rest, LARGEST_FACTOR)
        sizes.append(size)
        rest //= size
    return [*sizes, rest] if rest > 1 or not sizes else sizes


def hadamard(size: int) -> Tensor:
    """[size, size], symmetric and orthogonal. size: a power of two."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / math.sqrt(size)


def _hartley(size: int) -> Tensor:
    angles = torch.arange(size, dtype=torch.float64)
    angles = torch.outer(angles, angles) * (2 * math.pi / size)
    return ((angles.cos() + angles.sin()) / math.sqrt(size)).float()


PROBED_TOKENS = 16
# Largest change of a logit, in standard deviations; the same tolerance as for exact graphs.
TOLERANCE = 1e-3
# A norm that commutes with a rotation differs by a few rounding errors of fp32.
COMMUTES = 1e-4
# A tied table is then stored twice, since the head's copy contains the gain of a norm: allowed only if the table is at
# most this share of the parameters.
MAX_STORED_TWICE = 1 / 3
# Elements of a matrix that are rotated at once.
SLICE = 1 << 24


@dataclass(frozen=True, eq=False)
class Norm:
    """An RMSNorm and the linear layers that read it. parameter: its weight [H]. unit: the weight that means no gain."""

    module: nn.Module
    parameter: nn.Parameter
    unit: float
    readers: tuple[LinearLayer, ...]

    @property
    def gain(self) -> Tensor:
        """[H] fp32."""
        return self.parameter.data.float() + (1 - self.unit)


@dataclass(frozen=True, eq=False)
class Stream:
    """The residual stream [H]. writers: linear layers [H, K] whose outputs are added to it."""

    embedding: nn.Embedding
    norms: tuple[Norm, ...]
    writers: tuple[LinearLayer, ...]

    @property
    def width(self) -> int:
        return self.embedding.weight.shape[1]

    @property
    def tied(self) -> LinearLayer | None:
        """The head that shares the table, if there is one."""
        shared = [layer for norm in self.norms for layer in norm.readers if layer.parameter is self.embedding.weight]
        return shared[0] if shared else None


def rotate(model: nn.Module, tokens: Tensor) -> str | None:
    """Rotate the residual stream in place; returns what was done, for a note, or None if nothing was done.

    tokens: [1, T] int64, of which a few are used. The logits stay the same except for rounding. A head that is tied to
    the embedding gets its own weight.
    """
    tokens = tokens[:, :PROBED_TOKENS]
    stream = find_stream(model, tokens)
    if stream is None:
        return None
    table = stream.embedding.weight.numel()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if stream.tied is not None and table > MAX_STORED_TWICE * parameters:
        return None
    rotation = Rotation(stream.width)
    exact = logits_of(model, tokens)
    with _as_if(stream, rotation):
        off = float((logits_of(model, tokens) - exact).abs().max())
    if not off <= TOLERANCE * float(exact.std()):
        return None
    tied = stream.tied
    _apply(stream, rotation)
    note = f"the residual stream is rotated ({len(stream.norms)} norms folded into the layers that read them)"
    if tied is not None:
        config: Any = getattr(model, "config", None)
        if config is not None:
            config.tie_word_embeddings = False
        note += f"; the tied table is stored twice, {table / parameters:.0%} more weights"
    return note


def find_stream(model: nn.Module, tokens: Tensor) -> Stream | None:
    """The stream, as found by one pass over tokens [1, T]; None if it cannot be rotated."""
    whole: Any = model
    embedding = whole.get_input_embeddings()
    if not isinstance(embedding, nn.Embedding) or any(parameter.ndim > 2 for parameter in model.parameters()):
        return None  # stacks of experts read the stream too
    width = embedding.weight.shape[1]
    probe = NormReaders(model, tokens)
    norms = []
    for module, layers in probe.readers.items():
        if readers := tuple(layer for layer in layers if layer.matrix.shape[1] == width):
            norm = _norm(module, probe.args[module], readers)
            if norm is None:
                return None
            norms.append(norm)
    reading = {layer.path for norm in norms for layer in norm.readers}
    writers = tuple(layer for layer in probe.called if layer.path not in reading and layer.matrix.shape[0] == width)
    stream = Stream(embedding, tuple(norms), writers)
    return stream if norms and writers and _once(model, stream) else None


def _norm(module: nn.Module, args: tuple[Any, ...], readers: tuple[LinearLayer, ...]) -> Norm | None:
    """The module as a `Norm` if it is an RMSNorm, which commutes with a rotation once its weight is 1 (Gemma's: 0);
    else None.
    """
    parameters = list(module.named_parameters(recurse=False))
    if len(parameters) != 1 or len(args) != 1:
        return None
    (name, parameter), values = parameters[0], args[0].float()
    if parameter.shape != values.shape[-1:]:
        return None
    rotation = Rotation(values.shape[-1])
    for unit in (1.0, 0.0):
        norm = Norm(module, parameter, unit, readers)
        weight = torch.full_like(parameter.data, unit, dtype=torch.float32)
        with torch.no_grad():
            plain = functional_call(module, {name: weight}, (values,))
            rotated = functional_call(module, {name: weight}, (rotation.apply(values),))
            gained = functional_call(module, {name: parameter.data.float()}, (values,))
        size = float(plain.abs().max())
        close = COMMUTES * size
        if (
            size > 0
            and float((rotation.apply(plain) - rotated).abs().max()) <= close
            and float((plain * norm.gain - gained).abs().max()) <= close * max(1.0, float(norm.gain.abs().max()))
        ):
            return norm
    return None


def _once(model: nn.Module, stream: Stream) -> bool:
    """Whether no weight is used in two places, except for a head that is tied to the embedding."""
    layers = [layer for norm in stream.norms for layer in norm.readers] + list(stream.writers)
    used = [layer.parameter for layer in layers] + [norm.parameter for norm in stream.norms]
    used = [parameter for parameter in used if parameter is not stream.embedding.weight]
    shared = len(layers) + len(stream.norms) - len(used)
    names = parameter_names(model)
    return shared <= 1 and len({id(parameter) for parameter in used}) == len(used) and all(id(p) in names for p in used)


@contextmanager
def _as_if(stream: Stream, rotation: Rotation) -> Iterator[None]:
    """Within the context, hooks make the model compute as if it were rotated. Only the norms' weights are changed, and
    restored at the end.
    """
    kept = [norm.parameter.data for norm in stream.norms]
    hooks = [stream.embedding.register_forward_hook(_turned(rotation))]
    hooks += [layer.module.register_forward_hook(_turned(rotation)) for layer in stream.writers]
    for norm in stream.norms:
        gain = norm.gain
        hooks += [layer.module.register_forward_pre_hook(_read(rotation, gain)) for layer in norm.readers]
        norm.parameter.data = torch.full_like(norm.parameter.data, norm.unit)
    try:
        with hooked(hooks):
            yield
    finally:
        for norm, data in zip(stream.norms, kept, strict=True):
            norm.parameter.data = data


def _turned(rotation: Rotation) -> Any:
    return lambda module, args, output: rotation.apply(output).to(output.dtype)


def _read(rotation: Rotation, gain: Tensor) -> Any:
    return lambda module, args: ((rotation.back(args[0]) * gain).to(args[0].dtype), *args[1:])


def _apply(stream: Stream, rotation: Rotation) -> None:
    tied = stream.tied
    if tied is not None:
        tied.module.weight = nn.Parameter(stream.embedding.weight.data.clone(), requires_grad=False)
    _each_row(stream.embedding.weight.data, rotation.apply)
    for norm in stream.norms:
        gain = norm.gain
        for layer in norm.readers:
            _each_row(layer.matrix, partial(_folded, rotation, gain))
        norm.parameter.data.fill_(norm.unit)
    for layer in stream.writers:
        _each_row(layer.matrix.T, rotation.apply)
        bias = getattr(layer.module, "bias", None)
        if bias is not None:
            _each_row(bias.data[None], rotation.apply)


def _folded(rotation: Rotation, gain: Tensor, rows: Tensor) -> Tensor:
    return rotation.apply(rows * gain)


def _each_row(matrix: Tensor, change: Callable[[Tensor], Tensor]) -> None:
    """Replace the rows of a matrix [N, H] in place, a slice at a time."""
    step = max(1, SLICE // matrix.shape[1])
    for start in range(0, matrix.shape[0], step):
        rows = matrix[start : start + step]
        rows.copy_(change(rows.float()))
