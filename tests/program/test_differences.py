"""The first difference: faults planted in translations are located at their source line and module."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxonnx

aten = torch.ops.aten
Tensor = torch.Tensor


def sample(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) + 0.1


class Outer(nn.Module):
    """The faulty module among others, whose values are right."""

    def __init__(self, inner: nn.Module, width: int | None = None) -> None:
        super().__init__()
        self.before, self.inner = nn.Hardswish(), inner
        self.after = nn.Linear(width, 3) if width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.inner(self.before(x) * 2)) + 1


class Softmax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x, -1)  # fault


class WrittenGelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.erf(x / math.sqrt(2.0))
        return 0.5 * x * (1 + y)  # fault


class WrittenRmsNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(sample(8))

    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x  # fault


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.projection(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v)  # fault


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.conv.weight, self.conv.bias, padding=1).tanh()  # fault


class FoldedNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
        self.norm.running_mean.copy_(sample(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.norm(x).tanh()  # fault


class Normalized(nn.Module):
    """The result of a batch norm that is folded into a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.inner = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
        self.inner.running_mean.copy_(sample(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        mean, variance = self.inner.running_mean, self.inner.running_var
        return F.batch_norm(x, mean, variance, self.inner.weight, self.inner.bias)  # fault


class Pooling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, 2)  # fault


class Interpolation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2, mode="nearest")  # fault


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding((x * 2).long(), self.table.weight)  # fault


