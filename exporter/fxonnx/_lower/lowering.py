"""Lower the prepared FX graph node by node to ONNX values."""

from __future__ import annotations

import contextlib
import functools
import json
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import onnx_ir as ir
import sympy
import torch

from fxonnx_translations._builder import dtypes
from fxonnx_translations._builder.builder import Builder, Unsupported
from fxonnx_translations._builder.empty_tensors import requirements
from fxonnx_translations._builder.name_allocator import NameAllocator
from fxonnx_translations._builder.op import Op, ResultSpec
from fxonnx_translations._builder.shape_inference import quick
from fxonnx_translations._builder.symbolic_dims import Dim, SymbolTable
from fxonnx_translations._opsets.missing_ops import replace_missing_op
from fxonnx_translations._registry import Translation
from fxonnx_translations._torch_compat import FakeTensor

from .._capture import Capture
from .._capture.constraints.constraint import SizeLimits
from .._capture.eager_runs import user_line
from .._extensions import add_on
from .._interrupts import interruption_point
from .._nodes import result_index
from .._prepare import REASON_KEY, Prepared, Update, find_attribute
from .._provenance import REGIONS_KEY, source_line
from .._request import Request
from ..errors import TranslationError, UnsupportedOperator, UnsupportedOperatorError, kind_of
from .control_flow import CONTROL_FLOW, bound_symbols, is_nested, leaves_of, nest_like, nesting
from .dispatch import arguments_by_name, find_translation
from .finalize import finalize
from .guards import Guards, insert_guards, keep_checks
from .metadata import SCOPE, NodeMetadata, class_scopes_of, scopes_of, target_name
from .model import (
    NO_ELEMENT_TYPE_HINT,
    NUMERICS_KEY,
    STATE_KEY,
    IOSpec,
    add_inputs,
    add_outputs,
    constant_value,
    move_interface_metadata,
    new_model,
    report_renamed_parameters,
)
from .outlining import outline
from .regions import REGIONS, SCOPES, Scope
from .versions import NEWEST_OPSET, ir_versions, lowest_opset
from .zero_signs import nodes_before_sign_readers

__all__ = ["Lowered", "lower"]

_RETURN_HINT = "return the value of the last operator: return op.Relu(x)"
_SHAPE_HINT = "op.result.shape is the shape that torch computes: reshape, expand or transpose the value to it"

LoweredValue: TypeAlias = ir.Value | Dim | float | bool | str | Sequence[Any] | None
"""The lowered form of an FX node: a graph value, a size expression, a Python constant, or a list of them."""

# Element types without a torch dtype: torch's ONNX operators represent such tensors as tensors of bytes.
_HELD_IN_BYTES = frozenset({ir.DataType.INT4, ir.DataType.UINT4})


@dataclass(frozen=True)
class Lowered:
    """The result of the lowering.

    Attributes:
        model: The ONNX model.
        limits: The sizes for which it is valid, with the requirements of its operators.
        quantization: The record of the add-on for quantization, if it has quantized the model; else None.
        guards: The limits that it checks itself.
    """

    model: ir.Model
    limits: SizeLimits
    quantization: Any = None
    guards: Guards = field(default_factory=Guards)


