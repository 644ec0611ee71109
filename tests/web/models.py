"""Small models for the pipelines of transformers.js, with their inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import fxonnx.huggingface
from fxonnx._transformers.families.image_text import image_text_inputs
from fxonnx._transformers.samples import Sizes
from tests.genai.small_models import VOCABULARY, make_tokenizer
from tests.huggingface.test_image_text import make as make_image_text

__all__ = ["CASES", "Case", "export_case", "image_text_tensors", "write_cases"]

_LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_SEQ2SEQ = {
    **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4},
    **{"decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64},
}
_TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_LABELS = {"id2label": {0: "one", 1: "two", 2: "three"}, "label2id": {"one": 0, "two": 1, "three": 2}}
_TEXT = "the quick brown fox jumps"
_SIDE = 32


@dataclass(frozen=True)
class Case:
    """A pipeline.

    Attributes:
        task: The task of the pipeline.
        make: Makes the model and its processor.
        options: Options of the call.
        input: The text; None for an image or audio, which ``export_case`` writes.
        extra: A second argument of the call.
    """

    task: str
    make: Callable[[], tuple[Any, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    input: Any = _TEXT
    extra: Any = None


def _random(model: Any, scale: float = 0.3) -> Any:
    """Weights of a size that makes the outputs depend on the inputs."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, scale, generator=generator)
    return model.eval()


def _text(name: str) -> Callable[[], tuple[Any, Any]]:
    def make() -> tuple[Any, Any]:
        import transformers

        config = transformers.BertConfig(**_TOKENS, **_LAYERS, **_LABELS)
        return _random(getattr(transformers, name)(config)), make_tokenizer()

    return make


def _llama() -> tuple[Any, Any]:
    import transformers

    config = transformers.LlamaConfig(**_TOKENS, **_LAYERS, num_key_value_heads=2)
    return _random(transformers.LlamaForCausalLM(config)), make_tokenizer()


def _marian() -> tuple[Any, Any]:
    import transformers

    config = transformers.BartConfig(**_TOKENS, **_SEQ2SEQ, decoder_start_token_id=1, forced_eos_token_id=None)
    return _random(transformers.BartForConditionalGeneration(config)), make_tokenizer()


def _whisper() -> tuple[Any, Any]:
    import transformers

    config = transformers.WhisperConfig(
        **_TOKENS, **_SEQ2SEQ, decoder_start_token_id=1, max_source_positions=1500, num_mel_bins=80
    )
    model = _random(transformers.WhisperForConditionalGeneration(config))
    model.generation_config.forced_decoder_ids = None
    model.generation_config.suppress_tokens = None
    model.generation_config.begin_suppress_tokens = None
    return model, (transformers.WhisperFeatureExtractor(), make_tokenizer())


def _vit() -> tuple[Any, Any]:
    import transformers

    config = transformers.ViTConfig(**_LAYERS, **_LABELS, image_size=_SIDE, patch_size=8)
    size = {"height": _SIDE, "width": _SIDE}
    return _random(transformers.ViTForImageClassification(config)), transformers.ViTImageProcessor(size=size)


def _yolos() -> tuple[Any, Any]:
    import transformers

    size = {"height": _SIDE, "width": _SIDE}
    config = transformers.YolosConfig(
        **_LAYERS, **_LABELS, image_size=[_SIDE, _SIDE], patch_size=8, num_detection_tokens=5
    )
    return _random(transformers.YolosForObjectDetection(config)), transformers.YolosImageProcessor(size=size)


def _clip() -> tuple[Any, Any]:
    import transformers

    config = transformers.CLIPConfig(
        text_config={**_TOKENS, **_LAYERS, "projection_dim": 16, "max_position_embeddings": 64},
        vision_config={**_LAYERS, "projection_dim": 16, "image_size": _SIDE, "patch_size": 8},
        projection_dim=16,
    )
    processor = transformers.CLIPImageProcessor(size={"shortest_edge": _SIDE}, crop_size=_SIDE)
    return _random(transformers.CLIPModel(config)), (processor, make_tokenizer())


