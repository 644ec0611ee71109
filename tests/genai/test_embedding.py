"""Embedding models and rerankers: ONNX Runtime on the saved file, with padding, gives the results of eager torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from typer.testing import CliRunner

import fxonnx.genai
from fxonnx._cli.commands import app

from .small_models import VOCABULARY, make_model, make_tokenizer

BERT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT |= {"vocab_size": VOCABULARY, "max_position_embeddings": 64, "pad_token_id": 0}
TEXTS = ("the lazy dog", "a fox", "the quick brown fox jumps over a lazy dog, and a language model predicts it")


def make_bert(name: str = "BertModel", **sizes: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    return getattr(transformers, name)(transformers.BertConfig(**{**BERT, **sizes})).eval()


def sentence_directory(directory: Path, model: Any, modules: dict[str, dict[str, Any]], inner: str = "") -> Path:
    """Save a model like sentence-transformers, with modules ``{class name: settings}``."""
    model.save_pretrained(directory / inner)
    make_tokenizer().save_pretrained(directory / inner)
    entries = [{"path": inner, "type": "sentence_transformers.models.Transformer"}]
    for number, (name, settings) in enumerate(modules.items(), 1):
        (directory / f"{number}_{name}").mkdir()
        (directory / f"{number}_{name}" / "config.json").write_text(json.dumps(settings))
        entries.append({"path": f"{number}_{name}", "type": f"sentence_transformers.models.{name}"})
    (directory / "modules.json").write_text(json.dumps(entries))
    return directory


def tokens(texts: tuple[str, ...]) -> Any:
    return make_tokenizer()(list(texts), padding=True, return_tensors="pt")


def run(directory: Path, inputs: Any) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(directory / "model.onnx")
    names = {each.name for each in session.get_inputs()}
    outputs = session.run(None, {name: value.numpy() for name, value in inputs.items() if name in names})
    return dict(zip((each.name for each in session.get_outputs()), outputs, strict=True))


def hidden_states(model: Any, inputs: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).last_hidden_state


@pytest.fixture(scope="module")
def mean(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    model = make_bert()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    directory = sentence_directory(tmp_path_factory.mktemp("mean"), model, {"Pooling": pooling, "Normalize": {}})
    return model, fxonnx.genai.export(directory, tmp_path_factory.mktemp("out"))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_mean_pooling_and_normalization(mean: tuple[Any, Path], count: int) -> None:
    model, out = mean
    inputs = tokens(TEXTS[:count])
    hidden, mask = hidden_states(model, inputs), inputs["attention_mask"].unsqueeze(-1)
    expected = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1))
    np.testing.assert_allclose(run(out, inputs)["sentence_embedding"], expected, atol=1e-5)


def test_files_of_an_embedding_model(mean: tuple[Any, Path]) -> None:
    names = {path.name for path in mean[1].iterdir()}
    assert {"model.onnx", "tokenizer.json"} <= names
    assert not {"genai_config.json", "generation_config.json"} & names


def test_the_command_takes_a_pooling(mean: tuple[Any, Path], tmp_path: Path) -> None:
    model, _ = mean
    directory = sentence_directory(tmp_path / "bert", model, {"Pooling": {"pooling_mode": "mean"}, "Normalize": {}})
    arguments = ["genai", str(directory), "-o", str(tmp_path / "out"), "--pooling", "cls", "--no-normalize"]
    done = CliRunner().invoke(app, [*arguments, "--no-verify"])
    assert done.exit_code == 0, done.output
    assert f"run it: onnxruntime.InferenceSession('{tmp_path}/out/model.onnx')" in done.output
    inputs = tokens(TEXTS)
    found = run(tmp_path / "out", inputs)["sentence_embedding"]
    np.testing.assert_allclose(found, hidden_states(model, inputs)[:, 0], atol=1e-5)


def test_last_token_pooling_of_a_decoder(tmp_path: Path) -> None:
    model = make_model("qwen3")
    directory = sentence_directory(tmp_path / "qwen3", model, {"Pooling": {"pooling_mode_lasttoken": True}})
    out = fxonnx.genai.export(directory, tmp_path / "out", normalize=True)
    inputs = tokens(TEXTS)
    for side in ("left", "right"):
        if side == "right":
            inputs = {name: _shifted(value, inputs["attention_mask"]) for name, value in inputs.items()}
        last = (inputs["attention_mask"] * torch.arange(inputs["attention_mask"].shape[1])).argmax(-1)
        expected = hidden_states(model.model, inputs)[torch.arange(3), last]
        found = run(out, inputs)["sentence_embedding"]
        np.testing.assert_allclose(found, torch.nn.functional.normalize(expected), atol=1e-5)


def _shifted(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Padding on the left becomes padding on the right."""
    rows = zip(values, mask.sum(1).tolist(), strict=True)
    return torch.stack([row.roll(length - len(row)) for row, length in rows])


