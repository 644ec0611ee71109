"""Other sizes to try a program at, and inputs of these sizes made from the examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind

from fxonnx_translations._torch_compat import pytree

from .._capture.constraints.constraint import Limits
from .._capture.constraints.constraint_solver import Bounds, bounds_of
from ..errors import ArgumentError
from .call_binding import Call

__all__ = ["auto_sizes", "check_sizes", "resized"]

PRIMES = (7, 11, 13, 17, 19, 23, 29, 31)
LARGE = 17
# How far from a wanted size another one is looked for, and how many combinations are tried.
REACH = 160
ATTEMPTS = 4000
SEED = 0


def auto_sizes(limits: Limits, inputs: Sequence[Any]) -> list[dict[str, int]]:
    """Sizes of all dims within the constraints: 1, those of the examples, primes, and large ones.

    Every dim is 1 once while the others are as in the examples; some models work for no size but that at once.

    Args:
        limits: The constraints and where the dims are.
        inputs: The example inputs that are not built into the program.
    """
    examples = limits.sizes(inputs)
    # The value of an int says how often or how far, and any other may be out of question.
    fixed = {str(place.expression) for place in limits.places if place.axis is None}
    free = [name for name in examples if name not in fixed]
    leading = [name for name in free if name not in limits.twins]
    primes = iter(PRIMES * len(leading))
    wanted = [examples, dict.fromkeys(leading, 1)]
    wanted += [{name: 1} for name in leading]
    wanted.append({name: next(size for size in primes if size != examples[name]) for name in leading})
    wanted.append({name: max(2 * examples[name] + 1, LARGE) + index for index, name in enumerate(leading)})
    found: list[dict[str, int]] = []
    for sizes in wanted:
        twins = {name: sizes[other] for name, other in limits.twins.items() if other in sizes}
        changed = {**examples, **sizes, **twins}
        nearest = _nearest(limits, examples, changed, set(free) if sizes is not examples else set())
        if nearest is not None and nearest not in found:
            found.append(nearest)
    return found


def _nearest(
    limits: Limits, examples: Mapping[str, int], wanted: Mapping[str, int], free: set[str]
) -> dict[str, int] | None:
    """Sizes close to those wanted that satisfy the constraints."""
    bounds = {name: limits.asked.get(name, Bounds(1)) for name in examples}
    for constraint in limits.constraints:
        limit = bounds_of(constraint.expression)
        if limit is not None and limit[0].name in bounds:
            bounds[limit[0].name] = bounds[limit[0].name].within(limit[1])
    names = list(examples)
    left = ATTEMPTS

    def search(chosen: dict[str, int]) -> dict[str, int] | None:
        nonlocal left
        if len(chosen) == len(names):
            return chosen
        name = names[len(chosen)]
        for size in _around(wanted[name], bounds[name]) if name in free else [wanted[name]]:
            left -= 1
            if left < 0:
                return None
            attempt = {**chosen, name: size}
            if limits.violated(attempt) is None:
                complete = search(attempt)
                if complete is not None:
                    return complete
        return None

    return search({})


def _around(wanted: int, bounds: Bounds) -> Iterator[int]:
    """Sizes within the bounds, the closest to the wanted one first."""
    low = max(1, bounds.low or 1)
    high = low + wanted + REACH if bounds.high is None else bounds.high
    start = min(max(wanted, low), high)
    for distance in range(REACH):
        if start + distance <= high:
            yield start + distance
        if distance and start - distance >= low:
            yield start - distance


def check_sizes(limits: Limits, sizes: Mapping[str, int]) -> None:
    """Checks sizes that the user gave.

    Raises:
        ArgumentError: If there is no such dim, or they do not satisfy the constraints.
    """
    known = {symbol.name for place in limits.places for symbol in place.expression.free_symbols}
    for name, size in sizes.items():
        if name not in known:
            raise ArgumentError(
                "sizes", f"there is no dim {name!r}", hint=f"the dynamic dims are: {', '.join(sorted(known)) or 'none'}"
            )
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise ArgumentError("sizes", f"the size of {name!r} is {size!r}", hint="pass ints")
    constraint = limits.violated(sizes)
    if constraint is not None:
        given = ", ".join(f"{name} = {sizes[name]}" for name in constraint.dims)
        at = f"\n  at: {constraint.line}" if constraint.line else ""
        raise ArgumentError("sizes", f"the model was exported for {constraint.text}, got {given}{at}")


def resized(
    exported_program: torch.export.ExportedProgram, limits: Limits, call: Call, sizes: Mapping[str, int]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of the given sizes: random, with a fixed seed, in the range of the examples' values.

    Args:
        exported_program: The program, which knows what is built in.
        limits: Where the dims are.
        call: The example inputs.
        sizes: Every dim's size.
    """
    generator = torch.Generator().manual_seed(SEED)
    shapes = _shapes(limits, call.inputs, sizes)
    inputs = iter(
        _like(value, shapes[index], generator) if index in shapes else value for index, value in enumerate(call.inputs)
    )
    built_in = [
        isinstance(spec.arg, ConstantArgument)
        for spec in exported_program.graph_signature.input_specs
        if spec.kind in (InputKind.USER_INPUT, InputKind.CUSTOM_OBJ)
    ]
    leaves, structure = pytree.tree_flatten((call.args, call.kwargs))
    made = [leaf if constant else next(inputs) for leaf, constant in zip(leaves, built_in, strict=True)]
    args, kwargs = pytree.tree_unflatten(made, structure)
    return args, kwargs


def _shapes(limits: Limits, inputs: Sequence[Any], sizes: Mapping[str, int]) -> dict[int, list[int] | int]:
    """The new shape, or the new value of an int, of every input that has a dynamic dim."""
    shapes: dict[int, list[int] | int] = {}
    # A name of the user's own comes last, so that sizes it is given win over those that follow from others.
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


def _like(example: Any, shape: list[int] | int, generator: torch.Generator) -> Any:
    """A tensor, or a number, as the example, but of another size."""
    if not isinstance(example, torch.Tensor) or isinstance(shape, int):
        return shape
    if list(example.shape) == shape:
        return example
    values = example.detach().cpu()
    if values.is_complex():
        parts = [_like(part, shape, generator) for part in (values.real, values.imag)]
        return torch.complex(*parts).to(example.device)
    if values.dtype == torch.bool:
        share = values.double().mean().item() if values.numel() else 0.5
        made = torch.rand(shape, generator=generator, dtype=torch.float64) < share
    elif values.is_floating_point():
        low, high = _range(values.double())
        # One value everywhere says nothing about the range but for its lower end.
        high = high if high > low else low + 1
        made = torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
    else:
        whole = values.to(torch.int64)
        low, high = (int(whole.min()), int(whole.max())) if whole.numel() else (0, 0)
        made = torch.randint(low, high + 1, shape, generator=generator)
    return made.to(example.dtype).to(example.device)


def _range(values: torch.Tensor) -> tuple[float, float]:
    finite = values[values.isfinite()]
    return (finite.min().item(), finite.max().item()) if finite.numel() else (0.0, 1.0)
