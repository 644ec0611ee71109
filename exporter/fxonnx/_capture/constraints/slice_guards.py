"""Guards for slices whose bounds are computed from sizes: ``x[:, -(n - 1):]``.

torch captures the length of such a slice as an unbacked symbol and asserts what the model needs, for example that it
equals another size where the two are broadcast. The length is known at every size, and so is what the assertion means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fxonnx_translations._builder.size_values import SizeValues, UndefinedSizeError

from .guard_recorder import Guard, line_of_node

__all__ = ["slice_guards"]

# An assertion that holds from some size on up to this one is taken to hold for all larger sizes.
_LARGEST = 64


@dataclass(frozen=True)
class _Slice:
    """A slice by its node, the size of its axis, and its bounds and step as expressions of sizes."""

    node: Node
    size: Any
    start: Any
    stop: Any
    step: Any

    @property
    def symbols(self) -> set[sympy.Symbol]:
        """The symbols that the length depends on."""
        parts = (self.size, self.start, self.stop, self.step)
        return {symbol for part in parts if isinstance(part, sympy.Basic) for symbol in part.free_symbols}

    def length(self, values: SizeValues) -> int:
        """The length for values of the symbols."""

        def number(part: Any) -> Any:
            return values.size(part) if isinstance(part, sympy.Basic) else part

        return len(range(number(self.size))[number(self.start) : number(self.stop) : number(self.step)])


def slice_guards(program: ExportedProgram, values: Mapping[sympy.Symbol, Any]) -> Iterator[Guard]:
    """Guards that imply the assertions about the lengths of slices, where these depend on one size.

    Args:
        program: The captured program.
        values: The example values of its symbols.
    """
    slices = dict(_slices(program, values))
    if not slices:
        return
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default):
        condition = node.args[0].meta.get("val") if isinstance(node.args[0], Node) else None
        if not isinstance(condition, torch.SymBool):
            continue
        expression = condition.node.expr
        lengths = {symbol: slices[symbol] for symbol in expression.free_symbols if symbol in slices}
        symbols = expression.free_symbols - lengths.keys()
        for found in lengths.values():
            symbols |= found.symbols
        if lengths and len(symbols) == 1 and symbols <= values.keys():
            (symbol,) = symbols
            guard = _guard(expression, lengths, symbol, int(values[symbol]))
            if guard is not None:
                yield Guard(guard, line_of_node(next(iter(lengths.values())).node))


def _guard(
    expression: sympy.Basic, lengths: Mapping[sympy.Symbol, _Slice], symbol: sympy.Symbol, example: int
) -> sympy.Basic | None:
    """A bound on a symbol that implies an assertion and that the example satisfies; None if it holds at every size."""

    def holds(number: int) -> bool:
        values = {symbol: number}
        try:
            known = {each: found.length(SizeValues(values)) for each, found in lengths.items()}
            return SizeValues({**values, **known}).value(expression) is True
        except UndefinedSizeError:
            return False

    numbers = range(1, max(_LARGEST, 2 * example) + 1)
    failing = [number for number in numbers if not holds(number)]
    if not failing:
        return None
    if failing[-1] < example:
        return sympy.Ge(symbol, failing[-1] + 1)
    return sympy.Le(symbol, failing[0] - 1) if failing[0] > example else sympy.Eq(symbol, example)


def _slices(program: ExportedProgram, values: Mapping[sympy.Symbol, Any]) -> Iterator[tuple[sympy.Symbol, _Slice]]:
    """The slices of unbacked length, by the symbol of the length."""

    def expression(argument: Any) -> Any:
        value = argument.meta.get("val") if isinstance(argument, Node) else argument
        return value.node.expr if isinstance(value, torch.SymInt) else value

    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.slice.Tensor):
        arguments: Any = (*node.args, *(0, None, None, 1)[len(node.args) - 1 :])
        source, axis, start, stop, step = arguments
        result, before = node.meta.get("val"), source.meta.get("val") if isinstance(source, Node) else None
        if not isinstance(result, torch.Tensor) or not isinstance(before, torch.Tensor) or not isinstance(axis, int):
            continue
        length = result.shape[axis]
        symbol = length.node.expr if isinstance(length, torch.SymInt) else None
        if isinstance(symbol, sympy.Symbol) and symbol not in values:
            size = before.shape[axis]
            size = size.node.expr if isinstance(size, torch.SymInt) else size
            yield symbol, _Slice(node, size, expression(start), expression(stop), expression(step))
