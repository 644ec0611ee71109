"""The patches for speed do not change the captured program: graphs and metadata with and without each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.passes.shape_prop import TensorMetadata

from fxonnx._capture import torch_export
from fxonnx._capture.patches import CAPTURE_PATCHES, SPEED_PATCHES, Patch, applied
from fxonnx._capture.patches.tracing_state import without_function_tables
from fxonnx_translations._torch_compat import FakeTensor

from .captures import capture


class Convolutions(nn.Module):
    """Convolutions with batch norm, in-place activations, pooling and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish(inplace=True))
        self.depthwise = nn.Conv2d(8, 8, 3, 1, 1, groups=8)
        self.norm = nn.GroupNorm(2, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = torch.relu(self.norm(self.depthwise(x)))
        y = y.add_(x)
        y = nn.functional.max_pool2d(y, 2)
        return self.head(nn.functional.adaptive_avg_pool2d(y, 1).flatten(1)) * y.mean((1, 2, 3), keepdim=True)[0, 0]


class ChannelsLast(nn.Module):
    """A residual block whose input is transposed to images, as after the attention of a diffusion model."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2).unflatten(2, (4, 3))
        return (x + self.conv(nn.functional.silu(self.norm(x)))) / 2.0


class Attention(nn.Module):
    """A transformer block with views, a causal mask, dropout and an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embedding(ids)
        y = self.norm(x)
        q, k, v = (part.view(*ids.shape, 4, 4).transpose(1, 2) for part in self.qkv(y).chunk(3, -1))
        z = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = torch.softmax(q @ k.transpose(-1, -2) * self.scale, -1)
        z = self.out(z.transpose(1, 2).reshape(*ids.shape, 16))
        return x + nn.functional.dropout(nn.functional.gelu(z), 0.1, self.training), scores


class Views(nn.Module):
    """Windows, rolls, slices, writes through views, constants, and layouts that are not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counter", torch.zeros(3))

    def forward(self, x: Tensor) -> list[Tensor]:
        self.counter.add_(1)
        y = torch.roll(x, (1, -1), (1, 2)).permute(0, 2, 3, 1)
        w = y.reshape(x.shape[0], 2, -1, 2, 4, 3).permute(0, 1, 3, 2, 4, 5).contiguous()
        z = x.clone()
        z[:, 0, 1:] = 0
        z[..., -1].mul_(torch.tensor(3.0))
        channels_last = x.contiguous(memory_format=torch.channels_last)
        return [
            w,
            z,
            channels_last + 1,
            channels_last * y.permute(0, 3, 1, 2),
            y.t if y.dim() < 3 else y[0].expand(2, -1, -1, -1),
        ]


class Modes(nn.Module):
    """Autocast, no_grad, integers, float64, 0-dim tensors and a branch on values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            half = self.linear(x)
        with torch.no_grad():
            double = x.double() ** 2 / x.numel()
        index = torch.arange(6)[torch.tensor([0, 2])]
        chosen = torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos(), (x,))
        return {
            "half": half,
            "double": double,
            "index": x[:, index],
            "where": torch.where(x > 0, x, 0.0),
            "cond": chosen,
        }


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], dict[int, str]]] = {
    "convolutions": (Convolutions, lambda: torch.rand(2, 3, 8, 8), {0: "batch", 2: "height", 3: "width"}),
    "channels last": (ChannelsLast, lambda: torch.rand(2, 12, 8), {0: "batch"}),
    "attention": (Attention, lambda: torch.arange(10).reshape(2, 5), {0: "batch", 1: "length"}),
    "views": (Views, lambda: torch.rand(2, 3, 8, 4), {0: "batch"}),
    "modes": (Modes, lambda: torch.rand(3, 6), {0: "batch"}),
    "lstm": (lambda: nn.LSTM(3, 4, bidirectional=True), lambda: torch.rand(5, 2, 3), {0: "time", 1: "batch"}),
}


def _describe(value: Any, storages: dict[int, int]) -> Any:
    if isinstance(value, FakeTensor):
        storage = storages.setdefault(value.untyped_storage()._cdata, len(storages))
        sizes = str(tuple(value.shape)), str(value.stride()), str(value.storage_offset())
        return sizes, value.dtype, value.device, value.requires_grad, storage
    if isinstance(value, dict):
        return {str(key): _describe(item, storages) for key, item in value.items()}
    if isinstance(value, TensorMetadata):
        # A speed patch leaves out the name of the format, which the strides tell.
        value = value._replace(memory_format=None)
    if isinstance(value, list | tuple):
        return [_describe(item, storages) for item in value]
    # The number counts the modules for which the process has generated code.
    return re.sub(r"<eval_with_key>\.\d+", "<eval_with_key>", str(value))


def _graph(module: torch.fx.GraphModule) -> list[Any]:
    """All nodes of the graph and of the graphs of its control flow, with all metadata."""
    storages: dict[int, int] = {}
    nodes: list[Any] = []
    for node in module.graph.nodes:
        meta = {key: value for key, value in node.meta.items() if key != "from_node"}
        # In subgraphs, lines of generated code are replaced by the user's.
        generated = re.search(
            r'File "<eval_with_key>|File "[^"]+", line \d+, in (?!forward)', trace := meta.get("stack_trace") or ""
        )
        meta["stack_trace"] = trace[: generated.start() if generated else None].strip()
        arguments = str(node.args), str(node.kwargs)
        nodes.append((node.op, node.name, str(node.target), *arguments, _describe(meta, storages)))
    children = (child for child in module.children() if isinstance(child, torch.fx.GraphModule))
    return [nodes, *map(_graph, children)]


def _captured(monkeypatch: pytest.MonkeyPatch, name: str, *, dynamic: bool, without: tuple[Patch, ...] = ()) -> Any:
    @contextmanager
    def some_patches(*, strict: bool = False, plain: bool = False) -> Iterator[None]:
        chosen = [
            patch for patch in CAPTURE_PATCHES if patch not in without and (patch.strict or not strict) and not plain
        ]
        with without_function_tables(), applied(chosen):
            yield

    make, example, axes = MODELS[name]
    torch.manual_seed(0)
    with monkeypatch.context() as patch:
        patch.setattr(torch_export, "capture_patches", some_patches)
        program = capture(make().eval(), (example(),), None, (axes,) if dynamic else None).exported_program
    ranges = {str(symbol): str(bounds) for symbol, bounds in program.range_constraints.items()}
    return _graph(program.graph_module), str(program.graph_signature), ranges, program.graph_module.code


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", MODELS)
def test_captured_program_is_the_same_without_all_patches_for_speed(
    monkeypatch: pytest.MonkeyPatch, name: str, dynamic: bool
) -> None:
    fast = _captured(monkeypatch, name, dynamic=dynamic)
    assert fast == _captured(monkeypatch, name, dynamic=dynamic, without=SPEED_PATCHES)


# The test above has both without all of the patches; this one finds the patch.
@pytest.mark.parametrize(
    ("name", "dynamic"), [("attention", False), pytest.param("convolutions", True, marks=pytest.mark.nightly)]
)
def test_captured_program_is_the_same_without_each_patch_for_speed(
    monkeypatch: pytest.MonkeyPatch, name: str, dynamic: bool
) -> None:
    fast = _captured(monkeypatch, name, dynamic=dynamic)
    for patch in SPEED_PATCHES:
        assert fast == _captured(monkeypatch, name, dynamic=dynamic, without=(patch,)), patch.target
