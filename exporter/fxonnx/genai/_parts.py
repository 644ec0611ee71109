"""Models of several files: each part is exported by itself, and weights that parts share are stored once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from .. import Diagnostics, ExportOptions, ONNXProgram, save_all
from .. import export as export_model
from .._warnings import ignoring_warnings, warn_user
from ._padding import assume_right_padding
from ._quality import Quality
from ._rounded_weights import rounded_weights
from ._sentence_modules import Pooling
from ._sizes import Sizes, narrowing_constraints

__all__ = ["Part", "Request", "export_parts", "input_dtype", "rounded_parts", "save_parts"]


@dataclass(frozen=True)
class Part:
    """A module that becomes one ONNX file.

    Attributes:
        module: The module.
        inputs: Keyword example inputs.
        dynamic_shapes: Dynamic dims by graph input name or glob pattern.
        calls: Sizes by dim name that onnxruntime-genai calls the part with.
        input_names: Names of the first graph inputs.
        output_names: Names of the first graph outputs.
        options: Arguments of ``fxonnx.export`` in place of the request's.
        context: Makes a context for each export.
    """

    module: nn.Module
    inputs: Mapping[str, Any]
    dynamic_shapes: Mapping[str, Any]
    calls: Iterable[Sizes]
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    context: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True)
class Request:
    """The arguments of an export that do not depend on the model.

    Attributes:
        directory: The directory to write to.
        device: "cpu" or "cuda".
        options: Arguments of ``fxonnx.export``.
        last_logits: Compute the logits of the last position only.
        adapters: Name to directory of LoRA adapters.
        pooling: The pooling of an embedding model, in place of its directory's.
        normalize: Whether embeddings are normalized, in place of the setting of its directory.
        tolerance: Two tokens are equally good if their logits differ by at most this part of the range of all logits.
        verify: Compare results with transformers'.
        announce: Called with the name of each stage as it begins.
        checkpoint: The directory of the model if the files are moved there; its own files are kept.
        hidden_states: Whether a decoder also returns its last hidden states.
        name: The precision or recipe.
        on_quality: Called with the comparison of probabilities for a text.
        cache: Element type of the caches of a decoder.
        inputs_embeds: Whether a decoder takes embeddings in place of tokens.
    """

    directory: Path
    device: str
    options: Mapping[str, Any]
    last_logits: bool
    adapters: Mapping[str, str | os.PathLike[str]]
    pooling: Pooling | None
    normalize: bool | None
    tolerance: float
    verify: bool
    announce: Callable[[str], None]
    checkpoint: Path | None = None
    hidden_states: bool = False
    name: str = ""
    on_quality: Callable[[Quality], None] | None = None
    cache: Literal["float", "int8"] = "float"
    inputs_embeds: bool = False

    def without_guards(self) -> Request:
        """The same arguments for a graph without guards, for models that are valid for every call of the runtime."""
        return replace(self, options={**self.options, "options": ExportOptions(guards=False)})


def input_dtype(model: Any) -> torch.dtype:
    """The dtype of audio and images: onnxruntime-genai provides them in float32 and float16.

    Args:
        model: The model of transformers.
    """
    dtype: torch.dtype = model.dtype
    return torch.float32 if dtype == torch.bfloat16 else dtype


def export_parts(parts: Mapping[str, Part], request: Request) -> dict[str, ONNXProgram]:
    """Export each part.

    Args:
        parts: Name to part.
        request: The arguments of the export.
    """
    return {name: _export_part(name, part, request) for name, part in parts.items()}


@contextmanager
def rounded_parts(parts: Mapping[str, Part], programs: Mapping[str, ONNXProgram]) -> Iterator[None]:
    """Replace quantized weights of the parts by their dequantized values in the body.

    Args:
        parts: Name to part.
        programs: Name to exported program.
    """
    with ExitStack() as stack:
        for name, part in parts.items():
            stack.enter_context(rounded_weights(part.module, programs[name]))
        yield


def save_parts(programs: Mapping[str, ONNXProgram], request: Request) -> None:
    """Save ``<name>.onnx`` for each part, and one file with the weights of all of them.

    Args:
        programs: Name to program.
        request: The arguments of the export.
    """
    request.announce("save")
    save_all(programs, request.directory)


def _export_part(name: str, part: Part, request: Request) -> ONNXProgram:
    """Export a part, with guards if onnxruntime-genai calls it with sizes for which it is not valid."""
    program = _exported(part, request.without_guards())
    narrowing = narrowing_constraints(program.record.constraints, part.calls)
    if narrowing:
        warn_user(f"{name}.onnx is valid only for: {'; '.join(map(str, narrowing))}")
        program = _exported(part, request)
    return program


def _exported(part: Part, request: Request) -> ONNXProgram:
    with ignoring_warnings("the model cannot be exported for all requested sizes"), part.context():
        program = export_model(
            part.module.eval(),
            kwargs=dict(part.inputs),
            dynamic_shapes=part.dynamic_shapes,
            input_names=part.input_names or None,
            output_names=part.output_names or None,
            diagnostics=Diagnostics(on_stage=request.announce),
            **{**request.options, **part.options},
        )
    assume_right_padding(program.model.graph)
    return program
