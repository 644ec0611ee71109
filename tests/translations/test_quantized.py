from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest
import torch
import torch.ao.quantization.fx._decomposed

import fxonnx
from tests.functions import Function

from .harness import Case, T, run

Q = torch.ops.quantized_decomposed
INT8, UINT8, INT16, UINT16, INT32 = torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32
HALF, BFLOAT, DOUBLE, INT64 = torch.float16, torch.bfloat16, torch.float64, torch.int64
X = T(("n", 3, "m"))
SCALES, ZEROS = torch.tensor([0.02, 0.1, 1.7]), torch.tensor([0, 3, 100])
BYTES = T(("n", 3, "m"), UINT8, 0, 256)
SIGNED = T(("n", 3, "m"), INT8, -128, 128)
ROW_SCALES = T(("n", 3, 1), DOUBLE, 0.01, 0.02)
ROW_ZEROS = T(("n", 3, 1), INT64, -9, 9)
GROUP_SCALES = T(("n", 2), low=0.01, high=0.02)
RANGES = {INT8: (-128, 127), UINT8: (0, 255), INT16: (-(2**15), 2**15 - 1), UINT16: (0, 2**16 - 1)}


def _name(overload: str) -> str:
    return f"quantized_decomposed.{overload}"


def _quantize(dtype: torch.dtype, scale: float = 0.017, zero: int = 3, limits: tuple[int, int] | None = None) -> Any:
    return lambda x: Q.quantize_per_tensor(x, scale, zero, *(limits or RANGES[dtype]), dtype)


def _dequantize(dtype: torch.dtype, zero: int = 3, **options: Any) -> Any:
    return lambda x: Q.dequantize_per_tensor(x, 0.017, zero, *RANGES.get(dtype, (0, 1)), dtype, **options)


