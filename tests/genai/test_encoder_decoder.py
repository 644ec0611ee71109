"""Encoder-decoder models besides Whisper: a greedy loop in ONNX Runtime gives the tokens of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import fxonnx.genai
from fxonnx._transformers.directory import staged_directory

from .small_models import VOCABULARY, make_tokenizer

NEW = 10
IDS: Mapping[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
BART: Mapping[str, Any] = {
    **{"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 64},
    "forced_eos_token_id": None,
}
FSMT: Mapping[str, Any] = {
    **{"langs": ["en", "de"], "src_vocab_size": VOCABULARY, "tgt_vocab_size": VOCABULARY, "init_std": 0.3},
    **{**BART, "decoder_start_token_id": 2},
}
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "T5ForConditionalGeneration": ("T5Config", {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}),
    "MarianMTModel": ("MarianConfig", BART),
    "BartForConditionalGeneration": ("BartConfig", BART),
}


def make_model(name: str) -> Any:
    import transformers

    config, sizes = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, config)(vocab_size=VOCABULARY, **IDS, **sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Sinusoidal positions are not saved.
            if parameter.ndim > 1 and parameter.requires_grad:
                parameter.normal_(0, 0.3)
    return model


SMALL: Mapping[str, Any] = {
    **{"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4},
    **{"max_position_embeddings": 64, "image_size": 8, "patch_size": 4},
}
SOURCES: Mapping[str, tuple[Mapping[str, Any], tuple[int, ...]]] = {
    "moonshine": (
        {
            **{"encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 2, "encoder_num_attention_heads": 4},
            **{"decoder_num_attention_heads": 4, **IDS, **SMALL, "vocab_size": VOCABULARY},
        },
        (7000,),
    ),
    "speech_to_text": (
        {
            **{**BART, **IDS, "vocab_size": VOCABULARY, "input_feat_per_channel": 8, "conv_channels": 16},
            # The positions of transformers skip padding, but not in the past.
            **{"max_source_positions": 64, "max_target_positions": 64, "decoder_start_token_id": 1},
        },
        (50, 8),
    ),
    "vision-encoder-decoder": (
        {
            **{"encoder": {"model_type": "vit", **SMALL}, "decoder_start_token_id": 0},
            "decoder": {
                **{"model_type": "trocr", "is_decoder": True, "add_cross_attention": True, "vocab_size": VOCABULARY},
                **{"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 32, **IDS},
            },
        },
        (3, 8, 8),
    ),
}


def make_reader(model_type: str) -> Any:
    """A model of audio or images."""
    import transformers

    name = "AutoModelForImageTextToText" if model_type.startswith("vision") else "AutoModelForSpeechSeq2Seq"
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **SOURCES[model_type][0])
    model = getattr(transformers, name).from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 and parameter.requires_grad:
                parameter.normal_(0, 0.3)
    model.generation_config.pad_token_id = 0
    return model


class Translator:
    """A greedy loop over both files."""

    def __init__(self, directory: Path) -> None:
        self.encoder = onnxruntime.InferenceSession(directory / "encoder.onnx")
        self.decoder = onnxruntime.InferenceSession(directory / "decoder.onnx")

    def __call__(self, mask: np.ndarray | None = None, start: int = 0, **source: np.ndarray) -> np.ndarray:
        masks = {} if mask is None else {"attention_mask": mask}
        feeds: dict[str, Any] = {**source, **masks}
        count = len(next(iter(source.values())))
        names = [each.name for each in self.encoder.get_outputs()]
        encoded = dict(zip(names, self.encoder.run(None, feeds), strict=True))
        cross = {name.replace("present", "past"): value for name, value in encoded.items() if "cross" in name}
        shapes = {each.name: each.shape for each in self.decoder.get_inputs() if "self" in each.name}
        past = {name: np.zeros((count, shape[1], 0, shape[3]), np.float32) for name, shape in shapes.items()}
        names = [each.name for each in self.decoder.get_outputs()]
        tokens = np.full((count, 1), start, np.int64)
        for _ in range(NEW):
            encoder_masks = {f"encoder_{name}": value for name, value in masks.items()}
            feeds = {"input_ids": tokens[:, -1:], **encoder_masks, **past, **cross}
            outputs = dict(zip(names, self.decoder.run(None, feeds), strict=True))
            past = {name.replace("present", "past"): outputs[name] for name in names[1:]}
            outputs["logits"][:, :, 2] = -np.inf  # the end of the sequence
            tokens = np.concatenate([tokens, outputs["logits"][:, -1].argmax(-1, keepdims=True)], axis=1)
        return tokens


@pytest.fixture(scope="module", params=MODELS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    model = make_model(request.param)
    directory = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(directory / "checkpoint")
    make_tokenizer().save_pretrained(directory / "checkpoint")
    with pytest.warns(UserWarning, match=f"onnxruntime-genai cannot run {request.param}: it supports only Whisper"):
        return model, fxonnx.genai.export(directory / "checkpoint", directory / "out")


@pytest.mark.parametrize(("batch", "length"), [(1, 4), (3, 9)])
def test_tokens_are_equal(exported: tuple[Any, Path], batch: int, length: int) -> None:
    model, directory = exported
    ids = torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(length))
    mask = torch.ones_like(ids)
    mask[1:, -3:] = 0
    found = Translator(directory)(mask.numpy(), input_ids=ids.numpy())
    options = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "num_beams": 1}
    assert found.tolist() == model.generate(ids, attention_mask=mask, **options).tolist()


@pytest.mark.filterwarnings("ignore:onnxruntime-genai cannot run", "ignore:decoder.onnx is valid only for")
@pytest.mark.parametrize("model_type", SOURCES)
def test_tokens_from_audio_and_images_are_equal(model_type: str, tmp_path: Path) -> None:
    model = make_reader(model_type)
    model.save_pretrained(tmp_path / "checkpoint")
    make_tokenizer().save_pretrained(tmp_path / "checkpoint")
    out = fxonnx.genai.export(tmp_path / "checkpoint", tmp_path / "out")
    for batch in (1, 3):
        source = torch.randn(batch, *SOURCES[model_type][1], generator=torch.Generator().manual_seed(batch))
        start = model.config.decoder_start_token_id
        found = Translator(out)(start=start, **{model.main_input_name: source.numpy()})
        options = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "num_beams": 1}
        assert found.tolist() == model.generate(source, **options, eos_token_id=2).tolist()


def with_sizes(name: str, **sizes: Any) -> Any:
    import transformers

    config = getattr(transformers, f"{name}Config")(vocab_size=VOCABULARY, pad_token_id=0, **sizes)
    return getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()


@pytest.mark.filterwarnings("ignore:onnxruntime-genai cannot run", "ignore:encoder.onnx is valid only for")
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("T5", MODELS["T5ForConditionalGeneration"][1]),  # without decoder_start_token_id
        ("NllbMoe", {**BART, "num_experts": 4, "encoder_sparse_step": 1, "decoder_sparse_step": 1}),
        ("LED", {**BART, "attention_window": 4, "decoder_start_token_id": 2}),
        ("FSMT", FSMT),
    ],
)
def test_models_with_other_encoders(name: str, sizes: Mapping[str, Any], tmp_path: Path) -> None:
    # The comparison runs.
    fxonnx.genai.export(with_sizes(name, **sizes), tmp_path / "out", tokenizer=make_tokenizer())
    assert (tmp_path / "out" / "decoder.onnx").exists()


@pytest.mark.filterwarnings("ignore:onnxruntime-genai cannot run")
@pytest.mark.parametrize(
    ("model_type", "text_only", "match"),
    [
        ("speech-encoder-decoder", True, "the encoder of SpeechEncoderDecoderModel reads input_values, input_features"),
        ("pop2piano", True, "Pop2PianoForConditionalGeneration is not supported: its tokens are notes"),
        ("dia", False, "DiaForConditionalGeneration is not supported: its tokens are codes of audio"),
        ("kyutai_speech_to_text", False, "each of its tokens has codes of audio"),
        ("qwen2_5_omni", True, "is not supported: .* its attribute thinker"),
        ("encoder-decoder", False, "the decoder of EncoderDecoderModel has no cross attention in its cache"),
    ],
)
def test_unsupported_types_are_one_error(model_type: str, text_only: bool, match: str, tmp_path: Path) -> None:
    import transformers

    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 4} if model_type == "pop2piano" else {}
    config = transformers.AutoConfig.for_model(model_type, **sizes)
    if model_type == "encoder-decoder":
        config = transformers.EncoderDecoderConfig(
            encoder=transformers.BertConfig(**SMALL), decoder=transformers.BertConfig(**SMALL)
        )
    auto_class = {
        "encoder-decoder": transformers.AutoModelForSeq2SeqLM,
        "qwen2_5_omni": transformers.AutoModelForMultimodalLM,
    }.get(model_type, transformers.AutoModelForSpeechSeq2Seq)
    with torch.device("cpu" if model_type in ("encoder-decoder", "pop2piano") else "meta"):
        model = auto_class.from_config(config).eval()
    with pytest.raises(fxonnx.ArgumentError, match=match):
        fxonnx.genai.export(model, tmp_path / "out", tokenizer=make_tokenizer(), text_only=text_only)
    assert not list(tmp_path.iterdir())


def test_each_part_has_only_its_weights(exported: tuple[Any, Path]) -> None:
    import onnx

    _, directory = exported
    encoder = onnx.load(directory / "encoder.onnx", load_external_data=False).graph
    inside = [each.name for each in encoder.initializer if "decoder" in each.name]
    assert all("encoder_attn" in name or "EncDecAttention" in name for name in inside)
    decoder = onnx.load(directory / "decoder.onnx", load_external_data=False).graph
    assert not [each.name for each in decoder.initializer if ".encoder." in each.name]
    assert not (directory / "genai_config.json").exists()


def test_weights_of_a_former_export_are_removed(tmp_path: Path) -> None:
    (tmp_path / "weights.other.data").touch()
    (tmp_path / "other.onnx").write_bytes(b"weights.other.data")
    for name in ("weights.a.data", "weights.b.data"):
        with staged_directory(tmp_path) as staging:
            (staging / name).touch()
            (staging / "encoder.onnx").write_bytes(name.encode())
    assert {path.name for path in tmp_path.glob("weights.*.data")} == {"weights.b.data", "weights.other.data"}


@pytest.mark.filterwarnings("ignore:onnxruntime-genai cannot run")
def test_other_logits_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fxonnx._transformers.families import encoder_decoder

    original = encoder_decoder._states
    monkeypatch.setattr(encoder_decoder, "_states", lambda cache: [2 * state for state in original(cache)])
    with pytest.raises(
        fxonnx.VerificationError, match=r"the logits of step \d differ by .* from those of transformers"
    ):
        fxonnx.genai.export(make_model("MarianMTModel"), tmp_path / "out", tokenizer=make_tokenizer())
    assert not list(tmp_path.iterdir())
