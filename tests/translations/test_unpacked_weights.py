"""Weights that a model unpacks or rounds in plain torch: their codes are stored, not their values."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxonnx

from .test_stored_weights import op_types, saved

ROWS, COLUMNS, GROUP = 48, 128, 32
INT8, INT32, UINT8, HALF = torch.int8, torch.int32, torch.uint8, torch.float16
ANY = (-(2**31), 2**31 - 1)


def _random(shape: tuple[int, ...], low: int = ANY[0], high: int = ANY[1], dtype: torch.dtype = INT32) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def _scales(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.rand(shape, generator=torch.Generator().manual_seed(7)) / 50 + 1e-3).to(dtype)


class Packed(nn.Module):
    """A linear layer of packed integers; ``weight`` computes its (out_features, in_features) weight."""

    scale_dtype = torch.float32

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.linspace(-1, 1, ROWS).to(self.scale_dtype))

    def weight(self) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight(), self.bias)


class GPTQ(Packed):
    """Codes packed along the input features, groups by an index, zero points less 1."""

    offset = 1

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("qweight", _random((COLUMNS // 8, ROWS)))
        self.register_buffer("qzeros", _random((COLUMNS // GROUP, ROWS // 8)) & 0x77777777)
        self.register_buffer("scales", _scales(COLUMNS // GROUP, ROWS, dtype=self.scale_dtype))
        self.register_buffer("g_idx", torch.arange(COLUMNS, dtype=INT32) // GROUP)
        self.register_buffer("wf", torch.arange(0, 32, 4, dtype=INT32), persistent=False)

    def parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        zeros = torch.bitwise_right_shift(self.qzeros.unsqueeze(2).expand(-1, -1, 8), self.wf).to(INT8)
        zeros = (torch.bitwise_and(zeros, 15) + self.offset).reshape(self.scales.shape)
        codes = torch.bitwise_right_shift(self.qweight.unsqueeze(1).expand(-1, 8, -1), self.wf[:, None]).to(INT8)
        return torch.bitwise_and(codes, 15).reshape(COLUMNS, ROWS), zeros

    def weight(self) -> torch.Tensor:
        codes, zeros = self.parts()
        groups = self.g_idx.long()
        return (self.scales[groups] * (codes - zeros[groups])).t()


class GroupedGPTQ(GPTQ):
    """The same with an axis of groups, in half precision."""

    scale_dtype = HALF

    def weight(self) -> torch.Tensor:
        codes, zeros = self.parts()
        groups = codes.reshape(-1, GROUP, ROWS) - zeros.unsqueeze(1)
        return (self.scales.unsqueeze(1) * groups).reshape(COLUMNS, ROWS).t()


class ShiftedGPTQ(GPTQ):
    """A zero point of 16 does not fit 4 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.qzeros.fill_(-1)


