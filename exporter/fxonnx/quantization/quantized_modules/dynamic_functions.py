"""Operators of torch's quantized library on float tensors: dynamic quantization, recurrent layers, embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .affine_tensor import AffineTensor, Parameters, choose_parameters, dequantize, quantize, unsupported
from .packed_parameters import PackedCell, PackedParameters, unpacked

__all__ = ["DYNAMIC_FUNCTIONS", "RECURRENT_FUNCTIONS", "convolve", "float_weight"]


def float_weight(packed: PackedParameters) -> Tensor:
    """The weight in float32."""
    weight = packed.weight()
    return dequantize(weight) if isinstance(weight, AffineTensor) else weight.float()


def convolve(x: Tensor, packed: PackedParameters, rank: int) -> Tensor:
    """Convolution in floating point.

    Args:
        x: The input.
        packed: Parameters, which for a convolution of rank 1 may be packed as for rank 2.
        rank: The number of spatial axes.
    """
    weight, geometry = float_weight(packed), packed.geometry
    if geometry is None:
        raise unsupported(f"torch.ops.quantized.conv{rank}d", "with the parameters of a linear layer")
    if weight.dim() > rank + 2:
        weight = weight.squeeze(2)
    stride, padding, output_padding, dilation = (
        list(sizes)[-rank:] for sizes in (geometry.stride, geometry.padding, geometry.output_padding, geometry.dilation)
    )
    convolution: Callable[..., Tensor]
    if geometry.transposed:
        convolution = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
        return convolution(x, weight, packed.bias(), stride, padding, output_padding, geometry.groups, dilation)
    convolution = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return convolution(x, weight, packed.bias(), stride, padding, dilation, geometry.groups)


# ---- dynamic quantization


def _parameters(x: Tensor, reduce_range: bool) -> Parameters:
    """Parameters for the range of the values; QNNPACK ignores ``reduce_range``."""
    reduced = reduce_range and torch.backends.quantized.engine != "qnnpack"
    return choose_parameters(x, torch.quint8, reduce_range=reduced)


def _rounded(x: Tensor, reduce_range: bool) -> Tensor:
    """Quantize to the range of the values, and dequantize."""
    return dequantize(quantize(x, _parameters(x, reduce_range)))


def _linear_map(x: Tensor, packed: PackedParameters, reduce_range: bool) -> Tensor:
    quantized = isinstance(packed.weight(), AffineTensor)
    return F.linear(_rounded(x, reduce_range) if quantized else x, float_weight(packed), packed.bias())


def _linear_dynamic(*, relu: bool = False) -> Callable[..., Tensor]:
    def call(X: Tensor, W_prepack: PackedParameters, reduce_range: bool = False) -> Tensor:
        result = _linear_map(X, W_prepack, reduce_range)
        return torch.relu(result) if relu else result

    return call


def _convolution_dynamic(rank: int) -> Callable[..., Tensor]:
    def call(qx: Tensor, packed_weight: PackedParameters, reduce_range: bool = False) -> Tensor:
        # torch quantizes the result with the parameters of the input, whatever its range.
        parameters = _parameters(qx, reduce_range)
        result = convolve(dequantize(quantize(qx, parameters)), packed_weight, rank)
        return dequantize(quantize(result, parameters))

    return call


# ---- embeddings


def _embedding(weight: PackedParameters, indices: Tensor, pruned_weights: bool = False) -> Tensor:
    return _rows(weight, indices)


def _rows(packed: PackedParameters, indices: Tensor) -> Tensor:
    """Rows of an embedding, dequantized after they are selected."""
    weight = packed.weight()
    if not isinstance(weight, AffineTensor):
        return F.embedding(indices, weight.float())
    scale, zero_point = weight.parameters.scale, weight.parameters.zero_point
    if not isinstance(scale, Tensor) or not isinstance(zero_point, Tensor):
        return dequantize(AffineTensor.of(F.embedding(indices, weight.integers), weight.parameters))
    step, zero = (parameter[indices].unsqueeze(-1).float() for parameter in (scale, zero_point))
    codes = weight.integers if packed.pairs is None else packed.pairs()
    rows = F.embedding(indices, codes)
    return ((rows if packed.pairs is None else unpacked(rows)).float() - zero) * step


def _embedding_bag(
    weight: PackedParameters,
    indices: Tensor,
    offsets: Tensor | None = None,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    pruned_weights: bool = False,
    per_sample_weights: Tensor | None = None,
    compressed_indices_mapping: Tensor | None = None,
    include_last_offset: bool = False,
) -> Tensor:
    if compressed_indices_mapping is not None and pruned_weights:
        raise unsupported("torch.ops.quantized.embedding_bag_byte", "with pruned weights")
    if offsets is None and indices.dim() == 2:
        rows = _rows(weight, indices)
        return (rows if per_sample_weights is None else rows * per_sample_weights.unsqueeze(-1)).sum(1)
    return F.embedding_bag(
        indices,
        float_weight(weight),
        offsets,
        mode="sum",
        per_sample_weights=per_sample_weights,
        include_last_offset=include_last_offset,
    )


# ---- recurrent layers

_UNROLLED = 8
"""The longest sequence whose steps are nodes of the graph; longer or dynamic ones become a loop."""

_Step = Callable[[Tensor, Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]
"""A cell: gates of the input, gates of the hidden state, and the states; returns the new states."""


def _lstm_step(inputs: Tensor, hidden: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    i, f, g, o = (hidden + inputs).chunk(4, -1)
    cell = torch.sigmoid(f) * states[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def _gru_step(inputs: Tensor, hidden: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (input_r, input_z, input_n), (hidden_r, hidden_z, hidden_n) = inputs.chunk(3, -1), hidden.chunk(3, -1)
    r, z = torch.sigmoid(hidden_r + input_r), torch.sigmoid(hidden_z + input_z)
    n = torch.tanh(input_n + hidden_n * r)
    return ((states[0] - n) * z + n,)


def _tanh_step(inputs: Tensor, hidden: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (torch.tanh(hidden + inputs),)


def _relu_step(inputs: Tensor, hidden: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (torch.relu(hidden + inputs),)


def _cell(step: _Step, *, several: bool = False) -> Callable[..., Any]:
    def call(input: Tensor, hx: Any, w_ih: PackedParameters, w_hh: PackedParameters, b_ih: Tensor, b_hh: Tensor) -> Any:
        # The biases are packed with the weights. torch always quantizes to 7 bits here.
        states = tuple(hx) if several else (hx,)
        results = step(_linear_map(input, w_ih, True), _linear_map(states[0], w_hh, True), states)
        return results if several else results[0]

    return call


def _layer(
    step: _Step, x: Tensor, states: tuple[Tensor, ...], cell: PackedCell, *, reverse: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One direction of one layer, over the first axis."""
    inputs = _linear_map(x, cell.input, cell.reduce_range)
    if not isinstance(x.shape[0], int) or x.shape[0] > _UNROLLED:
        return _scan(step, inputs.flip(0) if reverse else inputs, states, cell, reverse=reverse)
    outputs = []
    for gates in reversed(inputs.unbind(0)) if reverse else inputs.unbind(0):
        states = step(gates, _linear_map(states[0], cell.hidden, cell.reduce_range), states)
        outputs.append(states[0])
    return torch.stack(outputs[::-1] if reverse else outputs), states


