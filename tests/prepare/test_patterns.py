"""Fusion patterns of norms, GELU, grouped attention and roots: each spelling is fused and keeps its values."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fxonnx
from fxonnx._prepare.patterns import PATTERNS, apply_patterns
from tests.functions import Function


def _mean_square(x: torch.Tensor, form: int) -> torch.Tensor:
    square = (x.pow(2), x * x, torch.square(x))[form % 3]
    return square.mean(-1 if form % 2 else x.dim() - 1, keepdim=True)


def llama(x: torch.Tensor, w: torch.Tensor, form: int = 0) -> torch.Tensor:
    y = x.to(torch.float32)
    y = y * torch.rsqrt(_mean_square(y, form) + 1e-5)
    return w * y.to(x.dtype)


def gemma(x: torch.Tensor, w: torch.Tensor, form: int = 0) -> torch.Tensor:
    return torch.rsqrt(_mean_square(x, form) + 1e-3) * x * (1.0 + w)


def bare(x: torch.Tensor, w: torch.Tensor, form: int = 0) -> torch.Tensor:
    return x * (_mean_square(x, form) + 0.5).rsqrt() + w


def shared(x: torch.Tensor, w: torch.Tensor, form: int = 0) -> Any:
    root = torch.rsqrt(_mean_square(x, form) + 1e-5)
    return x * root * w, root


def of_another(x: torch.Tensor, w: torch.Tensor, form: int = 0) -> torch.Tensor:
    return (x + 1) * torch.rsqrt(_mean_square(x, form) + 1e-5) * w


def over_rows(x: torch.Tensor, w: torch.Tensor, form: int = 0) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-5) * w


def plain_root(x: torch.Tensor, w: torch.Tensor, form: int = 0) -> torch.Tensor:
    return w * torch.rsqrt(x.abs() + 1)


class Weighted(nn.Module):
    def __init__(self, function: Callable[..., Any], dtype: torch.dtype) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.rand(6).to(dtype) + 0.5)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, self.weight)


def kinds(program: fxonnx.ONNXProgram) -> list[str]:
    return [node.op_type for node in program.model.graph]


@pytest.mark.parametrize("form", range(6))
@pytest.mark.parametrize(("function", "count"), [(llama, 1), (gemma, 1), (bare, 2)])
def test_decomposed_norms_are_fused(function: Callable[..., Any], count: int, form: int) -> None:
    model = Weighted(lambda x, w: function(x, w, form), torch.float32).eval()
    shapes = ({0: "n"},)
    program = fxonnx.export(model, (torch.randn(3, 6),), opset_version=23, dynamic_shapes=shapes, verify="auto")
    assert kinds(program)[0] == "RMSNormalization"
    assert program.record.patterns["rms_norm"] == 1
    assert len(kinds(program)) == count
    older = fxonnx.export(model, (torch.randn(3, 6),), dynamic_shapes=shapes, verify="auto")
    # The sequence that ONNX Runtime fuses: Pow, ReduceMean, Add, Sqrt, Div, Mul.
    assert kinds(older)[:5] == ["Pow", "ReduceMean", "Add", "Sqrt", "Div"]
    plain = fxonnx.export(model, (torch.randn(3, 6),), opset_version=23, optimize=False, verify=True)
    assert "RMSNormalization" not in kinds(plain)


@pytest.mark.parametrize(
    ("function", "dtype"), [(llama, torch.float16), (llama, torch.bfloat16), (gemma, torch.float64)]
)
def test_other_element_types(function: Callable[..., Any], dtype: torch.dtype) -> None:
    for opset in (20, 23):
        fxonnx.export(
            Weighted(function, dtype).eval(), (torch.randn(3, 6).to(dtype),), opset_version=opset, verify=True
        )


@pytest.mark.parametrize("function", [shared, of_another, over_rows, plain_root])
def test_near_norms_are_not_fused(function: Callable[..., Any]) -> None:
    program = fxonnx.export(
        Weighted(function, torch.float32).eval(), (torch.randn(6, 6),), opset_version=23, verify=True
    )
    assert "RMSNormalization" not in kinds(program)
    assert ("Reciprocal" in kinds(program)) == (function is shared)


def _random_function(seed: int) -> Callable[..., Any]:
    """A chain of random steps: the parts of a norm in the right or a wrong order."""
    steps: list[Callable[..., Any]] = [
        lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5),
        lambda x, w: x * w,
        lambda x, w: w * x.to(x.dtype),
        lambda x, w: x * torch.rsqrt((x * x).mean([-1], True) + 0.1) * w,
        lambda x, w: torch.rsqrt(x.abs() + 1) * x,
        lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1) + 1).unsqueeze(-1),
        lambda x, w: x * torch.rsqrt(x.pow(3).abs().mean(-1, keepdim=True) + 1),
        lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + x),
        lambda x, w: x + torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1),
        lambda x, w: x.abs() + 0.1,
    ]
    chosen = random.Random(seed).choices(steps, k=4)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x = x.abs() + 0.1
        for step in chosen:
            x = step(x, w).abs()
        return x

    return function


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs_keep_their_values(seed: int) -> None:
    torch.manual_seed(seed)
    model, x = Weighted(_random_function(seed), torch.float64).eval(), torch.randn(4, 6, dtype=torch.float64)
    module = torch.export.export(model, (x,)).module()
    before = model(x)
    graph = module.graph
    for node in graph.nodes:
        # The module's parameters are attributes; patterns need fake values of nodes.
        if node.op == "get_attr" and isinstance(getattr(model, str(node.target), None), torch.Tensor):
            node.meta.setdefault("val", getattr(model, str(node.target)))
    apply_patterns(graph, [name for name, rule in PATTERNS.items() if rule.for_all and rule.since <= 20])
    graph.lint()
    module.recompile()
    torch.testing.assert_close(module(x), before, rtol=1e-12, atol=1e-12)


class Conv1D(nn.Module):
    """The linear layer of GPT-2, and near variants that must not match."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.weight = nn.Parameter(torch.randn(6, 4))
        self.bias = nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lead, flat = x.shape[:-1], x.reshape(-1, 6)
        if self.form == "scaled":
            return torch.addmm(self.bias, flat, self.weight, alpha=2).view(*lead, 4)
        if self.form == "other rows":
            return torch.addmm(self.bias, flat, self.weight).view(lead[1], lead[0], 4)
        if self.form == "plain":
            return torch.mm(flat, self.weight).view(*lead, 4)
        if self.form == "bias for each row":
            return torch.addmm(flat[:, :4], flat, self.weight).view(*lead, 4)
        return torch.addmm(self.bias, flat, self.weight).view(*lead, 4)


