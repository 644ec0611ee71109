"""Inputs for verification at several sizes of the dynamic dims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind

from fxonnx_translations._builder.sub_byte import PER_BYTE, code_limits
from fxonnx_translations._torch_compat import pytree

from .._capture.constraints.constraint import SizeLimits, shortened
from .._capture.constraints.constraint_solver import Bounds, bounds_of
from ..errors import ArgumentError, did_you_mean
from .call_binding import BoundCall

__all__ = ["SEED", "auto_sizes", "check_sizes", "may_index_on_gpu", "random_like", "resize_inputs"]

PRIMES = (7, 11, 13, 17, 19, 23, 29, 31)
LARGE_SIZE = 17
# Maximal distance of a valid size from the preferred one, and maximal number of combinations tried.
MAX_DISTANCE = 160
MAX_ATTEMPTS = 4000
SEED = 0


def auto_sizes(limits: SizeLimits, inputs: Sequence[Any]) -> list[dict[str, int]]:
    """Choose sizes of all dims within the constraints: the examples', 1, primes and large ones.

    Besides all dims at 1, each dim is 1 alone with the others as in the examples, since some models fail if all are 1.
    With integers on a GPU, no dim is smaller than in the examples: see ``may_index_on_gpu``.

    Args:
        limits: The constraints and the positions of the dynamic dims.
        inputs: The example inputs that are not constants of the program.
    """
    examples = limits.sizes(inputs)
    is_limited = may_index_on_gpu(inputs)
    # The value of an int input may be a count or an index, for which other values may be invalid.
    fixed = {str(place.expression) for place in limits.places if place.axis is None}
    free = [name for name in examples if name not in fixed]
    independent = [name for name in free if name not in limits.shared_names]
    primes = iter(PRIMES * len(independent))
    wanted = [examples, dict.fromkeys(independent, 1)]
    wanted += [{name: 1} for name in independent]
    wanted.append({name: next(size for size in primes if size != examples[name]) for name in independent})
    wanted.append({name: max(2 * examples[name] + 1, LARGE_SIZE) + index for index, name in enumerate(independent)})
    found: list[dict[str, int]] = []
    for sizes in wanted:
        equal = {name: sizes[other] for name, other in limits.shared_names.items() if other in sizes}
        changed = {**examples, **sizes, **equal}
        nearest = _nearest_valid_sizes(limits, examples, changed, set(free) if sizes is not examples else set())
        if nearest is None or nearest in found:
            continue
        if not is_limited or all(nearest[name] >= size for name, size in examples.items()):
            found.append(nearest)
    return found


def may_index_on_gpu(inputs: Iterable[Any]) -> bool:
    """Whether inputs may be indices into tensors on a GPU.

    An index out of range, which is an error on the CPU, ends the use of the GPU by the process.
    """
    return any(
        isinstance(value, torch.Tensor)
        and value.device.type not in ("cpu", "meta")
        and not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
        for value in inputs
    )


def _nearest_valid_sizes(
    limits: SizeLimits, examples: Mapping[str, int], wanted: Mapping[str, int], free: set[str]
) -> dict[str, int] | None:
    """Search for sizes close to the wanted ones that satisfy the constraints; None if there are none within reach."""
    bounds = {name: limits.user_bounds.get(name, Bounds(1)) for name in examples}
    for constraint in limits.constraints:
        limit = bounds_of(constraint.expression)
        if limit is not None and limit[0].name in bounds:
            bounds[limit[0].name] = bounds[limit[0].name].within(limit[1])
    names = list(examples)
    left = MAX_ATTEMPTS

    def search(chosen: dict[str, int]) -> dict[str, int] | None:
        nonlocal left
        if len(chosen) == len(names):
            return chosen
        name = names[len(chosen)]
        for size in _sizes_by_distance(wanted[name], bounds[name]) if name in free else [wanted[name]]:
            left -= 1
            if left < 0:
                return None
            attempt = {**chosen, name: size}
            if limits.violated(attempt, name) is None:
                complete = search(attempt)
                if complete is not None:
                    return complete
        return None

    return search({})


def _sizes_by_distance(wanted: int, bounds: Bounds) -> Iterator[int]:
    """Yield sizes within the bounds in order of their distance from the wanted one."""
    low = max(1, bounds.low or 1)
    high = low + wanted + MAX_DISTANCE if bounds.high is None else bounds.high
    start = min(max(wanted, low), high)
    for distance in range(MAX_DISTANCE):
        if start + distance <= high:
            yield start + distance
        if distance and start - distance >= low:
            yield start - distance


def check_sizes(limits: SizeLimits, sizes: Mapping[str, int]) -> None:
    """Check sizes that the user specified.

    Raises:
        ArgumentError: If a dim is unknown, or the sizes violate a constraint.
    """
    known = {symbol.name for place in limits.places for symbol in place.expression.free_symbols}
    for name, size in sizes.items():
        if name not in known:
            hint = did_you_mean(name, known, f"the dynamic dims are: {', '.join(sorted(known)) or 'none'}")
            raise ArgumentError("sizes", f"unknown dim {name!r}", hint=hint)
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise ArgumentError(
                "sizes", f"the size of {name!r} is {size!r}", hint=f'pass an int of at least 0: sizes=[{{"{name}": 3}}]'
            )
    constraint = limits.violated(sizes)
    if constraint is not None:
        given = ", ".join(f"{name} = {sizes[name]}" for name in constraint.dims)
        at = f"\n  at: {constraint.line}" if constraint.line else ""
        raise ArgumentError("sizes", f"the model was exported for {shortened(constraint.text)}, got {given}{at}")


def resize_inputs(
    exported_program: torch.export.ExportedProgram, limits: SizeLimits, call: BoundCall, sizes: Mapping[str, int]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Create arguments of the given sizes: random with a fixed seed, in the value range of the examples.

    Args:
        exported_program: The captured program, whose signature tells constants from inputs.
        limits: The positions of the dynamic dims.
        call: The example inputs.
        sizes: The size of every dim.
    """
    generator = torch.Generator().manual_seed(SEED)
    shapes = _shapes(limits, call.inputs, sizes)
    inputs = iter(
        random_like(value, shapes[index], generator) if index in shapes else value
        for index, value in enumerate(call.inputs)
    )
    is_constant = [
        isinstance(spec.arg, ConstantArgument)
        for spec in exported_program.graph_signature.input_specs
        if spec.kind in (InputKind.USER_INPUT, InputKind.CUSTOM_OBJ)
    ]
    leaves, structure = pytree.tree_flatten((call.args, call.kwargs))
    made = [leaf if constant else next(inputs) for leaf, constant in zip(leaves, is_constant, strict=True)]
    args, kwargs = pytree.tree_unflatten(made, structure)
    return args, kwargs


