"""nn.LSTM, nn.GRU and nn.RNN over a dynamic number of time steps, and over packed sequences."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
    unpad_sequence,
)

import fxonnx
from fxonnx._capture.patches import capture_patches
from fxonnx.errors import CaptureError

from ..saved import run_from_file
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


# Packed sequences: recurrent layers over sequences of different lengths, and the uses of packed results.


RECURRENT: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn_tanh": nn.RNN,
    "rnn_relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
OPSETS = (13, 18, 20)


class Packed(nn.Module):
    """Pack, run a layer, and unpack to the longest sequence or to the length of the input and some more steps."""

    def __init__(
        self, layer: nn.RNNBase, enforce_sorted: bool, total: bool, padding_value: float = 0.0, longer: int = 0
    ) -> None:
        super().__init__()
        self.layer, self.enforce_sorted, self.total, self.padding_value = layer, enforce_sorted, total, padding_value
        self.longer = longer

    def forward(self, x: torch.Tensor, lengths: torch.Tensor, hx: Any = None) -> Any:
        batch_first = self.layer.batch_first
        packed = pack_padded_sequence(x, lengths, batch_first, self.enforce_sorted)
        output, last = self.layer(packed, hx)
        total = x.shape[1 if batch_first else 0] + self.longer if self.total else None
        return *pad_packed_sequence(output, batch_first, self.padding_value, total), last


def inputs(layer: nn.RNNBase, lengths: Sequence[int], time: int, with_state: bool = False) -> tuple[Any, ...]:
    """Padded sequences with a number of steps, their lengths, and an initial state."""
    dtype = layer.weight_ih_l0.dtype
    x = torch.randn(len(lengths), time, 3, dtype=dtype)
    args: tuple[Any, ...] = (x if layer.batch_first else x.transpose(0, 1).contiguous(), torch.tensor(lengths))
    if not with_state:
        return args
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    hidden = torch.randn(count, len(lengths), layer.proj_size or layer.hidden_size, dtype=dtype)
    cell = torch.randn(count, len(lengths), layer.hidden_size, dtype=dtype)
    return *args, (hidden, cell) if isinstance(layer, nn.LSTM) else hidden


def check(
    model: nn.Module,
    calls: Sequence[tuple[Any, ...]],
    dynamic_shapes: Any,
    tolerance: float | None = None,
    **options: Any,
) -> fxonnx.ONNXProgram:
    """Export with the first call's inputs, and compare all calls with eager torch, through the saved file."""
    program = fxonnx.export(model.eval(), calls[0], dynamic_shapes=dynamic_shapes, **options)
    run_from_file(program)
    for args in calls:
        with torch.no_grad():
            expected = torch.utils._pytree.tree_leaves(model(*args))
        found = program(*args)
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    return program


def check_layer(
    layer: nn.RNNBase,
    *,
    is_sorted: bool = False,
    total: bool = False,
    with_state: bool = False,
    padding_value: float = 0.0,
    longer: int = 0,
    **options: Any,
) -> fxonnx.ONNXProgram:
    """Check a layer for three batches, one of them of a single step, another with more steps than its lengths."""
    axes = {0: "n", 1: "t"} if layer.batch_first else {0: "t", 1: "n"}
    shapes: list[Any] = [axes, {0: "n"}]
    if with_state:
        shapes.append(({1: "n"}, {1: "n"}) if isinstance(layer, nn.LSTM) else {1: "n"})
    batches: list[tuple[list[int], int]] = [([3, 5], 5), ([4, 1, 7, 4], 9), ([1], 1)]
    calls = [
        inputs(layer, sorted(lengths, reverse=True) if is_sorted else lengths, time, with_state)
        for lengths, time in batches
    ]
    return check(Packed(layer, is_sorted, total, padding_value, longer), calls, tuple(shapes), **options)


def operators(program: fxonnx.ONNXProgram) -> list[str]:
    return [node.op_type for node in program.model.graph]


GRID = [
    (*options, total, OPSETS[index % 3])
    for index, options in enumerate(
        itertools.product(RECURRENT, (1, 3), (False, True), (False, True), (False, True), (False, True))
    )
    for total in (index % 2 == 0,)
]


