"""Types with inputs of their own: the names that optimum's files have, and calls that only these types take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

import fxonnx.huggingface
from fxonnx import ArgumentError
from fxonnx._transformers.families.image_text import example_inputs
from fxonnx._transformers.samples import Sizes, sample_inputs
from fxonnx._transformers.tasks import TASKS, task_by_name
from tests.genai.small_models import make_tokenizer

from .newer_types import NEWER_TYPES
from .small_models import make_model

_EPISODE = ["states", "actions", "returns_to_go", "timesteps", "attention_mask"]
_PREDICTED = ["state_preds", "action_preds", "return_preds", "last_hidden_state"]
_STEP = ["input_ids", "encoder_hidden_states", "use_cache_branch", "encoder_attention_mask"]

NAMES: Mapping[tuple[str, str], Mapping[str, tuple[list[str], list[str]]]] = {
    ("decision_transformer", "reinforcement-learning"): {"model": (_EPISODE, _PREDICTED)},
    ("vitpose", "keypoint-detection"): {"model": (["pixel_values"], ["heatmaps"])},
    ("perceiver", "fill-mask"): {"model": (["attention_mask", "input_ids"], ["logits"])},
    ("perceiver", "image-classification"): {"model": (["pixel_values"], ["logits"])},
    ("colpali", "feature-extraction"): {"model": (["input_ids", "attention_mask", "pixel_values"], ["embeddings"])},
    ("pix2struct", "image-to-text"): {
        "encoder_model": (["flattened_patches", "attention_mask"], ["last_hidden_state"]),
        "decoder_model_merged": ([*_STEP, "decoder_attention_mask"], ["logits"]),
    },
}
"""Inputs and outputs by type and task, and by file, without the keys and values of a cache."""


@pytest.mark.parametrize(("model_type", "task"), NAMES)
def test_names(tmp_path: Path, model_type: str, task: str) -> None:
    exported = fxonnx.huggingface.export(make_model(model_type, task_by_name(task)), tmp_path, task=task, verify=False)
    found = {}
    for file in exported.files:
        graph = onnx.load(file).graph
        names = ([value.name for value in values] for values in (graph.input, graph.output))
        found[file.stem] = tuple([each for each in side if not each.startswith(("past", "present"))] for side in names)
    assert found == NAMES[model_type, task]


def test_queries_of_colpali(tmp_path: Path) -> None:
    """With a tokenizer as its processor, the file embeds texts without images."""
    model = make_model("colpali", TASKS["feature-extraction"])
    exported = fxonnx.huggingface.export(model, tmp_path, processor=make_tokenizer())
    graph = onnx.load(exported.files[0]).graph
    assert [value.name for value in graph.input] == ["input_ids", "attention_mask"]
    ids = torch.tensor([[9, 8, 7]])
    found = fxonnx.huggingface.load(tmp_path)(input_ids=ids).embeddings
    torch.testing.assert_close(found, model(ids).embeddings, atol=1e-5, rtol=1e-4)
    padded, mask = torch.tensor([[9, 8, 7, 0]]), torch.tensor([[1, 1, 1, 0]])
    found = fxonnx.huggingface.load(tmp_path)(input_ids=padded, attention_mask=mask).embeddings[:, :3]
    torch.testing.assert_close(found, model(ids).embeddings, atol=1e-5, rtol=1e-4)


@pytest.mark.nightly
def test_pages_of_colpali_without_weights(tmp_path: Path) -> None:
    model = make_model("colpali", TASKS["feature-extraction"])
    model.save_pretrained(tmp_path / "checkpoint")
    fxonnx.huggingface.export(tmp_path / "checkpoint", tmp_path / "out", verify=False)
    inputs = example_inputs(model, ["input_ids", "attention_mask", "pixel_values"], Sizes(3, 7))
    found = fxonnx.huggingface.load(tmp_path / "out")(**inputs).embeddings
    expected = model(**inputs, token_type_ids=torch.zeros_like(inputs["input_ids"])).embeddings
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_pix2struct_continues_padded_texts(tmp_path: Path) -> None:
    model = make_model("pix2struct", TASKS["image-to-text"])
    fxonnx.huggingface.export(model, tmp_path)
    inputs: dict[str, Any] = sample_inputs(model, ["flattened_patches", "attention_mask"], Sizes())
    inputs["decoder_input_ids"] = torch.tensor([[0, 0, 5, 6], [0, 7, 8, 9]])
    inputs["decoder_attention_mask"] = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    loaded = fxonnx.huggingface.load(tmp_path)
    expected = model(**inputs).logits
    torch.testing.assert_close(loaded(**inputs).logits[:, 1:], expected[:, 1:], atol=1e-4, rtol=1e-3)
    whole = {**inputs, "decoder_attention_mask": torch.ones(2, 4, dtype=torch.int64)}
    assert not torch.allclose(model(**whole).logits[:, 1:], expected[:, 1:], atol=1e-2)
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    assert torch.equal(loaded.generate(**inputs, **options), model.generate(**inputs, **options))


def test_trocr_of_images(tmp_path: Path) -> None:
    """Checkpoints of TrOCR are models of images, whose decoder is TrOCR."""
    from transformers import VisionEncoderDecoderConfig, VisionEncoderDecoderModel

    layers = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    encoder = {**layers, "model_type": "deit", "image_size": 32, "patch_size": 8}
    decoder = {**NEWER_TYPES["trocr"], "model_type": "trocr"}
    config = VisionEncoderDecoderConfig(encoder=encoder, decoder=decoder, decoder_start_token_id=1, pad_token_id=0)
    torch.manual_seed(0)
    exported = fxonnx.huggingface.export(VisionEncoderDecoderModel(config).eval(), tmp_path)
    assert exported.task == "image-to-text"
    assert [file.stem for file in exported.files] == ["decoder_model_merged", "encoder_model"]
    assert exported.checks[-1].file == "generate"


def test_a_class_that_takes_another_configuration(tmp_path: Path) -> None:
    from transformers import MusicgenConfig

    (tmp_path / "config.json").write_text('{"model_type": "musicgen"}')
    assert MusicgenConfig.model_type == "musicgen"
    message = "transformers has no model of type 'musicgen' for text-generation(?s:.*)hint: it has models for text-to-a"
    with pytest.raises(ArgumentError, match=message):
        fxonnx.huggingface.export(tmp_path, tmp_path / "out", task="text-generation")


def test_inputs_without_an_example(tmp_path: Path) -> None:
    message = "PerceiverModel has the input 'inputs', for which no example can be made"
    with pytest.raises(ArgumentError, match=message):
        fxonnx.huggingface.export(make_model("perceiver", TASKS["feature-extraction"]), tmp_path)
