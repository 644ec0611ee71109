"""States as torch.export sees them: with symbolic sizes where they grow, and in buffers instead of plain attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

from fxonnx_translations._torch_compat import ConstantSource

from .patches.patch import Patch, applied

__all__ = ["UnknownStates", "growing_dims", "held_in_buffers"]


@dataclass(frozen=True)
class UnknownStates:
    """Tensors of a model that become inputs, whose values at the export are not known to the capture.

    Attributes:
        names: FQNs of the parameters and buffers.
        axes: FQN to the axes whose sizes differ between calls.
        branches_on_sizes: Whether the program has the branches of conditions on these sizes, as of values of tensors.
    """

    names: frozenset[str] = frozenset()
    axes: Mapping[str, frozenset[int]] = field(default_factory=dict)
    branches_on_sizes: bool = False


@contextmanager
def held_in_buffers(model: torch.nn.Module, states: UnknownStates) -> Iterator[None]:
    """Context in which states that are plain attributes are buffers: torch.export knows the values of the attributes.

    Args:
        model: The model, which changes inside the context.
        states: The states.
    """
    moved: list[tuple[torch.nn.Module, str, torch.Tensor, bool]] = []
    try:
        for path in sorted(states.names):
            prefix, _, name = path.rpartition(".")
            owner = attrgetter(prefix)(model) if prefix else model
            if isinstance(owner, torch.nn.Module) and isinstance(vars(owner).get(name), torch.Tensor):
                moved.append((owner, name, vars(owner)[name], name in owner._non_persistent_buffers_set))
                owner._buffers[name] = vars(owner).pop(name)
                owner._non_persistent_buffers_set.add(name)
        yield
    finally:
        for owner, name, tensor, was_marked in moved:
            owner._buffers.pop(name, None)
            if not was_marked:
                owner._non_persistent_buffers_set.discard(name)
            vars(owner)[name] = tensor


def growing_dims(model: torch.nn.Module, states: UnknownStates) -> AbstractContextManager[None]:
    """Context in which torch.export gives symbols to the growing axes of buffers.

    Args:
        model: The model.
        states: The buffers.
    """
    if not states.axes:
        return nullcontext()
    axes = {id(attrgetter(name)(model)): (name, found) for name, found in states.axes.items()}
    # torch has no value for an unbacked size, and hence no guard on it.
    kind = DimDynamic.UNBACKED if states.branches_on_sizes else DimDynamic.DYNAMIC
    return applied(
        [
            Patch(
                "torch._subclasses.fake_tensor:FakeTensorConverter.from_real_tensor",
                partial(_with_dynamic_axes, axes, kind),
                "the sizes of buffers are constants of the program",
                needs=(ConstantSource,),
            ),
            Patch(
                "torch.fx.experimental.symbolic_shapes:DimConstraints.solve",
                _with_names_of_all_sizes,
                "it raises an IndexError for conditions on sizes that are not those of inputs",
                needs=(ConstantSource,),
            ),
        ]
    )


def _with_names_of_all_sizes(original: Callable[[Any], None], constraints: Any) -> None:
    """``DimConstraints.solve`` with a name for each symbol; the conditions on states are checked after the capture."""
    names = constraints._dcp.symbol_to_source
    conditions = [
        *constraints._multivariate_inequalities,
        *constraints._univariate_inequalities,
        *constraints._congruences,
    ]
    for symbol in {symbol for condition in conditions for symbol in condition.free_symbols}:
        names[symbol] = names.get(symbol) or [ConstantSource(str(symbol))]
    original(constraints)


def _with_dynamic_axes(
    axes: Mapping[int, tuple[str, frozenset[int]]],
    kind: DimDynamic,
    original: Callable[..., Any],
    converter: Any,
    mode: Any,
    tensor: torch.Tensor,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """``FakeTensorConverter.from_real_tensor`` with symbols for the sizes of growing axes."""
    found = axes.get(id(tensor))
    if found is None or mode.shape_env is None:
        return original(converter, mode, tensor, *args, **kwargs)
    name, dynamic = found
    kinds = [kind if axis in dynamic else DimDynamic.STATIC for axis in range(tensor.dim())]
    context: Any = StatelessSymbolicContext(dynamic_sizes=kinds)
    source = ConstantSource(name)
    with mode.shape_env.ignore_fresh_unbacked_symbols():
        return original(converter, mode, tensor, shape_env=mode.shape_env, source=source, symbolic_context=context)