@pytest.mark.parametrize(("kind", "layers", "both", "with_state", "is_sorted", "batch_first", "total", "opset"), GRID)
def test_layers(
    kind: str, layers: int, both: bool, with_state: bool, is_sorted: bool, batch_first: bool, total: bool, opset: int
) -> None:
    layer = RECURRENT[kind](3, 4, num_layers=layers, bidirectional=both, batch_first=batch_first)
    check_layer(layer, is_sorted=is_sorted, total=total, with_state=with_state, opset_version=opset)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize(
    ("layer", "options"),
    [
        pytest.param(nn.LSTM(3, 4, 2, proj_size=2, bidirectional=True), {"with_state": True}, id="projection"),
        pytest.param(nn.GRU(3, 4, 2, bidirectional=True).double(), {"with_state": True}, id="float64"),
        pytest.param(nn.LSTM(3, 4).half(), {"tolerance": 1e-2}, id="float16"),
        pytest.param(nn.LSTM(3, 4, 2, bias=False, dropout=0.5), {}, id="no-bias"),
        pytest.param(nn.GRU(3, 4), {"padding_value": -1.5}, id="padding-value"),
        pytest.param(nn.GRU(3, 4), {"padding_value": -1.5, "longer": 2, "total": True}, id="longer"),
        pytest.param(nn.GRU(3, 4, batch_first=True), {"padding_value": -1.5, "total": True}, id="padding-value-total"),
    ],
)
def test_variants(layer: nn.RNNBase, options: dict[str, Any], opset: int) -> None:
    check_layer(layer, opset_version=opset, **options)


@pytest.mark.parametrize("is_sorted", [False, True], ids=["unsorted", "sorted"])
def test_a_layer_is_one_operator_with_sequence_lens(is_sorted: bool) -> None:
    program = check_layer(nn.LSTM(3, 4), is_sorted=is_sorted, total=True, with_state=True)
    assert operators(program) == ["Cast", "LSTM", "Squeeze", "Identity"]


