"""Fusion patterns in half precision: the operators of float32, and errors like eager torch's."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxonnx
from tests.functions import VariadicFunction

HALF = (torch.float16, torch.bfloat16)


def llama_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


def t5_norm(x: Tensor, weight: Tensor) -> Tensor:
    return weight * (x * torch.rsqrt(x.to(torch.float32).pow(2).mean(-1, keepdim=True) + 1e-6)).to(weight.dtype)


def norm_without_weight(x: Tensor) -> Tensor:
    return (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)).type_as(x)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centered = x - x.mean(-1, keepdim=True)
    return centered / torch.sqrt(centered.pow(2).mean(-1, keepdim=True) + 1e-5) * weight + bias


def wide_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x.float(), (8,), weight.float(), bias.float()).type_as(x)


def wide_group_norm(x: Tensor) -> Tensor:
    return F.group_norm(x.float(), 5).type_as(x)


def wide_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x.float(), (8,), weight.float(), 1e-6).to(x.dtype)


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


def tanh_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def rotary(x: Tensor, positions: Tensor) -> Tensor:
    angles = positions[..., None].float() * torch.tensor([1.0, 0.1])
    both = torch.cat((angles, angles), dim=-1)
    cosine, sine = (table.to(x.dtype).unsqueeze(1) for table in (both.cos(), both.sin()))
    return x * cosine + torch.cat((-x[..., 2:], x[..., :2]), dim=-1) * sine


def wide_softmax(x: Tensor) -> Tensor:
    return F.softmax(x, dim=-1, dtype=torch.float32).to(x.dtype)


def cast_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x.float(), 1).type_as(x)


def log_softmax(x: Tensor) -> Tensor:
    return F.log_softmax(x, dim=-1, dtype=torch.float32).to(x.dtype)


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = F.softmax(torch.matmul(q, k.transpose(2, 3)) * 0.5, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v)


def written_out_masked(q: Tensor, k: Tensor, v: Tensor, shown: Tensor) -> Tensor:
    mask = torch.where(shown, 0.0, -1e4).to(q.dtype)
    weights = torch.softmax(torch.matmul(q, k.transpose(2, 3)) / 2 + mask, dim=-1, dtype=torch.float32)
    return torch.matmul(F.dropout(weights.to(q.dtype), 0.1, False), v)


def written_out_packed(x: Tensor, shown: Tensor) -> Tensor:
    batch, length, _ = x.shape
    query, key, value = (part.view(batch, length, 4, 4).transpose(1, 2) for part in x.split(16, dim=2))
    mask = torch.where(shown, torch.zeros((), dtype=x.dtype), torch.finfo(x.dtype).min)
    weights = F.softmax(query @ key.transpose(2, 3) * 0.5 + mask, dim=-1, dtype=torch.float32).to(x.dtype)
    return (weights @ value).transpose(1, 2).reshape(batch, length, -1)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def masked_attention(q: Tensor, k: Tensor, v: Tensor, shown: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, shown, scale=0.3)


def packed_attention(x: Tensor, past: Tensor, shown: Tensor) -> tuple[Tensor, ...]:
    batch, length, _ = x.shape
    query, key, value = (part.view(batch, length, -1, 4).transpose(1, 2) for part in x.split([16, 8, 8], dim=2))
    key, value = torch.cat([past, key], 2), torch.cat([past * 2, value], 2)
    out = F.scaled_dot_product_attention(query, key, value, shown, enable_gqa=True)
    return out.transpose(1, 2).reshape(batch, length, -1), key, value


def grouped_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    key, value = (each[:, :, None].expand(2, 2, 2, 5, 4).reshape(2, 4, 5, 4) for each in (k[:, :2], v[:, :2]))
    return F.scaled_dot_product_attention(q, key, value)


def heads(count: int = 3) -> tuple[Tensor, ...]:
    return tuple(torch.randn(2, 4, 5, 4) for _ in range(count))


def shown(*shape: int) -> Tensor:
    return (torch.rand(shape) > 0.3) | torch.eye(*shape[-2:], dtype=torch.bool)


@dataclass(frozen=True)
class HalfCase:
    """A function that is one operator in float32.

    Attributes:
        function: The function of tensors.
        make: Makes its inputs; floats are cast to the dtype of the test.
        operator: The operator at opset 23.
        casts: The number of nodes that float16 has more than float32.
        older: That number at opset 20.
    """

    function: Callable[..., Any]
    make: Callable[[], tuple[Tensor, ...]]
    operator: str
    casts: int = 0
    older: int = 0

    def __str__(self) -> str:
        return self.function.__name__


def rows(count: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(3, 5, 8) * 3, *(torch.rand(8) + 0.5 for _ in range(count)))


CASES = (
    HalfCase(llama_norm, rows(1), "RMSNormalization", older=2),
    HalfCase(t5_norm, rows(1), "RMSNormalization", older=2),
    HalfCase(norm_without_weight, rows(0), "RMSNormalization", older=2),
    HalfCase(layer_norm, rows(2), "LayerNormalization"),
    HalfCase(wide_layer_norm, rows(2), "LayerNormalization"),
    HalfCase(wide_group_norm, rows(0), "GroupNormalization"),
    HalfCase(wide_rms_norm, rows(1), "RMSNormalization", older=2),
    HalfCase(gelu, rows(0), "Gelu"),
    HalfCase(tanh_gelu, rows(0), "Gelu"),
    HalfCase(rotary, lambda: (*heads(1), torch.arange(5)[None]), "RotaryEmbedding", casts=2, older=2),
    HalfCase(wide_softmax, rows(0), "Softmax"),
    HalfCase(cast_softmax, rows(0), "Softmax"),
    HalfCase(log_softmax, rows(0), "LogSoftmax"),
    HalfCase(written_out, heads, "Attention"),
    HalfCase(written_out_masked, lambda: (*heads(), shown(2, 1, 5, 5)), "Attention", casts=4),
    HalfCase(written_out_packed, lambda: (torch.randn(2, 5, 48), shown(2, 1, 5, 5)), "Attention"),
    HalfCase(attention, heads, "Attention"),
    HalfCase(masked_attention, lambda: (*heads(), shown(5, 5)), "Attention"),
    HalfCase(
        packed_attention, lambda: (torch.randn(2, 5, 32), *heads(1)[0][None, :, :2, :3], shown(2, 1, 5, 8)), "Attention"
    ),
    HalfCase(grouped_attention, heads, "Attention"),
)


def in_type(args: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(each.to(dtype) if each.is_floating_point() else each for each in args)


def flat(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def kinds(program: fxonnx.ONNXProgram) -> list[str]:
    return [node.op_type for node in program.model.graph]


def check_errors(model: nn.Module, program: fxonnx.ONNXProgram, args: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    """Compare with the float32 model: the error is at most three times eager torch's, or one unit in the last place."""
    expected = flat(model(*in_type(in_type(args, dtype), torch.float32)))
    eager = flat(copy.deepcopy(model).to(dtype)(*in_type(args, dtype)))
    actual = flat(program(*in_type(args, dtype)))
    for exact, own, ours in zip(expected, eager, actual, strict=True):
        assert ours.dtype == own.dtype
        scale = float(exact.abs().max())
        error = float((own - exact).abs().max())
        assert float((ours - exact).abs().max()) <= 3 * error + torch.finfo(dtype).eps * scale


