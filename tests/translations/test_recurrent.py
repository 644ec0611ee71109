"""Recurrent layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import fxonnx

from .harness import Case, T, run

aten = torch.ops.aten

TIME_FIRST, BATCH_FIRST = T(("t", "n", 3)), T(("n", "t", 3))
TARGETS: dict[Callable[..., nn.RNNBase], tuple[str, str]] = {
    nn.LSTM: ("aten.lstm.input", "LSTM"),
    nn.GRU: ("aten.gru.input", "GRU"),
    nn.RNN: ("aten.rnn_tanh.input", "RNN"),
}


class Stateful(nn.Module):
    """A recurrent layer with the initial states as inputs of the model."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> Any:
        return self.layer(x, states[0] if len(states) == 1 else states)


class Twice(nn.Module):
    """A layer called twice, the second time with the states the first left."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        y, states = self.layer(x)
        return self.layer(y, states)


class StoredState(nn.Module):
    """A zero initial state that is a buffer, which may hold something else after the export."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(3, 4)
        self.h0 = nn.Buffer(torch.zeros(1, 2, 4))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x, self.h0)


class Bfloat16(nn.Module):
    """A layer in bfloat16 between float32 tensors, which NumPy can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 4, 2, bidirectional=True).bfloat16()

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x.bfloat16())[0].float()


def runtime_weights(x: torch.Tensor, h: torch.Tensor, *weights: torch.Tensor) -> Any:
    return aten.gru.input(x, h, [*weights, *weights], True, 1, 0.0, False, True, False)


def runtime_lstm(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, *weights: torch.Tensor) -> Any:
    return aten.lstm.input(x, [h, c], list(weights), len(weights) > 3, 1, 0.0, False, False, False)


def common() -> list[Case]:
    """The options all kinds of layers have."""
    cases = []
    for make, (target, name) in TARGETS.items():
        cases += [
            Case(target, make(3, 4), (TIME_FIRST,), ops=(name, "Squeeze")),
            Case(
                target,
                make(3, 4, batch_first=True),
                (BATCH_FIRST,),
                "batch first",
                ops=("Transpose", name, "Squeeze", "Transpose"),
            ),
            Case(
                target,
                make(3, 4, bidirectional=True),
                (TIME_FIRST,),
                "bidirectional",
                ops=(name, "Transpose", "Reshape"),
            ),
            Case(
                target,
                make(3, 4, 2, bidirectional=True, batch_first=True),
                (BATCH_FIRST,),
                "2 layers, bidirectional, batch first",
            ),
            Case(target, make(3, 4, 3, bias=False, bidirectional=True), (TIME_FIRST,), "3 layers without bias"),
            Case(target, make(3, 4, 2, dropout=0.5), (TIME_FIRST,), "inactive dropout"),
            Case(target, make(3, 4), (T(("t", 3)),), "unbatched"),
            Case(target, make(3, 4, 2, bidirectional=True), (TIME_FIRST,), "opset 11", opset=11),
            Case(target, make(3, 4, 2, bidirectional=True), (TIME_FIRST,), "opset 23", opset=23),
            Case(
                target,
                make(3, 4, 2, bidirectional=True, batch_first=True).double(),
                (T(("n", "t", 3), torch.float64),),
                "float64",
            ),
            Case(target, make(3, 4, bias=False).double(), (T(("t", "n", 3), torch.float64),), "float64 without bias"),
            Case(target, make(3, 4).half(), (T(("t", "n", 3), torch.float16),), "float16", rtol=1e-2, atol=5e-3),
        ]
        states = (T((4, "n", 4)),) * (2 if make is nn.LSTM else 1)
        layer = make(3, 4, 2, bidirectional=True)
        cases.append(Case(target, Stateful(layer), (TIME_FIRST, *states), "states"))
        wide = tuple(T(state.shape, torch.float64) for state in states)
        cases.append(
            Case(
                target,
                Stateful(make(3, 4, 2, bidirectional=True).double()),
                (T(("t", "n", 3), torch.float64), *wide),
                "float64 states",
            )
        )
    return cases


class Cell(nn.Module):
    """A cell that is called with its states as inputs, or without any."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> Any:
        return self.cell(x, states if len(states) == 2 else states[0]) if states else self.cell(x)