def _shapes(limits: SizeLimits, inputs: Sequence[Any], sizes: Mapping[str, int]) -> dict[int, list[int] | int]:
    """Map the index of each input with a dynamic dim to its new shape, or of each int input to its new value."""
    shapes: dict[int, list[int] | int] = {}
    # Dims named by the user come last, so that specified sizes take precedence over derived ones.
    for place in limits.places:
        symbols = place.expression.free_symbols
        if not all(symbol.name in sizes for symbol in symbols):
            continue
        size = int(place.expression.xreplace({symbol: sizes[symbol.name] for symbol in symbols}))
        if place.axis is None:
            shapes[place.input] = size
            continue
        shape = shapes.setdefault(place.input, list(inputs[place.input].shape))
        if isinstance(shape, list):
            shape[place.axis] = size
    return shapes


def random_like(example: Any, shape: list[int] | int, generator: torch.Generator) -> Any:
    """Create a random tensor of the given shape in the value range of the example; an int is its own new value."""
    if not isinstance(example, torch.Tensor) or isinstance(shape, int):
        return shape
    if list(example.shape) == shape:
        return example
    values = example.detach().cpu()
    if values.dtype in PER_BYTE:
        least, most = code_limits(values.dtype)
        codes = torch.randint(least, most + 1, shape, generator=generator, device="cpu")
        return codes.to(torch.uint8).view(values.dtype).to(example.device)
    if values.is_complex():
        parts = [random_like(part, shape, generator) for part in (values.real, values.imag)]
        return torch.complex(*parts).to(example.device)
    if values.dtype == torch.bool:
        share = values.double().mean().item() if values.numel() else 0.5
        made = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu") < share
    elif values.is_floating_point():
        low, high = _value_range(values.double())
        # If all values are equal, only the lower end of the range is known.
        high = high if high > low else low + 1
        made = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu") * (high - low) + low
    else:
        whole = values.to(torch.int64)
        low, high = (int(whole.min()), int(whole.max())) if whole.numel() else (0, 0)
        made = torch.randint(low, high + 1, shape, generator=generator, device="cpu")
    return made.to(example.dtype).to(example.device)


def _value_range(values: torch.Tensor) -> tuple[float, float]:
    finite = values[values.isfinite()]
    return (finite.min().item(), finite.max().item()) if finite.numel() else (0.0, 1.0)
