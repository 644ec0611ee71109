"""Shape rules: results of fake operators, without running their decomposition or searching torch's cache.

torch computes the shape of hard-swish by running the eight operators of its decomposition, each of which compares sizes
and strides. A rule applies if torch would return new dense tensors without adding a guard: the operands are contiguous,
or images with their channels last, and sizes that must be equal are the same expression. If all sizes are static,
operators with a C++ meta kernel run it, as torch does after it has looked for the result in its cache. Otherwise torch
computes the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType, NoneType
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.sym_node import SymNode

from fxonnx_translations._torch_compat import FakeTensor, in_kernel_invocation_manager, is_contiguous, prims_common

from ..constraints.size_forms import declare_contiguous

__all__ = ["META_KERNELS", "PERMUTATIONS", "RULES", "VIEWS", "dispatch"]

_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_SEQUENCES = frozenset({list, tuple, torch.Size})
_PLAIN = frozenset({bool, int, float, str, NoneType, torch.dtype, torch.memory_format})


def dispatch(
    original: Callable[..., Any],
    mode: Any,
    func: Any,
    types: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Replacement of ``FakeTensorMode.dispatch`` that tries the rules first."""
    if func in _SUMS and all(getattr(argument, "constant", None) is None for argument in args):
        # torch asks whether a factor is 0 or 1, on which the shape does not depend.
        args = [_KNOWN_FACTORS.get(type(factor), factor) for factor in args]
        kwargs = {name: _KNOWN_FACTORS.get(type(factor), factor) for name, factor in kwargs.items()}
    found = _RULES.get(func)
    if found is None or mode.propagate_real_tensors:
        return original(mode, func, types, args, kwargs)
    kernel, any_layout, any_size, rule = found
    result = None
    if kernel is not None:
        result = _run_meta_kernel(mode, kernel, args, kwargs, any_layout=any_layout, any_size=any_size)
    if result is None and rule is not None:
        result = rule(mode, *args, **kwargs)
    return original(mode, func, types, args, kwargs) if result is None else result


def _run_meta_kernel(
    mode: Any,
    kernel: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    any_layout: bool,
    any_size: bool,
) -> Tensor | None:
    """Result of an operator that has a C++ meta kernel, if all tensors are on one device.

    The kernel may be a function that returns None if torch must compute the result.
    """
    device = None
    for argument in (*args, *kwargs.values()):
        kind = type(argument)
        if kind is FakeTensor:
            if not _is_plain(mode, argument):
                return None
            if argument._has_symbolic_sizes_strides:
                if not any_size:
                    return None
            elif not (any_layout or argument.is_contiguous()):
                return None
            if device is None:
                device = argument.device
            elif argument.device != device:
                return None
        elif kind in _SEQUENCES:
            if not all(type(element) is int for element in argument):
                return None
        elif kind not in _PLAIN:
            return None
    if device is None or device.type == "meta":
        return None
    with in_kernel_invocation_manager(mode):
        result = kernel(*args, **kwargs)
    return result if result is None or type(result) is FakeTensor else FakeTensor(mode, result, device)


def _view(self: Tensor, size: Sequence[int]) -> Tensor | None:
    """``aten::view`` of a contiguous tensor, whose meta kernel in Python searches the strides of the result."""
    elements = self.numel()
    if -1 in size and elements:
        length = elements // -prod(size)
        size = [length if one == -1 else one for one in size]
    # Other tensors keep strides that do not matter, and empty ones need not share memory.
    if not elements or prod(size) != elements or min(size, default=1) < 0 or self.stride() != _strides(self.shape):
        return None
    result: Tensor = _aten.as_strided.default(self, size, _strides(size), self.storage_offset())
    return result


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * max(shape[axis], 1)
    return tuple(strides)


def _is_plain(mode: Any, tensor: FakeTensor) -> bool:
    return tensor.fake_mode is mode and tensor.constant is None and tensor.layout is torch.strided


def _is_dense(mode: Any, tensor: Any) -> bool:
    """Whether a rule may use the tensor: a float tensor that is contiguous for all sizes."""
    return _is_usable(mode, tensor) and _is_contiguous(tensor)


def _is_contiguous(tensor: Any) -> bool:
    if tensor._has_symbolic_sizes_strides:
        # Looked up in its module, where a patch caches the answers.
        return bool(prims_common.is_contiguous(tensor, True))
    return bool(tensor.is_contiguous())


def _is_usable(mode: Any, tensor: Any) -> bool:
    return type(tensor) is FakeTensor and _is_plain(mode, tensor) and tensor.dtype in _FLOATS


