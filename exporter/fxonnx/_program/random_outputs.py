"""Outputs in which runs of the user's model differ from each other, which no program can reproduce."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fxonnx_translations._torch_compat import pytree

from .._capture.suspicions.process_state import process_generators
from .._comparison import REFERENCE_TEXTS, UNSTABLE, OutputComparison, ReferenceName
from .._cost import bytes_of

__all__ = [
    "Rerun",
    "as_runtime_outputs",
    "can_perturb",
    "copied_weights",
    "is_smaller",
    "perturbed",
    "perturbed_weights",
    "reruns_of",
    "without_random_outputs",
]

_RANDOM = "not deterministic: "
_FURTHER_RUNS = 2
"""Number of runs with which a run of the model is compared, to find out whether it is deterministic."""
_RUNS_OF_RANDOM_MODELS = 20
"""Number of further runs of a model of which another output is random."""
_CHANGE = 1e-6
"""The relative change of inputs and weights in a perturbed run."""
# Larger models are not copied to change their weights.
_MOST_BYTES = 2**30


@dataclass(frozen=True)
class Rerun:
    """Another run of the model, which shows whether it determines its outputs.

    Attributes:
        problem: What a difference from the first run means, for messages.
        run: Runs the model again, without a seed of its own, and returns the outputs.
        is_perturbed: Whether it computes with other inputs or weights, so that a small difference says nothing.
    """

    problem: str
    run: Callable[[], Sequence[Any]]
    is_perturbed: bool = False


def without_random_outputs(
    rows: Sequence[OutputComparison],
    expected: Sequence[Any],
    reruns: Sequence[Rerun],
    compare: Callable[[Sequence[Any], Sequence[Any]], Sequence[OutputComparison]],
) -> list[OutputComparison]:
    """Skip the outputs that differ from ONNX Runtime's and in which further runs of the model differ as much.

    Args:
        rows: The comparison with ONNX Runtime.
        expected: The outputs of the model in that comparison.
        reruns: The further runs.
        compare: Compares expected and actual outputs.
    """
    found = list(rows)
    for rerun in reruns:
        _skip_differing(found, expected, rerun, compare)
    is_random = any(row.message.startswith(_RANDOM) for row in found)
    for _ in range(_RUNS_OF_RANDOM_MODELS if is_random else 0):
        # Rounded outputs of a random model, such as lengths, are equal in most runs.
        _skip_differing(found, expected, reruns[0], compare)
    return found


def _skip_differing(
    found: list[OutputComparison],
    expected: Sequence[Any],
    rerun: Rerun,
    compare: Callable[[Sequence[Any], Sequence[Any]], Sequence[OutputComparison]],
) -> None:
    """Skip the rows with a difference that another run explains; without such rows, the model does not run."""
    if all(row.status != "mismatch" for row in found):
        return
    try:
        outputs = rerun.run()
    except Exception:
        if rerun.is_perturbed:  # such as a probability above 1
            return
        raise
    again = compare(expected, as_runtime_outputs(outputs, expected))
    for index, (row, own) in enumerate(zip(found, again, strict=True)):
        if row.status == own.status == "mismatch" and not (rerun.is_perturbed and is_smaller(own, row)):
            message = f"{rerun.problem}: {own.message}"
            found[index] = replace(row, status="skipped", max_abs=None, max_rel=None, message=message)


def is_smaller(own: OutputComparison, row: OutputComparison) -> bool:
    """Whether the model's own difference is too small to explain another one: in value or in number of elements.

    A whole number that changes by more than 1 is an index or a class, of which the size of a difference says nothing.
    """
    are_values = own.max_abs is not None and row.max_abs is not None
    if own.wrong is None or row.wrong is None or (own.max_abs is None) != (row.max_abs is None):
        return True
    is_class = "int" in own.dtype and (own.max_abs or 0.0) > 1
    is_less = are_values and not is_class and (own.max_abs or 0.0) < (row.max_abs or 0.0) / 2
    return own.wrong < row.wrong / 2 or is_less


def reruns_of(
    run: Callable[[Sequence[Any], Mapping[str, Any], Mapping[str, torch.Tensor]], Sequence[Any]],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    weights: Mapping[str, torch.Tensor],
    reference: ReferenceName,
) -> list[Rerun]:
    """The runs that show whether a model is deterministic and stable.

    Scores that are exactly equal, such as those of a detector with random weights, are sorted by their last bits: if
    changes of that size change the outputs as much as ONNX Runtime does, there is nothing to compare with.

    Args:
        run: Runs the model with args, kwargs and replaced weights.
        args: Positional inputs.
        kwargs: Keyword inputs.
        weights: The weights by name, none if they cannot be replaced.
        reference: The reference, for messages.
    """
    text = REFERENCE_TEXTS[reference]

    def again() -> Sequence[Any]:
        for generator in process_generators().values():
            generator.random()  # each run restores their states
        return run(args, kwargs, {})

    reruns = [Rerun(f"{_RANDOM}two runs of {text} differ", again)] * _FURTHER_RUNS
    unstable = f"{UNSTABLE}{text} differs as much from itself after a change of 1e-6 in its"
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if any(map(_is_exact, leaves)):

        def with_inputs() -> Sequence[Any]:
            changed_args, changed_kwargs = pytree.tree_map_only(torch.Tensor, perturbed, (tuple(args), dict(kwargs)))
            return run(changed_args, changed_kwargs, {})

        reruns.append(Rerun(f"{unstable} inputs", with_inputs, is_perturbed=True))
    if can_perturb(weights):

        def with_weights() -> Sequence[Any]:
            return run(args, kwargs, perturbed_weights(weights))

        reruns.append(Rerun(f"{unstable} weights", with_weights, is_perturbed=True))
    return reruns


def can_perturb(weights: Mapping[str, torch.Tensor]) -> bool:
    """Whether weights have a precision of which changes say something, and copies of them fit in memory."""
    return any(map(_is_exact, weights.values())) and bytes_of(weights.values()) <= _MOST_BYTES


def perturbed_weights(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies of weights with changes of 1e-6; names that share a tensor share its copy."""
    return _copied(weights, lambda value: perturbed(value, zeros=True))


