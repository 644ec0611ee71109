"""TorchScript builtins for numbers, lists, dicts, tuples and strings, as Python functions."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch.nn import functional as F

from fxonnx_translations._torch_compat import disable_current_modes, sym_max, variable_functions

from ..._capture.rewriting.operators.values import same_shape
from ...errors import CaptureError

__all__ = ["FUNCTIONS", "MKLDNN", "TENSOR_KINDS", "is_instance", "run_mkldnn"]


def _append(items: list[Any], item: Any) -> list[Any]:
    items.append(item)
    return items


def _extend(items: list[Any], more: list[Any]) -> list[Any]:
    items.extend(more)
    return items


def _set_item(items: Any, key: Any, value: Any) -> Any:
    items[key] = value
    return items


def _pop(items: Any, *key: Any) -> Any:
    """``list.pop`` with an optional index, or ``dict.pop`` with a key and an optional default."""
    return items.pop(*key)


def _sort(items: list[Any], reverse: bool = False) -> None:
    items.sort(reverse=reverse)


def _sliced(items: Any, start: Any = None, stop: Any = None, step: int = 1) -> Any:
    return items[start:stop:step]


def _range_length(low: Any, high: Any, step: Any) -> Any:
    if isinstance(low, torch.SymInt) or isinstance(high, torch.SymInt):
        distance, stride = (high - low, step) if step > 0 else (low - high, -step)
        return sym_max((distance + stride - 1) // stride, 0)
    return len(range(low, high, step))


def _length(items: Any) -> Any:
    return items.shape[0] if isinstance(items, torch.Tensor) else len(items)


def _derived_index(index: Any, start: Any, step: Any) -> Any:
    return start + index * step


def _format(text: str, *values: Any) -> str:
    return text.format(*values)


_NUMBER = "number"
"""Attribute of the tensors that traces make of sizes."""


def _number_tensor(number: Any) -> torch.Tensor:
    """A number as a tensor, as traces have sizes in arithmetic; the tensor of a size remembers the size."""
    if not isinstance(number, torch.SymInt):
        return torch.as_tensor(number)
    size: Any = number
    tensor = torch.scalar_tensor(size, dtype=torch.int64)
    vars(tensor)[_NUMBER] = number
    return tensor


def _as_int(value: Any) -> Any:
    """``int(value)``; a number read from a tensor remains a tensor, since its value is only known at run time."""
    if isinstance(value, torch.SymInt):
        return value
    if isinstance(value, torch.Tensor) and _NUMBER in vars(value):
        return vars(value)[_NUMBER]
    return value.reshape(()).to(torch.int64) if isinstance(value, torch.Tensor) else int(value)


def _as_float(value: Any) -> Any:
    return value.reshape(()).to(torch.float64) if isinstance(value, torch.Tensor) else float(value)


def _as_bool(value: Any) -> Any:
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return value != 0
    if isinstance(value, torch.SymBool):
        return value
    return value.reshape(()).to(torch.bool) if isinstance(value, torch.Tensor) else bool(value)


def _dict(*items: Any) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


def _pack(*args: Any) -> Any:
    # Looked up at the call: the capture replaces it.
    return variable_functions._pack_padded_sequence(*args)


def _unpack(*args: Any) -> Any:
    return variable_functions._pad_packed_sequence(*args)


def _not(value: Any) -> Any:
    return value.logical_not() if isinstance(value, torch.Tensor) else not value


_CLASSES: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {
        "AnyListType": (list,),
        "AnyTupleType": (tuple,),
        "BoolType": (bool, torch.SymBool),
        "FloatType": (float, torch.SymFloat),
        "IntType": (int, torch.SymInt),
        "NoneType": (type(None),),
        "StringType": (str,),
        "TensorType": (torch.Tensor,),
    }
)
"""Kind of a TorchScript type to the classes of its values."""


def is_instance(value: Any, declared: Any) -> bool:
    """Whether a value has a TorchScript type.

    Raises:
        CaptureError: If the type is a class.
    """
    kind = declared.kind()
    if kind in _CLASSES:
        return isinstance(value, _CLASSES[kind]) and not (kind == "IntType" and isinstance(value, bool))
    if kind == "OptionalType":
        return value is None or is_instance(value, declared.getElementType())
    if kind == "ListType":
        return isinstance(value, list) and all(is_instance(item, declared.getElementType()) for item in value)
    if kind == "TupleType":
        types = declared.elements()
        return (
            isinstance(value, tuple)
            and len(value) == len(types)
            and all(is_instance(item, each) for item, each in zip(value, types, strict=True))
        )
    raise CaptureError(f"isinstance with TorchScript's type {declared.annotation_str} cannot be evaluated")


TENSOR_KINDS: frozenset[str] = frozenset(
    {
        "aten::Bool",
        "aten::Float",
        "aten::FloatImplicit",
        "aten::_pack_padded_sequence",
        "aten::_pad_packed_sequence",
        "aten::Int",
        "aten::IntImplicit",
        "aten::dim",
        "aten::is_nonzero",
        "aten::item",
        "aten::len",
        "aten::list",
        "aten::numel",
        "aten::size",
        "prim::data",
        "prim::device",
        "prim::dtype",
        "prim::is_cuda",
    }
)
"""Node kinds whose function in ``FUNCTIONS`` is used even if their schema has tensors."""

FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "aten::Bool": _as_bool,
        "aten::Delete": operator.delitem,
        "aten::Float": _as_float,
        "aten::FloatImplicit": _as_float,
        "aten::Int": _as_int,
        "aten::IntImplicit": _as_int,
        "aten::__and__": operator.and_,
        "aten::__contains__": operator.contains,
        "aten::__derive_index": _derived_index,
        "aten::__getitem__": operator.getitem,
        "aten::__is__": operator.is_,
        "aten::__isnot__": operator.is_not,
        "aten::__not__": _not,
        "aten::__or__": operator.or_,
        "aten::__range_length": _range_length,
        "aten::_pack_padded_sequence": _pack,
        "aten::_pad_packed_sequence": _unpack,
        "aten::_set_item": _set_item,
        "aten::add": lambda one, other, alpha=1: one + other * alpha if alpha != 1 else one + other,
        "aten::add_": operator.iadd,
        "aten::all": all,
        "aten::any": any,
        "aten::append": _append,
        "aten::ceil": math.ceil,
        "aten::clear": lambda items: items.clear(),
        "aten::copy": copy.copy,
        "aten::count": operator.countOf,
        "aten::dict": dict,
        "aten::dim": lambda tensor: tensor.dim(),
        "aten::div": operator.truediv,
        "aten::eq": operator.eq,
        "aten::extend": _extend,
        "aten::floor": math.floor,
        "aten::floordiv": operator.floordiv,
        "aten::format": _format,
        "aten::ge": operator.ge,
        "aten::get": lambda items, key, default=None: items.get(key, default),
        "aten::gt": operator.gt,
        "aten::index": operator.indexOf,
        "aten::insert": lambda items, at, item: items.insert(at, item),
        "aten::is_nonzero": _as_bool,
        # A number read from a tensor remains a tensor, as in _as_int.
        "aten::item": lambda tensor: tensor.reshape(()),
        "aten::items": lambda items: list(items.items()),
        "aten::keys": lambda items: list(items),
        "aten::le": operator.le,
        "aten::len": _length,
        "aten::list": list,
        "aten::lt": operator.lt,
        "aten::mul": operator.mul,
        "aten::mul_": operator.imul,
        "aten::ne": operator.ne,
        "aten::neg": operator.neg,
        "aten::numel": lambda tensor: tensor.numel(),
        "aten::pop": _pop,
        "aten::pow": operator.pow,
        "aten::remainder": operator.mod,
        "aten::remove": lambda items, item: items.remove(item),
        "aten::reverse": lambda items: items.reverse(),
        "aten::setdefault": lambda items, key, value: items.setdefault(key, value),
        "aten::size": lambda tensor, axis=None: list(tensor.shape) if axis is None else tensor.shape[axis],
        "aten::slice": _sliced,
        "aten::sort": _sort,
        "aten::sorted": sorted,
        "aten::sqrt": math.sqrt,
        "aten::sub": lambda one, other, alpha=1: one - other * alpha if alpha != 1 else one - other,
        "aten::sum": sum,
        "aten::update": lambda items, more: items.update(more),
        "aten::values": lambda items: list(items.values()),
        "aten::warn": lambda *_: None,
        "prim::DictConstruct": _dict,
        "prim::ListConstruct": lambda *items: list(items),
        "prim::NumToTensor": _number_tensor,
        "prim::Print": lambda *_: None,
        "prim::TupleConstruct": lambda *items: items,
        "prim::TupleIndex": operator.getitem,
        "prim::Uninitialized": lambda: None,
        "prim::abs": abs,
        "prim::data": lambda tensor: tensor.detach(),
        "prim::device": lambda tensor: tensor.device,
        "prim::dtype": lambda tensor: tensor.dtype,
        "prim::is_cuda": lambda tensor: tensor.is_cuda,
        "prim::max": max,
        "prim::min": min,
        "prim::type": lambda device: device.type,
        "prim::unchecked_cast": lambda value: value,
    }
)
"""Node kind to Python function, which takes the arguments of the node's schema."""