def lower(
    prepared: Prepared,
    capture: Capture,
    updates: Sequence[Update] = (),
) -> Lowered:
    """Lower the prepared graph to an ONNX model.

    Args:
        prepared: The functional graph.
        capture: The capture it was made from, with the request.
        updates: Mutations to return as graph outputs.

    Raises:
        ArgumentError: If the model cannot be quantized as requested.
        UnsupportedOperatorError: Lists all operators without a usable translation at once.
        TranslationError: If a translation fails, or its outputs disagree with torch's in number, dtype or shape.
    """
    options = capture.request
    symbols = SymbolTable(capture.dim_names, capture.limits.ones)
    names = NameAllocator()
    io_spec = IOSpec(capture, updates)
    ir_version = options.ir_version or ir_versions(options.opset)[0]
    model = new_model(prepared, options.opset, ir_version)
    exact_numerics = options.numerics == "exact"
    if exact_numerics:
        model.metadata_props[NUMERICS_KEY] = options.numerics
    builder = Builder(
        model.graph,
        symbols,
        names,
        replace_missing_op,
        exact_numerics=exact_numerics,
        missing_kernels=options.profile.missing_kernels(options.opset),
        computes_float64=options.profile.computes_float64(options.opset),
    )
    lowering = _GraphLowering(builder, options)
    report_renamed_parameters(prepared, options)
    lowering.shared, paths = add_inputs(prepared, builder, lowering.env, io_spec)
    lowering.zero_signs_seen = nodes_before_sign_readers(prepared.graph)
    lowering.run(prepared.graph, prepared.constants, skipped=prepared.derived)
    if lowering.unsupported:
        raise UnsupportedOperatorError(lowering.unsupported_rows(), options.opset)
    try:
        states = add_outputs(prepared, builder, lowering.env, io_spec, paths)
    except Unsupported as error:
        hint = "pass a newer opset_version"
        raise TranslationError(f"a size returned as an output cannot be computed: {error}", hint=hint) from error
    if states:
        model.metadata_props[STATE_KEY] = json.dumps(states)
    keep_checks(builder, prepared, lowering.env)
    finalize(builder)
    limits = capture.limits.with_requirements(requirements(builder))
    guards = insert_guards(builder, prepared, capture, limits, lowering.env) if options.guards else Guards()
    if guards.nodes:
        finalize(builder)
    form = options.profile.quantized_form
    is_quantized = form is not None and any(node.op_type == "QuantizeLinear" for node in model.graph)
    if is_quantized and add_on("quantization").write_quantized_form(builder, form):
        finalize(builder)
    quantization = None
    if options.quantize is not None:
        quantization = add_on("quantization").quantize(model, builder, options.quantize, capture, options.profile)
        finalize(builder)
        limits = capture.limits.with_requirements(requirements(builder))
    if options.legacy_names:
        add_on("torchscript").rename_by_scope(model.graph)
    guards.write(model)
    quantization = None if quantization is None else quantization.named()
    if options.functions == "repeated" or lowering.has_regions:
        outline(model, repeated=options.functions == "repeated")
    if options.legacy:
        move_interface_metadata(model)
    return Lowered(model, limits, quantization, guards)


