"""Whisper: tokens in onnxruntime-genai equal transformers', from features and from audio."""

from __future__ import annotations

import functools
import io
import json
import shutil
import wave
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import fxonnx.genai

from .small_models import VOCABULARY, make_tokenizer

# Older versions, for Python 3.10, do not have all of these models.
og = pytest.importorskip("onnxruntime_genai", minversion="0.18")

SIZES = {"encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 4}
BINS = 8
RATE = 16000


def make_whisper(**sizes: Any) -> Any:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(0)
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    small = {"d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_mel_bins": BINS}
    config = WhisperConfig(vocab_size=VOCABULARY, **{**ids, **small, **SIZES, **sizes})
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
        model.model.decoder.embed_positions.weight.normal_(0, 2)
    return model


@pytest.fixture(scope="module")
def whisper() -> Any:
    return make_whisper()


@pytest.fixture(scope="module")
def exported(whisper: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whisper")
    whisper.save_pretrained(directory / "checkpoint")
    make_tokenizer().save_pretrained(directory / "checkpoint")
    return fxonnx.genai.export(directory / "checkpoint", directory / "out")


def generated(directory: Path, inputs: Any, batch: int, **options: Any) -> list[list[int]]:
    model = og.Model(str(directory))
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=24, batch_size=batch, **options)
    generator = og.Generator(model, parameters)
    generator.set_inputs(inputs)
    while not generator.is_done():
        generator.generate_next_token()
    return [generator.get_sequence(row).tolist() for row in range(batch)]


def generated_by_transformers(model: Any, features: torch.Tensor, ids: Any, **options: Any) -> list[list[int]]:
    from transformers import GenerationMixin

    # generate() of Whisper would remove the prompt.
    tokens = GenerationMixin.generate(
        model,
        features,
        decoder_input_ids=torch.as_tensor(ids).long(),
        max_length=24,
        do_sample=False,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **options,
    )
    return tokens.tolist()


@pytest.mark.parametrize(("batch", "beams"), [(1, 1), (3, 1), (2, 3)])
def test_tokens_are_equal(whisper: Any, exported: Path, batch: int, beams: int) -> None:
    features = torch.randn(batch, BINS, 3000, generator=torch.Generator().manual_seed(batch))
    ids = np.array([[1, 5, 7 + row] for row in range(batch)], dtype=np.int32)
    inputs = og.NamedTensors()
    inputs["audio_features"], inputs["input_ids"] = features.numpy(), ids
    found = generated(exported, inputs, batch, num_beams=beams)
    assert found == generated_by_transformers(whisper, features, ids, num_beams=beams)


def wave_file(samples: np.ndarray) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as audio:
        audio.setnchannels(1)
        audio.setsampwidth(2)
        audio.setframerate(RATE)
        audio.writeframes(samples.tobytes())
    return file.getvalue()


def test_audio_becomes_tokens(whisper: Any, exported: Path) -> None:
    from transformers import WhisperFeatureExtractor

    noise = np.random.default_rng(0).standard_normal(RATE)
    samples = ((0.3 * np.sin(np.arange(RATE) / 6) + 0.05 * noise) * 32767).astype(np.int16)
    processor = og.Model(str(exported)).create_multimodal_processor()
    inputs = processor(["<s>the lazy"], audios=og.Audios.open_bytes(wave_file(samples)))
    features = inputs["audio_features"].as_numpy()
    expected = WhisperFeatureExtractor(feature_size=BINS)(samples / 32768, sampling_rate=RATE).input_features
    # onnxruntime-extensions pads the spectrum, transformers pads the audio.
    np.testing.assert_allclose(features[0, :, 2:98], expected[0][:, 2:98], atol=1e-4)
    ids = inputs["input_ids"].as_numpy()
    assert ids.tolist() == [make_tokenizer()("<s>the lazy").input_ids]
    assert generated(exported, inputs, 1) == generated_by_transformers(whisper, torch.tensor(features), ids)


def test_audio_after_30_seconds_is_left_out(exported: Path) -> None:
    """Parts of long audio are one batch: their prompts have one length."""
    samples = (np.random.default_rng(0).standard_normal(40 * RATE) * 3000).astype(np.int16)
    processor = og.Model(str(exported)).create_multimodal_processor()
    whole = processor(["<s>the"], audios=og.Audios.open_bytes(wave_file(samples)))["audio_features"].as_numpy()
    files = [wave_file(samples[start : start + 30 * RATE]) for start in range(0, len(samples), 30 * RATE)]
    inputs = processor(["<s>the"] * 2, audios=og.Audios.open_bytes(*files))
    parts = inputs["audio_features"].as_numpy()
    assert whole.shape == (1, BINS, 3000)
    assert parts.shape == (2, BINS, 3000)
    # The frames at the end see padding.
    np.testing.assert_allclose(parts[0, :, :2990], whole[0, :, :2990], atol=1e-3)
    assert len(generated(exported, inputs, 2)) == 2


def test_a_part_that_fails_leaves_the_directory_as_it_was(
    whisper: Any, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fxonnx._transformers.families import encoder_decoder

    out = tmp_path / "out"
    shutil.copytree(exported, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def fail(_self: Any, **_inputs: Any) -> Any:
        raise ValueError("the second part")

    monkeypatch.setattr(encoder_decoder.WhisperDecoder, "forward", fail)
    with pytest.raises(fxonnx.CaptureError, match="the second part"):
        fxonnx.genai.export(whisper, out, tokenizer=make_tokenizer(), precision="int4")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_weights_of_both_parts_are_in_one_file(exported: Path) -> None:
    files = {path.name for path in exported.iterdir() if path.suffix in (".onnx", ".data")}
    assert {"encoder.onnx", "decoder.onnx"} < files
    assert len(files) == 3
    config = json.loads((exported / "genai_config.json").read_text())
    assert config["model"]["type"] == "whisper"
    assert config["model"]["context_length"] == 448


def test_other_lengths_of_audio_are_refused(tmp_path: Path) -> None:
    with pytest.raises(fxonnx.ArgumentError, match="with 3000 frames of audio, but this model needs 200"):
        fxonnx.genai.export(make_whisper(max_source_positions=100), tmp_path / "out", tokenizer=make_tokenizer())
    assert not list(tmp_path.iterdir())


def test_bfloat16(whisper: Any, tmp_path: Path) -> None:
    # onnxruntime-genai provides audio in float32 and float16 only; the comparison runs both.
    out = fxonnx.genai.export(whisper, tmp_path / "out", tokenizer=make_tokenizer(), precision="bf16")
    session = onnxruntime.InferenceSession(out / "encoder.onnx")
    assert session.get_inputs()[0].type == "tensor(float)"


def test_adapters_are_refused(whisper: Any, tmp_path: Path) -> None:
    with pytest.raises(fxonnx.ArgumentError, match="adapters: supported for decoder-only models only"):
        fxonnx.genai.export(whisper, tmp_path / "out", tokenizer=make_tokenizer(), adapters={"a": tmp_path})


def test_int4(tmp_path: Path) -> None:
    # The comparison is with the dequantized weights.
    model = make_whisper(d_model=32, decoder_layers=1)
    out = fxonnx.genai.export(model, tmp_path / "out", tokenizer=make_tokenizer(), precision="int4")
    for name in ("encoder", "decoder"):
        graph = onnx.load(out / f"{name}.onnx", load_external_data=False).graph
        assert any(node.op_type == "MatMulNBits" for node in graph.node)


def test_wrong_tokens_are_found(whisper: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fxonnx._transformers.families import encoder_decoder

    original = encoder_decoder.WhisperDecoder.forward

    @functools.wraps(original)
    def negated(self: Any, **inputs: Any) -> Any:
        logits, *cache = original(self, **inputs)
        return (-logits, *cache)

    monkeypatch.setattr(encoder_decoder.WhisperDecoder, "forward", negated)
    with pytest.raises(fxonnx.VerificationError, match="generates other tokens than transformers in row 0: token 0 is"):
        fxonnx.genai.export(whisper, tmp_path / "out", tokenizer=make_tokenizer())