def _scan(
    step: _Step, inputs: Tensor, states: tuple[Tensor, ...], cell: PackedCell, *, reverse: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One direction of one layer as ``scan``, whose body reads the dequantized weight as an operand."""
    weight, bias, count = float_weight(cell.hidden), cell.hidden.bias(), len(states)
    is_quantized = isinstance(cell.hidden.weight(), AffineTensor)

    def body(*args: Tensor) -> list[Tensor]:
        before, (gates, own, *offset) = args[:count], args[count:]
        rounded = _rounded(before[0], cell.reduce_range) if is_quantized else before[0]
        after = step(gates, F.linear(rounded, own, *offset), before)
        return [value.clone() for value in (*after, after[0])]

    first = [state.clone() for state in states]
    *last, outputs = torch.ops.higher_order.scan(body, first, [inputs], (weight, *([] if bias is None else [bias])))
    return outputs.flip(0) if reverse else outputs, tuple(last)


def _recurrent(
    step: _Step,
    x: Tensor,
    states: tuple[Tensor, ...],
    cells: Sequence[PackedCell],
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """All layers: the output and the last states."""
    directions = 2 if bidirectional else 1
    x = x.transpose(0, 1) if batch_first else x
    last: list[tuple[Tensor, ...]] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            first = tuple(state[index] for state in states)
            output, after = _layer(step, x, first, cells[index], reverse=direction == 1)
            outputs.append(output)
            last.append(after)
        x = torch.cat(outputs, -1)
        if layer < num_layers - 1:
            x = F.dropout(x, dropout, train)
    x = x.transpose(0, 1) if batch_first else x
    return x, *(torch.stack(list(state)) for state in zip(*last, strict=True))


def _quantized_recurrent(step: _Step) -> Callable[..., tuple[Tensor, ...]]:
    def call(
        input: Tensor,
        hx: Tensor | Sequence[Tensor],
        params: Sequence[PackedCell],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]:
        states = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        return _recurrent(step, input, states, params, num_layers, dropout, train, bidirectional, batch_first)

    return call


DYNAMIC_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "linear_dynamic": _linear_dynamic(),
    "linear_relu_dynamic": _linear_dynamic(relu=True),
    "linear_dynamic_fp16": _linear_dynamic(),
    "linear_relu_dynamic_fp16": _linear_dynamic(relu=True),
    **{f"conv{rank}d_dynamic": _convolution_dynamic(rank) for rank in (1, 2, 3)},
    **{f"conv_transpose{rank}d_dynamic": _convolution_dynamic(rank) for rank in (1, 2, 3)},
    "embedding_byte": _embedding,
    "embedding_4bit": _embedding,
    "embedding_bag_byte": _embedding_bag,
    "embedding_bag_4bit": _embedding_bag,
    "quantized_lstm_cell_dynamic": _cell(_lstm_step, several=True),
    "quantized_gru_cell_dynamic": _cell(_gru_step),
    "quantized_rnn_tanh_cell_dynamic": _cell(_tanh_step),
    "quantized_rnn_relu_cell_dynamic": _cell(_relu_step),
}
"""Operators of ``torch.ops.quantized`` by name, with the arguments of their schemas."""

RECURRENT_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "quantized_lstm": _quantized_recurrent(_lstm_step),
    "quantized_gru": _quantized_recurrent(_gru_step),
}
"""Operators of ``torch.ops.aten``."""