POOLINGS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cls": lambda hidden, _mask: hidden[:, 0],
    "max": lambda hidden, mask: hidden.masked_fill(mask == 0, -torch.inf).amax(1),
    "mean_sqrt_len": lambda hidden, mask: (hidden * mask).sum(1) / mask.sum(1).sqrt(),
    "weighted_mean": lambda hidden, mask: (hidden * mask * ramp(mask)).sum(1) / (mask * ramp(mask)).sum(1),
}


def ramp(mask: torch.Tensor) -> torch.Tensor:
    return torch.arange(1.0, mask.shape[1] + 1).unsqueeze(-1)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling_of_a_model_object(pooling: Any, tmp_path: Path) -> None:
    model = make_bert(num_hidden_layers=1)
    out = fxonnx.genai.export(model, tmp_path / "out", tokenizer=make_tokenizer(), pooling=pooling, verify=False)
    inputs = tokens(TEXTS)
    expected = POOLINGS[pooling](hidden_states(model, inputs), inputs["attention_mask"].unsqueeze(-1))
    np.testing.assert_allclose(run(out, inputs)["sentence_embedding"], expected, atol=1e-5)


def test_the_encoder_of_t5(tmp_path: Path) -> None:
    """AutoModel would load it as a T5Model, whose decoder has random weights."""
    import transformers

    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": VOCABULARY}
    torch.manual_seed(0)
    model = transformers.T5EncoderModel(transformers.T5Config(**sizes)).eval()
    settings = {"pooling_mode_weightedmean_tokens": True}
    directory = sentence_directory(tmp_path / "t5", model, {"Pooling": settings, "Normalize": {}})
    (directory / "sentence_bert_config.json").write_text('{"max_seq_length": 25}')
    out = fxonnx.genai.export(directory, tmp_path / "out")
    inputs = tokens(TEXTS)
    pooled = POOLINGS["weighted_mean"](hidden_states(model, inputs), inputs["attention_mask"].unsqueeze(-1))
    found = run(out, inputs)["sentence_embedding"]
    np.testing.assert_allclose(found, torch.nn.functional.normalize(pooled), atol=1e-5)
    assert transformers.AutoTokenizer.from_pretrained(out).model_max_length == 25


def test_a_checkpoint_of_another_task_has_no_pooler(tmp_path: Path) -> None:
    make_bert("BertForMaskedLM", num_hidden_layers=1).save_pretrained(tmp_path / "bert")
    make_tokenizer().save_pretrained(tmp_path / "bert")
    fxonnx.genai.export(tmp_path / "bert", tmp_path / "out", pooling="mean")


