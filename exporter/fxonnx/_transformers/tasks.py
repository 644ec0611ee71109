"""Tasks and families: how models of transformers are recognized, loaded, and which outputs the runtimes read."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from ..errors import ArgumentError, did_you_mean
from .extras import import_extra
from .families.image_text import check_image_text
from .families.sentences import has_sentence_modules
from .samples import IMAGE_SOURCES, SPEECH_SOURCES

__all__ = [
    "ALIASES",
    "AUDIO_TYPES",
    "FAMILIES",
    "TASKS",
    "Family",
    "FamilyRow",
    "Task",
    "check_class",
    "check_inputs",
    "check_modalities",
    "family_of",
    "model_classes",
    "other_modalities",
    "task_by_name",
    "task_of",
]

Form = Literal["single", "decoder", "encoder-decoder", "image-text"]


@dataclass(frozen=True)
class Task:
    """A task, by the names of the Hub and of optimum.

    Attributes:
        name: The name.
        auto_classes: Classes of transformers that load its models, the preferred one first: auto classes, or classes of
            models that no auto class has.
        outputs: Fields of the model's output that the file has, where the model returns them; all if it returns none.
        form: "single": one file; "decoder": one file with a cache; "encoder-decoder": an encoder and a decoder;
            "image-text": embeddings of tokens, features of images, and a decoder of both.
    """

    name: str
    auto_classes: tuple[str, ...]
    outputs: tuple[str, ...] = ("logits",)
    form: Form = "single"


_PREDICTIONS = ("state_preds", "action_preds", "return_preds", "embeddings")
_HIDDEN = ("last_hidden_state", "pooler_output")
_IMAGE_TEXT = ("logits_per_image", "logits_per_text", "text_embeds", "image_embeds")
_SEGMENTS = ("logits", "pred_boxes", "pred_masks", "class_queries_logits", "masks_queries_logits")

_ROWS = (
    Task("text-classification", ("AutoModelForSequenceClassification",)),
    Task("token-classification", ("AutoModelForTokenClassification",)),
    Task("question-answering", ("AutoModelForQuestionAnswering",), ("start_logits", "end_logits")),
    Task("multiple-choice", ("AutoModelForMultipleChoice",)),
    Task("text-generation", ("AutoModelForCausalLM",), form="decoder"),
    Task("text2text-generation", ("AutoModelForSeq2SeqLM",), form="encoder-decoder"),
    Task("fill-mask", ("AutoModelForMaskedLM",)),
    Task("image-classification", ("AutoModelForImageClassification",)),
    Task("object-detection", ("AutoModelForObjectDetection",), ("logits", "pred_boxes")),
    Task("semantic-segmentation", ("AutoModelForSemanticSegmentation",)),
    Task(
        "image-segmentation",
        ("AutoModelForUniversalSegmentation", "AutoModelForInstanceSegmentation", "AutoModelForImageSegmentation"),
        _SEGMENTS,
    ),
    Task("depth-estimation", ("AutoModelForDepthEstimation",), ("predicted_depth",)),
    Task("keypoint-detection", ("AutoModelForKeypointDetection", "AutoModelForPoseEstimation"), ("heatmaps",)),
    Task("image-to-image", ("AutoModelForImageToImage",), ("reconstruction",)),
    Task("masked-im", ("AutoModelForMaskedImageModeling",), ("reconstruction", "logits")),
    Task("video-classification", ("AutoModelForVideoClassification",)),
    Task("zero-shot-image-classification", ("AutoModelForZeroShotImageClassification",), _IMAGE_TEXT),
    Task(
        "zero-shot-object-detection",
        ("AutoModelForZeroShotObjectDetection",),
        ("logits", "pred_boxes", "text_embeds", "image_embeds"),
    ),
    Task("visual-question-answering", ("AutoModelForVisualQuestionAnswering",)),
    Task("document-question-answering", ("AutoModelForDocumentQuestionAnswering",), ("start_logits", "end_logits")),
    Task("image-to-text", ("AutoModelForImageTextToText", "AutoModelForVision2Seq"), ("logits",), "encoder-decoder"),
    Task("image-text-to-text", ("AutoModelForImageTextToText",), form="image-text"),
    Task("audio-classification", ("AutoModelForAudioClassification",)),
    Task("audio-frame-classification", ("AutoModelForAudioFrameClassification",)),
    Task("audio-xvector", ("AutoModelForAudioXVector",), ("logits", "embeddings")),
    Task("automatic-speech-recognition", ("AutoModelForCTC", "AutoModelForSpeechSeq2Seq")),
    Task("text-to-audio", ("AutoModelForTextToWaveform", "AutoModelForTextToSpectrogram"), ("waveform",)),
    Task("time-series-forecasting", ("AutoModelForTimeSeriesPrediction",), ("prediction_outputs",)),
    Task(
        "feature-extraction",
        ("AutoModel", "ColPaliForRetrieval", "SiglipTextModel"),
        (*_PREDICTIONS, *_HIDDEN, *_IMAGE_TEXT),
    ),
)

TASKS: Mapping[str, Task] = MappingProxyType({task.name: task for task in _ROWS})
"""Tasks by name; of a model whose class has several, the first."""

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "sentiment-analysis": "text-classification",
        "ner": "token-classification",
        "translation": "text2text-generation",
        "summarization": "text2text-generation",
        "image-feature-extraction": "feature-extraction",
        "sentence-similarity": "feature-extraction",
        "text-to-speech": "text-to-audio",
        "instance-segmentation": "image-segmentation",
        "reinforcement-learning": "feature-extraction",
    }
)
"""Other names of tasks, as pipelines have them."""

_WITH_PAST = "-with-past"


def task_by_name(name: str) -> Task:
    """The task of a name, which may be an alias or end in "-with-past"."""
    plain = name.removesuffix(_WITH_PAST)
    found = TASKS.get(ALIASES.get(plain, plain))
    if found is None:
        known = ", ".join(TASKS)
        raise ArgumentError("task", f"expected one of {known}; got {name!r}", hint=did_you_mean(plain, TASKS))
    return found


def task_of(config: Any, architecture: str | None) -> Task:
    """The task of a model's class."""
    found = _tasks_of(config, architecture)
    with_images = [task for task in found if task.form == "image-text"]
    if with_images and not config.is_encoder_decoder:
        return with_images[0]
    if found:
        return found[0]
    problem = "the configuration names no class" if architecture is None else f"no task has the class {architecture}"
    hint = "pass task=, for example task='feature-extraction'"
    raise ArgumentError("task", f"{problem} (model type {config.model_type!r})", hint=hint)


