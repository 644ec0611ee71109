"""Products of quantized activations and quantized weights in a form that runtimes compute with integers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir
import torch

from fxonnx_translations._builder.builder import Builder
from fxonnx_translations._builder.constants import array_of
from fxonnx_translations._builder.dtypes import FLOAT, UINT8, to_torch_dtype
from fxonnx_translations._builder.initializers import DerivedTensor, TorchTensor, has_content, sources_of, values_of
from fxonnx_translations._builder.stored_codes import derive_stored, is_stored
from fxonnx_translations._builder.symbolic_dims import is_static

from .._targets.profile import QuantizedForm
from .insertion import insert, use_unsigned_activations

__all__ = ["use_explicit_zero_points", "use_integer_biases", "use_integer_products", "write_quantized_form"]

INT8, INT32 = ir.DataType.INT8, ir.DataType.INT32
_LARGEST_BIAS = 2**30
_MOST_TERMS = _LARGEST_BIAS // (255 * 128)
"""Sums of more products of bytes, together with the largest bias, may exceed int32."""


@dataclass(frozen=True)
class _Product:
    """A MatMul or Gemm of dequantized activations and a dequantized weight.

    Attributes:
        node: The operator.
        activations: DequantizeLinear of its first input, with one scale.
        weight: DequantizeLinear of its second input, of stored codes, with one scale or one for each column.
        is_transposed: Whether the codes have a row for each column of the result.
    """

    node: ir.Node
    activations: ir.Node
    weight: ir.Node
    is_transposed: bool


def _products(builder: Builder, *, in_subgraphs: bool = False) -> Iterator[_Product]:
    for node in ir.traversal.RecursiveGraphIterator(builder.graph) if in_subgraphs else builder.graph:
        if node.domain or node.op_type not in ("MatMul", "Gemm"):
            continue
        is_transposed = _has_attribute(node, "transB", 1)
        if _has_attribute(node, "transA", 1) or not all(
            name not in node.attributes or _has_attribute(node, name, 1) for name in ("alpha", "beta")
        ):
            continue
        activations, weight = (_dequantization(value) for value in node.inputs[:2])
        if activations is None or weight is None or not _has_one_scale(builder, activations):
            continue
        if not _is_weight(builder, weight, is_transposed) or is_stored(activations.inputs[0]):
            continue
        yield _Product(node, activations, weight, is_transposed)


def _has_attribute(node: ir.Node, name: str, value: float) -> bool:
    return name in node.attributes and node.attributes[name].value == value


def _dequantization(value: ir.Value | None) -> ir.Node | None:
    node = None if value is None else value.producer()
    if node is None or node.op_type != "DequantizeLinear" or node.domain:
        return None
    integers = node.inputs[0]
    return node if integers is not None and integers.dtype in (INT8, UINT8) else None


def _has_one_scale(builder: Builder, node: ir.Node) -> bool:
    scale = node.inputs[1]
    return scale is not None and scale.dtype == FLOAT and builder.dims(scale) in ((), (1,))


def _is_weight(builder: Builder, node: ir.Node, is_transposed: bool) -> bool:
    """Whether DequantizeLinear has stored inputs of two axes, with one scale or one for each column of the result."""
    codes, scale = node.inputs[:2]
    if codes is None or scale is None or not all(value is None or is_stored(value) for value in node.inputs):
        return False
    dims = builder.dims(codes)
    if len(dims) != 2 or "block_size" in node.attributes or scale.dtype != FLOAT:
        return False
    if _terms(builder, codes, is_transposed) > _MOST_TERMS:
        return False
    axis = node.attributes["axis"].as_int() % 2 if "axis" in node.attributes else 1
    return _has_one_scale(builder, node) or axis == (0 if is_transposed else 1)


def _terms(builder: Builder, codes: ir.Value, is_transposed: bool) -> int:
    return int(builder.dims(codes)[1 if is_transposed else 0])


def _is_quantized(value: ir.Value) -> bool:
    """Whether QuantizeLinear is all that reads a value."""
    return not value.is_graph_output() and all(node.op_type == "QuantizeLinear" for node, _ in value.uses())


def use_explicit_zero_points(builder: Builder) -> int:
    """Add the zero points of 0 that weights of quantized products lack, in place.

    ONNX Runtime fuses a Gemm only if all its DequantizeLinear have one.

    Args:
        builder: The builder of the complete graph.

    Returns:
        The number of weights.
    """
    lacking = {product.weight: None for product in _products(builder) if len(product.weight.inputs) < 3}
    for node in lacking:
        codes, scale = node.inputs
        if codes is not None and scale is not None and codes.dtype is not None:
            shape = tuple(int(size) for size in builder.dims(scale))
            node.resize_inputs(3)
            node.replace_input_with(2, builder.constant(torch.zeros(shape, dtype=to_torch_dtype(codes.dtype))))
    return len(lacking)


# ---- biases


def use_integer_biases(builder: Builder) -> int:
    """Store the biases of quantized products as int32 with DequantizeLinear, in place, where no QuantizeLinear follows.

    The scale of a bias is the products', the scale of the activations times the weight's; the rounding
    error is at most half of it. A bias that does not fit, or whose values are not known yet, stays a float. So does one
    that is added to a MatMul with dynamic sizes, which ONNX Runtime does not make a Gemm.

    Args:
        builder: The builder of the complete graph.

    Returns:
        The number of biases.
    """
    count = 0
    for product in list(_products(builder)):
        reader, position = _bias_input(builder, product)
        bias = None if reader is None else reader.inputs[position]
        scale = product.activations.inputs[1]
        if reader is None or bias is None or scale is None or not is_stored(scale) or _is_quantized(reader.outputs[0]):
            continue
        integers = _integer_bias(builder, product, bias, scale)
        if integers is not None:
            dims = builder.dims(bias)
            inputs, attributes = integers, {} if not builder.dims(integers[1]) else {"axis": 0}
            dequantized = insert(builder, reader, "DequantizeLinear", inputs, attributes, FLOAT, dims)
            reader.replace_input_with(position, dequantized)
            count += 1
    return count


def _bias_input(builder: Builder, product: _Product) -> tuple[ir.Node | None, int]:
    """The node that adds the bias, and the position of the bias among its inputs."""
    node = product.node
    if node.op_type == "Gemm":
        return (node, 2) if len(node.inputs) > 2 else (None, 0)
    output = node.outputs[0]
    readers = list(output.uses())
    is_gemm = is_static(builder.dims(output))
    if not is_gemm or len(readers) != 1 or output.is_graph_output() or readers[0][0].op_type != "Add":
        return None, 0
    ((reader, position),) = readers
    return reader, 1 - position


def _integer_bias(builder: Builder, product: _Product, bias: ir.Value, scale: ir.Value) -> list[ir.Value] | None:
    """Return the integers of a bias and their scale."""
    weight_scale = product.weight.inputs[1]
    if weight_scale is None or not is_stored(bias) or bias.dtype != FLOAT or len(builder.dims(bias)) != 1:
        return None
    codes = product.weight.inputs[0]
    columns = None if codes is None else builder.dims(codes)[0 if product.is_transposed else 1]
    if builder.dims(bias) != (columns,):
        return None
    sources = [bias, scale, weight_scale]
    contents = [content for value in sources if (content := _content(value)) is not None]
    if len(contents) < len(sources) or not _fits(*contents):
        return None
    return [
        derive_stored(builder, sources, "int32", _rounded_bias),
        derive_stored(builder, sources[1:][::-1], "bias_scale", _scale_of_bias),
    ]


def _content(value: ir.Value) -> torch.Tensor | None:
    """The numbers of a stored value; None if they are not known yet."""
    array = array_of(value)
    if array is not None:
        return torch.from_numpy(array)
    tensor = value.const_value
    if not isinstance(tensor, (TorchTensor, DerivedTensor)):
        return None
    if not all(isinstance(one.raw, torch.Tensor) and has_content(one.raw) for one in sources_of(tensor)):
        return None
    return values_of(tensor)


def _scale_of_bias(weight_scale: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (weight_scale * scale.reshape(())).reshape(weight_scale.shape if weight_scale.numel() > 1 else ())


def _rounded_bias(bias: torch.Tensor, scale: torch.Tensor, weight_scale: torch.Tensor) -> torch.Tensor:
    if not bias.is_meta and not _fits(bias, scale, weight_scale):
        raise ValueError("a bias is too large for int32 in the scale of its layer")
    return _quotient(bias, scale, weight_scale).round().to(torch.int32)


def _quotient(bias: torch.Tensor, scale: torch.Tensor, weight_scale: torch.Tensor) -> torch.Tensor:
    return bias.double() / _scale_of_bias(weight_scale, scale).double()


def _fits(bias: torch.Tensor, scale: torch.Tensor, weight_scale: torch.Tensor) -> bool:
    # Also false for NaN.
    return bool((_quotient(bias, scale, weight_scale).abs() <= _LARGEST_BIAS).all())


# ---- products


def use_integer_products(builder: Builder) -> int:
    """Write products of activations with computed scales as MatMulInteger, in place.

    The sum of integers is exact; it is multiplied by both scales once.

    Args:
        builder: The builder of the complete graph.

    Returns:
        The number of products.
    """
    count = 0
    for product in list(_products(builder, in_subgraphs=True)):
        integers, scale = product.activations.inputs[:2]
        if integers is not None and integers.dtype == UINT8 and scale is not None and not is_stored(scale):
            _write_integer_product(builder, product)
            count += 1
    return count


def _write_integer_product(builder: Builder, product: _Product) -> None:
    node, dims = product.node, builder.dims(product.node.outputs[0])
    integers, scale, *zero_point = product.activations.inputs
    codes, weight_scale, *weight_zero_point = product.weight.inputs
    if integers is None or scale is None or codes is None or weight_scale is None:
        return
    if product.is_transposed:
        codes = derive_stored(builder, [codes], "transposed", torch.t)
    inputs = [integers, codes, *(zero_point or [None] * bool(weight_zero_point)), *weight_zero_point]
    sums = insert(builder, node, "MatMulInteger", inputs, {}, INT32, dims)
    numbers = insert(builder, node, "Cast", [sums], {"to": FLOAT}, FLOAT, dims)
    scale_dims = builder.dims(weight_scale) or builder.dims(scale)
    step = insert(builder, node, "Mul", [scale, weight_scale], {}, FLOAT, scale_dims)
    bias = node.inputs[2] if node.op_type == "Gemm" and len(node.inputs) > 2 else None
    node.attributes.clear()
    node.resize_inputs(2)
    if bias is None:
        node.op_type, operands = "Mul", (numbers, step)
    else:
        scaled = insert(builder, node, "Mul", [numbers, step], {}, FLOAT, dims)
        node.op_type, operands = "Add", (scaled, bias)
    for position, value in enumerate(operands):
        node.replace_input_with(position, value)


def write_quantized_form(builder: Builder, form: QuantizedForm) -> bool:
    """Rewrite quantized operators to the form that a target fuses, in place.

    Results are the same, but for the rounding of biases, which ``numerics="exact"`` disables.

    Args:
        builder: The builder of the complete graph.
        form: The form.

    Returns:
        Whether the graph has changed.
    """
    changed = False
    if UINT8 in form.activations and ir.DataType.INT8 not in form.activations:
        changed |= bool(use_unsigned_activations(builder))
    if form.explicit_zero_points:
        changed |= bool(use_explicit_zero_points(builder))
    if form.integer_products:
        changed |= bool(use_integer_products(builder))
        if not builder.exact_numerics:
            changed |= bool(use_integer_biases(builder))
    return changed
