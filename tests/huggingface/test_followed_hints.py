"""Each hint about other kinds of models and about other libraries, followed; see ``tests/genai/test_followed_hints.py``."""

from __future__ import annotations

import copy
import shutil
import struct
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import transformers

import fxonnx
import fxonnx.genai
import fxonnx.huggingface
from benchmarks._multimodal_configs import make_multimodal
from tests.genai.gguf_files import write_model as write_gguf
from tests.genai.small_models import make_model, prompt
from tests.genai.test_followed_hints import encoder, follow, genai, huggingface, model_of, saved, with_adapter
from tests.genai.test_gguf import header, setting

from .small_models import main_task, make_vocoder
from .small_models import make_model as make_other_model
from .test_sound import make_whisper

_Call = Callable[[Path], Any]


@cache
def vit() -> Any:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=16, patch_size=8)).eval()


def one_step(directory: Path) -> Any:
    """The export of a step of RecurrentGemma, whose states are attributes of modules: buffers for this export."""
    model = copy.deepcopy(recurrent_gemma())
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(prompt(1), past_key_values=cache)
    states = [(module, name, vars(module).get(name)) for module in model.modules() for name in _STATES]
    for module, name, value in states:
        if isinstance(value, torch.Tensor):
            delattr(module, name)
            module.register_buffer(name, value)
    step = {"past_key_values": cache, "use_cache": True, "return_dict": False}
    return fxonnx.export(model, (prompt(1)[:, :1],), kwargs=step, state="io")


_STATES = ("conv1d_state", "recurrent_states")


@cache
def recurrent_gemma() -> Any:
    return make_model("recurrent_gemma", head_dim=16, lru_width=64, num_hidden_layers=3)


def gguf(content: str | bytes, *, count: int = 1, is_named: bool = False) -> _Call:
    """The export of a directory of GGUF files, or of one of them, with weights of a type or other content."""

    def call(directory: Path) -> Any:
        pytest.importorskip("gguf")
        for index in range(count):
            path = directory / f"{index}.gguf"
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                write_gguf(path, {"": content})
        return fxonnx.genai.export(directory / "0.gguf" if is_named else directory, directory / "out", verify=False)

    return call


def with_unknown_type(directory: Path) -> Any:
    """The export of a GGUF file one of whose tensors has a type of llama.cpp that is not read."""
    gguf("Q8_0")(directory)
    path = directory / "0.gguf"
    data = path.read_bytes()
    name = b"blk.0.attn_q.weight"
    place = data.index(name) + len(name)
    (axes,) = struct.unpack_from("<I", data, place)
    place += 4 + 8 * axes
    path.write_bytes(data[:place] + struct.pack("<I", 16) + data[place + 4 :])
    shutil.rmtree(directory / "out")
    return fxonnx.genai.export(path, directory / "out", verify=False)


def without_module(name: str, call: _Call) -> _Call:
    def refused(directory: Path) -> Any:
        with mock.patch.dict(sys.modules, {name: None}):
            return call(directory)

    return refused


def on_a_gpu(directory: Path) -> Any:
    with mock.patch.object(type(encoder()), "device", torch.device("cuda", 0)):
        return huggingface(encoder())(directory)


@cache
def other_task(name: str) -> Any:
    """A small model of the tests of fxonnx.huggingface."""
    return make_other_model(name, main_task(name))


@cache
def llava() -> Any:
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlavaConfig(
        text_config=model_of("llama").config.to_dict(),
        vision_config=transformers.CLIPVisionConfig(**vision, image_size=28, patch_size=14),
        image_token_index=299,
    )
    return transformers.LlavaForConditionalGeneration(config).eval()


@cache
def idefics2() -> Any:
    return make_multimodal("AutoModelForMultimodalLM", "idefics2")


@cache
def llava_next() -> Any:
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlavaNextConfig(
        vision_config={"model_type": "clip_vision_model", **vision, "image_size": 8, "patch_size": 4},
        text_config=model_of("llama").config.to_dict(),
    )
    return transformers.LlavaNextForConditionalGeneration(config).eval()


def of_language_model(directory: Path) -> Any:
    """The export of the language model of a vision-language model."""
    whole = llava_next()
    text = transformers.LlamaForCausalLM(whole.config.text_config).eval()
    text.model.load_state_dict(whole.model.language_model.state_dict())
    text.lm_head.load_state_dict(whole.lm_head.state_dict())
    return genai(text)(directory)


@cache
def git() -> Any:
    layers = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.GitConfig(
        vision_config={**layers, "image_size": 32, "patch_size": 8}, **layers, vocab_size=99
    )
    return transformers.GitForCausalLM(config).eval()


@cache
def phi4() -> Any:
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14, "crop_size": 28, "image_token_id": 10}
    audio = {"hidden_size": 16, "intermediate_size": 32, "num_blocks": 1, "num_attention_heads": 2}
    audio |= {"audio_token_id": 11, "ext_pw_out_channel": 16, "nemo_conv_channels": 16, "nemo_final_size": 16}
    sizes = {"original_max_position_embeddings": 128, "vision_config": vision, "audio_config": audio}
    return make_model("phi4_multimodal", **sizes, num_hidden_layers=1)


@cache
def siglip() -> Any:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return transformers.Siglip2VisionModel(transformers.Siglip2VisionConfig(**sizes)).eval()


def musicgen(*, chunks: float | None) -> _Call:
    model = copy.deepcopy(other_task("musicgen"))
    model.config.audio_encoder.chunk_length_s = chunks
    return huggingface(model)


def timestamps(*, attentions: bool) -> _Call:
    def call(directory: Path) -> Any:
        task = "automatic-speech-recognition"
        huggingface(make_whisper(), task=task, processor=None, attentions=attentions)(directory)
        loaded = fxonnx.huggingface.load(directory / "out")
        return loaded.generate(torch.randn(1, 8, 100), return_token_timestamps=True)["token_timestamps"]

    return call


