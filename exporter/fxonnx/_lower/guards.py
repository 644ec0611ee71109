"""Guards: the graph itself checks the limits of its inputs, so that it fails in any runtime where it would be wrong.

ONNX has no assertion. For each limit, a tensor of one element is repeated twice unless the condition holds, and a
``Reshape`` to one element, whose name is the limit, fails for two elements. The tensor that the last one passes on is
the shape to which an ``Expand`` broadcasts a tensor on the way to each output. Some runtime drops other forms: ONNX
Runtime replaces one element of a concatenated shape by -1, and OpenVINO trusts the shape that a ``Reshape`` is given.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import sympy
import torch

from fxonnx_translations._builder.builder import Builder, Unsupported
from fxonnx_translations._builder.constants import array_of
from fxonnx_translations._builder.size_expressions import emit_size
from fxonnx_translations._torch_compat import sympy_functions

from .._capture import Capture
from .._capture.constraints.constraint import Constraint, SizeLimits, shortened
from .._capture.data_dependence.assumption import AssumptionKind
from .._prepare import Prepared
from .._prepare.assumption_checks import Check
from .._warnings import warn_user
from .finalize import subgraphs
from .guard_places import ancestors, can_expand, find_places

__all__ = ["GUARDS_KEY", "Guards", "insert_guards", "keep_checks", "name_of_constraint", "renamed"]

GUARDS_KEY = "pkg.fxonnx.guards"
"""Metadata key of the model: JSON, the names of the nodes that check the limits of the inputs."""

_PLACE = re.compile(r"([^/\\]+:\d+) in ")
_SYMBOL = re.compile(r"\b(?:u|zuf)\d+\b")
_BYTES_OF_UNKNOWN = 4
_UNKNOWN_SIZE = 64
_RELATIONS: Mapping[type, str] = {
    sympy.Eq: "Equal",
    sympy.Lt: "Less",
    sympy.Le: "LessOrEqual",
    sympy.Gt: "Greater",
    sympy.Ge: "GreaterOrEqual",
}
_OPPOSITES: Mapping[type, type[sympy.Rel]] = {sympy.Le: sympy.Gt, sympy.Ge: sympy.Lt}
_SINCE_ORDERED = 12
"""The first opset with LessOrEqual."""
_SINCE_MOD = 10
_SINCE_ORDERED_INTEGERS = 9
"""The first opset in which Less takes integers."""
_SINCE_WHERE = 9
_SINCE_EXPAND = 8
_MOST_SIZES = 1 << 14
"""The number of sizes that a limit without an ONNX form allows at most."""


@dataclass(frozen=True)
class Guards:
    """The limits that a graph checks.

    Attributes:
        nodes: The name of each limit to the node that fails.
    """

    nodes: Mapping[str, ir.Node] = field(default_factory=dict)

    def write(self, model: ir.Model) -> None:
        """Name the nodes by their limits, after all nodes have been named by their outputs, and list them."""
        for name, node in self.nodes.items():
            node.name = name
        if self.nodes:
            model.metadata_props[GUARDS_KEY] = json.dumps(list(self.nodes))


def _guarded(limits: SizeLimits) -> Iterator[Constraint]:
    """The constraints on sizes that the graph has to check.

    Those are not: ranges of the user's dims and equal names, which were asked for, and dims that the file declares
    to be equal where none was asked for, and those that follow from the equality of an expression with a number.
    """
    equal = [one.expression for one in limits.constraints if isinstance(one.expression, sympy.Eq)]
    known = [(one.lhs, one.rhs) for one in equal if one.rhs.is_Integer and not one.lhs.is_Symbol]
    for constraint in limits.constraints:
        expression = constraint.expression
        if not isinstance(expression, sympy.Eq) and any(expression.subs(*pair) == sympy.true for pair in known):
            continue
        is_declared = isinstance(expression, sympy.Eq) and all(side.is_Symbol for side in expression.args)
        if constraint.narrows or not (constraint.is_range or constraint.is_equality or is_declared):
            yield constraint


def name_of_constraint(constraint: Constraint) -> str:
    """The name of the node that checks a constraint: ``requires n <= 40 (model.py:5)``."""
    return _name(constraint.text, constraint.line)


def renamed(model: ir.Model, guards: Sequence[str], old: SizeLimits, new: SizeLimits) -> tuple[str, ...]:
    """Rename the guards of a model after its dims have been renamed, and return their names.

    Args:
        model: The model; it is modified.
        guards: The names of its guards.
        old: Its limits with the old names.
        new: Its limits with the new names.
    """
    pairs = zip(old.constraints, new.constraints, strict=True)
    names: dict[str | None, str] = {name_of_constraint(before): name_of_constraint(after) for before, after in pairs}
    for node in model.graph:
        if node.name in guards:
            node.name = names.get(node.name, node.name)
    found = tuple(str(names.get(name, name)) for name in guards)
    if found:
        model.metadata_props[GUARDS_KEY] = json.dumps(found)
    return found


def _name(text: str, line: str | None) -> str:
    """The name of the node that checks a limit: ``requires n <= 40 (model.py:5)``."""
    place = None if line is None else _PLACE.search(line)
    return f"requires {shortened(text)}" + (f" ({place[1]})" if place else "")


def keep_checks(builder: Builder, prepared: Prepared, env: Mapping[torch.fx.Node, Any]) -> None:
    """Keep the conditions of the answers that follow the example, as outputs until ``insert_guards`` removes them."""
    builder.graph.outputs.extend(env[check.node] for check in prepared.checks)


def insert_guards(
    builder: Builder, prepared: Prepared, capture: Capture, limits: SizeLimits, env: Mapping[torch.fx.Node, Any]
) -> Guards:
    """Make every output of a finished graph depend on checks of the limits of its inputs.

    Args:
        builder: The builder of the main graph.
        prepared: The prepared program, whose checks are the last outputs of the graph.
        capture: The captured program.
        limits: Its limits, with those of the ONNX operators.
        env: FX node to lowered value.
    """
    insertion = _Insertion(builder, _inputs(builder, prepared, env))
    insertion.add_sizes(limits, _example_sizes(capture))
    for check in prepared.checks:
        builder.graph.outputs.pop()
        insertion.add(_name_of_check(check, capture), env[check.node])
    if insertion.nodes:
        insertion.attach(_example_sizes(capture))
        insertion.register_constants()
    else:
        insertion.undo()
    insertion.drop_constants()
    for text in insertion.unchecked:
        warn_user(f"the model does not check a limit of its inputs itself: {text}")
    return Guards(insertion.nodes)


class _Insertion:
    """The guards of one graph, one after the other.

    Attributes:
        nodes: The name of each limit to the node that fails.
        unchecked: Descriptions of the limits that the graph cannot check.
        passed: The element 1 that the last guard passes on; None before the first.
    """

    def __init__(self, builder: Builder, inputs: Sequence[ir.Value]) -> None:
        # A builder of its own: the nodes that the other one remembers may have been eliminated.
        builder = Builder(builder.graph, builder.symbols, builder.names, builder.replace_missing_op, parent=builder)
        self.nodes: dict[str, ir.Node] = {}
        self.unchecked: list[str] = []
        self.passed: ir.Value | None = None
        self._builder, self._inputs = builder, inputs
        self._constants = frozenset(builder.graph.initializers)

    @property
    def _one(self) -> ir.Value:
        return self._builder.constant([1], ir.DataType.INT64)

    def add_sizes(self, limits: SizeLimits, example: Mapping[str, int]) -> None:
        """Add the guards of constraints on sizes; one without an ONNX form allows the sizes around the example's."""
        constraints = [one for one in _guarded(limits) if not _is_enforced(one, self._builder)]
        if not constraints:
            return
        builder, outside = self._builder, self._builder.symbols
        # Symbols that nothing is known about: the graph was simplified under the constraints, a guard must not be.
        symbols = {
            symbol: sympy.Symbol(f"size {symbol.name}", integer=True, nonnegative=True)
            for place in limits.places
            for symbol in place.expression.free_symbols
        }
        by_name = {symbol.name: new for symbol, new in symbols.items()}
        builder.symbols = outside.nested({})
        for place in sorted(limits.places, key=lambda place: not place.expression.is_Symbol):
            value, size = self._inputs[place.input], place.expression.xreplace(symbols)
            if place.axis is None:
                builder.symbols.define_scalar(value, size)
            elif not any(builder.symbols.is_defined(symbol) for symbol in size.free_symbols):
                builder.symbols.define(value, [0] * place.axis + [size])
        try:
            for constraint in constraints:
                names = {symbol: by_name.get(symbol.name, symbol) for symbol in constraint.expression.free_symbols}
                name, mark = name_of_constraint(constraint), len(builder.created)
                expression = constraint.expression.xreplace(names)
                if not expression.free_symbols:
                    continue
                try:
                    self.add(name, self._condition(expression))
                except (Unsupported, TypeError, KeyError):
                    builder.rollback(mark)
                    near = _sizes_around(constraint, example)
                    if near is None:
                        self.unchecked.append(f"it {name}, which has no ONNX form at opset {builder.opset_version}")
                    else:
                        first, last = near
                        (size,) = expression.free_symbols
                        self.add(name, self._condition((size >= first) & (size <= last)))
        finally:
            builder.symbols = outside

    def add(self, name: str, condition: ir.Value) -> None:
        """Add the guard of a condition, a bool tensor of one element."""
        known = array_of(condition)
        if known is not None and bool(known.all()):
            return
        two = self._builder.constant([2], ir.DataType.INT64)
        if self._builder.opset_version >= _SINCE_WHERE:
            repeats = self._node("Where", [condition, self._one, two], ir.DataType.INT64, (1,))
        else:
            number = self._node("Cast", [condition], ir.DataType.INT64, (1,), to=int(ir.DataType.INT64))
            repeats = self._node("Sub", [two, number], ir.DataType.INT64, (1,))
        # The shape has no size: a runtime that believed in 1 would drop the Reshape.
        count = sympy.Symbol(self._builder.names.helper(), integer=True)
        tiled = self._node("Tile", [self._last, repeats], ir.DataType.INT64, (count,))
        tiled.shape = ir.Shape([None])
        self.passed = self._node("Reshape", [tiled, self._one], ir.DataType.INT64, (1,))
        node = self.passed.producer()
        if node is not None:
            alike = sum(known.partition(" #")[0] == name for known in self.nodes)
            self.nodes[f"{name} #{alike + 1}" if alike else name] = node

    @property
    def _last(self) -> ir.Value:
        return self.passed or self._one

    def attach(self, sizes: Mapping[str, int]) -> None:
        """Make every output depend on the guards."""

        def bytes_of(value: ir.Value) -> int | None:
            return _bytes_of(self._builder, value, sizes)

        before = ancestors([self._last])
        for place in find_places(self._builder, before, bytes_of):
            if place.readers:
                self._guard_uses(place.value, place.readers)
            else:
                self._guard_output(place.value)

    def undo(self) -> None:
        """Remove the nodes of conditions that always hold."""
        self._builder.rollback(0)

    def register_constants(self) -> None:
        """Register the constants of the guards again: those that no other node used have been eliminated."""
        graph = self._builder.graph
        for node in self._builder.created:
            for value in node.inputs:
                if value is not None and value.const_value is not None and value.name not in graph.initializers:
                    graph.register_initializer(value)

    def drop_constants(self) -> None:
        """Remove the constants of conditions that always hold."""
        initializers = self._builder.graph.initializers
        for name in initializers.keys() - self._constants:
            if not initializers[name].uses():
                del initializers[name]

    def _guard_uses(self, value: ir.Value, readers: Sequence[ir.Node]) -> None:
        guarded = self._expanded(value)
        for reader in readers:
            _replace_uses(reader, value, guarded)
        self._move_before(guarded, readers[0])

    def _guard_output(self, value: ir.Value) -> None:
        """Guard an output of the graph, which keeps its name and metadata."""
        graph = self._builder.graph
        if not can_expand(value, self._builder):
            self._guard_source(value)
            return
        name = value.name
        guarded = self._expanded(value)
        value.name = self._builder.names.unique(f"{name}_unguarded")
        guarded.name = name
        guarded.shape = None if value.shape is None else value.shape.copy()
        guarded.metadata_props.update(value.metadata_props)
        value.metadata_props.clear()
        guarded.meta.update(value.meta)
        value.meta.clear()
        graph.outputs[list(graph.outputs).index(value)] = guarded

    def _guard_source(self, value: ir.Value) -> None:
        """Guard a tensor from which an output is made that has no Expand: a sequence, or one of a type of 8 bits."""
        node = value.producer()
        while node is not None:
            for source in node.inputs:
                if source is not None and not source.is_initializer() and can_expand(source, self._builder):
                    self._guard_uses(source, [node])
                    return
            node = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
        self.unchecked.append(f"no tensor is known on the way to the output {value.name!r}")

    def _expanded(self, value: ir.Value) -> ir.Value:
        builder = self._builder
        dims = builder.dims(value)
        if builder.opset_version < _SINCE_EXPAND:
            shape = self._node("Shape", [value], ir.DataType.INT64, (len(dims),))
            shape = self._node("Mul", [shape, self._last], ir.DataType.INT64, (len(dims),))
            return self._node("Reshape", [value, shape], value.dtype, dims)
        expanded = builder.value_of("Expand", value, self._last)
        builder.set_dims(expanded, dims or (1,))
        if not dims:
            expanded = builder.value_of("Squeeze", expanded, [0])
            builder.set_dims(expanded, dims)
        return expanded

    def _move_before(self, value: ir.Value, reader: ir.Node) -> None:
        """Move the nodes that compute a value before a node that uses it."""
        graph = self._builder.graph
        needed, late, is_late = ancestors([value]), [], False
        for node in graph:
            is_late = is_late or node is reader
            if is_late and node in needed:
                late.append(node)
        graph.remove(late)
        graph.insert_before(reader, late)

    def _condition(self, expression: sympy.Basic) -> ir.Value:
        """Emit a condition; its comparisons are not decided at export time, as those of the graph may be."""
        if isinstance(expression, sympy.And | sympy.Or):
            first, *others = map(self._condition, expression.args)
            for other in others:
                op_type = "And" if isinstance(expression, sympy.And) else "Or"
                first = self._node(op_type, [first, other], ir.DataType.BOOL, (1,))
            return first
        if isinstance(expression, sympy.Not):
            return self._node("Not", [self._condition(expression.args[0])], ir.DataType.BOOL, (1,))
        if isinstance(expression, sympy.Ne):
            equal = self._condition(sympy.Eq(*expression.args, evaluate=False))
            return self._node("Not", [equal], ir.DataType.BOOL, (1,))
        opset = self._builder.opset_version
        opposite = _OPPOSITES.get(type(expression)) if opset < _SINCE_ORDERED else None
        if opposite is not None:
            return self._node(
                "Not", [self._condition(opposite(*expression.args, evaluate=False))], ir.DataType.BOOL, (1,)
            )
        relation = _RELATIONS.get(type(expression))
        if relation is None:
            return emit_size(self._builder, expression)
        if opset < _SINCE_MOD:
            expression = expression.replace(sympy_functions.Mod, _remainder)
        sides = [emit_size(self._builder, side) for side in expression.args]
        is_ordered_as_float = opset < _SINCE_ORDERED_INTEGERS and relation != "Equal"
        if is_ordered_as_float or len({side.dtype for side in sides}) > 1:
            double = ir.DataType.DOUBLE
            sides = [self._node("Cast", [side], double, (1,), to=int(double)) for side in sides]
        return self._node(relation, sides, ir.DataType.BOOL, (1,))

    def _node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value],
        dtype: ir.DataType | None,
        dims: Sequence[Any],
        **attributes: Any,
    ) -> ir.Value:
        """Emit an operator as given: a guard is not simplified."""
        (value,) = self._builder.emit_verbatim(op_type, inputs, attributes, 1, "", None)
        if dtype is not None:
            value.type = ir.TensorType(dtype)
        self._builder.set_dims(value, dims)
        return value


