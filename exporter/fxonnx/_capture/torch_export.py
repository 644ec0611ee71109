"""The call of torch.export, and the translation of its error messages to the user's parameters and lines."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from fxonnx_translations._builder.sub_byte import copy_of
from fxonnx_translations._torch_compat import dynamo_config, pytree, shape_config

from ..errors import CaptureError
from .constraints.guard_recorder import GuardLog, is_user_file, recorded_guards, source_line_of
from .constraints.size_forms import canonical_sizes
from .constraints.specialized_dims import specialized_dims_error
from .function_transforms import RetryTransforms, TransformTracing, closed_transforms
from .inputs.example_inputs import BoundInputs
from .inputs.frozen import restore_frozen
from .inputs.list_inputs import with_lists
from .inputs.loop_bounds import register_example_integers
from .inputs.meta_device import meta_as_cpu
from .inputs.preserve import preserve_model
from .inputs.pytree_objects import flatten_objects, unflatten_objects
from .patches import capture_patches, question_patches
from .patches.functional import recorded_full_masks
from .quantized_modules import check_outputs, unpacked_parameters
from .questions.known_values import KnownValues, known_values
from .questions.ladder import is_question
from .shapes.dim_specs import DimHint, DimSpec
from .shapes.dynamic_shapes import DynamicShapes, Leaf
from .shapes.shared_dim_names import add_equality_guards
from .tensor_lists import stacked_results, with_pieces

__all__ = ["export_module"]

MESSAGE_LINES = 8

# Messages of torch 2.13 for a dim hint or a Dim that tracing specializes to one size.
STATIC_PLACE = re.compile(r"static shape of (\d+) for dimension inputs\['(\w+)'\](.*?)(?:\.shape\[(\d+)\])?\.?$", re.M)
_FIRST_INDEX = re.compile(r"^(\w+)\[(\d+)\]")
STATIC_NAMES = (
    re.compile(r"^\s+(\w+) = (\d+)$", re.M),
    re.compile(r"marked (\w+) as dynamic but your code specialized it to be a constant \((\d+)\)"),
)
EQUAL_NAMES = re.compile(r"^\s+(\w+) = ([A-Za-z_]\w*)$", re.M)
NARROWED_NAMES = re.compile(r"^\s+(\w+) = Dim\('\w+'(?:, min=(\d+))?(?:, max=(\d+))?\)", re.M)
RELATED_NAMES = re.compile(r"^\s+(\w+) = (?:(\d+)\*)?([A-Za-z_]\w*)(?: ([+-]) (\d+))?$", re.M)


_QUANTIZED = ("__obj_flatten__", "quantized nyi in meta tensors", "QuantizedCPU", "quantized::", "for quantized.")
_QUANTIZED_HINT = (
    "a part of the model is quantized in a form that cannot be captured; quantize the float model with PT2E instead: "
    "prepare_pt2e and convert_pt2e of torchao.quantization.pt2e"
)
_HINTS = {
    **dict.fromkeys(_QUANTIZED, _QUANTIZED_HINT),
    "unhashable type: non-nested SymInt": (
        "a size is the key of a dictionary or set: convert it with int(...), which makes it static"
    ),
}
_CPP_STACK = ("Exception raised from ", "frame #", "<omitting python frames>")


def export_module(
    model: torch.nn.Module,
    inputs: BoundInputs,
    shapes: DynamicShapes,
    log: GuardLog | None = None,
    values: KnownValues | None = None,
) -> ExportedProgram:
    """Run torch.export in non-strict mode, and in strict mode (TorchDynamo) if that fails without asking for a value.

    Args:
        model: The model.
        inputs: The example inputs.
        shapes: The dynamic dims.
        log: Receives the guards on the sizes.
        values: Receives the values of tensors, to answer questions about them; in non-strict mode only.

    Raises:
        CaptureError: If both modes fail, with the message of the first, or if the model specializes a dynamic dim.
    """
    inputs = _without_duplicates(inputs)
    log = GuardLog() if log is None else log
    with recorded_guards(log), canonical_sizes():
        if values is None:
            return _export_with_fallback(model, inputs, shapes, log)
        with known_values(values):
            try:
                return _export_with_refined_dims(model, inputs, shapes, log)
            except CaptureError:
                raise
            except Exception as error:
                raise _capture_error(error) from error


def _export_with_fallback(
    model: torch.nn.Module, inputs: BoundInputs, shapes: DynamicShapes, log: GuardLog
) -> ExportedProgram:
    with recorded_full_masks() as masks:
        try:
            return _export_with_refined_dims(model, inputs, shapes, log)
        except CaptureError:
            raise
        except Exception as error:  # noqa: BLE001 - raised below unless another attempt works
            first = error
        if masks.exist:
            masks.are_skipped = True
            with suppress(Exception):  # the first failure is raised below
                return _export_with_refined_dims(model, inputs, shapes, log)
    if is_question(first):
        # To TorchDynamo, a boolean that depends on data is never identical to True or False: ``bool(x.any()) is True``.
        raise _capture_error(first) from first
    try:
        return _export(model, inputs, shapes, _torch_dim, strict=True)
    except Exception:  # noqa: BLE001 - the first failure is the one that refers to the user's code
        raise _capture_error(first) from first


def _export_with_refined_dims(
    model: torch.nn.Module, inputs: BoundInputs, shapes: DynamicShapes, log: GuardLog
) -> ExportedProgram:
    """Export; if torch suggests smaller ranges for Dims or relations between them, export again with these."""
    transforms = TransformTracing()

    def attempt(dim_of: Callable[[DimSpec], Any]) -> ExportedProgram:
        before = replace(transforms)
        try:
            return _export(model, inputs, shapes, dim_of, strict=False, transforms=transforms)
        except RetryTransforms:
            if transforms == before:
                raise
        log.clear()
        return attempt(dim_of)

    try:
        return attempt(_torch_dim)
    except Exception as error:
        message = str(error)
        specialized = _specialized_dims(message, shapes)
        if specialized:
            raise specialized_dims_error(specialized, log) from error
        refined = _refined_dims(message, shapes)
        if not refined:
            raise
    return attempt(lambda spec: _torch_dim(spec, refined))


def _export(
    model: torch.nn.Module,
    inputs: BoundInputs,
    shapes: DynamicShapes,
    dim_of: Callable[[DimSpec], Any],
    *,
    strict: bool,
    transforms: TransformTracing | None = None,
) -> ExportedProgram:
    tensors = [leaf for leaf in pytree.tree_leaves((inputs.args, inputs.kwargs)) if isinstance(leaf, torch.Tensor)]
    with (
        preserve_model(model, tensors),
        meta_as_cpu(model, inputs) as inputs,
        unpacked_parameters(model),
        capture_patches(strict=strict),
        question_patches(model, (inputs.args, inputs.kwargs), [leaf.label for leaf in shapes.leaves]),
        closed_transforms(transforms or TransformTracing()),
    ):
        model.forward = _tensor_forward(model.forward, inputs, shapes, strict)
        # Oblivious: torch would specialize dynamic dims whose example size is 0 or 1.
        # With symbolic sizes the fake tensor cache only costs: it computes every result twice, to compare the two.
        cached = dynamo_config.fake_tensor_cache_enabled and shapes.is_static
        with (
            shape_config.patch(backed_size_oblivious=True),  # type: ignore[attr-defined]
            # Otherwise the subgraphs of control flow operators would depend on the sizes of earlier calls.
            dynamo_config.patch(fake_tensor_cache_enabled=cached, automatic_dynamic_shapes=False),
        ):
            return torch.export.export(
                model,
                inputs.args,
                inputs.kwargs,
                dynamic_shapes=shapes.for_torch(dim_of),
                strict=strict,
                prefer_deferred_runtime_asserts_over_guards=True,
            )


def _without_duplicates(inputs: BoundInputs) -> BoundInputs:
    """Clone repeated tensors, because torch.export distinguishes inputs by identity."""
    seen: set[int] = set()

    def clone_repeated(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) in seen:
            return copy_of(leaf).requires_grad_(leaf.requires_grad)
        seen.add(id(leaf))
        return leaf

    tensors = [leaf for leaf in pytree.tree_leaves((inputs.args, inputs.kwargs)) if isinstance(leaf, torch.Tensor)]
    if len({id(tensor) for tensor in tensors}) == len(tensors):
        return inputs
    args, kwargs = pytree.tree_map(clone_repeated, (inputs.args, inputs.kwargs))
    return replace(inputs, args=args, kwargs=kwargs)


def _tensor_forward(
    forward: Callable[..., Any], inputs: BoundInputs, shapes: DynamicShapes, strict: bool
) -> Callable[..., Any]:
    """Wrap ``forward`` so that it takes and returns pytrees of tensors in place of objects.

    The wrapper's signature names the keywords of ``**kwargs``; torch.export assigns their specs wrongly otherwise.
    """

    def tensor_forward(*args: Any, **kwargs: Any) -> Any:
        if not strict:
            register_example_integers((args, kwargs), (inputs.args, inputs.kwargs))
            add_equality_guards(shapes.shared, (args, kwargs))
        args, kwargs = restore_frozen(inputs.frozen, args, kwargs)
        args, kwargs = (with_lists if strict else with_pieces)((args, kwargs), inputs.lists)
        if inputs.objects is not None:
            args, kwargs = unflatten_objects(inputs.objects, (args, kwargs))
        outputs = forward(*args, **kwargs)
        check_outputs(outputs)
        # TorchDynamo traces this function, and a model that it traces makes no lists of dynamic length.
        return flatten_objects(outputs) if strict else stacked_results(outputs)

    tensor_forward.__signature__ = inputs.signature  # type: ignore[attr-defined]
    return tensor_forward


def _torch_dim(spec: DimSpec, refined: Mapping[str, Any] | None = None) -> Any:
    """The spec for torch.export: a named dim is ``Dim.DYNAMIC``, since names are assigned after the capture."""
    if isinstance(spec, str):
        return Dim.DYNAMIC
    if not refined or isinstance(spec, DimHint):
        return spec
    root = getattr(spec, "root", None)
    if root is None:
        return refined.get(spec.__name__, spec)
    return spec.fn(refined[root.__name__]) if root.__name__ in refined else spec


def _specialized_dims(message: str, shapes: DynamicShapes) -> list[tuple[Leaf, int | None, int]]:
    """Parse torch's message for dims that were specialized to one size."""
    by_place: dict[tuple[str, int | None], int] = {}
    for size, parameter, path, axis in STATIC_PLACE.findall(message):
        by_place[parameter + path, int(axis) if axis else None] = int(size)
    by_name = {name: int(size) for pattern in STATIC_NAMES for name, size in pattern.findall(message)}
    for name, other in EQUAL_NAMES.findall(message):
        if other in by_name:
            by_name[name] = by_name[other]
    found = []
    for leaf in shapes.leaves:
        for axis, spec in leaf.dims.items():
            # torch 2.15 calls the first item of *args "args_0".
            unpacked = _FIRST_INDEX.sub(r"\1_\2", leaf.label)
            size_of = by_place.get((leaf.label, axis), by_place.get((unpacked, axis)))
            if size_of is None and isinstance(spec, Dim):
                size_of = by_name.get(spec.__name__)
            if size_of is not None:
                found.append((leaf, axis, size_of))
    return found