def unet(*, is_component: bool) -> _Call:
    def call(directory: Path) -> Any:
        diffusers = pytest.importorskip("diffusers")
        channels = {"block_out_channels": (32, 32), "down_block_types": ("DownBlock2D",) * 2}
        model = diffusers.UNet2DModel(**channels, up_block_types=("UpBlock2D",) * 2).eval()
        if is_component:
            args = (torch.rand(1, 3, 16, 16), torch.tensor(3))
            return fxonnx.export(model, args, kwargs={"return_dict": False})
        return huggingface(diffusers.DDPMPipeline(model, diffusers.DDPMScheduler()), processor=None)(directory)

    return call


def of_t5(**settings: Any) -> _Call:
    """The export of T5 with its comparison, which generates from a configuration."""
    model = copy.deepcopy(other_task("t5"))
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    return huggingface(model, verify=True)


def plain(model: Any, *args: torch.Tensor, **kwargs: torch.Tensor) -> _Call:
    """The export of a model of transformers by fxonnx.export."""
    return lambda _: fxonnx.export(model(), args, kwargs={**kwargs, "return_dict": False})


PIXELS = torch.rand(1, 16, 3 * 16 * 16)

FOLLOWED: dict[str, tuple[_Call, _Call]] = {
    "pass verify=False (--no-verify)": (
        genai(precision="bf16", inputs_embeds=True, verify=True),
        genai(precision="bf16", inputs_embeds=True),
    ),
    "export a step of one token, with the states as inputs, with fxonnx.export": (
        lambda directory: genai(recurrent_gemma())(directory),
        one_step,
    ),
    "pass the path of one of them": (gguf("Q8_0", count=2), gguf("Q8_0", count=2, is_named=True)),
    "pass the checkpoint of transformers that the file was made of": (
        gguf(header(setting("general.architecture", "mamba9"))),
        lambda directory: genai(saved(directory))(directory),
    ),
    "join them with llama-gguf-split --merge": (
        gguf(header(setting("general.architecture", "llama"), setting("split.count", 3))),
        gguf("Q8_0"),
    ),
    "convert the model to one of {} with llama-quantize": (with_unknown_type, gguf("Q8_0")),
    "install it with: pip install peft": (without_module("peft", genai(adapters={"german": "german"})), with_adapter()),
    "install it with: pip install 'fxonnx[{}]'": (without_module("onnxruntime_genai", genai(verify=True)), genai()),
    "call .cpu()": (on_a_gpu, huggingface(encoder())),
    "for text alone, export the language model by itself": (lambda d: genai(llava_next())(d), of_language_model),
    "fxonnx.huggingface.export writes its parts, which fxonnx.huggingface.load runs": (
        lambda directory: genai(idefics2())(directory),
        lambda directory: huggingface(idefics2())(directory),
    ),
    "export it with fxonnx.export": (
        lambda directory: genai(saved(directory, vit()))(directory),
        plain(vit, torch.rand(1, 3, 16, 16)),
    ),
    "export it with fxonnx.export, or pass text_only=True (--text-only) for a model of text": (
        lambda directory: genai(git())(directory),
        lambda directory: genai(git(), text_only=True)(directory),
    ),
    "pass task={} for the model of text only; fxonnx.genai.export exports vision-language models": (
        lambda directory: huggingface(phi4())(directory),
        lambda directory: huggingface(phi4(), task="text-generation")(directory),
    ),
    "fxonnx.genai.export exports further vision-language models, fxonnx.export any model with example inputs": (
        lambda directory: huggingface(git())(directory),
        plain(git, prompt(1) % 99, pixel_values=torch.rand(1, 3, 32, 32), use_cache=False),
    ),
    "its task is image-text-to-text": (
        lambda directory: huggingface(llava(), task="image-to-text")(directory),
        lambda directory: huggingface(llava(), task="image-text-to-text")(directory),
    ),
    "pass a SpeechT5HifiGan, or its directory: vocoder=, --vocoder": (
        lambda directory: huggingface(other_task("speecht5"))(directory),
        lambda directory: huggingface(other_task("speecht5"), vocoder=make_vocoder())(directory),
    ),
    "only EnCodec in one chunk is exported: chunk_length_s=None": (
        lambda directory: musicgen(chunks=1.0)(directory),
        lambda directory: musicgen(chunks=None)(directory),
    ),
    "export with attentions=True (--attentions)": (timestamps(attentions=False), timestamps(attentions=True)),
    "export its components with fxonnx.export": (unet(is_component=False), unet(is_component=True)),
    "it has models for {}": (
        lambda directory: fxonnx.huggingface.export(saved(directory, encoder()), "out", task="object-detection"),
        lambda directory: fxonnx.huggingface.export(
            saved(directory, encoder()), directory / "out", task="feature-extraction", verify=False
        ),
    ),
    "export it with fxonnx.export, which takes an example": (
        lambda directory: huggingface(siglip(), task="feature-extraction")(directory),
        plain(
            siglip,
            PIXELS,
            pixel_attention_mask=torch.ones(1, 16, dtype=torch.int64),
            spatial_shapes=torch.tensor([[4, 4]]),
        ),
    ),
    "correct the configuration, or export without the comparison: verify=False, --no-verify": (
        lambda directory: of_t5(decoder_start_token_id=None, bos_token_id=None)(directory),
        lambda directory: of_t5(decoder_start_token_id=0)(directory),
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hint", FOLLOWED)
def test_a_followed_hint_works(hint: str, tmp_path: Path) -> None:
    follow(hint, *FOLLOWED[hint], tmp_path)