CASES = (
    Case(_name("quantize_per_tensor.default"), _quantize(UINT8), (X,), ops=("QuantizeLinear",)),
    Case(_name("quantize_per_tensor.default"), _quantize(INT8), (X,), "11", 11, ops=("QuantizeLinear",)),
    Case(_name("quantize_per_tensor.default"), _quantize(INT8, limits=(-127, 127)), (X,), "narrow"),
    Case(_name("quantize_per_tensor.default"), _quantize(INT16, 1e-4), (X,), "int16", 21, ops=("QuantizeLinear",)),
    Case(_name("quantize_per_tensor.default"), _quantize(INT16, 1e-4), (X,), "int16-20"),
    Case(_name("quantize_per_tensor.default"), _quantize(INT32, limits=(-(2**20), 2**20)), (X,), "int32"),
    Case(_name("quantize_per_tensor.default"), _quantize(UINT8), (T(("n",), HALF),), "half"),
    Case(_name("quantize_per_tensor.default"), _quantize(UINT8), (T(("n",), BFLOAT),), "bfloat16"),
    Case(_name("quantize_per_tensor.default"), _quantize(UINT8), (T(()),), "0-dim"),
    Case(
        _name("quantize_per_tensor.tensor"),
        lambda x, s, z: Q.quantize_per_tensor.tensor(x, s, z, -128, 127, INT8),
        (X, T((1,), DOUBLE, 0.01, 0.02), T((1,), INT64, 0, 9)),
    ),
    Case(
        _name("quantize_per_tensor.tensor2"),
        lambda x, s, z, low, high: Q.quantize_per_tensor.tensor2(x, s, z, low, high, INT8),
        (X, torch.tensor(0.02), torch.tensor(3), torch.tensor(-100), torch.tensor(90)),
    ),
    Case(_name("dequantize_per_tensor.default"), _dequantize(UINT8), (BYTES,), ops=("DequantizeLinear",)),
    Case(_name("dequantize_per_tensor.default"), _dequantize(INT8), (SIGNED,), "11", 11, ops=("DequantizeLinear",)),
    Case(_name("dequantize_per_tensor.default"), _dequantize(INT32, 0), (T(("n",), INT32, -9, 9),), "int32"),
    Case(_name("dequantize_per_tensor.default"), _dequantize(INT32), (T(("n",), INT32, -9, 9),), "int32-shifted"),
    *(
        Case(_name("dequantize_per_tensor.default"), _dequantize(UINT8, out_dtype=out), (BYTES,), str(out))
        for out in (HALF, BFLOAT, DOUBLE)
    ),
    Case(
        _name("dequantize_per_tensor.tensor"),
        lambda x, s, z: Q.dequantize_per_tensor.tensor(x, s, z, -128, 127, INT8),
        (SIGNED, T((1,), DOUBLE, 0.01, 0.02), T((1,), INT64, 0, 9)),
    ),
    Case(
        _name("dequantize_per_tensor.tensor2"),
        lambda x, s, z, low, high: Q.dequantize_per_tensor.tensor2(x, s, z, low, high, INT8),
        (SIGNED, torch.tensor(0.02), torch.tensor(3), torch.tensor(-100), torch.tensor(90)),
    ),
    *(
        Case(
            _name("quantize_per_channel.default"),
            lambda x: Q.quantize_per_channel(x, SCALES, ZEROS, 1, 0, 255, UINT8),
            (X,),
            f"{opset}",
            opset,
        )
        for opset in (11, 13, 23)
    ),
    Case(
        _name("quantize_per_channel.default"),
        lambda x: Q.quantize_per_channel(x, SCALES.double(), ZEROS.float(), 1, 0, 255, UINT8),
        (X,),
        "floats",
    ),
    *(
        Case(
            _name("dequantize_per_channel.default"),
            lambda x, z=zeros: Q.dequantize_per_channel(x, SCALES, z, 1, 0, 255, UINT8),
            (BYTES,),
            f"{name}-{opset}",
            opset,
        )
        for opset in (11, 13, 23)
        for name, zeros in (
            ("int64", ZEROS),
            ("none", None),
            ("float", torch.tensor([0.5, 1.0, 2.25])),
            # In the type of the input the differences wrap around.
            ("uint8", ZEROS.to(UINT8)),
        )
    ),
    Case(
        _name("fake_quant_per_channel.default"),
        lambda x: Q.fake_quant_per_channel(x, SCALES, ZEROS, 1, 0, 255),
        (X,),
    ),
    Case(
        _name("quantize_per_token.default"),
        lambda x, s, z: Q.quantize_per_token(x, s, z, -128, 127, INT8),
        (X, ROW_SCALES, ROW_ZEROS),
    ),
    Case(
        _name("dequantize_per_token.default"),
        lambda x, s, z: Q.dequantize_per_token(x, s, z, -128, 127, INT8, torch.float32),
        (SIGNED, ROW_SCALES, ROW_ZEROS),
    ),
    Case(
        _name("quantize_per_channel_group.default"),
        lambda x, s, z: Q.quantize_per_channel_group(x, s, z, -8, 7, INT8, 32),
        (T((4, 64)), T((4, 2), low=0.2, high=0.4), T((4, 2), INT32, -3, 3)),
    ),
    *(
        Case(
            _name("dequantize_per_channel_group.default"),
            lambda x, s, z: Q.dequantize_per_channel_group(x, s, z, -8, 7, INT8, 32, torch.float32),
            (T(("n", 64), INT8, -8, 8), GROUP_SCALES, T(("n", 2), INT32, -3, 3)),
            f"{opset}",
            opset,
        )
        for opset in (13, 21, 23)
    ),
    Case(
        _name("dequantize_per_channel_group.default"),
        lambda x, s: Q.dequantize_per_channel_group(x, s, None, -8, 7, INT8, 128, torch.float32),
        (T(("n", 64), INT8, -8, 8), T(("n", 1), low=0.1, high=0.2)),
        "one-group",
        21,
    ),
    *(
        Case(_name("choose_qparams.tensor"), lambda x: Q.choose_qparams(x, -128, 127, 1e-5, INT8), (x,), name)
        for name, x in (("both", X), ("positive", T(("n",), low=1.0)), ("zeros", torch.zeros(3)))
    ),
    *(
        Case(
            _name("choose_qparams_symmetric.tensor"),
            lambda x, d=dtype: Q.choose_qparams_symmetric(x, *RANGES[d], 1e-5, d),
            (X,),
            str(dtype),
        )
        for dtype in (INT8, UINT8)
    ),
    *(
        Case(
            _name("choose_qparams_per_token.default"),
            # The dtypes of torch's kernel and of its fake tensors differ.
            lambda x: [value.float() for value in Q.choose_qparams_per_token(x, INT8)],
            (x,),
            str(x.dtype),
        )
        for x in (X, T(("n", 3), HALF), T(("n", 3), BFLOAT))
    ),
    Case(
        _name("choose_qparams_per_token_asymmetric.default"),
        lambda x: Q.choose_qparams_per_token_asymmetric(x, INT8),
        (X,),
    ),
    Case(
        _name("_choose_qparams_per_token_asymmetric_impl.default"),
        lambda x: Q._choose_qparams_per_token_asymmetric_impl(x, INT8),
        (X,),
    ),
    Case(_name("convert_element_type.no_fuse"), lambda x: Q.convert_element_type.no_fuse(x, HALF), (X,)),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_eager(case: Case) -> None:
    run(case)


def test_a_quantized_weight_is_stored_in_8_bits() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.randint(-128, 128, (3, 4), dtype=INT8))
            self.register_buffer("scales", SCALES)
            self.register_buffer("zeros", ZEROS)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = Q.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -128, 127, INT8)
            x = Q.quantize_per_tensor(x, 0.02, 3, -128, 127, INT8)
            return Q.dequantize_per_tensor(x, 0.02, 3, -128, 127, INT8) @ weight.T

    program = fxonnx.export(Model().eval(), (torch.randn(2, 4),), verify=True)
    held = {value.dtype: value.shape for value in program.model.graph.initializers.values() if len(value.shape) == 2}
    assert set(held) == {ir.DataType.INT8}
    assert sorted({node.op_type for node in program.model.graph}) == [
        "DequantizeLinear",
        "MatMul",
        "QuantizeLinear",
    ]


