"""Transformers and a diffusion network in half precision: the operators of float32, and errors like eager torch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fxonnx

from .torchvision_shim import import_torchvision

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {"vocab_size": 200, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "use_cache": False}


def transformers() -> Any:
    import_torchvision()
    import transformers as module

    return module


class ResnetBlock(nn.Module):
    def __init__(self, given: int, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(8, given), nn.GroupNorm(8, channels)])
        self.convs = nn.ModuleList(
            [nn.Conv2d(given, channels, 3, padding=1), nn.Conv2d(channels, channels, 3, padding=1)]
        )
        self.time = nn.Linear(64, channels)
        self.shortcut = nn.Conv2d(given, channels, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.convs[0](F.silu(self.norms[0](x))) + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.convs[1](F.silu(self.norms[1](y)))


class CrossAttention(nn.Module):
    """Attention to a text, and a gated feed-forward layer, over the pixels of an image."""

    def __init__(self, channels: int, text: int) -> None:
        super().__init__()
        self.group_norm = nn.GroupNorm(8, channels)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(2))
        self.query, self.out = nn.Linear(channels, channels, bias=False), nn.Linear(channels, channels)
        self.key, self.value = (nn.Linear(text, channels, bias=False) for _ in range(2))
        self.gate, self.down = nn.Linear(channels, 8 * channels), nn.Linear(4 * channels, channels)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        batch, channels, height, width = image.shape
        x = self.group_norm(image).permute(0, 2, 3, 1).reshape(batch, height * width, channels)
        tokens = self.norms[0](x)
        query, key, value = (
            layer(each).view(batch, -1, 4, channels // 4).transpose(1, 2)
            for layer, each in ((self.query, tokens), (self.key, text), (self.value, text))
        )
        x = x + self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(x.shape))
        up, gate = self.gate(self.norms[1](x)).chunk(2, dim=-1)
        x = x + self.down(up * F.gelu(gate))
        return image + x.reshape(batch, height, width, channels).permute(0, 3, 1, 2)


class Unet(nn.Module):
    """The layers of a diffusion model with text conditioning: one resolution down, one up."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 64))
        self.first, self.last = nn.Conv2d(4, 32, 3, padding=1), nn.Conv2d(32, 4, 3, padding=1)
        self.blocks = nn.ModuleList([ResnetBlock(32, 32), ResnetBlock(32, 64), ResnetBlock(96, 32)])
        self.attentions = nn.ModuleList([CrossAttention(32, 24), CrossAttention(64, 24), CrossAttention(32, 24)])
        self.down = nn.Conv2d(32, 32, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(8, 32)

    def forward(self, sample: Tensor, timestep: Tensor, text: Tensor) -> Tensor:
        angles = timestep[:, None].float() * torch.exp(-0.6 * torch.arange(16.0))
        time = self.time(torch.cat([angles.cos(), angles.sin()], dim=-1).to(sample.dtype))
        skip = self.attentions[0](self.blocks[0](self.first(sample), time), text)
        low = self.attentions[1](self.blocks[1](self.down(skip), time), text)
        x = torch.cat([F.interpolate(low, scale_factor=2.0, mode="nearest"), skip], dim=1)
        x = self.attentions[2](self.blocks[2](x, time), text)
        return self.last(F.silu(self.norm(x)))


def unet() -> tuple[nn.Module, dict[str, Tensor]]:
    inputs = {"sample": torch.randn(2, 4, 8, 8), "timestep": torch.tensor([3, 50]), "text": torch.randn(2, 7, 24)}
    return Unet(), inputs


def vit() -> tuple[nn.Module, dict[str, Tensor]]:
    module = transformers()
    model = module.ViTModel(module.ViTConfig(image_size=64, patch_size=16, **SIZES))
    return model, {"pixel_values": torch.randn(2, 3, 64, 64)}


def bert() -> tuple[nn.Module, dict[str, Tensor]]:
    module = transformers()
    mask = torch.ones(2, 16, dtype=torch.int64)
    mask[0, 11:] = 0
    return module.BertModel(module.BertConfig(**SIZES, **TEXT)), {"input_ids": tokens(16), "attention_mask": mask}


def llama() -> tuple[nn.Module, dict[str, Tensor]]:
    module = transformers()
    model = module.LlamaForCausalLM(module.LlamaConfig(num_key_value_heads=2, **SIZES, **TEXT))
    return model, {"input_ids": tokens(16)}


def whisper() -> tuple[nn.Module, dict[str, Tensor]]:
    module = transformers()
    layers = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in
              (("layers", 2), ("attention_heads", 4), ("ffn_dim", 128))}  # fmt: skip
    positions = {"num_mel_bins": 20, "max_source_positions": 50, "max_target_positions": 50}
    config = module.WhisperConfig(d_model=64, decoder_start_token_id=1, **layers, **positions, **TEXT)
    model = module.WhisperForConditionalGeneration(config)
    return model, {"input_features": torch.randn(2, 20, 100), "decoder_input_ids": tokens(8)}