def copied_weights(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies of weights; names that share a tensor share its copy."""
    return _copied(weights, torch.Tensor.clone)


def _copied(
    weights: Mapping[str, torch.Tensor], copy: Callable[[torch.Tensor], torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Copies of parameters are parameters, since a model may ask for their class."""
    made: dict[int, torch.Tensor] = {}
    for value in {id(each): each for each in weights.values()}.values():
        made[id(value)] = copy(value.detach())
        if type(value) is torch.nn.Parameter:
            made[id(value)] = torch.nn.Parameter(made[id(value)], value.requires_grad)
    return {name: made[id(value)] for name, value in weights.items()}


def _is_exact(tensor: torch.Tensor) -> bool:
    """Whether changes of 1e-6 are above the precision of a tensor, and far below the tolerances of its dtype."""
    return tensor.dtype in (torch.float32, torch.float64) and tensor.layout is torch.strided


def perturbed(tensor: torch.Tensor, *, zeros: bool = False) -> torch.Tensor:
    """A copy with relative changes of at most 1e-6; half precision and integers are returned unchanged.

    Args:
        tensor: The tensor.
        zeros: Change small elements by 1e-6 of the mean, and zeros of a tensor of zeros by 1e-6. Otherwise elements
            that are whole numbers stay, which may be masks, tokens or counts.
    """
    if not _is_exact(tensor):
        return tensor
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float64, device="cpu") * 2 - 1
    size = tensor.double().abs()
    size = size + (size.mean() or 1.0) if zeros and tensor.numel() else size.where(tensor != tensor.round(), 0.0)
    return tensor + (noise.to(tensor.device) * _CHANGE * size).to(tensor.dtype)


def as_runtime_outputs(values: Sequence[Any], expected: Sequence[Any]) -> list[Any]:
    """Convert outputs of PyTorch to the form in which ONNX Runtime returns them.

    Args:
        values: The outputs.
        expected: The outputs with which they are compared; lists where ONNX Runtime returns lists.
    """
    return [_as_runtime_output(value, other) for value, other in zip(values, expected, strict=True)]


def _as_runtime_output(value: Any, expected: Any) -> Any:
    is_list = isinstance(expected, list | tuple)
    if isinstance(value, list | tuple) or (is_list and isinstance(value, torch.Tensor)):
        items = list(expected) if is_list and len(expected) == len(value) else [None] * len(value)
        return [_as_runtime_output(one, other) for one, other in zip(value, items, strict=True)]
    if not isinstance(value, torch.Tensor):
        dtype = expected.dtype if isinstance(expected, torch.Tensor) and isinstance(value, float) else None
        return torch.tensor(value, dtype=dtype, device="cpu")
    value = value.detach().cpu().resolve_conj().resolve_neg()
    return torch.view_as_real(value) if value.is_complex() else value
