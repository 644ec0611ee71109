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
from torch import nn

import fxonnx
import fxonnx.genai
import fxonnx.huggingface
from fxonnx import QuantizeConfig
from tests.messages import check_message

from .small_models import make_model, make_tokenizer, prompt

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
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hint", FOLLOWED)
def test_a_followed_hint_works(hint: str, tmp_path: Path) -> None:
    refused, followed = FOLLOWED[hint]
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
