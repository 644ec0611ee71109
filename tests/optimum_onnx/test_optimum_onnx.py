"""optimum-onnx with fxonnx installed: its own export and its runtimes, compared with PyTorch.

optimum-onnx needs transformers 4.57: the environment of ``make optimum``, or the row ``optimum-0.1`` of ``make matrix``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

pytest.importorskip("optimum.exporters.onnx", reason="optimum-onnx is not installed")

import torch
import transformers

import fxonnx
from tests.genai.small_models import VOCABULARY, make_tokenizer
from tests.huggingface.small_pipelines import images
from tests.huggingface.small_pipelines import make as make_pipeline
from tests.models.torchvision_shim import import_torchvision

with suppress(ModuleNotFoundError):
    import_torchvision()

from optimum import onnxruntime as runtimes

from benchmarks._optimum_models import MODELS
from benchmarks.optimum_exports import export, make, outcome


@pytest.fixture(autouse=True)
def exports() -> Iterator[Mock]:
    """The calls of torch.onnx.export, which are fxonnx's."""
    with fxonnx.installed(), patch.object(torch.onnx, "export", wraps=fxonnx.torch_onnx_export) as calls:
        yield calls


def tokens_of(batch: int, length: int, *, pads: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(3, 128, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[-1, :pads] = 0
    return {"input_ids": ids, "attention_mask": mask}


def of_shape(name: str, *shape: int) -> dict[str, torch.Tensor]:
    return {name: torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))}


VALUES = [
    ("bert", "text-classification", "ORTModelForSequenceClassification", [tokens_of(1, 5), tokens_of(3, 9, pads=2)]),
    ("deberta-v2", "token-classification", "ORTModelForTokenClassification", [tokens_of(1, 6), tokens_of(3, 11)]),
    ("distilbert", "question-answering", "ORTModelForQuestionAnswering", [tokens_of(1, 5), tokens_of(4, 7)]),
    ("mpnet", "feature-extraction", "ORTModelForFeatureExtraction", [tokens_of(1, 5), tokens_of(3, 8)]),
    ("modernbert", "fill-mask", "ORTModelForMaskedLM", [tokens_of(1, 5), tokens_of(2, 13, pads=1)]),
    (
        *("vit", "image-classification", "ORTModelForImageClassification"),
        [of_shape("pixel_values", batch, 3, 32, 32) for batch in (1, 3)],
    ),
    (
        *("segformer", "semantic-segmentation", "ORTModelForSemanticSegmentation"),
        [of_shape("pixel_values", 1, 3, 64, 32), of_shape("pixel_values", 3, 3, 96, 64)],
    ),
    (
        *("wav2vec2", "automatic-speech-recognition", "ORTModelForCTC"),
        [of_shape("input_values", 1, 4000), of_shape("input_values", 3, 7001)],
    ),
]


@pytest.mark.parametrize(("model_type", "task", "loader", "calls"), VALUES, ids=[case[0] for case in VALUES])
def test_values(
    exports: Mock, tmp_path: Path, model_type: str, task: str, loader: str, calls: list[dict[str, torch.Tensor]]
) -> None:
    model = make(model_type, task)
    model.save_pretrained(tmp_path)  # type: ignore[operator]
    loaded = getattr(runtimes, loader).from_pretrained(tmp_path, export=True)
    assert exports.call_count == 1
    for inputs in calls:
        with torch.no_grad():
            expected, found = model(**inputs), loaded(**inputs)
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name], atol=1e-4, rtol=1e-3)


GENERATION = [
    *((name, "text-generation", "ORTModelForCausalLM") for name in ("gpt2", "llama", "qwen3", "mistral", "bloom")),
    *((name, "text2text-generation", "ORTModelForSeq2SeqLM") for name in ("t5", "bart")),
]


@pytest.mark.parametrize(("model_type", "task", "loader"), GENERATION, ids=[case[0] for case in GENERATION])
def test_tokens(exports: Mock, tmp_path: Path, model_type: str, task: str, loader: str) -> None:
    """Greedily and with beams, of one text and of a padded batch."""
    model: Any = make(model_type, f"{task}-with-past")
    model.save_pretrained(tmp_path)
    loaded = getattr(runtimes, loader).from_pretrained(tmp_path, export=True)
    assert exports.called
    pads = 2 if loader == "ORTModelForCausalLM" else 0
    for inputs, beams in ((tokens_of(1, 4), 1), (tokens_of(3, 9, pads=pads), 1), (tokens_of(2, 6, pads=pads), 3)):
        options = {"max_new_tokens": 10, "min_new_tokens": 10, "do_sample": False, "num_beams": beams}
        assert torch.equal(model.generate(**inputs, **options), loaded.generate(**inputs, **options))


def test_the_replaced_forward_of_gemma3_returns_its_cache(tmp_path: Path) -> None:
    """optimum turns the cache on by the default that the TorchScript exporter passes to it."""
    model: Any = make("gemma3", "text-generation-with-past")
    assert "OutputMatchError" in outcome("gemma3", "text-generation-with-past", "TorchScript")[0]
    with pytest.raises(Exception, match="do not match reference model output names"):  # its own, also of TorchScript
        export(model, "text-generation-with-past", "fxonnx", tmp_path)
    loaded = runtimes.ORTModelForCausalLM.from_pretrained(tmp_path)
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    inputs = tokens_of(2, 6)
    assert torch.equal(model.generate(**inputs, **options), loaded.generate(**inputs, **options))


def test_sentence_transformers(exports: Mock, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer, models

    config = transformers.BertConfig(**{**MODELS["bert"], "vocab_size": VOCABULARY})
    transformers.BertModel(config).eval().save_pretrained(tmp_path / "bert")
    make_tokenizer().save_pretrained(tmp_path / "bert")
    transformer = models.Transformer(str(tmp_path / "bert"))
    original = SentenceTransformer(modules=[transformer, models.Pooling(32), models.Normalize()])
    original.save(str(tmp_path / "sentences"))
    loaded = SentenceTransformer(str(tmp_path / "sentences"), backend="onnx", model_kwargs={"export": True})
    texts = ["the quick brown fox", "a language model predicts the next token of a text"]
    expected, found = (torch.as_tensor(each.encode(texts)) for each in (original, loaded))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert exports.call_count == 1


def test_a_pipeline_of_diffusers(exports: Mock, tmp_path: Path) -> None:
    pipeline = make_pipeline("StableDiffusionPipeline")
    expected = images(pipeline, "StableDiffusionPipeline")
    pipeline.save_pretrained(tmp_path)
    loaded = runtimes.ORTStableDiffusionPipeline.from_pretrained(str(tmp_path), export=True)
    assert exports.call_count == 4
    torch.testing.assert_close(images(loaded, "StableDiffusionPipeline"), expected, atol=1e-4, rtol=1e-3)
