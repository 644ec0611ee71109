"""Static quantization: QuantizeLinear and DequantizeLinear around convolutions and linear layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import onnx_ir as ir
import torch

from fxonnx_translations._builder.builder import Builder
from fxonnx_translations._builder.dtypes import FLOAT
from fxonnx_translations._builder.initializers import DerivedTensor, TorchTensor

from .._capture import Capture
from .._program.assumption_checks import check_assumptions
from .._program.call_binding import bind_call
from .._program.session import Session
from .._quantize_config import QuantizeConfig
from .._targets import TargetProfile
from ..errors import ArgumentError, ExportError, RuntimeSessionError, SaveError
from .channel_weights import ChannelWeight
from .insertion import insert
from .rewrite import WeightQuantizer
from .weights import Weight

__all__ = ["Range", "RangesOf", "StaticQuantizer", "ranges_of"]

Range: TypeAlias = tuple[float, float]
"""The least and the largest element of a value."""
RangesOf: TypeAlias = Callable[[Sequence[str]], Mapping[str, Range]]
"""Returns the ranges of values, by name, over all batches of the calibration."""

_UINT8, _INT8 = ir.DataType.UINT8, ir.DataType.INT8
_ACTIVATIONS = frozenset({"Relu", "Clip"})
"""Operators after a convolution or sum that runtimes compute together with it: only their result is rounded."""
_REARRANGING = frozenset(
    {"Flatten", "MaxPool", "Reshape", "Resize", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators whose results have the scale of their first input."""
_RESCALING = frozenset({"Add", "AveragePool", "Concat", "GlobalAveragePool", "Mul"})
"""Operators with integer kernels between scales."""
_LOOKED_UP = frozenset({"LeakyRelu", "Sigmoid"})
"""Operators that ONNX Runtime computes with tables of 256 numbers."""


@dataclass(frozen=True)
class _Parameters:
    """Scale and zero point of a value."""

    scale: float
    zero_point: int


