"""Lists of a dynamic number of tensors as results: sequences of ONNX."""

from __future__ import annotations

import io
import re
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn

import fxonnx
from fxonnx._comparison import compare

from ..functions import Function

OPSETS = (13, 18, 20)
COUNTS = (4, 1, 2, 5, 0)
"""Numbers of tensors, the example's first."""


def _opsets(position: int) -> tuple[int, ...]:
    """All opsets for one row of a table, one each for the others, whose sequences are the same operators."""
    return OPSETS if position == 0 else (OPSETS[position % len(OPSETS)],)


def _rows(count: int) -> torch.Tensor:
    return torch.arange(1.0, count * 3 + 1).reshape(count, 3)


def _over_a_dim(x: torch.Tensor) -> Any:
    made = []
    for row in x:
        made.append(row * 2)  # noqa: PERF401 - the statement is the case
    return made


def _counted(x: torch.Tensor) -> Any:
    made, i = [], 0
    while i < x.shape[0]:
        made.append(x[i] + i)
        i += 1
    return tuple(made)


def _over_a_value(x: torch.Tensor) -> Any:
    return [x.sum() * i for i in range(x[:, 0].count_nonzero())]


def _unbound(x: torch.Tensor) -> Any:
    return x.unbind()


def _in_a_dict(x: torch.Tensor) -> Any:
    rows = [row > 2 for row in x]
    return {"rows": rows, "halves": {"first": list(x[:, :2].unbind())}, "sum": x.sum(0)}


def _beside_tensors(x: torch.Tensor) -> Any:
    rows = [row.to(torch.int64) for row in x]
    return x + 1, rows, None, rows


def _recurrent(x: torch.Tensor) -> Any:
    state, states = x.new_zeros(3), []
    for row in x:
        state = torch.tanh(state + row)
        states.append(state)
    return states, state


RESULTS = [_recurrent, _over_a_dim, _counted, _over_a_value, _unbound, _in_a_dict, _beside_tensors]


def _structure(tree: Any) -> Any:
    """A result with lists for tuples, and the tensors as Python numbers."""
    if isinstance(tree, dict):
        return {key: _structure(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_structure(value) for value in tree]
    return tree if tree is None else [str(tree.dtype), tree.double().numpy().round(5).tolist()]


@pytest.mark.parametrize("function", RESULTS)
def test_results(function: Any) -> None:
    model = Function(function).eval()
    for opset in _opsets(RESULTS.index(function)):
        program = fxonnx.export(model, (_rows(4),), dynamic_shapes={"x": {0: "n"}}, opset_version=opset)
        onnx.checker.check_model(program.model_proto, full_check=True)
        for count in COUNTS:
            x = _rows(count)
            assert _structure(program.unflatten(program(x))) == _structure(model(x)), (opset, count)
    assert {row.status for row in program.verify(sizes=[{"n": 5}])} == {"ok"}


def test_a_file() -> None:
    """ONNX Runtime returns a list of arrays; two exports write the same bytes; reports name the type."""
    written = []
    for _ in range(2):
        program = fxonnx.export(Function(_recurrent).eval(), (_rows(4),), dynamic_shapes={"x": {0: "n"}})
        program.save(file := io.BytesIO())
        written.append(file.getvalue())
    assert written[0] == written[1]
    session = onnxruntime.InferenceSession(written[0])
    assert session.get_outputs()[0].type == "seq(tensor(float))"
    states, last = session.run(None, {"x": _rows(3).numpy()})
    expected = _recurrent(_rows(3))
    torch.testing.assert_close([torch.from_numpy(state) for state in states], expected[0])
    torch.testing.assert_close(torch.from_numpy(last), expected[1])
    assert {row.status for row in program.compare().outputs} == {"ok"}
    assert re.search(r"outputs: \w+: seq\(float\[3\]\), \w+: float\[3\]", repr(program))
    program.rename_axes({"n": "m"})
    program.optimize()
    torch.testing.assert_close(program(_rows(2))[0], _recurrent(_rows(2))[0])
    assert [len(items) for items in program.call_reference(_rows(2))] == [2, 3]


def test_names() -> None:
    x = (_rows(4),)
    program = fxonnx.export(Function(_in_a_dict).eval(), x, dynamic_shapes={"x": {0: "n"}})
    assert [value.name for value in program.model.graph.outputs] == ["rows", "halves.first", "sum"]
    named = fxonnx.export(
        Function(_recurrent).eval(),
        x,
        dynamic_axes={"x": {0: "n"}, "states": {0: "n"}},
        output_names=["states", "last"],
    )
    assert [value.name for value in named.model.graph.outputs] == ["states", "last"]


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> Any:
        return [self.layer(row) for row in x]


def test_a_mismatch_is_located() -> None:
    program = fxonnx.export(_Scaled().eval(), (torch.ones(3, 32),), dynamic_shapes={"x": {0: "n"}})
    program.model.graph.initializers["layer.bias"].const_value = ir.tensor(torch.ones(32).numpy())
    with pytest.raises(fxonnx.VerificationError, match=r"item 0: 32 of 32 elements differ(?s:.*)test_sequence_values"):
        program.verify(locate=True)


def test_quantized_models() -> None:
    program = fxonnx.export(
        _Scaled().eval(), (torch.ones(3, 32),), dynamic_shapes={"x": {0: "n"}}, quantize=fxonnx.QuantizeConfig("int8")
    )
    assert program.verify()[0].shape == (3, 32)


def _beside_bfloat16(x: torch.Tensor) -> Any:
    return x.unbind(), x.to(torch.bfloat16)


def test_refused_results() -> None:
    def export(x: torch.Tensor, **options: Any) -> None:
        fxonnx.export(Function(_unbound).eval(), (x,), dynamic_shapes={"x": {0: "n"}}, **options)

    with pytest.raises(
        fxonnx.TranslationError, match=r"is a list of tensors of UINT8, of which(?s:.*)hint: return torch.stack"
    ):
        export(_rows(4).to(torch.uint8))
    program = fxonnx.export(Function(_beside_bfloat16).eval(), (_rows(4),), dynamic_shapes={"x": {0: "n"}})
    with pytest.raises(
        fxonnx.RuntimeSessionError,
        match=r"return the output '\w+', torch.bfloat16, of a model with lists(?s:.*)hint: ",
    ):
        program(_rows(4))
    with pytest.raises(fxonnx.ArgumentError, match=r"opset_version: the output '\w+' is a list of tensors(?s:.*)=11"):
        export(_rows(4), opset_version=10)


def test_comparison_of_lists() -> None:
    """The first item that differs is named; a list of another length is a mismatch of its own."""
    x = _rows(3)
    items = list(x)
    (same, other, longer, no_list) = compare(
        list("abcd"), [x, items, x, 1], [items, [items[0], items[1] + 1, items[2]], items[:2], items]
    )
    assert (same.status, same.shape) == ("ok", (3, 3))
    assert other.message.startswith("item 1: 3 of 3 elements differ by more than")
    assert longer.message == "a list of 2 tensors instead of 3"
    assert no_list.message == "eager torch does not return a list"