def run_mkldnn(node: Any, inputs: Sequence[Any]) -> Any:
    """Run a node whose kind is in ``MKLDNN`` on tensors in the plain layout.

    Args:
        node: The node.
        inputs: The values of its inputs.
    """
    kind = node.kind()
    if kind in MKLDNN:
        return MKLDNN[kind](node, *inputs)
    # The form that writes to its first argument.
    return inputs[0].copy_(MKLDNN[kind.removesuffix("_")](node, *inputs))


def _constant(node: Any) -> torch.Tensor:
    with disable_current_modes():
        dense: torch.Tensor = node.t("value").to_dense()
        return dense


def _to_plain(_node: Any, tensor: torch.Tensor, dtype: torch.dtype | None = None, *_: Any) -> torch.Tensor:
    # A copy, as in the script, which may write to it.
    return tensor.clone() if dtype is None else tensor.to(dtype, copy=True)


def _broadcast(_node: Any, *tensors: torch.Tensor) -> list[torch.Tensor]:
    # Clones of those that grow, as in the script, which may write to them.
    all_expanded: list[torch.Tensor] = torch.broadcast_tensors(*tensors)  # type: ignore[no-untyped-call]
    return [
        tensor if same_shape(expanded, tensor) else expanded.clone()
        for expanded, tensor in zip(all_expanded, tensors, strict=True)
    ]