def check_class(task: Task, model: Any) -> None:
    """Reject a model object whose class belongs to other tasks."""
    name = type(model).__name__
    found = _tasks_of(model.config, name)
    if found and task not in found:
        tasks = ", ".join(each.name for each in found)
        hint = f"its tasks are: {tasks}; a directory is loaded with the class of the task"
        raise ArgumentError("task", f"{name} is not a model for {task.name}", hint=hint)


def check_inputs(task: Task, model: Any, *, is_requested: bool) -> None:
    """Reject models whose images or audio the files of a task do not have."""
    if task.form == "image-text":
        check_image_text(model)
        return
    if task.form == "single" or model.config.is_encoder_decoder:
        return
    name, others = type(model).__name__, other_modalities(model)
    if task.form == "encoder-decoder":
        hint = "its task is image-text-to-text" if "pixel_values" in others else None
        raise ArgumentError("model", f"{name} has no encoder and decoder, which {task.name} requires", hint=hint)
    if others and not is_requested:
        hint = f"pass task={task.name!r} for the model of text only; fxonnx.genai.export exports vision-language models"
        raise ArgumentError("model", f"{name} also takes {', '.join(others)}, which {task.name} omits", hint=hint)


def model_classes(name: str, config: Any) -> tuple[Any, ...]:
    """The classes of models that a class of transformers loads for a configuration."""
    found = getattr(import_extra("transformers"), name, None)
    if found is None:  # auto classes come and go with the version of transformers
        return ()
    mapping = getattr(found, "_model_mapping", None)
    if mapping is None:
        return (found,) if found.config_class is type(config) else ()
    classes = mapping.get(type(config), ())
    # MusicGen has classes that take the configuration of its decoder only.
    parts = [part for name, part in getattr(config, "sub_configs", {}).items() if name != "text_config"]
    flat = classes if isinstance(classes, tuple) else (classes,)
    return tuple(each for each in flat if getattr(each, "config_class", None) not in parts)


def _tasks_of(config: Any, architecture: str | None) -> list[Task]:
    return [
        task
        for task in TASKS.values()
        if any(each.__name__ == architecture for name in task.auto_classes for each in model_classes(name, config))
    ]


Family = Literal[
    "audio-language",
    "decoder",
    "embedding",
    "encoder-decoder",
    "image",
    "reranker",
    "speech",
    "vision-language",
    "whisper",
]


@dataclass(frozen=True)
class FamilyRow:
    """A family of models that ``fxonnx.genai.export`` takes.

    Attributes:
        name: Its name.
        auto_class: The class of transformers that loads its models.
        in_genai: Whether onnxruntime-genai runs it; ONNX Runtime runs all.
        chats: Whether its prompts may be chats.
    """

    name: Family
    auto_class: str
    in_genai: bool = False
    chats: bool = False


