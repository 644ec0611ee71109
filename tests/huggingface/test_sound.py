"""Models that make sound of text: MusicGen and SpeechT5."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import fxonnx.huggingface
from fxonnx import ArgumentError
from fxonnx._transformers.samples import Sizes, sample_inputs
from fxonnx._transformers.tasks import TASKS

from .small_models import main_task, make_model, make_vocoder

TASK = TASKS["text-to-audio"]
pytestmark = pytest.mark.filterwarnings("error:the model is in training mode")
OPTIONS: dict[str, Any] = {"max_new_tokens": 14, "min_new_tokens": 14, "do_sample": False}


def musicgen(**decoder: Any) -> Any:
    """A small MusicGen with other options of its decoder."""
    model = make_model("musicgen", TASK)
    for name, value in decoder.items():
        setattr(model.config.decoder, name, value)
    return model


@pytest.fixture(scope="module")
def exported_musicgen(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[int], tuple[Any, fxonnx.huggingface.ExportedModel]]:
    """A model with a number of channels and its export, each made once."""

    @cache
    def made(channels: int) -> tuple[Any, fxonnx.huggingface.ExportedModel]:
        torch.manual_seed(0)
        model = musicgen(audio_channels=channels)
        return model, fxonnx.huggingface.export(model, tmp_path_factory.mktemp(f"musicgen-{channels}"))

    return made


# Stereo has the files of mono, and is exported once for both tests.
CHANNELS = (pytest.param(1, marks=pytest.mark.nightly), 2)


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("guidance", [None, 3.0])
def test_musicgen(exported_musicgen: Callable[[int], Any], channels: int, guidance: float | None) -> None:
    """Three texts, with classifier-free guidance twice as many rows; tokens of stereo alternate."""
    model, exported = exported_musicgen(channels)
    names = ["build_delay_pattern_mask", "decoder_model_merged", "encodec_decode", "text_encoder"]
    assert [file.stem for file in exported.files] == names
    assert exported.checks[-1].file == "sound"
    loaded = fxonnx.huggingface.load(exported.path)
    inputs = sample_inputs(model, ["input_ids", "attention_mask"], Sizes(3, 7, seed=5))
    found, expected = (each.generate(**inputs, **OPTIONS, guidance_scale=guidance) for each in (loaded, model))
    assert expected.shape[:2] == (3, channels)
    assert expected.std() > 1e-3
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("channels", CHANNELS)
def test_patterns_of_delays(exported_musicgen: Callable[[int], Any], channels: int) -> None:
    import onnxruntime

    model, exported = exported_musicgen(channels)
    session = onnxruntime.InferenceSession(exported.path / "build_delay_pattern_mask.onnx")
    model.decoder.config.audio_channels = channels
    for rows, length, longest in ((4, 1, 12), (8, 3, 20), (4, 5, 9), (4, 1, 3), (4, 1, 2)):
        ids = torch.randint(0, 60, (rows, length))
        expected = model.decoder.build_delay_pattern_mask(ids, 64, longest)
        feeds = {"input_ids": ids.numpy(), "pad_token_id": np.array(64), "max_length": np.array(longest)}
        found = session.run(["input_ids_edited", "delay_pattern_mask"], feeds)
        assert [each.tolist() for each in found] == [each.tolist() for each in expected], (rows, length, longest)


@pytest.mark.nightly
def test_musicgen_from_a_directory_without_the_comparison(tmp_path: Path) -> None:
    model = make_model("musicgen", TASK)
    model.save_pretrained(tmp_path / "checkpoint")
    fxonnx.huggingface.export(tmp_path / "checkpoint", tmp_path / "out", verify=False)
    inputs = sample_inputs(model, ["input_ids", "attention_mask"], Sizes())
    found = fxonnx.huggingface.load(tmp_path / "out").generate(**inputs, **OPTIONS)
    torch.testing.assert_close(found, model.generate(**inputs, **OPTIONS), atol=1e-5, rtol=1e-3)


def test_sound_in_chunks(tmp_path: Path) -> None:
    model = make_model("musicgen", TASK)
    model.config.audio_encoder.chunk_length_s = 1.0
    message = "MusicgenForConditionalGeneration decodes sound with 'encodec' in chunks of 1.0 seconds(?s:.*)one chunk"
    with pytest.raises(ArgumentError, match=message):
        fxonnx.huggingface.export(model, tmp_path)


STEP = ["output_sequence", "speaker_embeddings", "encoder_hidden_states", "encoder_attention_mask", "use_cache_branch"]
SPEECH = {
    "encoder_model": (["input_ids"], ["encoder_outputs", "encoder_attention_mask"]),
    "decoder_model_merged": (STEP, ["output_sequence_out", "spectrum", "prob"]),
    "decoder_postnet_and_vocoder": (["spectrogram"], ["waveform"]),
}
"""Inputs and outputs of optimum's files, without the keys and values of the cache."""


