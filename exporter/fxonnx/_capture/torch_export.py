"""The call of torch.export, and what its failures mean to the user."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from fxonnx_translations._torch_compat import dynamo_config, pytree, shape_config

from ..errors import CaptureError
from .constraints.fixed_dims import fixed_dims_error
from .constraints.guard_recorder import GuardLog, is_users, recorded_guards, source_line_of
from .constraints.size_forms import canonical_sizes
from .inputs.example_inputs import Inputs
from .inputs.loop_bounds import note_examples
from .inputs.meta_device import on_the_cpu
from .inputs.preserve import preserved
from .inputs.pytree_objects import assembled, dismantled
from .patches import NestedTransform, capture_patches, closed_transforms
from .shapes.dynamic_shapes import DimHint, DimSpec, Leaf, Shapes
from .shapes.shared_dim_names import unify

__all__ = ["export_module"]

MESSAGE_LINES = 8

# What torch 2.13 says of a dim hint and of a Dim when tracing finds one size only.
STATIC_PLACE = re.compile(r"static shape of (\d+) for dimension inputs\['(\w+)'\](.*?)(?:\.shape\[(\d+)\])?\.?$", re.M)
STATIC_NAMES = (
    re.compile(r"^\s+(\w+) = (\d+)$", re.M),
    re.compile(r"marked (\w+) as dynamic but your code specialized it to be a constant \((\d+)\)"),
)
EQUAL_NAMES = re.compile(r"^\s+(\w+) = ([A-Za-z_]\w*)$", re.M)
NARROWED_NAMES = re.compile(r"^\s+(\w+) = Dim\('\w+'(?:, min=(\d+))?(?:, max=(\d+))?\)", re.M)
RELATED_NAMES = re.compile(r"^\s+(\w+) = (?:(\d+)\*)?([A-Za-z_]\w*)(?: ([+-]) (\d+))?$", re.M)


_CPP_STACK = ("Exception raised from ", "frame #", "<omitting python frames>")


def export_module(
    model: torch.nn.Module, inputs: Inputs, shapes: Shapes, log: GuardLog | None = None
) -> ExportedProgram:
    """Exports without Python tracing of the byte code first, and with it (``strict``) if that fails.

    Args:
        model: The model.
        inputs: The example inputs.
        shapes: Which dims are to be dynamic.
        log: Gets what torch assumes about the sizes.

    Raises:
        CaptureError: If both fail, with the message of the first, or if the model fixes a dim that is dynamic.
    """
    inputs = _distinct(inputs)
    log = GuardLog() if log is None else log
    with recorded_guards(log), canonical_sizes():
        return _export_somehow(model, inputs, shapes, log)


def _export_somehow(model: torch.nn.Module, inputs: Inputs, shapes: Shapes, log: GuardLog) -> ExportedProgram:
    try:
        return _export_refined(model, inputs, shapes, log)
    except CaptureError:
        raise
    except Exception as error:  # noqa: BLE001 - raised below unless the second way works
        first = error
    try:
        return _export(model, inputs, shapes, _dim, strict=True)
    except Exception:  # noqa: BLE001 - the first failure is the one that speaks of the user's code
        raise _failure(first) from first


def _export_refined(model: torch.nn.Module, inputs: Inputs, shapes: Shapes, log: GuardLog) -> ExportedProgram:
    """Exports; if torch finds that Dims have smaller ranges or follow from each other, exports with that."""
    whole_vmaps = False
    try:
        try:
            return _export(model, inputs, shapes, _dim, strict=False)
        except NestedTransform:
            whole_vmaps = True
            return _export(model, inputs, shapes, _dim, strict=False, whole_vmaps=True)
    except Exception as error:
        message = str(error)
        fixed = _fixed_dims(message, shapes)
        if fixed:
            raise fixed_dims_error(fixed, log) from error
        refined = _refined_dims(message, shapes)
        if not refined:
            raise
    return _export(model, inputs, shapes, lambda spec: _dim(spec, refined), strict=False, whole_vmaps=whole_vmaps)


def _export(
    model: torch.nn.Module,
    inputs: Inputs,
    shapes: Shapes,
    dim_of: Callable[[DimSpec], Any],
    *,
    strict: bool,
    whole_vmaps: bool = False,
) -> ExportedProgram:
    tensors = [leaf for leaf in pytree.tree_leaves((inputs.args, inputs.kwargs)) if isinstance(leaf, torch.Tensor)]
    with (
        preserved(model, tensors),
        on_the_cpu(model, inputs) as inputs,
        capture_patches(strict=strict),
        closed_transforms(whole_vmaps=whole_vmaps),
    ):
        model.forward = _of_tensors(model.forward, inputs, shapes, strict)
        # Oblivious: an example size of 0 or 1 says nothing about a dynamic dim.
        # The cache of fake tensors makes every result with symbolic sizes twice, in order to compare the two.
        cached = dynamo_config.fake_tensor_cache_enabled and shapes.is_static
        with (
            shape_config.patch(backed_size_oblivious=True),  # type: ignore[attr-defined]
            dynamo_config.patch(fake_tensor_cache_enabled=cached),
        ):
            return torch.export.export(
                model,
                inputs.args,
                inputs.kwargs,
                dynamic_shapes=shapes.for_torch(dim_of),
                strict=strict,
                prefer_deferred_runtime_asserts_over_guards=True,
            )


def _distinct(inputs: Inputs) -> Inputs:
    """Copies a tensor that is given twice: torch.export tells inputs apart by identity."""
    seen: set[int] = set()

    def once(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) in seen:
            return leaf.detach().clone().requires_grad_(leaf.requires_grad)
        seen.add(id(leaf))
        return leaf

    tensors = [leaf for leaf in pytree.tree_leaves((inputs.args, inputs.kwargs)) if isinstance(leaf, torch.Tensor)]
    if len({id(tensor) for tensor in tensors}) == len(tensors):
        return inputs
    args, kwargs = pytree.tree_map(once, (inputs.args, inputs.kwargs))
    return replace(inputs, args=args, kwargs=kwargs)


def _of_tensors(forward: Callable[..., Any], inputs: Inputs, shapes: Shapes, strict: bool) -> Callable[..., Any]:
    """``forward`` as a function of containers of tensors, for the objects that it takes and returns.

    Its signature has the names of its ``**kwargs``; torch.export mixes the two up otherwise.
    """

    def forward_of_tensors(*args: Any, **kwargs: Any) -> Any:
        if not strict:
            note_examples((args, kwargs), (inputs.args, inputs.kwargs))
            unify(shapes.shared, (args, kwargs))
        if inputs.objects is not None:
            args, kwargs = assembled(inputs.objects, (args, kwargs))
        return dismantled(forward(*args, **kwargs))

    forward_of_tensors.__signature__ = inputs.signature  # type: ignore[attr-defined]
    return forward_of_tensors


def _dim(spec: DimSpec, refined: Mapping[str, Any] | None = None) -> Any:
    """What to tell torch: names are put on afterwards."""
    if isinstance(spec, str):
        return Dim.DYNAMIC
    if not refined or isinstance(spec, DimHint):
        return spec
    root = getattr(spec, "root", None)
    if root is None:
        return refined.get(spec.__name__, spec)
    return spec.fn(refined[root.__name__]) if root.__name__ in refined else spec


def _fixed_dims(message: str, shapes: Shapes) -> list[tuple[Leaf, int | None, int]]:
    """Dims of which torch says that there is one size only."""
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
            size_of = by_place.get((leaf.label, axis))
            if size_of is None and isinstance(spec, Dim):
                size_of = by_name.get(spec.__name__)
            if size_of is not None:
                found.append((leaf, axis, size_of))
    return found


def _refined_dims(message: str, shapes: Shapes) -> dict[str, Any]:
    """The Dims that torch suggests instead of the user's: with a smaller range, or following from another one."""
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


def _failure(error: Exception) -> CaptureError:
    """torch's message, without its advice on torch's own switches, and where in the user's code it happened."""
    lines: list[str] = []
    for line in str(error).partition("The error above occurred when calling torch.export")[0].splitlines():
        if line.startswith(
            ("For more ", "For extended logs", "For C++ stack", "If you suspect", "  Caused by: (_export", *_CPP_STACK)
        ):
            continue
        if line.strip() or (lines and lines[-1].strip()):
            lines.append(line)
    shown = "\n".join(f"  {line}".rstrip() for line in lines[:MESSAGE_LINES]).rstrip()
    location = _user_line(error)
    place = f"\n  at: {location}" if location else ""
    return CaptureError(f"torch.export can not capture the model: {type(error).__name__}\n{shown}{place}")


def _user_line(error: Exception) -> str:
    """The innermost line of code that is neither torch's, nor ours, nor Python's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_users(frame.filename):
            return str(source_line_of(frame.filename, frame.lineno or 0, frame.name))
    return ""