class _GraphLowering:
    """Lowering of one FX graph: maps its nodes to their lowered values."""

    def __init__(self, builder: Builder, options: Request) -> None:
        self.builder = builder
        self.options = options
        self.env: dict[torch.fx.Node, LoweredValue] = {}
        self.metadata = NodeMetadata(options.metadata)
        self.shared: frozenset[ir.Value] = frozenset()
        self.zero_signs_seen: frozenset[torch.fx.Node] = frozenset()
        self.has_regions = False
        self.lowered: set[str] = set()
        self.unsupported: dict[str, list[tuple[torch.fx.Node, tuple[str, ...]]]] = {}

    def run(
        self,
        graph: torch.fx.Graph,
        constants: Mapping[str, torch.Tensor],
        skipped: Collection[torch.fx.Node] = (),
    ) -> None:
        """Lower the nodes of a graph."""
        for node in graph.nodes:
            interruption_point()
            if node.op == "call_function" and node not in skipped:
                self.call(node)
            elif node.op == "get_attr" and node.target in constants:
                self.env[node] = constant_value(str(node.target), constants[str(node.target)], self.builder)

    def _lower_control_flow(self, node: torch.fx.Node, val: Any) -> None:
        """Lower an operator with subgraphs; its results may be numbers."""
        mark = len(self.builder.created)
        leaves = leaves_of(val)
        tensors = self._results(node, val)
        remaining = iter(tensors)
        # A number is a 0-dim tensor in the model.
        number = ResultSpec(ir.DataType.INT64, (), torch.int64)
        results = [next(remaining) if isinstance(leaf, torch.Tensor) else number for leaf in leaves]
        try:
            returned = CONTROL_FLOW[node.target](
                Op(self.builder, results, self.shared), node, self.value, self._lower_subgraph
            )
        except Unsupported as error:
            self.builder.rollback(mark)
            self._unsupported_operator(node, tensors, val, (str(error),))
            return
        values = [value for value, leaf in zip(returned, leaves, strict=True) if isinstance(leaf, torch.Tensor)]
        results_of_val: Any = self._check_results(node, values, tensors, val)
        checked = iter(results_of_val)
        found: list[LoweredValue] = []
        for value, leaf in zip(returned, leaves, strict=True):
            if isinstance(leaf, torch.Tensor):
                found.append(next(checked))
                continue
            found.append(self.builder.symbols.dim(leaf))
            self.builder.set_dims(value, ())
            self.builder.symbols.define_scalar(value, self.builder.symbols.dim(leaf))
        self.env[node] = found
        self._annotate(node, mark)

    def _lower_subgraph(self, op: Op, body: torch.fx.Node, inputs: Sequence[Any]) -> list[Any]:
        """Lower a subgraph; its unsupported operators are reported together with the main graph's."""
        owner = body.graph.owning_module
        module = None if owner is None else find_attribute(owner, str(body.target))
        if not isinstance(module, torch.fx.GraphModule):
            raise Unsupported(f"{body.target} is not a graph")
        inner = _GraphLowering(op.builder, self.options)
        inner.shared, inner.unsupported = self.shared, self.unsupported
        inner.zero_signs_seen = self.zero_signs_seen
        outside = op.builder.symbols
        op.builder.symbols = inner.bind(op, module.graph.find_nodes(op="placeholder"), inputs)
        if str(body.target) in self.lowered:
            # The condition of a loop, before and in the loop: the numbers that it reads are different ones.
            op.builder.symbols = op.builder.symbols.nested(
                {
                    symbol: sympy.Symbol(op.builder.names.helper(), integer=symbol.is_integer)
                    for found in module.graph.nodes
                    for symbol in bound_symbols(found)
                }
            )
        self.lowered.add(str(body.target))
        try:
            attributes = {
                str(node.target): find_attribute(module, str(node.target))
                for node in module.graph.find_nodes(op="get_attr")
            }
            tensors = {name: found for name, found in attributes.items() if isinstance(found, torch.Tensor)}
            if any(isinstance(tensor, FakeTensor) for tensor in tensors.values()):
                raise Unsupported(
                    "torch captured a tensor without values in its function, as for torch.func.grad in it"
                )
            inner.run(module.graph, tensors)
            returned: Any = module.graph.output_node().args[0]
            values = inner.value(returned if isinstance(returned, (list, tuple)) else [returned])
            return [op.scalar(value) if isinstance(value, sympy.Basic) else value for value in values]
        finally:
            op.builder.symbols = outside

    def bind(self, op: Op, placeholders: Sequence[torch.fx.Node], inputs: Sequence[Any]) -> SymbolTable:
        """Bind the placeholders of a subgraph to values and numbers; return the symbol table of the subgraph."""
        outside = self.builder.symbols
        renamed: dict[sympy.Symbol, sympy.Symbol] = {}
        numbers = []
        for node, given in zip(placeholders, inputs, strict=True):
            val = node.meta.get("val")
            self.env[node] = given
            if isinstance(val, torch.SymInt) and (isinstance(given, ir.Value) or given != outside.dim(val)):
                # It has another value in each iteration, and in the condition before and in the loop.
                symbol = sympy.Symbol(self.builder.names.helper(), integer=True)
                renamed[val.node.expr] = self.env[node] = symbol
                numbers.append((given if isinstance(given, ir.Value) else op.scalar(given), symbol))
        symbols = outside.nested(renamed)
        for value, symbol in numbers:
            symbols.define_scalar(value, symbol)
        for node, given in zip(placeholders, inputs, strict=True):
            val = node.meta.get("val")
            if isinstance(val, torch.Tensor):
                symbols.define(given, symbols.dims(val.shape))
        return symbols

    def call(self, node: torch.fx.Node) -> None:
        """Lower one ``call_function`` node."""
        val = node.meta.get("val")
        if node.target in CONTROL_FLOW:
            self._lower_control_flow(node, val)
            return
        if isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            self._symbolic(node, val)
        elif node.target is operator.getitem:
            source = self.value(node.args[0])
            index = node.args[1]
            if not isinstance(source, (list, tuple)) or not isinstance(index, int):
                raise TranslationError("getitem is applied to a value that is not a list", node=str(node.format_node()))
            self.env[node] = value = source[result_index(node, len(source))]
            if isinstance(value, ir.Value):
                self._name(value, node, node.name)
        elif isinstance(val, (int, float, bool)):
            self.env[node] = val
        elif not node.users:
            return
        else:
            self._translate(node, val)

    def _symbolic(self, node: torch.fx.Node, val: torch.SymInt | torch.SymFloat | torch.SymBool) -> None:
        """Keep a symbolic number as an expression, and define an unbacked symbol by the tensor ``item()`` read."""
        expr = self.builder.symbols.dim(val)
        self.env[node] = expr
        if bound_symbols(node) and not isinstance(expr, int):
            source = self.value(node.args[0])
            if isinstance(source, ir.Value):
                self.builder.symbols.define_scalar(source, expr)

    def value(self, argument: Any) -> Any:
        """An FX argument in the form translations take: lowered values instead of nodes."""
        if isinstance(argument, torch.fx.Node):
            if argument.op == "placeholder" and argument not in self.env:
                raise Unsupported("one of its arguments is an object, such as a torch.Generator, and not a tensor")
            return self.env[argument]
        if isinstance(argument, (list, tuple)):
            return [self.value(item) for item in argument]
        return argument

    def _translate(self, node: torch.fx.Node, val: Any) -> None:
        results = self._results(node, val)
        if results and all(0 in result.shape for result in results) and not node.meta.get("unbacked_bindings"):
            self._empty_results(node, results, val)
            return
        passthrough = self.options.passthrough
        translation: Translation | None = None
        reasons: tuple[str, ...] = ()
        if not passthrough.keeps(node.target):
            translation, reasons = find_translation(node, self.options.registry, self.options.opset)
        if translation is None:
            translation = passthrough.translation(node.target)
        if translation is None:
            decompose_reason = node.meta.get(REASON_KEY)
            self._unsupported_operator(
                node, results, val, reasons if decompose_reason is None else (*reasons, decompose_reason)
            )
            return
        builder = self.builder
        mark = len(builder.created)
        builder.zero_signs_seen = node in self.zero_signs_seen
        try:
            complex_values = self._complex_values(node) if translation.complex else frozenset()
            op = Op(builder, results, self.shared, complex_values)
            returned = self._run_translation(translation, op, node)
        except Unsupported as error:
            builder.rollback(mark)
            self._unsupported_operator(node, results, val, (f"{_name(translation.function)}: {error}",))
            return
        except (TranslationError, UnsupportedOperatorError):
            raise
        except Exception as error:
            raise self._failure(node, error, is_own=translation.custom) from error
        self.env[node] = self._check_results(node, returned, results, val)
        self._annotate(node, mark)

    def _empty_results(self, node: torch.fx.Node, results: Sequence[ResultSpec], val: Any) -> None:
        """Replace results without elements by empty constants: many ONNX Runtime kernels reject empty tensors."""
        mark = len(self.builder.created)
        op = Op(self.builder, results, self.shared)
        values = []
        try:
            for result in results:
                trailing = (2,) if result.torch_dtype.is_complex else ()
                shape = (*result.shape, *trailing)
                value = op.expand(op.const(0, result.dtype), shape)
                self.builder.nonempty_symbols[value] = self._symbols_before(node, result)
                values.append(value)
        except Unsupported as error:
            self.builder.rollback(mark)
            self._unsupported_operator(node, results, val, (f"the sizes of its results: {error}",))
            return
        self.env[node] = self._check_results(
            node, values if isinstance(val, (list, tuple)) else values[0], results, val
        )
        self._annotate(node, mark)

    def _symbols_before(self, node: torch.fx.Node, result: ResultSpec) -> tuple[sympy.Symbol, ...]:
        """Symbols on which the captured sizes of an empty result may depend, which are valid from size 1 on.

        Examples are the size 1 of ``x[:1]``, which is 0 if ``x`` is empty, and limits of a slice that are sizes.
        """
        found: set[sympy.Symbol] = set()
        seen = {node}
        pending = [node]
        while pending:
            for source in pending.pop().all_input_nodes:
                if source not in seen:
                    seen.add(source)
                    pending.append(source)
                    value = self.env.get(source)
                    dims = self.builder.recorded_dims(value) if isinstance(value, ir.Value) else None
                    found |= _symbols(dims or ())
        limits = [dim for dim in map(self.value, node.args) if isinstance(dim, sympy.Expr)]
        return tuple(sorted((found - _symbols(result.shape)) | _symbols(limits), key=str))

    def _run_translation(self, translation: Translation, op: Op, node: torch.fx.Node) -> Any:
        if translation.custom:
            # Imported here since it imports onnxscript, which most exports do not need and which is slow to import.
            from .user_translations import call_user_translation

            kwargs = {name: self.value(argument) for name, argument in node.kwargs.items()}
            opsets = self.options.passthrough.opsets
            return call_user_translation(translation.function, op, node.target, self.value(node.args), kwargs, opsets)
        return translation.function(
            op, **{name: self.value(argument) for name, argument in arguments_by_name(node).items()}
        )

    def _complex_values(self, node: torch.fx.Node) -> frozenset[ir.Value]:
        """The complex operands of a call."""
        values: tuple[set[ir.Value], set[ir.Value]] = (set(), set())
        for argument in node.all_input_nodes:
            value, val = self.env[argument], argument.meta.get("val")
            if isinstance(value, ir.Value) and isinstance(val, torch.Tensor):
                values[val.dtype.is_complex].add(value)
        if values[False] & values[True]:
            raise Unsupported("one operand is the view of another one as complex or as real numbers")
        return frozenset(values[True])

    def _results(self, node: torch.fx.Node, val: Any) -> tuple[ResultSpec, ...]:
        try:
            return tuple(
                ResultSpec(dtypes.from_torch(item.dtype), self.builder.symbols.dims(item.shape), item.dtype)
                for item in leaves_of(val)
                if isinstance(item, torch.Tensor)
            )
        except dtypes.NoElementTypeError as error:
            raise self._error(node, str(error), NO_ELEMENT_TYPE_HINT) from error

    def _check_results(
        self, node: torch.fx.Node, returned: Any, results: Sequence[ResultSpec], val: Any
    ) -> LoweredValue:
        """Compare number, dtypes and shapes of the outputs with torch's, then record torch's shapes."""
        values = leaves_of(returned)
        if len(values) != len(results):
            raise self._error(
                node, f"the translation returned {len(values)} values, torch returns {len(results)}", _call_hint(node)
            )
        several = isinstance(val, (list, tuple))
        if is_nested(returned) and nesting(returned) != nesting(val):
            hint = "nest the values as the schema of the operator does"
            raise self._error(node, f"the translation returned {nesting(returned)}, torch returns {nesting(val)}", hint)
        if values == [None] and not several:
            raise self._error(node, "the translation returned None, torch returns a tensor", _RETURN_HINT)
        for position, (value, result) in enumerate(zip(values, results, strict=True)):
            if value is None:
                continue
            if not isinstance(value, ir.Value):
                raise self._error(
                    node, f"the translation returned {kind_of(value)}, not a value of the graph", _RETURN_HINT
                )
            self._check_result(node, value, result)
            # One of several results is named after its getitem node, if it has one.
            self._name(value, node, f"{node.name}__{position}" if several else node.name, final=not several)
        symbols, is_recorded = self.builder.symbols, bool(node.meta.get("unbacked_bindings"))
        for value, result in zip(values, results, strict=True):
            # torch does not record the sizes that depend on values in a branch, such as that of ``x[mask]``.
            if value is not None and (is_recorded or symbols.lacks(result.shape)):
                symbols.define(value, result.shape)
        if is_nested(val):
            return nest_like(val, iter(values))
        return values if several else values[0]

    def _check_result(self, node: torch.fx.Node, value: ir.Value, result: ResultSpec) -> None:
        trailing = (2,) if result.torch_dtype.is_complex else ()
        try:
            inferred = quick(value, self.builder)
        except Unsupported:
            # The value depends on an operator of another domain, without shape inference: nothing to compare.
            inferred = None
        if value.dtype is None:
            self._infer_type(value, result)
        if value.dtype != result.dtype and not (value.dtype in _HELD_IN_BYTES and result.torch_dtype is torch.uint8):
            found = value.dtype.name if value.dtype is not None else "unknown"
            problem = f"the translation returned {found}, torch returns {result.dtype.name}"
            raise self._error(node, problem, "convert the value: op.Cast(value, to=op.result.dtype)")
        shape = (*result.shape, *trailing)
        if inferred is not None and len(inferred) != len(shape):
            problem = f"the translation returned rank {len(inferred)}, torch returns rank {len(shape)}"
            raise self._error(node, problem, _SHAPE_HINT)
        if inferred is not None and any(map(_differ, inferred, shape)):
            problem = f"the translation returned shape {list(inferred)}, torch returns {list(shape)}"
            raise self._error(node, problem, _SHAPE_HINT)
        # A function of onnxscript may declare a scalar, FLOAT, where it has a tensor of any shape, FLOAT[...].
        if value.shape is None or len(value.shape) != len(shape):
            self.builder.set_dims(value, shape)
            self.builder.write_shape(value, shape)

    def _infer_type(self, value: ir.Value, result: ResultSpec) -> None:
        """Determine an unknown type: it is torch's if the value depends on an operator of another domain."""
        with contextlib.suppress(Unsupported):
            self.builder.infer(value)
        if value.type is None:
            value.type = ir.TensorType(result.dtype)

    def _name(self, value: ir.Value, node: torch.fx.Node, name: str, *, final: bool = True) -> None:
        """Name a value after its FX node, unless it is already named after another one."""
        if value.producer() is None or value in self.builder.named:
            return
        if final:
            self.builder.named.add(value)
            self.metadata.annotate_value(value, node)
        value.name = self.builder.names.unique(name)

    def _annotate(self, node: torch.fx.Node, mark: int) -> None:
        created = self.builder.created[mark:]
        if created:
            metadata = self.metadata.of(node)
            regions = () if self.options.functions == "none" else node.meta.get(REGIONS_KEY, ())
            self.has_regions = self.has_regions or bool(regions)
            for onnx_node in created:
                onnx_node.metadata_props.update(metadata)
                if self.options.legacy_names:
                    onnx_node.meta[SCOPE] = scopes_of(node)[1:]
                if regions or self.options.functions == "repeated":
                    onnx_node.meta[SCOPES] = tuple(Scope(*scope) for scope in class_scopes_of(node))
                if regions:
                    onnx_node.meta[REGIONS] = tuple(Scope(*region) for region in regions)

    def _failure(self, node: torch.fx.Node, error: Exception, *, is_own: bool) -> TranslationError:
        """The error of a translation that raised another one, with the line of the user's function."""
        place = user_line(error) if is_own else ""
        table = f"custom_translation_table={{torch.ops.{target_name(node)}: my_function}}"
        hint = _call_hint(node) if is_own else f"pass a translation of your own: export(..., {table})"
        problem = f"{type(error).__name__}: {error}" + (f"\n  in: {place}" if place else "")
        return self._error(node, problem, hint)

    def _error(self, node: torch.fx.Node, message: str, hint: str | None = None) -> TranslationError:
        location = source_line(node)
        return TranslationError(
            message, target=target_name(node), node=str(node.format_node()), location=location, hint=hint
        )

    def _unsupported_operator(
        self, node: torch.fx.Node, results: Sequence[ResultSpec], val: Any, reasons: tuple[str, ...]
    ) -> None:
        """Record the operator and continue with undefined values, so that one error lists all such operators."""
        self.unsupported.setdefault(target_name(node), []).append((node, reasons))
        undefined = []
        for result in results:
            value = ir.Value(name=self.builder.names.helper(), type=ir.TensorType(result.dtype))
            self.builder.set_dims(value, (*result.shape, 2) if result.torch_dtype.is_complex else result.shape)
            self.builder.symbols.define(value, result.shape)
            undefined.append(value)
        self.env[node] = nest_like(val, iter(undefined))

    def unsupported_rows(self) -> list[UnsupportedOperator]:
        """One row for each unsupported operator."""
        rows = []
        for name, uses in self.unsupported.items():
            reasons = tuple(dict.fromkeys(reason for _, why in uses for reason in why))
            misspelling = self.options.passthrough.misspelling(uses[0][0].target)
            reasons += () if misspelling is None else (misspelling,)
            since = [lowest_opset(node, self.options.opset, NEWEST_OPSET, self._try_at_opset) for node, _ in uses]
            known = [opset for opset in since if opset is not None]
            lowest = max(known) if len(known) == len(uses) else None
            rows.append(UnsupportedOperator(name, len(uses), source_line(uses[0][0]), reasons, lowest))
        return rows

    def _try_at_opset(
        self, builder: Builder, env: dict[torch.fx.Node, LoweredValue], node: torch.fx.Node, opset: int
    ) -> bool:
        lowering = _GraphLowering(builder, replace(self.options, opset=opset))
        lowering.env = env
        lowering.call(node)
        return not lowering.unsupported


def _differ(found: Dim, expected: Dim) -> bool:
    """Whether two sizes are known to differ; the equality of symbolic sizes may be known to torch only."""
    return isinstance(found, int) and isinstance(expected, int) and found != expected


def _call_hint(node: torch.fx.Node) -> str | None:
    """The arguments of a translation of the user, for its hint; None for an operator without a schema."""
    schema = getattr(node.target, "_schema", None)
    return None if schema is None else f"the function is called with op and the arguments of {schema}"


def _name(function: Any) -> str:
    """The name of a translation, which may be a ``functools.partial`` or any callable of the user."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _symbols(dims: Sequence[Dim]) -> set[sympy.Symbol]:
    return {symbol for dim in dims if not isinstance(dim, int) for symbol in dim.free_symbols}
