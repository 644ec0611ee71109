"""Numbers in attributes that forward changes (``self.step += 1``) as buffers, which become inputs and outputs."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fxonnx_translations._torch_compat import get_proxy_mode

from ..errors import StateError
from .suspicions.attribute_changes import AttributeChange

__all__ = ["with_number_states"]

_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64}
_KINDS: tuple[tuple[type, tuple[type, ...]], ...] = (
    (bool, (bool, torch.SymBool)),
    (int, (int, torch.SymInt)),
    (float, (float, torch.SymFloat)),
)


@dataclass(frozen=True)
class _Number:
    """A number in an attribute of a module.

    Attributes:
        path: The attribute, with the path of its module.
        owner: The module.
        name: The attribute.
        value: The number at the export.
        line: The change, with its line, as text.
    """

    path: str
    owner: torch.nn.Module
    name: str
    value: float
    line: str

    @property
    def kind(self) -> type:
        """The type of the number."""
        return type(self.value)

    def load(self) -> Any:
        """Replace the buffer by the number in it, and return this."""
        number = self.owner._buffers.pop(self.name).item()  # type: ignore[union-attr]
        vars(self.owner)[self.name] = number
        return number

    def store(self, before: Any) -> None:
        """Replace the number by a buffer that holds it.

        Raises:
            StateError: If it is a number of another type.
        """
        number: Any = vars(self.owner).pop(self.name, None)
        if number is before and get_proxy_mode() is not None:
            raise _refusal(f"{self.line}, by a function that refers to another copy of the model")
        kind = _kind_of(number) or type(number)
        if kind is not self.kind:
            raise _refusal(f"{self.line}, of type {kind.__name__} instead of {self.kind.__name__}")
        self.owner._buffers[self.name] = torch.scalar_tensor(number, dtype=_DTYPES[self.kind])


def with_number_states(model: Any, changes: Sequence[AttributeChange]) -> torch.nn.Module:
    """A copy of a model, with the same weights, that holds numbers in buffers between the calls of forward.

    Args:
        model: The model, which does not change.
        changes: The attributes that forward changes and reads.

    Raises:
        StateError: If one of them is not a number in an attribute of a module; names its line.
    """
    if not isinstance(model, torch.nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise _refusal("\n  ".join(map(str, changes)))
    tensors = [*model.parameters(), *model.buffers()]
    try:
        copied = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    except (TypeError, RuntimeError, AttributeError, ValueError) as error:
        raise _refusal("\n  ".join(map(str, changes)), f"the model cannot be copied: {error}") from error
    numbers = [_number(copied, change) for change in changes if not change.is_random]
    for number in numbers:
        del vars(number.owner)[number.name]
        number.owner._buffers[number.name] = torch.tensor(number.value, dtype=_DTYPES[number.kind])
    forward = copied.forward

    @functools.wraps(forward)
    def with_numbers(*args: Any, **kwargs: Any) -> Any:
        tensors = [(number, number.owner._buffers[number.name]) for number in numbers]
        before = [number.load() for number in numbers]
        try:
            outputs = forward(*args, **kwargs)
            for number, value in zip(numbers, before, strict=True):
                number.store(value)
        finally:
            for number, tensor in tensors:
                if number.owner._buffers.setdefault(number.name, tensor) is tensor:
                    vars(number.owner).pop(number.name, None)
        return outputs

    copied.forward = with_numbers
    return copied


def _number(model: torch.nn.Module, change: AttributeChange) -> _Number:
    """The number that an attribute of a model holds.

    Raises:
        StateError: If it holds none.
    """
    path, _, name = change.path.rpartition(".")
    owner = dict(model.named_modules()).get(path)
    value = None if owner is None else vars(owner).get(name)
    if owner is None or type(value) not in _DTYPES:
        raise _refusal(str(change))
    return _Number(change.path, owner, name, value, str(change))  # type: ignore[arg-type]


def _kind_of(number: Any) -> type | None:
    """The type of a number, also of a symbolic one."""
    return next((kind for kind, types in _KINDS if isinstance(number, types)), None)


def _refusal(text: str, reason: str = "") -> StateError:
    return StateError(
        'forward changes Python attributes that later calls read, and with state="io" only numbers (int, float, bool) '
        f"in attributes of modules become inputs and outputs:\n  {text}" + (f"\n  {reason}" if reason else ""),
        hint="hold the value in a buffer: self.register_buffer(name, torch.tensor(value)), or pass it as an input",
    )
