"""Packed and padded sequences: recurrent layers, and the padded rows of ``nn.TransformerEncoder``.

Packing and unpacking become operators with unbacked sizes. Unpacking also requires the batch size, which torch reads
from the first element of ``batch_sizes``: the replacements record it on that tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from fxonnx_translations._torch_compat import arange, check

from ..._own_operators import define_operator
from ..._warnings import warn_user
from ..constraints.guard_recorder import user_line
from ..suspicions.departures import DepartureKind, record_departure
from .patch import KernelPatch, Patch

__all__ = ["SEQUENCE_PATCHES", "recorded_batch_size"]

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
    result: tuple[Tensor, Tensor] = torch.ops.aten._pad_packed_sequence(
        data, batch_sizes, batch_first, padding_value, total_length
    )
    return result


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


def _pack_padded_sequence(
    original: Callable[..., Any], input: Tensor, lengths: Tensor, batch_first: bool
) -> tuple[Tensor, Tensor]:
    """``_VF._pack_padded_sequence`` as an operator with unbacked sizes."""
    data, batch_sizes = torch.ops.fxonnx.pack_padded_sequence(input, lengths, batch_first)
    record_batch_size(batch_sizes, input.shape[0 if batch_first else 1])
    return data, batch_sizes


def _pad_packed_sequence(
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


def _sequence_arguments(
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


# Stack traces of captured nodes begin at functions of this name.
def forward(original: Callable[..., Any], self: nn.RNNBase, input: Any, hx: Any = None) -> Any:
    """``forward`` of ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN``, which creates states of a size read from a tensor."""
    if not isinstance(input, PackedSequence):
        return original(self, input, hx)
    data, batch_sizes, *indices = input
    if hx is not None:
        _batch_size(batch_sizes, (hx if isinstance(hx, Tensor) else hx[0]).shape[1])
        return original(self, input, hx)
    kinds = (False, True) if isinstance(self, nn.LSTM) else (False,)
    states = tuple(data.new_zeros(_expected_size(is_cell, original, self, data, batch_sizes)) for is_cell in kinds)
    # Without indices, so that the states of zero are not permuted.
    output, last = original(self, PackedSequence(data, batch_sizes), states if len(states) == 2 else states[0])
    return PackedSequence(output.data, batch_sizes, *indices), self.permute_hidden(last, indices[1])


def _expected_size(
    is_cell: bool,
    original: Callable[..., tuple[Size, Size, Size]],
    self: nn.RNNBase,
    input: Tensor,
    batch_sizes: Tensor | None,
) -> tuple[Size, Size, Size]:
    """The size of a hidden or a cell state, for which torch converts a tensor to an int."""
    if batch_sizes is None:
        return original(self, input, batch_sizes)
    count = self.num_layers * (2 if self.bidirectional else 1)
    return count, _batch_size(batch_sizes), (0 if is_cell else self.proj_size) or self.hidden_size


def _batch_size(batch_sizes: Tensor, known: Size | None = None) -> Any:
    """Return the batch size of a packed sequence, and record it for a packed input of the model."""
    found: Any = recorded_batch_size(batch_sizes)
    if found is None:
        found = batch_sizes[0].item() if known is None else known
        record_batch_size(batch_sizes, found)
    return found


_WITH_GRADIENTS = (
    "within torch.no_grad(), nn.TransformerEncoder sets the rows that src_key_padding_mask hides to zero; the model is "
    "exported with gradients, where these rows have other values"
)
_HINT = "\nhint: export within torch.no_grad() for zeros; or pass enable_nested_tensor=False to nn.TransformerEncoder"


def _encode(
    original: Callable[..., Tensor],
    self: nn.TransformerEncoder,
    src: Tensor,
    mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool | None = None,
) -> Tensor:
    if src_key_padding_mask is None or mask is not None or not _may_use_nested_tensors(self, src):
        return original(self, src, mask, src_key_padding_mask, is_causal)
    if _needs_gradients(self, src):
        line = user_line(sys._getframe())
        warn_user(_WITH_GRADIENTS + ("" if line is None else f"\n  at: {line}") + _HINT)
        return original(self, src, mask, src_key_padding_mask, is_causal)
    record_departure(DepartureKind.REPLACED, "torch.nn.TransformerEncoder.forward")
    hidden = src_key_padding_mask.logical_not().logical_not()
    if not getattr(self, "mask_check", True):
        # Then it takes as many rows from the beginning as are not hidden.
        hidden = arange(hidden.shape[1], device=hidden.device) >= hidden.logical_not().sum(1, keepdim=True)
        src_key_padding_mask = hidden
    output = original(self, src, mask, src_key_padding_mask, is_causal)
    # Only if each mask hides the end of its sequence: no row follows a hidden one.
    hidden = hidden & ~(hidden[:, :-1] & ~hidden[:, 1:]).any()
    padding = torch.zeros_like(output[:1, :1])
    if self.norm is not None:
        padding = self.norm(padding)
    return torch.where(hidden[..., None], padding, output)


def _may_use_nested_tensors(encoder: nn.TransformerEncoder, src: Tensor) -> bool:
    """Whether eager torch makes a nested tensor of an input with a mask, if it computes no gradients."""
    first: Any = encoder.layers[0]
    return (
        torch.backends.mha.get_fastpath_enabled()
        and bool(getattr(encoder, "use_nested_tensor", False))
        and not first.training
        and src.dim() == 3
        and not torch.is_autocast_enabled()
    )


def _needs_gradients(encoder: nn.TransformerEncoder, src: Tensor) -> bool:
    """Whether eager torch computes gradients, and no nested tensor then."""
    first: Any = encoder.layers[0]
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (src, *first.parameters()))


def _recurrent(
    original: Callable[..., Any],
    input: Tensor,
    hx: Any,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """``aten::lstm.input`` and its relatives: the output sequence, and the state, or the two states of LSTM."""
    states = [hx] if isinstance(hx, Tensor) else hx
    batch, count = input.size(0 if batch_first else 1), states[0].size(1)
    # A check instead of a comparison: equal unbacked sizes become one dim of the exported model.
    check(count == batch, lambda: f"the hidden state is for {count} sequences, the input has {batch}")
    sizes = (input.size(1), batch) if batch_first else input.shape[:-1]
    output = _output(input, sizes, states[0], bidirectional)
    # torch computes by time, and as_strided depends on the memory layout.
    return output.transpose(0, 1) if batch_first else output, *map(_empty_like, states)


def _packed_recurrent(
    original: Callable[..., Any],
    data: Tensor,
    batch_sizes: Tensor,
    hx: Any,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Tensor, ...]:
    """``aten::lstm.data`` and its relatives: the packed output, and the state, or the two states of LSTM."""
    states = [hx] if isinstance(hx, Tensor) else hx
    return _output(data, data.shape[:1], states[0], bidirectional), *map(_empty_like, states)


def _output(input: Tensor, sizes: Sequence[Any], hidden: Tensor, bidirectional: bool) -> Tensor:
    return input.new_empty([*sizes, hidden.size(2) * (2 if bidirectional else 1)])


def _empty_like(state: Tensor) -> Tensor:
    return state.new_empty(state.shape)


SEQUENCE_PATCHES: tuple[Patch, ...] = (
    *(
        KernelPatch(f"aten::{layer}.{form}", kernel, why)
        for form, kernel, why in (
            ("input", _recurrent, "its decomposition unrolls the time steps, which specializes the sequence length"),
            ("data", _packed_recurrent, "its kernel reads the batch size of every time step"),
        )
        for layer in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    ),
    *(
        Patch(f"torch.{target}", replacement, why, strict=False)
        for target, replacement, why in (
            *(
                (f"_VF:_{name}", replacement, "the sizes of its results depend on the lengths")
                for name, replacement in (
                    ("pack_padded_sequence", _pack_padded_sequence),
                    ("pad_packed_sequence", _pad_packed_sequence),
                )
            ),
            (
                "nn.utils.rnn:_packed_sequence_init_args",
                _sequence_arguments,
                "torch.export replaces the tensors of a packed sequence by the specs of their dims",
            ),
            *(
                (f"nn.modules.rnn:{name}", replacement, "it reads the batch size of a packed sequence from a tensor")
                for name, replacement in (
                    ("RNN.forward", forward),
                    ("LSTM.forward", forward),
                    ("GRU.forward", forward),
                    ("RNNBase.get_expected_hidden_size", partial(_expected_size, False)),
                    ("LSTM.get_expected_cell_size", partial(_expected_size, True)),
                )
            ),
            (
                "nn.modules.transformer:TransformerEncoder.forward",
                _encode,
                "without gradients, eager torch sets the rows that the mask hides to zero, and torch.export does not",
            ),
        )
    ),
)
"""Applied during captures."""