@pytest.mark.parametrize("dtype", HALF, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_operators_are_those_of_float32(case: HalfCase, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, args = VariadicFunction(case.function).eval(), case.make()
    for opset in (20, 23, 24):
        narrow = fxonnx.export(model, in_type(args, dtype), opset_version=opset)
        check_errors(model, narrow, args, dtype)
        found, wanted = kinds(narrow), kinds(fxonnx.export(model, args, opset_version=opset))
        assert opset < 23 or case.operator in wanted
        if dtype == torch.float16:
            assert len(found) <= len(wanted) + (case.older if opset < 23 else case.casts)
        if opset >= 23 and case.function is not written_out_masked:
            assert [kind for kind in found if kind != "Cast"] == [kind for kind in wanted if kind != "Cast"]


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask)


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("dtype", HALF, ids=["float16", "bfloat16"])
def test_rows_of_large_negative_numbers_do_not_lose_the_scores(dtype: torch.dtype, opset: int) -> None:
    """In half precision, the sum of a score and such a number is the number."""
    torch.manual_seed(0)
    query, key, value = in_type(heads(), dtype)
    mask = torch.zeros(5, 5, dtype=dtype)
    mask[0], mask[1], mask[2, :3], mask[3], mask[4, 1] = -1e4, 1000, -1e4, -math.inf, -math.inf
    args = (query, key, value, mask)
    model = VariadicFunction(attend).eval()
    program = fxonnx.export(model, args, opset_version=opset)
    assert "Attention" in kinds(program)
    check_errors(model, program, args, dtype)


def test_exact_numerics_compute_scores_in_float32() -> None:
    torch.manual_seed(0)
    model, args = VariadicFunction(attention).eval(), in_type(tuple(each * 3 for each in heads()), torch.float16)
    default, exact = (
        fxonnx.export(model, args, opset_version=23, options=fxonnx.ExportOptions(numerics=numerics))
        for numerics in ("default", "exact")
    )
    assert kinds(default) == ["Attention"]
    assert kinds(exact) == ["Cast", "Cast", "Cast", "Attention", "Cast"]
    eager = model(*args).float()
    errors = [float((program(*args)[0].float() - eager).abs().max()) for program in (default, exact)]
    assert errors[1] < errors[0] / 2


@pytest.mark.parametrize("scale", [-0.5, 0.0])
def test_attention_with_a_scale_that_onnxruntime_rejects(scale: float) -> None:
    function = VariadicFunction(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=scale)).eval()
    program = fxonnx.export(function, heads(), opset_version=23, verify=True)
    assert "Attention" not in kinds(program)