def _convolution(
    _node: Any,
    tensor: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> torch.Tensor:
    no_output_padding = [0] * len(stride)
    return torch.convolution(tensor, weight, bias, stride, padding, dilation, False, no_output_padding, groups)


def _clamp(node: Any, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clamp(node.f("min_val"), node.f("max_val"))


def _layer_norm(
    _node: Any, tensor: torch.Tensor, shape: list[int], weight: Any, bias: Any, eps: float, _cudnn: Any
) -> Any:
    return F.layer_norm(tensor, shape, weight, bias, eps)


MKLDNN: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "aten::to_mkldnn": _to_plain,
        "prim::BroadcastMKLDNNTensors": _broadcast,
        "prim::ConstantMKLDNNTensor": _constant,
        "prim::MKLDNNClamp": _clamp,
        "prim::MKLDNNHardSigmoid": lambda _node, tensor: F.hardsigmoid(tensor),
        "prim::MKLDNNHardSwish": lambda _node, tensor: F.hardswish(tensor),
        "prim::MKLDNNHardTanh": _clamp,
        "prim::MKLDNNLayerNorm": _layer_norm,
        "prim::MKLDNNScalarMul": lambda _node, tensor, factor: tensor * factor,
        "prim::mkldnn_convolution": _convolution,
    }
)
"""Node kind to its function, which takes the node and its inputs."""
