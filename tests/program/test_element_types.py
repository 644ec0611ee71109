"""Every dtype of torch in every role: what ONNX has is bit-exact, through files as well; the rest is one clear error."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn

import fxonnx
from fxonnx_translations._builder.initializers import TorchTensor
from fxonnx_translations._builder.sub_byte import PER_BYTE

from ..functions import Function

ROWS = torch.export.Dim.DYNAMIC
NEWEST = 26
"""The newest opset that ONNX Runtime loads."""
SINCE = {
    "bfloat16": 13,
    "float8_e4m3fn": 19,
    "float8_e4m3fnuz": 19,
    "float8_e5m2": 19,
    "float8_e5m2fnuz": 19,
    "int4": 21,
    "uint4": 21,
    "float8_e8m0fnu": 24,
    "int2": 25,
    "uint2": 25,
    **dict.fromkeys(("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"), 18),
    **dict.fromkeys(("float16", "float32", "float64", "complex32", "complex64", "complex128"), 18),
}
BYTES = ("uint8", "int8", "int4", "uint4", "int2", "uint2", *(name for name in SINCE if name.startswith("float8")))
SUB_BYTE = ("int4", "uint4", "int2", "uint2")


def numbers(name: str, rows: int, seed: int = 0) -> torch.Tensor:
    """Numbers of every kind that a dtype has, infinities and NaN included, of shape [rows, 4]."""
    dtype, shape = getattr(torch, name), (rows, 4)
    generator = torch.Generator().manual_seed(seed)
    if name in SUB_BYTE:
        count = 2 ** int(name[-1])
        low = -count // 2 if name.startswith("int") else 0
        codes = torch.randint(low, low + count, shape, generator=generator)
        return codes.to(torch.int8).view(dtype)
    if name == "float8_e8m0fnu" or dtype.is_complex or not dtype.is_floating_point:
        found = torch.randint(0, 100, shape, generator=generator).to(torch.uint8)
        return found.view(dtype) if name == "float8_e8m0fnu" else (found > 50 if name == "bool" else found.to(dtype))
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0]).repeat(rows, 1)
    return torch.where(torch.rand(shape, generator=generator) < 0.5, special, torch.randn(shape)).to(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    if real.itemsize == 1:
        return real.view(torch.uint8)
    return real.reshape(-1).clone().view(torch.uint8).reshape(*real.shape, -1)


class Roles(nn.Module):
    """A tensor as parameter, buffer, constant, input and output; moved, sliced and viewed."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_buffer("buffer", weight.view(weight.dtype)[1:])
        # torch.export copies the constants of a module, which torch cannot do for sub-byte dtypes.
        self.constant = torch.ones(1) if weight.dtype in PER_BYTE else weight[:1]
        self.dtype = weight.dtype

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        moved = [x, x.reshape(-1, 2), x[:, 1:3], x.transpose(0, 1), x.unsqueeze(1).expand(-1, 3, -1)]
        if x.dtype.itemsize == 1 and x.dtype != torch.bool:
            moved += [x.view(torch.uint8), y.view(self.dtype)]
        if x.dtype not in PER_BYTE:
            moved += [torch.cat([x, x]), x.to(torch.float32), self.weight.to(torch.float32) * 2.0]
        return *moved, self.weight, self.buffer, self.constant.reshape(-1), self.weight[:, 1:]


def compare(outputs: Any, expected: Any) -> None:
    for index, (output, wanted) in enumerate(zip(outputs, expected, strict=True)):
        real = torch.view_as_real(wanted) if wanted.is_complex() else wanted
        assert (output.dtype, output.shape) == (real.dtype, real.shape), index
        same = bits(output) == bits(real)
        if real.is_floating_point() and real.dtype not in PER_BYTE:
            # The payload of NaN is irrelevant.
            numbers = [each if each.itemsize > 1 else each.to(torch.float32) for each in (output, real)]
            is_nan = numbers[0].isnan() & numbers[1].isnan()
            same |= is_nan if real.itemsize == 1 else is_nan.unsqueeze(-1)
        assert same.all(), index


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("is_newest", [False, True], ids=["lowest", "newest"])
@pytest.mark.parametrize("name", SINCE)
def test_every_role(name: str, is_newest: bool, tmp_path: Path) -> None:
    # ONNX Runtime cannot fold constants of this type with more than 127 elements.
    model = Roles(numbers(name, 20 if name == "float8_e8m0fnu" else 80)).eval()
    codes = torch.arange(8, dtype=torch.uint8).reshape(2, 4) % 2
    shapes = {"x": {0: ROWS}, "y": {0: ROWS}}
    opset = NEWEST if is_newest else SINCE[name]
    program = fxonnx.export(model, (numbers(name, 2), codes), opset_version=opset, dynamic_shapes=shapes)
    calls = [(numbers(name, rows, rows), codes[:1].expand(rows, 4)) for rows in (2, 1, 5)]
    for call in calls:
        compare(program(*call), model(*call))
    if not is_newest:
        return
    for number, options in enumerate(({}, {"external_data": True}, {"external_data": "safetensors"})):
        path = tmp_path / f"{number}.onnx"
        program.save(path, **options)
        onnx.checker.check_model(path, full_check=True)
        program.initialize_inference_session(lambda _, path=path: session(path))
        # NumPy arrays, of ml_dtypes where NumPy lacks the type.
        x, y = calls[2]
        array = x.to(torch.complex64).numpy() if name == "complex32" else TorchTensor(x).numpy()
        if name != "complex32":
            compare(program(array, y.numpy()), model(x, y))
    buffer = io.BytesIO()
    program.save(buffer)
    stored = {tensor.name: tensor for tensor in onnx.load_from_string(buffer.getvalue()).graph.initializer}
    assert (
        stored["weight"].SerializeToString()
        == next(
            tensor for tensor in program.model_proto.graph.initializer if tensor.name == "weight"
        ).SerializeToString()
    )
    if name in SUB_BYTE:
        assert len(stored["weight"].raw_data) == 80 * 4 * int(name[-1]) // 8


