"""The operators that a model runs at some sizes, without those that only move its values.

A branch that clamps large values, or that reads a value and decides by it, agrees with the other one for most inputs.
A branch that only pads, slices or repeats does so for none if it does not for random ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fxonnx_translations._torch_compat import OpOverload, TorchDispatchMode

__all__ = ["MOVES", "CodePath"]

# Resizing to the same size is exact in all modes.
MOVES = frozenset(
    {
        *("view", "_unsafe_view", "_reshape_alias", "alias", "detach", "clone", "contiguous", "as_strided", "copy_"),
        *(
            "slice",
            "select",
            "narrow",
            "split",
            "split_with_sizes",
            "unbind",
            "expand",
            "repeat",
            "unsqueeze",
            "squeeze",
        ),
        *("permute", "transpose", "t", "cat", "stack", "flip", "roll", "unfold", "constant_pad_nd"),
        *("reflection_pad1d", "reflection_pad2d", "reflection_pad3d"),
        *("replication_pad1d", "replication_pad2d", "replication_pad3d"),
        *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d"),
        *("_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d"),
        *("upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
    }
)
_RANGES = frozenset({"arange", "linspace"})
"""Operators whose numbers are sizes."""


class CodePath:
    """The operators of the first of several runs, with which those of the others are compared."""

    def __init__(self) -> None:
        self._first: Sequence[Any] | None = None

    def is_same(self, run: Callable[[], object]) -> bool:
        """Whether a run calls the operators of the first one, with the same numbers and types.

        Args:
            run: Runs the model.
        """
        with _Recorder() as recorder:
            run()
        if self._first is None:
            self._first = recorder.calls
        return bool(self._first == recorder.calls)


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __torch_dispatch__(
        self, func: OpOverload[Any, Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.partition("::")[2]
        if name not in MOVES:
            self.calls.append((str(func), () if name in _RANGES else _numbers(func, args, kwargs or {})))
        return func(*args, **(kwargs or {}))


def _numbers(func: OpOverload[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The numbers, flags, texts and dtypes among the arguments of a call, without sizes and axes."""
    given = {**dict(zip((one.name for one in func._schema.arguments), args, strict=False)), **kwargs}
    kinds = {one.name: str(one.type) for one in func._schema.arguments}
    return tuple(
        (name, str(value))
        for name, value in sorted(given.items())
        if isinstance(value, bool | float | str | torch.dtype)
        or (isinstance(value, int) and kinds.get(name) in ("number", "Scalar", "Tensor"))
    )