@pytest.mark.parametrize(
    ("form", "nodes"),
    [
        ("whole", ["MatMul", "Add"]),
        ("plain", ["MatMul"]),
        ("scaled", None),
        ("other rows", None),
        ("bias for each row", None),
    ],
)
def test_flattened_linear_layers(form: str, nodes: list[str] | None) -> None:
    model, x = Conv1D(form).eval(), torch.randn(2, 3, 6)
    for shapes in (None, ({0: "batch", 1: "length"},)):
        program = fxonnx.export(model, (x,), dynamic_shapes=shapes, verify="auto")
        assert nodes is None or kinds(program) == nodes
        assert nodes is not None or "Reshape" in kinds(program)


def _tanh_argument(x: torch.Tensor, cube: torch.Tensor) -> torch.Tensor:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * cube)


GELUS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda x: 0.5 * x * (1.0 + torch.tanh(_tanh_argument(x, torch.pow(x, 3.0)))),
    lambda x: x * (0.5 * (1.0 + torch.tanh(_tanh_argument(x, x * x * x)))),
    lambda x: 0.5 * (x * (torch.tanh((0.044715 * (x * (x**2)) + x) * 0.7978845608028654) + 1)),
    lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    lambda x: (1 + torch.erf(x * 0.7071067811865476)) * x * 0.5,
)
NEARLY: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda x: 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.0447 * torch.pow(x, 3.0)))),
    lambda x: 0.5 * x * (2.0 + torch.erf(x / math.sqrt(2.0))),
    lambda x: 0.25 * x * (1.0 + torch.erf(x / math.sqrt(2.0))),
    lambda x: 0.5 * (x + 1) * (1.0 + torch.erf(x / math.sqrt(2.0))),
    lambda x: 0.5 * x * (1.0 + torch.tanh(_tanh_argument(x, torch.pow(x, 2.0)))),
    lambda x: 0.5 * x * x * (1.0 + torch.erf(x / math.sqrt(2.0))),
)