class UngroupedGPTQ(GPTQ):
    """Input features in the order of their activations: the groups are not blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.g_idx.copy_(self.g_idx[torch.randperm(COLUMNS, generator=torch.Generator().manual_seed(3))])


class AWQ(Packed):
    """Codes packed along the output features in an interleaved order."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("qweight", _random((COLUMNS, ROWS // 8)))
        self.register_buffer("qzeros", _random((COLUMNS // GROUP, ROWS // 8)))
        self.register_buffer("scales", _scales(COLUMNS // GROUP, ROWS))

    def unpacked(self, packed: torch.Tensor) -> torch.Tensor:
        codes = torch.bitwise_right_shift(packed[:, :, None], torch.arange(0, 32, 4)).to(INT8).flatten(1)
        order = torch.arange(ROWS).view(-1, 8)[:, [0, 4, 1, 5, 2, 6, 3, 7]].view(-1)
        return torch.bitwise_and(codes[:, order], 15)

    def weight(self) -> torch.Tensor:
        zeros = self.unpacked(self.qzeros).repeat_interleave(GROUP, dim=0)
        return ((self.unpacked(self.qweight) - zeros) * self.scales.repeat_interleave(GROUP, dim=0)).t()


class HQQ(Packed):
    """Two codes of a byte are in different rows; zero points are floating-point numbers."""

    def __init__(self) -> None:
        super().__init__()
        count = ROWS * COLUMNS // 64
        self.W_q = nn.Parameter(_random((count // 2, 64), 0, 256, UINT8), requires_grad=False)
        self.register_buffer("scale", _scales(count, 1))
        self.register_buffer("zero", _scales(count, 1) * 400)

    def weight(self) -> torch.Tensor:
        step = self.W_q.shape[0]
        codes = torch.empty([2 * step, self.W_q.shape[1]])
        codes[:step] = (self.W_q & 0b11110000) >> 4
        codes[step:] = self.W_q & 0b00001111
        return ((codes - self.zero) * self.scale).reshape(ROWS, COLUMNS)


class CompressedTensors(Packed):
    """Codes written to strided slices of a tensor; signed zero points."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight_packed", _random((ROWS, COLUMNS // 8)))
        self.register_buffer("weight_scale", _scales(ROWS, COLUMNS // GROUP))
        self.register_buffer("weight_zero_point", _random((ROWS, COLUMNS // GROUP), -8, 8, INT8))

    def weight(self) -> torch.Tensor:
        codes = torch.zeros((ROWS, COLUMNS), dtype=INT32)
        for place in range(8):
            codes[:, place::8] = (self.weight_packed >> (4 * place)) & 15
        groups = (codes - 8).to(INT8).unflatten(-1, (-1, GROUP)).to(torch.float32)
        groups = groups - self.weight_zero_point.unsqueeze(-1).to(torch.float32)
        return (groups * self.weight_scale.unsqueeze(-1)).flatten(-2, -1)


class MXFP4(Packed):
    """Codes of 4-bit floating-point numbers, looked up in a table, with exponents of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("blocks", _random((ROWS, COLUMNS // 32, 16), 0, 256, UINT8))
        self.register_buffer("exponents", _random((ROWS, COLUMNS // 32), 118, 126, UINT8))

    def weight(self) -> torch.Tensor:
        positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
        table = torch.tensor(positive + [-value for value in positive])
        blocks = self.blocks.reshape(-1, 16)
        out = torch.empty(blocks.shape[0], 32)
        out[:, 0::2] = table[(blocks & 0x0F).to(torch.int)]
        out[:, 1::2] = table[(blocks >> 4).to(torch.int)]
        torch.ldexp(out, self.exponents.to(INT32).reshape(-1, 1) - 127, out=out)
        return out.reshape(ROWS, COLUMNS)


class HalfMXFP4(MXFP4):
    """The same, rounded to half precision."""

    scale_dtype = HALF

    def weight(self) -> torch.Tensor:
        return super().weight().to(HALF)


class Bytes(Packed):
    """Codes of 8 bits, as models without packing store them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", _random((ROWS, COLUMNS), -128, 128, INT8))
        self.register_buffer("scales", _scales(ROWS, 1))

    def weight(self) -> torch.Tensor:
        return self.codes.to(torch.float32) * self.scales


class Rounded(Packed):
    """A quantizer of a weight: Div, Round, Clip, Mul."""

    bits = 8

    def __init__(self) -> None:
        super().__init__()
        self.master = nn.Parameter(torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)))
        self.register_buffer("scale", _scales(ROWS, 1))

    def weight(self) -> torch.Tensor:
        return (torch.clamp(torch.round(self.master / self.scale + 0.0), -127, 127) - 0.0) * self.scale


class RoundedByWhere(Rounded):
    """Limits by comparisons, and a scale computed from the weight."""

    def weight(self) -> torch.Tensor:
        scale = self.master.abs().amax(1, keepdim=True).clamp(min=1e-8) / 127
        low, high = torch.tensor(-127.0), torch.tensor(127.0)
        codes = torch.round(self.master / scale)
        codes = torch.where(codes > high, high, codes)
        return torch.where(codes < low, low, codes) * scale


class RoundedBlocks(Rounded):
    """Blocks of 4 bits; the scale is a divisor."""

    bits = 4

    def weight(self) -> torch.Tensor:
        blocks = self.master.view(-1, GROUP)
        scale = 7 / blocks.abs().amax(-1, keepdim=True)
        return ((blocks * scale).round().clamp(-8, 7) / scale).view(ROWS, COLUMNS)


class RoundedTensor(Rounded):
    """One scale, which is a number."""

    def weight(self) -> torch.Tensor:
        return torch.clamp(torch.round(self.master / 0.02), -128, 127) * torch.tensor(0.02)


class RoundedByBits(Rounded):
    """Limits computed from a number of bits, which is a buffer; a scale from a reduction with two results."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bit_width", torch.tensor(4.0))

    def weight(self) -> torch.Tensor:
        high = 2 ** (self.bit_width - 1) - 1
        low = -(2 ** (self.bit_width - 1))
        scale = self.master.abs().max(1, keepdim=True).values / high
        codes = torch.round(self.master / scale)
        codes = torch.where(codes > high, high.type_as(codes), codes)
        return torch.where(codes < low, low.type_as(codes), codes) * scale


class PaddedBlocks(Rounded):
    """Blocks of a padded weight."""

    bits = 4

    def weight(self) -> torch.Tensor:
        blocks = F.pad(self.master, (0, 32)).view(-1, GROUP)
        scale = 7 / blocks.abs().amax(-1, keepdim=True).clamp(min=1e-6)
        return ((blocks * scale).round().clamp(-8, 7) / scale).view(ROWS, -1)[:, :COLUMNS]


class ReinterpretedBytes(Packed):
    """Packed integers reinterpreted as bytes, with a last transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("packed", _random((ROWS, COLUMNS // 8)))
        self.register_buffer("scale", _scales(ROWS, COLUMNS // GROUP))

    def weight(self) -> torch.Tensor:
        packed = self.packed.view(UINT8)
        codes = torch.stack([packed & 15, packed >> 4], -1).view(INT8).view(ROWS, -1) - 8
        groups = codes.unflatten(-1, (-1, GROUP)).to(torch.float32) * self.scale.unsqueeze(-1)
        return groups.flatten(-2, -1).T.T


class ConstantScales(HQQ):
    """Scales and zero points that are not buffers."""

    def __init__(self) -> None:
        super().__init__()
        scale, zero = self.scale, self.zero
        del self.scale, self.zero
        self.meta = {"scale": scale, "zero": zero}

    def weight(self) -> torch.Tensor:
        step = self.W_q.shape[0]
        codes = torch.empty([2 * step, self.W_q.shape[1]])
        codes[:step] = (self.W_q & 0b11110000) >> 4
        codes[step:] = self.W_q & 0b00001111
        return ((codes - self.meta["zero"]) * self.meta["scale"]).reshape(ROWS, COLUMNS)


FORMS = [
    (RoundedByBits, 21, "INT4", "fused"),
    (PaddedBlocks, 21, "INT4", "fused"),
    (ReinterpretedBytes, 21, "INT4", "fused"),
    (ConstantScales, 21, "UINT4", "written"),
    (GPTQ, 21, "UINT4", "fused"),
    (GPTQ, 20, "INT8", "written"),
    (GPTQ, 13, "INT8", "written"),
    (GPTQ, 23, "UINT4", "fused"),
    (GroupedGPTQ, 21, "UINT4", "fused"),
    (ShiftedGPTQ, 21, "UINT4", "written"),
    (AWQ, 21, "UINT4", "fused"),
    (AWQ, 20, "INT8", "written"),
    (HQQ, 21, "UINT4", "written"),
    (CompressedTensors, 21, "INT4", "fused"),
    (CompressedTensors, 23, "INT4", "fused"),
    (MXFP4, 21, "UINT4", "written"),
    (MXFP4, 20, "INT8", "written"),
    (HalfMXFP4, 21, "UINT4", "written"),
    (Bytes, 20, "INT8", "fused"),
    (Rounded, 13, "INT8", "fused"),
    (RoundedByWhere, 20, "INT8", "fused"),
    (RoundedBlocks, 21, "INT4", "fused"),
    (RoundedBlocks, 20, "INT8", "written"),
    (RoundedTensor, 20, "INT8", "fused"),
]


@pytest.mark.parametrize(
    ("layer", "opset", "dtype", "form"), FORMS, ids=lambda value: getattr(value, "__name__", value)
)
def test_codes_are_stored(layer: type[Packed], opset: int, dtype: str, form: str, tmp_path: Path) -> None:
    model = layer().eval()
    x = torch.randn(1, COLUMNS).to(model.scale_dtype)
    program = fxonnx.export(model, (x,), dynamic_shapes=({0: "n"},), input_names=["x"], opset_version=opset)
    proto, session = saved(program, tmp_path)
    tolerance = 1e-6 if model.scale_dtype == torch.float32 else 2e-3
    for rows in (1, 5):
        x = torch.randn(rows, COLUMNS).to(model.scale_dtype)
        expected = model(x).detach()
        found = torch.from_numpy(session.run(None, {"x": x.numpy()})[0])
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * float(expected.abs().max()))
    kind = onnx.TensorProto.DataType
    stored = {kind.Name(tensor.data_type) for tensor in proto.graph.initializer if _size(tensor) == ROWS * COLUMNS}
    assert stored == {dtype}
    if form == "fused":
        assert set(op_types(proto)) <= {"DequantizeLinear", "Gemm", "MatMul", "Add", "Cast"}
        assert "MatMulNBits" in op_types(onnx.load(tmp_path / "optimized.onnx"))
    if opset >= 21 and not isinstance(model, (Rounded, ConstantScales)):
        given = {**dict(model.named_buffers()), **dict(model.named_parameters())}
        packed = sum(tensor.nbytes for name, tensor in given.items() if name not in ("bias", "g_idx", "wf"))
        written = sum(
            len(tensor.raw_data)
            for tensor in proto.graph.initializer
            if "bias" not in tensor.name and not tensor.name.startswith("const")
        )
        assert written <= 1.2 * packed


def _size(tensor: onnx.TensorProto) -> int:
    size = 1
    for dim in tensor.dims:
        size *= dim
    return size


class NotProven(Packed):
    """Products of integers and scales whose codes, groups or range are not those of a quantized weight."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.register_buffer("codes", _random((ROWS, COLUMNS), 0, 16))
        self.register_buffer("scales", _scales(ROWS, 1))
        self.register_buffer("elements", _scales(ROWS, COLUMNS))
        self.register_buffer("bytes", _random((ROWS, COLUMNS), 0, 200, UINT8))

    def weight(self) -> torch.Tensor:
        return {
            "unmasked": lambda: self.codes * self.scales,
            "wide": lambda: (self.codes & 1023) * self.scales,
            "elements": lambda: (self.codes & 15) * self.elements,
            "floats": lambda: self.elements * self.scales,
            "wrapped": lambda: (self.bytes - self.bytes.flip(1)[:, :1]) * self.scales,
        }[self.form]()


@pytest.mark.parametrize("form", ["unmasked", "wide", "elements", "floats"])
def test_what_is_not_proven_stays(form: str) -> None:
    program = fxonnx.export(NotProven(form).eval(), (torch.randn(2, COLUMNS),), opset_version=21, verify=True)
    assert "DequantizeLinear" not in {node.op_type for node in program.model.graph}


def test_a_difference_that_wraps_around() -> None:
    fxonnx.export(NotProven("wrapped").eval(), (torch.randn(2, COLUMNS),), opset_version=21, verify=True)


def test_groups_that_are_not_blocks() -> None:
    program = fxonnx.export(UngroupedGPTQ().eval(), (torch.randn(2, COLUMNS),), opset_version=21, verify=True)
    assert "DequantizeLinear" not in {node.op_type for node in program.model.graph}


def test_the_default_opset_has_blocks_of_4_bits() -> None:
    x = torch.randn(2, COLUMNS)
    program = fxonnx.export(GPTQ().eval(), (x,))
    assert program.model.opset_imports[""] == 21
    assert "UINT4" in {str(value.dtype) for value in program.model.graph.initializers.values()}
    newer = fxonnx.export(GPTQ().eval(), (x,), target="onnxruntime")
    assert newer.model.opset_imports[""] == 23
    older = fxonnx.export(GPTQ().eval(), (x,), opset_version=20)
    assert older.model.opset_imports[""] == 20


def test_bits_of_masks_do_not_change_the_default_opset() -> None:
    class Masks(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.ones(16, 16).tril() > 0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.masked_fill(self.mask & ~self.mask.t(), 0.0)

    program = fxonnx.export(Masks().eval(), (torch.randn(16, 16),))
    assert program.model.opset_imports[""] == 20


def test_weights_with_other_groups(tmp_path: Path) -> None:
    program = fxonnx.export(GPTQ().eval(), (torch.randn(2, COLUMNS),), opset_version=21)
    program.apply_weights(UngroupedGPTQ().state_dict())
    with pytest.raises(fxonnx.SaveError, match="the groups of a quantized weight differ from those at the export"):
        program.save(tmp_path / "model.onnx")


def test_weights_with_a_larger_range(tmp_path: Path) -> None:
    program = fxonnx.export(RoundedByBits().eval(), (torch.randn(2, COLUMNS),), opset_version=21)
    program.apply_weights({"bit_width": torch.tensor(8.0)})
    with pytest.raises(fxonnx.SaveError, match="do not fit INT4, -8 to 7"):
        program.save(tmp_path / "model.onnx")


def test_recognized_weights_are_verified() -> None:
    fxonnx.export(GPTQ().eval(), (torch.randn(2, COLUMNS),), opset_version=21, verify=True)


def test_an_embedding_is_not_dequantized_in_every_call() -> None:
    class Table(Rounded):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.embedding(x, self.weight())

    program = fxonnx.export(Table().eval(), (torch.tensor([[3, 0, 7]]),), verify=True)
    assert [node.op_type for node in program.model.graph] == ["Gather"]


# ---- quantizers of activations


class RoundedActivation(nn.Module):
    """Div, Round, Clip and Mul of an input."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.linear = nn.Linear(COLUMNS, ROWS)
        self.register_buffer("scale", torch.tensor(0.021))
        self.register_buffer("other", torch.tensor(0.022))
        self.register_buffer("zero", torch.tensor(0.0))
        self.register_buffer("bit_width", torch.tensor(8.0))

    def quantized(self, x: torch.Tensor) -> torch.Tensor:
        if self.form == "where":
            high, low = 2 ** (self.bit_width - 1) - 1, -(2 ** (self.bit_width - 1))
            codes = torch.round(x / self.scale + self.zero)
            codes = torch.where(codes > high, high.type_as(codes), codes)
            return (torch.where(codes < low, low.type_as(codes), codes) - self.zero) * self.scale
        if self.form == "unsigned":
            return torch.round(x / self.scale).clamp(0, 255) * self.scale
        if self.form == "narrow":
            return torch.round(x / self.scale).clamp(-127, 127) * self.scale
        if self.form == "scales":
            return torch.round(x / self.scale).clamp(-128, 127) * self.other
        if self.form == "multiplied":
            return torch.round(x * self.scale).clamp(-128, 127) * self.scale
        return torch.clamp(torch.round(x / self.scale), -128, 127) * self.scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.quantized(x))


@pytest.mark.parametrize(
    ("form", "is_quantized"),
    [
        ("clamp", True),
        ("where", True),
        ("unsigned", True),
        ("narrow", False),
        ("scales", False),
        ("multiplied", False),
    ],
)
def test_a_rounded_activation(form: str, is_quantized: bool, tmp_path: Path) -> None:
    model = RoundedActivation(form).eval()
    program = fxonnx.export(
        model, (torch.randn(2, COLUMNS),), dynamic_shapes=({0: "n"},), input_names=["x"], opset_version=20
    )
    proto, session = saved(program, tmp_path)
    for rows in (2, 300):
        # Halves of the scale are rounded to even integers.
        x = torch.cat([torch.randn(rows, COLUMNS) * 2, (torch.arange(COLUMNS) - 64).float()[None] * 0.021 / 2])
        expected = model(x).detach()
        found = torch.from_numpy(session.run(None, {"x": x.numpy()})[0])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    quantized = ["QuantizeLinear", "DequantizeLinear", "Gemm"]
    assert (op_types(proto) == quantized) is is_quantized


def test_a_quantizer_with_other_limits(tmp_path: Path) -> None:
    program = fxonnx.export(RoundedActivation("where").eval(), (torch.randn(2, COLUMNS),), opset_version=20)
    program.apply_weights({"bit_width": torch.tensor(4.0)})
    with pytest.raises(fxonnx.SaveError, match="the limits of a quantizer differ from those at the export"):
        program.save(tmp_path / "model.onnx")
