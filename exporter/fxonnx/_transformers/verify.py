"""Comparison of exported files with the model in eager torch, at the example and at other sizes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, VerificationError
from .extras import import_extra
from .families.image_text import image_text_inputs
from .families.sound import codebooks_of
from .generation import generated_by_transformers
from .parts import Component, Inputs
from .precision import Variant
from .samples import Sizes, cast, input_names, sample_inputs
from .source import Source

__all__ = ["FileCheck", "compare_component", "compare_generation", "compare_images", "flatten", "raise_on_failure"]

_EXAMPLE = Sizes(seed=1)
_OTHERS = (Sizes(3, 12, 1.5, 2), Sizes(3, 12, 2.0, 2), Sizes(3, 12, 1.0, 2))
_NEW = 12
_STEPS = 3
_LATENTS = (16, 24)


@dataclass(frozen=True)
class FileCheck:
    """The result of one comparison.

    Attributes:
        file: Name of the file; "generate", "sound" or "image" for the whole model or pipeline.
        inputs: The sizes of the inputs, or the kind of generation.
        difference: Largest difference of an output, relative to its largest value; the share of different tokens; None
            if the model draws random numbers, so that its own results differ from call to call.
        tolerance: The largest difference that is accepted; None if any is.
    """

    file: str
    inputs: str
    difference: float | None
    tolerance: float | None

    @property
    def passed(self) -> bool:
        """Whether the difference is accepted; an infinite one never is."""
        if self.difference is None:
            return True
        limit = float("inf") if self.tolerance is None else self.tolerance
        return self.difference <= limit and self.difference != float("inf")

    def __str__(self) -> str:
        """One line for the table of an export."""
        if self.difference is None:
            return f"{self.inputs}: runs, not compared, since the model draws random numbers"
        if self.file.startswith("generate"):
            return f"{self.file}, {self.inputs}: {self.difference:.0%} of the tokens different"
        shown = f"{self.inputs}: difference {self.difference:.1e}"
        return shown if self.file.endswith(".onnx") else f"{self.file}, {shown}"


def flatten(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Name, with dots between the steps of its path, and value of every tensor in an input."""
    if isinstance(value, Tensor):
        yield name, value
        return
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, part in items:
        yield from flatten(f"{name}.{key}", part)


def compare_component(component: Component, program: Any, session: Any, variant: Variant, file: str) -> list[FileCheck]:
    """Compare a file with its component, at the sizes of the example and at others that the program accepts."""
    first = component.inputs(_EXAMPLE)
    expected, again = _run(component, first), _run(component, first)
    is_random = any(_difference(value, again[name]) != 0 for name, value in expected.items())
    calls = [(first, expected)]
    for sizes in _OTHERS:
        other = _possible(component, program, sizes)
        if other is not None:
            calls.append(other)
            break
    more: list[Inputs] = []
    if component.has_branch:
        more = [component.inputs(_EXAMPLE, past=0), component.inputs(_EXAMPLE, use_cache=True)]
    elif "past_key_values" in first:
        more = [component.inputs(_EXAMPLE, past=0)]
    calls += [(inputs, _run(component, inputs)) for inputs in more]
    return [_compare(session, call, variant, file, is_random=is_random) for call in calls]


def _run(component: Component, inputs: Inputs) -> dict[str, Tensor]:
    with torch.no_grad():
        found: dict[str, Tensor] = component.model(**inputs)
    return found


def _possible(component: Component, program: Any, sizes: Sizes) -> tuple[Inputs, dict[str, Tensor]] | None:
    """Inputs of some sizes, if both the model and the constraints of the program accept them, and their outputs."""
    try:
        inputs = component.inputs(sizes)
        expected = _run(component, inputs)
    except (RuntimeError, ValueError, IndexError):
        # A model for images of one size raises one of these for others.
        return None
    try:
        program.interface.bind((), inputs)
    except ArgumentError:
        return None
    return inputs, expected


def _compare(
    session: Any, call: tuple[Inputs, dict[str, Tensor]], variant: Variant, file: str, *, is_random: bool
) -> FileCheck:
    inputs, expected = call
    tensors = dict(pair for name, value in inputs.items() for pair in flatten(name, value))
    feeds = {value.name: tensors[value.name].numpy() for value in session.get_inputs()}
    found = session.run(list(expected), feeds)
    difference: float | None = None
    if not is_random:
        pairs = zip(expected.values(), map(torch.from_numpy, found), strict=True)
        difference = max(_difference(value, result) for value, result in pairs)
    sizes = ", ".join(f"{name} {'x'.join(map(str, value.shape))}" for name, value in [*tensors.items()][:2])
    return FileCheck(file, sizes, difference, variant.tolerance)


