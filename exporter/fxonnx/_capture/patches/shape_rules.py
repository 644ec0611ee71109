"""Shape rules: results of fake operators with symbolic sizes, without running their decomposition.

torch computes the shape of hard-swish by running the eight operators of its decomposition, each of which compares sizes
and strides. A rule applies if torch would return new contiguous tensors without adding a guard: the operands are
contiguous, and sizes that must be equal are the same expression. Otherwise torch computes the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType, NoneType
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.sym_node import SymNode

from fxonnx_translations._torch_compat import FakeTensor, is_contiguous

__all__ = ["RULES", "dispatch"]

_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_PLAIN = (int, float, str, NoneType)


def dispatch(
    original: Callable[..., Any], mode: Any, func: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Replacement of ``FakeTensorMode._dispatch_impl`` that tries the rules first."""
    rule = RULES.get(func)
    if rule is not None and not mode.propagate_real_tensors:
        result = rule(mode, *args, **kwargs)
        if result is not None:
            return result
    return original(mode, func, types, args, kwargs)


def _is_symbolic(mode: Any, tensor: Any) -> bool:
    """Whether a rule may use the tensor: a float tensor with symbolic sizes that is contiguous for all sizes."""
    return _is_usable(mode, tensor) and tensor._has_symbolic_sizes_strides and is_contiguous(tensor, True)


def _is_usable(mode: Any, tensor: Any) -> bool:
    return (
        type(tensor) is FakeTensor
        and tensor.fake_mode is mode
        and tensor.constant is None
        and tensor.layout is torch.strided
        and tensor.dtype in _FLOATS
    )


def _is_vector(mode: Any, tensor: Any, like: Tensor, size: Any) -> bool:
    """Whether a tensor is None, or a contiguous vector of ``size`` floats on the device of ``like``."""
    if tensor is None:
        return True
    return (
        _is_usable(mode, tensor)
        and tensor.device == like.device
        and tensor.dim() == 1
        and _same(tensor.shape[0], size)
        and is_contiguous(tensor, True)
    )


def _same(one: Any, other: Any) -> bool:
    """Whether two sizes are the same expression, or the same number."""
    if type(one) is int or type(other) is int:
        return type(one) is type(other) and bool(one == other)
    first, second = one.node, other.node
    return (
        type(first) is SymNode and type(second) is SymNode and first.shape_env is second.shape_env
    ) and first.expr == second.expr


def _new(mode: Any, like: Tensor, shape: Sequence[Any]) -> Tensor:
    return FakeTensor(mode, torch.empty(shape, dtype=like.dtype, device="meta"), like.device)


