"""Recurrent layers: LSTM, GRU and RNN over a whole sequence, and their cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir
import torch

from .._builder.dtypes import BFLOAT16, BOOL, DOUBLE, FLOAT
from .._builder.op import Op
from .._builder.symbolic_dims import Dim
from .._registry import Translation
from .linalg.matmul import linear
from .random import dropout as dropout_between

CellStep = Callable[[Op, ir.Value, ir.Value, Sequence[ir.Value]], tuple[ir.Value, ...]]
"""``step(op, gates_of_input, gates_of_hidden, states)`` emits one time step and returns the new states."""


def _lstm_step(op: Op, from_input: ir.Value, from_hidden: ir.Value, states: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
    gates = op.multi("Split", op.Add(from_input, from_hidden), axis=-1, num_outputs=4, outputs=4)
    i, f, o = (op.Sigmoid(gates[position]) for position in (0, 1, 3))
    c = op.Add(op.Mul(f, states[1]), op.Mul(i, op.Tanh(gates[2])))
    return op.Mul(o, op.Tanh(c)), c


def _gru_step(op: Op, from_input: ir.Value, from_hidden: ir.Value, states: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
    inputs = op.multi("Split", from_input, axis=-1, num_outputs=3, outputs=3)
    hidden = op.multi("Split", from_hidden, axis=-1, num_outputs=3, outputs=3)
    r, z = (op.Sigmoid(op.Add(inputs[position], hidden[position])) for position in (0, 1))
    n = op.Tanh(op.Add(inputs[2], op.Mul(r, hidden[2])))
    return (op.Add(op.Mul(op.Sub(states[0], n), z), n),)


def _rnn_step(
    activation: str, op: Op, from_input: ir.Value, from_hidden: ir.Value, states: Sequence[ir.Value]
) -> tuple[ir.Value, ...]:
    total = op.Add(from_input, from_hidden)
    return (op.Tanh(total) if activation == "Tanh" else op.Relu(total),)


@dataclass(frozen=True)
class CellType:
    """A type of recurrent layer.

    Attributes:
        op_type: The ONNX operator.
        order: torch's position of ONNX's first gate, second gate, ...
        states: Number of states: hidden, and cell for the LSTM.
        step: One time step, for calls that the ONNX operator cannot express.
        activation: The activation of every direction, if it is not the operator's default.
    """

    op_type: str
    order: tuple[int, ...]
    states: int
    step: CellStep
    activation: str | None = None


# torch's gates are i f g o, ONNX's i o f c; torch's GRU has r z n, ONNX z r h.
LSTM = CellType("LSTM", (0, 3, 1, 2), 2, _lstm_step)
GRU = CellType("GRU", (1, 0, 2), 1, _gru_step)
RNN_TANH = CellType("RNN", (0,), 1, partial(_rnn_step, "Tanh"))
RNN_RELU = CellType("RNN", (0,), 1, partial(_rnn_step, "Relu"), activation="Relu")


@dataclass(frozen=True)
class _DirectionWeights:
    """The weights of one direction of one layer, in torch's layout.

    Attributes:
        w_ih: Input weight, shape (gates * hidden, input).
        w_hh: Hidden weight, shape (gates * hidden, hidden or projection).
        biases: b_ih and b_hh, each of shape (gates * hidden), or empty.
        w_hr: Projection weight, shape (projection, hidden), or None.
    """

    w_ih: ir.Value
    w_hh: ir.Value
    biases: tuple[ir.Value, ...]
    w_hr: ir.Value | None


def _directions(params: Sequence[ir.Value], has_biases: bool, count: int) -> list[_DirectionWeights]:
    size = len(params) // count
    biases = 2 if has_biases else 0
    groups = [params[start : start + size] for start in range(0, len(params), size)]
    return [
        _DirectionWeights(group[0], group[1], tuple(group[2 : 2 + biases]), group[-1] if size == biases + 3 else None)
        for group in groups
    ]


# ---- the fused operator


def _reordered(order: tuple[int, ...], weight: torch.Tensor) -> torch.Tensor:
    return weight.reshape(len(order), -1, *weight.shape[1:])[list(order)].reshape(weight.shape)


def _stack_weights(order: tuple[int, ...], *weights: torch.Tensor) -> torch.Tensor:
    """Return the weights of all directions in ONNX's order of gates: (directions, gates * hidden, size)."""
    return torch.stack([_reordered(order, weight) for weight in weights])


