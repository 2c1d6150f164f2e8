"""Runs a kernel's PTX thread by thread over a `HostMemory`: the few instructions that ours use, on unsigned numbers."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from itertools import product

from support.host_memory import HostMemory

Dim = tuple[int, int, int]
COMPUTE: dict[str, Callable[..., int]] = {
    "mov": lambda a: a,
    "cvt": lambda a: a,
    "cvta": lambda a: a,  # an address in device memory is its own generic address
    "add": operator.add,
    "shl": operator.lshift,
    "mul": operator.mul,
    "mad": lambda a, b, c: a * b + c,
    "div": operator.floordiv,
    "rem": operator.mod,
}
MAX_STEPS = 1000


class Kernel:
    def __init__(self, text: str, name: str) -> None:
        text = re.sub(r"//.*", "", text)
        entry = re.search(rf"\.entry {name}\((.*?)\)\s*{{(.*)}}", text, re.DOTALL)
        assert entry is not None
        self._parameters = re.findall(r"\.param \.u64 (\w+)", entry.group(1))
        lines = [line.strip() for line in re.sub(r"(\w+:)", r"\1;", entry.group(2)).split(";")]
        lines = [line for line in lines if line and not line.startswith(".reg")]
        self._labels = {line[:-1]: index for index, line in enumerate(lines) if line.endswith(":")}
        # predicate or "", operation, operands
        self._code = [re.fullmatch(r"(?:@(%p\d+) )?([\w.:]+)\s*(.*)", line).groups(default="") for line in lines]  # type: ignore[union-attr]

    def run(self, memory: HostMemory, grid: Dim, block: Dim, *arguments: int) -> None:
        parameters = dict(zip(self._parameters, arguments, strict=True))
        for place in product(*map(range, (*grid, *block))):
            special = zip(("%ctaid", "%tid", "%ntid"), (place[:3], place[3:], block), strict=True)
            names = {
                f"{name}.{axis}": value for name, values in special for axis, value in zip("xyz", values, strict=True)
            }
            self._thread(memory, parameters, names)

    def _thread(self, memory: HostMemory, parameters: dict[str, int], registers: dict[str, int]) -> None:
        """Reading a register before it is written is a `KeyError`."""

        def value(operand: str) -> int:
            return int(operand) if operand.isdigit() else registers[operand]

        def target(operand: str) -> int:
            base, _, offset = operand.strip("[]").partition("+")
            return value(base) + int(offset or 0)

        for predicate, operation, operands in self._steps(registers):
            if predicate and not registers[predicate]:
                continue
            root, *kinds = operation.split(".")
            to, *sources = (operand.strip() for operand in operands.split(","))
            size = int(kinds[-1][1:]) // 8
            if root == "ld" and "param" in kinds:
                registers[to] = parameters[sources[0].strip("[]")]
            elif root == "ld":
                registers[to] = int.from_bytes(memory.view(target(sources[0]), size).tobytes(), "little")
            elif root == "st":
                memory.view(target(to), size)[:] = memoryview(value(sources[0]).to_bytes(size, "little"))
            elif root == "setp":
                registers[to] = getattr(operator, kinds[0])(*map(value, sources))
            else:
                registers[to] = COMPUTE[root](*map(value, sources)) & ((1 << (64 if to.startswith("%d") else 32)) - 1)

    def _steps(self, registers: dict[str, int]) -> Iterator[tuple[str, str, str]]:
        """What is executed, in order: branches are followed here."""
        at, steps = 0, 0
        while at < len(self._code):
            steps += 1
            assert steps < MAX_STEPS, "the kernel does not end"
            predicate, operation, operands = self._code[at]
            at += 1
            if operation == "ret":
                return
            if operation == "bra":
                at = self._labels[operands] if not predicate or registers[predicate] else at
            elif not operation.endswith(":"):
                yield predicate, operation, operands