@pytest.mark.parametrize("index", range(len(GELUS)))
def test_decomposed_gelus_are_fused(index: int) -> None:
    model, x = Function(GELUS[index]).eval(), torch.randn(5, 7)
    assert kinds(fxonnx.export(model, (x,), verify=True)) == ["Gelu"]
    fxonnx.export(model, (x,), opset_version=17, verify=True)


@pytest.mark.parametrize("index", range(len(NEARLY)))
def test_near_gelus_are_not_fused(index: int) -> None:
    program = fxonnx.export(Function(NEARLY[index]).eval(), (torch.randn(5, 7),), verify=True)
    assert "Gelu" not in kinds(program)


class Grouped(nn.Module):
    """Grouped-query attention as in language models, and near variants that must not match."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def repeated(self, x: torch.Tensor) -> torch.Tensor:
        batch, heads, length, width = x.shape
        if self.form == "tiled":
            return x[:, None].expand(batch, 2, heads, length, width).reshape(batch, 2 * heads, length, width)
        return x[:, :, None].expand(batch, heads, 2, length, width).reshape(batch, heads * 2, length, width)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        value = v.repeat(1, 2, 1, 1) if self.form == "one" else self.repeated(v)
        return torch.nn.functional.scaled_dot_product_attention(q, self.repeated(k), value, mask, scale=0.3)


@pytest.mark.parametrize("form", ["whole", "tiled", "one"])
def test_grouped_attention(form: str) -> None:
    args = (torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 6), torch.rand(2, 1, 3, 5) > 0.2)
    axes = {0: "batch", 2: "length"}
    for shapes in (None, ({0: "batch"}, axes, axes, {0: "batch", 3: "length"})):
        for opset in (20, 23):
            program = fxonnx.export(
                Grouped(form).eval(), args, dynamic_shapes=shapes, opset_version=opset, verify="auto"
            )
        assert (kinds(program) == ["Attention"]) == (form == "whole")


class Rotated(nn.Module):
    """Rotary embeddings as in language models, and near variants that must not match."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.register_buffer("frequencies", torch.rand(4))

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        if self.form.startswith("pairs"):
            return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
        half = x.shape[-1] // 2
        first, second = x[..., :half], x[..., half:]
        return torch.cat((second, -first) if self.form == "backwards" else (-second, first), dim=-1)

    def forward(self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor) -> Any:
        angles = positions[..., None].float() * self.frequencies
        both = torch.cat((angles, angles * 2) if self.form == "halves differ" else (angles, angles), dim=-1)
        if self.form == "pairs":
            both = torch.repeat_interleave(angles, 2, dim=-1)
        cosine, sine = (both.cos() * 0.9).unsqueeze(1), (both.sin() * 0.9).unsqueeze(1)
        return q * cosine + self.turned(q) * sine, k * cosine + self.turned(k) * sine


