"""Comparison of results, and whether eager torch itself is numerically stable enough to compare with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .program import Program, Sizes

__all__ = ["computes_nan", "difference", "eager", "is_stable", "nan_limit"]

# Results in float64 may be sums of float32 values.
_TOLERANCES = {torch.float64: 1e-5, torch.float32: 2e-4, torch.float16: 2e-2}

_NAN_LIMITS: Mapping[str, str] = {
    "max_pool": "ONNX Runtime's MaxPool ignores NaN and -inf",
    "gru": "ONNX Runtime's GRU clips NaN to a number",
    "lstm": "ONNX Runtime's LSTM clips NaN to a number",
    "scaled_dot_product_attention": "torch's fused attention loses NaN in some rows",
}
"""Parts of the names of functions whose results are not comparable for operands with NaN or -inf: to the reason."""


def difference(expected: torch.Tensor, found: torch.Tensor, *, has_half: bool = False) -> str | None:
    """The difference of two tensors as text; None if they are equal.

    Floats may differ by a tolerance relative to the largest element of the tensor, since the order of sums differs.

    Args:
        expected: The result of eager torch.
        found: The result of the file.
        has_half: Whether floats may have been computed from values in half precision.
    """
    if expected.dtype != found.dtype:
        return f"dtype {found.dtype} instead of {expected.dtype}"
    if expected.shape != found.shape:
        return f"shape {tuple(found.shape)} instead of {tuple(expected.shape)}"
    if not expected.is_floating_point():
        wrong = expected != found
    else:
        tolerance = _TOLERANCES[torch.float16 if has_half else expected.dtype]
        expected, found = expected.detach().double(), found.detach().double()
        finite = expected[expected.isfinite()]
        scale = finite.abs().max().item() if finite.numel() else 0.0
        wrong = ~torch.isclose(found, expected, rtol=tolerance, atol=tolerance * max(scale, 1e-2), equal_nan=True)
    if not wrong.any():
        return None
    first = int(wrong.flatten().nonzero()[0])
    values = found.flatten()[first].item(), expected.flatten()[first].item()
    return f"{int(wrong.sum())} of {wrong.numel()} differ, number {first} is {values[0]} instead of {values[1]}"


_SATURATING = frozenset({"group_norm", "gru", "instance_norm", "layer_norm", "lstm", "rnn_tanh", "sigmoid", "tanh"})
"""Functions whose results differ from 1, or from 0, by less than the rounding error of a kernel."""


_NORMALIZATIONS = frozenset({"batch_norm", "group_norm", "instance_norm", "layer_norm"})


def eager(
    program: Program,
    sizes: Sizes,
    *,
    double: bool = False,
    other_layout: bool = False,
    mode: TorchFunctionMode | None = None,
) -> list[torch.Tensor]:
    """The outputs of eager torch.

    Args:
        program: The program.
        sizes: Sizes of its inputs.
        double: Compute in double precision.
        other_layout: Give the inputs another memory layout, and use other kernels for convolutions.
        mode: Changes the results of functions.
    """
    model = program.model()
    inputs = [value.clone() for value in program.example_inputs(sizes)]
    if double:
        model = model.double()
        inputs = [value.double() if value.is_floating_point() else value for value in inputs]
    if other_layout:
        inputs = [value.mT.contiguous().mT if value.dim() > 1 else value for value in inputs]
    torch.manual_seed(0)
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=not other_layout), mode or contextlib.nullcontext():
        return list(model(*inputs))


def is_stable(program: Program, sizes: Sizes, expected: Sequence[torch.Tensor], index: int) -> bool:
    """Whether an output is unchanged in double precision and with another memory layout.

    It changes if rounding decides a comparison, or if a reshape is a view in one layout and a copy in another.
    """
    changes: tuple[dict[str, Any], ...] = (
        *({"double": True}, {"other_layout": True}),
        *({"mode": _ContiguousConvolutions()}, {"mode": _Rounded()}, {"mode": _Rounded(1)}, {"mode": _Rounded(-1)}),
    )
    for change in changes:
        if "as_strided" in program.model_source and "other_layout" in change:
            continue
        try:
            other = eager(program, sizes, **change)[index]
        except (RuntimeError, IndexError, ValueError, TypeError):
            # This variant of the program does not run, which is not conclusive.
            continue
        if difference(expected[index], other.to(expected[index].dtype)) is not None:
            return False
    return True


class _ContiguousConvolutions(TorchFunctionMode):
    """A mode that makes the results of convolutions contiguous."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        is_convolution = "conv" in getattr(func, "__name__", "") and isinstance(result, torch.Tensor)
        return result.contiguous() if is_convolution else result


class _Rounded(TorchFunctionMode):
    """A mode that rounds the results of saturating and centering functions, so that those next to 1 are 1, and next to 0, 0.

    Args:
        direction: 1 for numbers that are larger by a rounding error of a kernel, -1 for smaller ones.
    """

    def __init__(self, direction: int = 0) -> None:
        super().__init__()
        self._direction = direction

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") not in _SATURATING:
            return result
        return pytree.tree_map_only(
            torch.Tensor, lambda value: ((value * 2**21).round() + self._direction) / 2**21, result
        )


class PerturbedNormalization(TorchFunctionMode):
    """A mode that changes the operands of normalizations by a rounding error: of equal numbers it is enlarged to 1e-4."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__name__", "") not in _NORMALIZATIONS or not args or not args[0].is_floating_point():
            return func(*args, **(kwargs or {}))
        signs = torch.arange(args[0].numel()).remainder(2).mul(2).sub(1).reshape(args[0].shape)
        return func(args[0] * (1 + signs * 2.0**-23), *args[1:], **(kwargs or {}))


class _NaNOperands(TorchFunctionMode):
    """Records whether functions return NaN, and the limits of those that are called with NaN or -inf."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: list[str] = []
        self.found = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        limits = [limit for part, limit in _NAN_LIMITS.items() if part in name]
        values = pytree.tree_leaves((args, kwargs)) if limits else []
        if any(isinstance(value, torch.Tensor) and (value.isnan() | value.isneginf()).any() for value in values):
            self.limits += limits
        result = func(*args, **(kwargs or {}))
        results = pytree.tree_leaves(result)
        self.found |= any(isinstance(value, torch.Tensor) and bool(value.isnan().any()) for value in results)
        return result


def computes_nan(program: Program, sizes: Sizes) -> bool:
    """Whether any function of a program returns NaN."""
    with _NaNOperands() as mode:
        eager(program, sizes)
    return mode.found


def nan_limit(program: Program, sizes: Sizes) -> str | None:
    """Why the results of a program are not comparable, if NaN or -inf reaches an operator that loses it."""
    with _NaNOperands() as mode:
        eager(program, sizes)
    return mode.limits[0] if mode.limits else None