def _image_text(name: str) -> Callable[[], tuple[Any, Any]]:
    """A model whose inputs the test makes itself, without a processor."""

    def make() -> tuple[Any, Any]:
        model = make_image_text(name)
        model.config.eos_token_id = model.generation_config.eos_token_id = model.config.get_text_config().eos_token_id
        return model, ()

    return make


_GREEDY = {"max_new_tokens": 24, "min_new_tokens": 24, "do_sample": False}

CASES: Mapping[str, Case] = {
    "text": Case("text-classification", _text("BertForSequenceClassification"), {"top_k": 3}),
    "features": Case("feature-extraction", _text("BertModel"), {"pooling": "mean"}),
    "tokens": Case("token-classification", _text("BertForTokenClassification")),
    "generation": Case("text-generation", _llama, _GREEDY),
    "translation": Case("translation", _marian, _GREEDY),
    "speech": Case("automatic-speech-recognition", _whisper, _GREEDY, input=None),
    "image": Case("image-classification", _vit, {"top_k": 3}, input=None),
    "objects": Case("object-detection", _yolos, {"threshold": 0.0}, input=None),
    "zero-shot": Case(
        "zero-shot-image-classification",
        _clip,
        {"hypothesis_template": "a {}"},
        input=None,
        extra=["fox", "dog", "lazy token"],
    ),
    "llava": Case("image-text-to-text", _image_text("llava"), _GREEDY, input=None),
    "smolvlm": Case("image-text-to-text", _image_text("smolvlm"), _GREEDY, input=None),
}


def export_case(name: str, root: Path) -> tuple[Any, Any]:
    """Export the model of a case into a directory of its name, and return it with its processor."""
    case = CASES[name]
    model, processor = case.make()
    processors = processor if isinstance(processor, tuple) else (processor,)
    fxonnx.huggingface.export(model, root / name, processor=processors, layout="transformers.js", dtype="fp32,q8")
    if name == "speech":
        # transformers.js decodes with methods of this class; the small vocabulary has none of its special tokens.
        settings = root / name / "tokenizer_config.json"
        settings.write_text(json.dumps({**json.loads(settings.read_text()), "tokenizer_class": "WhisperTokenizer"}))
    return model, processors


def image() -> Any:
    """An image of the size of the models, which the processors do not resize."""
    from PIL import Image

    values = torch.randint(0, 256, (_SIDE, _SIDE, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return Image.fromarray(values.numpy())


def audio() -> torch.Tensor:
    """Half a second of noise with a tone."""
    time = torch.arange(8000) / 16000
    return torch.sin(2000 * time) + 0.1 * torch.randn(8000, generator=torch.Generator().manual_seed(0))


def image_text_tensors(name: str) -> dict[str, torch.Tensor]:
    """The inputs of a model of images and text: one text."""
    inputs = image_text_inputs(make_image_text(name), Sizes(batch=1))
    return {**inputs, "attention_mask": torch.ones_like(inputs["attention_mask"])}


def _described(tensor: torch.Tensor) -> dict[str, Any]:
    kind = {torch.int64: "int64", torch.float32: "float32", torch.bool: "bool"}[tensor.dtype]
    return {"type": kind, "dims": list(tensor.shape), "data": tensor.flatten().tolist()}


def write_cases(root: Path, where: str) -> list[dict[str, Any]]:
    """Write the inputs and cases.json.

    Args:
        root: The directory with the models.
        where: The place of the image for the runtime: a directory or an URL.
    """
    image().save(root / "image.png")
    cases = []
    for name, case in CASES.items():
        value = case.input
        if case.task == "image-text-to-text":
            value = {key: _described(tensor) for key, tensor in image_text_tensors(name).items()}
        elif value is None:
            value = audio().tolist() if case.task == "automatic-speech-recognition" else f"{where}image.png"
        entry = {"name": name, "task": case.task, "input": value, "options": dict(case.options)}
        cases.append({**entry, "load": {"dtype": "fp32"}} | ({} if case.extra is None else {"extra": case.extra}))
    (root / "cases.json").write_text(json.dumps(cases))
    return cases
