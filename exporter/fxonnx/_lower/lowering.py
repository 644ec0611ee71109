"""The walk over the prepared graph: one ONNX value per FX node."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import onnx_ir as ir
import sympy
import torch

from fxonnx_translations._builder import dtypes
from fxonnx_translations._builder.builder import Builder, Unsupported
from fxonnx_translations._builder.empty_tensors import Requirement, requirements
from fxonnx_translations._builder.name_allocator import Names
from fxonnx_translations._builder.op import Op, Result
from fxonnx_translations._builder.op_schema import facts_of
from fxonnx_translations._builder.shape_inference import quick
from fxonnx_translations._builder.symbolic_dims import Dim, SymbolTable
from fxonnx_translations._registry import Registry, Translation

from .._prepare import REASON_KEY, Prepared, find_attribute
from .._provenance import source_line
from ..errors import TranslationError, UnsupportedOperator, UnsupportedOperatorError
from .control_flow import CONTROL_FLOW
from .dispatch import bind, find
from .legacy_names import SCOPE, rename_by_scope
from .lowest_opset import lowest_opset
from .metadata import MetadataLevel, NodeMetadata, scopes_of, target_name
from .model import NEWEST_OPSET, STATE_KEY, Ends, add_inputs, add_outputs, ir_versions, new_model
from .passthrough import Passthrough

__all__ = ["Lowered", "Request", "lower"]

Bound: TypeAlias = ir.Value | Dim | float | bool | str | Sequence[Any] | None


# Element types that torch has no dtype for; its ONNX operators stand for their tensors with tensors of bytes.
_HELD_IN_BYTES = frozenset({ir.DataType.INT4, ir.DataType.UINT4})


@dataclass(frozen=True)
class Request:
    """What is asked of the lowering.

    Attributes:
        opset: Target opset of the default domain.
        registry: The translations.
        dim_names: torch's symbols to the user's names.
        ends: Names of graph inputs and outputs.
        passthrough: Operators that become nodes of their own domain.
        metadata: How much nodes say of where they come from.
        legacy_names: Whether nodes and values have the names of torch.onnx's first exporter.
        ir_version: Version of the file format; by default the one that goes with the opset.
        ones: The sizes that guards keep at 1, in the user's names.
    """

    opset: int
    registry: Registry
    dim_names: Mapping[sympy.Symbol, str]
    ends: Ends
    passthrough: Passthrough = Passthrough()  # noqa: RUF009 - immutable
    metadata: MetadataLevel = "full"
    legacy_names: bool = False
    ir_version: int | None = None
    ones: frozenset[sympy.Expr] = frozenset()


@dataclass(frozen=True)
class Lowered:
    """The result of the lowering.

    Attributes:
        model: The model.
        requirements: Sizes that must not be 0.
    """

    model: ir.Model
    requirements: Sequence[Requirement]


def lower(prepared: Prepared, request: Request) -> Lowered:
    """Translates the prepared graph.

    Raises:
        UnsupportedOperatorError: Listing all operators without a usable translation at once.
        TranslationError: If a translation fails or returns something else than torch says.
    """
    symbols = SymbolTable(request.dim_names, request.ones)
    names = Names()
    ir_version = request.ir_version or ir_versions(request.opset)[0]
    model = new_model(prepared, request.opset, ir_version)
    builder = Builder(model.graph, symbols, names)
    walk = _Walk(builder, request)
    try:
        walk.shared, paths = add_inputs(prepared, builder, walk.env, request.ends)
        walk.run(prepared.graph, prepared.constants, skipped=prepared.derived)
    except dtypes.NoElementTypeError as error:
        hint = "keep such tensors in a dtype that ONNX has, packed numbers as uint8, inside and outside of the model"
        raise TranslationError(str(error), hint=hint) from error
    if walk.unsupported:
        raise UnsupportedOperatorError(walk.report(), request.opset)
    try:
        states = add_outputs(prepared, builder, walk.env, request.ends, paths)
    except Unsupported as error:
        hint = "pass a newer opset_version"
        raise TranslationError(f"an output that is a size cannot be written: {error}", hint=hint) from error
    if states:
        model.metadata_props[STATE_KEY] = json.dumps(states)
    _finish(builder)
    if request.legacy_names:
        rename_by_scope(model.graph)
    return Lowered(model, requirements(builder))


def _finish(builder: Builder) -> None:
    """Removes what nothing reads, then gives every remaining value its shape and every node its name."""
    graph = builder.graph
    outputs = set(graph.outputs)
    for node in reversed(graph):
        if not any(output in outputs or output.uses() for output in node.outputs):
            _forget_bodies(node)
            graph.remove(node, safe=True)
    for node in graph:
        if len(node.outputs) > 1:
            _drop_outputs(node, outputs, builder.opset_version)
    is_foreign = any(node.domain not in ("", "ai.onnx") for node in graph)
    for node in ir.traversal.RecursiveGraphIterator(graph):
        # Values have unique names in the whole model, bodies included.
        node.name = f"node_{node.outputs[0].name}"
    for node in graph:
        for output in node.outputs:
            if output.shape is None and (output.uses() or output in outputs):
                try:
                    builder.stamp(output, builder.dims(output))
                except Unsupported as error:
                    # Of what an operator returns that ONNX does not know, only what torch says is known.
                    if not is_foreign:
                        raise TranslationError(str(error), target=node.op_type) from error
    kept = outputs.union(graph.inputs)
    unused = [name for name, value in graph.initializers.items() if not value.uses() and value not in kept]
    for name in unused:
        del graph.initializers[name]


def _forget_bodies(node: ir.Node) -> None:
    """What the bodies of a node read is not read by them any more."""
    for attribute in node.attributes.values():
        if attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            continue
        for body in [attribute.as_graph()] if attribute.type == ir.AttributeType.GRAPH else attribute.as_graphs():
            for inner in body:
                _forget_bodies(inner)
                for index in range(len(inner.inputs)):
                    inner.replace_input_with(index, None)


def _drop_outputs(node: ir.Node, outputs: Collection[ir.Value], opset: int) -> None:
    """Removes last outputs that nothing reads and that the operator does not need to have."""
    facts = facts_of(node.op_type, opset) if node.domain == "" else None
    # Those of a batch norm are not optional, whatever the schema says: before opset 14 they stand for training mode.
    if facts is None or node.op_type == "BatchNormalization":
        return
    # ONNX Runtime's Attention writes the whole past where it is given one.
    has_past = node.op_type == "Attention" and any(value is not None for value in node.inputs[4:6])
    count, least = len(node.outputs), 3 if has_past else facts.least_outputs
    while count > least and not node.outputs[count - 1].uses() and node.outputs[count - 1] not in outputs:
        count -= 1
    if count < len(node.outputs):
        node.resize_outputs(count)


class _Walk:
    """The state of one walk: FX nodes to what they became."""

    def __init__(self, builder: Builder, request: Request) -> None:
        self.builder = builder
        self.request = request
        self.env: dict[torch.fx.Node, Bound] = {}
        self.metadata = NodeMetadata(request.metadata)
        self.shared: frozenset[ir.Value] = frozenset()
        self.unsupported: dict[str, list[tuple[torch.fx.Node, tuple[str, ...]]]] = {}

    def run(
        self,
        graph: torch.fx.Graph,
        constants: Mapping[str, torch.Tensor],
        skipped: Collection[torch.fx.Node] = (),
    ) -> None:
        """Lowers the nodes of a graph.

        Args:
            graph: The graph; its placeholders have values already.
            constants: Tensors of its ``get_attr`` nodes.
            skipped: Nodes that have values already, too.
        """
        for node in graph.nodes:
            if node.op == "call_function" and node not in skipped:
                self.call(node)
            elif node.op == "get_attr" and node.target in constants:
                constant = constants[str(node.target)]
                self.env[node] = self.builder.constant(
                    torch.view_as_real(constant.resolve_conj()) if constant.is_complex() else constant
                )

    def _with_bodies(self, node: torch.fx.Node, val: Any) -> None:
        """Lowers an operator that has graphs of its own."""
        mark = len(self.builder.created)
        results = self._results(val)
        try:
            returned = CONTROL_FLOW[node.target](Op(self.builder, results, self.shared), node, self.value, self._body)
        except Unsupported as error:
            self.builder.rollback(mark)
            self._give_up(node, results, val, (str(error),))
            return
        self.env[node] = self._checked(node, returned, results, val)
        self._annotate(node, mark)

    def _body(self, op: Op, body: torch.fx.Node, inputs: Sequence[ir.Value]) -> list[ir.Value]:
        """Writes a body; what it can not translate is reported with the rest."""
        owner = body.graph.owning_module
        module = None if owner is None else find_attribute(owner, str(body.target))
        if not isinstance(module, torch.fx.GraphModule):
            raise Unsupported(f"{body.target} is no graph")
        inner = _Walk(op.builder, self.request)
        inner.shared, inner.unsupported = self.shared, self.unsupported
        for node, value in zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True):
            inner.env[node] = value
            if isinstance(node.meta.get("val"), torch.Tensor):
                self.builder.symbols.define(value, self.builder.symbols.dims(node.meta["val"].shape))
        attributes = {
            str(node.target): find_attribute(module, str(node.target))
            for node in module.graph.find_nodes(op="get_attr")
        }
        inner.run(module.graph, {name: found for name, found in attributes.items() if isinstance(found, torch.Tensor)})
        returned: Any = module.graph.output_node().args[0]
        values = inner.value(returned if isinstance(returned, (list, tuple)) else [returned])
        if not all(isinstance(value, ir.Value) for value in values):
            raise Unsupported("a body that returns numbers; return tensors of 0 dims")
        return values  # type: ignore[no-any-return]

    def call(self, node: torch.fx.Node) -> None:
        """Lowers one call_function node."""
        val = node.meta.get("val")
        if node.target in CONTROL_FLOW:
            self._with_bodies(node, val)
            return
        if isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            self._symbolic(node, val)
        elif node.target is operator.getitem:
            source = self.value(node.args[0])
            index = node.args[1]
            if not isinstance(source, (list, tuple)) or not isinstance(index, int):
                raise TranslationError(
                    "an item is taken of something that is no sequence", node=str(node.format_node())
                )
            self.env[node] = source[index]
            if isinstance(source[index], ir.Value):
                self._name(source[index], node.name)
        elif isinstance(val, (int, float, bool)):
            self.env[node] = val
        elif not node.users:
            return
        else:
            self._translate(node, val)

    def _symbolic(self, node: torch.fx.Node, val: torch.SymInt | torch.SymFloat | torch.SymBool) -> None:
        """A size is an expression until something needs it at run time; ``item()`` tells where a new symbol is read."""
        expr = self.builder.symbols.dim(val)
        self.env[node] = expr
        if node.meta.get("unbacked_bindings") and not isinstance(expr, int):
            source = self.value(node.args[0])
            if isinstance(source, ir.Value):
                self.builder.symbols.define_scalar(source, expr)

    def value(self, argument: Any) -> Any:
        """An FX argument as translations take it."""
        if isinstance(argument, torch.fx.Node):
            return self.env[argument]
        if isinstance(argument, (list, tuple)):
            return [self.value(item) for item in argument]
        return argument

    def _translate(self, node: torch.fx.Node, val: Any) -> None:
        results = self._results(val)
        if results and all(0 in result.shape for result in results) and not node.meta.get("unbacked_bindings"):
            self._nothing(node, results, val)
            return
        passthrough = self.request.passthrough
        translation: Translation | None = None
        reasons: tuple[str, ...] = ()
        if not passthrough.keeps(node.target):
            translation, reasons = find(node, self.request.registry, self.request.opset)
        if translation is None:
            translation = passthrough.translation(node.target)
        if translation is None:
            why_whole = node.meta.get(REASON_KEY)
            self._give_up(node, results, val, reasons if why_whole is None else (*reasons, why_whole))
            return
        builder = self.builder
        mark = len(builder.created)
        try:
            complex_values = self._complex_values(node) if translation.complex else frozenset()
            op = Op(builder, results, self.shared, complex_values)
            returned = self._run(translation, op, node)
        except Unsupported as error:
            builder.rollback(mark)
            self._give_up(node, results, val, (f"{_name(translation.function)}: {error}",))
            return
        except (TranslationError, UnsupportedOperatorError):
            raise
        except Exception as error:
            raise self._error(node, f"{type(error).__name__}: {error}") from error
        self.env[node] = self._checked(node, returned, results, val)
        self._annotate(node, mark)

    def _nothing(self, node: torch.fx.Node, results: Sequence[Result], val: Any) -> None:
        """Results without elements need no computation, and ONNX Runtime often does not run what makes them."""
        mark = len(self.builder.created)
        op = Op(self.builder, results, self.shared)
        values = []
        try:
            for result in results:
                trailing = (2,) if result.torch_dtype.is_complex else ()
                shape = (*result.shape, *trailing)
                values.append(op.expand(op.const(0, result.dtype), shape))
        except Unsupported as error:
            self.builder.rollback(mark)
            self._give_up(node, results, val, (f"its sizes: {error}",))
            return
        self.env[node] = self._checked(node, values if isinstance(val, (list, tuple)) else values[0], results, val)
        self._annotate(node, mark)

    def _run(self, translation: Translation, op: Op, node: torch.fx.Node) -> Any:
        if translation.custom:
            from .user_translations import call_custom

            kwargs = {name: self.value(argument) for name, argument in node.kwargs.items()}
            opsets = self.request.passthrough.opsets
            return call_custom(translation.function, op, node.target, self.value(node.args), kwargs, opsets)
        return translation.function(op, **{name: self.value(argument) for name, argument in bind(node).items()})

    def _complex_values(self, node: torch.fx.Node) -> frozenset[ir.Value]:
        """The operands that are complex.

        Raises:
            Unsupported: If one value is a complex and a real operand: a complex tensor together with its real view.
        """
        values: tuple[set[ir.Value], set[ir.Value]] = (set(), set())
        for argument in node.all_input_nodes:
            value, val = self.env[argument], argument.meta.get("val")
            if isinstance(value, ir.Value) and isinstance(val, torch.Tensor):
                values[val.dtype.is_complex].add(value)
        if values[False] & values[True]:
            raise Unsupported("one operand is another one's view as complex or as real numbers")
        return frozenset(values[True])

    def _results(self, val: Any) -> tuple[Result, ...]:
        return tuple(
            Result(dtypes.from_torch(item.dtype), self.builder.symbols.dims(item.shape), item.dtype)
            for item in _leaves(val)
            if isinstance(item, torch.Tensor)
        )

    def _checked(self, node: torch.fx.Node, returned: Any, results: Sequence[Result], val: Any) -> Bound:
        """Compares number, dtype and rank of the outputs with torch's, then gives them torch's shape."""
        values = list(returned) if isinstance(returned, (list, tuple)) else [returned]
        if len(values) != len(results):
            raise self._error(node, f"the translation returned {len(values)} values, torch returns {len(results)}")
        several = isinstance(val, (list, tuple))
        for position, (value, result) in enumerate(zip(values, results, strict=True)):
            if value is None:
                continue
            if not isinstance(value, ir.Value):
                raise self._error(node, f"the translation returned a {type(value).__name__}, not a value of the graph")
            self._check_one(node, value, result)
            # An item of several takes the name of the getitem node that picks it, if there is one.
            self._name(value, f"{node.name}__{position}" if several else node.name, final=not several)
        if node.meta.get("unbacked_bindings"):
            for value, result in zip(values, results, strict=True):
                if value is not None:
                    self.builder.symbols.define(value, result.shape)
        return values if several else values[0]

    def _check_one(self, node: torch.fx.Node, value: ir.Value, result: Result) -> None:
        trailing = (2,) if result.torch_dtype.is_complex else ()
        try:
            inferred = quick(value, self.builder)
        except Unsupported:
            # It is computed from an operator that ONNX does not know: there is nothing to compare.
            inferred = None
        if value.dtype is None:
            self.builder.infer(value)
        if value.dtype != result.dtype and not (value.dtype in _HELD_IN_BYTES and result.torch_dtype is torch.uint8):
            found = value.dtype.name if value.dtype is not None else "unknown"
            raise self._error(node, f"the translation returned {found}, torch returns {result.dtype.name}")
        shape = (*result.shape, *trailing)
        if inferred is not None and len(inferred) != len(shape):
            raise self._error(node, f"the translation returned rank {len(inferred)}, torch returns rank {len(shape)}")
        if inferred is not None and any(map(_differ, inferred, shape)):
            raise self._error(node, f"the translation returned shape {list(inferred)}, torch returns {list(shape)}")
        if value.shape is None:
            self.builder.set_dims(value, shape)
            self.builder.stamp(value, shape)

    def _name(self, value: ir.Value, name: str, *, final: bool = True) -> None:
        """A value made for this FX node takes its name; one that already belongs to another node keeps it."""
        if value.producer() is None or value in self.builder.named:
            return
        if final:
            self.builder.named.add(value)
        value.name = self.builder.names.unique(name)

    def _annotate(self, node: torch.fx.Node, mark: int) -> None:
        created = self.builder.created[mark:]
        if created:
            metadata = self.metadata.of(node)
            for onnx_node in created:
                onnx_node.metadata_props.update(metadata)
                if self.request.legacy_names:
                    onnx_node.meta[SCOPE] = scopes_of(node)[1:]

    def _error(self, node: torch.fx.Node, message: str) -> TranslationError:
        return TranslationError(
            message, target=target_name(node), node=str(node.format_node()), location=source_line(node)
        )

    def _give_up(self, node: torch.fx.Node, results: Sequence[Result], val: Any, reasons: tuple[str, ...]) -> None:
        """Notes the operator and goes on with values nobody computes, so that all such operators are found at once."""
        self.unsupported.setdefault(target_name(node), []).append((node, reasons))
        stand_ins = []
        for result in results:
            value = ir.Value(name=self.builder.names.helper(), type=ir.TensorType(result.dtype))
            self.builder.set_dims(value, (*result.shape, 2) if result.torch_dtype.is_complex else result.shape)
            self.builder.symbols.define(value, result.shape)
            stand_ins.append(value)
        self.env[node] = _nested(val, iter(stand_ins))

    def report(self) -> list[UnsupportedOperator]:
        """One row per unsupported operator."""
        rows = []
        for name, uses in self.unsupported.items():
            reasons = tuple(dict.fromkeys(reason for _, why in uses for reason in why))
            since = [lowest_opset(node, self.request.opset, NEWEST_OPSET, self._attempt) for node, _ in uses]
            known = [opset for opset in since if opset is not None]
            lowest = max(known) if len(known) == len(uses) else None
            rows.append(UnsupportedOperator(name, len(uses), source_line(uses[0][0]), reasons, lowest))
        return rows

    def _attempt(self, builder: Builder, env: dict[torch.fx.Node, Bound], node: torch.fx.Node, opset: int) -> bool:
        walk = _Walk(builder, replace(self.request, opset=opset))
        walk.env = env
        walk.call(node)
        return not walk.unsupported


def _differ(found: Dim, expected: Dim) -> bool:
    """Whether two sizes are known to be different; symbolic ones may be equal in ways that only torch knows."""
    return isinstance(found, int) and isinstance(expected, int) and found != expected


def _name(function: Any) -> str:
    """A translation's name; users' may be any callable, and rows of a table are partial ones."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _nested(val: Any, values: Iterator[ir.Value]) -> Bound:
    """One value per tensor, nested as torch's are."""
    if isinstance(val, (list, tuple)):
        return [_nested(item, values) for item in val]
    return next(values) if isinstance(val, torch.Tensor) else None


def _leaves(val: Any) -> list[Any]:
    return [leaf for item in val for leaf in _leaves(item)] if isinstance(val, (list, tuple)) else [val]
