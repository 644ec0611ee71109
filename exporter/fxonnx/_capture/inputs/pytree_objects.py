"""Flatten and unflatten objects that are not, or not completely, registered as pytree nodes, such as caches.

A model captured by torch.export takes and returns pytrees of tensors. An object of any other class is flattened to a
dict from path to tensor; during the capture, ``forward`` receives a copy of the object with the traced tensors. Nothing
is registered with torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from copy import copy
from types import MappingProxyType, ModuleType
from typing import Any

import torch

from fxonnx_translations._torch_compat import pytree, sym_min

__all__ = [
    "COUNTERS",
    "flatten_objects",
    "is_cache",
    "is_object",
    "object_parts",
    "slot_names",
    "unflatten_objects",
]

_TENSOR_TYPES = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, torch.dtype, torch.device, torch.layout)
_CONSTANT_TYPES = (bool, int, float, complex, str, bytes, type(None), torch.memory_format)
# Token counters of a cache, which change from call to call as its tensors do.
COUNTERS = frozenset({"cumulative_length", "cumulative_length_int"})
# A configuration constant that transformers stores as a tensor.
_CONFIGURATION_TENSORS = frozenset({"_sliding_window_tensor"})
# Attribute names to path steps, as in other exported language models: past_key_values.0.key.
_PATH_NAMES = MappingProxyType({"layers": "", "keys": "key", "values": "value"})


def is_object(value: Any) -> bool:
    """Whether a value is an object that holds tensors and is not a pytree node, or a cache of transformers.

    transformers has two ways to register its caches as pytree nodes, with other names and orders of the tensors, and
    one of them loses the token counters of a sliding window. Here a cache has the same parts with and without them.
    """
    if isinstance(value, (*_TENSOR_TYPES, *_CONSTANT_TYPES)):
        return False
    if _is_pytree_node(value):
        # TorchDynamo traces this for outputs, and does not know the bases of a class.
        is_container = isinstance(value, Mapping | list | tuple | set | frozenset) or not hasattr(value, "__dict__")
        return not is_container and is_cache(type(value)) and bool(object_parts(value))
    if isinstance(value, type | ModuleType | torch.nn.Module) or callable(value):
        return False
    return bool(object_parts(value))


def _is_pytree_node(value: Any) -> bool:
    return pytree._get_node_type(value) in pytree.SUPPORTED_NODES


def is_cache(kind: type) -> bool:
    """Whether a class is a cache of transformers, or one derived from it."""
    return any(
        base.__name__.endswith("Cache") and base.__module__.partition(".")[0] == "transformers" for base in kind.__mro__
    )


def flatten_objects(value: Any) -> Any:
    """Replace every object in a pytree by the dict of its parts; return the value itself if there is none."""
    leaves, structure = pytree.tree_flatten(value, is_leaf=is_object)
    if not any(map(is_object, leaves)):
        return value
    return pytree.tree_unflatten([object_parts(leaf) if is_object(leaf) else leaf for leaf in leaves], structure)


def unflatten_objects(example: Any, parts: Any) -> Any:
    """Rebuild objects from their parts, the inverse of :func:`flatten_objects`."""
    leaves, structure = pytree.tree_flatten(example, is_leaf=is_object)
    if not any(map(is_object, leaves)):
        return parts
    given = structure.flatten_up_to(parts)
    made = [_with_parts(leaf, new) if is_object(leaf) else new for leaf, new in zip(leaves, given, strict=True)]
    return pytree.tree_unflatten(made, structure)


def _with_parts(value: Any, parts: Mapping[str, Any]) -> Any:
    return _ObjectCopier(lambda path, _: parts[path]).copy(value)


def object_parts(value: Any) -> dict[str, Any]:
    """Path to tensor or counter, in the order of the object's attributes; a shared tensor has its first path only."""
    found: dict[str, Any] = {}
    _ObjectCopier(lambda path, part: found.setdefault(path, part)).copy(value)
    return found


class _ObjectCopier:
    """Copier of objects that replaces their parts."""

    def __init__(self, replace: Callable[[str, Any], Any]) -> None:
        self._replace = replace
        self._copies: dict[int, Any] = {}

    def copy(self, value: Any, name: str = "", path: str = "") -> Any:
        """Copy a value with its parts replaced; values without parts are not copied."""
        if isinstance(value, torch.Tensor):
            if name in _CONFIGURATION_TENSORS:
                return value
            if id(value) not in self._copies:
                self._copies[id(value)] = self._replace(path, value)
            return self._copies[id(value)]
        if name in COUNTERS and isinstance(value, int | torch.SymInt):
            return self._replace(path, value)
        if isinstance(value, (*_TENSOR_TYPES, *_CONSTANT_TYPES, type, ModuleType, torch.nn.Module)) or callable(value):
            return value
        if id(value) in self._copies:
            return self._copies[id(value)]
        if isinstance(value, list | tuple):
            return self._sequence(value, path)
        if isinstance(value, MutableMapping):
            return self._mapping(value, path)
        library = type(value).__module__.partition(".")[0]
        has_slots = library not in sys.stdlib_module_names and slot_names(type(value))
        if library != "torch" and (hasattr(value, "__dict__") or has_slots):
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
        kind: Any = type(value)
        try:
            made = object.__new__(kind)
        except TypeError:  # SimpleNamespace and other classes of C have a constructor of their own
            made = kind.__new__(kind)
        self._copies[id(value)] = made
        attributes = getattr(made, "__dict__", {})
        for name, item in _attributes(value):
            wanted = _PATH_NAMES.get(name, name)
            part = self.copy(item, name, f"{path}.{wanted}" if path and wanted else path or wanted)
            if name in getattr(value, "__dict__", {}):
                attributes[name] = part
            else:
                object.__setattr__(made, name, part)  # frozen dataclasses reject setattr
        _make_mask_sizes_symbolic(made)
        return made


def slot_names(kind: type) -> list[str]:
    """Names of the attributes that a class and its bases keep in ``__slots__``."""
    names = [(base, vars(base).get("__slots__", ())) for base in reversed(kind.__mro__)]
    return [
        # Python mangles the names of private attributes with their class.
        f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
        for base, slots in names
        for name in ([slots] if isinstance(slots, str) else slots)
        if name not in ("__dict__", "__weakref__")
    ]


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Name and value of the attributes in ``__slots__`` that are assigned, then of those in ``__dict__``."""
    for name in slot_names(type(value)):
        if hasattr(value, name):
            yield name, getattr(value, name)
    yield from getattr(value, "__dict__", {}).items()


def _make_mask_sizes_symbolic(layer: Any) -> None:
    """Replace ``get_mask_sizes`` of a copied sliding-window cache layer by a version without a branch on the length.

    transformers branches on whether the window is full, which would be a guard for the example's length.
    """
    if not all(hasattr(layer, name) for name in ("sliding_window", "cumulative_length", "get_mask_sizes")):
        return
    if not isinstance(layer.cumulative_length, torch.SymInt):
        return

    def get_mask_sizes(query: int | torch.Tensor) -> tuple[int, int]:
        # transformers 4 passes the positions of the tokens.
        query_length = query.shape[0] if isinstance(query, torch.Tensor) else query
        past, window = layer.cumulative_length, layer.sliding_window
        kept = sym_min(past, window - 1)
        return kept + query_length, past - kept

    layer.get_mask_sizes = get_mask_sizes