def _difference(expected: Tensor, found: Tensor) -> float:
    """The largest difference over the largest finite value; infinite for other shapes and for NaN in one only."""
    if expected.shape != found.shape:
        return float("inf")
    expected, found = expected.double(), found.double()
    same = (expected == found) | (expected.isnan() & found.isnan())
    if bool(same.all()):
        return 0.0
    largest = float((expected - found).abs()[~same].max())
    scale = float(expected[expected.isfinite()].abs().max()) if bool(expected.isfinite().any()) else 1.0
    return float("inf") if math.isnan(largest) else largest / (scale or 1.0)


def generated_tokens(source: Source) -> Tensor:
    """Tokens that a model generates greedily from a padded batch, INT64 (batch, length); sound of MusicGen, FLOAT."""
    model = source.model
    try:
        return _generate(model, cast(_prompts(source), model.dtype))
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        problem = f"{type(model).__name__}.generate fails in transformers: {type(error).__name__}: {error}"
        hint = "correct the configuration, or export without the comparison: verify=False, --no-verify"
        raise ArgumentError("model", problem, hint=hint) from error


def compare_generation(source: Source, expected: Tensor, loaded: Any, variant: Variant) -> FileCheck:
    """Generate with the exported directory from the inputs of ``generated_tokens``."""
    found, is_exact = _generate(loaded, _prompts(source)), variant.name == "fp32"
    if expected.is_floating_point():
        name, limit = f"sound{variant.suffix}", variant.tolerance if is_exact else None
        return FileCheck(name, f"{_NEW} steps, batch {len(expected)}", _difference(expected, found), limit)
    length = min(expected.shape[1], found.shape[1])
    different = float((expected[:, :length] != found[:, :length]).double().mean())
    limit = 0.0 if is_exact else None
    return FileCheck(f"generate{variant.suffix}", f"{_NEW} tokens, batch {len(expected)}", different, limit)


def _generate(model: Any, inputs: Inputs) -> Tensor:
    plain = import_extra("transformers").GenerationMixin.generate
    generate = type(model).generate if codebooks_of(model) > 1 else plain
    found: Tensor = generated_by_transformers(partial(generate, model), inputs, _NEW)
    return found


def _prompts(source: Source) -> Inputs:
    """The inputs of ``generate``; decoders have padding on the left."""
    model, sizes = source.model, Sizes(seed=3)
    if source.task.form == "image-text":
        return {**image_text_inputs(model, sizes)}
    inputs: Inputs = {**sample_inputs(model, input_names(model, source.processors), sizes)}
    if model.config.is_encoder_decoder:
        return inputs
    mask = torch.ones_like(inputs["input_ids"])
    mask[-1, :2] = 0
    return {"input_ids": inputs["input_ids"], "attention_mask": mask}


def compare_images(pipeline: Any, loaded: Any, variant: Variant) -> FileCheck | None:
    """Make an image that is not square in a few steps, with the exported directory and with the pipeline.

    Returns:
        The comparison; None for a pipeline without a tokenizer, which encodes no text.
    """
    if getattr(pipeline, "tokenizer", None) is None:
        return None
    height, width = (side * pipeline.vae_scale_factor for side in _LATENTS)
    random = torch.Generator().manual_seed(2)
    possible = {
        "height": height,
        "width": width,
        "image": torch.rand(1, 3, height, width, generator=random),
        "mask_image": torch.rand(1, 1, height, width, generator=random).round(),
        "use_resolution_binning": False,
        "clean_caption": False,
    }
    parameters = inspect.signature(type(pipeline).__call__).parameters
    given = {name: value for name, value in possible.items() if name in parameters}
    images = []
    for each in (pipeline, loaded):
        each.set_progress_bar_config(disable=True)
        with torch.no_grad():
            generator = torch.Generator().manual_seed(0)
            options = {"num_inference_steps": _STEPS, "output_type": "pt", "generator": generator}
            images.append(each(prompt="a house", **given, **options).images)
    limit = variant.tolerance if variant.name == "fp32" else None
    return FileCheck("image", f"{_STEPS} steps, {height}x{width}", _difference(*images), limit)


def raise_on_failure(checks: Sequence[FileCheck]) -> None:
    """Raise for the first comparison that failed."""
    for check in checks:
        if check.difference is not None and not check.passed:
            raise VerificationError(
                f"{check.file} differs from the model in eager torch by {check.difference:.2g} ({check.inputs}), "
                f"more than {check.tolerance or 0}"
            )
