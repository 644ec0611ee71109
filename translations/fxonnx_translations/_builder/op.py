"""The ``op`` object: the first argument of a translation, which emits ONNX operators for one FX node."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import onnx_ir as ir
import onnxscript
import torch

from . import dtypes
from .builder import Builder, Input, Unsupported
from .constants import array_of
from .initializers import DerivedTensor, Recipe, TorchTensor
from .symbolic_dims import Dim, is_static

__all__ = ["Op", "Operand", "ResultSpec", "Unsupported"]

Operand: TypeAlias = ir.Value | Dim | float | bool
"""A tensor or a number: an int, float, bool or symbolic size."""

_KEEPS_ZEROS = frozenset({"Cast", "Expand", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"})


@dataclass(frozen=True)
class ResultSpec:
    """Type and shape of one output of the FX node, as captured.

    Attributes:
        dtype: ONNX element type; complex types are their real parts' type.
        shape: Sizes, without the trailing 2 of complex tensors.
        torch_dtype: torch's dtype of the output.
    """

    dtype: ir.DataType
    shape: tuple[Dim, ...]
    torch_dtype: torch.dtype


class Op(onnxscript.OpBuilder):
    """Emits ONNX operators: ``op.Add(x, y)``; lower-case methods return facts and emit common compositions.

    Inputs may be Python numbers and lists: they become constants of the type that the operator requires.
    Operators are written in their newest form (axes as inputs ...); the builder rewrites them for older opsets.

    Args:
        builder: The builder of the graph being written.
        results: Type and shape of each tensor that the FX node returns.
        shared: Initializers used by several FX nodes; a weight derived from one would be stored in addition to it.
        complex_values: The complex operands of the FX node.
    """

    def __init__(
        self,
        builder: Builder,
        results: Sequence[ResultSpec] = (),
        shared: frozenset[ir.Value] = frozenset(),
        complex_values: frozenset[ir.Value] = frozenset(),
    ) -> None:
        super().__init__(builder, "", builder.opset_version)
        self._graph_builder = builder
        self.results = tuple(results)
        self.shared = shared
        self.complex_values = complex_values

    def __getattr__(self, op_type: str) -> Callable[..., ir.Value]:
        if not op_type[:1].isupper():
            raise AttributeError(f"Op has no method {op_type!r}; ONNX operators start with an upper-case letter")
        return partial(self._one, op_type)

    def _one(
        self, op_type: str, *inputs: Input, _domain: str = "", _version: int | None = None, **attributes: Any
    ) -> ir.Value:
        outputs = attributes.pop("_outputs", 1)
        # Users' functions may ask for several outputs in onnxscript's way, which the type does not tell.
        return self._graph_builder.call_op(  # type: ignore[return-value]
            op_type, inputs, attributes, domain=_domain, version=_version, outputs=outputs
        )

    def multi(
        self, op_type: str, *inputs: Input, outputs: int, domain: str = "", **attributes: Any
    ) -> tuple[ir.Value, ...]:
        """Emit an operator with several outputs."""
        values = self._graph_builder.call_op(op_type, inputs, attributes, domain=domain, outputs=outputs)
        return (values,) if isinstance(values, ir.Value) else tuple(values)

    def call_inline(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Inline a function of onnxscript, whose operators may be of other domains."""
        imports = (function.graph if isinstance(function, ir.Function) else function.graph()).opset_imports
        for graph in (self._graph_builder.root.graph, self._graph_builder.graph):
            for domain, version in imports.items():
                graph.opset_imports.setdefault(domain, version)
        return super().call_inline(function, *args, **kwargs)

    def verbatim(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        dtypes: Sequence[ir.DataType],
        *,
        domain: str = "",
        version: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> tuple[ir.Value, ...]:
        """Emit an operator as given: without opset forms, peepholes and CSE.

        Args:
            op_type: Its name.
            inputs: Its inputs; None for absent ones.
            attributes: Its attributes.
            dtypes: The element type of each output.
            domain: Its domain.
            version: Version of the domain, if it is not the default one.
            metadata: Additional metadata of the node.
        """
        values = self._graph_builder.emit_verbatim(op_type, inputs, attributes, len(dtypes), domain, version)
        for value, dtype in zip(values, dtypes, strict=True):
            value.type = ir.TensorType(dtype)
        node = values[0].producer()
        if node is not None:
            node.metadata_props.update(metadata or {})
        return values

    # ---- facts

    @property
    def builder(self) -> Builder:
        """The builder of the graph being written."""
        return self._graph_builder

    @property
    def opset(self) -> int:
        """The target opset of the default domain."""
        return self._graph_builder.opset_version

    @property
    def exact_numerics(self) -> bool:
        """Whether NaN, signed zeros and the rounding of half precision must be as in torch; other finite values always are.

        Translations add the nodes that only such inputs need if this is true.
        """
        return self._graph_builder.exact_numerics

    @property
    def exact_zeros(self) -> bool:
        """Whether the signs of zeros must be as in torch: in exact numerics, and before an operator whose result jumps there."""
        return self._graph_builder.exact_numerics or self._graph_builder.zero_signs_seen

    @property
    def computes_float64(self) -> bool:
        """Whether the target computes float64 as such; some runtimes compute it in float32."""
        return self._graph_builder.computes_float64

    def has_kernel(self, op_type: str, dtype: ir.DataType) -> bool:
        """Whether the target computes an operator in an element type; if not, the builder casts to a wider one."""
        return dtype not in self._graph_builder.missing_kernels.get(op_type, ())

    @property
    def result(self) -> ResultSpec:
        """Type and shape of the (first) output, as captured."""
        return self.results[0]

    def dims(self, value: ir.Value) -> tuple[Dim, ...]:
        """Return the shape: ints and symbolic sizes."""
        return self._graph_builder.dims(value)

    def is_known(self, dim: Dim) -> bool:
        """Whether a size belongs to the captured graph; ONNX shape inference invents other symbols for helper values."""
        symbols = self._graph_builder.symbols
        return isinstance(dim, int) or all(map(symbols.is_defined, dim.free_symbols))

    def is_data_dependent(self, dim: Dim) -> bool:
        """Whether the graph computes a size from values, such as the number of true elements of a mask; it may be 0."""
        symbols = self._graph_builder.symbols
        if isinstance(dim, int):
            return False
        return not all(
            symbols.is_defined(each) and symbols.origin(each)[0].is_graph_input() for each in dim.free_symbols
        )

    def rank_of(self, value: ir.Value) -> int:
        """Return the number of axes."""
        return len(self._graph_builder.dims(value))

    def dtype_of(self, value: ir.Value) -> ir.DataType:
        """Return the element type.

        Raises:
            Unsupported: If the type is not known, such as a sequence's.
        """
        if value.dtype is None:
            raise Unsupported(f"the element type of {value.name} is not known")
        return value.dtype

    def is_float(self, value: ir.Value) -> bool:
        """Whether the element type is a floating-point type."""
        return self.dtype_of(value).is_floating_point()

    def numbers(self, value: ir.Value) -> list[float] | None:
        """Return the elements of a literal in row-major order, or None if the value is not a literal."""
        array = array_of(value)
        return None if array is None else [item.item() for item in array.reshape(-1)]

    def is_zero(self, value: ir.Value) -> bool:
        """Whether all elements are known to be zero: a literal, also after operators that move or repeat elements."""
        producer = value.producer()
        if producer is not None:
            source = producer.inputs[0] if producer.op_type in _KEEPS_ZEROS else None
            return source is not None and self.is_zero(source)
        array = array_of(value)
        return array is not None and not array.any()

    # ---- values

    def const(self, value: Any, dtype: ir.DataType | None = None) -> ir.Value:
        """Return the constant of a number, a (nested) list or a torch tensor."""
        return self._graph_builder.constant(value, dtype)

    def size(self, dim: Dim) -> ir.Value:
        """Return a size as an INT64 tensor of shape [1]."""
        return self._graph_builder.size(dim)

    def scalar(self, number: Dim | float | bool, dtype: ir.DataType | None = None) -> ir.Value:
        """Return a number as a 0-dim tensor; a size is INT64 unless ``dtype`` is given."""
        if isinstance(number, (bool, int, float)):
            return self._graph_builder.constant(number, dtype)
        value = self.Squeeze(self._graph_builder.size(number), [0])
        return value if dtype is None else self.cast(value, dtype)

    def sizes(self, dims: Sequence[Dim]) -> ir.Value:
        """Return sizes as one INT64 vector: a constant if all are static."""
        return self._graph_builder.sizes(dims)

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Return the value in another element type; the value itself if it has that type."""
        if value.dtype == dtypes.FLOAT8E8M0 and dtype not in (dtypes.FLOAT8E8M0, dtypes.FLOAT):
            return self.cast(self.Cast(value, to=dtypes.FLOAT), dtype)
        if dtype == dtypes.FLOAT8E8M0 and value.dtype != dtype:
            return self._cast_to_exponent(value)
        if dtype == dtypes.BOOL and value.dtype in dtypes.FLOAT8:
            # ONNX Runtime's cast returns True for -0.0.
            value = self.Cast(value, to=dtypes.FLOAT)
        if dtype not in dtypes.FLOAT8 or value.dtype == dtype:
            return self.Cast(value, to=dtype)
        overflow = dtypes.overflow_of(dtype)
        if value.dtype not in dtypes.FLOATS or value.dtype == ir.DataType.DOUBLE or math.isinf(overflow):
            # torch rounds to float32 first.
            value = self.Cast(value, to=ir.DataType.FLOAT)
        if math.isinf(overflow):
            # ONNX Runtime's cast returns NaN instead of infinity for the smallest numbers that overflow.
            infinite = self.GreaterOrEqual(self.Abs(value), dtypes.LEAST_INFINITE_E5M2)
            value = self.Where(infinite, self.Mul(value, math.inf), value)
        return self.Cast(value, to=dtype, saturate=int(math.isfinite(overflow)))

    def _cast_to_exponent(self, value: ir.Value) -> ir.Value:
        """Return the powers of two nearest to the absolute values: torch ignores the sign, and has no zero.

        Halfway cases are rounded up, but the least number, 2**-127, is subnormal: everything above it becomes 2**-126.
        """
        magnitude = self.Abs(self.Cast(value, to=dtypes.FLOAT))
        normal = self.Max(magnitude, 2.0**-126)
        normal = self.Where(self.GreaterOrEqual(normal, 1.5 * 2.0**127), math.nan, normal)
        magnitude = self.Where(self.LessOrEqual(magnitude, 2.0**-127), 2.0**-127, normal)
        return self.Cast(magnitude, to=dtypes.FLOAT8E8M0, round_mode="nearest")

    def widened(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Return an input in the type in which a continuous operator is computed; see ``rounded``."""
        return self._graph_builder.widened(value, dtype)

    def rounded(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Return a result that was computed in a wider type.

        In half precision, ``widened`` returns the value before the rounding, so that adjacent operators have no Casts there
        and back between them. ``cast`` does not: a cast in the model rounds.
        """
        return self._graph_builder.rounded(value, dtype)

    def operand(self, value: Operand, dtype: ir.DataType) -> ir.Value:
        """Return a tensor or number as a value of the given element type."""
        return self.cast(value, dtype) if isinstance(value, ir.Value) else self.scalar(value, dtype)

    def holds(self, number: Operand, dtype: ir.DataType) -> bool:
        """Whether a half type can hold a factor, a number or 0-dim tensor that torch applies in float32.

        It holds 0.1 with the error of any rounding, which only exact numerics tell from float32; 1e5 becomes infinity, and
        1e-9 zero. Other types hold every number.
        """
        if dtype not in dtypes.HALF_FLOATS:
            return True
        known: float | None = None
        if isinstance(number, (int, float)):
            known = float(number)
        elif isinstance(number, ir.Value):
            if self.dims(number) or self.dtype_of(number) in (dtype, dtypes.BOOL):
                return True
            numbers = self.numbers(number)
            known = None if numbers is None else float(numbers[0])
        if known is None:
            # bfloat16 has the range of float32.
            return dtype == dtypes.BFLOAT16 and not self.exact_numerics
        limits = torch.finfo(dtypes.to_torch_dtype(dtype))
        is_normal = limits.smallest_normal <= abs(known) <= limits.max
        return (is_normal and not self.exact_numerics) or not math.isfinite(known) or dtypes.held(known, dtype) == known

    def selected(self, condition: ir.Value, first: ir.Value, second: ir.Value) -> ir.Value:
        """Emit Where; exact zeros keep -0.0, which ONNX Runtime's kernel turns to 0.0 in the first choice only."""
        if not (self.exact_zeros and self.is_float(first) and self.has_negative_zeros(first)):
            return self.Where(condition, first, second)
        if not self.has_negative_zeros(second):
            # ONNX Runtime fuses Not and Where, with the choices exchanged.
            return self.Where(self.Xor(condition, self.const(True)), second, first)
        dtype = self.dtype_of(first)
        zero, chosen = self.const(0.0, dtype), self.Where(condition, first, second)
        side = self.Where(condition, self.Reciprocal(first), self.Reciprocal(second))
        is_other = self.Or(self.Not(self.Equal(chosen, zero)), self.Greater(side, zero))
        return self.Where(is_other, chosen, self.const(-0.0, dtype))

    def has_negative_zeros(self, value: ir.Value) -> bool:
        """Whether a float tensor may hold -0.0."""
        numbers = self.numbers(value)
        if numbers is not None:
            return any(number == 0 and math.copysign(1, number) < 0 for number in numbers)
        producer = value.producer()
        return producer is None or producer.op_type != "Abs"

    def without_negative_zeros(self, total: ir.Value) -> ir.Value:
        """Return a sum of a runtime as torch's, which begins with 0.0: exact zeros have no -0.0 for terms of -0.0."""
        if not self.exact_zeros or not self.is_float(total):
            return total
        # ONNX Runtime drops a sum with 0.0.
        zero = self.const(0.0, self.dtype_of(total))
        return self.Where(self.Equal(total, zero), zero, total)

    def compute_dtype(self, *operands: Operand) -> ir.DataType:
        """Return the element type of the operands after torch's type promotion (torch.result_type)."""
        types = {value.dtype for value in operands if isinstance(value, ir.Value)}
        if len(types) == 1 and all(isinstance(value, ir.Value) for value in operands):
            return self.dtype_of(next(value for value in operands if isinstance(value, ir.Value)))
        tensors: list[torch.dtype] = []
        zero_dim: list[torch.dtype] = []
        numbers: list[bool | int | float] = []
        for value in operands:
            if isinstance(value, ir.Value):
                dtype = dtypes.to_torch_dtype(self.dtype_of(value))
                (tensors if self.dims(value) else zero_dim).append(dtype)
            elif isinstance(value, (bool, int, float)):
                numbers.append(value)
            else:
                numbers.append(0 if value.is_integer is not False else 0.0)
        return dtypes.from_torch(dtypes.promote(tensors, zero_dim, numbers))

    def promote(self, *operands: Operand) -> tuple[ir.Value, ...]:
        """Return all operands in the element type of torch's type promotion."""
        dtype = self.compute_dtype(*operands)
        return tuple(self.operand(value, dtype) for value in operands)

    # ---- complex numbers

    def parts(self, value: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return the real and the imaginary part of a complex tensor, which in ONNX is a real one with a last axis of 2."""
        builder = self._graph_builder
        known = builder.parts.get(value)
        if known is not None:
            return known
        array = array_of(value)
        if array is not None:
            dtype = self.dtype_of(value)
            real, imaginary = (self.const(ir.Tensor(array[..., part].copy(), dtype=dtype)) for part in (0, 1))
        else:
            dims = self.dims(value)[:-1]
            real, imaginary = (self.shaped(self.Gather(value, part, axis=-1), dims) for part in (0, 1))
        builder.parts[value] = (real, imaginary)
        builder.joined[real, imaginary] = value
        return real, imaginary

    def join(self, real: ir.Value, imaginary: ir.Value) -> ir.Value:
        """Return the complex tensor of two parts of equal shape; ``parts`` of it returns these values."""
        builder = self._graph_builder
        known = builder.joined.get((real, imaginary))
        if known is not None:
            return known
        dims = self.dims(real)
        if array_of(real) is None and self.is_zero(imaginary):
            padded = self.Pad(self.Unsqueeze(real, [-1]), [*[0] * (2 * len(dims) + 1), 1])
            value = self.shaped(padded, (*dims, 2))
        else:
            pieces = [self.Unsqueeze(part, [-1]) for part in (real, imaginary)]
            value = self.shaped(self.Concat(*pieces, axis=-1), (*dims, 2))
        builder.parts[value] = (real, imaginary)
        builder.joined[real, imaginary] = value
        return value

    def for_parts(self, dtype: torch.dtype | None = None) -> Op:
        """Return the ``op`` for translating the same FX node on one part of its complex numbers: its results are real.

        Args:
            dtype: dtype of the results, if it differs from the parts'.
        """
        results = []
        for result in self.results:
            if dtype is not None:
                result = replace(result, torch_dtype=dtype, dtype=dtypes.from_torch(dtype))
            elif result.torch_dtype.is_complex:
                result = replace(result, torch_dtype=result.torch_dtype.to_real())
            results.append(result)
        return Op(self._graph_builder, results, self.shared)

    # ---- graphs

    def body(self, name: str, inputs: Sequence[tuple[ir.DataType, Sequence[Dim]]]) -> Op:
        """Return the ``op`` of a new subgraph for Scan, Loop or If; it may use values of the enclosing graph.

        Args:
            name: Name of the graph.
            inputs: Element type and sizes of each of its inputs.
        """
        outer = self._graph_builder
        graph = ir.Graph([], [], nodes=[], opset_imports=dict(outer.graph.opset_imports), name=outer.names.unique(name))
        builder = Builder(graph, outer.symbols, outer.names, outer.replace_missing_op, parent=outer)
        for dtype, dims in inputs:
            value = ir.Value(name=outer.names.helper(), type=ir.TensorType(dtype))
            builder.set_dims(value, dims)
            builder.write_shape(value, dims)
            graph.inputs.append(value)
        return Op(builder, shared=self.shared)

    @property
    def graph(self) -> ir.Graph:
        """The graph being written."""
        return self._graph_builder.graph

    def finish(self, outputs: Sequence[tuple[ir.Value, Sequence[Dim]]]) -> ir.Graph:
        """Set the outputs of a subgraph.

        Args:
            outputs: The values with their sizes.

        Returns:
            The graph, to be passed as an attribute.
        """
        builder, graph = self._graph_builder, self.graph
        for value, dims in outputs:
            if value.graph is not graph or value.is_graph_input() or value in graph.outputs:
                # An output must be computed in the subgraph, and be distinct; peepholes keep an Identity with a named output.
                value = self.Identity(value, _outputs=["output"])
            builder.set_dims(value, dims)
            builder.write_shape(value, dims)
            graph.outputs.append(value)
        return graph

    # ---- shapes

    def reshape(self, value: ir.Value, dims: Sequence[Dim]) -> ir.Value:
        """Reshape to the given sizes, with 0 (copy the input's size) and one -1 where this saves size arithmetic."""
        if is_static(dims):
            if 0 in dims:
                return self.Reshape(value, list(dims), allowzero=1 if self.opset >= 14 else None)
            return self.Reshape(value, list(dims))
        source = self.dims(value)
        target = [
            dim if isinstance(dim, int) else 0 if axis < len(source) and source[axis] == dim else None
            for axis, dim in enumerate(dims)
        ]
        if target.count(0) == 1 and None not in target and 0 not in dims:
            # The others are positive constants, so that -1 can be inferred for empty tensors as well; some runtimes take 0 for a size.
            target = [size or None for size in target]
        unknown = target.count(None)
        # If another size is 0, -1 cannot be inferred from the number of elements; plain symbols are checked at the call.
        copied = [dim for dim, size in zip(dims, target, strict=True) if size == 0 and not isinstance(dim, int)]
        is_certain = unknown == 0 or all(dim.is_Symbol or dim.is_positive for dim in copied)
        if unknown <= 1 and 0 not in dims and is_certain:
            return self.shaped(self.Reshape(value, [-1 if size is None else size for size in target]), dims)
        # A computed size may be 0, which must not copy the input's size.
        allowzero = 1 if self.opset >= 14 else None
        return self.shaped(self.Reshape(value, self.sizes(dims), allowzero=allowzero), dims)

    def expand(self, value: ir.Value, dims: Sequence[Dim]) -> ir.Value:
        """Expand to the given sizes; return the value itself if it has them."""
        return self._graph_builder.expand(value, dims)

    def unranked(self, value: ir.Value) -> ir.Value:
        """Return a value that has fewer axes at some sizes than its shape has."""
        self._graph_builder.unranked.add(value)
        return value

    def shaped(self, value: ir.Value, dims: Sequence[Dim]) -> ir.Value:
        """Return the value with its shape recorded, if it was not: ONNX could not infer it, or would invent dim names."""
        return self._graph_builder.with_dims(value, dims)

    def axis(self, dim: int, rank: int) -> int:
        """Return a nonnegative axis; torch accepts -1 and 0 for a 0-dim tensor."""
        return dim % max(rank, 1)

    # ---- weights

    def derived(self, weight: ir.Value, suffix: str, recipe: Recipe, *, force: bool = False) -> ir.Value | None:
        """Return a derived weight: an initializer computed from a weight while saving, e.g. its transpose.

        Args:
            weight: The value to derive from.
            suffix: Names the result ``<weight>::<suffix>``.
            recipe: A function of the torch tensor.
            force: Also derive from a shared weight, which is then stored twice: for small weights only.

        Returns:
            The initializer, or None if ``weight`` is computed at run time, a graph input or shared: emit operators instead.
        """
        return self.derived_from([weight], suffix, recipe, force=force)

    def derived_from(
        self, weights: Sequence[ir.Value], suffix: str, recipe: Recipe, *, force: bool = False
    ) -> ir.Value | None:
        """Return a weight derived from several weights, e.g. their concatenation; see :meth:`derived`.

        Args:
            weights: The values to derive from; the result is named after the first.
            suffix: Names the recipe: equal weights and suffix give the same initializer.
            recipe: A function of the torch tensors, in order.
            force: Also derive from shared weights.
        """
        tensors = []
        for weight in weights:
            tensor = weight.const_value
            if not isinstance(tensor, (TorchTensor, DerivedTensor)) or (weight in self.shared and not force):
                return None
            if weight.is_graph_input():
                # A caller may pass another value than the initializer's, which is the default.
                return None
            tensors.append(tensor)
        return self._graph_builder.derive(weights, tensors, suffix, recipe)
