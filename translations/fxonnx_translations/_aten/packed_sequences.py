"""Packed sequences: packing, unpacking and recurrent layers over them.

A packed sequence has a padded form, which the ONNX operators take together with the lengths. Each translation records the
padded form of its packed result, so that the packed one is computed only where the model uses it otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from .._builder.op import Op
from .._builder.symbolic_dims import Dim
from .._registry import Translation, translates
from .recurrent import CELL_TYPES, CellType, recurrent

_LENGTHS_KEY = "fxonnx.sequence_lengths"
_PADDED_KEY = "fxonnx.padded_sequence"


@dataclass(frozen=True, eq=False)
class _Lengths:
    """The lengths of the sequences of a batch.

    Attributes:
        lengths: Shape (batch), INT64.
        time: The number of steps of padded forms: at least the greatest length.
        mask: Shape (time, batch): whether a step is within the length.
        positions: Step and sequence of each packed element: shape (elements, 2).
        longest: The greatest length, shape (1).
    """

    lengths: ir.Value
    time: Dim
    mask: ir.Value
    positions: ir.Value
    longest: ir.Value


@dataclass(frozen=True)
class _Padded:
    """The padded form of a packed sequence.

    Attributes:
        value: Shape (time, batch, ...).
        lengths: Its lengths.
        is_zero_padded: Whether the steps after the lengths are zero.
    """

    value: ir.Value
    lengths: _Lengths
    is_zero_padded: bool


def _positions(op: Op, mask: ir.Value, elements: Dim) -> ir.Value:
    # NonZero visits the sequences of a step, then the next step: the order of packed sequences.
    return op.shaped(op.Transpose(op.NonZero(mask), perm=[1, 0]), (elements, 2))


def _lengths_of(op: Op, data: ir.Value, batch_sizes: ir.Value, batch: Dim) -> _Lengths:
    """Return the lengths of a packed sequence; for an input of the model they are computed from its batch sizes."""
    known = batch_sizes.meta.get(_LENGTHS_KEY)
    if isinstance(known, _Lengths):
        return known
    time = op.dims(batch_sizes)[0]
    mask = op.Less(op.Unsqueeze(op.Range(0, op.scalar(batch), 1), [0]), op.Unsqueeze(batch_sizes, [1]))
    mask = op.shaped(mask, (time, batch))
    lengths = op.shaped(op.ReduceSum(op.Cast(mask, to=ir.DataType.INT64), [0], keepdims=0), (batch,))
    found = _Lengths(lengths, time, mask, _positions(op, mask, op.dims(data)[0]), op.size(time))
    batch_sizes.meta[_LENGTHS_KEY] = found
    return found


def _padded(op: Op, data: ir.Value, lengths: _Lengths, batch: Dim) -> _Padded:
    """Return the padded form of a packed sequence: the recorded one, or its elements scattered into zeros."""
    known = data.meta.get(_PADDED_KEY)
    if isinstance(known, _Padded) and known.lengths is lengths:
        return known
    dims = (lengths.time, batch, *op.dims(data)[1:])
    zeros = op.expand(op.const(0, op.dtype_of(data)), dims)
    return _Padded(op.shaped(op.ScatterND(zeros, lengths.positions, data), dims), lengths, is_zero_padded=True)


def _packed(op: Op, padded: _Padded, dims: Sequence[Dim]) -> ir.Value:
    data = op.shaped(op.GatherND(padded.value, padded.lengths.positions), dims)
    data.meta[_PADDED_KEY] = padded
    return data


def _swapped(op: Op, value: ir.Value) -> ir.Value:
    """Return the value with its first two axes, batch and time, swapped."""
    return op.Transpose(value, perm=[1, 0, *range(2, op.rank_of(value))])


@translates("fxonnx::pack_padded_sequence")
def pack_padded_sequence(op: Op, input: ir.Value, lengths: ir.Value, batch_first: bool) -> tuple[ir.Value, ir.Value]:
    """fxonnx::pack_padded_sequence(Tensor input, Tensor lengths, bool batch_first) -> (Tensor, Tensor)"""
    data, batch_sizes = op.results
    value = _swapped(op, input) if batch_first else input
    time, batch, *_ = op.dims(value)
    lengths = op.cast(lengths, ir.DataType.INT64)
    mask = op.Less(op.Unsqueeze(op.Range(0, op.scalar(time), 1), [1]), op.Unsqueeze(lengths, [0]))
    mask = op.shaped(mask, (time, batch))
    longest = op.ReduceMax(lengths, keepdims=1)
    found = _Lengths(lengths, time, mask, _positions(op, mask, data.shape[0]), longest)
    counts = op.ReduceSum(op.Cast(mask, to=ir.DataType.INT64), [1], keepdims=0)
    sizes = op.shaped(op.Slice(counts, [0], longest, [0]), batch_sizes.shape)
    sizes.meta[_LENGTHS_KEY] = found
    return _packed(op, _Padded(value, found, is_zero_padded=False), data.shape), sizes


@translates("fxonnx::pad_packed_sequence")
def pad_packed_sequence(
    op: Op,
    data: ir.Value,
    batch_sizes: ir.Value,
    batch_first: bool,
    padding_value: float,
    total_length: Dim,
    batch: Dim,
) -> tuple[ir.Value, ir.Value]:
    """fxonnx::pad_packed_sequence(Tensor data, Tensor batch_sizes, bool batch_first, Scalar padding_value, SymInt total_length, SymInt batch) -> (Tensor, Tensor)"""
    lengths = _lengths_of(op, data, batch_sizes, batch)
    padded = _padded(op, data, lengths, batch)
    value = padded.value
    dims = op.dims(value)
    padding = op.const(padding_value, op.dtype_of(data))
    if not (padded.is_zero_padded and padding_value == 0):
        mask = op.Unsqueeze(lengths.mask, list(range(2, len(dims)))) if len(dims) > 2 else lengths.mask
        value = op.shaped(op.Where(mask, value, padding), dims)
    if total_length != dims[0]:
        value = _with_length(op, value, total_length, lengths, op.dims(batch_sizes)[0], padding)
    value = op.shaped(value, (total_length, batch, *dims[2:]))
    return _swapped(op, value) if batch_first else value, lengths.lengths


def _with_length(op: Op, value: ir.Value, length: Dim, lengths: _Lengths, longest: Dim, padding: ir.Value) -> ir.Value:
    """Slice or pad the first axis; no sequence is longer than ``length``."""
    if length == longest:
        return op.Slice(value, [0], lengths.longest, [0])
    dims = op.dims(value)
    difference = length - dims[0]
    if isinstance(difference, int) or difference.is_Integer:
        # Every pad is a constant, or no step is missing.
        more = int(difference)
        ends = [0] * (2 * len(dims))
        ends[len(dims)] = more
        return op.Pad(value, ends, padding) if more > 0 else op.Slice(value, [0], op.size(length), [0])
    missing = op.Max(op.Sub(op.size(length), op.size(dims[0])), [0])
    zeros = [0] * (len(dims) - 1)
    pads = op.Concat([0], op.const(zeros), missing, op.const(zeros), axis=0)
    return op.Slice(op.Pad(value, pads, padding), [0], op.size(length), [0])


def _packed_layer(
    op: Op,
    data: ir.Value,
    batch_sizes: ir.Value,
    hx: ir.Value | Sequence[ir.Value],
    params: Sequence[ir.Value],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    *,
    kind: CellType,
) -> tuple[ir.Value, ...]:
    """aten::lstm.data(Tensor data, Tensor batch_sizes, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional) -> (Tensor, Tensor, Tensor)
    aten::gru.data(Tensor data, Tensor batch_sizes, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional) -> (Tensor, Tensor)
    aten::rnn_tanh.data(Tensor data, Tensor batch_sizes, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional) -> (Tensor, Tensor)
    aten::rnn_relu.data(Tensor data, Tensor batch_sizes, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional) -> (Tensor, Tensor)
    """
    states = [hx] if isinstance(hx, ir.Value) else hx
    batch = op.dims(states[0])[1]
    lengths = _lengths_of(op, data, batch_sizes, batch)
    padded = _padded(op, data, lengths, batch).value
    sequence, *last = recurrent(
        op,
        kind,
        padded,
        states,
        params,
        has_biases,
        num_layers,
        dropout,
        train,
        bidirectional,
        batch_first=False,
        lengths=op.cast(lengths.lengths, ir.DataType.INT32),
    )
    # ONNX Runtime's outputs are zero after the lengths.
    return _packed(op, _Padded(sequence, lengths, is_zero_padded=True), op.result.shape), *last


TRANSLATIONS = tuple(
    Translation(partial(_packed_layer, kind=kind), (f"aten::{name}.data",)) for name, kind in CELL_TYPES.items()
)