@pytest.mark.parametrize("name", SUB_BYTE)
def test_weights_that_are_viewed_stay_packed(name: str) -> None:
    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(numbers(name, 3), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight[1:].view(torch.int8)

    model, x = Viewed().eval(), torch.randn(2, 4)
    program = fxonnx.export(model, (x,), opset_version=25)
    (weight,) = (value for key, value in program.model.graph.initializers.items() if key.startswith("weight"))
    assert weight.dtype == ir.DataType[name.upper()]
    assert torch.equal(program(x)[0], model(x))


def test_pairs_of_float4(tmp_path: Path) -> None:
    weight = torch.arange(160, dtype=torch.uint8).reshape(2, 80).view(torch.float4_e2m1fn_x2)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(weight, requires_grad=False)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return x, self.weight, self.weight.view(torch.uint8) + y

    x, y = torch.tensor([[0x21, 0xF7]], dtype=torch.uint8).view(weight.dtype), torch.ones(80, dtype=torch.uint8)
    program = fxonnx.export(Model().eval(), (x, y), opset_version=23)
    given, stored, viewed = program.model.graph.outputs
    assert (given.dtype, given.shape) == (ir.DataType.FLOAT4E2M1, (1, 4))
    assert (stored.dtype, stored.shape) == (ir.DataType.FLOAT4E2M1, (2, 160))
    assert (viewed.dtype, viewed.shape) == (ir.DataType.UINT8, (2, 80))
    program.save(tmp_path / "model.onnx", external_data="safetensors")
    onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)
    loaded = ir.load(tmp_path / "model.onnx").graph.initializers["weight"].const_value
    assert loaded is not None
    assert loaded.tobytes() == weight.view(torch.uint8).numpy().tobytes()
    compare(program.call_reference(x, y), Model()(x, y))
    with pytest.raises(fxonnx.RuntimeSessionError, match="Could not find an implementation for Identity"):
        program(x, y)


NO_ELEMENT_TYPE = (
    "bits8",
    "bits1x8",
    "bits16",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (1, 3, 5, 6, 7)),
)
HINT = "hint: use a dtype that ONNX has for such tensors, uint8 for packed numbers"


@pytest.mark.parametrize("name", NO_ELEMENT_TYPE)
def test_dtypes_without_an_element_type(name: str) -> None:
    dtype = getattr(torch, name)
    codes = torch.zeros(2, 2 * dtype.itemsize, dtype=torch.uint8)
    x = codes.view(dtype)
    for model, message in (
        (Function(lambda x: x.reshape(-1)), "the input 'x': ONNX has no element type for torch."),
        (Weights(x), "the parameter 'weight': ONNX has no element type for torch."),
        (Function(lambda _, c=x: c.reshape(-1)), r"the constant '\w+': ONNX has no element type for torch."),
    ):
        given = x if "input" in message else torch.ones(2)
        with pytest.raises(fxonnx.TranslationError, match=f"{message}{name}\n{HINT}"):
            fxonnx.export(model.eval(), (given,), opset_version=NEWEST)
    message = rf"translating aten.view.dtype: ONNX has no element type for torch.{name}\n(.|\n)*at: .*\n{HINT}"
    with pytest.raises(fxonnx.TranslationError, match=message):
        fxonnx.export(Function(lambda x: x.view(dtype)).eval(), (codes,), opset_version=NEWEST)


class Weights(nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: torch.Tensor) -> Any:
        return x + 1, self.weight


@pytest.mark.parametrize("name", [name for name in SINCE if SINCE[name] > 18] + ["float4_e2m1fn_x2"])
def test_older_opsets(name: str) -> None:
    x = numbers(name, 2) if name in SINCE else torch.zeros(2, 2, dtype=torch.uint8).view(getattr(torch, name))
    since = SINCE.get(name, 23)
    for model, what in ((Function(lambda x: x), "input 'x'"), (Weights(x), "parameter 'weight'")):
        message = f"opset_version: the {what} is [A-Z0-9]+, which ONNX does not have at opset {since - 1}"
        with pytest.raises(fxonnx.ArgumentError, match=f"{message}\nhint: pass opset_version={since}"):
            fxonnx.export(model.eval(), (x if "input" in what else torch.ones(2),), opset_version=since - 1)


