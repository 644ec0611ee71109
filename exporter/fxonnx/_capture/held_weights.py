"""Weights that the model also holds outside of its tables of parameters and buffers, as in a list or a closure.

torch.export replaces the entries of these tables by fake tensors. Other references to a weight still have the real
tensor, which would become a constant, and whose value Python would read unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor
from torch.nn import Module, Parameter

from fxonnx_translations._torch_compat import TorchCall

from .patches import Patch, applied

__all__ = ["held_weights"]

_Tables: TypeAlias = Mapping[int, tuple[Mapping[str, Any], str]]
"""``id`` of a weight to the table that has it, and its name there."""

_PLAIN = (Parameter, Tensor)
# They are about the tensor itself, not about its values.
_IDENTITY = frozenset({"data_ptr", "untyped_storage", "storage"})

_LONGEST_LIST = 1000
"""Lists of tensors are shorter; longer ones are data."""


@contextmanager
def held_weights(model: Module) -> Iterator[None]:
    """Use the fake tensor of a weight also where the model holds the weight itself."""
    patch = Patch(
        "torch._export.non_strict_utils:_NonStrictTorchFunctionHandler._override",
        partial(_override, _weight_tables(model)),
        "torch.export makes a constant of a weight that is not in the tables of its module, and reads its value",
        strict=False,
    )
    with applied((patch,)):
        yield


def _weight_tables(model: Module) -> _Tables:
    """The places of the parameters and buffers of a model."""
    return {
        id(tensor): (table, name)
        for module in model.modules()
        for table in (module._parameters, module._buffers)
        for name, tensor in table.items()
        if type(tensor) in _PLAIN
    }


def _override(
    tables: _Tables,
    original: Callable[..., TorchCall],
    self: Any,
    func: Callable[..., Any],
    args: Any,
    kwargs: Any,
) -> TorchCall:
    """``_NonStrictTorchFunctionHandler._override``: the fake tensors of weights in place of these in the arguments."""

    def current(value: Any) -> Any:
        if type(value) in _PLAIN and (place := tables.get(id(value))) is not None:
            return place[0].get(place[1], value)
        return value

    def all_current(value: Any) -> Any:
        is_list = type(value) in (list, tuple) and len(value) <= _LONGEST_LIST
        return type(value)(map(current, value)) if is_list else current(value)

    if getattr(func, "__name__", "") not in _IDENTITY:
        args = tuple(map(all_current, args))
        kwargs = {name: all_current(value) for name, value in kwargs.items()} if kwargs else kwargs
    return original(self, func, args, kwargs)
