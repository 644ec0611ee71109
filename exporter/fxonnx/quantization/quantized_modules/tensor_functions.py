"""Functions and methods of torch on quantized tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.overrides import TorchFunctionMode

from fxonnx_translations._torch_compat import pytree

from ...errors import CaptureError
from .affine_tensor import (
    STORAGE,
    AffineTensor,
    Parameters,
    as_affine,
    choose_parameters,
    dequantize,
    quantize,
    quantize_as,
    quantized_tensors,
    scalar_of,
    unsupported,
)
from .dynamic_functions import RECURRENT_FUNCTIONS
from .library_functions import LIBRARY_FUNCTIONS, concatenate
from .packed_parameters import unpack_parameters

__all__ = ["CREATE", "call_function", "check_outputs", "function_name", "quantize_tensor", "unpacked_parameters"]

_ON_INTEGERS = frozenset(
    (
        "__getitem__",
        "channel_shuffle",
        "chunk",
        "expand",
        "expand_as",
        "flatten",
        "flip",
        "index_select",
        "max",
        "min",
        "movedim",
        "moveaxis",
        "narrow",
        "permute",
        "pixel_shuffle",
        "pixel_unshuffle",
        "repeat",
        "repeat_interleave",
        "reshape",
        "reshape_as",
        "select",
        "sort",
        "split",
        "split_with_sizes",
        "squeeze",
        "swapaxes",
        "swapdims",
        "t",
        "tensor_split",
        "topk",
        "transpose",
        "unbind",
        "unflatten",
        "unfold",
        "unsqueeze",
        "view",
        "view_as",
    )
)
"""Functions that move, repeat or compare elements, applied to the integers; per-tensor parameters only."""

_COPIES = frozenset(
    (
        "alias",
        "clone",
        "contiguous",
        "cpu",
        "detach",
        "dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "feature_dropout",
    )
)
"""Functions that copy a tensor, applied to the integers."""

_ON_FLOATS = frozenset(
    (
        "adaptive_avg_pool1d",
        "adaptive_avg_pool2d",
        "adaptive_avg_pool3d",
        "avg_pool1d",
        "avg_pool2d",
        "avg_pool3d",
        "clamp",
        "clip",
        "gelu",
        "hardtanh",
        "interpolate",
        "leaky_relu",
        "masked_fill",
        "max_pool1d",
        "max_pool2d",
        "max_pool3d",
        "mean",
        "pad",
        "relu",
        "relu6",
        "std",
        "threshold",
        "upsample",
        "upsample_bilinear",
        "upsample_nearest",
        "upsample_nearest1d",
        "upsample_nearest2d",
        "upsample_nearest3d",
        "upsample_bilinear2d",
    )
)
"""Functions computed in floating point, whose result has the quantization parameters of the input."""

_COMPARISONS = frozenset(
    (
        "eq",
        "ne",
        "gt",
        "ge",
        "lt",
        "le",
        "__eq__",
        "__ne__",
        "__gt__",
        "__ge__",
        "__lt__",
        "__le__",
    )
)

_PROPERTIES = frozenset(
    (
        "__len__",
        "device",
        "dim",
        "element_size",
        "grad",
        "grad_fn",
        "is_contiguous",
        "is_cpu",
        "is_cuda",
        "is_inference",
        "is_leaf",
        "is_meta",
        "is_sparse",
        "layout",
        "names",
        "ndim",
        "ndimension",
        "nelement",
        "numel",
        "requires_grad",
        "shape",
        "size",
        "storage_offset",
        "stride",
    )
)
"""Properties that do not depend on the dtype."""


def function_name(func: Any) -> str:
    """Name of a function of torch: ``relu`` for functions and methods, ``quantized::add`` for operators."""
    operator_name = getattr(func, "_qualified_op_name", None) or getattr(getattr(func, "_schema", None), "name", None)
    if operator_name is not None:
        return str(operator_name).removeprefix("aten::")
    name = str(getattr(func, "__name__", func))
    if name in ("__get__", "__set__"):
        return str(func.__self__.__name__)
    return name


def call_function(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function with quantized tensors among its arguments.

    Raises:
        CaptureError: If the function is not supported for quantized tensors.
    """
    name = function_name(func)
    args, kwargs = pytree.tree_map_only(Tensor, as_affine, (args, kwargs))
    if name in LIBRARY_FUNCTIONS:
        return LIBRARY_FUNCTIONS[name](*args, **kwargs)
    if name in _CALLS:
        return _CALLS[name](*args, **kwargs)
    if name in _PROPERTIES:
        return func(args[0].integers, *args[1:], **kwargs)
    if name in _COPIES:
        return AffineTensor.of(func(args[0].integers, *args[1:], **kwargs), args[0].parameters)
    first = next(leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, AffineTensor))
    if first.parameters.axis is not None:
        raise unsupported(_shown(name), "on a tensor that is quantized per channel")
    if name in _ON_INTEGERS:
        result = _apply(func, lambda x: x.integers, args, kwargs)
        return _wrapped(result, first.parameters)
    if name in _COMPARISONS:
        return _apply(func, dequantize, args, kwargs)
    if name.removesuffix("_") in _FIXED_RESULTS:
        return _with_fixed_parameters(func, name, args, kwargs)
    if name.removesuffix("_") in _ON_FLOATS:
        result = quantize_as(_apply(func, dequantize, args, kwargs), first)
        return _stored_in(first, result) if name.endswith("_") or kwargs.get("inplace") else result
    raise unsupported(_shown(name))