def _refined_dims(message: str, shapes: DynamicShapes) -> dict[str, Any]:
    """Parse the Dims that torch suggests: with a smaller range, or derived from another Dim."""
    fixes = message.partition("Suggested fixes:")[2]
    dims = {
        root.__name__: root
        for leaf in shapes.leaves
        for spec in leaf.dims.values()
        if isinstance(spec, Dim)
        for root in [getattr(spec, "root", spec)]
    }
    refined: dict[str, Any] = {}
    for name, low, high in NARROWED_NAMES.findall(fixes):
        if name in dims:
            dim = dims[name]
            refined[name] = Dim(name, min=max(int(low or 0), dim.min), max=min(int(high), dim.max) if high else dim.max)
    for name, factor, other, sign, offset in RELATED_NAMES.findall(fixes):
        if name in dims and other in dims and name != other:
            dim = refined.get(other, dims[other])
            dim = int(factor) * dim if factor else dim
            refined[name] = dim + int(sign + offset) if offset else dim
    return refined


def _capture_error(error: Exception) -> CaptureError:
    """The error for a failed export: torch's message without its debugging advice, and the user's line of code."""
    lines: list[str] = []
    for line in str(error).partition("The error above occurred when calling torch.export")[0].splitlines():
        if line.lstrip().startswith("Caused by: (") or line.startswith(
            ("For more ", "For extended logs", "For C++ stack", "If you suspect", *_CPP_STACK)
        ):
            continue
        if line.strip() or (lines and lines[-1].strip()):
            lines.append(line)
    shown = "\n".join(f"  {line}".rstrip() for line in lines[:MESSAGE_LINES]).rstrip()
    location = _user_line(error)
    place = f"\n  at: {location}" if location else ""
    hint = next((hint for marker, hint in _HINTS.items() if marker in shown), None)
    return CaptureError(f"torch.export cannot capture the model: {type(error).__name__}\n{shown}{place}", hint=hint)


def _user_line(error: Exception) -> str:
    """The innermost line of the traceback in the user's code, outside of torch, fxonnx and Python's library."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_user_file(frame.filename):
            return str(source_line_of(frame.filename, frame.lineno or 0, frame.name))
    return ""
