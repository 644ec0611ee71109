"""Private names of torch, imported in this module only, for both packages.

All of them exist in torch 2.13 to 2.15. When a version renames or removes one, this module provides it under the same
name for every version, with a comment that names the version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import _VF as variable_functions
from torch import _prims as prims
from torch import _prims_common as prims_common
from torch._C import DisableTorchFunction, DispatchKey, parse_schema
from torch._C import Node as ScriptNode
from torch._C import Value as ScriptValue
from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel
from torch._C import _exit_dual_level as exit_dual_level
from torch._C import _functorch as functorch
from torch._C import _jit_pass_inline as jit_pass_inline
from torch._C import _set_grad_enabled as set_grad_enabled
from torch._decomp import decomposition_table
from torch._dynamo import config as dynamo_config
from torch._dynamo import trace_rules
from torch._dynamo.exc import UncapturedHigherOrderOpError
from torch._dynamo.variables import torch as dynamo_torch
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._export.non_strict_utils import _NonStrictTorchFunctionHandler as ExportFunctions
from torch._export.utils import _maybe_find_pre_dispatch_tf_mode_for_export
from torch._functorch import predispatch
from torch._guards import TracingContext
from torch._higher_order_ops.scan import scan
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._prims_common import is_contiguous
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    disable_fake_tensor_cache,
    in_kernel_invocation_manager,
    unset_fake_temporarily,
)
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx import _symbolic_trace as fx_tracing
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule
from torch.fx.experimental import _config as shape_config
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, get_proxy_mode, get_proxy_slot, set_proxy_slot
from torch.fx.experimental.proxy_tensor import _temp_remove_pre_dispatch_torch_function_mode as recording_mode_off
from torch.fx.passes.shape_prop import TensorMetadata
from torch.nn.attention.flex_attention import _vmap_for_bhqkv as vmap_for_positions
from torch.nn.modules import module as nn_module
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes
from torch.utils._pytree import TreeSpec
from torch.utils._sympy import functions as sympy_functions
from torch.utils._sympy.functions import CeilToInt, FloorDiv, IntTrueDiv, Max, Min, Mod, PythonMod
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.solve import try_solve
from torch.utils._sympy.value_ranges import ValueRangeError, ValueRanges, bound_sympy
from torch.utils.weak import WeakTensorKeyDictionary

check_is_size = torch._check_is_size
make_wrapper_subclass: Callable[..., Any] = torch.Tensor._make_wrapper_subclass

_TABLE_OWNERS = (
    *(torch.overrides, torch.utils._device, trace_rules, dynamo_torch),
    *(BuiltinVariable, TorchInGraphFunctionVariable),
)
function_tables: tuple[Any, ...] = tuple(
    function
    for owner in _TABLE_OWNERS
    for function in (getattr(owner, name) for name in vars(owner))
    if hasattr(function, "cache_clear") and function.__module__ in (owner.__name__, owner.__dict__.get("__module__"))
)
"""Cached functions that return tables of torch's functions, such as those that a device context affects."""


def current_fake_mode() -> FakeTensorMode | None:
    """The active mode in which tensors have no data, or None."""
    mode: FakeTensorMode | None = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return mode


global_hooks: tuple[dict[int, Any], ...] = (nn_module._global_forward_hooks, nn_module._global_forward_pre_hooks)
"""The hooks of ``torch.nn.modules.module.register_module_forward_hook`` and ``register_module_forward_pre_hook``."""

recording_mode: Callable[[], Any] = _maybe_find_pre_dispatch_tf_mode_for_export
"""torch.export's mode that records calls in this thread, or None."""

__all__ = [
    "CeilToInt",
    "DataDependentOutputException",
    "DisableTorchFunction",
    "DispatchKey",
    "DynamicOutputShapeException",
    "ExportFunctions",
    "FakeTensor",
    "FakeTensorMode",
    "FloorDiv",
    "FunctionalTensor",
    "HigherOrderOperator",
    "IntTrueDiv",
    "LazyGraphModule",
    "Max",
    "Min",
    "Mod",
    "OpOverload",
    "OpOverloadPacket",
    "ProxyTorchDispatchMode",
    "PythonMod",
    "ScriptNode",
    "ScriptValue",
    "TensorMetadata",
    "TorchDispatchMode",
    "TracingContext",
    "TreeSpec",
    "UncapturedHigherOrderOpError",
    "ValueRangeError",
    "ValueRanges",
    "WeakTensorKeyDictionary",
    "bound_sympy",
    "check_is_size",
    "current_fake_mode",
    "decomposition_table",
    "disable_current_modes",
    "disable_fake_tensor_cache",
    "dynamo_config",
    "exit_dual_level",
    "function_tables",
    "functorch",
    "fx_tracing",
    "get_proxy_mode",
    "get_proxy_slot",
    "global_hooks",
    "has_kernel",
    "in_kernel_invocation_manager",
    "int_oo",
    "is_contiguous",
    "is_traceable_wrapper_subclass",
    "jit_pass_inline",
    "make_wrapper_subclass",
    "no_dispatch",
    "parse_schema",
    "predispatch",
    "prims",
    "prims_common",
    "pytree",
    "recording_mode",
    "recording_mode_off",
    "scan",
    "set_grad_enabled",
    "set_proxy_slot",
    "shape_config",
    "sympy_functions",
    "try_solve",
    "unset_fake_temporarily",
    "variable_functions",
    "vmap_for_positions",
]