class LastStates(nn.Module):
    """A classifier of token sequences that uses the final states only."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 3)
        self.layer = nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True)

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> Any:
        packed = pack_padded_sequence(self.embedding(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, (hidden, _) = self.layer(packed)
        return torch.cat([hidden[-2], hidden[-1]], dim=1)


class PackedOutput(nn.Module):
    """A model that returns a packed sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(3, 4, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        return self.layer(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[0]


class BetweenLayers(nn.Module):
    """Pointwise layers, and a reduction of packed data, which depends on the order of its elements."""

    def __init__(self, reduces: bool = True) -> None:
        super().__init__()
        self.reduces = reduces
        self.embedding, self.dropout, self.linear = nn.Embedding(9, 3), nn.Dropout(0.5), nn.Linear(4, 4)
        self.first, self.second = nn.GRU(3, 4), nn.LSTM(4, 2, bidirectional=True)

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> Any:
        packed = pack_padded_sequence(tokens, lengths, enforce_sorted=False)
        packed = PackedSequence(self.dropout(self.embedding(packed.data)), *packed[1:])
        output, last = self.first(packed)
        output = PackedSequence(self.linear(output.data).relu(), *output[1:])
        places = torch.arange(output.data.shape[0])
        result = (places[:, None] * output.data).sum() if self.reduces else last
        return pad_packed_sequence(self.second(output)[0])[0], last, result


class Stacked(nn.Module):
    """Layers over packed sequences with inactive dropout in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.dropout = nn.GRU(3, 4), nn.LSTM(4, 2, bidirectional=True), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        output, last = self.first(pack_padded_sequence(x, lengths))
        output = PackedSequence(self.dropout(output.data), output.batch_sizes)
        return pad_packed_sequence(self.second(output)[0], total_length=x.shape[0])[0], last


class Masked(nn.Module):
    """Lengths computed from a mask; the result is added to the input and multiplied by the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(3, 4, batch_first=True)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        packed = pack_padded_sequence(x, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        output, _ = pad_packed_sequence(self.layer(packed)[0], batch_first=True, total_length=mask.shape[1])
        return output * mask[..., None] + x[..., :1]


class Residual(nn.Module):
    """A sum with the input, whose number of steps must be the greatest length."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.RNN(3, 3, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0] + x


class Attention(nn.Module):
    """Attention over the unpacked steps, whose number is unbacked, under a mask of the lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.attention = nn.LSTM(3, 4, batch_first=True), nn.MultiheadAttention(4, 2, batch_first=True)
        self.output = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        steps, counts = pad_packed_sequence(self.layer(packed)[0], batch_first=True)
        padding = torch.arange(steps.shape[1])[None] >= counts[:, None]
        steps, _ = self.attention(steps, steps, steps, key_padding_mask=padding, need_weights=False)
        result = self.output(steps.contiguous().view(-1, steps.size(2))).view(steps.size(0), steps.size(1), -1)
        return result.masked_fill(padding[..., None], 0.0), result.max(1)[0]


class ConstantLengths(nn.Module):
    """Lengths in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(3, 4)

    def forward(self, x: torch.Tensor) -> Any:
        output, last = self.layer(pack_padded_sequence(x, [5, 3]))
        return *pad_packed_sequence(output), last


class ListedLengths(nn.Module):
    """Lengths read from a tensor into a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(3, 4)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        output, last = self.layer(pack_padded_sequence(x, lengths.tolist(), enforce_sorted=False))
        return *pad_packed_sequence(output), last


class SeparateSequences(nn.Module):
    """Sequences that are separate inputs and separate outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(3, 4)

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        output, last = self.layer(pack_sequence([a, b, c], enforce_sorted=False))
        return last, unpad_sequence(*pad_packed_sequence(output))


class PackedInput(nn.Module):
    """A packed sequence as input and output, with an optional initial state."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.GRU(3, 4), nn.LSTM(4, 2, 2)

    def forward(self, packed: PackedSequence, hx: Any = None) -> Any:
        output, last = self.first(packed, hx)
        output, _ = self.second(output)
        padded, lengths = pad_packed_sequence(output)
        # Without the indices, which are None for sorted sequences.
        return padded, lengths, last, output.data, output.batch_sizes


def _packed(*lengths: int, enforce_sorted: bool = False) -> PackedSequence:
    x = torch.randn(max(lengths), len(lengths), 3)
    return pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=enforce_sorted)


def _tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, 9, shape)


def _mask(*lengths: int, time: int) -> torch.Tensor:
    return torch.arange(time) < torch.tensor(lengths)[:, None]


BATCH_FIRST, TIME_FIRST = ({0: "n", 1: "t"}, {0: "n"}), ({0: "t", 1: "n"}, {0: "n"})
MODELS = {
    "last states": (
        LastStates,
        [(_tokens(2, 5), torch.tensor([3, 5])), (_tokens(3, 4), torch.tensor([1, 4, 2]))],
        BATCH_FIRST,
    ),
    "int32 lengths": (
        LastStates,
        [(_tokens(len(lengths), 5), torch.tensor(lengths, dtype=torch.int32)) for lengths in ([3, 5], [1, 4, 2])],
        BATCH_FIRST,
    ),
    "packed output": (
        PackedOutput,
        [(torch.randn(2, 5, 3), torch.tensor([3, 5])), (torch.randn(3, 4, 3), torch.tensor([1, 4, 2]))],
        BATCH_FIRST,
    ),
    "between layers": (
        BetweenLayers,
        [(_tokens(5, 2), torch.tensor([3, 5])), (_tokens(4, 3), torch.tensor([1, 4, 2]))],
        TIME_FIRST,
    ),
    "stacked": (
        Stacked,
        [(torch.randn(5, 2, 3), torch.tensor([5, 3])), (torch.randn(4, 3, 3), torch.tensor([3, 2, 2]))],
        TIME_FIRST,
    ),
    "mask": (
        Masked,
        [(torch.randn(2, 4, 3), _mask(3, 1, time=4)), (torch.randn(3, 5, 3), _mask(3, 1, 4, time=5))],
        ({0: "n", 1: "t"}, {0: "n", 1: "t"}),
    ),
    "residual": (
        Residual,
        [(torch.randn(2, 5, 3), torch.tensor([3, 5])), (torch.randn(3, 4, 3), torch.tensor([1, 4, 2]))],
        BATCH_FIRST,
    ),
    "attention": (
        Attention,
        [(torch.randn(2, 5, 3), torch.tensor([3, 5])), (torch.randn(3, 6, 3), torch.tensor([1, 4, 2]))],
        BATCH_FIRST,
    ),
    "listed lengths": (
        ListedLengths,
        [(torch.randn(time, 2, 3), torch.tensor(lengths)) for time, lengths in ((5, [3, 5]), (7, [6, 2]))],
        ({0: "t"}, {}),
    ),
    "separate sequences": (
        SeparateSequences,
        [tuple(torch.randn(length, 3) for length in lengths) for lengths in ((2, 4, 3), (5, 1, 1), (1, 2, 7))],
        ({0: "a"}, {0: "b"}, {0: "c"}),
    ),
    "packed input": (
        PackedInput,
        [(_packed(5, 3, 7),), (_packed(3, 2, 2, 5),), (_packed(1),)],
        {
            "packed": {
                "data": {0: "e"},
                "batch_sizes": {0: "t"},
                "sorted_indices": {0: "n"},
                "unsorted_indices": {0: "n"},
            }
        },
    ),
    "sorted packed input": (
        PackedInput,
        [(_packed(5, 3, enforce_sorted=True),), (_packed(3, 2, 2, enforce_sorted=True),)],
        {"packed.data": {0: "e"}, "packed.batch_sizes": {0: "t"}},
    ),
    "packed input with a state": (
        PackedInput,
        [(_packed(5, 3, 7), torch.randn(1, 3, 4)), (_packed(3, 2, 2, 5), torch.randn(1, 4, 4))],
        {"packed": [{0: "e"}, {0: "t"}, {0: "n"}, {0: "n"}], "hx": {1: "n"}},
    ),
    "constant lengths": (ConstantLengths, [(torch.randn(5, 2, 3),), (torch.randn(7, 2, 3),)], ({0: "t"},)),
}


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, opset: int) -> None:
    model, calls, dynamic_shapes = MODELS[name]
    check(model(), calls, dynamic_shapes, opset_version=opset)