class SliceWrite(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y[:, 1:3] = y[:, 3:5].cumsum(1)  # fault
        return y.sin()


class Selection(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0.5, x, -x)  # fault


class Sums(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.sum(1, keepdim=True)  # fault


class Joined(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x * 2], -1)[..., :8]  # fault


class Largest(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        values, _ = torch.topk(x, 3)  # fault
        return values


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x[:, 0]
        for step in range(3):
            hidden = torch.sigmoid(self.cell(x[:, step], hidden))  # fault
        return hidden


class Spectrum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        z = torch.fft.fft(x)
        return torch.abs(z)  # fault


class Fake(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.fake_quantize_per_tensor_affine(x, 0.01, 3, -128, 127)
        return torch.exp(x)  # fault


class Loop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        def more(i: Tensor, x: Tensor) -> Tensor:
            return i < 3

        def step(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            x = x * 0.5
            return i + 1, torch.sin(x) + x  # fault

        return torch._higher_order_ops.while_loop(more, step, (torch.tensor(0), x))[1]


class NestedLoop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        def more(i: Tensor, x: Tensor) -> Tensor:
            return i < 3

        def step(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            def large(x: Tensor) -> Tensor:
                return torch.sin(x) + 1  # fault

            def small(x: Tensor) -> Tensor:
                return x + 0.1

            return i + 1, torch.cond(i > 0, large, small, (x * 1.5,))

        return torch._higher_order_ops.while_loop(more, step, (torch.tensor(0), x))[1]


class Scan(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        from torch._higher_order_ops.scan import scan

        def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            carry = carry * 0.5 + torch.sin(row)  # fault
            return carry, carry * 2

        return scan(step, x[0] * 1, x, dim=0)[1]


def first_half(op: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """A translation that is right for up to three rows."""
    return op.Where(
        op.Less(op.Constant(value_int=3), op.Gather(op.Shape(x), op.Constant(value_int=0))), op.Cos(x), op.Sin(x)
    )


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)  # fault


@dataclass(frozen=True)
class Fault:
    """A wrong translation of one operator, and a model that calls it on the line marked ``# fault``."""

    module: nn.Module
    target: Any
    translation: Callable[..., Any]
    x: Tensor = field(default_factory=lambda: sample(2, 5, 8))
    name: str = "inner"
    width: int | None = 8
    dynamic: bool = False
    iteration: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    sizes: Any = None

    def __str__(self) -> str:
        return f"{type(self.module).__name__}-{'dynamic' if self.dynamic else 'static'}"


def absolute(op: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    return op.Neg(op.Abs(x))


IMAGE = sample(2, 3, 6, 6)
FAULTS = (
    Fault(Softmax(), aten.softmax.int, lambda op, x, dim, dtype=None: op.Softmax(op.Add(x, x), axis=dim), dynamic=True),
    Fault(WrittenGelu(), aten.gelu.default, absolute),
    Fault(WrittenRmsNorm(), aten.rms_norm.default, lambda op, x, shape, w=None, eps=None: op.Add(x, op.Neg(w))),
    Fault(
        Attention(),
        aten.scaled_dot_product_attention.default,
        lambda op, q, k, v, *args, **kwargs: op.MatMul(op.MatMul(q, op.Transpose(k, perm=[0, 2, 1])), v),
        options={"opset_version": 23},
    ),
    Fault(Convolution(), aten.tanh.default, absolute, IMAGE, width=6),
    Fault(FoldedNorm(), aten.tanh.default, absolute, IMAGE, width=6),
    Fault(Normalized(), aten.conv2d.default, lambda op, x, w, b, *args: op.Neg(op.Conv(x, w, b)), IMAGE, width=6),
    Fault(
        Pooling(),
        aten.max_pool2d.default,
        lambda op, x, *args, **kwargs: op.AveragePool(x, kernel_shape=[2, 2], strides=[2, 2]),
        IMAGE,
        width=3,
    ),
    Fault(
        Interpolation(),
        aten.upsample_nearest2d.vec,
        lambda op, x, *args, **kwargs: op.Neg(op.Resize(x, None, op.Constant(value_floats=[1.0, 1.0, 2.0, 2.0]))),
        IMAGE,
        width=12,
    ),
    Fault(
        Lookup(),
        aten.embedding.default,
        lambda op, w, i, *args, **kwargs: op.Neg(op.Gather(w, i)),
        sample(2, 5),
        width=8,
    ),
    Fault(SliceWrite(), aten.cumsum.default, lambda op, x, dim, **kwargs: op.Neg(x)),
    Fault(Selection(), aten.where.self, lambda op, c, x, y: op.Where(c, y, x)),
    Fault(
        Sums(),
        aten.sum.dim_IntList,
        lambda op, x, dim, keepdim=False, dtype=None: op.ReduceMax(x, op.Constant(value_ints=[1]), keepdims=1),
        dynamic=True,
    ),
    Fault(Joined(), aten.cat.default, lambda op, xs, dim=0: op.Concat(xs[1], xs[0], axis=dim)),
    Fault(
        Largest(),
        aten.topk.default,
        lambda op, x, k, *args: op.TopK(x, op.Constant(value_ints=[3]), largest=0, _outputs=2),
        width=3,
    ),
    Fault(Recurrent(), aten.sigmoid.default, absolute),
    Fault(Spectrum(), aten.abs.default, lambda op, x: op.ReduceL1(x, op.Constant(value_ints=[-1]), keepdims=0)),
    Fault(Fake(), aten.exp.default, absolute),
    Fault(Loop(), aten.sin.default, absolute, iteration=0),
    Fault(NestedLoop(), aten.sin.default, absolute, iteration=None),
    Fault(Scan(), aten.sin.default, absolute, iteration=0),
    Fault(Sine(), aten.sin.default, first_half, dynamic=True, sizes=[{"n": 2}, {"n": 5}]),
)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_located(fault: Fault) -> None:
    model = Outer(fault.module, fault.width).eval()
    program = fxonnx.export(
        model,
        (fault.x,),
        dynamic_shapes=({0: "n"},) if fault.dynamic else None,
        custom_translation_table={fault.target: fault.translation},
        **fault.options,
    )
    comparison = program.compare(sizes=fault.sizes)
    first = comparison.first
    assert not comparison.ok
    assert first is not None, comparison
    source, start = inspect.getsourcelines(type(fault.module))
    line = next(start + index for index, text in enumerate(source) if text.rstrip().endswith("# fault"))
    assert first.line == f"{__file__}:{line}", comparison
    assert first.source == source[line - start].strip()
    assert first.module == fault.name
    assert first.iteration == fault.iteration
    assert first.expected is not None
    assert first.actual is not None
    assert "elements differ" in first.message
    assert next(iter(comparison.modules)) == fault.name
    assert str(first) in str(comparison).replace("\n  ", "\n") or first.line in str(comparison)
    if "." not in first.name:
        (path,) = comparison.paths.values()
        assert path[0].is_wrong
        assert path[-1].error is not None
    if fault.sizes:
        assert comparison.sizes == {"n": 5}
    elif not fault.dynamic:
        with pytest.raises(
            fxonnx.VerificationError, match=rf"First difference:\n.*test_differences.py:{line}"
        ) as raised:
            program.verify(locate=True)
        assert raised.value.comparison.first.name == first.name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype: torch.dtype) -> None:
    model = Outer(Softmax(), 8).eval().to(dtype)
    x = sample(2, 5, 8).to(dtype)
    assert fxonnx.export(model, (x,)).compare().ok
    program = fxonnx.export(model, (x,), custom_translation_table={aten.softmax.int: absolute})
    first = program.compare().first
    assert first is not None
    assert first.name == "softmax"


def test_quantized_weights() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 32)).eval()
    x = sample(2, 32)
    assert fxonnx.export(model, (x,), quantize="int8").compare().ok
    program = fxonnx.export(model, (x,), quantize="int8", custom_translation_table={aten.silu.default: absolute})
    first = program.compare().first
    assert first is not None
    assert first.module == "1"


def test_functions() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8)) for _ in range(3))).eval()
    table = {aten.silu.default: lambda op, x: op.Where(op.Less(x, op.Neg(x)), op.Neg(x), op.Mul(x, op.Sigmoid(x)))}
    program = fxonnx.export(
        model, (sample(2, 8),), options=fxonnx.ExportOptions(functions="repeated"), custom_translation_table=table
    )
    assert program.model.functions
    first = program.compare().first
    assert first is not None
    assert first.module == "0.1"


