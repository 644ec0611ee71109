"""Parts of a model, each a module that becomes one ONNX file, and the export of each."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import sympy
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from .. import Constraint, Diagnostics, ExportOptions, ONNXProgram, save_all
from .. import export as export_model
from .core import dequantized_weights, ignoring_warnings, one_at_a_time, warn_user
from .decoders.padding import assume_right_padding
from .families.sentences import Pooling
from .generation import Quality

__all__ = [
    "Call",
    "Component",
    "Inputs",
    "Part",
    "Request",
    "decoder_calls",
    "export_once",
    "export_parts",
    "input_dtype",
    "narrowing_constraints",
    "padding_any_size",
    "rounded_parts",
    "rounded_weights",
    "save_parts",
    "with_forward",
]


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
    calls: Iterable[Call]
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    context: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True)
class Request:
    """The arguments of an export that do not depend on the model.

    Attributes:
        directory: The directory to write to.
        device: The device that onnxruntime-genai runs the model on.
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
        mtp: Whether the heads for multi-token prediction are written.
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
    mtp: bool = False

    def without_guards(self) -> Request:
        """The same arguments for a graph without guards, for models that are valid for every call of the runtime."""
        return replace(self, options={**self.options, "options": ExportOptions(guards=False)})


def input_dtype(model: Any) -> torch.dtype:
    """The dtype of audio and images: onnxruntime-genai provides them in float32 and float16."""
    dtype: torch.dtype = model.dtype
    return torch.float32 if dtype == torch.bfloat16 else dtype


def export_parts(parts: Mapping[str, Part], request: Request) -> dict[str, ONNXProgram]:
    """Export each part."""
    return {name: _export_part(name, part, request) for name, part in parts.items()}


@contextmanager
def rounded_parts(parts: Mapping[str, Part], programs: Mapping[str, ONNXProgram]) -> Iterator[None]:
    """Replace quantized weights of the parts by their dequantized values in the body."""
    with ExitStack() as stack:
        for name, part in parts.items():
            stack.enter_context(rounded_weights(part.module, programs[name]))
        yield


def save_parts(programs: Mapping[str, ONNXProgram], request: Request) -> None:
    """Save ``<name>.onnx`` for each part, and one file with the weights of all of them."""
    request.announce("save")
    save_all(programs, request.directory)


def _export_part(name: str, part: Part, request: Request) -> ONNXProgram:
    """Export a part, with guards if onnxruntime-genai calls it with sizes for which it is not valid."""
    program = export_once(part, request.without_guards())
    narrowing = narrowing_constraints(program.record.constraints, part.calls)
    if narrowing:
        warn_user(f"{name}.onnx is valid only for: {'; '.join(map(str, narrowing))}")
        program = export_once(part, request)
    return program


def export_once(part: Part, request: Request) -> ONNXProgram:
    """Export a part, whatever sizes it is valid for."""
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


Inputs = dict[str, Any]


@dataclass(frozen=True)
class Component:
    """A module that becomes one file.

    Attributes:
        name: Name of the file, without suffix.
        model: The module; its parameters have the names that they have in the whole model.
        inputs: Makes keyword inputs of given ``Sizes``; for a step of generation, also of a given ``past`` length, and
            with or without ``use_cache``.
        dynamic_shapes: Dynamic dims by graph input name or glob pattern.
        translations: Translations of operators that only this component has.
        generates: Whether it is a step of generation, with a cache.
        has_branch: Whether ``use_cache_branch`` decides if the file computes the keys and values of the encoder.
        has_products: Whether it has layers that can be quantized.
    """

    name: str
    model: Any
    inputs: Callable[..., Inputs]
    dynamic_shapes: Mapping[str, Mapping[int, str]]
    translations: Mapping[Any, Any] = field(default_factory=lambda: MappingProxyType({}))
    generates: bool = False
    has_branch: bool = False
    has_products: bool = True


def with_forward(model: Any, forward: Callable[..., Any]) -> Any:
    """A module with the same parameters and another forward; the model is left unchanged."""
    replaced = copy.copy(model)
    replaced.forward = forward
    return replaced


Call: TypeAlias = Mapping[str, int]
"""Sizes of one call by the names of the dims."""

_SIZES = (1, 2, 3, 4, 7, 64, 1000)
_PASTS = (0, *_SIZES)


