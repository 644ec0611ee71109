"""torch's operator database as export problems: an operator with a sample's tensors as inputs, the rest baked in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

__all__ = ["DTYPES", "Problem", "entries", "problems"]

DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
)


_UP_TO_SIGN = frozenset({"linalg.eigh", "linalg.svd", "pca_lowrank", "svd", "svd_lowrank"})
"""Entries with vectors whose sign is undefined."""

_AMONG_EQUALS = {"argsort": 0, "kthvalue": 1, "median": 0, "mode": 0, "nanmedian": 0, "sort": 0, "topk": 1}
"""Entries whose positions are undefined for equal elements, to the index of ``dim`` among their arguments."""


class Applied(torch.nn.Module):
    """A function of nested arguments as a module of their tensors.

    Args:
        function: The function.
        leaves: Its flattened ``(args, kwargs)``; a tensor there is an input.
        spec: Their pytree spec.
    """

    def __init__(self, function: Callable[..., Any], leaves: Sequence[Any], spec: pytree.TreeSpec) -> None:
        super().__init__()
        self.function = function
        self.fixed = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.spec = spec

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.fixed)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.function(*args, **kwargs)


@dataclass(frozen=True)
class Problem:
    """One sample of an operator.

    Attributes:
        name: Entry, dtype and number of the sample.
        model: The operator as a module.
        inputs: Its tensors.
        key: Equal for samples that differ in sizes only.
        defined: Maps the results to their defined part, if some of them are undefined.
    """

    name: str
    model: Applied
    inputs: tuple[torch.Tensor, ...]
    key: str
    defined: Callable[[Any], Any] | None = None

    def copies(self) -> tuple[torch.Tensor, ...]:
        """The inputs, free to be written to."""
        return tuple(tensor.detach().clone() for tensor in self.inputs)


def entries() -> list[OpInfo]:
    """The entries of the database, in its order."""
    return list(op_db)


def problems(entry: OpInfo, dtype: torch.dtype, limit: int) -> Iterator[Problem]:
    """Return up to ``limit`` samples of an entry that differ in more than their numbers.

    Samples that have no tensor, or tensors that are not strided, are omitted: ONNX has no such inputs. The numbers are
    the same in every process.
    """
    torch.manual_seed(0)
    seen = set()
    count = 0
    for sample in entry.sample_inputs("cpu", dtype, requires_grad=False):
        leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
        tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        if not tensors or any(tensor.layout is not torch.strided or tensor.is_nested for tensor in tensors):
            continue
        written = repr([_description(leaf, sizes=True) for leaf in leaves]), repr(spec)
        if written in seen:
            continue
        seen.add(written)
        name = f"{entry.full_name}-{str(dtype).removeprefix('torch.')}-{count}"
        key = repr([_description(leaf, sizes=False) for leaf in leaves]) + repr(spec)
        defined = sample.output_process_fn_grad if entry.full_name in _UP_TO_SIGN else None
        if entry.full_name in _AMONG_EQUALS:
            defined = partial(_read_at, sample.input, _dim_of(sample, _AMONG_EQUALS[entry.full_name]))
        yield Problem(name, Applied(entry.get_op(), leaves, spec), tensors, key, defined)
        count += 1
        if count == limit:
            return


def _dim_of(sample: SampleInput, place: int) -> int:
    return sample.kwargs.get("dim", sample.args[place] if len(sample.args) > place else -1)


def _read_at(values: torch.Tensor, dim: int, results: Any) -> list[torch.Tensor]:
    """Replace positions by the elements at them."""
    *others, positions = pytree.tree_leaves(results)
    # The median of all elements has no position.
    if values.dim() == 0 or not (others or positions.shape == values.shape):
        return [*others, positions]
    if positions.dim() < values.dim():
        positions = positions.unsqueeze(dim)
    return [*others, values.gather(dim, positions)]


def _description(leaf: Any, *, sizes: bool) -> Any:
    if isinstance(leaf, torch.Tensor):
        return (leaf.dtype, tuple(leaf.shape) if sizes else leaf.dim())
    return leaf