def _reduced(x: torch.Tensor, scale: float = 0.02, zero: int = 0) -> torch.Tensor:
    integers = Q.quantize_per_tensor(x, scale, zero, 0, 127, UINT8)
    return Q.dequantize_per_tensor(integers, scale, zero, 0, 127, UINT8)


@pytest.mark.parametrize(
    ("function", "clips"),
    [
        (_reduced, 1),
        (lambda x: _reduced(x.relu()), 1),
        (lambda x: _reduced(x.sigmoid(), 1 / 127), 0),
        (lambda x: _reduced(x.sigmoid(), 1 / 128), 1),
        (lambda x: _reduced(x.sigmoid(), 1 / 100, 30), 1),
        (lambda x: _reduced(x.tanh(), 1 / 60, 64), 0),
        (lambda x: _reduced(x.clamp(0, 6), 6 / 127), 0),
        (lambda x: _reduced(_reduced(x, 0.02, 3).reshape(-1), 0.02, 3), 1),
        (lambda x: _reduced(_reduced(x, 0.02, 3).reshape(-1), 0.01, 3), 2),
        (lambda x: _reduced(torch.nn.functional.max_pool1d(_reduced(x), 2)), 1),
    ],
)
def test_limits_that_no_integer_exceeds_are_left_out(function: Any, clips: int) -> None:
    """The limits of 7 bits, for processors whose products of bytes saturate, and the range of the integers before."""
    x = torch.linspace(-9, 9, 60).reshape(2, 3, 10)
    program = fxonnx.export(Function(function).eval(), (x,), verify=True)
    assert [node.op_type for node in program.model.graph if node.outputs[0].dtype == ir.DataType.UINT8].count(
        "Clip"
    ) == clips


class Table(torch.nn.Module):
    """An embedding whose table is dequantized."""

    def __init__(self, dequantize: Any) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.dequantize = dequantize
        self.register_buffer("codes", torch.randint(-99, 99, (20, 64), dtype=INT8, generator=generator))
        self.register_buffer("scales", torch.rand(20, generator=generator) + 0.1)
        self.register_buffer("zeros", torch.randint(-9, 9, (20,), generator=generator))
        self.register_buffer("groups", torch.rand(20, 2, generator=generator) + 0.1)
        self.register_buffer("narrow", torch.randint(-8, 8, (20, 64), dtype=INT8, generator=generator))
        self.register_buffer("unsigned", (self.narrow + 8).to(torch.uint8))
        self.register_buffer("narrow_zeros", torch.randint(-8, 8, (20, 2), dtype=INT8, generator=generator))
        self.register_buffer("ends", self.narrow_zeros[:, :1].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(x, self.dequantize(self)).tanh()


LIMITS, LIMITS_4 = (-128, 127, INT8), (-8, 7, INT8)
UNSIGNED = (0, 15, torch.uint8)


@pytest.mark.parametrize(
    "dequantize",
    [
        lambda m: Q.dequantize_per_channel(m.codes, m.scales, m.zeros, 0, *LIMITS),
        lambda m: Q.dequantize_per_channel(m.codes, m.scales, None, 0, *LIMITS),
        lambda m: Q.dequantize_per_channel(m.codes, m.scales, m.zeros.float() + 0.5, 0, *LIMITS),
        lambda m: Q.dequantize_per_channel(m.codes[:, :20], m.scales, m.zeros, 1, *LIMITS),
        lambda m: Q.dequantize_per_tensor(m.codes, 0.1, 3, *LIMITS),
        lambda m: Q.dequantize_per_channel_group(m.codes, m.groups, None, *LIMITS, 32, torch.float32),
        lambda m: m.codes.half() * 0.5,
        lambda m: Q.dequantize_per_channel_group(m.narrow, m.groups[:, :1], m.ends, *LIMITS_4, 64, torch.float32),
        lambda m: Q.dequantize_per_channel_group(m.unsigned, m.groups, None, *UNSIGNED, 32, torch.float32),
        lambda m: Q.dequantize_per_channel_group(m.narrow, m.groups, m.narrow_zeros, *LIMITS_4, 32, torch.float32),
    ],
    ids=["rows", "symmetric", "float", "columns", "tensor", "groups", "half", "rows4", "groups_u4", "groups_s4"],
)
@pytest.mark.parametrize("opset", [13, 21, 23])
def test_only_rows_of_a_table_are_dequantized(dequantize: Any, opset: int, request: pytest.FixtureRequest) -> None:
    model, x = Table(dequantize).eval(), torch.tensor([[3, 19], [0, 7]])
    program = fxonnx.export(model, (x,), dynamic_shapes=({0: "n"},), opset_version=opset)
    # Below the opset of blocks, groups are reshaped.
    if opset >= 21 or "groups" not in request.node.name:
        computed = [value for node in program.model.graph for value in node.outputs]
        assert not [value.name for value in computed if value.shape is not None and value.shape[0] == 20]
    for example in (x, torch.tensor([[5, 5]])):
        with torch.no_grad():
            torch.testing.assert_close(program(example)[0], model(example), rtol=1e-6, atol=1e-6)
