"""Models with repeated modules, and counts of their programs, for the tests of functions."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

from fxonnx import ONNXProgram

from ..models.torchvision_shim import import_torchvision

# transformers imports torchvision.
import_torchvision()

DOMAIN = "fxonnx.repeated"


def encoder(layers: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


class Block(nn.Module):
    """A convolutional block whose batch norms are folded into the weights."""

    def __init__(self, dilation: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 4, 3, padding=dilation, dilation=dilation)
        self.second = nn.Conv2d(4, 4, 1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.second(self.first(x).relu())).sigmoid()


class Scaled(nn.Module):
    """A table computed in the first block, a scalar that differs, side outputs, and a branch on data."""

    class Layer(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.scale = scale
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            key = self.linear(x) * (table.sin() + x.shape[1])
            key = torch.cond(key.sum() > 0, lambda key, x: key.exp() + x, lambda key, x: key - 1, (key, x))
            return key.tanh() * self.scale, key

    def __init__(self, scales: tuple[float, ...]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(map(self.Layer, scales))

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> Any:
        keys = []
        for layer in self.layers:
            x, key = layer(x, table)
            keys.append(key)
        return x, keys


class Shared(nn.Module):
    """One block called several times."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.block(x)
        return x


class Counting(nn.Module):
    """Blocks that update a buffer."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.mean: torch.Tensor
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x).relu()
            self.mean.mul_(0.9).add_(y.mean(0))
            return y + self.mean

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(self.Layer() for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Experts(nn.Module):
    """Blocks that contain equal modules."""

    def __init__(self, blocks: int, experts: int) -> None:
        super().__init__()

        def expert() -> nn.Module:
            return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4), nn.Tanh())

        self.blocks = nn.ModuleList(nn.ModuleList(expert() for _ in range(experts)) for _ in range(blocks))
        self.wrap = nn.ModuleList(map(self.Block, self.blocks))

    class Block(nn.Module):
        def __init__(self, experts: nn.ModuleList) -> None:
            super().__init__()
            self.experts = experts

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + sum(expert(x) for expert in self.experts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.wrap:
            x = block(x)
        return x


SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "vocab_size": 50,
}


def llama(**changes: Any) -> nn.Module:
    return transformers.LlamaModel(transformers.LlamaConfig(**SMALL, **{"use_cache": False, **changes}))


def bert() -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(**SMALL))


def gpt2() -> nn.Module:
    sizes = {"n_embd": 16, "n_head": 2, "n_layer": 4, "vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2Model(transformers.GPT2Config(**sizes, use_cache=True))


def vit() -> nn.Module:
    sizes = {name: value for name, value in SMALL.items() if name != "vocab_size"}
    return transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=16, patch_size=8))


def gemma() -> nn.Module:
    config = transformers.Gemma3TextConfig(
        **SMALL,
        num_key_value_heads=2,
        head_dim=8,
        use_cache=False,
        sliding_window=4,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )
    return transformers.Gemma3TextModel(config)


IDS = torch.randint(0, 50, (2, 7), generator=torch.Generator().manual_seed(0))
OTHER_IDS = torch.randint(0, 50, (3, 5), generator=torch.Generator().manual_seed(1))
X = torch.linspace(-1, 1, 2 * 7 * 16).reshape(2, 7, 16)
OTHER_X = torch.linspace(-2, 1, 3 * 5 * 16).reshape(3, 5, 16)
IMAGE = torch.linspace(-1, 1, 2 * 4 * 6 * 6).reshape(2, 4, 6, 6)
ROWS = torch.linspace(-1, 1, 12).reshape(3, 4)
OTHER_ROWS = torch.linspace(-1, 2, 20).reshape(5, 4)
TABLE = torch.linspace(0, 1, 4)

# Model, inputs, inputs of other sizes for an export with dynamic sizes, calls of each function.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...], tuple[Any, ...] | None, dict[str, int]]] = {
    "encoder": (lambda: encoder(6), (X,), (OTHER_X,), {"TransformerEncoderLayer": 6}),
    "static_encoder": (lambda: encoder(6), (X,), None, {"TransformerEncoderLayer": 6}),
    "llama": (llama, (IDS,), (OTHER_IDS,), {"LlamaDecoderLayer": 4}),
    "bert": (bert, (IDS,), (OTHER_IDS,), {"BertLayer": 4}),
    "gpt2": (gpt2, (IDS,), (OTHER_IDS,), {"GPT2Block": 4}),
    "vit": (vit, (torch.linspace(-1, 1, 1536).reshape(2, 3, 16, 16),), None, {"ViTLayer": 4}),
    "alternating": (
        gemma,
        (IDS,),
        (OTHER_IDS,),
        {"Gemma3DecoderLayer": 2, "Gemma3DecoderLayer_1": 2, "Gemma3RotaryEmbedding": 2},
    ),
    "conv": (lambda: nn.Sequential(*(Block() for _ in range(4))), (IMAGE,), None, {"Block": 4}),
    "attribute": (lambda: nn.Sequential(*map(Block, (1, 2, 1, 2, 1))), (IMAGE,), None, {"Block": 3, "Block_1": 2}),
    "branches": (lambda: Scaled((1.0, 1.0, 1.0)), (ROWS, TABLE), (OTHER_ROWS, TABLE), {"Layer": 3}),
    "constant": (lambda: Scaled((1.0, 2.0, 1.0, 2.0)), (ROWS, TABLE), None, {"Layer": 2, "Layer_1": 2}),
    "shared": (Shared, (ROWS,), (OTHER_ROWS,), {"Sequential": 3}),
    "buffers": (Counting, (ROWS,), (OTHER_ROWS,), {"Layer": 3}),
    "nested": (lambda: Experts(3, 4), (ROWS,), (OTHER_ROWS,), {"Block": 3}),
    "none": (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), (ROWS,), None, {}),
}


def made(name: str) -> tuple[nn.Module, tuple[Any, ...], tuple[Any, ...] | None, dict[str, int]]:
    make, args, others, calls = MODELS[name]
    torch.manual_seed(0)
    return make().eval(), args, others, calls


def dynamic(args: tuple[Any, ...], others: tuple[Any, ...] | None) -> Any:
    """Dynamic dims where the sizes of the inputs differ."""
    if others is None:
        return None
    return tuple(
        {
            axis: torch.export.Dim.DYNAMIC
            for axis, (size, other) in enumerate(zip(one.shape, two.shape, strict=True))
            if size != other
        }
        for one, two in zip(args, others, strict=True)
    )


def calls_of(program: ONNXProgram) -> dict[str, int]:
    return dict(Counter(node.op_type for node in program.model.graph if node.domain == DOMAIN))


def node_count(program: ONNXProgram) -> int:
    functions = program.model.functions.values()
    return sum(len(list(graph.all_nodes())) for graph in (program.model.graph, *functions))


def saved(program: ONNXProgram, **options: Any) -> bytes:
    file = io.BytesIO()
    program.save(file, **options)
    return file.getvalue()


def without_weights(program: ONNXProgram) -> int:
    return len(saved(program, include_initializers=False))