class StaticQuantizer(WeightQuantizer):
    """Insert pairs of QuantizeLinear and DequantizeLinear with the scales of a calibration.

    Inputs of convolutions and linear layers are rounded, and outputs of convolutions, after an activation that follows.
    Sums, products, concatenations, poolings and rearrangements between them, and for ONNX Runtime sigmoids, are rounded
    if all of their inputs are, so that they compute with integers. All others, such as norms, softmax and the masks of
    attention, products of two activations, recurrent layers and the bodies of loops and branches, compute with
    floating-point numbers: linear layers return them.

    Args:
        builder: The builder of the complete graph.
        config: Which layers to quantize.
        parameter_names: Names of the parameters by storage.
        profile: The target. One that fuses only uint8 gets zero points, others symmetric int8. Linear layers have int32
            biases, unless ONNX Runtime's CPU execution provider does not run the graph.
        ranges_of: The calibration.
    """

    def __init__(
        self,
        builder: Builder,
        config: QuantizeConfig,
        parameter_names: Mapping[Any, tuple[str, ...]],
        profile: TargetProfile,
        ranges_of: RangesOf,
    ) -> None:
        super().__init__(builder, config, parameter_names, profile)
        form = profile.quantized_form
        takes_int8 = form is None or _INT8 in form.activations
        self.dtype = _INT8 if takes_int8 else _UINT8
        self.joining = _REARRANGING | _RESCALING | (frozenset() if takes_int8 else _LOOKED_UP)
        self.has_integer_biases = profile.falls_back_to_cpu
        self.ranges_of = ranges_of
        self.weights: dict[ir.Node, Weight] = {}
        self.joined: dict[ir.Node, None] = {}
        self.rounded: dict[ir.Value, None] = {}
        self.origins: dict[ir.Value, ir.Value] = {}
        self.parameters: dict[ir.Value, _Parameters] = {}

    def run(self) -> None:
        """Rewrite the graph.

        Raises:
            ArgumentError: If a pattern matches no weight, or the calibration fails.
        """
        super().run()
        if not self.weights:
            return
        produced = self._plan()
        roots = list(dict.fromkeys(self._origin(value) for value in self.rounded))
        ranges = self.ranges_of([str(value.name) for value in roots])
        self.parameters = {value: self._parameters_of(ranges[str(value.name)]) for value in roots}
        for node in [node for node in self.graph if node in self.weights]:
            self._quantize_layer(node, self.weights[node])
        for value in self.rounded:
            self._round(value, is_produced=value in produced)

    # ---- layers

    def _weight_of_convolution(self, node: ir.Node) -> Weight | None:
        if node.domain or node.op_type != "Conv" or node.graph is not self.graph:
            return None
        activations, value = node.inputs[:2]
        if value is None or value in self.graph.inputs or not _is_computed(activations):
            return None
        tensor: Any = value.const_value
        if not isinstance(tensor, (TorchTensor, DerivedTensor)) or tensor.dtype != FLOAT:
            return None
        names = self._names_of_kernel(tensor)
        outputs, *inputs = (int(size) for size in tensor.shape.numpy())
        return Weight(tensor, False, names, outputs, torch.Size(inputs).numel()) if names and outputs else None

    def _quantize_convolution(self, node: ir.Node, weight: Weight) -> None:
        self.weights[node] = weight

    def _quantize_product(self, node: ir.Node, weight: Weight, choice: str) -> None:
        activations, value = node.inputs[:2]
        if value is not None and value.dtype == FLOAT and _is_computed(activations):
            self.weights[node] = weight

    # ---- values

    def _plan(self) -> set[ir.Value]:
        """Select the values to round and the operators that compute with them; return those that become integers."""
        inputs = dict.fromkeys(value for node in self.weights if (value := node.inputs[0]) is not None)
        needed = set(inputs)
        for node in reversed(self.graph):
            if self._joins(node) and any(output in needed or self._end(output) in needed for output in node.outputs):
                needed.update(_operands(node))
        self.rounded = dict(inputs)
        produced = {self._end(node.outputs[0]) for node in self.weights if node.op_type == "Conv"}
        self.rounded.update(dict.fromkeys(produced))
        for node in self.graph:
            operands = _operands(node) if self._joins(node) else []
            if not operands or any(value not in self.rounded or value.dtype != FLOAT for value in operands):
                continue
            rearranges = node.op_type in _REARRANGING
            ends = [output if rearranges else self._end(output) for output in node.outputs]
            if needed.isdisjoint(ends):
                continue
            self.joined[node] = None
            self.rounded.update(dict.fromkeys(ends))
            produced.update(ends)
            if rearranges:
                self.origins.update(dict.fromkeys(ends, operands[0]))
        # In the order of the graph: names of the nodes and the first value that is not finite depend on it.
        values = (*self.graph.inputs, *(output for node in self.graph for output in node.outputs))
        self.rounded = dict.fromkeys(value for value in values if value in self.rounded)
        return produced

    def _joins(self, node: ir.Node) -> bool:
        return not node.domain and node.op_type in self.joining

    def _end(self, value: ir.Value) -> ir.Value:
        """The result of the activation that is the only use of a value, or the value itself."""
        uses = value.uses()
        if len(uses) != 1 or value.is_graph_output():
            return value
        (use,) = uses
        is_fused = use.node.op_type in _ACTIVATIONS and use.idx == 0 and use.node.graph is self.graph
        return use.node.outputs[0] if is_fused else value

    def _origin(self, value: ir.Value) -> ir.Value:
        while value in self.origins:
            value = self.origins[value]
        return value

    def _parameters_of(self, extremes: Range) -> _Parameters:
        low, high = min(extremes[0], 0.0), max(extremes[1], 0.0)
        steps = 255 if self.dtype == _UINT8 else 127
        exact = (high - low if self.dtype == _UINT8 else max(high, -low)) / steps
        scale = float(torch.tensor(exact, dtype=torch.float32))
        if scale < torch.finfo(torch.float32).tiny:
            scale = 1.0
        return _Parameters(scale, round(-low / scale) if self.dtype == _UINT8 else 0)

    # ---- rewriting

    def _quantize_layer(self, node: ir.Node, weight: Weight) -> None:
        """Replace the weight of a layer, and the bias that becomes an int32 tensor."""
        value, data = node.inputs[1], node.inputs[0]
        if value is None or data is None:
            return
        is_matrix = node.op_type != "Conv"
        scale = self.parameters[self._origin(data)].scale
        read = self._bias_of(node)
        bias = self._stored_bias(read, weight.out_features)
        channels = ChannelWeight(
            weight.tensor, is_transposed=weight.is_transposed, is_matrix=is_matrix, bias=bias, input_scale=scale
        )
        codes, scales = self._channel_parts(weight, channels, key=(str(bias.name), scale) if bias is not None else ())
        points = self.builder.constant(torch.zeros(weight.out_features, dtype=torch.int8))
        self._record(node, [weight], (codes, scales), 8)
        axis = {"axis": 1 if is_matrix else 0}
        dequantized = self._insert(node, "DequantizeLinear", [codes, scales, points], axis, FLOAT, codes.shape)
        node.replace_input_with(1, dequantized)
        node.attributes.pop("transB", None)
        if bias is None or read is None:
            return
        parts = [
            self._registered(channels.bias_codes(self.builder.names.unique(f"{bias.name}::int32")), "int32"),
            self._registered(channels.bias_scales(self.builder.names.unique(f"{bias.name}::scales")), "scales"),
        ]
        summed = self._insert(node, "DequantizeLinear", parts, {"axis": 0}, FLOAT, (weight.out_features,))
        read[0].replace_input_with(read[1], summed)

    def _bias_of(self, node: ir.Node) -> tuple[ir.Node, int] | None:
        """The node and the position where the bias of a linear layer is read, if it becomes an int32 tensor.

        ONNX Runtime fuses MatMul and Add to Gemm, and computes Gemm with integers only if the bias is one as well. It
        replaces the bias itself where QuantizeLinear follows, as after convolutions.
        """
        if not self.has_integer_biases or node.op_type == "Conv":
            return None
        if node.op_type == "Gemm":
            return (node, 2) if len(node.inputs) > 2 else None
        uses = node.outputs[0].uses()
        if len(uses) != 1 or node.outputs[0].is_graph_output():
            return None
        (use,) = uses
        return (use.node, 1 - use.idx) if use.node.op_type == "Add" and not use.node.domain else None

    def _stored_bias(self, read: tuple[ir.Node, int] | None, count: int) -> TorchTensor | DerivedTensor | None:
        """The weight that a bias is, with one element for each output; None for other values."""
        value = None if read is None else read[0].inputs[read[1]]
        if value is None or value in self.graph.inputs or value.dtype != FLOAT:
            return None
        tensor: Any = value.const_value
        is_stored = isinstance(tensor, (TorchTensor, DerivedTensor))
        return tensor if is_stored and tuple(tensor.shape.numpy()) == (count,) else None

    def _round(self, value: ir.Value, *, is_produced: bool) -> None:
        """Insert a pair of QuantizeLinear and DequantizeLinear after a value."""
        uses = [use for use in value.uses() if is_produced or use.node in self.joined or self._is_input(use)]
        parameters = self.parameters[self._origin(value)]
        dtype = torch.uint8 if self.dtype == _UINT8 else torch.int8
        scale = self.builder.constant(torch.tensor(parameters.scale, dtype=torch.float32))
        point = self.builder.constant(torch.tensor(parameters.zero_point, dtype=dtype))
        dims = self.builder.dims(value)
        inputs = (scale, point)
        integers = insert(self.builder, value, "QuantizeLinear", [value, *inputs], {}, self.dtype, dims)
        result = insert(self.builder, integers, "DequantizeLinear", [integers, *inputs], {}, FLOAT, dims)
        if value.producer() is None and uses:
            # An input of the model belongs to the first layer that reads it.
            for node in (integers.producer(), result.producer()):
                if node is not None:
                    node.metadata_props.update(uses[0].node.metadata_props)
                    node.meta.update(uses[0].node.meta)
        for use in uses:
            use.node.replace_input_with(use.idx, result)
        if is_produced and value.is_graph_output():
            # The graph output keeps its name.
            value.name, result.name = result.name, value.name
            for index, output in enumerate(self.graph.outputs):
                if output is value:
                    self.graph.outputs[index] = result

    def _is_input(self, use: Any) -> bool:
        return use.node in self.weights and use.idx == 0