def decoder_calls(longest: int) -> tuple[Call, ...]:
    """Steps of a decoder; the attention mask always covers the past and the new tokens."""
    return tuple(
        {"batch": batch, "past": past, "tokens": tokens, "total": past + tokens}
        for batch in (1, 3)
        for past in _PASTS
        for tokens in (*_SIZES, longest - past)
        if 0 < tokens <= longest - past
    )


def narrowing_constraints(constraints: Iterable[Constraint], calls: Iterable[Call]) -> list[Constraint]:
    """The constraints that exclude sizes of a call by onnxruntime-genai."""
    calls = tuple(calls)
    return [each for each in constraints if each.narrows and not _always_holds(each, calls)]


def _always_holds(constraint: Constraint, calls: Iterable[Call]) -> bool:
    symbols = constraint.expression.free_symbols
    return all(
        constraint.expression.subs({symbol: sizes[symbol.name] for symbol in symbols if symbol.name in sizes})
        == sympy.true
        for sizes in calls
    )


@contextmanager
def rounded_weights(model: Any, program: ONNXProgram) -> Iterator[None]:
    """Replace quantized weights by their dequantized values in the body."""
    values = dequantized_weights(program.model, program.weights)
    replaced: list[tuple[torch.nn.Module, str, torch.nn.Parameter | None]] = []
    try:
        for name in dict.fromkeys((*values.products, *values.tables)):
            path, _, parameter = name.rpartition(".")
            module = model.get_submodule(path)
            # A tied weight may have one value in the embedding and another in the linear layer, or one in both.
            is_table = isinstance(module, torch.nn.Embedding)
            value = values.tables.get(name) if is_table else None
            value = values.products.get(name) if value is None else value
            if value is not None:
                replaced.append((module, parameter, module._parameters[parameter]))
                module._parameters[parameter] = torch.nn.Parameter(value, requires_grad=False)
        yield
    finally:
        for module, parameter, before in replaced:
            module._parameters[parameter] = before


_FAMILIES = ("Swin", "ClapAudio", "FocalNet")


@contextmanager
def padding_any_size(model: torch.nn.Module) -> Iterator[None]:
    """Replace the paddings of the classes of a model's modules within the context, in which other exports wait.

    Swin and its relatives pad images to multiples of a patch or window and feature maps to even sizes, and Longformer
    pads texts to multiples of its window, if that is necessary. A captured branch is valid either for the sizes that
    need a padding, or for the others; here they are padded for every size, also by nothing.
    """
    with one_at_a_time(), ExitStack() as until_exported:
        for each in {type(module) for module in model.modules()}:
            for name, function in _functions_of(each):
                until_exported.callback(setattr, each, name, each.__dict__[name])
                setattr(each, name, function)
        yield


def _functions_of(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The methods of a class that are replaced, and their replacements."""
    methods = vars(kind)
    if "maybe_pad" in methods and any(family in kind.__name__ for family in _FAMILIES):
        for end, function in _IMAGE_FUNCTIONS.items():
            if kind.__name__.endswith(end):
                yield "maybe_pad", function
    if "_pad_to_window_size" in methods and kind.__name__ == "LongformerModel":
        yield "_pad_to_window_size", _pad_texts


def _pad_images(module: Any, pixel_values: Tensor, height: int, width: int) -> Tensor:
    rows, columns = module.patch_size
    return pad(pixel_values, (0, -width % columns, 0, -height % rows))


def _pad_windows(module: Any, hidden_states: Tensor, height: int, width: int) -> tuple[Tensor, tuple[int, ...]]:
    window = module.window_size
    padded = pad(hidden_states, (0, 0, 0, -width % window, 0, -height % window))
    return padded, (0, 0, 0, 1, 0, 1)  # after which the layer crops


def _pad_features(_module: Any, input_feature: Tensor, height: int, width: int) -> Tensor:
    return pad(input_feature, (0, 0, 0, width % 2, 0, height % 2))


_IMAGE_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"PatchEmbeddings": _pad_images, "PatchMerging": _pad_features, "Layer": _pad_windows}
)
"""By the end of the name of the class."""


def _pad_texts(
    module: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    token_type_ids: Tensor,
    position_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    pad_token_id: int,
) -> tuple[Any, ...]:
    window = module.config.attention_window
    length = -input_ids.shape[1] % (window if isinstance(window, int) else max(window))
    input_ids = pad(input_ids, (0, length), value=pad_token_id)
    if position_ids is not None:
        position_ids = pad(position_ids, (0, length), value=pad_token_id)
    masks = (pad(each, (0, length)) for each in (attention_mask, token_type_ids))
    return length, input_ids, *masks, position_ids, inputs_embeds
