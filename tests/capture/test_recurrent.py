"""nn.LSTM, nn.GRU and nn.RNN are captured as one node with a dynamic number of time steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fxonnx._capture.patches import capture_patches
from fxonnx.errors import CaptureError

from .captures import capture

aten = torch.ops.aten
KEY = torch._C.DispatchKey.CompositeImplicitAutograd
OVERLOADS = (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)

LAYERS = [
    pytest.param(nn.LSTM, {}, aten.lstm.input, id="lstm"),
    pytest.param(nn.LSTM, {"num_layers": 2, "bidirectional": True}, aten.lstm.input, id="lstm-2-both"),
    pytest.param(nn.LSTM, {"proj_size": 2, "bidirectional": True}, aten.lstm.input, id="lstm-proj"),
    pytest.param(nn.LSTM, {"bias": False}, aten.lstm.input, id="lstm-no-bias"),
    pytest.param(nn.LSTM, {"num_layers": 2, "dropout": 0.5}, aten.lstm.input, id="lstm-dropout"),
    pytest.param(nn.GRU, {"num_layers": 2, "bidirectional": True}, aten.gru.input, id="gru-2-both"),
    pytest.param(nn.GRU, {"bias": False}, aten.gru.input, id="gru-no-bias"),
    pytest.param(nn.RNN, {"num_layers": 2, "bidirectional": True}, aten.rnn_tanh.input, id="rnn-tanh"),
    pytest.param(nn.RNN, {"nonlinearity": "relu", "dropout": 0.5, "num_layers": 2}, aten.rnn_relu.input, id="rnn-relu"),
]


def state(layer: nn.RNNBase, batch: int) -> Any:
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    hidden = torch.randn(count, batch, layer.proj_size or layer.hidden_size)
    return (hidden, torch.randn(count, batch, layer.hidden_size)) if isinstance(layer, nn.LSTM) else hidden


def only_node(program: torch.export.ExportedProgram, overload: Any) -> torch.fx.Node:
    heavy = [node for node in program.graph.nodes if node.target in (*OVERLOADS, aten.mm.default, aten.linear.default)]
    assert [node.target for node in heavy] == [overload]
    return heavy[0]


@pytest.mark.parametrize("batch_first", [False, True], ids=["time-first", "batch-first"])
@pytest.mark.parametrize("with_state", [False, True], ids=["zeros", "hx"])
@pytest.mark.parametrize(("layer", "options", "overload"), LAYERS)
def test_one_node_with_dynamic_batch_and_time(
    layer: type[nn.RNNBase], options: dict[str, Any], overload: Any, with_state: bool, batch_first: bool
) -> None:
    torch.manual_seed(0)
    model = layer(3, 4, batch_first=batch_first, **options).eval()
    axes = {0: "n", 1: "t"} if batch_first else {0: "t", 1: "n"}

    def example(batch: int, time: int) -> tuple[Any, ...]:
        x = torch.randn(batch, time, 3) if batch_first else torch.randn(time, batch, 3)
        return (x, state(model, batch)) if with_state else (x,)

    hx: Any = ({1: "n"}, {1: "n"}) if isinstance(model, nn.LSTM) else {1: "n"}
    captured = capture(model, example(2, 5), None, (axes, hx) if with_state else (axes,))
    node = only_node(captured.exported_program, overload)
    # as_strided depends on the memory layout of the output sequence: torch computes by time.
    assert node.meta["val"][0].dim_order() == model(*example(2, 5))[0].dim_order()
    names = captured.dim_names
    assert set(names.values()) == {"n", "t"}
    output, *states = node.meta["val"]
    assert [names[output.shape[axis].node.expr] for axis in (0, 1)] == [axes[0], axes[1]]
    assert all(names[value.shape[1].node.expr] == "n" for value in states)
    args = example(3, 7)
    with torch.no_grad():
        expected = model(*args)
        torch.testing.assert_close(captured.exported_program.module()(*args), expected)
    shapes = [tuple(value.shape) for value in torch.utils._pytree.tree_leaves(expected)]
    sizes = {symbol: {"n": 3, "t": 7}[name] for symbol, name in names.items()}
    faked = [
        tuple(int(size.node.expr.subs(sizes)) if isinstance(size, torch.SymInt) else size for size in value.shape)
        for value in node.meta["val"]
    ]
    assert faked == shapes


@pytest.mark.parametrize(("layer", "options", "overload"), LAYERS[:1] + LAYERS[5:6] + LAYERS[7:8])
def test_unbatched_input(layer: type[nn.RNNBase], options: dict[str, Any], overload: Any) -> None:
    model = layer(3, 4, **options).eval()
    captured = capture(model, (torch.randn(5, 3),), None, ({0: "t"},))
    only_node(captured.exported_program, overload)
    x = torch.randn(7, 3)
    with torch.no_grad():
        torch.testing.assert_close(captured.exported_program.module()(x), model(x))


def test_a_state_of_a_different_batch_size_is_an_error() -> None:
    class Raw(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(3, 4)

        def forward(self, x: torch.Tensor, hx: torch.Tensor) -> torch.Tensor:
            return torch.gru(x, hx, self.layer._flat_weights, True, 1, 0.0, False, False, False)[0]

    with pytest.raises(CaptureError, match="the hidden state is for 3 sequences, the input has 2"):
        capture(Raw().eval(), (torch.randn(5, 2, 3), torch.randn(1, 3, 4)))


def test_kernels_are_restored() -> None:
    before = [overload.py_kernels.get(KEY) for overload in OVERLOADS]
    with capture_patches():
        assert all(overload.py_kernels[KEY] is not kernel for overload, kernel in zip(OVERLOADS, before, strict=True))
        outer = [overload.py_kernels[KEY] for overload in OVERLOADS]
        with capture_patches():
            pass
        assert [overload.py_kernels[KEY] for overload in OVERLOADS] == outer
    assert [overload.py_kernels.get(KEY) for overload in OVERLOADS] == before
    with pytest.raises(ValueError, match="on purpose"), capture_patches():
        raise ValueError("on purpose")
    assert [overload.py_kernels.get(KEY) for overload in OVERLOADS] == before


def test_kernels_of_other_libraries_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    def theirs() -> None:
        raise NotImplementedError

    monkeypatch.setitem(aten.lstm.input.py_kernels, KEY, theirs)
    with capture_patches():
        assert aten.lstm.input.py_kernels[KEY] is not theirs
    assert aten.lstm.input.py_kernels[KEY] is theirs