def _is_computed(value: ir.Value | None) -> bool:
    """Whether a value depends on the inputs of the model, in float32."""
    return value is not None and value.dtype == FLOAT and value.const_value is None


def _operands(node: ir.Node) -> list[ir.Value]:
    """The inputs of an operator that are rounded with its result."""
    count = 1 if node.op_type in _REARRANGING or node.op_type.endswith("Pool") else len(node.inputs)
    return [value for value in node.inputs[:count] if value is not None]


# ---- calibration


_STATISTICS = ("ReduceMin", "ReduceMax", "ReduceSum")


def ranges_of(model: ir.Model, names: Sequence[str], capture: Capture, batches: Iterable[Any]) -> dict[str, Range]:
    """Run a model in ONNX Runtime on all batches, one at a time, and return the ranges of values.

    Args:
        model: The model before the quantization; its graph is changed.
        names: Names of values of the main graph.
        capture: The capture, which the arguments of a batch are bound to.
        batches: The batches; see ``QuantizeConfig.calibration``.

    Raises:
        ArgumentError: If it yields no batches, or one does not fit the model or causes values that are not finite.
    """
    _return_statistics(model, names)
    try:
        session = Session(model)
    except (RuntimeSessionError, SaveError) as error:
        raise ArgumentError("quantize", f"calibration: the model cannot be run: {error}") from error
    found: dict[str, Range] = {}
    try:
        for index, batch in enumerate(batches):
            inputs = _inputs(capture, batch, index)
            try:
                lows, highs, sums = _thirds(session.run(inputs))
            except (ArgumentError, RuntimeSessionError) as error:
                raise _misfit(index, error) from error
            for name, low, high, total in zip(names, lows, highs, sums, strict=True):
                if not all(map(math.isfinite, (low, high, total))):
                    raise ArgumentError(
                        "quantize",
                        f"calibration: batch {index} makes {name!r} infinite or not a number",
                        hint="check the batch, or exclude the layers that read or compute it",
                    )
                before = found.get(name, (low, high))
                found[name] = min(before[0], low), max(before[1], high)
    finally:
        session.close()
    if not found:
        raise ArgumentError(
            "quantize",
            "calibration: it yields no batches",
            hint="an iterator that was used before is exhausted; pass a list or a DataLoader",
        )
    return found