def test_bytes_outside_of_the_range() -> None:
    weight = torch.tensor([1, 200], dtype=torch.uint8).view(torch.int4)
    message = (
        r"the parameter 'weight': it has bytes from -56 to 1, but the elements of torch.int4, one per byte, are -8 to 7"
    )
    with pytest.raises(fxonnx.TranslationError, match=message):
        fxonnx.export(Weights(weight).eval(), (torch.ones(2),), opset_version=21)
    zeros = torch.zeros(2, dtype=torch.uint8).view(torch.int4)
    program = fxonnx.export(Weights(zeros).eval(), (torch.ones(2),), opset_version=21)
    program.apply_weights({"weight": weight})
    with pytest.raises(fxonnx.SaveError, match="initializer 'weight' cannot be written: it has bytes from -56 to 1"):
        program.save(io.BytesIO())


WRONG = {
    "float64": (
        torch.ones(2, dtype=torch.float64),
        "x: expected dtype torch.float32, got torch.float64\nhint: convert the values with",
    ),
    "ndarray of float64": (np.ones(2), "x: expected dtype torch.float32, got torch.float64"),
    "float8": (torch.ones(2).to(torch.float8_e4m3fn), "x: expected dtype torch.float32, got torch.float8_e4m3fn"),
    "int4": (torch.zeros(2, dtype=torch.uint8).view(torch.int4), "x: expected dtype torch.float32, got torch.int4"),
    "complex": (torch.ones(2, dtype=torch.complex64), r"x: expected shape \[2\], got \[2, 2\]"),
    "bits": (torch.zeros(2, dtype=torch.uint8).view(torch.bits8), "x: expected dtype torch.float32, got torch.bits8"),
    "objects": (np.array([None, 1]), "x: torch has no dtype for a NumPy array of object"),
    "text": (np.array(["a", "b"]), "x: torch has no dtype for a NumPy array of <U1"),
    "dates": (np.zeros(2, "datetime64[s]"), "x: torch has no dtype for a NumPy array of datetime64"),
    "records": (np.zeros(2, [("a", "f4")]), r"x: torch has no dtype for a NumPy array of \[\('a'"),
    "long double": (np.ones(2, np.longdouble), "x: torch has no dtype for a NumPy array of float128"),
    "meta": (torch.ones(2, device="meta"), "x: expected a tensor with values, got one without"),
    "sparse": (
        torch.ones(2).to_sparse(),
        "x: expected a dense tensor, got one of layout torch.sparse_coo\nhint: convert it with",
    ),
    "list": ([1.0, 2.0], "x: the structure differs from the exported one|x: expected a tensor, got list"),
}


@pytest.fixture(scope="module")
def plus_one() -> fxonnx.ONNXProgram:
    return fxonnx.export(Function(lambda x: x + 1).eval(), (torch.ones(2),))


@pytest.mark.parametrize("case", WRONG)
def test_values_of_another_dtype(plus_one: fxonnx.ONNXProgram, case: str) -> None:
    value, message = WRONG[case]
    with pytest.raises(fxonnx.ArgumentError, match=message):
        plus_one(value)


def test_arrays_that_torch_does_not_share(plus_one: fxonnx.ONNXProgram) -> None:
    array = np.arange(2, dtype=np.float32)
    read_only = array.copy()
    read_only.setflags(write=False)
    for given in (array[::-1], array.astype(">f4"), read_only, np.arange(4, dtype=np.float32)[::2]):
        assert torch.equal(plus_one(given)[0], torch.tensor(np.ascontiguousarray(given).astype(np.float32)) + 1)
    assert plus_one(np.float32([3, 4]))[0].tolist() == [4, 5]


@pytest.mark.parametrize("name", ["int4", "uint2", "float8_e8m0fnu", "complex32"])
def test_other_uses_of_a_program(name: str, tmp_path: Path) -> None:
    x = numbers(name, 4)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", numbers(name, 4))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return x.reshape(-1, 2), self.weight, y[:, 1:]

    shapes = ({0: ROWS}, {0: ROWS})
    model = Both().eval()
    # One tensor for both inputs: torch.export distinguishes them by identity.
    program = fxonnx.export(
        model,
        (x, x),
        opset_version=25,
        dynamic_shapes=shapes,
        verify=True,
        diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path),
    )
    assert {row.status for row in program.verify()} == {"ok"}
    compare(program.call_reference(x, x), model(x, x))
    (value,) = program.compute_values(["weight"], (x, x))
    compare([value], [x])
    program.apply_weights({"weight": numbers(name, 4, seed=1)})
    compare(program(x, x)[1:2], [numbers(name, 4, seed=1)])