def _elementwise(mode: Any, self: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
    """Rule of operators of one tensor and numbers, with a result of the tensor's dtype and shape."""
    if not _are_plain((*args, *kwargs.values())) or not _is_symbolic(mode, self):
        return None
    return _new(mode, self, self.shape)


def _in_place(mode: Any, self: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
    if not _are_plain((*args, *kwargs.values())) or not _is_symbolic(mode, self):
        return None
    return self


def _clamp(mode: Any, self: Tensor, min: Any = None, max: Any = None) -> Tensor | None:
    if min is None and max is None:
        return None
    return _elementwise(mode, self, min, max)


def _are_plain(arguments: Sequence[Any]) -> bool:
    return all(isinstance(argument, _PLAIN) for argument in arguments)


def _binary(mode: Any, self: Any, other: Any, **kwargs: Any) -> Tensor | None:
    tensors = [operand for operand in (self, other) if isinstance(operand, Tensor)]
    if not all(_is_usable(mode, tensor) and is_contiguous(tensor, True) for tensor in tensors):
        return None
    first = tensors[0]
    if len(tensors) == 1:
        number = other if first is self else self
        is_number = type(number) in (int, float)
        return _new(mode, first, first.shape) if is_number and first._has_symbolic_sizes_strides else None
    if self.dtype != other.dtype or self.device != other.device:
        return None
    if not (self._has_symbolic_sizes_strides or other._has_symbolic_sizes_strides):
        return None
    large, small = (self, other) if self.dim() >= other.dim() else (other, self)
    # A 0-dim tensor on the CPU may be combined with other devices and dtypes.
    if small.dim() == 0 or not _broadcasts(small.shape, large.shape):
        return None
    return _new(mode, large, large.shape)


def _broadcasts(small: Sequence[Any], large: Sequence[Any]) -> bool:
    """Whether broadcasting results in the larger shape for all sizes."""
    return all(
        (type(one) is int and one == 1) or _same(one, other)
        for one, other in zip(small, large[len(large) - len(small) :], strict=True)
    )


def _layer_norm(
    mode: Any,
    input: Tensor,
    normalized_shape: Sequence[Any],
    weight: Any,
    bias: Any,
    eps: float,
) -> tuple[Tensor, ...] | None:
    if not (_is_usable(mode, input) and input._has_symbolic_sizes_strides and input.device.type == "cpu"):
        return None
    # Any layout is allowed, since torch makes the input contiguous first.
    size = input.shape[-1] if input.dim() > 0 else None
    if len(normalized_shape) != 1 or type(size) is not int or not _same(size, normalized_shape[0]):
        return None
    if not (_is_vector(mode, weight, input, size) and _is_vector(mode, bias, input, size)):
        return None
    kept = (*input.shape[:-1], 1)
    return _new(mode, input, input.shape), _new(mode, input, kept), _new(mode, input, kept)


def _group_norm(
    mode: Any,
    input: Tensor,
    weight: Any,
    bias: Any,
    N: Any,
    C: Any,
    HxW: Any,
    group: int,
    eps: float,
) -> tuple[Tensor, ...] | None:
    if input.dim() < 3 or not _is_symbolic(mode, input) or input.device.type != "cpu":
        return None
    channels = input.shape[1]
    is_known = type(channels) is int and _same(channels, C) and type(group) is int and channels % group == 0
    if not (is_known and _same(input.shape[0], N) and _same(prod(input.shape[2:]), HxW)):
        return None
    if not (_is_vector(mode, weight, input, channels) and _is_vector(mode, bias, input, channels)):
        return None
    return _new(mode, input, input.shape), _new(mode, input, (N, group)), _new(mode, input, (N, group))


def _batch_norm(
    mode: Any,
    input: Tensor,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...] | None:
    if (
        not _has_channels(mode, input, weight, bias, running_mean, running_var)
        or running_mean is None
        or running_var is None
    ):
        return None
    return _new(mode, input, input.shape), _new(mode, input, (0,)), _new(mode, input, (0,))


def _batch_norm_of_batch(
    mode: Any,
    input: Tensor,
    weight: Any,
    bias: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...] | None:
    if training is not True or not _has_channels(mode, input, weight, bias):
        return None
    channels = input.shape[1:2]
    return _new(mode, input, input.shape), _new(mode, input, channels), _new(mode, input, channels)


def _has_channels(mode: Any, input: Tensor, *vectors: Any) -> bool:
    if input.dim() < 2 or not _is_symbolic(mode, input) or input.device.type != "cpu":
        return False
    return all(_is_vector(mode, vector, input, input.shape[1]) for vector in vectors)


def _addmm(mode: Any, self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor | None:
    if not (_is_symbolic(mode, mat1) and _is_usable(mode, mat2) and mat1.dim() == mat2.dim() == 2):
        return None
    inner, size = mat2.shape
    if not (type(size) is int and type(inner) is int and _same(mat1.shape[1], inner)):
        return None
    if not (mat1.device == mat2.device and mat1.dtype == mat2.dtype == self.dtype):
        return None
    if not (_is_vector(mode, self, mat1, size) and type(beta) is int and beta != 0 and type(alpha) is int):
        return None
    return _new(mode, mat1, (mat1.shape[0], size))


_aten = torch.ops.aten

RULES: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        _aten.clamp.default: _clamp,
        **dict.fromkeys(
            (
                _aten.elu.default,
                _aten.gelu.default,
                _aten.hardsigmoid.default,
                _aten.hardswish.default,
                _aten.hardtanh.default,
                _aten.leaky_relu.default,
                _aten.mish.default,
                _aten.relu.default,
                _aten.sigmoid.default,
                _aten.silu.default,
                _aten.softplus.default,
                _aten.tanh.default,
            ),
            _elementwise,
        ),
        **dict.fromkeys(
            (
                _aten.elu_.default,
                _aten.hardsigmoid_.default,
                _aten.hardswish_.default,
                _aten.hardtanh_.default,
                _aten.leaky_relu_.default,
                _aten.relu_.default,
                _aten.silu_.default,
            ),
            _in_place,
        ),
        _aten.add.Tensor: _binary,
        _aten.sub.Tensor: _binary,
        _aten.mul.Tensor: _binary,
        _aten.div.Tensor: _binary,
        _aten.addmm.default: _addmm,
        _aten.native_layer_norm.default: _layer_norm,
        _aten.native_group_norm.default: _group_norm,
        _aten._native_batch_norm_legit_no_training.default: _batch_norm,
        _aten._native_batch_norm_legit.no_stats: _batch_norm_of_batch,
    }
)
"""Operator to rule. A rule returns None if torch must compute the result."""
