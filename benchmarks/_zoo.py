"""The networks that are measured: architectures of torchvision, timm, transformers and diffusers, with random weights.

Those of ``REAL`` have their real sizes, or a real one's number of layers; the others are small versions, with all kinds
of layers that the architecture has and few of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from tests.models.torchvision_shim import import_torchvision

__all__ = [
    "LANGUAGE_STEPS",
    "REAL",
    "ZOO",
    "Maker",
    "Network",
    "linear_layers",
    "llama_stack",
    "trained",
    "vae_decoder",
]

Axes = Mapping[int, str]

_BATCH: Axes = MappingProxyType({0: "batch"})
_IMAGE: Axes = MappingProxyType({0: "batch", 2: "height", 3: "width"})
_TEXT: Axes = MappingProxyType({0: "batch", 1: "sequence"})
_PAST: Axes = MappingProxyType({0: "batch", 2: "past"})


@dataclass(frozen=True)
class Network:
    """A model in eval mode with its example inputs.

    Attributes:
        model: The model.
        args: Positional inputs, tensors or tuples of tensors.
        kwargs: Keyword inputs, tensors.
        axes: For each positional input, then each keyword input, its dynamic axes.
    """

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Tensor] = field(default_factory=dict)
    axes: tuple[Any, ...] = (_BATCH,)

    def dynamic_shapes(self, dim: Callable[[str], Any] = str) -> Any:
        """As for ``torch.export.export``, with ``dim`` making the dimensions of their names."""
        specs = [torch.utils._pytree.tree_map_only(str, dim, _plain(axes)) for axes in self.axes]
        if not self.kwargs:
            return tuple(specs)
        if self.args:
            raise ValueError("networks have either positional or keyword inputs")
        return dict(zip(self.kwargs, specs, strict=True))

    def tensors(self) -> list[Tensor]:
        """All inputs in the order of the graph's."""
        leaves: list[Tensor] = torch.utils._pytree.tree_leaves((self.args, dict(self.kwargs)))
        return leaves


Maker = Callable[[], Network]


def trained(model: nn.Module) -> nn.Module:
    """The model in eval mode, with biases that are not all 0: exporters leave those out, which no trained model has."""
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.02)
    return model.eval()


def _plain(axes: Any) -> Any:
    return tuple(map(_plain, axes)) if isinstance(axes, tuple) else dict(axes)


_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 200,
}
_GROUPED = {**_SMALL, "num_key_value_heads": 2}
_UNWORDED = {name: value for name, value in _SMALL.items() if name != "vocab_size"}


def _vision(name: str, size: int = 64, axes: Axes = _BATCH, batch: int = 2, **options: Any) -> Network:
    model = getattr(import_torchvision().models, name)(weights=None, **options)
    return Network(trained(model), (torch.randn(batch, 3, size, size),), axes=(axes,))


def _timm(name: str, size: int = 224) -> Network:
    import_torchvision()
    import timm

    return Network(trained(timm.create_model(name, pretrained=False)), (torch.randn(2, 3, size, size),))


def _language_model(name: str, **config: Any) -> nn.Module:
    import_torchvision()  # transformers imports it, where it is installed
    import transformers

    family = name.removesuffix("Model").removesuffix("ForCausalLM").removesuffix("LMHead").removesuffix("Encoder")
    model: nn.Module = getattr(transformers, name)(getattr(transformers, f"{family}Config")(use_cache=False, **config))
    return trained(model)


def _language(name: str, *, mask: bool = False, batch: int = 2, length: int = 16, **config: Any) -> Network:
    model = _language_model(name, **config)
    inputs = {"input_ids": torch.randint(3, 200, (batch, length))}
    if mask:
        inputs["attention_mask"] = torch.ones(batch, length, dtype=torch.int64)
    return Network(model, (), inputs, (_TEXT,) * len(inputs))


