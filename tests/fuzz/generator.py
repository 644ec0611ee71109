"""Random programs: statements are drawn from templates and kept if eager torch runs them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .program import DIMS, INPUTS, Program, Sizes
from .statements import EXPRESSIONS, NUMBERS, POSITIONS, SIZES, WRITES

__all__ = ["KINDS", "OPSETS", "generate"]

KINDS = (*EXPRESSIONS, "writes")
OPSETS = (11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23)

_TARGETS = (None, None, "onnxruntime")
_EXAMPLES: tuple[Sizes, ...] = ((2, 3, 4), (3, 5, 4), (4, 6, 5), (2, 4, 3), (3, 7, 6), (5, 4, 7), (1, 3, 5), (3, 1, 4))
_SIZES: tuple[Sizes, ...] = ((1, 1, 1), (1, 5, 2), (7, 1, 3), (2, 2, 2), (3, 2, 7), (5, 11, 4), (2, 8, 5))
_EMPTY: tuple[Sizes, ...] = ((0, 3, 4), (2, 0, 3))
_LARGEST = 3000
_DTYPES = frozenset(
    {torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}
    | {torch.bool}
)
_FIELD = re.compile(r"\{([^{}]+)\}")
_MODULE = re.compile(r"<(nn\..+)>\(")


class _NoOperand(Exception):
    """No tensor fits a template."""


def generate(seed: int, *, empty: bool = False, kind: str | None = None) -> Program:
    """The random program of a seed; the same in every process.

    Args:
        seed: The seed.
        empty: Whether it is also run at sizes of 0.
        kind: The kind of statements it mostly consists of; random by default.
    """
    rng = random.Random(seed)
    chosen = rng.choice(KINDS)
    dynamic = DIMS if rng.random() < 0.75 else tuple(dim for dim in DIMS if rng.random() < 0.6)
    opset, target, example = rng.choice(OPSETS), rng.choice(_TARGETS), rng.choice(_EXAMPLES)
    sizes = _SIZES + (_EMPTY if empty else ())
    # Derived from the seed, so that the random choices are the same for all namings.
    naming = ("names", "names", "DYNAMIC", "AUTO")[seed // 10 % 4]
    program = Program(seed, kind or chosen, opset, target, {}, (), ("x",), example, sizes, dynamic, naming)
    return _Generator(rng, program).run(rng.randint(2, 7))


class _Generator:
    """Extends one program statement by statement; all choices come from one random stream."""

    def __init__(self, rng: random.Random, program: Program) -> None:
        self.rng = rng
        self.program = program
        self.variables: dict[str, torch.Tensor] = self._run(program) or {}
        self._subject = ""

    def run(self, statements: int) -> Program:
        """The program with up to the given number of statements."""
        if self.program.kind == "writes":
            self._try(("c = x.clone()", "u = index.clone()"))
        made = len(self.program.lines)
        for _ in range(statements * 4):
            if len(self.program.lines) >= made + statements:
                break
            self._statement()
        results = [name for name in self.variables if name not in INPUTS]
        outputs = results[-5:] or ["x"]
        if "c" in results and "c" not in outputs:
            outputs.append("c")
        return self.program.replaced(outputs=tuple(outputs))

    def _statement(self) -> None:
        kind = self.program.kind if self.rng.random() < 0.7 else self.rng.choice(KINDS)
        template = self.rng.choice(WRITES if kind == "writes" else EXPRESSIONS[kind])
        modules = dict(self.program.modules)
        try:
            text = self._filled(template)
        except _NoOperand:
            return
        found = _MODULE.search(text)
        if found is not None:
            name = f"m{len(modules)}"
            modules[name] = found[1]
            text = text.replace(f"<{found[1]}>", f"self.{name}")
        if kind != "writes":
            text = f"v{len(self.program.lines)} = {text}"
        self._try((text,), modules)

    def _try(self, lines: tuple[str, ...], modules: dict[str, str] | None = None) -> None:
        """Add lines if eager torch runs them and their results can be compared."""
        longer = self.program.replaced(
            lines=(*self.program.lines, *lines), modules=modules or dict(self.program.modules)
        )
        variables = self._run(longer)
        if variables is not None and all(map(_is_comparable, variables.values())):
            self.program, self.variables = longer, variables

    def _run(self, program: Program) -> dict[str, torch.Tensor] | None:
        """All tensors after the last line at the example sizes; None if a line fails."""
        names = [*INPUTS, *re.findall(r"^(\w+) =", "\n".join(program.lines), re.MULTILINE)]
        whole = program.replaced(outputs=tuple(names))
        model, inputs = whole.model(), whole.example_inputs(program.example)
        try:
            with torch.no_grad():
                values = model(*inputs)
        except (RuntimeError, IndexError, ValueError, TypeError, AttributeError, AssertionError, OverflowError):
            return None
        variables = dict(zip(names, values, strict=True))
        return variables if all(isinstance(value, torch.Tensor) for value in values) else None

    # ---- templates

    def _filled(self, template: str) -> str:
        """The statement with all fields filled in; a field that occurs twice has one value."""
        self._subject = ""
        known: dict[str, str] = {}
        # Tensors first: axes, masks and slices refer to the first of them, as does a tensor that broadcasts to it.
        order = {"w": 0, **dict.fromkeys(_OPERANDS, 1), "h": 2}
        for name in sorted(_FIELD.findall(template), key=lambda name: order.get(name, 3)):
            if name not in known:
                known[name] = self._field(name)
        return _FIELD.sub(lambda field: known[field[1]], template)

    def _field(self, name: str) -> str:
        if "|" in name:
            return self.rng.choice(name.split("|"))
        if name in _OPERANDS:
            accepts = _OPERANDS[name]
            subject = self.variables.get(self._subject)
            chosen = self._pick(lambda value: accepts(value, subject))
            self._subject = self._subject or chosen
            return chosen
        return str(_FIELDS[name](self))

    def _pick(self, accepts: Callable[[torch.Tensor], bool]) -> str:
        names = [name for name, value in self.variables.items() if accepts(value)]
        if not names:
            raise _NoOperand
        # Recent ones more often, so that statements depend on each other.
        return self.rng.choice(names[-2:] if self.rng.random() < 0.6 else names)

    def _written(self) -> str:
        """A tensor to mutate: mostly an intermediate one, sometimes an input."""
        inputs = self.rng.random() < 0.05
        self._subject = self._pick(lambda value: value.dim() > 0 and value.dtype != torch.bool and not value._is_view())
        if self._subject in INPUTS and not inputs:
            raise _NoOperand
        return self._subject

    def _mask(self) -> str:
        """A bool tensor of the shape of the first tensor."""
        shape = self.variables[self._subject].shape
        try:
            return self._pick(lambda value: value.dtype == torch.bool and value.shape == shape)
        except _NoOperand:
            return f"({self._subject} > {self.rng.choice(NUMBERS)})"

    def _broadcast_mask(self) -> str:
        """A bool tensor that broadcasts to the shape of the first tensor."""
        first = self.variables[self._subject]
        accepts = partial(_broadcasts, first=first)
        names = [name for name, value in self.variables.items() if value.dtype == torch.bool and accepts(value)]
        axis = self._axis()
        reduced = f"({self._subject} > {self.rng.choice(NUMBERS)}).any({axis}, keepdim={axis % first.dim() != 0})"
        return self.rng.choice([*names, f"({self._subject}[0] > {self.rng.choice(NUMBERS)})", reduced])

    def _axis(self) -> int:
        rank = self.variables[self._subject].dim()
        axis = self.rng.randrange(rank)
        return axis - rank if self.rng.random() < 0.4 else axis

    def _permutation(self) -> list[int]:
        axes = list(range(self.variables[self._subject].dim()))
        self.rng.shuffle(axes)
        return axes

    def _size(self) -> str:
        return self.rng.choice(SIZES).format(s=self._shape(), o=self._shape())

    def _shape(self) -> str:
        name = self._pick(lambda value: value.dim() > 0)
        return f"{name}.shape[{self.rng.randrange(self.variables[name].dim())}]"

    def _slices(self) -> str:
        rank = self.variables[self._subject].dim()
        parts = [self._slice() for _ in range(self.rng.randint(1, rank))]
        if self.rng.random() < 0.2:
            parts.insert(self.rng.choice((0, len(parts))), "...")
        return ", ".join(parts)

    def _slice(self) -> str:
        draw = self.rng.random()
        if draw < 0.2:
            return self.rng.choice(POSITIONS)
        if draw < 0.3:
            return self.rng.choice((":", "None"))
        start = self.rng.choice(("", "", "1", "-1", "2", "-2", "-3", "5"))
        stop = self.rng.choice(("", "", "-1", "2", "3", "1", "-2", "100", self._size()))
        return f"{start}:{stop}{self.rng.choice(('', '', '', ':2', ':3'))}"


def _is_comparable(value: torch.Tensor) -> bool:
    return value.numel() <= _LARGEST and value.dim() <= 5 and value.dtype in _DTYPES


def _is_float(value: torch.Tensor, _: torch.Tensor | None = None) -> bool:
    return value.is_floating_point() and value.dim() > 0


def _broadcasts(value: torch.Tensor, first: torch.Tensor) -> bool:
    """Whether a tensor broadcasts to the shape of another one, which it does not have."""
    sizes = zip(reversed(value.shape), reversed(first.shape), strict=False)
    return value.dim() <= first.dim() and all(a in (1, b) for a, b in sizes) and value.shape != first.shape


def _is_integer(value: torch.Tensor, _: torch.Tensor | None = None) -> bool:
    return not value.is_floating_point() and value.dtype != torch.bool and value.dim() > 0


def _is_of(value: torch.Tensor, rank: int, axis: int, size: int) -> bool:
    return _is_float(value) and value.dim() == rank and value.shape[axis] == size


# Tensor fields of a template: a predicate over the candidate and the first tensor of the statement.
_OPERANDS: dict[str, Callable[[torch.Tensor, torch.Tensor | None], bool]] = {
    "f": _is_float,
    "g": lambda value, first: _is_float(value) and first is not None and value.shape == first.shape,
    "h": lambda value, first: value.is_floating_point() and first is not None and _broadcasts(value, first),
    "f2": lambda value, _: _is_float(value) and value.dim() >= 2,
    "c": lambda value, _: _is_float(value) and value.dim() == 3,
    "q": lambda value, _: _is_float(value) and value.dim() >= 2 and value.shape[-1] == 4,
    "q3": lambda value, _: _is_of(value, 3, -1, 4),
    "img": lambda value, _: _is_of(value, 4, 1, 2),
    "n": _is_integer,
    "b": lambda value, _: value.dtype == torch.bool and value.dim() > 0,
    "t": lambda value, _: value.dim() > 0,
    "t2": lambda value, _: value.dim() > 0,
}
_FIELDS: dict[str, Callable[[_Generator], Any]] = {
    "d": _Generator._axis,
    "e": _Generator._axis,
    "perm": _Generator._permutation,
    "size": _Generator._size,
    "size2": _Generator._size,
    "num": lambda generator: generator.rng.choice(NUMBERS),
    "index": lambda generator: generator.rng.choice(POSITIONS),
    "slices": _Generator._slices,
    "m": _Generator._mask,
    "k": _Generator._broadcast_mask,
    "w": _Generator._written,
}