def _stack_biases(order: tuple[int, ...], *biases: torch.Tensor) -> torch.Tensor:
    """Return b_ih and b_hh of all directions in ONNX's order of gates: (directions, 2 * gates * hidden)."""
    return torch.cat([_reordered(order, bias) for bias in biases]).reshape(len(biases) // 2, -1)


def _packed(op: Op, kind: CellType, tensors: Sequence[ir.Value], dtype: ir.DataType) -> ir.Value:
    """Pack the weights (rank 2) or biases (rank 1) of all directions into one tensor, as ONNX requires."""
    biases = op.rank_of(tensors[0]) == 1
    recipe = partial(_stack_biases if biases else _stack_weights, kind.order)
    # Other users of these weights are recurrent calls as well, which share the packed weight.
    packed = op.derived_from(tensors, kind.op_type.lower(), recipe, force=True)
    if packed is None:
        rows = int(op.dims(tensors[0])[0])
        gate = rows // len(kind.order)
        source = [row for place in kind.order for row in range(place * gate, (place + 1) * gate)]
        ordered = [tensor if len(kind.order) == 1 else op.Gather(tensor, source, axis=0) for tensor in tensors]
        if biases:
            packed = op.Reshape(op.Concat(*ordered, axis=0), [len(tensors) // 2, 2 * rows])
        else:
            packed = op.Concat(*(op.Unsqueeze(tensor, [0]) for tensor in ordered), axis=0)
    return op.cast(packed, dtype)


def _fused_layer(
    op: Op,
    kind: CellType,
    x: ir.Value,
    layer: Sequence[_DirectionWeights],
    states: Sequence[ir.Value],
    batch_first: bool,
    lengths: ir.Value | None,
) -> tuple[ir.Value, ...]:
    """Emit one layer as one ONNX operator; see ``recurrent`` for the shapes."""
    dtype = op.dtype_of(x)
    time, batch, _ = op.dims(x)
    count = len(layer)
    hidden = int(op.dims(layer[0].w_hh)[1])
    biases = [bias for direction in layer for bias in direction.biases]
    inputs = [
        x,
        _packed(op, kind, [direction.w_ih for direction in layer], dtype),
        _packed(op, kind, [direction.w_hh for direction in layer], dtype),
        _packed(op, kind, biases, dtype) if biases else None,
        lengths,
        # The default initial state is zero.
        *(None if op.is_zero(state) else state for state in states),
    ]
    while inputs[-1] is None:
        inputs.pop()
    sequence, *last = op.multi(
        kind.op_type,
        *inputs,
        outputs=1 + kind.states,
        hidden_size=hidden,
        direction="bidirectional" if count == 2 else None,
        activations=None if kind.activation is None else [kind.activation] * count,
        # torch applies the reset gate after the matrix product.
        linear_before_reset=1 if kind.op_type == "GRU" else None,
    )
    op.shaped(sequence, (time, count, batch, hidden))
    for state in last:
        op.shaped(state, (count, batch, hidden))
    if count == 1:
        joined = op.Squeeze(sequence, [1])
        return op.Transpose(joined, perm=[1, 0, 2]) if batch_first else joined, *last
    side_by_side = op.Transpose(sequence, perm=[2, 0, 1, 3] if batch_first else [0, 2, 1, 3])
    return op.Reshape(side_by_side, [0, 0, count * hidden]), *last


# ---- step by step


def _transposed(op: Op, weight: ir.Value, dtype: ir.DataType) -> ir.Value:
    stored = op.derived(weight, "transposed", torch.t)
    return op.cast(op.Transpose(weight, perm=[1, 0]) if stored is None else stored, dtype)


def _scanned_direction(
    op: Op,
    kind: CellType,
    x: ir.Value,
    weights: _DirectionWeights,
    states: Sequence[ir.Value],
    backward: bool,
    within: ir.Value | None,
) -> tuple[ir.Value, ...]:
    """Emit one direction of a layer as a Scan over time; return the sequence (time, batch, size) and final states.

    ``within``, (time, batch, 1), masks the steps within the lengths: the states do not change at other steps.
    """
    dtype = op.dtype_of(x)
    time, batch, _ = op.dims(x)
    rows = op.dims(weights.w_ih)[0]
    biases = [op.cast(bias, dtype) for bias in weights.biases]
    # The gates of the input are computed for all time steps at once.
    from_input = op.MatMul(x, _transposed(op, weights.w_ih, dtype))
    if biases:
        from_input = op.Add(from_input, biases[0])
    w_hh = _transposed(op, weights.w_hh, dtype)
    w_hr = None if weights.w_hr is None else _transposed(op, weights.w_hr, dtype)
    masks: list[tuple[ir.DataType, Sequence[Dim]]] = [] if within is None else [(BOOL, (batch, 1))]
    body = op.body("step", [*((dtype, op.dims(state)) for state in states), (dtype, (batch, rows)), *masks])
    old, (gates, *mask) = body.graph.inputs[: kind.states], body.graph.inputs[kind.states :]
    from_hidden = body.MatMul(old[0], w_hh)
    if biases:
        from_hidden = body.Add(from_hidden, biases[1])
    hidden, *cell = kind.step(body, gates, from_hidden, old)
    if w_hr is not None:
        hidden = body.MatMul(hidden, w_hr)
    output = hidden
    if mask:
        output = body.Where(mask[0], hidden, body.const(0.0, dtype))
        hidden, *cell = (body.Where(mask[0], new, state) for new, state in zip([hidden, *cell], old, strict=True))
    sizes = [op.dims(state) for state in states]
    step = body.finish(list(zip([hidden, *cell, output], [*sizes, sizes[0]], strict=True)))
    *last, sequence = op.multi(
        "Scan",
        *states,
        from_input,
        *(() if within is None else (within,)),
        outputs=kind.states + 1,
        body=step,
        num_scan_inputs=1 + len(mask),
        scan_input_directions=[1] * (1 + len(mask)) if backward else None,
        scan_output_directions=[1] if backward else None,
    )
    for value, dims in zip(last, sizes, strict=True):
        op.shaped(value, dims)
    op.shaped(sequence, (time, *sizes[0]))
    return sequence, *last


def _scanned_layer(
    op: Op,
    kind: CellType,
    x: ir.Value,
    layer: Sequence[_DirectionWeights],
    states: Sequence[ir.Value],
    batch_first: bool,
    lengths: ir.Value | None,
) -> tuple[ir.Value, ...]:
    """Emit one layer as a Scan per direction; see ``recurrent`` for the shapes."""
    count = len(layer)
    split = [op.multi("Split", state, axis=0, num_outputs=2, outputs=2) if count == 2 else (state,) for state in states]
    within = None
    if lengths is not None:
        time, batch, _ = op.dims(x)
        steps = op.Cast(op.Range(0, op.scalar(time), 1), to=ir.DataType.INT32)
        within = op.Less(op.Unsqueeze(steps, [1, 2]), op.Unsqueeze(lengths, [0, 2]))
        within = op.shaped(within, (time, batch, 1))
    runs = []
    for position, weights in enumerate(layer):
        initial = [op.Squeeze(pieces[position], [0]) for pieces in split]
        runs.append(_scanned_direction(op, kind, x, weights, initial, position == 1, within))
    sequences, *lasts = zip(*runs, strict=True)
    joined = op.Concat(*sequences, axis=-1)
    stacked = [op.Concat(*(op.Unsqueeze(state, [0]) for state in last), axis=0) for last in lasts]
    return op.Transpose(joined, perm=[1, 0, 2]) if batch_first else joined, *stacked


# ---- all layers


def recurrent(
    op: Op,
    kind: CellType,
    input: ir.Value,
    states: Sequence[ir.Value],
    params: Sequence[ir.Value],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    lengths: ir.Value | None = None,
) -> tuple[ir.Value, ...]:
    """Return the output sequence and the final states.

    The inputs of a layer are x (time, batch, input) and its initial states, each (directions, batch, size); its results
    are the sequence, (time, batch, directions * size) or with batch first, and its final states.

    With ``lengths``, (batch) in INT32, the final states are those at the end of each sequence, and the results after it
    are zero.
    """
    count = 2 if bidirectional else 1
    # These operators do not accept bfloat16 before opset 22, and ONNX Runtime has no kernels for it.
    dtype = FLOAT if op.dtype_of(input) == BFLOAT16 else op.dtype_of(input)
    x = op.cast(op.Transpose(input, perm=[1, 0, 2]) if batch_first else input, dtype)
    weights = _directions(params, has_biases, num_layers * count)
    initial = [_per_layer(op, state, num_layers, count, dtype) for state in states]
    # ONNX's LSTM has no projection, and ONNX Runtime has no double kernels of these operators.
    step_by_step = dtype == DOUBLE or any(direction.w_hr is not None for direction in weights)
    run = _scanned_layer if step_by_step else _fused_layer
    lasts = []
    for index in range(num_layers):
        is_last = index == num_layers - 1
        layer = weights[index * count : (index + 1) * count]
        x, *last = run(op, kind, x, layer, [pieces[index] for pieces in initial], batch_first and is_last, lengths)
        if not is_last:
            x = dropout_between(op, x, dropout, train)
        lasts.append(last)
    finals = [op.Concat(*pieces, axis=0) for pieces in zip(*lasts, strict=True)]
    return tuple(op.cast(value, op.result.dtype) for value in (x, *finals))


def _per_layer(op: Op, state: ir.Value, num_layers: int, count: int, dtype: ir.DataType) -> tuple[ir.Value, ...]:
    """Return the initial state of each layer: (directions, batch, size)."""
    if num_layers == 1:
        return (op.cast(state, dtype),)
    pieces = op.multi("Split", op.cast(state, dtype), axis=0, num_outputs=num_layers, outputs=num_layers)
    for piece in pieces:
        op.shaped(piece, (count, *op.dims(state)[1:]))
    return pieces


def _layer(
    op: Op,
    input: ir.Value,
    hx: ir.Value | Sequence[ir.Value],
    params: Sequence[ir.Value],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    *,
    kind: CellType,
) -> tuple[ir.Value, ...]:
    """aten::lstm.input(Tensor input, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor, Tensor)
    aten::gru.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor)
    aten::rnn_tanh.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor)
    aten::rnn_relu.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor)
    """
    states = [hx] if isinstance(hx, ir.Value) else hx
    return recurrent(
        op, kind, input, states, params, has_biases, num_layers, dropout, train, bidirectional, batch_first
    )


# ---- single steps


def _cell(
    op: Op,
    input: ir.Value,
    hx: ir.Value | Sequence[ir.Value],
    w_ih: ir.Value,
    w_hh: ir.Value,
    b_ih: ir.Value | None = None,
    b_hh: ir.Value | None = None,
    *,
    kind: CellType,
) -> ir.Value | tuple[ir.Value, ...]:
    """aten::lstm_cell(Tensor input, Tensor[] hx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, Tensor? b_hh=None) -> (Tensor, Tensor)
    aten::gru_cell(Tensor input, Tensor hx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, Tensor? b_hh=None) -> Tensor
    aten::rnn_tanh_cell(Tensor input, Tensor hx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, Tensor? b_hh=None) -> Tensor
    aten::rnn_relu_cell(Tensor input, Tensor hx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, Tensor? b_hh=None) -> Tensor
    """
    states = [hx] if isinstance(hx, ir.Value) else hx
    new = kind.step(op, linear(op, input, w_ih, b_ih), linear(op, states[0], w_hh, b_hh), states)
    results = tuple(op.cast(state, op.result.dtype) for state in new)
    return results[0] if isinstance(hx, ir.Value) else results


CELL_TYPES = {"lstm": LSTM, "gru": GRU, "rnn_tanh": RNN_TANH, "rnn_relu": RNN_RELU}
"""The operator of a cell type."""

TRANSLATIONS = tuple(
    Translation(partial(function, kind=kind), (f"aten::{name}{suffix}",))
    for name, kind in CELL_TYPES.items()
    for suffix, function in ((".input", _layer), ("_cell", _cell))
)
