"""Lists of a dynamic number of tensors as arguments and results: sequences of ONNX."""

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
from torch.utils import _pytree as pytree

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
    named = fxonnx.torch_onnx_export(
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


def _items(count: int, *sizes: int) -> list[torch.Tensor]:
    return [torch.arange(6.0).reshape(sizes or (2, 3)) + index for index in range(count)]


def _doubled(xs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [x * 2 for x in xs]


def _total(xs: list[torch.Tensor]) -> Any:
    total = torch.zeros_like(xs[0])
    for x in _doubled(xs):
        total = total + x
    return total, sum(xs) / len(xs), xs[-1]


def _carried(xs: list[torch.Tensor], h: torch.Tensor) -> Any:
    states = []
    for index, x in enumerate(xs):
        h = torch.tanh(h + x) * index
        states.append(h)
    return states, h


def _joined(xs: list[torch.Tensor]) -> Any:
    return {
        "stack": torch.stack(xs, 1),
        "rows": torch.cat(xs),
        "lists": [[x * 2 for x in reversed(xs)], xs, xs[1:] + xs],
    }


def _pairs(xs: list[torch.Tensor], ys: list[torch.Tensor]) -> Any:
    made = [x @ y.T for x, y in zip(xs, ys, strict=False)]
    for i in range(1, len(xs)):
        made.append(xs[i] @ ys[i - 1].T)  # noqa: PERF401 - the statement is the case
    return torch.stack(made).amax(0)


def _nested(x: dict[str, Any], y: torch.Tensor) -> Any:
    return torch.stack(list(x["items"])).sum(0) + x["bias"] * y


N = fxonnx.TensorList("n", {0: "rows"})
ARGUMENTS: list[tuple[Any, Any, Any]] = [
    (_carried, lambda n: (_items(n), torch.ones(2, 3)), (fxonnx.TensorList("n", {-2: "rows"}), {0: "rows"})),
    (_total, lambda n: (_items(n),), {"x": N}),
    (_joined, lambda n: (_items(n),), {"x": fxonnx.TensorList(torch.export.Dim("n", min=1, max=5))}),
    (_pairs, lambda n: (_items(n), _items(n)), (N, N)),
    (
        _nested,
        lambda n: ({"items": _items(n), "bias": torch.ones(2, 3)}, torch.ones(n, 1, 1)),
        {"x": {"items": N, "bias": {0: "rows"}}, "y": {0: "n"}},
    ),
]


@pytest.mark.parametrize(("function", "arguments", "shapes"), ARGUMENTS, ids=[row[0].__name__ for row in ARGUMENTS])
def test_arguments(function: Any, arguments: Any, shapes: Any) -> None:
    model = Function(function).eval()
    for opset in _opsets([row[0] for row in ARGUMENTS].index(function)):
        program = fxonnx.export(model, arguments(4), dynamic_shapes=shapes, opset_version=opset)
        onnx.checker.check_model(program.model_proto, full_check=True)
        for count in COUNTS[:-1]:
            given = arguments(count)
            torch.testing.assert_close(_tensors(program.unflatten(program(*given))), _tensors(model(*given)))
    assert {row.status for row in program.verify(sizes=[{"n": 5}])} == {"ok"}
    assert program(*program.record.example_inputs[0])


def _tensors(tree: Any) -> Any:
    return pytree.tree_map(torch.as_tensor, pytree.tree_leaves(tree))


def test_a_file_with_list_inputs() -> None:
    written = []
    for _ in range(2):
        program = fxonnx.export(
            Function(_carried).eval(), (_items(4), torch.ones(2, 3)), dynamic_shapes=(N, {0: "rows"})
        )
        program.save(file := io.BytesIO())
        written.append(file.getvalue())
    assert written[0] == written[1]
    session = onnxruntime.InferenceSession(written[0])
    assert [(value.name, value.type) for value in session.get_inputs()] == [
        ("x", "seq(tensor(float))"),
        ("y", "tensor(float)"),
    ]
    states, last = session.run(None, {"x": [item.numpy() for item in _items(3)], "y": torch.ones(2, 3).numpy()})
    expected = _carried(_items(3), torch.ones(2, 3))
    torch.testing.assert_close([torch.from_numpy(state) for state in states], expected[0])
    torch.testing.assert_close(torch.from_numpy(last), expected[1])
    assert "inputs:  x: seq(float[rows, 3]), y: float[rows, 3]" in repr(program)
    assert [len(items) for items in program.compute_values(["x", "x_stacked"], (_items(3), torch.ones(2, 3)))] == [3, 3]
    program.optimize()
    arrays = [item.numpy() for item in _items(2)]
    torch.testing.assert_close(program(arrays, torch.ones(2, 3))[0], _carried(_items(2), torch.ones(2, 3))[0])
    assert [len(items) for items in program.call_reference(_items(2), torch.ones(2, 3))] == [2, 2]


REFUSED_CALLS = [
    ([], r"x: the list is empty, but ONNX Runtime requires at least one tensor(?s:.*)skip the call"),
    (torch.ones(4, 2, 3), r"x: expected a list of tensors, got a Tensor(?s:.*)list\(xs\) for the items of a tuple"),
    (tuple(_items(2)), "x: expected a list of tensors, got a tuple"),
    ([1.0, 2.0], "x: expected a list of tensors, got a list of float"),
    (
        [torch.ones(2, 3), torch.ones(2, 1)],
        r"x: the tensors of a list must have one shape and dtype: tensor 0 is float32 of shape \[2, 3\], tensor 1 is "
        r"float32 of shape \[2, 1\](?s:.*)pad them",
    ),
    ([torch.ones(2, 3), torch.ones(2, 3).double()], r"tensor 1 is float64 of shape \[2, 3\]"),
    (_items(2, 3, 2), r"x: expected shape \[rows, 3\], got \[3, 2\]"),
    ([torch.ones(2, 3, dtype=torch.int32)], "x: expected dtype torch.float32, got torch.int32"),
]


def test_refused_calls() -> None:
    program = fxonnx.export(Function(_total).eval(), (_items(4),), dynamic_shapes={"x": N})
    for given, match in REFUSED_CALLS:
        with pytest.raises(fxonnx.ArgumentError, match=match):
            program(given)


def _modifies(xs: list[torch.Tensor]) -> torch.Tensor:
    xs[0].add_(1)
    return torch.stack(xs).sum(0)


def _foreach(xs: list[torch.Tensor]) -> Any:
    return torch._foreach_add(xs, 1.0)


REFUSED_EXPORTS: list[tuple[Any, Any, Any, dict[str, Any], str]] = [
    (_total, [], N, {}, "x: the list is empty"),
    (_total, [torch.ones(2), torch.ones(3)], N, {}, "x: the tensors of a list must have one shape and dtype"),
    (_total, torch.ones(2, 3), N, {}, "x: expected a list of tensors, got a Tensor"),
    (
        _total,
        _items(2),
        fxonnx.TensorList("n", {2: "h"}),
        {},
        r"the tensors of x have shape \(2, 3\), so they have no axis 2",
    ),
    (_total, _items(2), N, {"frozen": ["x"]}, "frozen: 'x' matches a list whose number(?s:.*)leave its TensorList out"),
    (_total, _items(2), N, {"more_inputs": [((_items(3),), {})]}, "more_inputs: dynamic_shapes has a TensorList"),
    (_total, _items(2), N, {"opset_version": 10}, "opset_version: the input 'x' is a list of tensors, which ONNX"),
    (
        _total,
        [torch.ones(2, dtype=torch.bfloat16)],
        N,
        {},
        "is a list of tensors of BFLOAT16, of which ONNX has no sequence",
    ),
    (
        _modifies,
        _items(2),
        N,
        {"state": "outputs"},
        "forward writes to a tensor of the list 'x', which cannot be an output",
    ),
    (_foreach, _items(2), N, {}, r"_foreach_add is called with a list whose length(?s:.*)the result of torch.stack"),
]


@pytest.mark.parametrize(("function", "items", "spec", "options", "match"), REFUSED_EXPORTS)
def test_refused_arguments(function: Any, items: Any, spec: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(fxonnx.ExportError, match=match):
        fxonnx.export(Function(function).eval(), (items,), dynamic_shapes={"x": spec}, **options)


def test_refused_specs() -> None:
    shared = _items(2)
    with pytest.raises(fxonnx.ArgumentError, match=r"passed in several places(?s:.*)hint: pass copies of the list"):
        fxonnx.export(Function(_pairs).eval(), (shared, shared), dynamic_shapes=(N, None))
    with pytest.raises(fxonnx.ArgumentError, match=r"a TensorList is not in the place of a list(?s:.*)hint: use it as"):
        fxonnx.export(Function(_total).eval(), (_items(2),), dynamic_shapes={"x_0": N})
    for length in (3, "", None, torch.export.Dim.STATIC):
        with pytest.raises(fxonnx.ArgumentError, match=r"the length of a TensorList is (?s:.*)needs no TensorList"):
            fxonnx.TensorList(length)
    with pytest.raises(fxonnx.ArgumentError, match="the dims of a TensorList are"):
        fxonnx.TensorList("n", ["h"])  # type: ignore[arg-type]


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
    assert no_list.message == "a list instead of int"
