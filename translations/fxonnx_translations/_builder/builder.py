"""The graph builder: an ``onnxscript.GraphBuilder`` that emits optimized nodes from the start.

It rewrites operators to the form of the target opset, shares constants by a bit-exact key, applies peepholes, eliminates
common subexpressions (CSE) and infers the type and shape of every value. ``Op`` adds the FX node being translated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import onnx_ir as ir
import onnxscript
import sympy
import torch

from .._opsets.opset_forms import OPSET_FORMS, FormError, check_form
from .._opsets.ort_kernels import MISSING_KERNELS, TYPES_WITHOUT_SOME_KERNELS, NoKernelError, wider_type
from .._torch_compat import FloorDiv
from . import constants, shape_inference
from .dtypes import FLOAT8, HALF_FLOATS, to_torch_dtype
from .half_precision import is_continuous, is_small_parameter, unrounded_inputs
from .initializers import DerivedTensor, Recipe, TorchTensor, derive
from .name_allocator import NameAllocator
from .op_schema import OpSchemaInfo, missing_operator_message, node_attributes, schema_info
from .peepholes import PEEPHOLES
from .size_expressions import emit_size
from .symbolic_dims import Dim, SymbolTable, is_static

__all__ = ["Builder", "ReplaceMissingOp", "Unsupported"]

Input: TypeAlias = ir.Value | ir.TensorProtocol | bool | int | float | Sequence[Any] | None


ReplaceMissingOp: TypeAlias = "Callable[[Builder, str, Sequence[Any], Mapping[str, Any]], ir.Value | None]"
"""Emits the replacement of an operator that the opset or ONNX Runtime lacks; returns None if it lacks neither."""


class Unsupported(Exception):
    """Raised by a translation for a call that it cannot express at this opset; the text is the reason."""


class Builder(onnxscript.GraphBuilder):
    """Builder of one ONNX graph; a subgraph has its own builder, whose parent is the enclosing graph's.

    Args:
        graph: The empty graph to fill, with its opset imports set.
        symbols: The symbolic dims of the export.
        names: Allocator of unique names, shared by all graphs of the model.
        replace_missing_op: Replaces the operators that the opset or ONNX Runtime lacks.
        parent: The builder of the enclosing graph.
        exact_numerics: Whether results agree with torch's for NaN and signed zeros as well; a subgraph has its parent's.
        missing_kernels: Operator to the element types that are computed in a wider type, because the target has no
            kernel; a subgraph has the enclosing graph's.
        computes_float64: Whether the target computes float64 in float64; likewise.
    """

    def __init__(
        self,
        graph: ir.Graph,
        symbols: SymbolTable,
        names: NameAllocator,
        replace_missing_op: ReplaceMissingOp,
        *,
        parent: Builder | None = None,
        exact_numerics: bool = False,
        missing_kernels: Mapping[str, frozenset[ir.DataType]] = MISSING_KERNELS,
        computes_float64: bool = True,
    ) -> None:
        super().__init__(graph, parent=parent)
        self.symbols = symbols
        self.names = names
        self.replace_missing_op = replace_missing_op
        self.opset_version = int(graph.opset_imports[""])
        self.exact_numerics: bool = parent.exact_numerics if parent else exact_numerics
        self.zero_signs_seen: bool = parent.zero_signs_seen if parent else False  # after the present node
        self.missing_kernels: Mapping[str, frozenset[ir.DataType]] = (
            parent.missing_kernels if parent else missing_kernels
        )
        self.computes_float64: bool = parent.computes_float64 if parent else computes_float64
        self.metadata: Mapping[str, str] = {}
        self.created: list[ir.Node] = []
        self.named: set[ir.Value] = parent.named if parent else set()
        self._enclosing = parent
        self._dims: dict[ir.Value, tuple[Dim, ...]] = parent._dims if parent else {}
        self._dim_params: dict[sympy.Expr, str] = parent._dim_params if parent else {}
        self._constants: dict[constants.ConstantKey, ir.Value] = parent._constants if parent else {}
        self._literals: dict[Any, ir.Value] = parent._literals if parent else {}
        self._module_literals: dict[ir.Value, torch.Tensor] = parent._module_literals if parent else {}
        self.parts: dict[ir.Value, tuple[ir.Value, ir.Value]] = dict(parent.parts) if parent else {}
        self.joined: dict[tuple[ir.Value, ir.Value], ir.Value] = dict(parent.joined) if parent else {}
        # The symbols that must be at least 1 for the recorded shape of a value to be right.
        self.nonempty_symbols: dict[ir.Value, Sequence[sympy.Symbol]] = parent.nonempty_symbols if parent else {}
        # Sizes that must be at least 1 although no node of the graph may depend on them, with the reasons.
        self.positive_sizes: dict[sympy.Expr, str] = parent.positive_sizes if parent else {}
        # Half-precision value to the FLOAT value that it was rounded from.
        self.unrounded: dict[ir.Value, ir.Value] = dict(parent.unrounded) if parent else {}
        # Values that have fewer axes at some sizes than their shapes have.
        self.unranked: set[ir.Value] = parent.unranked if parent else set()
        # Initializers derived from weights and literals, by these, their names and recipes.
        self.stored: dict[Any, ir.Value] = parent.stored if parent else {}
        self._sizes: dict[sympy.Expr, ir.Value] = {}
        self._size_exprs: dict[ir.Value, sympy.Expr] = parent._size_exprs if parent else {}
        self.value_ranges: dict[ir.Value, tuple[Dim, Dim] | None] = parent.value_ranges if parent else {}
        self._nodes: dict[Any, Sequence[ir.Value]] = {}

    # ---- types and shapes

    def dims(self, value: ir.Value) -> tuple[Dim, ...]:
        """Return the shape of a value; shapes that the captured graph does not give are inferred on demand.

        Raises:
            Unsupported: If the shape is neither captured nor inferable.
        """
        known = self._dims.get(value)
        if known is not None:
            return known
        node = value.producer()
        if node is None:
            raise Unsupported(f"the shape of {value.name} is not known")
        for output, dims in zip(node.outputs, shape_inference.infer(node, self), strict=True):
            if dims is not None:
                self._dims.setdefault(output, dims)
        if value not in self._dims:
            raise Unsupported(f"the shape of {value.name}, computed by {node.op_type}, is not known")
        return self._dims[value]

    def rank(self, value: ir.Value) -> int | None:
        """Return the number of axes, or None if it is not known."""
        try:
            return len(self.dims(value))
        except Unsupported:
            return None

    def recorded_dims(self, value: ir.Value) -> tuple[Dim, ...] | None:
        """Return the shape if it is recorded, without inference."""
        return self._dims.get(value)

    def infer(self, value: ir.Value) -> None:
        """Infer the type of a value where the operator's schema alone does not determine it."""
        node = value.producer()
        if node is not None:
            shape_inference.infer(node, self)

    def set_dims(self, value: ir.Value, dims: Sequence[Dim]) -> None:
        """Record the shape of a value; the input of a Cast has the same one."""
        self._dims[value] = tuple(dims)
        node = value.producer()
        source = node.inputs[0] if node is not None and node.op_type == "Cast" else None
        if source is not None and source not in self._dims:
            self.set_dims(source, dims)

    def with_dims(self, value: ir.Value, dims: Sequence[Dim]) -> ir.Value:
        """Return the value with its shape recorded, if it was not: ONNX could not infer it, or would invent dim names."""
        if value not in self._dims:
            self.set_dims(value, dims)
        return value

    def write_shape(self, value: ir.Value, dims: Sequence[Dim]) -> None:
        """Set the shape that is saved in the model."""
        value.shape = ir.Shape([dim if isinstance(dim, int) else self.dim_param(dim) for dim in dims])

    def dim_param(self, expr: sympy.Expr) -> str:
        """Return the text of an expression, as ONNX has it in ``dim_param``."""
        known = self._dim_params.get(expr)
        if known is None:
            known = self._dim_params[expr] = str(expr)
        return known

    def expr_of_dim_param(self, name: str) -> sympy.Expr:
        """Return the expression of a ``dim_param``, or a new symbol of that name."""
        for expr, known in self._dim_params.items():
            if known == name:
                return expr
        return sympy.Symbol(name, integer=True, nonnegative=True)

    # ---- constants

    def constant(self, value: Any, dtype: ir.DataType | None = None) -> ir.Value:
        """Return the initializer of a literal, one per dtype, shape and bytes; see ``constants.literal``."""
        # Python's 1, 1.0 and True are one dict key, as are 0.0 and -0.0: repr keeps them apart.
        small = value if isinstance(value, (int, float)) else tuple(value) if isinstance(value, list) else None
        shortcut = None if small is None else (repr(small), dtype, isinstance(value, list))
        if shortcut in self._literals:
            return self._literals[shortcut]
        tensor = constants.literal(value, dtype)
        key = constants.constant_key(tensor)
        known = self._constants.get(key)
        if known is None:
            known = ir.Value(
                name=self.names.constant(), type=ir.TensorType(tensor.dtype), shape=ir.Shape(key[1]), const_value=tensor
            )
            tensor.name = known.name
            self.root.graph.register_initializer(known)
            self._constants[key] = known
            self._dims[known] = key[1]
        if shortcut is not None:
            self._literals[shortcut] = known
        return known

    def register_weight(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """Add an initializer that is a weight, not a literal; its name must be free."""
        dims = tuple(int(dim) for dim in tensor.shape)  # type: ignore[arg-type]
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(dims), const_value=tensor)
        self.root.graph.register_initializer(value)
        self._dims[value] = dims
        return value

    def register_literal(self, name: str, tensor: torch.Tensor) -> ir.Value:
        """Add a constant of the module as an initializer that equal literals share; its name must be free."""
        # Held as a torch tensor: the recipe of a derived weight may read it.
        value = self.register_weight(name, TorchTensor(tensor, name=name))
        self._constants.setdefault(constants.constant_key(constants.literal(tensor)), value)
        self._module_literals[value] = tensor
        return value

    def module_literal(self, value: ir.Value) -> torch.Tensor | None:
        """Return the tensor of a constant of the module, or None for other values."""
        return self._module_literals.get(value)

    def size(self, dim: Dim) -> ir.Value:
        """Return a size as an INT64 tensor of shape [1]."""
        return self.constant([dim], ir.DataType.INT64) if isinstance(dim, int) else emit_size(self, dim)

    def sizes(self, dims: Sequence[Dim]) -> ir.Value:
        """Return sizes as one INT64 vector: a constant if all are static."""
        if is_static(dims):
            return self.constant(list(dims), ir.DataType.INT64)
        pieces: list[ir.Value] = []
        static: list[int] = []
        for dim in dims:
            if isinstance(dim, int):
                static.append(dim)
                continue
            if static:
                pieces.append(self.constant(static, ir.DataType.INT64))
                static = []
            pieces.append(self.size(dim))
        if static:
            pieces.append(self.constant(static, ir.DataType.INT64))
        return self.value_of("Concat", *pieces, axis=0)

    def recorded_size(self, expr: sympy.Expr) -> ir.Value | None:
        """Return the value that already holds a size expression in this graph or an enclosing one, or None."""
        builder: Builder | None = self
        while builder is not None:
            if expr in builder._sizes:
                return builder._sizes[expr]
            builder = builder._enclosing
        return None

    def record_size(self, expr: sympy.Expr, value: ir.Value) -> None:
        """Record the value of a size expression."""
        self._sizes[expr] = value
        self._size_exprs[value] = expr
        self._dims[value] = (1,)

    def floor_div_numerators(self) -> list[sympy.Expr]:
        """Return the numerators of emitted floor divisions that assume nonnegative numerators, in a fixed order."""
        quotients = [
            part for expr in self._sizes for part in sympy.preorder_traversal(expr) if isinstance(part, FloorDiv)
        ]
        return list(
            dict.fromkeys(
                quotient.args[0] for quotient in quotients if all(part.is_nonnegative for part in quotient.args)
            )
        )

    def size_expr(self, value: ir.Value) -> sympy.Expr | None:
        """Return the size expression that a value was emitted for, or None."""
        return self._size_exprs.get(value)

    # ---- nodes

    def value_of(self, op_type: str, *inputs: Input, **attributes: Any) -> ir.Value:
        """Emit an operator of the default domain with one output."""
        value = self.call_op(op_type, inputs, attributes)
        return value if isinstance(value, ir.Value) else value[0]

    def expand(self, value: ir.Value, dims: Sequence[Dim]) -> ir.Value:
        """Expand to the given sizes; the value itself when it already has them."""
        source = self.dims(value)
        if tuple(dims) == source:
            return value
        # An axis that already has its size needs none computed: the size 1 of Expand keeps the input's.
        offset = len(dims) - len(source)
        wanted = [1 if axis >= offset and source[axis - offset] == dim else dim for axis, dim in enumerate(dims)]
        return self.with_dims(self.value_of("Expand", value, self.sizes(wanted)), dims)

    def call_op(
        self,
        op_type: str,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        /,
        domain: str = "",
        version: int | None = None,
        outputs: int | Sequence[str | ir.Value] = 1,
        name: str | None = None,
    ) -> ir.Value | Sequence[ir.Value]:
        """Emit an operator, or return the value that already is its result.

        Raises:
            Unsupported: If the target opset lacks the operator or this form of it.
        """
        inputs, attributes = list(args), {key: value for key, value in kwargs.items() if value is not None}
        schema = None
        if domain == "":
            early = self._rewrite_for_opset(op_type, inputs, attributes)
            if early is not None:
                return early
            schema = schema_info(op_type, self.opset_version)
            if schema is None:
                raise Unsupported(missing_operator_message(op_type, self.opset_version))
            try:
                check_form(
                    self, op_type, schema, inputs, attributes, outputs if isinstance(outputs, int) else len(outputs)
                )
            except FormError as error:
                raise Unsupported(f"opset {self.opset_version}: {error}") from error
        values = self._input_values(schema, inputs)
        simpler = self._simplified(op_type, values, attributes) if domain == "" and outputs == 1 else None
        if simpler is not None:
            return simpler
        if (
            schema is not None
            and isinstance(outputs, int)
            and any(v is not None and v.dtype in TYPES_WITHOUT_SOME_KERNELS for v in values)
        ):
            widened = self._widened(op_type, schema, values) or unrounded_inputs(self, op_type, values)
            if widened is not None:
                return self._emit_wider(op_type, schema, values, widened, attributes, outputs, name)
        return self._emit(op_type, domain, version, schema, values, attributes, outputs, name)

    def _simplified(
        self, op_type: str, values: Sequence[ir.Value | None], attributes: dict[str, Any]
    ) -> ir.Value | None:
        """Return the value that already is an operator's result, or None."""
        if op_type not in PEEPHOLES:
            return None
        given = [value for value in values if value is not None]
        return PEEPHOLES[op_type](self, given, attributes) if len(given) == len(values) else None

    def _widened(
        self, op_type: str, schema: OpSchemaInfo, values: Sequence[ir.Value | None]
    ) -> list[ir.Value | None] | None:
        """Return the inputs cast to types that have a kernel, or None if they need no cast."""
        wider: dict[str, ir.DataType | None] = {}
        for index, value in enumerate(values):
            variable = schema.type_variable(index)
            if value is None or value.dtype is None or variable is None or variable in wider:
                continue
            try:
                wider[variable] = wider_type(op_type, value.dtype, variable, schema, self.missing_kernels)
            except NoKernelError as error:
                raise Unsupported(str(error)) from error
        if not any(wider.values()):
            return None
        types = [wider.get(schema.type_variable(index) or "") for index in range(len(values))]
        return [
            value if value is None or dtype is None else self._in_type(value, dtype, is_continuous(op_type))
            for value, dtype in zip(values, types, strict=True)
        ]

    def widened(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Return the value in a wider type, for a continuous operator: not rounded, if it was computed in that type."""
        return value if value.dtype == dtype else self._in_type(value, dtype, True)

    def rounded(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Return the result of an operator, computed in a wider type, in its own type."""
        # The numbers are the type's, but saturation would make infinity finite.
        saturate = {"saturate": 0} if dtype in FLOAT8 else {}
        result = self.value_of("Cast", value, to=dtype, **saturate)
        node = result.producer()
        is_rounding = node is not None and node.op_type == "Cast" and node.inputs[0] is value
        if is_rounding and dtype in HALF_FLOATS and value.dtype == ir.DataType.FLOAT and not self.exact_numerics:
            self.unrounded[result] = value
        return result

    def derive(self, weights: Sequence[ir.Value], tensors: Sequence[Any], suffix: str, recipe: Recipe) -> ir.Value:
        """Return the initializer that a recipe computes from weights; equal weights and suffix give the same one."""
        known = self.root.graph.initializers.get(f"{weights[0].name}::{suffix}")
        content = None if known is None else known.const_value
        if known is not None and isinstance(content, DerivedTensor) and content.sources == tuple(tensors):
            return known
        return self.register_derived(weights, suffix, recipe)

    def register_derived(
        self, weights: Sequence[ir.Value], suffix: str, recipe: Recipe, dtype: ir.DataType | None = None
    ) -> ir.Value:
        """Add the initializer that a recipe computes from weights; see ``initializers.derive``."""
        name = f"{weights[0].name}::{suffix}"
        if name in self.root.graph.initializers:
            name = self.names.unique(name)
        tensors: list[Any] = [weight.const_value for weight in weights]
        value = self.register_weight(name, derive(name, tensors, recipe, dtype))
        value.metadata_props["pkg.fxonnx.derived_from"] = ", ".join(str(weight.name) for weight in weights)
        value.metadata_props["pkg.fxonnx.recipe"] = suffix
        return value

    def stored_in(self, value: ir.Value, dtype: ir.DataType) -> ir.Value | None:
        """Return the initializer of a small parameter in another type, computed while saving; None for other values."""
        tensor = value.const_value
        if not isinstance(tensor, (TorchTensor, DerivedTensor)) or not is_small_parameter(self, value):
            return None
        if value.is_graph_input():
            return None
        wanted = to_torch_dtype(dtype)
        if value in self._module_literals:
            return self.constant(self._module_literals[value].to(wanted))
        return self.derive([value], [tensor], str(wanted).removeprefix("torch."), lambda weight: weight.to(wanted))

    def _in_type(self, value: ir.Value, dtype: ir.DataType, is_continuous: bool) -> ir.Value:
        """Return the value in another type; a literal is converted at export time, a small parameter while saving."""
        if is_continuous and dtype == ir.DataType.FLOAT and value in self.unrounded:
            return self.unrounded[value]
        array = constants.array_of(value)
        if (
            array is not None
            and value.dtype is not None
            and value.dtype.is_floating_point() == dtype.is_floating_point()
        ):
            return self.constant(ir.Tensor(array.astype(dtype.numpy()), dtype=dtype))
        return self.value_of("Cast", value, to=dtype)

    def _emit_wider(
        self,
        op_type: str,
        schema: OpSchemaInfo,
        values: Sequence[ir.Value | None],
        widened: Sequence[ir.Value | None],
        attributes: dict[str, Any],
        outputs: int | Sequence[str | ir.Value],
        name: str | None,
    ) -> ir.Value | Sequence[ir.Value]:
        simpler = self._simplified(op_type, widened, attributes) if self.unrounded and outputs == 1 else None
        made = simpler or self._emit(op_type, "", None, schema, widened, attributes, outputs, name)
        several = [made] if isinstance(made, ir.Value) else list(made)
        for index, output in enumerate(several):
            rule = schema.outputs[min(index, len(schema.outputs) - 1)]
            source = values[rule] if isinstance(rule, int) and rule < len(values) else None
            if source is not None and source.dtype is not None and source.dtype != output.dtype:
                several[index] = self.rounded(output, source.dtype)
        return several[0] if isinstance(made, ir.Value) else several

    def emit_verbatim(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        outputs: int,
        domain: str,
        version: int | None,
    ) -> tuple[ir.Value, ...]:
        """Emit an operator as given: no schema lookup, peephole or CSE."""
        values = self._input_values(None, inputs)
        made = self._emit(op_type, domain, version, None, values, attributes, outputs, None)
        return (made,) if isinstance(made, ir.Value) else tuple(made)

    def _rewrite_for_opset(self, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> ir.Value | None:
        try:
            replacement = self.replace_missing_op(self, op_type, inputs, attributes)
            if replacement is not None:
                return replacement
            for since, form in OPSET_FORMS.get(op_type, ()):
                if self.opset_version < since:
                    instead = form(self, op_type, inputs, attributes)
                    if instead is not None:
                        return instead
        except FormError as error:
            raise Unsupported(f"opset {self.opset_version}: {error}") from error
        return None

    def _input_values(self, schema: OpSchemaInfo | None, inputs: Sequence[Any]) -> list[ir.Value | None]:
        """Return the inputs with literals as constants, of the type that another input binds their type variable to."""
        if all(isinstance(value, ir.Value) for value in inputs):
            return list(inputs)
        bound: dict[str | None, ir.Value] = {}
        for index, value in enumerate(inputs if schema is not None else ()):
            variable = schema.type_variable(index) if schema is not None else None
            if isinstance(value, ir.Value) and variable is not None:
                bound.setdefault(variable, value)
        values: list[ir.Value | None] = []
        for index, value in enumerate(inputs):
            if value is None or isinstance(value, ir.Value):
                values.append(value)
                continue
            like = bound.get(schema.type_variable(index)) if schema is not None else None
            literal = self.constant(value, None if like is None else like.dtype)
            if like is not None and like.type is None and self.opset_version >= 15:
                # An operator of another domain has computed it.
                literal = self.value_of("CastLike", literal, like)
            values.append(literal)
        # Trailing absent inputs are dropped: some fusions of ONNX Runtime crash on inputs named "".
        while values and values[-1] is None:
            values.pop()
        return values

    def _emit(
        self,
        op_type: str,
        domain: str,
        version: int | None,
        schema: OpSchemaInfo | None,
        values: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        outputs: int | Sequence[str | ir.Value],
        name: str | None,
    ) -> ir.Value | Sequence[ir.Value]:
        key = None
        if schema is not None and schema.deterministic and isinstance(outputs, int):
            key = (op_type, tuple(map(id, values)), repr(attributes) if attributes else "", outputs)
            known = self._nodes.get(key)
            if known is not None:
                return known[0] if outputs == 1 else known
        made = self._output_values(outputs)
        # Before the node exists: a rejected node must not count as a use of its inputs.
        if schema is not None:
            self._type_outputs(op_type, schema, values, attributes, made)
        node = ir.Node(
            domain,
            op_type,
            values,
            node_attributes(attributes) if attributes else (),
            outputs=made,
            version=version if domain else None,
            name=name,
            metadata_props=dict(self.metadata),
        )
        if domain and domain not in self.graph.opset_imports:
            self.root.graph.opset_imports[domain] = version or 1
            self.graph.opset_imports[domain] = version or 1
        self.graph.append(node)
        self.created.append(node)
        if key is not None:
            self._nodes[key] = made
        return made[0] if len(made) == 1 else made

    def _output_values(self, outputs: int | Sequence[str | ir.Value]) -> list[ir.Value]:
        if isinstance(outputs, int):
            return [ir.Value(name=self.names.helper()) for _ in range(outputs)]
        return [
            output if isinstance(output, ir.Value) else ir.Value(name=self.names.unique(output)) for output in outputs
        ]

    def _type_outputs(
        self,
        op_type: str,
        schema: OpSchemaInfo,
        values: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        made: Sequence[ir.Value],
    ) -> None:
        for index, value in enumerate(values):
            variable = schema.type_variable(index)
            if value is None or variable is None:
                continue
            allowed = schema.allowed.get(variable)
            if allowed is not None and value.dtype is not None and value.dtype not in allowed:
                raise Unsupported(f"{op_type} does not accept {value.dtype.name} at opset {self.opset_version}")
        given: ir.DataType | None = None
        if "to" in attributes or "dtype" in attributes:
            given = ir.DataType(attributes.get("to", attributes.get("dtype")))
        elif op_type == "ConstantOfShape":
            fill = attributes.get("value")
            given = fill.dtype if fill is not None else ir.DataType.FLOAT
        if given is not None:
            if not schema.can_return(given):
                raise Unsupported(f"{op_type} cannot return {given.name} at opset {self.opset_version}")
            made[0].type = ir.TensorType(given)
            return
        for index, output in enumerate(made):
            # A variadic output has the rule of the last formal output.
            rule = schema.outputs[min(index, len(schema.outputs) - 1)]
            if isinstance(rule, ir.DataType):
                output.type = ir.TensorType(rule)
            elif rule is not None and rule < len(values):
                source = values[rule]
                if source is not None and source.type is not None:
                    output.type = source.type

    def rollback(self, mark: int) -> None:
        """Remove the nodes created since ``mark`` (a length of ``created``), last first."""
        dropped = self.created[mark:]
        del self.created[mark:]
        gone = {output for node in dropped for output in node.outputs}
        for output in gone:
            # The subgraph of a rejected node may use it as well.
            for user, index in tuple(output.uses()):
                user.replace_input_with(index, None)
        for node in reversed(dropped):
            if node.graph is not None:
                node.graph.remove(node, safe=True)
        self._sizes = {expr: value for expr, value in self._sizes.items() if value not in gone}
        self._nodes = {key: made for key, made in self._nodes.items() if made[0] not in gone}
        if self.unrounded:
            self.unrounded = {key: value for key, value in self.unrounded.items() if gone.isdisjoint((key, value))}
        if self.parts:
            self.parts = {value: pair for value, pair in self.parts.items() if gone.isdisjoint((value, *pair))}
            self.joined = {pair: value for pair, value in self.joined.items() if gone.isdisjoint((value, *pair))}