def test_speecht5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its random numbers, each file and the sound of a text are compared."""
    from transformers.models.speecht5.modeling_speecht5 import SpeechT5SpeechDecoderPrenet

    monkeypatch.setattr(SpeechT5SpeechDecoderPrenet, "_consistent_dropout", lambda _self, states, _rate: states)
    model, vocoder = make_model("speecht5", TASK), make_vocoder()
    vocoder.save_pretrained(tmp_path / "vocoder")
    exported = fxonnx.huggingface.export(model, tmp_path / "out", vocoder=tmp_path / "vocoder")
    assert all(check.difference is not None for check in exported.checks)
    found = {}
    for file in exported.files:
        graph = onnx.load(file).graph
        names = ([value.name for value in values] for values in (graph.input, graph.output))
        found[file.stem] = tuple([each for each in side if not each.startswith(("past", "present"))] for side in names)
    assert found == SPEECH
    loaded = fxonnx.huggingface.load(tmp_path / "out")
    speaker = torch.randn(1, 6)
    options = {"speaker_embeddings": speaker, "minlenratio": 1.0, "maxlenratio": 3.0}
    for length in (9, 4):
        ids = torch.randint(3, 30, (1, length))
        expected = model.generate(ids, vocoder=vocoder, **options)
        assert expected.std() > 1e-3
        for name in ("generate", "generate_speech"):
            torch.testing.assert_close(getattr(loaded, name)(ids, **options), expected, atol=1e-5, rtol=1e-3)


def test_speecht5_draws_random_numbers(tmp_path: Path) -> None:
    """From a directory, without the comparison; the sound of a text differs from call to call, as in transformers."""
    make_model("speecht5", TASK).save_pretrained(tmp_path / "checkpoint")
    fxonnx.huggingface.export(tmp_path / "checkpoint", tmp_path / "out", vocoder=make_vocoder(), verify=False)
    loaded, ids = fxonnx.huggingface.load(tmp_path / "out"), torch.randint(3, 30, (1, 9))
    options = {"speaker_embeddings": torch.randn(1, 6), "minlenratio": 1.0, "maxlenratio": 1.0}
    first, second = (loaded.generate(ids, **options) for _ in range(2))
    assert first.shape == second.shape
    assert not torch.equal(first, second)


def test_vocoders(tmp_path: Path) -> None:
    model = make_model("speecht5", TASK)
    with pytest.raises(ArgumentError, match=r"vocoder: SpeechT5 requires one, .*spectrogram(?s:.*)pass a SpeechT5Hifi"):
        fxonnx.huggingface.export(model, tmp_path / "out")
    with pytest.raises(ArgumentError, match="vocoder: got a Linear"):
        fxonnx.huggingface.export(model, tmp_path / "out", vocoder=torch.nn.Linear(2, 2))
    with pytest.raises(ArgumentError, match=r"vocoder: .*nowhere cannot be loaded: "):
        fxonnx.huggingface.export(model, tmp_path / "out", vocoder=tmp_path / "nowhere")
    with pytest.raises(ArgumentError, match='vocoder: layout="genai" takes none'):
        fxonnx.huggingface.export(model, tmp_path / "out", vocoder=make_vocoder(), layout="genai")
    message = "vocoder: MusicgenForConditionalGeneration takes none"
    with pytest.raises(ArgumentError, match=message):
        fxonnx.huggingface.export(make_model("musicgen", TASK), tmp_path / "out", vocoder=make_vocoder())
    assert not (tmp_path / "out").exists()


def make_whisper() -> Any:
    import transformers

    torch.manual_seed(0)
    layers = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    sizes = {"d_model": 32, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_mel_bins": 8, "vocab_size": 300}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    config = transformers.WhisperConfig(**layers, **sizes, **tokens, max_source_positions=50, max_target_positions=40)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # so that the attention is not the same everywhere
    more = {"alignment_heads": [[0, 1], [1, 0]], "no_timestamps_token_id": 250, "begin_suppress_tokens": [2]}
    model.generation_config = transformers.GenerationConfig(**tokens, **more)
    return model


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}], ids=["greedy", "beams"])
def test_word_timestamps(tmp_path: Path, options: dict[str, Any]) -> None:
    """Whisper's, of the cross attentions; in transformers.js they have the same names."""
    model = make_whisper()
    implementation = model.config._attn_implementation
    fxonnx.huggingface.export(model, tmp_path, task="automatic-speech-recognition", attentions=True)
    assert model.config._attn_implementation == implementation
    outputs = [value.name for value in onnx.load(tmp_path / "decoder_model_merged.onnx").graph.output]
    assert [name for name in outputs if "attentions" in name] == ["cross_attentions.0", "cross_attentions.1"]
    features = torch.randn(3, 8, 100, generator=torch.Generator().manual_seed(1))
    asked = {"return_token_timestamps": True, "max_new_tokens": 12, **options}
    mask = torch.ones(3, 100, dtype=torch.int64)
    mask[1, 60:] = 0
    expected = model.generate(features, attention_mask=mask, **asked)
    found = fxonnx.huggingface.load(tmp_path).generate(features, attention_mask=mask, **asked)
    assert torch.equal(found["sequences"], expected["sequences"])
    torch.testing.assert_close(found["token_timestamps"], expected["token_timestamps"], atol=1e-6, rtol=0)
    assert len(found["token_timestamps"].unique()) > 3


def test_attentions_that_are_missing(tmp_path: Path) -> None:
    fxonnx.huggingface.export(make_whisper(), tmp_path / "without", task="automatic-speech-recognition", verify=False)
    features = torch.randn(1, 8, 100)
    message = r"output_attentions: the exported file does not return attentions, .*\nhint: export with attentions=True"
    with pytest.raises(ArgumentError, match=message):
        fxonnx.huggingface.load(tmp_path / "without").generate(features, return_token_timestamps=True)
    bert = make_model("bert", main_task("bert"))
    message = "attentions: BertForSequenceClassification has no decoder with cross attention for text-classification"
    with pytest.raises(ArgumentError, match=message):
        fxonnx.huggingface.export(bert, tmp_path / "out", attentions=True)
    with pytest.raises(ArgumentError, match='attentions: layout="genai" has none'):
        fxonnx.huggingface.export(bert, tmp_path / "out", layout="genai", attentions=True)