def _return_statistics(model: ir.Model, names: Sequence[str]) -> None:
    """Replace the outputs of a model by the least, the largest and the sum of the elements of values."""
    graph = model.graph
    values = {str(value.name): value for value in graph.inputs}
    values.update({str(value.name): value for node in graph for value in node.outputs})
    # The sum is not finite if an element is not; the least and the largest may ignore NaN.
    nodes = [ir.node(op_type, [values[name]], {"keepdims": 0}) for op_type in _STATISTICS for name in names]
    for index, node in enumerate(nodes):
        node.outputs[0].name = f"fxonnx_statistic_{index}"
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    graph.extend(nodes)
    graph.outputs[:] = [node.outputs[0] for node in nodes]


def _thirds(statistics: Sequence[Any]) -> tuple[list[float], list[float], list[float]]:
    numbers = [float(value) for value in statistics]
    count = len(numbers) // 3
    return numbers[:count], numbers[count : 2 * count], numbers[2 * count :]


def _inputs(capture: Capture, batch: Any, index: int) -> tuple[Any, ...]:
    """Bind a batch to the inputs of the graph."""
    args, kwargs = _arguments(batch, capture)
    forward = None if capture.source is None else capture.source.forward
    try:
        call = bind_call(capture.exported_program, args, kwargs, forward, capture.inputs.frozen, capture.inputs.lists)
        capture.limits.check(call.inputs)
        check_assumptions(capture, call.inputs, {})
    except ArgumentError as error:
        raise _misfit(index, error) from error
    return call.inputs


def _arguments(batch: Any, capture: Capture) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Positional and keyword arguments of a batch; the label of a pair is omitted."""
    if isinstance(batch, Mapping):
        return (), batch
    if not isinstance(batch, (tuple, list)):
        return (batch,), {}
    specs = [spec for part in capture.exported_program.call_spec.in_spec.children() for spec in part.children()]
    is_nested = isinstance(batch[0], (tuple, list, Mapping)) if batch else False
    if len(batch) != 2 or (len(specs) == 2 and not (is_nested and specs[0].is_leaf())):
        return tuple(batch), {}
    if isinstance(batch[0], Mapping):
        return (), batch[0]
    return tuple(batch[0]) if is_nested else (batch[0],), {}


def _misfit(index: int, error: ExportError) -> ArgumentError:
    hint = (
        "a batch is a tensor, a tuple of arguments, a dict of keyword arguments, or a pair of one of these and a label"
    )
    return ArgumentError(
        "quantize", f"calibration: batch {index} does not fit the model: {error.message}", hint=error.hint or hint
    )
