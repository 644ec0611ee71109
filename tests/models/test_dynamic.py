"""Networks with all dims dynamic: correct at three sizes, with hardly more nodes than the static export."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fxonnx

from .torchvision_shim import import_torchvision

TEXT = {0: "batch", 1: "sequence"}
IMAGE = {0: "batch", 2: "height", 3: "width"}
SMALL = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}


def transformers() -> Any:
    import_torchvision()
    import transformers as module

    return module


def bert() -> nn.Module:
    module = transformers()
    return module.BertModel(module.BertConfig(vocab_size=64, num_hidden_layers=12, **SMALL))


def gpt2() -> nn.Module:
    module = transformers()
    tokens = {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2}
    return module.GPT2Model(module.GPT2Config(n_embd=16, n_layer=12, n_head=2, use_cache=False, **tokens))


def llama() -> nn.Module:
    module = transformers()
    return module.LlamaModel(module.LlamaConfig(vocab_size=64, num_hidden_layers=12, use_cache=False, **SMALL))


class Vit(nn.Module):
    """A vision transformer whose position embeddings are resized to the image."""

    def __init__(self) -> None:
        super().__init__()
        module = transformers()
        self.model = module.ViTModel(module.ViTConfig(num_hidden_layers=4, image_size=32, patch_size=8, **SMALL))

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x, interpolate_pos_encoding=True).last_hidden_state


def whisper_encoder() -> nn.Module:
    module = transformers()
    layers = {"encoder_layers": 4, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_layers": 1}
    heads = {"decoder_attention_heads": 2}
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 1)
    sizes = {"d_model": 16, "num_mel_bins": 8, "max_source_positions": 16}
    return module.WhisperModel(module.WhisperConfig(vocab_size=64, **sizes, **layers, **heads, **tokens)).encoder


def resnet50() -> nn.Module:
    return import_torchvision().models.resnet50(weights=None)


def swin() -> nn.Module:
    return import_torchvision().models.SwinTransformer([4, 4], 8, [2, 2], [2, 2], [4, 4], num_classes=5)


def double_convolution(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()),
        *(nn.Conv2d(out, out, 3, padding=1), nn.BatchNorm2d(out), nn.SiLU()),
    )


class Unet(nn.Module):
    """A U-Net of three levels; upsampled maps are padded to the size of the skip connection."""

    def __init__(self, padded: bool = False) -> None:
        super().__init__()
        self.padded = padded
        widths = (4, 8, 16)
        self.down = nn.ModuleList(double_convolution(*pair) for pair in zip((3, *widths), widths, strict=False))
        self.middle = double_convolution(16, 32)
        self.raise_ = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, 2) for width in widths[::-1])
        self.up = nn.ModuleList(double_convolution(2 * width, width) for width in widths[::-1])
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped = []
        for block in self.down:
            skipped.append(block(x))
            x = F.max_pool2d(skipped[-1], 2)
        x = self.middle(x)
        for raised, block in zip(self.raise_, self.up, strict=True):
            skip = skipped.pop()
            x = raised(x)
            if self.padded:
                x = F.pad(x, (0, skip.shape[3] - x.shape[3], 0, skip.shape[2] - x.shape[2]))
            x = block(torch.cat([skip, x], 1))
        return self.head(x)


@dataclass(frozen=True)
class Network:
    """One network.

    Attributes:
        build: Builds it.
        make: Positional or keyword inputs of given sizes.
        shapes: ``dynamic_shapes`` of the export.
        sizes: Sizes of the example inputs, and two others.
        ratio: Maximum number of nodes, relative to the static export.
        constraints: The constraints the export reports.
    """

    build: Callable[[], nn.Module]
    make: Callable[..., Any]
    shapes: Any
    sizes: tuple[tuple[int, ...], ...]
    ratio: float = 1.25
    constraints: tuple[str, ...] = ()


def tokens(*shape: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(0, 64, shape)}


def masked_tokens(batch: int, length: int) -> dict[str, Tensor]:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length // 2 + 1 :] = 0
    return {**tokens(batch, length), "attention_mask": mask}


def images(batch: int, height: int, width: int) -> tuple[Tensor]:
    return (torch.randn(batch, 3, height, width),)


TEXTS = ((2, 8), (3, 5), (1, 1))
NETWORKS = {
    "bert": Network(bert, masked_tokens, {"*": TEXT}, TEXTS, constraints=("sequence <= 512",)),
    "gpt2": Network(gpt2, tokens, {"*": TEXT}, TEXTS),
    "llama": Network(llama, tokens, {"*": TEXT}, TEXTS),
    "vit": Network(
        Vit, images, (IMAGE,), ((2, 40, 48), (1, 24, 72), (3, 64, 32)),
        # The positions are not resized where there are 16 patches.
        constraints=("height >= 8", "width >= 8"),
    ),
    "resnet50": Network(resnet50, images, (IMAGE,), ((2, 64, 96), (1, 33, 47), (3, 70, 64))),
    "swin": Network(
        swin, images, (IMAGE,), ((2, 64, 96), (1, 72, 100), (3, 128, 37)),
        # Windows are numbered by nine assignments to slices, at run time.
        ratio=2.6,
        # Images of one window are not shifted.
        constraints=("height >= 36", "width >= 36"),
    ),
    "swin-of-one-size": Network(swin, lambda n: images(n, 64, 64), ({0: "batch"},), ((2,), (1,), (3,))),
    "lstm": Network(
        lambda: nn.LSTM(4, 5, 2, bidirectional=True, batch_first=True), lambda n, t: (torch.randn(n, t, 4),),
        (TEXT,), ((2, 6), (1, 9), (3, 1)),
    ),
    "whisper": Network(whisper_encoder, lambda n: (torch.randn(n, 8, 32),), ({0: "batch"},), ((2,), (1,), (3,))),
    "unet": Network(
        Unet, images, (IMAGE,), ((2, 16, 24), (1, 32, 8), (3, 8, 40)),
        constraints=("height % 8 == 0", "width % 8 == 0"),
    ),
    "unet-padded": Network(
        lambda: Unet(padded=True), images, (IMAGE,), ((2, 16, 24), (1, 17, 30), (3, 8, 11)),
        # How much to pad is six differences of sizes.
        ratio=1.6,
        # Nothing is left of a smaller image after three halvings.
        constraints=("height >= 8", "width >= 8"),
    ),
}  # fmt: skip


def call(network: Network, sizes: tuple[int, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    made = network.make(*sizes)
    return ((), made) if isinstance(made, dict) else (made, {})


@pytest.mark.parametrize("network", [pytest.param(network, id=name) for name, network in NETWORKS.items()])
def test_agrees_at_three_sizes_with_few_nodes(network: Network) -> None:
    torch.manual_seed(0)
    model = network.build().eval().requires_grad_(False)
    args, kwargs = call(network, network.sizes[0])
    static = fxonnx.export(model, args, kwargs=kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if network.constraints else "error", UserWarning)
        program = fxonnx.export(model, args, kwargs=kwargs, dynamic_shapes=network.shapes)
    found = [constraint.text for constraint in program.record.constraints if not constraint.is_equality]
    assert tuple(found) == network.constraints
    # Each guard has up to a dozen nodes of one element.
    assert len(program.model.graph) <= network.ratio * len(static.model.graph) + 12 * len(program.record.guards)
    for sizes in network.sizes:
        args, kwargs = call(network, sizes)
        expected = [leaf for leaf in pytree.tree_leaves(model(*args, **kwargs)) if isinstance(leaf, Tensor)]
        for actual, wanted in zip(program(*args, **kwargs), expected, strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["bert", "llama", "resnet50", "lstm", "whisper", "unet"])
def test_reshapes_of_activations_have_constant_shapes(name: str) -> None:
    """Every Reshape of activations has a constant shape with 0 or -1, not one computed at run time."""
    network = NETWORKS[name]
    torch.manual_seed(0)
    args, kwargs = call(network, network.sizes[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        program = fxonnx.export(network.build().eval(), args, kwargs=kwargs, dynamic_shapes=network.shapes)
    initializers = program.model.graph.initializers
    computed = [
        node.outputs[0].name
        for node in program.model.graph
        if node.op_type == "Reshape" and node.inputs[1] is not None and node.inputs[1].name not in initializers
    ]
    assert computed == []