FAMILIES: Mapping[str, FamilyRow] = MappingProxyType(
    {
        row.name: row
        for row in (
            FamilyRow("audio-language", "AutoModelForSeq2SeqLM", in_genai=True, chats=True),
            FamilyRow("decoder", "AutoModelForCausalLM", in_genai=True, chats=True),
            FamilyRow("embedding", "AutoModel"),
            FamilyRow("encoder-decoder", "AutoModelForSeq2SeqLM"),
            FamilyRow("image", "AutoModelForImageTextToText"),
            FamilyRow("reranker", "AutoModelForSequenceClassification"),
            FamilyRow("speech", "AutoModelForSpeechSeq2Seq"),
            FamilyRow("vision-language", "AutoModelForImageTextToText", in_genai=True, chats=True),
            FamilyRow("whisper", "AutoModelForSpeechSeq2Seq", in_genai=True),
        )
    }
)


def family_of(config: Any, architecture: str, directory: Path | None, is_embedding: bool) -> Family:
    """The family of a model."""
    if is_embedding or (directory is not None and has_sentence_modules(directory)):
        return "embedding"
    if architecture.endswith("ForSequenceClassification"):
        return "reranker"
    if config.model_type == "whisper" and not architecture.endswith("ForCausalLM"):
        return "whisper"
    is_causal = architecture.endswith("ForCausalLM") and config.model_type not in _CAUSAL_TYPES
    if getattr(config, "vision_config", None) is not None and not is_causal:
        return "vision-language"
    if config.model_type in AUDIO_TYPES and not architecture.endswith("Model"):
        return "audio-language"
    if config.model_type in SPEECH_SOURCES and not architecture.endswith(("Model", "Speech")):
        return "speech"
    if config.model_type in IMAGE_SOURCES:
        return "image"
    if config.is_encoder_decoder and not architecture.endswith("EncoderModel"):
        return "encoder-decoder"
    return "embedding" if architecture.endswith("Model") and not architecture.endswith("LMHeadModel") else "decoder"


AUDIO_TYPES = frozenset({"audioflamingo3", "glmasr", "granite_speech", "granite_speech_plus", "qwen3_asr", "voxtral"})
"""Types of models whose decoder reads features of audio in place of tokens."""
_CAUSAL_TYPES = frozenset({"phi4_multimodal"})
"""Types of models of images that are loaded as language models, of images and of text alone."""

_MODALITIES = ("pixel_values", "image_patches", "input_features", "input_values", "protein_input_ids")


def other_modalities(model: Any) -> list[str]:
    """The inputs of a model that are images or audio."""
    return [name for name in inspect.signature(model.forward).parameters if name.endswith(_MODALITIES)]


_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "dia": "its tokens are codes of audio in several channels",
        "pop2piano": "its tokens are notes of music",
        "kyutai_speech_to_text": "each of its tokens has codes of audio beside the text",
        **dict.fromkeys(
            ("qwen2_5_omni", "qwen3_omni_moe"),
            "it generates speech with several models; the one that generates text is its attribute thinker",
        ),
    }
)
"""Type of a model to the reason why it is not supported."""


def check_modalities(family: Family, model: Any, *, text_only: bool) -> Family:
    """Reject a model of images or audio whose family has the inputs of text only.

    Returns:
        The family: that of text for a model of audio and text, if requested.
    """
    name = type(model).__name__
    if text_only and (family == "audio-language" or model.config.model_type in _CAUSAL_TYPES):
        family = "decoder"
    if family != "embedding" and model.config.model_type in _REFUSED:
        raise ArgumentError("model", f"{name} is not supported: {_REFUSED[model.config.model_type]}")
    others = other_modalities(model)
    if family in ("embedding", "encoder-decoder") and model.main_input_name in (
        "input_features",
        "input_values",
        "inputs",
        "pixel_values",
    ):
        raise ArgumentError(
            "model",
            f"the encoder of {name} reads {', '.join(others)}: fxonnx.genai does not support its type, only "
            f"{', '.join((*SPEECH_SOURCES, *IMAGE_SOURCES))}",
            hint="export it with fxonnx.export",
        )
    if others and not text_only and family in ("decoder", "encoder-decoder", "reranker"):
        raise ArgumentError(
            "model",
            f"{name} also takes {', '.join(others)}, which the files of its family do not have",
            hint="export it with fxonnx.export, or pass text_only=True (--text-only) for a model of text",
        )
    return family
