"""Values, memory, versions and hooks of tensors, which are restored as if no run of the model had written to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from fxonnx_translations._torch_compat import DisableTorchFunction, FakeTensor, no_dispatch, set_version_counters

from ..._inner_tensors import is_wrapper

__all__ = ["TensorValues"]

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_WORD = 8
"""Bytes that are compared at once."""


class _Record(NamedTuple):
    """A tensor and its state.

    Attributes:
        tensor: The tensor.
        data: Another tensor in its memory, with a version of its own; None for tensors whose memory cannot be replaced.
        version: Its version, by which autograd knows that the values it keeps have been written to.
        hooks: Its hooks, with their content.
    """

    tensor: torch.Tensor
    data: torch.Tensor | None
    version: int
    hooks: tuple[tuple[str, Any, dict[Any, Any]], ...]


class _Memory(NamedTuple):
    """A part of a storage with a copy of its bytes.

    Attributes:
        storage: The storage.
        start: The first byte of the part.
        size: The size of the storage in bytes.
        copied: The bytes.
    """

    storage: torch.UntypedStorage
    start: int
    size: int
    copied: torch.Tensor


class TensorValues:
    """Tensors with their versions, their memory and, of those that are copied, their values.

    The bytes of each storage are copied once, so that views and tied weights still share them.
    """

    def __init__(self) -> None:
        self._records: list[_Record] = []
        self._memory: list[_Memory] = []
        self._others: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        """Sparse tensors and wrappers, which have no memory of their own, with a copy and the version."""

    def record(self, tensors: Iterable[torch.Tensor]) -> None:
        """Record tensors without their values."""
        with _outside_of_modes():  # in one of fake tensors, data would be a fake tensor too
            for tensor in tensors:
                if not tensor.is_inference():
                    data = tensor.data if _has_memory(tensor) else None
                    found = ((name, getattr(tensor, name, None)) for name in _HOOKS)
                    hooks = tuple((name, hook, dict(hook)) if hook else (name, hook, {}) for name, hook in found)
                    self._records.append(_Record(tensor, data, tensor._version, hooks))

    def copy(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy the values of tensors."""
        parts: dict[tuple[torch.device, int], tuple[torch.UntypedStorage, int, int]] = {}
        for tensor in tensors:
            if _has_memory(tensor) and tensor.numel():
                storage = tensor.untyped_storage()
                key = tensor.device, storage.data_ptr()
                _, start, end = parts.get(key, (storage, storage.nbytes(), 0))
                own = _bytes_of(tensor)
                parts[key] = storage, min(start, own[0]), max(end, own[1])
            elif not (tensor.is_meta or tensor.is_inference() or isinstance(tensor, FakeTensor)):
                self._others.append((tensor, tensor.detach().clone(), tensor._version))
        if not parts:
            return
        with _outside_of_modes():
            for storage, start, end in parts.values():
                bits = _bits(storage, start, end)
                self._memory.append(_Memory(storage, start, storage.nbytes(), bits.clone()))

    def restore(self) -> None:
        """Restore everything that has changed, without a new version: autograd may keep the values of a call before."""
        for tensor, data, _, hooks in self._records:
            if data is not None and not _is_same_memory(tensor, data):
                with _outside_of_modes():
                    tensor.data = data
            for name, hook, items in hooks:
                if getattr(tensor, name, None) is not hook:
                    setattr(tensor, name, hook)
                if hook is not None and hook != items:
                    hook.clear()
                    hook.update(items)
        with torch.no_grad():
            for tensor, copied, version in self._others:
                if tensor._version != version:
                    tensor.copy_(copied)
        if self._memory:
            self._restore_values()
        written = [(tensor, version) for tensor, _, version, _ in self._records if tensor._version != version]
        if written:
            set_version_counters(*zip(*written, strict=True))

    def _restore_values(self) -> None:
        """Write the copied bytes where they differ."""
        with _outside_of_modes(), torch.no_grad():
            for storage, start, size, copied in self._memory:
                if storage.nbytes() != size:
                    storage.resize_(size)
                bits = _bits(storage, start, start + copied.numel())
                if not _is_equal(bits, copied):
                    bits.copy_(copied)


@contextmanager
def _outside_of_modes() -> Iterator[None]:
    """Modes, such as one of fake tensors or a default device, and subclasses see nothing of the body."""
    with no_dispatch(), DisableTorchFunction():
        yield


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor are in a storage of its own that can be copied and written."""
    return not (
        tensor.is_meta
        or tensor.is_inference()
        or tensor.layout != torch.strided
        or is_wrapper(tensor)
        or isinstance(tensor, FakeTensor)
    )


def _is_same_memory(tensor: torch.Tensor, data: torch.Tensor) -> bool:
    return (
        tensor.data_ptr() == data.data_ptr()
        and tensor.shape == data.shape
        and tensor.stride() == data.stride()
        and tensor.dtype == data.dtype
    )


def _bytes_of(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor with elements in its storage, a multiple of a word, and the one after the last."""
    start = int(tensor.storage_offset()) * tensor.element_size()
    steps = sum((size - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start - start % _WORD, start + (steps + 1) * tensor.element_size()


def _bits(storage: torch.UntypedStorage, start: int, end: int) -> torch.Tensor:
    """The bytes of a part of a storage as a tensor in its memory."""
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage, start, (end - start,), (1,))


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether bytes are equal; most of them are compared as words, which is faster."""
    whole = one.numel() - one.numel() % _WORD
    words = [bits[:whole].view(torch.int64) for bits in (one, other)]
    return torch.equal(*words) and torch.equal(one[whole:], other[whole:])