CASES = (
    *common(),
    Case("aten.rnn_relu.input", nn.RNN(3, 4, nonlinearity="relu"), (TIME_FIRST,), ops=("RNN", "Squeeze")),
    Case(
        "aten.rnn_relu.input",
        nn.RNN(3, 4, 2, nonlinearity="relu", bidirectional=True, batch_first=True),
        (BATCH_FIRST,),
        "2 layers, bidirectional, batch first",
    ),
    Case(
        "aten.rnn_relu.input",
        nn.RNN(3, 4, nonlinearity="relu").double(),
        (T(("t", "n", 3), torch.float64),),
        "float64",
    ),
    Case("aten.lstm.input", nn.LSTM(3, 5, proj_size=2), (TIME_FIRST,), "projection"),
    Case(
        "aten.lstm.input",
        nn.LSTM(3, 5, 2, proj_size=2, bidirectional=True, batch_first=True),
        (BATCH_FIRST,),
        "projection, 2 layers, bidirectional, batch first",
    ),
    Case("aten.lstm.input", nn.LSTM(3, 5, 2, proj_size=2, bias=False), (TIME_FIRST,), "projection without bias"),
    Case(
        "aten.lstm.input",
        nn.LSTM(3, 5, 2, proj_size=2, bidirectional=True),
        (TIME_FIRST,),
        "projection at opset 11",
        opset=11,
    ),
    Case(
        "aten.lstm.input",
        Stateful(nn.LSTM(3, 5, proj_size=2)),
        (TIME_FIRST, T((1, "n", 2)), T((1, "n", 5))),
        "projection with states",
    ),
    Case("aten.lstm.input", Twice(), (TIME_FIRST,), "called twice", ops=("LSTM", "Squeeze", "LSTM", "Squeeze")),
    Case("aten.lstm.input", Bfloat16(), (TIME_FIRST,), "bfloat16", rtol=2e-2, atol=1e-2),
    Case("aten.gru.input", StoredState(), (T(("t", 2, 3)),), "state in a buffer"),
    Case(
        "aten.gru.input",
        runtime_weights,
        (TIME_FIRST, T((2, "n", 4)), T((12, 3)), T((12, 4)), T((12,)), T((12,))),
        "runtime weights",
    ),
    Case(
        "aten.lstm.input",
        runtime_lstm,
        (TIME_FIRST, T((1, "n", 4)), T((1, "n", 4)), T((16, 3)), T((16, 4)), T((16,)), T((16,))),
        "runtime weights",
    ),
    Case(
        "aten.lstm.input",
        runtime_lstm,
        (TIME_FIRST, T((1, "n", 2)), T((1, "n", 4)), T((16, 3)), T((16, 2)), T((2, 4))),
        "runtime projection",
    ),
    Case(
        "aten.rnn_tanh.input",
        lambda x, h, *weights: aten.rnn_tanh.input(x, h, list(weights), False, 1, 0.0, False, False, False),
        (TIME_FIRST, T((1, "n", 4)), T((4, 3)), T((4, 4))),
        "runtime weights",
    ),
    *(
        Case(target, Cell(cell), inputs, f"{kind}, opset {opset}", opset=opset)
        for opset in (11, 20)
        for target, cell, states in (
            ("aten.gru_cell.default", nn.GRUCell, 1),
            ("aten.lstm_cell.default", nn.LSTMCell, 2),
            ("aten.rnn_tanh_cell.default", nn.RNNCell, 1),
            ("aten.rnn_relu_cell.default", partial(nn.RNNCell, nonlinearity="relu"), 1),
        )
        for kind, cell, inputs in (
            ("with states", cell(3, 4), (T(("n", 3)), *[T(("n", 4))] * states)),
            ("no bias", cell(3, 4, bias=False), (T(("n", 3)), *[T(("n", 4))] * states)),
            ("no states", cell(3, 4), (T(("n", 3)),)),
            ("one sample", cell(3, 4), (T((3,)), *[T((4,))] * states)),
            ("float64", cell(3, 4).double(), (T(("n", 3), torch.float64), *[T(("n", 4), torch.float64)] * states)),
        )
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_recurrent(case: Case) -> None:
    run(case)


def test_zero_states_are_not_inputs_of_the_operator() -> None:
    program = fxonnx.export(nn.LSTM(3, 4, 2).eval(), (torch.ones(5, 2, 3),))
    nodes = [node for node in program.model.graph if node.op_type == "LSTM"]
    assert [len(node.inputs) for node in nodes] == [4, 4]


def test_a_state_in_a_buffer_stays_an_input() -> None:
    program = fxonnx.export(StoredState().eval(), (torch.ones(5, 2, 3),))
    assert "h0" in program.model.graph.initializers


def test_weights_are_stored_once() -> None:
    program = fxonnx.export(Twice().eval(), (torch.ones(5, 2, 3),))
    names = [name for name in program.model.graph.initializers if name.startswith("layer.")]
    assert names == ["layer.weight_ih_l0::lstm", "layer.weight_hh_l0::lstm", "layer.bias_ih_l0::lstm"]


def test_dropout_is_applied_between_the_layers() -> None:
    program = fxonnx.export(nn.GRU(3, 4, 2, dropout=0.5).train(), (torch.ones(5, 2, 3),))
    assert [node.op_type for node in program.model.graph] == ["GRU", "Squeeze", "Dropout", "GRU", "Squeeze", "Concat"]