def test_dense_layers(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = make_bert(num_hidden_layers=1)
    dense = {"in_features": 32, "out_features": 8, "activation_function": "torch.nn.modules.activation.Tanh"}
    modules = {"Pooling": {"pooling_mode": "cls"}, "Dense": dense, "Normalize": {}}
    directory = sentence_directory(tmp_path / "dense", model, modules, inner="0_Transformer")
    layer = torch.nn.Linear(32, 8)
    weights = {f"linear.{name}": value.detach() for name, value in layer.named_parameters()}
    save_file(weights, directory / "2_Dense" / "model.safetensors")
    out = fxonnx.genai.export(directory, tmp_path / "out")
    inputs = tokens(TEXTS)
    expected = torch.nn.functional.normalize(layer(hidden_states(model, inputs)[:, 0]).tanh())
    np.testing.assert_allclose(run(out, inputs)["sentence_embedding"], expected.detach(), atol=1e-5)


@pytest.mark.parametrize("labels", [1, 3])
def test_reranker(labels: int, tmp_path: Path) -> None:
    model = make_bert("BertForSequenceClassification", num_hidden_layers=1, num_labels=labels)
    model.save_pretrained(tmp_path / "reranker")
    make_tokenizer().save_pretrained(tmp_path / "reranker")
    out = fxonnx.genai.export(tmp_path / "reranker", tmp_path / "out")
    pairs = make_tokenizer()([TEXTS[0]] * 2, [TEXTS[1], TEXTS[2]], padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = model(**pairs).logits
    found = run(out, pairs)
    np.testing.assert_allclose(found["logits"], expected, atol=1e-5)
    if labels == 1:
        np.testing.assert_allclose(found["scores"], expected.sigmoid()[:, 0], atol=1e-5)
    else:
        assert set(found) == {"logits"}


def test_reranker_that_is_a_decoder(tmp_path: Path) -> None:
    import transformers

    config = make_model("qwen3").config
    config.num_labels = 1
    torch.manual_seed(0)
    model = transformers.Qwen3ForSequenceClassification(config).eval()
    out = fxonnx.genai.export(model, tmp_path / "out", tokenizer=make_tokenizer())
    inputs = tokens(TEXTS)
    with torch.no_grad():
        expected = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
    np.testing.assert_allclose(run(out, inputs)["logits"], expected, atol=1e-5)


def test_unknown_pooling_is_refused(tmp_path: Path) -> None:
    model = make_bert(num_hidden_layers=1)
    with pytest.raises(fxonnx.ArgumentError, match=r"pooling: BertModel has no modules\.json with a pooling"):
        fxonnx.genai.export(model, tmp_path / "out", tokenizer=make_tokenizer())
    with pytest.raises(
        fxonnx.ArgumentError,
        match="pooling: expected 'cls', 'last', 'max', 'mean', 'mean_sqrt_len', 'weighted_mean', got 'men'",
    ):
        fxonnx.genai.export(model, tmp_path / "out", tokenizer=make_tokenizer(), pooling="men")  # type: ignore[arg-type]
    several = {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}
    directory = sentence_directory(tmp_path / "several", model, {"Pooling": several})
    with pytest.raises(
        fxonnx.ArgumentError, match="has the pooling pooling_mode_cls_token, pooling_mode_max_tokens; supported is one"
    ):
        fxonnx.genai.export(directory, tmp_path / "out")
    without_prompt = {"pooling_mode": "mean", "include_prompt": False}
    directory = sentence_directory(tmp_path / "prompt", model, {"Pooling": without_prompt})
    with pytest.raises(fxonnx.ArgumentError, match=r"leaves out the prompt before each text(.|\n)*hint: pass pooling="):
        fxonnx.genai.export(directory, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    fxonnx.genai.export(directory, tmp_path / "out", pooling="mean", verify=False)


def test_unknown_modules_are_refused(tmp_path: Path) -> None:
    model = make_bert(num_hidden_layers=1)
    directory = sentence_directory(tmp_path / "lstm", model, {"Pooling": {"pooling_mode": "cls"}, "LSTM": {}})
    with pytest.raises(fxonnx.ArgumentError, match=r"modules\.json has a module LSTM; supported are Pooling"):
        fxonnx.genai.export(directory, tmp_path / "out")
    dense = {"in_features": 32, "out_features": 8, "activation_function": "other.Swish"}
    directory = sentence_directory(tmp_path / "dense", model, {"Pooling": {"pooling_mode": "cls"}, "Dense": dense})
    with pytest.raises(fxonnx.ArgumentError, match="has an unknown activation Swish"):
        fxonnx.genai.export(directory, tmp_path / "out")
