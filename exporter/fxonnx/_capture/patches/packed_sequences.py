"""Replacements of the functions of packed sequences, whose sizes depend on the values of the lengths.

Packing and unpacking become operators with unbacked sizes. Unpacking also requires the batch size, which torch reads
from the first element of ``batch_sizes``: the replacements record it on that tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from fxonnx_translations._torch_compat import check

from ..._own_operators import define_operator

__all__ = [
    "Size",
    "expected_cell_size",
    "expected_hidden_size",
    "forward",
    "lstm",
    "pack_padded_sequence",
    "pad_packed_sequence",
    "record_batch_size",
    "recorded_batch_size",
    "rnn",
    "sequence_arguments",
]

Size = int | torch.SymInt

_ATTRIBUTE = "_fxonnx_batch_size"


def record_batch_size(batch_sizes: torch.Tensor, size: Size) -> None:
    """Record the batch size on a traced tensor of batch sizes."""
    setattr(batch_sizes, _ATTRIBUTE, size)


def recorded_batch_size(batch_sizes: torch.Tensor) -> Size | None:
    """The recorded batch size, or None if the tensor is not known to be one of batch sizes."""
    return getattr(batch_sizes, _ATTRIBUTE, None)


def _fake_pack(input: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    context = torch.library.get_ctx()
    time, batch = (input.shape[axis] for axis in ((1, 0) if batch_first else (0, 1)))
    check(lengths.dim() == 1, lambda: f"lengths must have one axis, not {lengths.dim()}")
    check(lengths.shape[0] == batch, lambda: f"{lengths.shape[0]} lengths for {batch} sequences")
    # torch raises if a length is 0.
    total, longest = context.new_dynamic_size(min=1), context.new_dynamic_size(min=1)
    check(longest <= time)
    return input.new_empty([total, *input.shape[2:]]), lengths.new_empty([longest], dtype=torch.int64)


def _fake_pad(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: Size, batch: Size
) -> tuple[Tensor, Tensor]:
    sizes = [batch, total_length] if batch_first else [total_length, batch]
    return data.new_empty([*sizes, *data.shape[1:]]), batch_sizes.new_empty([batch])


def _pad(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int, batch: int
) -> tuple[Tensor, Tensor]:
    padded, lengths = torch.ops.aten._pad_packed_sequence(data, batch_sizes, batch_first, padding_value, total_length)
    return padded, lengths


_OPERATORS = (
    define_operator(
        "fxonnx::pack_padded_sequence(Tensor input, Tensor lengths, bool batch_first) -> (Tensor, Tensor)",
        torch.ops.aten._pack_padded_sequence,
        _fake_pack,
    ),
    define_operator(
        "fxonnx::pad_packed_sequence(Tensor data, Tensor batch_sizes, bool batch_first, Scalar padding_value, "
        "SymInt total_length, SymInt batch) -> (Tensor, Tensor)",
        _pad,
        _fake_pad,
    ),
)


def pack_padded_sequence(
    original: Callable[..., Any], input: Tensor, lengths: Tensor, batch_first: bool
) -> tuple[Tensor, Tensor]:
    """``_VF._pack_padded_sequence`` as an operator with unbacked sizes."""
    data, batch_sizes = torch.ops.fxonnx.pack_padded_sequence(input, lengths, batch_first)
    record_batch_size(batch_sizes, input.shape[0 if batch_first else 1])
    return data, batch_sizes


def pad_packed_sequence(
    original: Callable[..., Any],
    data: Tensor,
    batch_sizes: Tensor,
    batch_first: bool,
    padding_value: float,
    total_length: Size,
) -> tuple[Tensor, Tensor]:
    """``_VF._pad_packed_sequence`` as an operator with a known batch size and a dynamic total length."""
    batch = _batch_size(batch_sizes)
    padded, lengths = torch.ops.fxonnx.pad_packed_sequence(
        data, batch_sizes, batch_first, padding_value, total_length, batch
    )
    return padded, lengths


def sequence_arguments(
    original: Callable[..., Any],
    data: Any,
    batch_sizes: Any = None,
    sorted_indices: Any = None,
    unsorted_indices: Any = None,
) -> Any:
    """Arguments of ``PackedSequence``, which torch.export also creates with specs of dims in place of tensors."""
    if isinstance(data, (Tensor, list, tuple)):
        return original(data, batch_sizes, sorted_indices, unsorted_indices)
    return data, batch_sizes, sorted_indices, unsorted_indices


def forward(original: Callable[..., Any], self: nn.RNNBase, input: Any, hx: Any = None) -> Any:
    """``forward`` of ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN``, which creates states of a size read from a tensor."""
    if not isinstance(input, PackedSequence):
        return original(self, input, hx)
    data, batch_sizes, *indices = input
    if hx is not None:
        _batch_size(batch_sizes, (hx if isinstance(hx, Tensor) else hx[0]).shape[1])
        return original(self, input, hx)
    sizes = [expected_hidden_size(original, self, data, batch_sizes)]
    if isinstance(self, nn.LSTM):
        sizes.append(expected_cell_size(original, self, data, batch_sizes))
    states = tuple(data.new_zeros(size) for size in sizes)
    # Without indices, so that the states of zero are not permuted.
    output, last = original(self, PackedSequence(data, batch_sizes), states if len(states) == 2 else states[0])
    return PackedSequence(output.data, batch_sizes, *indices), self.permute_hidden(last, indices[1])


def expected_hidden_size(
    original: Callable[..., tuple[Size, Size, Size]], self: nn.RNNBase, input: Tensor, batch_sizes: Tensor | None
) -> tuple[Size, Size, Size]:
    """``RNNBase.get_expected_hidden_size``, which converts a tensor to an int."""
    if batch_sizes is None:
        return original(self, input, batch_sizes)
    return _count(self), _batch_size(batch_sizes), self.proj_size or self.hidden_size


def expected_cell_size(
    original: Callable[..., tuple[Size, Size, Size]], self: nn.LSTM, input: Tensor, batch_sizes: Tensor | None
) -> tuple[Size, Size, Size]:
    """``LSTM.get_expected_cell_size``, which converts a tensor to an int."""
    if batch_sizes is None:
        return original(self, input, batch_sizes)
    return _count(self), _batch_size(batch_sizes), self.hidden_size


def _count(layer: nn.RNNBase) -> int:
    return layer.num_layers * (2 if layer.bidirectional else 1)


def _batch_size(batch_sizes: Tensor, known: Size | None = None) -> Any:
    """Return the batch size of a packed sequence, and record it for a packed input of the model."""
    found: Any = recorded_batch_size(batch_sizes)
    if found is None:
        found = batch_sizes[0].item() if known is None else known
        record_batch_size(batch_sizes, found)
    return found


def lstm(
    original: Callable[..., Any],
    data: Tensor,
    batch_sizes: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Shape-only kernel of ``aten::lstm.data``: the packed output, the hidden state and the cell state."""
    return _packed_output(data, hx[0], bidirectional), _empty_like(hx[0]), _empty_like(hx[1])


def rnn(
    original: Callable[..., Any],
    data: Tensor,
    batch_sizes: Tensor,
    hx: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Tensor, Tensor]:
    """Shape-only kernel of ``aten::gru.data``, ``rnn_tanh.data`` and ``rnn_relu.data``: packed output and state."""
    return _packed_output(data, hx, bidirectional), _empty_like(hx)


def _packed_output(data: Tensor, hidden: Tensor, bidirectional: bool) -> Tensor:
    return data.new_empty([data.shape[0], hidden.shape[2] * (2 if bidirectional else 1)])


def _empty_like(state: Tensor) -> Tensor:
    return state.new_empty(state.shape)