def _is_vector(mode: Any, tensor: Any, like: Tensor, size: Any) -> bool:
    """Whether a tensor is None, or a contiguous vector of ``size`` floats on the device of ``like``."""
    if tensor is None:
        return True
    return (
        _is_usable(mode, tensor)
        and tensor.device == like.device
        and tensor.dim() == 1
        and _same(tensor.shape[0], size)
        and _is_contiguous(tensor)
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
    result = FakeTensor(mode, torch.empty(shape, dtype=like.dtype, device="meta"), like.device)
    if result._has_symbolic_sizes_strides:
        declare_contiguous(is_contiguous, result)
    return result


def _is_channels_last(tensor: Tensor) -> bool:
    """Whether a batch of images of static size is stored with the channels last."""
    if tensor.dim() != 4 or any(type(size) is not int or size < 2 for size in tensor.shape[1:]):
        return False
    _, channels, height, width = tensor.shape
    strides = tensor.stride()
    return all(type(stride) is int for stride in strides) and strides == (
        channels * height * width,
        1,
        width * channels,
        channels,
    )


def _new_like(mode: Any, like: Any) -> Tensor | None:
    """Result in the layout of an operand; None if torch must find that layout."""
    if _is_contiguous(like):
        return _new(mode, like, like.shape)
    if not _is_channels_last(like):
        return None
    return FakeTensor(
        mode, torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta"), like.device
    )


def _symbolic_view(mode: Any, self: Tensor, size: Sequence[Any]) -> Tensor | None:
    if not (type(self) is FakeTensor and _is_plain(mode, self)):
        return None
    if not (self._has_symbolic_sizes_strides and _is_contiguous(self)):
        return None
    if self.dim() == 0 or not size or any(type(length) is int and length < 0 for length in size):
        return None
    if not _same(prod(size), self.numel()):
        return None
    same = len(size) == self.dim() and all(map(_same, size, self.shape))
    strides = self.stride() if same else torch.empty(size, device="meta").stride()
    with in_kernel_invocation_manager(mode):
        result = _aten.as_strided.default(self, size, strides)
    result = FakeTensor(mode, result, self.device)
    declare_contiguous(is_contiguous, result)
    return result


def _clone(mode: Any, self: Tensor, *, memory_format: torch.memory_format | None = None) -> Tensor | None:
    if not (type(self) is FakeTensor and _is_plain(mode, self) and self._has_symbolic_sizes_strides):
        return None
    if memory_format is torch.contiguous_format:
        return _new(mode, self, self.shape)
    if memory_format not in (None, torch.preserve_format) or not _is_contiguous(self):
        return None
    return _new(mode, self, self.shape)


def _elementwise(mode: Any, self: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
    """Rule of operators of one tensor and numbers, with a result of the tensor's dtype and shape."""
    if not _are_plain((*args, *kwargs.values())) or not _is_usable(mode, self):
        return None
    return _new_like(mode, self)


def _in_place(mode: Any, self: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
    if not _are_plain((*args, *kwargs.values())) or not _is_usable(mode, self):
        return None
    return self if _is_contiguous(self) or _is_channels_last(self) else None


def _clamp(mode: Any, self: Tensor, min: Any = None, max: Any = None) -> Tensor | None:
    if min is None and max is None:
        return None
    return _elementwise(mode, self, min, max)


def _are_plain(arguments: Sequence[Any]) -> bool:
    return all(type(argument) in _PLAIN for argument in arguments)


def _binary(mode: Any, self: Any, other: Any, **kwargs: Any) -> Tensor | None:
    tensors = [operand for operand in (self, other) if isinstance(operand, Tensor)]
    if not all(_is_usable(mode, tensor) for tensor in tensors):
        return None
    first = tensors[0]
    if len(tensors) == 1:
        number = other if first is self else self
        is_number = type(number) in (int, float)
        return _new_like(mode, first) if is_number and first._has_symbolic_sizes_strides else None
    if self.dtype != other.dtype or self.device != other.device:
        return None
    if not (self._has_symbolic_sizes_strides or other._has_symbolic_sizes_strides):
        return None
    if not (_is_contiguous(self) and _is_contiguous(other)):
        is_same = self.dim() == other.dim() and all(map(_same, self.shape, other.shape))
        return _new_like(mode, self) if is_same and _is_channels_last(self) and _is_channels_last(other) else None
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
    if not (_is_usable(mode, input) and input.device.type == "cpu"):
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
    input: FakeTensor,
    weight: Any,
    bias: Any,
    N: Any,
    C: Any,
    HxW: Any,
    group: int,
    eps: float,
) -> tuple[Tensor, ...] | None:
    if input.dim() < 3 or not _is_usable(mode, input) or input.device.type != "cpu":
        return None
    channels = input.shape[1]
    is_known = type(channels) is int and _same(channels, C) and type(group) is int and channels % group == 0
    if not (is_known and _same(input.shape[0], N) and _same(prod(input.shape[2:]), HxW)):
        return None
    if not (_is_vector(mode, weight, input, channels) and _is_vector(mode, bias, input, channels)):
        return None
    # Other results have the layout of intermediate tensors.
    keeps_layout = _is_contiguous(input) or (weight is not None and input._has_symbolic_sizes_strides)
    result = _new_like(mode, input) if keeps_layout else None
    return None if result is None else (result, _new(mode, input, (N, group)), _new(mode, input, (N, group)))


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
    if input.dim() < 2 or not _is_dense(mode, input) or input.device.type != "cpu":
        return False
    return all(_is_vector(mode, vector, input, input.shape[1]) for vector in vectors)


def _addmm(mode: Any, self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor | None:
    if not (_is_dense(mode, mat1) and _is_usable(mode, mat2) and mat1.dim() == mat2.dim() == 2):
        return None
    inner, size = mat2.shape
    if not (type(size) is int and type(inner) is int and _same(mat1.shape[1], inner)):
        return None
    if not (mat1.device == mat2.device and mat1.dtype == mat2.dtype == self.dtype):
        return None
    if not (_is_vector(mode, self, mat1, size) and type(beta) is int and beta != 0 and type(alpha) is int):
        return None
    return _new(mode, mat1, (mat1.shape[0], size))


def _grid_sampler(
    mode: Any, input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor | None:
    # In any layout: the result of torch's kernel is contiguous.
    if not (_is_usable(mode, input) and _is_usable(mode, grid)) or input.device != grid.device:
        return None
    if not (input.dim() == grid.dim() == 4 and input.dtype == grid.dtype and _same(input.shape[0], grid.shape[0])):
        return None
    return _new(mode, input, (*input.shape[:2], *grid.shape[1:3])) if _same(grid.shape[3], 2) else None


_aten = torch.ops.aten

_SUMS = frozenset(
    (
        *(_aten.sub.Tensor, _aten.rsub.Tensor, _aten.rsub.Scalar),
        *(_aten.addmm.default, _aten.addmv.default, _aten.addr.default),
    )
)
_KNOWN_FACTORS: Mapping[type, int | float] = MappingProxyType(
    {torch.SymInt: 2, torch.SymFloat: 2.0, torch.SymBool: True}
)

RULES: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        _aten.clamp.default: _clamp,
        _aten.clone.default: _clone,
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
        _aten._unsafe_view.default: _symbolic_view,
        _aten.view.default: _symbolic_view,
        _aten.grid_sampler_2d.default: _grid_sampler,
        _aten.native_layer_norm.default: _layer_norm,
        _aten.native_group_norm.default: _group_norm,
        _aten._native_batch_norm_legit_no_training.default: _batch_norm,
        _aten._native_batch_norm_legit.no_stats: _batch_norm_of_batch,
    }
)
"""Operator to rule. A rule returns None if torch must compute the result."""

PERMUTATIONS: frozenset[Any] = frozenset(
    {
        _aten.alias.default,
        _aten.detach.default,
        _aten.permute.default,
        _aten.t.default,
        _aten.transpose.int,
    }
)
"""Operators whose meta kernel computes nothing with sizes and strides, for operands of any size and layout."""

VIEWS: frozenset[Any] = frozenset(
    {
        _aten.as_strided.default,
        _aten.expand.default,
        _aten.select.int,
        _aten.slice.Tensor,
        _aten.squeeze.dim,
        _aten.squeeze.dims,
        _aten.unsqueeze.default,
    }
)
"""Operators whose meta kernel torch runs for static sizes, for operands of any layout."""

META_KERNELS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        **{
            operator: operator
            for operator in (
                _aten._softmax.default,
                _aten.add.Tensor,
                _aten.add_.Tensor,
                _aten.addmm.default,
                _aten.bmm.default,
                _aten.clone.default,
                _aten.constant_pad_nd.default,
                _aten.cos.default,
                _aten.div.Tensor,
                _aten.exp.default,
                _aten.gelu.default,
                _aten.mean.dim,
                _aten.mm.default,
                _aten.mul.Tensor,
                _aten.neg.default,
                _aten.pow.Tensor_Scalar,
                _aten.reciprocal.default,
                _aten.relu.default,
                _aten.relu_.default,
                _aten.rsqrt.default,
                _aten.sigmoid.default,
                _aten.silu.default,
                _aten.sin.default,
                _aten.sqrt.default,
                _aten.sub.Tensor,
                _aten.tanh.default,
                _aten.where.self,
            )
        },
        _aten._unsafe_view.default: _view,
        _aten.view.default: _view,
    }
)
"""Operator to meta kernel that torch runs for static sizes, for contiguous operands."""

_RULES: Mapping[Any, tuple[Callable[..., Any] | None, bool, bool, Callable[..., Any] | None]] = MappingProxyType(
    {
        **{operator: (None, False, False, rule) for operator, rule in RULES.items()},
        **{operator: (kernel, False, False, RULES.get(operator)) for operator, kernel in META_KERNELS.items()},
        **{operator: (operator, True, False, None) for operator in VIEWS},
        **{operator: (operator, True, True, None) for operator in PERMUTATIONS},
    }
)