def _sizes_around(constraint: Constraint, example: Mapping[str, int]) -> tuple[int, int] | None:
    """The range of sizes around the example's that satisfy a constraint; None if it has several dims."""
    dim, *others = constraint.dims
    if others or dim not in example or not constraint.holds(example):
        return None
    first = last = example[dim]
    while first > 0 and constraint.holds({dim: first - 1}):
        first -= 1
    while last < first + _MOST_SIZES and constraint.holds({dim: last + 1}):
        last += 1
    return first, last


def _remainder(number: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr:
    return number - divisor * sympy_functions.FloorDiv(number, divisor)


def _replace_uses(node: ir.Node, old: ir.Value, new: ir.Value) -> None:
    """Replace a value in a node and its subgraphs."""
    for index, value in enumerate(node.inputs):
        if value is old:
            node.replace_input_with(index, new)
    for body in subgraphs(node):
        for inner in body:
            _replace_uses(inner, old, new)
        for index, value in enumerate(body.outputs):
            if value is old:
                body.outputs[index] = new


def _inputs(builder: Builder, prepared: Prepared, env: Mapping[torch.fx.Node, Any]) -> list[ir.Value]:
    """The inputs of the model that are not constants of the program, lists as stacked tensors."""
    placeholders = prepared.graph.find_nodes(op="placeholder")
    given = [node for node, record in zip(placeholders, prepared.signature.inputs, strict=True) if record.is_user_input]
    # A number is lowered as its symbol.
    return [
        env[node] if isinstance(env[node], ir.Value) else value
        for node, value in zip(given, builder.graph.inputs, strict=False)
    ]


def _name_of_check(check: Check, capture: Capture) -> str:
    """The name of the node that checks an answer: ``requires if x.sum() > 0: -> True (model.py:5)``."""
    symbols = set(_SYMBOL.findall(check.condition))
    for assumption in capture.assumptions:
        if assumption.kind is AssumptionKind.EXAMPLE and symbols & set(_SYMBOL.findall(assumption.condition)):
            line = assumption.line
            code = line.code if line is not None and line.code else assumption.condition
            return _name(f"{code} -> {assumption.answer}", None if line is None else str(line))
    return _name(check.condition, None)


def _example_sizes(capture: Capture) -> dict[str, int]:
    """Name of a dim in the graph to its size in the example."""
    found: dict[str, int] = {}
    for node in capture.exported_program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol and size.node.has_hint():
                symbol = size.node.expr
                found[capture.dim_names.get(symbol, symbol.name)] = int(size.node.hint)
    return found


def _bytes_of(builder: Builder, value: ir.Value, sizes: Mapping[str, int]) -> int | None:
    dims = builder.recorded_dims(value)
    if dims is None:
        return None
    count = 1
    for dim in dims:
        if isinstance(dim, int):
            count *= dim
            continue
        known = {symbol: sympy.Integer(sizes.get(symbol.name, _UNKNOWN_SIZE)) for symbol in dim.free_symbols}
        size = dim.xreplace(known)
        count *= max(int(size), 0) if size.is_Integer else _UNKNOWN_SIZE
    return int(count * (value.dtype.itemsize if value.dtype is not None else _BYTES_OF_UNKNOWN))


# ---- limits that operators enforce


_SIZE_READERS = frozenset({"Shape", "Size"})
_WITHOUT_CHECKS = frozenset({"Attention", "GRU", "LSTM", "RNN", "If", "Loop", "Scan", "Resize"})
"""Operators whose kernels do not check all sizes of their inputs, or whose body may be one that was not captured."""
_DECISIONS = (ast.Compare, ast.IfExp, ast.BoolOp, ast.If, ast.While, ast.Assert)
_CHOOSING = frozenset({"all", "any", "bool", "max", "min", "sorted"})


def _is_enforced(constraint: Constraint, builder: Builder) -> bool:
    """Whether the operators of a graph require two dims to be equal as those of the model do.

    That is the case for sums of tensors, for example: ONNX broadcasts a size of 1 as torch does, and any other size is
    an error. It is not if the model itself compares the sizes, or if the graph computes with a size.
    """
    expression = constraint.expression
    if not isinstance(expression, sympy.Eq) or not all(side.is_Symbol for side in expression.args):
        return False
    return not _decides(constraint.code) and not _computes_with_sizes(builder)


def _decides(code: str | None) -> bool:
    """Whether a line of code may compare sizes; True if it is not known."""
    try:
        tree = ast.parse(code or "?")
    except SyntaxError:
        return True
    return any(
        isinstance(node, _DECISIONS) or (isinstance(node, ast.Name) and node.id in _CHOOSING) for node in ast.walk(tree)
    )


def _computes_with_sizes(builder: Builder) -> bool:
    return any(
        node.op_type in _SIZE_READERS or node.op_type in _WITHOUT_CHECKS or node.domain not in ("", "ai.onnx")
        for node in ir.traversal.RecursiveGraphIterator(builder.graph)
    )