class Step(nn.Module):
    """A language model that takes one more token, and keys and values of those before it as plain tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, past: tuple[tuple[Tensor, Tensor], ...]) -> tuple[Tensor, ...]:
        from transformers import DynamicCache

        cache = DynamicCache(past)
        logits = self.model(input_ids=input_ids, past_key_values=cache, use_cache=True).logits
        return logits, *(tensor for layer in cache.layers for tensor in (layer.keys, layer.values))


def _step(name: str, past: int = 31, **config: Any) -> Network:
    model = _language_model(name, **config)
    options: Any = model.config
    heads = getattr(options, "num_key_value_heads", None) or options.num_attention_heads
    size = getattr(options, "head_dim", None) or options.hidden_size // options.num_attention_heads
    layers = tuple(
        (torch.randn(2, heads, past, size), torch.randn(2, heads, past, size)) for _ in range(options.num_hidden_layers)
    )
    axes = (_BATCH, tuple((_PAST, _PAST) for _ in layers))
    return Network(Step(model).eval(), (torch.randint(3, 200, (2, 1)), layers), axes=axes)


def _whisper() -> Network:
    import_torchvision()
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=64,
        encoder_layers=3,
        encoder_attention_heads=4,
        encoder_ffn_dim=128,
        num_mel_bins=20,
        max_source_positions=50,
    )
    return Network(trained(WhisperEncoder(config)), (torch.randn(2, 20, 100),))


def _clip() -> Network:
    import_torchvision()
    from transformers import CLIPVisionConfig, CLIPVisionModel

    model = CLIPVisionModel(CLIPVisionConfig(image_size=64, patch_size=16, **_UNWORDED))
    return Network(trained(model), (), {"pixel_values": torch.randn(2, 3, 64, 64)})


def _wav2vec() -> Network:
    import_torchvision()
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    model = Wav2Vec2Model(Wav2Vec2Config(conv_dim=(32,) * 7, **_UNWORDED))
    return Network(trained(model), (), {"input_values": torch.randn(2, 4000)})


def _unet() -> Network:
    import_torchvision()
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        norm_num_groups=8,
        attention_head_dim=8,
    )
    inputs = (torch.randn(2, 4, 16, 16), torch.tensor([3, 5]), torch.randn(2, 7, 32))
    return Network(trained(model), inputs, axes=(_BATCH, _BATCH, _BATCH))


def vae_decoder(
    channels: tuple[int, int] = (32, 64), groups: int = 8, shape: tuple[int, ...] = (2, 4, 8, 8)
) -> Network:
    """The decoder of an image from a latent of a shape; ``groups`` is for its group norms."""
    import_torchvision()
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=channels,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=groups,
        sample_size=32,
    )
    return Network(trained(model).decoder, (torch.randn(shape),))


def llama_stack(layers: int) -> Network:
    """A Llama with as many nodes as a real one of that many layers has, without its weights, over 64 tokens."""
    config = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": layers, "num_attention_heads": 8}
    return _language("LlamaModel", batch=1, length=64, vocab_size=1000, **config)


def linear_layers(count: int, size: int) -> Network:
    """``count`` bias-free square linear layers: nothing but weights, ``4 * count * size ** 2`` bytes of them."""
    layers = [nn.utils.skip_init(nn.Linear, size, size, bias=False) for _ in range(count)]
    for layer in layers:
        layer.weight.data.fill_(1e-3)
    return Network(nn.Sequential(*layers).eval(), (torch.randn(1, size),))


REAL: Mapping[str, Maker] = MappingProxyType(
    {
        "resnet50": partial(_vision, "resnet50", 224, _IMAGE, 1),
        "vit_b_16": partial(_vision, "vit_b_16", 224, batch=1),
        "swin_t": partial(_vision, "swin_t", 224, batch=1),
        "convnext_tiny": partial(_vision, "convnext_tiny", 224, _IMAGE, 1),
        "efficientnet_b0": partial(_vision, "efficientnet_b0", 224, _IMAGE, 1),
        "bert_base": partial(_language, "BertModel", batch=1, length=64),
        "llama_16_layers": partial(llama_stack, 16),
    }
)
"""Networks of real size."""

ZOO: Mapping[str, Maker] = MappingProxyType(
    {
        **REAL,
        "mobilenet_v3": partial(_vision, "mobilenet_v3_large", axes=_IMAGE),
        "regnet_y": partial(_vision, "regnet_y_400mf", axes=_IMAGE),
        "shufflenet_v2": partial(_vision, "shufflenet_v2_x1_0", axes=_IMAGE),
        "swin_v2_t": partial(_vision, "swin_v2_t"),
        "maxvit_t": partial(_vision, "maxvit_t", 224),
        "deit_tiny": partial(_timm, "deit_tiny_patch16_224"),
        "mixer_s32": partial(_timm, "mixer_s32_224"),
        "convnextv2_atto": partial(_timm, "convnextv2_atto", 64),
        "levit_128s": partial(_timm, "levit_128s"),
        "coatnet_0": partial(_timm, "coatnet_0_rw_224"),
        "efficientvit_b0": partial(_timm, "efficientvit_b0", 64),
        "bert": partial(_language, "BertModel", mask=True, **_SMALL),
        "deberta_v2": partial(_language, "DebertaV2Model", mask=True, **_SMALL),
        "gpt2": partial(_language, "GPT2LMHeadModel", n_embd=64, n_layer=3, n_head=4, vocab_size=200),
        "llama": partial(_language, "LlamaForCausalLM", **_SMALL),
        "qwen2": partial(_language, "Qwen2ForCausalLM", **_GROUPED),
        "gemma2": partial(_language, "Gemma2ForCausalLM", head_dim=16, **_GROUPED),
        "phi": partial(_language, "PhiForCausalLM", **_SMALL),
        "gpt2_step": partial(_step, "GPT2LMHeadModel", n_embd=64, n_layer=3, n_head=4, vocab_size=200),
        "llama_step": partial(_step, "LlamaForCausalLM", **_SMALL),
        "qwen2_step": partial(_step, "Qwen2ForCausalLM", **_GROUPED),
        "whisper_encoder": _whisper,
        "clip_vision": _clip,
        "wav2vec2": _wav2vec,
        "diffusion_unet": _unet,
        "diffusion_decoder": vae_decoder,
    }
)
"""All measured networks: name to factory."""

_WIDE = {
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 200,
}
_WIDE_GPT2 = {"n_embd": 256, "n_layer": 4, "n_head": 8, "vocab_size": 200}

LANGUAGE_STEPS: Mapping[str, Maker] = MappingProxyType(
    {
        f"{label}, {length}": maker
        for label, name, config in (
            ("bert", "BertModel", _WIDE),
            ("gpt2", "GPT2LMHeadModel", _WIDE_GPT2),
            ("llama", "LlamaForCausalLM", _WIDE),
            ("qwen2", "Qwen2ForCausalLM", {**_WIDE, "num_key_value_heads": 2}),
            ("phi", "PhiForCausalLM", _WIDE),
        )
        for length, maker in (
            ("1 after 31", partial(_step, name, **config)),
            ("32", partial(_language, name, length=32, **config)),
            ("128", partial(_language, name, length=128, **config)),
        )
        # An encoder has no past.
        if not (label == "bert" and length.startswith("1 "))
    }
)
"""Transformers at the lengths of use: a token after others, a short and a long text."""