class Constants(nn.Module):
    """Constants and buffers of other types than the input's."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(0.5))
        self.register_buffer("shown", torch.ones(3, 3, dtype=torch.bool).tril())
        self.offsets = torch.tensor([1.0, 2.0, 3.0])

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.scale + self.offsets.to(x.dtype) * torch.arange(3) + torch.tensor(3.0)
        return torch.softmax(y.masked_fill(~self.shown, -math.inf), -1) * torch.arange(3, dtype=torch.float32).to(x)


@pytest.mark.parametrize("opset", [20, 23])
@pytest.mark.parametrize("dtype", HALF, ids=["float16", "bfloat16"])
def test_constants_are_stored_in_the_type_of_the_model(dtype: torch.dtype, opset: int) -> None:
    program = fxonnx.export(Constants().eval(), (torch.randn(3, 3, dtype=dtype),), opset_version=opset, verify=True)
    casts = [node for node in program.model.graph if node.op_type == "Cast"]
    assert not any(value is not None and value.is_initializer() for node in casts for value in node.inputs)


def test_hidden_rows_of_decomposed_attention_are_averaged_as_by_the_model() -> None:
    """In float16, the lowest number plus a score is the lowest number."""
    torch.manual_seed(0)
    model, mask = VariadicFunction(written_out_packed).eval(), shown(2, 1, 5, 5)
    mask[0, 0, 3] = False
    args = (torch.randn(2, 5, 48).half(), mask)
    for numerics in ("default", "exact"):
        program = fxonnx.export(
            model, args, opset_version=23, verify=True, options=fxonnx.ExportOptions(numerics=numerics)
        )
        assert kinds(program).count("Attention") == 1
        assert "Cast" not in kinds(program)