def test_targets() -> None:
    """Layers on flattened tokens are compared in the shape of the captured values."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = sample(2, 3, 16)
    table = {aten.relu.default: absolute}
    program = fxonnx.export(layer, (x,), target="onnxruntime", custom_translation_table=table)
    comparison = program.compare()
    assert comparison.first is not None
    assert comparison.first.operator == "aten.relu.default"
    assert len(comparison.values) > 5


def test_mutated_buffers_and_the_users_model() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            self.total.add_(x)
            return torch.sin(self.total) * self.total.view(2, 2).t().reshape(4)

    model, x = Counter().eval(), sample(4)
    table = {aten.sin.default: absolute}
    program = fxonnx.export(model, (x,), state="io", custom_translation_table=table)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    outputs = list(program.model.graph.outputs)
    first = program.compare().first
    assert first is not None
    assert first.name == "sin"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert list(program.model.graph.outputs) == outputs


def test_a_right_model() -> None:
    program = fxonnx.export(Outer(Softmax(), 8).eval(), (sample(2, 5, 8),), dynamic_shapes=({0: "n"},))
    comparison = program.compare(sizes="auto")
    assert comparison.ok
    assert comparison.first is None
    assert comparison.values == ()
    assert str(comparison).startswith("All outputs agree")


def test_values_name_their_fx_nodes() -> None:
    program = fxonnx.export(Outer(WrittenGelu(), 8).eval(), (sample(2, 8),), output_names=["scores"])
    names = {str(value.name): value.metadata_props for node in program.model.graph for value in node.outputs}
    assert "pkg.fxonnx.fx_value" in names["scores"]
    captured = {node.name for node in program.exported_program.graph.nodes}
    assert all(metadata.get("pkg.fxonnx.fx_value", "add") in captured for metadata in names.values())
    bare = fxonnx.export(Outer(Softmax()).eval(), (sample(2, 8),), options=fxonnx.ExportOptions(metadata="none"))
    values = [value for node in bare.model.graph for value in node.outputs]
    assert not any("pkg.fxonnx.fx_value" in value.metadata_props for value in values)
