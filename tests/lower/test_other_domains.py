"""Translations of the user that emit operators of other domains: types come from torch, and results may have lists in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime
import onnxscript
import pytest
import torch
from onnxscript import opset18
from torch import nn

import fxonnx
from fxonnx import TranslationError, UnsupportedOperatorError

NAMESPACE = "fxonnx_other_domains"
LIBRARY = torch.library.Library(NAMESPACE, "DEF")
OPERATORS: dict[str, tuple[str, Callable[..., Any]]] = {
    "gelu": ("(Tensor x) -> Tensor", lambda x: nn.functional.gelu(x)),
    "codes": (
        "(Tensor x, float scale) -> Tensor",
        lambda x, scale: (x / scale).round().add(8).clamp(0, 255).to(torch.uint8),
    ),
    "pair": ("(Tensor x) -> (Tensor, Tensor)", lambda x: (x * 2, x.sum(1).to(torch.int64))),
    "parts": ("(Tensor x) -> Tensor[]", lambda x: [x * 2, x + 1]),
    "mixed": ("(Tensor x) -> (Tensor, Tensor[])", lambda x: (x * 2, [x + 1, x.floor().to(torch.int64)])),
    "lists": ("(Tensor x) -> (Tensor[], Tensor, Tensor[])", lambda x: ([x + 1, x + 2], x.sum(0), [x * 3])),
}
for _name, (_schema, _kernel) in OPERATORS.items():
    LIBRARY.define(f"{_name}{_schema}")
    LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")
ops = getattr(torch.ops, NAMESPACE)
vendor = onnxscript.values.Opset("com.vend", 1)


class Model(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def exported(
    function: Callable[..., Any], name: str, translation: Any, dtype: torch.dtype, path: Path, **options: Any
) -> None:
    """Export to a file, with a dynamic number of rows."""
    table = {getattr(ops, name).default: translation}
    x = torch.linspace(-2, 2, 12).reshape(3, 4).to(dtype)
    fxonnx.export(
        Model(function).eval(), (x,), path, dynamic_shapes=({0: "n"},), custom_translation_table=table, **options
    )


def microsoft_gelu(op: Any, x: Any) -> Any:
    return op.Gelu(x, _domain="com.microsoft")


def doubled_gelu(op: Any, x: Any) -> Any:
    """Numbers after an operator whose type is not known."""
    return op.Div(op.Mul(op.Gelu(x, _domain="com.microsoft"), [2.0, 2.0, 4.0, 4.0]), [2.0, 2.0, 4.0, 4.0])


def gelu_by_g(g: Any, x: Any) -> Any:
    return g.op("com.microsoft::Gelu", x)


def codes(op: Any, x: Any, scale: float) -> Any:
    return op.QuantizeLinear(x, scale, op.const(8, ir.DataType.UINT8), _domain="com.microsoft")


def codes_by_g(g: Any, x: Any, scale: float) -> Any:
    return g.op("com.microsoft::QuantizeLinear", x, torch.tensor(scale), torch.tensor(8, dtype=torch.uint8))


def codes_cast_twice(g: Any, x: Any, scale: float) -> Any:
    """The first cast has an effect: its input has not the type of the inputs of the operator before it."""
    return g.op("Cast", g.op("Cast", codes_by_g(g, x, scale), to_i=1), to_i=2)


CASES: list[tuple[str, str, Callable[..., Any], Any, torch.dtype]] = [
    ("gelu", "gelu", lambda x: ops.gelu(x).relu() + 1, microsoft_gelu, torch.float32),
    ("gelu in half precision", "gelu", lambda x: ops.gelu(x) @ x.T, microsoft_gelu, torch.float16),
    ("gelu in a list", "gelu", lambda x: [ops.gelu(x), x], microsoft_gelu, torch.float32),
    ("symbolic gelu", "gelu", lambda x: ops.gelu(x).sum(0), gelu_by_g, torch.float32),
    ("numbers", "gelu", lambda x: ops.gelu(x) + 1, doubled_gelu, torch.float32),
    ("numbers in half precision", "gelu", lambda x: ops.gelu(x) + 1, doubled_gelu, torch.float16),
    ("codes", "codes", lambda x: ops.codes(x, 0.5).to(torch.int64) + 1, codes, torch.float32),
    ("codes as output", "codes", lambda x: ops.codes(x, 0.5), codes, torch.float32),
    ("symbolic codes", "codes", lambda x: ops.codes(x, 0.5).float() / 2, codes_by_g, torch.float32),
    ("symbolic casts", "codes", lambda x: ops.codes(x, 0.5), codes_cast_twice, torch.float32),
    (
        "list in a tuple",
        "mixed",
        lambda x: (lambda y: (y[0], y[1][1] + 1, y[1][0].sum(0)))(ops.mixed(x)),
        lambda op, x: (op.Mul(x, 2.0), [op.Add(x, 1.0), op.Cast(op.Floor(x), to=7)]),
        torch.float32,
    ),
    (
        "flat results",
        "mixed",
        lambda x: (lambda y: (y[0], y[1][1] + 1))(ops.mixed(x)),
        lambda op, x: (op.Mul(x, 2.0), op.Add(x, 1.0), op.Cast(op.Floor(x), to=7)),
        torch.float32,
    ),
    (
        "lists in a tuple",
        "lists",
        lambda x: (lambda y: (y[0][1], y[1], y[2][0] + y[0][0]))(ops.lists(x)),
        lambda op, x: ([op.Add(x, 1.0), op.Add(x, 2.0)], op.ReduceSum(x, [0], keepdims=0), [op.Mul(x, 3.0)]),
        torch.float32,
    ),
    (
        "lists of onnxscript operators",
        "lists",
        lambda x: (lambda y: (y[0][1], y[2][0]))(ops.lists(x)),
        lambda x: ([x + 1.0, x + 2.0], opset18.ReduceSum(x, [0], keepdims=0), [x * 3.0]),
        torch.float32,
    ),
    (
        "lists of a symbolic function",
        "lists",
        lambda x: (lambda y: (y[0][1], y[2][0]))(ops.lists(x)),
        lambda g, x: (
            [g.op("Add", x, torch.tensor(1.0)), g.op("Add", x, torch.tensor(2.0))],
            g.op("ReduceSum", x, torch.tensor([0]), keepdims_i=0),
            [g.op("Mul", x, torch.tensor(3.0))],
        ),
        torch.float32,
    ),
]


def check_types(graph: onnx.GraphProto, result: list[torch.Tensor]) -> None:
    """Compare the recorded types of the outputs with the tensors."""
    for value, tensor in zip(graph.output, result, strict=True):
        assert onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type) == tensor.numpy().dtype
        dims = value.type.tensor_type.shape.dim
        assert [dim.dim_value or size for dim, size in zip(dims, tensor.shape, strict=True)] == list(tensor.shape)


@pytest.mark.parametrize(
    ("function", "name", "translation", "dtype"),
    [pytest.param(function, name, translation, dtype, id=label) for label, name, function, translation, dtype in CASES],
)
def test_results(function: Any, name: str, translation: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    exported(function, name, translation, dtype, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for rows in (1, 3, 5):
        x = torch.linspace(-3, 3, rows * 4).reshape(rows, 4).to(dtype)
        expected = function(x)
        expected = list(expected) if isinstance(expected, (list, tuple)) else [expected]
        found = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        check_types(onnx.load(path).graph, expected)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(torch.from_numpy(one), other, rtol=2e-3, atol=2e-3)


def vendor_codes(op: Any, x: Any) -> Any:
    return op.Pair(x, _domain="com.vend", _outputs=2, _version=3)


@onnxscript.script(vendor, default_opset=opset18)
def squared(x: onnxscript.FLOAT) -> onnxscript.FLOAT:
    y = vendor.Scale(x)
    return opset18.Mul(y, y)


UNKNOWN: list[tuple[str, Callable[..., Any], Any]] = [
    ("pair", lambda x: ops.pair(x), vendor_codes),
    ("pair", lambda x: ops.pair(x), lambda g, x: g.op("com.vend::Pair", x, outputs=2)),
    ("parts", lambda x: ops.parts(x), vendor_codes),
    ("pair", lambda x: (lambda y: (y[0] @ y[0].T, y[1].float().relu()))(ops.pair(x)), vendor_codes),
    ("gelu", lambda x: ops.gelu(x), squared),
    ("gelu", lambda x: ops.gelu(x), lambda op, x: op.Sqrt(op.call_inline(squared, x))),
    ("gelu", lambda x: ops.gelu(x), lambda op, x: op.Neg(op.Abs(op.Gelu(x, _domain="com.vend")))),
    (
        "mixed",
        lambda x: (lambda y: (y[0], *y[1]))(ops.mixed(x)),
        lambda op, x: (op.A(x, _domain="com.vend"), vendor_codes(op, x)),
    ),
    ("gelu", lambda x: ops.gelu(x), lambda op, x: op.Concat(op.A(x, _domain="com.vend"), axis=0)),
]


@pytest.mark.parametrize(
    "options",
    [{}, {"opset_version": 11}, {"options": fxonnx.ExportOptions(functions="repeated")}],
    ids=["", "opset 11", "functions"],
)
@pytest.mark.parametrize(("name", "function", "translation"), UNKNOWN)
def test_types_of_operators_that_no_library_knows(
    name: str, function: Any, translation: Any, options: Any, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    exported(function, name, translation, torch.float32, path, **options)
    model = onnx.load(path)
    assert "com.vend" in {entry.domain for entry in model.opset_import}
    result = function(torch.linspace(-2, 2, 12).reshape(3, 4))
    check_types(model.graph, list(result) if isinstance(result, (list, tuple)) else [result])


def test_a_shape_that_is_not_known_is_named(tmp_path: Path) -> None:
    def flattened(op: Any, x: Any) -> Any:
        return op.Reshape(x, [op.dims(op.Gelu(x, _domain="com.vend"))[0], -1])

    with pytest.raises(UnsupportedOperatorError, match="the shape of val_0, computed by Gelu, is not known"):
        exported(lambda x: ops.gelu(x), "gelu", flattened, torch.float32, tmp_path / "m.onnx")


def test_results_in_other_lists_than_torch(tmp_path: Path) -> None:
    def swapped(op: Any, x: Any) -> Any:
        return [op.Add(x, 1.0), op.Mul(x, 2.0)], op.Floor(x)

    message = r"returned \[\[value, value\], value\], torch returns \[value, \[value, value\]\].*\n.*\n.*\nhint: nest the values as"
    with pytest.raises(TranslationError, match=message):
        exported(lambda x: ops.mixed(x)[1][1], "mixed", swapped, torch.float32, tmp_path / "m.onnx")

    def nested(op: Any, x: Any) -> Any:
        added, multiplied, floor = op.Add(x, 1.0), op.Mul(x, 2.0), op.Cast(op.Floor(x), to=7)
        return multiplied, [added, floor]

    exported(lambda x: ops.mixed(x)[1][1], "mixed", nested, torch.float32, tmp_path / "m.onnx")
