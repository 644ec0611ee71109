"""Each hint about models of transformers, followed: the refused call prints it, and the changed one works."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fxonnx
import fxonnx.genai
import fxonnx.huggingface
from fxonnx import QuantizeConfig
from tests.messages import check_message

from .small_models import make_model, make_tokenizer, prompt
from .test_quantized_checkpoints import write

_Call = Callable[[Path], Any]
_SMALL = {"num_hidden_layers": 1}


@cache
def model_of(model_type: str, **sizes: Any) -> Any:
    return make_model(model_type, **{**_SMALL, **sizes})


def saved(directory: Path, model: Any = None, **config: Any) -> Path:
    """The checkpoint of a model with its tokenizer."""
    place = directory / "checkpoint"
    (model_of("llama") if model is None else model).save_pretrained(place)
    make_tokenizer().save_pretrained(place)
    settings = json.loads((place / "config.json").read_text()) | config
    (place / "config.json").write_text(json.dumps({name: value for name, value in settings.items() if value != "-"}))
    return place


def genai(model: Any = None, **options: Any) -> _Call:
    def call(directory: Path) -> Any:
        given = {"tokenizer": make_tokenizer(), "verify": False} | options
        return fxonnx.genai.export(model_of("llama") if model is None else model, directory / "out", **given)

    return call


def huggingface(model: Any = None, **options: Any) -> _Call:
    def call(directory: Path) -> Any:
        given = {"processor": make_tokenizer(), "verify": False} | options
        return fxonnx.huggingface.export(model_of("llama") if model is None else model, directory / "out", **given)

    return call


def from_checkpoint(without: str = "", of: str = "llama", **config: Any) -> _Call:
    """The export of a saved checkpoint, without some of its files."""

    def call(directory: Path) -> Any:
        place = saved(directory, model_of(of), **config)
        for path in place.glob(without) if without else ():
            path.unlink()
        return fxonnx.huggingface.export(place, directory / "out", verify=False)

    return call


def embedding(pooling: str | None = None, **settings: Any) -> _Call:
    """The export of a directory of sentence-transformers."""

    def call(directory: Path) -> Any:
        place = saved(directory, encoder())
        modules = [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ]
        (place / "modules.json").write_text(json.dumps(modules))
        (place / "1_Pooling").mkdir()
        (place / "1_Pooling/config.json").write_text(json.dumps(settings))
        return fxonnx.genai.export(place, directory / "out", pooling=pooling, verify=False)

    return call


@cache
def encoder() -> Any:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 300}
    return BertModel(BertConfig(num_hidden_layers=1, **sizes)).eval()


def without_template() -> Any:
    tokenizer = copy.deepcopy(make_tokenizer())
    tokenizer.chat_template = None
    return tokenizer


def marked_as_quantized() -> Any:
    model = copy.deepcopy(model_of("llama"))
    model.config.quantization_config = {"quant_method": "fp8"}
    return model


def without_cache(model_type: str) -> _Call:
    """The export of a model of transformers by fxonnx.export."""
    return lambda _: fxonnx.export(
        model_of(model_type), (prompt(1),), kwargs={"use_cache": False, "return_dict": False}
    )


def file_of(directory: Path) -> Path:
    path = directory / "model.onnx"
    path.touch()
    return path


def loaded(directory: Path) -> Any:
    huggingface()(directory)
    return fxonnx.huggingface.load(directory / "out")


def with_notes(*, is_link: bool) -> _Call:
    """The export of a checkpoint with a further file, which is elsewhere or in it."""

    def call(directory: Path) -> Any:
        (directory / "notes.json").write_text("{}")
        place = saved(directory)
        if is_link:
            (place / "notes.json").symlink_to(directory / "notes.json")
        else:
            shutil.copy(directory / "notes.json", place)
        return fxonnx.huggingface.export(place, directory / "out", verify=False)

    return call


_CONFIGURATION = "from transformers import LlamaConfig\n\nclass OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
_MODEL = """
from transformers import LlamaForCausalLM
from .configuration_own import OwnConfig

class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""
_MAP = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}


def with_code(directory: Path) -> Path:
    """A checkpoint of a class of its own."""
    place = saved(directory, model_type="own", auto_map=_MAP, architectures=["OwnModel"])
    (place / "configuration_own.py").write_text(_CONFIGURATION)
    (place / "modeling_own.py").write_text(_MODEL)
    return place


def of_own_class(**options: Any) -> _Call:
    given = {"task": "text-generation", "verify": False} | options
    return lambda directory: fxonnx.huggingface.export(with_code(directory), directory / "out", **given)


