"""Small versions of many architectures, with all their kinds of layers and few of each, to measure their graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from tests.models.torchvision_shim import import_torchvision

__all__ = ["ZOO", "Network"]

Network = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
"""A model in eval mode, and its positional and keyword inputs."""

_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 200,
}


def _vision(name: str, size: int = 64, **options: Any) -> Network:
    model = getattr(import_torchvision().models, name)(weights=None, **options)
    return model.eval(), (torch.randn(2, 3, size, size),), {}


def _timm(name: str, size: int = 224) -> Network:
    import_torchvision()
    import timm

    return timm.create_model(name, pretrained=False).eval(), (torch.randn(2, 3, size, size),), {}


def _language(name: str, *, mask: bool = False, cache: bool = True, **config: Any) -> Network:
    import_torchvision()
    import transformers

    family = name.removesuffix("Model").removesuffix("ForCausalLM").removesuffix("LMHead").removesuffix("Encoder")
    model = getattr(transformers, name)(getattr(transformers, f"{family}Config")(**config))
    inputs: dict[str, Any] = {"input_ids": torch.randint(3, 200, (2, 16))}
    if mask:
        inputs["attention_mask"] = torch.ones(2, 16, dtype=torch.int64)
    return model.eval(), (), inputs | ({} if cache else {"use_cache": False})


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
    return WhisperEncoder(config).eval(), (torch.randn(2, 20, 100),), {}


def _clip() -> Network:
    import_torchvision()
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = {name: value for name, value in _SMALL.items() if name != "vocab_size"}
    model = CLIPVisionModel(CLIPVisionConfig(image_size=64, patch_size=16, **config))
    return model.eval(), (), {"pixel_values": torch.randn(2, 3, 64, 64)}


def _wav2vec() -> Network:
    import_torchvision()
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    config = {name: value for name, value in _SMALL.items() if name != "vocab_size"}
    model = Wav2Vec2Model(Wav2Vec2Config(conv_dim=(32,) * 7, **config))
    return model.eval(), (), {"input_values": torch.randn(1, 4000)}


_GROUPED = {**_SMALL, "num_key_value_heads": 2}

ZOO: Mapping[str, Callable[[], Network]] = MappingProxyType(
    {
        "resnet50": partial(_vision, "resnet50"),
        "mobilenet_v3": partial(_vision, "mobilenet_v3_large"),
        "regnet_y": partial(_vision, "regnet_y_400mf"),
        "shufflenet_v2": partial(_vision, "shufflenet_v2_x1_0"),
        "vit_b_16": partial(_vision, "vit_b_16", image_size=64),
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
        "gpt2": partial(_language, "GPT2LMHeadModel", cache=False, n_embd=64, n_layer=3, n_head=4, vocab_size=200),
        "llama": partial(_language, "LlamaForCausalLM", cache=False, **_SMALL),
        "qwen2": partial(_language, "Qwen2ForCausalLM", cache=False, **_GROUPED),
        "gemma2": partial(_language, "Gemma2ForCausalLM", cache=False, head_dim=16, **_GROUPED),
        "phi": partial(_language, "PhiForCausalLM", cache=False, **_SMALL),
        "whisper_encoder": _whisper,
        "clip_vision": _clip,
        "wav2vec2": _wav2vec,
    }
)
"""Name to what makes the network."""