def tokens(length: int) -> Tensor:
    return torch.randint(3, 200, (2, length))


NETWORKS: Mapping[str, Callable[[], tuple[nn.Module, dict[str, Tensor]]]] = MappingProxyType(
    {"unet": unet, "vit": vit, "bert": bert, "llama": llama, "whisper": whisper}
)
FORMS: tuple[dict[str, Any], ...] = ({"opset_version": 20}, {"target": "onnxruntime"})


def made(name: str, dtype: torch.dtype) -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    model, inputs = NETWORKS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            # Trained models have no biases of 0, which exporters leave out.
            if not parameter.any():
                parameter.normal_(std=0.02)
    return model.eval().to(dtype), {
        key: value.to(dtype) if value.is_floating_point() else value for key, value in inputs.items()
    }


def kinds(program: fxonnx.ONNXProgram) -> list[str]:
    return [node.op_type for node in program.model.graph]


def outputs(result: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def check_errors(name: str, dtype: torch.dtype, program: fxonnx.ONNXProgram) -> None:
    """Compare with the float32 model: the error is at most twice eager torch's in the same dtype."""
    model, inputs = made(name, torch.float32)
    half, half_inputs = made(name, dtype)
    with torch.no_grad():
        wanted, eager = outputs(model(**inputs)), outputs(half(**half_inputs))
    for exact, own, actual in zip(wanted, eager, program(**half_inputs), strict=True):
        assert actual.dtype == dtype
        assert (actual - exact).abs().max() <= 2 * (own - exact).abs().max()


@pytest.mark.parametrize("form", FORMS, ids=["opset 20", "onnxruntime"])
@pytest.mark.parametrize("name", NETWORKS)
def test_float16(name: str, form: dict[str, Any]) -> None:
    model, inputs = made(name, torch.float32)
    wide = kinds(fxonnx.export(model, kwargs=inputs, **form))
    model, inputs = made(name, torch.float16)
    program = fxonnx.export(model, kwargs=inputs, verify=True, **form)
    assert len(kinds(program)) <= 1.1 * len(wide)
    check_errors(name, torch.float16, program)


@pytest.mark.parametrize("form", FORMS, ids=["opset 20", "onnxruntime"])
@pytest.mark.parametrize("name", NETWORKS)
def test_bfloat16_on_the_cpu_has_one_cast_for_each_matrix(name: str, form: dict[str, Any]) -> None:
    model, inputs = made(name, torch.float32)
    wide = kinds(fxonnx.export(model, kwargs=inputs, **form))
    model, inputs = made(name, torch.bfloat16)
    program = fxonnx.export(model, kwargs=inputs, verify=True, **form)
    graph = program.model.graph
    weights = sum(
        len(value.shape or ()) > 1 and value.dtype.name == "BFLOAT16" for value in graph.initializers.values()
    )
    ends = len(graph.inputs) + len(graph.outputs)
    # The features of the timestep are computed in float32, as they are by the model, and cast.
    assert kinds(program).count("Cast") - wide.count("Cast") <= weights + ends + (name == "unet")
    assert len(kinds(program)) - kinds(program).count("Cast") <= len(wide)
    check_errors(name, torch.bfloat16, program)


@pytest.mark.parametrize(
    ("name", "target", "opset"),
    [
        *((name, "tensorrt", 23) for name in NETWORKS),
        ("unet", "onnxruntime-cuda", 22),
        ("unet", "onnxruntime-cuda", 23),
    ],
)
def test_bfloat16_of_a_target_with_kernels(name: str, target: str, opset: int) -> None:
    form: dict[str, Any] = {"target": target, "opset_version": opset}
    model, inputs = made(name, torch.float32)
    wide = kinds(fxonnx.export(model, kwargs=inputs, **form))
    model, inputs = made(name, torch.bfloat16)
    assert len(kinds(fxonnx.export(model, kwargs=inputs, **form))) <= 1.1 * len(wide)
