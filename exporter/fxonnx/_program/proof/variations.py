"""Inputs for a proof: the example, and inputs made of it that take other branches and have other sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import Any

import onnx_ir as ir
import torch

from fxonnx_translations._torch_compat import pytree

from ..._capture import Capture
from ..._capture.suspicions.departures import Evidence, numbers_in_conditions, sizes_in_source
from ...errors import ArgumentError
from ..call_binding import BoundCall
from ..verification_inputs import SEED, auto_sizes, may_index_on_gpu, random_like, resize_inputs

__all__ = ["Variation", "changed_inputs", "repeated_inputs", "sequences", "variations", "with_other_values"]

_SIZES = 3
"""Number of further sizes at most, the smallest of those that the constraints allow."""

# torch computes little with other ones.
_DTYPES = frozenset(
    {
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    }
)


@dataclass(frozen=True)
class Variation:
    """Inputs of one run: of one call, or of several calls in a row.

    Attributes:
        labels: A description of the inputs of each call.
        calls: Positional and keyword inputs of each call.
        is_required: Whether they are run even if all branches have been exercised.
        has_other_sizes: Whether they have other sizes than the example.
    """

    labels: tuple[str, ...]
    calls: tuple[tuple[Any, Any], ...]
    is_required: bool
    has_other_sizes: bool = False

    @classmethod
    def of(cls, label: str, args: Any, kwargs: Any, *, is_required: bool) -> Variation:
        """Inputs of one call."""
        return cls((label,), ((args, kwargs),), is_required)

    @property
    def label(self) -> str:
        """The description of all calls."""
        return "; then ".join(self.labels)

    def first(self, calls: int) -> Variation:
        """The first calls."""
        return replace(self, labels=self.labels[:calls], calls=self.calls[:calls])


_FIRST = 4
"""So many changes are made before the counts in conditions: negated values, and counts."""
_MOST_COUNTS = 6
"""Number of counts in conditions at most."""


def variations(capture: Capture, call: BoundCall) -> Iterator[Variation]:
    """Yield the example, then other values of its inputs and other sizes, the most telling ones first."""
    yield Variation.of("example", call.args, call.kwargs, is_required=True)
    has_coverage = all(one.decided_by is Evidence.COVERAGE for one in capture.departures)
    on_gpu = may_index_on_gpu(pytree.tree_leaves((call.args, call.kwargs)))
    labels = _labels(capture)
    for index, label in enumerate(labels):
        if on_gpu and label.startswith(_COUNTS) and label != f"{_COUNTS}0":
            continue
        changed = _with_change(capture, call.args, call.kwargs, label)
        if index == _FIRST + len(labels) - len(_CHANGES):
            # The sizes in the source of a large file would take all runs.
            yield from _sizes(capture, call)
        if changed is not None:
            is_count = label in _CHANGES and label.startswith(_COUNTS)
            yield replace(changed, is_required=index == 0 or not has_coverage or is_count)


def _labels(capture: Capture) -> list[str]:
    """The changes, the most telling ones first: among them counts at both sides of the numbers in conditions."""
    numbers = numbers_in_conditions(capture.departures)
    sides = [*(side for number in numbers for side in (number + 1, number, number - 1, -number - 1)), -1]
    further = [label for label in dict.fromkeys(f"{_COUNTS}{side}" for side in sides) if label not in _CHANGES]
    return [*islice(_CHANGES, _FIRST), *further[:_MOST_COUNTS], *islice(_CHANGES, _FIRST, None)]


def sequences(capture: Capture, call: BoundCall, *, other_sizes: bool = True) -> Iterator[Variation]:
    """Yield calls in a row with other values and sizes, then, for models that fail at those, the example repeatedly."""
    example = Variation.of("example", call.args, call.kwargs, is_required=True)
    changed = [
        one
        for label in ("negated", "with noise")
        if (one := _with_change(capture, call.args, call.kwargs, label)) is not None
    ]
    # Other values first: a state of fixed size may have no room for other sizes.
    parts = [example, *changed, *[example] * (2 - len(changed)), *islice(_sizes(capture, call), 2 * other_sizes)]
    for row in (parts, [example] * 3):
        yield Variation(tuple(one.label for one in row), tuple(one.calls[0] for one in row), True)


def with_other_values(capture: Capture, variation: Variation) -> Iterator[Variation]:
    """Yield inputs of one call, then other values of the same sizes."""
    yield variation
    for label in _labels(capture):
        changed = _with_change(capture, *variation.calls[0], label)
        if changed is not None:
            yield replace(changed, labels=(f"{variation.label}, {label}",))


def _with_change(capture: Capture, args: Any, kwargs: Any, label: str) -> Variation | None:
    """The inputs of a call with a change of their values; None if it changes nothing."""
    leaves, structure = pytree.tree_flatten((args, kwargs))
    fixed, change = capture.inputs.frozen, _change(label)
    changed = [leaf if at in fixed else _changed(change, leaf) for at, leaf in enumerate(leaves)]
    if all(new is old or torch.equal(new, old) for new, old in zip(changed, leaves, strict=True)):
        return None
    return Variation.of(label, *pytree.tree_unflatten(changed, structure), is_required=False)


def _sizes(capture: Capture, call: BoundCall) -> Iterator[Variation]:
    limits = capture.limits
    given = limits.sizes(call.inputs)
    twos = {name: 2 for name in given if name not in limits.shared_names}
    twos |= {name: 2 for name, first in limits.shared_names.items() if first in twos}
    wanted = [sizes for sizes in auto_sizes(limits, call.inputs) if sizes != given]
    is_open = twos != given and twos not in wanted and limits.violated(twos) is None
    if is_open and not may_index_on_gpu(call.inputs):
        wanted.append(twos)
    wanted = sorted(wanted, key=lambda sizes: sum(sizes.values()))[:_SIZES]
    for number in sizes_in_source(capture.departures):
        for name in (name for name in twos if name not in limits.shared_names):
            sizes = given | {name: number}
            sizes |= {other: number for other, first in limits.shared_names.items() if first == name}
            if sizes != given and sizes not in wanted and limits.violated(sizes) is None:
                wanted.append(sizes)
    for sizes in wanted:
        args, kwargs = resize_inputs(capture.exported_program, limits, call, sizes)
        label = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        yield replace(Variation.of(label, args, kwargs, is_required=True), has_other_sizes=True)


def _changed(change: Callable[[torch.Tensor], torch.Tensor], leaf: Any) -> Any:
    return change(leaf) if isinstance(leaf, torch.Tensor) and _can_change(leaf) else leaf


def changed_inputs(label: str, args: Any, kwargs: Any, is_input: Callable[[Any], bool]) -> tuple[Any, Any]:
    """Make inputs with other values."""
    made: tuple[Any, Any] = pytree.tree_map(
        lambda leaf: _changed(_change(label), leaf) if is_input(leaf) else leaf, (args, kwargs)
    )
    return made


def repeated_inputs(label: str, graph: ir.Graph, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    """Make the inputs of a recorded run again, for a saved model.

    Returns:
        Positional and keyword inputs; None if the graph does not tell the sizes of the inputs.

    Raises:
        ArgumentError: If the description is not that of inputs.
    """
    leaves, structure = pytree.tree_flatten((args, kwargs))
    given, _, change = label.rpartition(", ")
    if not _is_change(change):
        given, change = label, ""
    made = leaves
    if given:
        sizes = _sizes_of(given)
        values = [value for value in graph.inputs if value.name not in graph.initializers]
        if len(values) != len(leaves) or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            return None
        generator = torch.Generator().manual_seed(SEED)
        made = [
            random_like(leaf, _shape(value, leaf, sizes), generator) for value, leaf in zip(values, leaves, strict=True)
        ]
    if change:
        made = [_changed(_change(change), leaf) for leaf in made]
    args, kwargs = pytree.tree_unflatten(made, structure)
    return args, kwargs


def _sizes_of(label: str) -> dict[str, int]:
    """The sizes in the description of a run's inputs, "batch = 1, seq = 7".

    Raises:
        ArgumentError: If it describes something else; the metadata of a file may have any content.
    """
    parts = [part.rpartition(" = ") for part in label.split(", ")]
    if not all(size.isascii() and size.isdecimal() and len(size) < 7 for _, _, size in parts):
        raise ArgumentError("model", f"its metadata has a proof at the inputs {label!r}, which are no sizes")
    return {name: int(size) for name, _, size in parts}


def _shape(value: ir.Value, leaf: torch.Tensor, sizes: Mapping[str, int]) -> list[int]:
    dims = [] if value.shape is None else [getattr(dim, "value", dim) for dim in value.shape]
    return [sizes.get(str(dim), size) for dim, size in zip(dims, leaf.shape, strict=True)]


def _can_change(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.layout == torch.strided and tensor.dtype in _DTYPES


def _negated(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype == torch.bool:
        return ~tensor
    return -tensor if _is_real_or_complex(tensor) else tensor


def _reversed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten().flip(0).reshape(tensor.shape)


def _zero(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor) if _is_real_or_complex(tensor) or tensor.dtype == torch.bool else tensor


def _scaled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 10 if _is_real_or_complex(tensor) else tensor


def _positive(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype == torch.bool:
        return torch.ones_like(tensor)
    return tensor.abs() if tensor.is_floating_point() else tensor


def _perturbed(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    generator = torch.Generator().manual_seed(SEED)
    noise = torch.randn(tensor.shape, generator=generator, device="cpu")
    return tensor + noise.to(tensor.dtype).to(tensor.device)


def _count(value: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Set integers that may be counts: other ones are indices, whose range only the model knows."""

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        is_integer = not (_is_real_or_complex(tensor) or tensor.dtype == torch.bool)
        return torch.full_like(tensor, value) if is_integer and tensor.numel() == 1 else tensor

    return changed


def _is_real_or_complex(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


_CHANGES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType(
    {
        "negated": _negated,
        "counts of 0": _count(0),
        "counts of 1": _count(1),
        "counts of 2": _count(2),
        "in reverse order": _reversed,
        "zeros": _zero,
        "multiplied by 10": _scaled,
        "absolute values": _positive,
        "with noise": _perturbed,
    }
)
_COUNTS = "counts of "


def _is_change(label: str) -> bool:
    return label in _CHANGES or re.fullmatch(_COUNTS + "-?[0-9]{1,6}", label) is not None


def _change(label: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The change of a tensor that a label describes."""
    known = _CHANGES.get(label)
    return _count(int(label.removeprefix(_COUNTS))) if known is None else known