@pytest.mark.parametrize("form", ["whole", "pairs", "backwards", "halves differ", "pairs of halves"])
@pytest.mark.parametrize("batch", [1, 2])
def test_rotary_embeddings(form: str, batch: int) -> None:
    args = (torch.randn(2, 4, 3, 8), torch.randn(2, 2, 3, 8), torch.randint(0, 9, (batch, 3)))
    axes = {0: "batch", 2: "length"}
    for shapes in (None, (axes, axes, {1: "length"} if batch == 1 else {0: "batch", 1: "length"})):
        program = fxonnx.export(Rotated(form).eval(), args, dynamic_shapes=shapes, opset_version=23, verify="auto")
        assert kinds(program).count("RotaryEmbedding") == (2 if form in ("whole", "pairs") else 0)
    assert "RotaryEmbedding" not in kinds(fxonnx.export(Rotated(form).eval(), args, verify=True))


class Centered(nn.Module):
    """Decomposed layer norms, and near variants that must not match."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form.split()
        self.weight, self.bias = nn.Parameter(torch.rand(6) + 0.5), nn.Parameter(torch.randn(6))

    def forward(self, x: torch.Tensor) -> Any:
        mean = x.mean(-1, keepdim=True)
        centered = x - mean
        if "mean" in self.form:
            variance = (x - x.mean(-1, keepdim=True)).pow(2).mean(-1, keepdim=True)
        elif "square" in self.form:
            variance = (centered * centered).mean(x.dim() - 1, keepdim=True)
        else:
            variance = x.var(-1, keepdim=True, unbiased="unbiased" in self.form)
        if "std" in self.form:
            normal = centered / (torch.sqrt(variance) + 1e-5)
        elif "rsqrt" in self.form:
            normal = centered * torch.rsqrt(variance + 1e-5)
        elif "power" in self.form:
            normal = centered / (variance + 1e-5) ** 0.5
        else:
            normal = centered / torch.sqrt(variance + 1e-5)
        if "plain" in self.form:
            return normal
        result = self.weight * normal
        return (result, normal) if "kept" in self.form else result + self.bias


@pytest.mark.parametrize(
    ("form", "nodes"),
    [
        *(
            (form, ["LayerNormalization"])
            for form in ("mean", "square rsqrt", "power", "mean rsqrt", "plain", "square")
        ),
        ("kept", ["LayerNormalization", "Mul"]),
        *((form, None) for form in ("std", "unbiased", "mean std")),
    ],
)
def test_decomposed_layer_norms_are_fused(form: str, nodes: list[str] | None) -> None:
    for dtype in (torch.float32, torch.float64):
        model, args = Centered(form).to(dtype), (torch.randn(2, 3, 6, dtype=dtype),)
        program = fxonnx.export(model.eval(), args, dynamic_shapes=({0: "n"},), verify="auto")
        assert kinds(program) == nodes if nodes is not None else program.record.patterns["layer_norm"] == 0
    plain = fxonnx.export(model, args, options=fxonnx.ExportOptions(patterns={"layer_norm": False}), verify=True)
    assert "layer_norm" not in plain.record.patterns
    assert len(kinds(plain)) > 1


def test_padding_is_fused_into_the_convolution() -> None:
    class Padded(nn.Module):
        def __init__(self, mode: str = "constant", value: float = 0.0) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 3, padding=1, stride=2)
            self.mode, self.value = mode, value

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            fill = self.value if self.mode == "constant" else None
            return self.conv(nn.functional.pad(x, (0, 1, 2, 0), self.mode, fill))

    args, axes = (torch.randn(2, 2, 5, 6),), ({0: "n", 2: "h", 3: "w"},)
    for mode, value, nodes in (
        ("constant", 0.0, ["Conv"]),
        ("constant", 1.0, ["Pad", "Conv"]),
        ("reflect", 0.0, ["Pad", "Conv"]),
    ):
        for opset in (11, 20):
            model = Padded(mode, value).eval()
            plain = fxonnx.ExportOptions(guards=False)
            program = fxonnx.export(model, args, dynamic_shapes=axes, opset_version=opset, verify="auto", options=plain)
            assert kinds(program) == nodes