def loaded_by_hand(directory: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(with_code(directory), trust_remote_code=True, dtype="float32")
    kwargs = {"use_cache": False, "return_dict": False}
    return fxonnx.export(model.eval(), (prompt(1),), kwargs=kwargs)


def of_pickled_weights(*, is_converted: bool) -> _Call:
    """The export of a checkpoint whose weights are pickled together with an object, or converted."""

    def call(directory: Path) -> Any:
        place = saved(directory)
        state = load_file(place / "model.safetensors")
        (place / "model.safetensors").unlink()
        torch.save({**state, "made": Path("by")}, place / "pytorch_model.bin")
        if is_converted:
            trusted = torch.load(place / "pytorch_model.bin", weights_only=False)
            (place / "pytorch_model.bin").unlink()
            tensors = {name: value for name, value in trusted.items() if isinstance(value, torch.Tensor)}
            save_file(tensors, place / "model.safetensors", {"format": "pt"})
        return fxonnx.huggingface.export(place, directory / "out", verify=False)

    return call


def with_adapter(name: str = "german", *, is_merged: bool = False, **config: Any) -> _Call:
    """The export of a model with an adapter of PEFT beside it, or merged into it."""

    def call(directory: Path) -> Any:
        peft = pytest.importorskip("peft")
        given = {"target_modules": ["q_proj"], "r": 2} | config
        model = peft.get_peft_model(copy.deepcopy(model_of("llama")), peft.LoraConfig(**given))
        if is_merged:
            return genai(model.merge_and_unload())(directory)
        model.save_pretrained(directory / "adapter")
        return genai(adapters={name: directory / "adapter"})(directory)

    return call


def quantized(directory: Path, *, without_settings: bool = False, **changed: Any) -> Path:
    """A checkpoint with weights of 4 bits in the format of GPTQ."""
    place = directory / "checkpoint"
    write(place, "gptq")
    settings = json.loads((place / "config.json").read_text())
    settings["quantization_config"] |= changed
    if without_settings:
        del settings["quantization_config"]
    (place / "config.json").write_text(json.dumps(settings))
    return place


def from_quantized(changed: dict[str, Any] | None = None, **options: Any) -> _Call:
    given = {"verify": False} | options
    return lambda directory: fxonnx.genai.export(quantized(directory, **(changed or {})), directory / "out", **given)


def with_stray_scales(*, is_saved_again: bool) -> _Call:
    """The export of a checkpoint with scales that nothing describes, or as a library writes it that knows them."""

    def call(directory: Path) -> Any:
        place = saved(directory)
        if not is_saved_again:
            tensors = load_file(place / "model.safetensors")
            tensors["model.layers.0.mlp.up_proj.weight_scale"] = torch.ones(64, 1)
            save_file(tensors, place / "model.safetensors", {"format": "pt"})
        return fxonnx.genai.export(place, directory / "out", verify=False)

    return call


def of_bitsandbytes(*, is_dequantized: bool) -> _Call:
    """The export of a model with a layer of the library, which need not be installed."""
    model = copy.deepcopy(model_of("llama"))
    if not is_dequantized:
        model.lm_head.__class__ = type("Linear4bit", (nn.Linear,), {"__module__": "bitsandbytes.nn.modules"})
    return genai(model)


GPT: dict[str, Any] = {"n_embd": 64, "n_layer": 1, "n_head": 4}
FOLLOWED: dict[str, tuple[_Call, _Call]] = {
    "only SpeechT5 does, in the other layouts": (huggingface(layout="genai", vocoder="v"), huggingface(layout="genai")),
    "choose another layout": (huggingface(layout="genai", attentions=True), huggingface(attentions=False)),
    "leave it out, or choose another layout": (
        huggingface(layout="genai", target="onnxruntime"),
        huggingface(layout="genai"),
    ),
    "only SpeechT5 does": (huggingface(vocoder="v"), huggingface()),
    'pass activations="dynamic", or leave it out: MatMulNBits rounds activations by itself': (
        genai(quantize=QuantizeConfig("int8", activations="static", calibration=[prompt(1)])),
        genai(quantize=QuantizeConfig("int8", activations="dynamic")),
    ),
    "pass precision='int4' or 'int8'": (genai(accuracy_level=4), genai(precision="int8", accuracy_level=4)),
    "pass one": (genai(recipe="fast", precision="int8"), genai(precision="int8")),
    "pass tokenizer=, a tokenizer or its directory": (genai(tokenizer=None), genai(tokenizer=make_tokenizer())),
    "fxonnx.export is for other models": (
        genai(nn.Linear(3, 2)),
        lambda _: fxonnx.export(nn.Linear(3, 2).eval(), (torch.rand(2, 3),)),
    ),
    'write "path/to/model"': (genai(3), lambda directory: genai(str(saved(directory)))(directory)),
    "pass a directory that save_pretrained or a download of the model has written": (
        lambda directory: genai(directory)(directory),
        lambda directory: genai(saved(directory))(directory),
    ),
    "pass a GGUF file, or the directory of the model": (
        lambda directory: huggingface(file_of(directory))(directory),
        lambda directory: huggingface(saved(directory))(directory),
    ),
    "its tasks are: {}; a directory is loaded with the class of the task": (
        huggingface(encoder(), task="text-generation"),
        huggingface(encoder(), task="feature-extraction"),
    ),
    "pass task=, for example task='feature-extraction'": (
        from_checkpoint(architectures="-"),
        lambda directory: fxonnx.huggingface.export(
            saved(directory, architectures="-"), directory / "out", task="feature-extraction", verify=False
        ),
    ),
    "pass a directory that fxonnx.huggingface.export has written": (
        lambda directory: fxonnx.huggingface.load(directory),
        loaded,
    ),
    "pass chat_template=, a template or a file with one (--chat-template FILE), or chat_template=False "
    "(--no-chat-template) for a model that does not chat": (
        genai(tokenizer=without_template()),
        genai(tokenizer=without_template(), chat_template=False),
    ),
    "is_decoder=True in its configuration?": (genai(model_of("bert")), genai(model_of("bert", is_decoder=True))),
    "export it without a cache, with fxonnx.export": (
        genai(model_of("openai-gpt", **GPT)),
        without_cache("openai-gpt"),
    ),
    "pass pooling='mean'": (genai(encoder()), genai(encoder(), pooling="mean")),
    "pass pooling= to include the prompt": (
        embedding(pooling_mode_mean_tokens=True, include_prompt=False),
        embedding("mean", pooling_mode_mean_tokens=True, include_prompt=False),
    ),
    "pass pooling=": (
        embedding(pooling_mode_cls_token=True, pooling_mode_mean_tokens=True),
        embedding("mean", pooling_mode_cls_token=True, pooling_mode_mean_tokens=True),
    ),
    "pass the directory of the checkpoint, or a model without config.quantization_config if its weights are "
    "not quantized": (huggingface(marked_as_quantized()), huggingface()),
    "pass a model object if random weights are intended": (
        from_checkpoint(num_hidden_layers=2),
        huggingface(model_of("llama", num_hidden_layers=2)),
    ),
    "copy the file into the directory, if it belongs there": (with_notes(is_link=True), with_notes(is_link=False)),
    "code in a checkpoint is run only with trust_remote_code=True": (
        of_own_class(),
        of_own_class(trust_remote_code=True),
    ),
    "load the model yourself with trust_remote_code=True and export it with fxonnx.export": (
        lambda directory: fxonnx.genai.export(with_code(directory), directory / "out", verify=False),
        loaded_by_hand,
    ),
    "check the sizes in config.json, and whether files are missing": (
        from_checkpoint(vocab_size=2**40),
        from_checkpoint(),
    ),
    "convert the weights to safetensors where you trust them": (
        of_pickled_weights(is_converted=False),
        of_pickled_weights(is_converted=True),
    ),
    "names have no '.' or '/'": (with_adapter("a.b"), with_adapter("a-b")),
    "merge the adapter": (with_adapter(use_dora=True), with_adapter(use_dora=True, is_merged=True)),
    'leave it out, or pass quantize="int4"': (
        from_quantized(inputs_embeds=True),
        from_quantized(inputs_embeds=True, quantize="int4"),
    ),
    'pass quantize="int4" to round the dequantized weights to nearest': (
        from_quantized(pooling="mean"),
        from_quantized(pooling="mean", quantize="int4"),
    ),
    "dequantize the checkpoint with the library that has quantized it, and save the model again": (
        with_stray_scales(is_saved_again=False),
        with_stray_scales(is_saved_again=True),
    ),
    "pass the directory that model.save_pretrained writes, or the result of model.dequantize()": (
        of_bitsandbytes(is_dequantized=False),
        of_bitsandbytes(is_dequantized=True),
    ),
    "supported are 4 and 8 bits per weight with scales for blocks or for output features": (
        from_quantized({"bits": "four"}),
        from_quantized(),
    ),
    "pass verify=False (--no-verify), or precision='fp16'": (
        genai(target="cuda", precision="bf16", verify=True),
        genai(target="cuda", precision="bf16"),
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hint", FOLLOWED)
def test_a_followed_hint_works(hint: str, tmp_path: Path) -> None:
    follow(hint, *FOLLOWED[hint], tmp_path)


def follow(hint: str, refused: _Call, followed: _Call, tmp_path: Path) -> None:
    """Check that the first call prints a hint, and that the second one works."""
    first, second = tmp_path / "refused", tmp_path / "followed"
    first.mkdir()
    second.mkdir()
    with pytest.raises(fxonnx.ExportError) as caught:
        refused(first)
    check_message(caught.value)
    assert re.search(".*".join(map(re.escape, hint.split("{}"))) + "$", caught.value.hint or ""), caught.value
    shutil.rmtree(first)
    result = followed(second)
    if isinstance(result, Path):
        assert any(result.rglob("*.onnx"))
    elif isinstance(result, fxonnx.ONNXProgram):
        result.verify()
