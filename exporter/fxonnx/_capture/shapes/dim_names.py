"""Mapping of torch's symbols to the user's dim names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from ..constraints.guard_recorder import GuardLog
from ..constraints.specialized_dims import specialized_dims_error
from .dim_specs import DimHint, DimSpec, is_auto
from .dynamic_shapes import DynamicShapes, Leaf, SharedDim

__all__ = ["name_dims"]


def name_dims(
    program: ExportedProgram, shapes: DynamicShapes, log: GuardLog | None = None
) -> tuple[dict[sympy.Symbol, str], dict[str, tuple[str, ...]]]:
    """Assign the user's names to the symbols of their dims.

    If a symbol has several names, the first one in the order of the inputs is used and the others are its aliases. If
    several symbols have the same name, they keep it if the examples agree; otherwise they become ``n`` and ``n_1``.

    Returns:
        Symbol to unique name, and name to aliases.

    Raises:
        CaptureError: If a dynamic dim is specialized to one size.
    """
    if shapes.is_static:
        return {}, {}
    given: dict[sympy.Symbol, list[str]] = {}
    specialized: list[tuple[Leaf, int | None, int]] = []
    symbols: dict[tuple[int, int | None], sympy.Symbol] = {}
    for index, (leaf, value) in enumerate(zip(shapes.leaves, _input_values(program), strict=True)):
        for axis, spec in leaf.dims.items():
            size = value if axis is None else value.shape[axis]
            constant = _constant(size, program)
            if constant is not None:
                if not is_auto(spec):
                    specialized.append((leaf, axis, constant))
                continue
            named = _named_symbol(spec, size.node.expr)
            if named is not None:
                symbol, name = named
                symbols[index, axis] = symbol
                known = given.setdefault(symbol, [])
                if name not in known:
                    known.append(name)
    if specialized:
        raise specialized_dims_error(specialized, log)
    firsts = _merge_shared(shapes.shared, symbols, given)
    names, aliases = _unique_names({symbol: found for symbol, found in given.items() if symbol not in firsts})
    return {symbol: names[firsts.get(symbol, symbol)] for symbol in given}, aliases


def _input_values(program: ExportedProgram) -> list[Any]:
    placeholders = program.graph.find_nodes(op="placeholder")
    specs = program.graph_signature.input_specs
    return [
        node.meta.get("val")
        for spec, node in zip(specs, placeholders, strict=True)
        if spec.kind == InputKind.USER_INPUT
    ]


def _constant(size: Any, program: ExportedProgram) -> int | None:
    if not isinstance(size, torch.SymInt):
        return int(size)
    expression = size.node.expr
    if expression.is_number:
        return int(expression)
    # A specialized size may keep its symbol, with a range of one value.
    bounds = program.range_constraints.get(expression)
    return int(bounds.lower) if bounds is not None and bounds.is_singleton() else None


def _named_symbol(spec: DimSpec, expression: sympy.Expr) -> tuple[sympy.Symbol, str] | None:
    """The symbol and the name that a spec assigns to it; None if the spec is a hint or names an expression."""
    if isinstance(spec, DimHint) or len(expression.free_symbols) != 1:
        return None
    (symbol,) = expression.free_symbols
    if isinstance(spec, str):
        return (symbol, spec) if expression == symbol else None
    root = getattr(spec, "root", None)
    if root is None:
        return (symbol, spec.__name__) if expression == symbol else None
    return (symbol, root.__name__) if sympy.expand(spec.fn(symbol) - expression) == 0 else None


def _merge_shared(
    shared: Sequence[SharedDim],
    symbols: Mapping[tuple[int, int | None], sympy.Symbol],
    given: Mapping[sympy.Symbol, list[str]],
) -> dict[sympy.Symbol, sympy.Symbol]:
    """Symbol to the first symbol with the same name. The names of merged symbols are added to ``given``."""
    firsts: dict[sympy.Symbol, sympy.Symbol] = {}

    def first_of(symbol: sympy.Symbol) -> sympy.Symbol:
        return first_of(firsts[symbol]) if symbol in firsts else symbol

    order = list(given)
    for group in shared:
        roots = {first_of(symbols[place]) for place in group.places if place in symbols}
        first, *others = sorted(roots, key=order.index) or [None]
        for other in others:
            firsts[other] = first
            given[first].extend(name for name in given[other] if name not in given[first])
    return {symbol: first_of(symbol) for symbol in firsts}


def _unique_names(
    given: Mapping[sympy.Symbol, Sequence[str]],
) -> tuple[dict[sympy.Symbol, str], dict[str, tuple[str, ...]]]:
    reserved = {name for names in given.values() for name in names}
    names: dict[sympy.Symbol, str] = {}
    aliases: dict[str, tuple[str, ...]] = {}
    used: set[str] = set()
    for symbol, candidates in given.items():
        name = candidates[0]
        number = 0
        while name in used or (number and name in reserved):
            number += 1
            name = f"{candidates[0]}_{number}"
        used.add(name)
        names[symbol] = name
        if len(candidates) > 1:
            aliases[name] = tuple(candidates[1:])
    return names, aliases
