"""Objects that torch knows no structure of, such as caches: taken apart into tensors, and put together again.

A model captured by torch.export takes and returns containers of tensors. An object of any other class is replaced by a
dict from the path of each of its tensors to the tensor; while the model is captured, ``forward`` is given a copy of the
object with the traced tensors in their places. Nothing is registered with torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from copy import copy
from types import MappingProxyType
from typing import Any

import torch

from fxonnx_translations._torch_compat import pytree

from ..shapes.cache_lengths import for_any_length

__all__ = ["COUNTERS", "assembled", "dismantled", "is_object", "parts_of"]

_LEAVES = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, torch.dtype, torch.device, torch.layout)
_NUMBERS = (bool, int, float, complex, str, bytes, type(None), torch.memory_format)
# Counters of a cache's tokens: they change from call to call as the tensors do.
COUNTERS = frozenset({"cumulative_length", "cumulative_length_int"})
# A number of the configuration that transformers keeps as a tensor.
_CONFIGURATION = frozenset({"_sliding_window_tensor"})
# The layers of caches are numbered as they are in every exported language model: past_key_values.0.key.
_NAMES = MappingProxyType({"layers": "", "keys": "key", "values": "value"})


def is_object(value: Any) -> bool:
    """Whether a value is an object with tensors in it that torch can not take apart."""
    if isinstance(value, (*_LEAVES, *_NUMBERS)) or _is_container(value):
        return False
    if isinstance(value, type | torch.nn.Module) or callable(value):
        return False
    return bool(parts_of(value))


def _is_container(value: Any) -> bool:
    return pytree._get_node_type(value) in pytree.SUPPORTED_NODES


def dismantled(value: Any) -> Any:
    """A pytree in which every object is a dict of its parts; other values are returned as they are."""
    leaves, structure = pytree.tree_flatten(value)
    if not any(map(is_object, leaves)):
        return value
    return pytree.tree_unflatten([parts_of(leaf) if is_object(leaf) else leaf for leaf in leaves], structure)


def assembled(example: Any, parts: Any) -> Any:
    """The inverse of :func:`dismantled`.

    Args:
        example: The value that was taken apart; its objects are copied, not changed.
        parts: What it was taken apart to, with other tensors.
    """
    leaves, structure = pytree.tree_flatten(example)
    if not any(map(is_object, leaves)):
        return parts
    given = structure.flatten_up_to(parts)
    made = [_with(leaf, new) if is_object(leaf) else new for leaf, new in zip(leaves, given, strict=True)]
    return pytree.tree_unflatten(made, structure)


def _with(value: Any, parts: Mapping[str, Any]) -> Any:
    return _Walk(lambda path, _: parts[path]).copy(value)


def parts_of(value: Any) -> dict[str, Any]:
    """Path to tensor or counter, in the order in which the object holds them; what it holds twice is there once."""
    found: dict[str, Any] = {}
    _Walk(lambda path, part: found.setdefault(path, part)).copy(value)
    return found


class _Walk:
    """Copies an object with other parts.

    Args:
        replace: Gives the new part for the path and the old part.
    """

    def __init__(self, replace: Callable[[str, Any], Any]) -> None:
        self._replace = replace
        self._copies: dict[int, Any] = {}

    def copy(self, value: Any, name: str = "", path: str = "") -> Any:
        """The value with its parts replaced, and everything that holds no parts as it is."""
        if isinstance(value, torch.Tensor):
            if name in _CONFIGURATION:
                return value
            if id(value) not in self._copies:
                self._copies[id(value)] = self._replace(path, value)
            return self._copies[id(value)]
        if name in COUNTERS and isinstance(value, int | torch.SymInt):
            return self._replace(path, value)
        if isinstance(value, (*_LEAVES, *_NUMBERS, type, torch.nn.Module)) or callable(value):
            return value
        if id(value) in self._copies:
            return self._copies[id(value)]
        if isinstance(value, list | tuple):
            return self._sequence(value, path)
        if isinstance(value, MutableMapping):
            return self._mapping(value, path)
        if hasattr(value, "__dict__") and type(value).__module__.partition(".")[0] != "torch":
            return self._object(value, path)
        return value

    def _sequence(self, value: list[Any] | tuple[Any, ...], path: str) -> Any:
        names = getattr(value, "_fields", range(len(value)))
        items = [
            self.copy(item, "", f"{path}.{name}" if path else str(name))
            for name, item in zip(names, value, strict=True)
        ]
        if isinstance(value, list):
            made: Any = items
        else:
            made = type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        return self._copies.setdefault(id(value), made)

    def _mapping(self, value: MutableMapping[Any, Any], path: str) -> Any:
        made = copy(value)
        self._copies[id(value)] = made
        for key, item in value.items():
            made[key] = self.copy(item, "", f"{path}.{key}" if path else str(key))
        return made

    def _object(self, value: Any, path: str) -> Any:
        made = object.__new__(type(value))
        self._copies[id(value)] = made
        attributes = vars(value)
        for name, item in attributes.items():
            wanted = _NAMES.get(name, name)
            made.__dict__[name] = self.copy(item, name, f"{path}.{wanted}" if path and wanted else path or wanted)
        for_any_length(made)
        return made