def _shown(name: str) -> str:
    return f"torch.ops.{name.replace('::', '.')}" if "::" in name else f"torch.{name}"


def _apply(
    func: Callable[..., Any], convert: Callable[[AffineTensor], Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    args, kwargs = pytree.tree_map_only(AffineTensor, convert, (args, kwargs))
    return func(*args, **kwargs)


def _wrapped(result: Any, parameters: Parameters) -> Any:
    """Quantized tensors of results that are integers, also in the tuples of ``max`` and ``topk``."""

    def wrap(value: Tensor) -> Tensor:
        return AffineTensor.of(value, parameters) if value.dtype == STORAGE[parameters.dtype].dtype else value

    return pytree.tree_map_only(Tensor, wrap, result)


def _stored_in(x: AffineTensor, result: AffineTensor) -> AffineTensor:
    """Complete an in-place function."""
    x.integers.copy_(result.integers)
    return x


_FIXED_RESULTS: Mapping[str, tuple[float, int]] = {
    "sigmoid": (2.0**-8, 0),
    "hardsigmoid": (2.0**-8, 0),
    "tanh": (2.0**-7, 128),
}
"""Scale and zero point of the result as quint8."""


def _with_fixed_parameters(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dtype = args[0].parameters.dtype
    if name.endswith("_") or dtype not in (torch.quint8, torch.qint8):
        raise unsupported(_shown(name))
    scale, zero_point = _FIXED_RESULTS[name]
    shift = 0 if dtype == torch.quint8 else -128
    return quantize(_apply(func, dequantize, args, kwargs), Parameters(scale, zero_point + shift, dtype))


def _dequantize(tensors: AffineTensor | list[AffineTensor] | tuple[AffineTensor, ...]) -> Any:
    return [dequantize(x) for x in tensors] if isinstance(tensors, list | tuple) else dequantize(tensors)


def _stack(tensors: list[AffineTensor], dim: int = 0) -> AffineTensor:
    return concatenate([call_function(torch.unsqueeze, (x, dim), {}) for x in tensors], dim)


def _to(x: AffineTensor, *args: Any, **kwargs: Any) -> AffineTensor:
    if any(isinstance(arg, torch.dtype) and arg != x.parameters.dtype for arg in (*args, *kwargs.values())):
        raise unsupported("torch.Tensor.to", "a floating dtype on a quantized tensor")
    return x


def _qscheme(x: AffineTensor) -> torch.qscheme:
    return torch.per_tensor_affine if x.parameters.axis is None else torch.per_channel_affine


_SCRIPTED_DTYPES: Mapping[Any, torch.dtype] = MappingProxyType({12: torch.qint8, 13: torch.quint8, 14: torch.qint32})
"""Numbers of quantized types in scripts."""


def _per_tensor(input: Tensor, scale: Any, zero_point: Any, dtype: torch.dtype) -> Any:
    if isinstance(input, list | tuple):
        values = zip(input, scale, zero_point, strict=True)
        return [_per_tensor(x, step, zero, dtype) for x, step, zero in values]
    return quantize(input, Parameters(scale, zero_point, _SCRIPTED_DTYPES.get(dtype, dtype)))


def _per_channel(input: Tensor, scales: Tensor, zero_points: Tensor, axis: int, dtype: torch.dtype) -> AffineTensor:
    return quantize(input, Parameters(scales, zero_points, dtype, axis % input.dim()))


def _per_tensor_dynamic(input: Tensor, dtype: torch.dtype, reduce_range: bool) -> AffineTensor:
    return quantize(input, choose_parameters(input, dtype, reduce_range=reduce_range))


CREATE: Mapping[str, Callable[..., Any]] = {
    "quantize_per_tensor": _per_tensor,
    "quantize_per_channel": _per_channel,
    "quantize_per_tensor_dynamic": _per_tensor_dynamic,
}
"""Functions of torch that quantize a float tensor."""


def quantize_tensor(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Replacement of a function that creates a quantized tensor."""
    return CREATE[original.__name__](*args, **kwargs)


def _text(x: AffineTensor, *args: Any, **kwargs: Any) -> str:
    return f"quantized tensor of {x.parameters.dtype}"


_CALLS: Mapping[str, Callable[..., Any]] = {
    "__format__": _text,
    "__hash__": id,
    "__repr__": _text,
    "cat": lambda tensors, dim=0: concatenate(tensors, dim),
    "concat": lambda tensors, dim=0: concatenate(tensors, dim),
    "concatenate": lambda tensors, dim=0: concatenate(tensors, dim),
    "data": lambda x: x,
    "dequantize": _dequantize,
    "dtype": lambda x: x.parameters.dtype,
    "int_repr": lambda x: x.integers.clone(),
    "is_complex": lambda x: False,
    "is_floating_point": lambda x: False,
    "is_quantized": lambda x: True,
    "is_same_size": lambda x, other: operator.eq(x.shape, other.shape),
    "q_per_channel_axis": lambda x: x.parameters.axis,
    "q_per_channel_scales": lambda x: x.parameters.scale,
    "q_per_channel_zero_points": lambda x: x.parameters.zero_point,
    "q_scale": lambda x: x.parameters.scale,
    "q_zero_point": lambda x: x.parameters.zero_point,
    "qscheme": _qscheme,
    "stack": _stack,
    "to": _to,
}


_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    "__float__": float,
    "__int__": int,
    "__index__": int,
    "item": lambda x: x,
}


class _QuantizedFunctions(TorchFunctionMode):
    """Functions that torch.export cannot trace: of packed parameters, and functions that create quantized tensors."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = function_name(func)
        if name in _CONVERSIONS:
            known = scalar_of(args[0])
            return func(*args, **kwargs) if known is args[0] else _CONVERSIONS[name](known)
        for functions in (CREATE, LIBRARY_FUNCTIONS, RECURRENT_FUNCTIONS):
            if name in functions:
                args, kwargs = pytree.tree_map_only(Tensor, as_affine, (args, kwargs))
                return functions[name](*args, **kwargs)
        if name.startswith("quantized::"):
            raise unsupported(f"torch.ops.{name.replace('::', '.')}", "")
        return func(*args, **kwargs)


def check_outputs(outputs: Any) -> None:
    """Reject quantized outputs.

    Raises:
        CaptureError: If an output is quantized.
    """
    if any(isinstance(leaf, AffineTensor) for leaf in pytree.tree_leaves(outputs)):
        raise CaptureError(
            "an output of the model is a quantized tensor: outputs of ONNX models have neither scale nor zero point",
            hint="return x.dequantize(), for example with DeQuantStub, or the integers x.int_repr()",
        )


@contextmanager
def unpacked_parameters(model: nn.Module) -> Iterator[None]:
    """Capture a quantized model with stand-ins: ``model.forward`` works without packed parameters inside the context.

    Args:
        model: The model, whose attributes ``preserve_model`` restores.
    """
    scalars = {name: buffer for name, buffer in model.named_buffers() if buffer.numel() == 1 and not buffer.is_meta}
    if not unpack_parameters(model):
        with quantized_tensors(call_function, {}):
            yield
        return
    forward, before = model.forward, type(model)

    @wraps(forward)
    def quantized_forward(*args: Any, **kwargs: Any) -> Any:
        fakes = {id(fake): scalars[name] for name, fake in model.named_buffers() if name in scalars}
        with quantized_tensors(call_function, fakes), _QuantizedFunctions():
            return forward(*args, **kwargs)

    model.forward = quantized_forward
    if isinstance(model, GraphModule):
        # torch.export does not call forward of a GraphModule, but interprets its graph.
        model.__class__ = type(before.__name__, (nn.Module,), {"__module__": before.__module__})
    try:
        yield
    finally:
        model.__class__ = before