class Scripted(nn.Module):
    """The functions in TorchScript, with an optional initial state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(3, 4, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor, hx: torch.Tensor | None = None):  # type: ignore[no-untyped-def]
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        output, last = self.layer(packed, hx)
        padded, lengths = pad_packed_sequence(output, batch_first=True, total_length=x.size(1))
        return padded, lengths, last


@pytest.mark.parametrize("with_state", [False, True], ids=["zeros", "hx"])
def test_scripts(with_state: bool) -> None:
    calls = [inputs(Scripted().layer, lengths, time, with_state) for lengths, time in (([3, 5], 5), ([4, 1, 2], 6))]
    shapes = (*BATCH_FIRST, {1: "n"}) if with_state else BATCH_FIRST
    program = check(torch.jit.script(Scripted().eval()), calls, shapes)
    assert "TopK" not in operators(program)
    assert operators(program).count("GRU") == 1


@pytest.mark.parametrize("side", ["right", "left"])
def test_padded_sequences(side: str) -> None:
    class Padded(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
            lengths = torch.as_tensor([a.shape[0], b.shape[0]], dtype=torch.int32)
            return pad_sequence([a, b], padding_value=-1.0, padding_side=side), lengths

    calls = [tuple(torch.randn(length, 2) for length in lengths) for lengths in ((3, 1), (2, 5), (4, 4))]
    check(Padded(), calls, ({0: "a"}, {0: "b"}), opset_version=13)


def test_stacked_layers_share_the_lengths() -> None:
    model, calls, dynamic_shapes = MODELS["stacked"]
    program = fxonnx.export(model().eval(), calls[0], dynamic_shapes=dynamic_shapes)
    assert operators(program) == ["Cast", "GRU", "Squeeze", "LSTM", "Transpose", "Reshape"]


@pytest.mark.parametrize(
    ("model", "is_sorted"),
    [(LastStates(), False), (BetweenLayers(reduces=False), False), (BetweenLayers(), True), (PackedOutput(), True)],
    ids=["states", "between", "reduction", "output"],
)
def test_sequences_are_sorted_only_where_results_depend_on_the_order(model: nn.Module, is_sorted: bool) -> None:
    time_first = isinstance(model, BetweenLayers)
    features = () if isinstance(model, (LastStates, BetweenLayers)) else (3,)
    calls = []
    for lengths in ([3, 5], [1, 4, 2]):
        shape = (5, len(lengths)) if time_first else (len(lengths), 5)
        x = torch.randint(0, 9, (*shape, *features))
        calls.append((x.float() if features else x, torch.tensor(lengths)))
    program = check(model, calls, TIME_FIRST if time_first else BATCH_FIRST)
    assert ("TopK" in operators(program)) == is_sorted
    assert program.record.patterns["unsorted_sequences"] == (not is_sorted)
