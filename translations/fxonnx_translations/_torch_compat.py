"""Private names of torch, imported in this module only, for both packages.

All of them exist in torch 2.13 to 2.15. When a version renames or removes one, this module provides it under the same
name for every version, with a comment that names the version. The names at the top are those without which no program
could be exported; the others belong to features, which end where their name does not exist.

Names for which torch has no types, or types without symbolic sizes, have them here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ._optional_names import find_name, find_names

try:
    from torch._C import DispatchKey
    from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel
    from torch._decomp import decomposition_table
    from torch._dynamo import config as dynamo_config
    from torch._export.non_strict_utils import _NonStrictTorchFunctionHandler
    from torch._guards import TracingContext
    from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
    from torch.fx.experimental import _config as _shape_config
    from torch.fx.experimental.proxy_tensor import get_proxy_mode
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass
    from torch.utils._pytree import TreeSpec
    from torch.utils._sympy import functions as sympy_functions
    from torch.utils._sympy.functions import CeilToInt, FloorDiv, IntTrueDiv, Mod, PythonMod
    from torch.utils._sympy.functions import Max as _Max
    from torch.utils._sympy.functions import Min as _Min
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy
except ImportError as error:
    raise ImportError(
        f"error[FX010]: torch {torch.__version__} does not have a private name that every export needs: {error}\n"
        "hint: fxonnx is tested with torch 2.13 to 2.15: install one of these versions, or a newer fxonnx"
    ) from error

TorchCall: TypeAlias = tuple[Callable[..., Any], Any, Any]
"""A function of torch with its arguments and keyword arguments, as ``ExportFunctions`` replaces it."""

ExportFunctions: Callable[[], Any] = _NonStrictTorchFunctionHandler
Max: Any = _Max
Min: Any = _Min
shape_config: Any = _shape_config

arange: Callable[..., torch.Tensor] = torch.arange
check: Callable[..., None] = torch._check
scalar_tensor: Callable[..., torch.Tensor] = torch.scalar_tensor
sym_float: Callable[[Any], Any] = torch.sym_float
sym_int: Callable[[Any], Any] = torch.sym_int
sym_ite: Callable[[Any, Any, Any], Any] = torch.sym_ite
sym_log2: Callable[[Any], Any] = vars(torch)["_sym_log2"]
sym_max: Callable[[Any, Any], Any] = torch.sym_max
sym_min: Callable[[Any, Any], Any] = torch.sym_min
sym_not: Callable[[Any], Any] = torch.sym_not
sym_sqrt: Callable[[Any], Any] = torch.sym_sqrt

if TYPE_CHECKING:
    from torch import _VF as variable_functions
    from torch import _prims as prims
    from torch import _prims_common as prims_common
    from torch._C import DisableTorchFunction, parse_schema
    from torch._C import Node as ScriptNode
    from torch._C import Value as ScriptValue
    from torch._C import _exit_dual_level as exit_dual_level
    from torch._C import _functorch as functorch
    from torch._C import _jit_pass_inline as jit_pass_inline
    from torch._C import _set_grad_enabled as set_grad_enabled
    from torch._C._autograd import _unsafe_set_version_counter as set_version_counters
    from torch._dynamo.exc import UncapturedHigherOrderOpError
    from torch._dynamo.source import ConstantSource
    from torch._functorch import predispatch
    from torch._higher_order_ops.scan import scan
    from torch._prims_common import is_contiguous
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        UnsupportedOperatorException,
        disable_fake_tensor_cache,
        in_kernel_invocation_manager,
    )
    from torch._subclasses.functional_tensor import FunctionalTensor
    from torch.fx import _symbolic_trace as fx_tracing
    from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule
    from torch.fx.experimental.proxy_tensor import _temp_remove_pre_dispatch_torch_function_mode as recording_mode_off
    from torch.fx.experimental.proxy_tensor import (
        get_proxy_slot,
        set_proxy_slot,
    )
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv as vmap_for_positions
    from torch.utils._mode_utils import no_dispatch
    from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes
    from torch.utils._sympy.solve import try_solve
    from torch.utils._sympy.value_ranges import ValueRangeError
    from torch.utils.weak import WeakTensorKeyDictionary
    from typing_extensions import Self

    class TorchDispatchMode:
        """``torch.utils._python_dispatch.TorchDispatchMode`` with types."""

        def __enter__(self) -> Self: ...

        def __exit__(self, *error: object) -> None: ...

else:
    variable_functions = find_name("torch._VF")
    prims = find_name("torch._prims")
    prims_common = find_name("torch._prims_common")
    DisableTorchFunction = find_name("torch._C:DisableTorchFunction")
    ScriptNode = find_name("torch._C:Node")
    ScriptValue = find_name("torch._C:Value")
    exit_dual_level = find_name("torch._C:_exit_dual_level")
    functorch = find_name("torch._C:_functorch")
    jit_pass_inline = find_name("torch._C:_jit_pass_inline")
    set_grad_enabled = find_name("torch._C:_set_grad_enabled")
    set_version_counters = find_name("torch._C._autograd:_unsafe_set_version_counter")
    parse_schema = find_name("torch._C:parse_schema")
    UncapturedHigherOrderOpError = find_name("torch._dynamo.exc:UncapturedHigherOrderOpError")
    ConstantSource = find_name("torch._dynamo.source:ConstantSource")
    predispatch = find_name("torch._functorch.predispatch")
    scan = find_name("torch._higher_order_ops.scan:scan")
    is_contiguous = find_name("torch._prims_common:is_contiguous")
    DataDependentOutputException = find_name("torch._subclasses.fake_tensor:DataDependentOutputException")
    DynamicOutputShapeException = find_name("torch._subclasses.fake_tensor:DynamicOutputShapeException")
    UnsupportedOperatorException = find_name("torch._subclasses.fake_tensor:UnsupportedOperatorException")
    disable_fake_tensor_cache = find_name("torch._subclasses.fake_tensor:disable_fake_tensor_cache")
    in_kernel_invocation_manager = find_name("torch._subclasses.fake_tensor:in_kernel_invocation_manager")
    FunctionalTensor = find_name("torch._subclasses.functional_tensor:FunctionalTensor")
    fx_tracing = find_name("torch.fx._symbolic_trace")
    LazyGraphModule = find_name("torch.fx._lazy_graph_module:_LazyGraphModule")
    recording_mode_off = find_name("torch.fx.experimental.proxy_tensor:_temp_remove_pre_dispatch_torch_function_mode")
    get_proxy_slot = find_name("torch.fx.experimental.proxy_tensor:get_proxy_slot")
    set_proxy_slot = find_name("torch.fx.experimental.proxy_tensor:set_proxy_slot")
    vmap_for_positions = find_name("torch.nn.attention.flex_attention:_vmap_for_bhqkv")
    no_dispatch = find_name("torch.utils._mode_utils:no_dispatch")
    TorchDispatchMode = find_name("torch.utils._python_dispatch:TorchDispatchMode")
    disable_current_modes = find_name("torch.utils._python_dispatch:_disable_current_modes")
    try_solve = find_name("torch.utils._sympy.solve:try_solve", lambda expression, symbol: None)
    ValueRangeError = find_name("torch.utils._sympy.value_ranges:ValueRangeError")
    WeakTensorKeyDictionary = find_name("torch.utils.weak:WeakTensorKeyDictionary")

_scripted_functions = find_name("torch.jit._state:_python_cu.get_functions", lambda: [None])


def has_scripted_functions() -> bool:
    """Whether the process has functions that were scripted or traced by ``torch.jit``."""
    return bool(_scripted_functions())


check_is_size = find_name("torch:_check_is_size")
make_wrapper_subclass: Callable[..., Any] = find_name("torch:Tensor._make_wrapper_subclass")

_TABLE_OWNERS = find_names(
    "torch.overrides",
    "torch.utils._device",
    "torch._dynamo.trace_rules",
    "torch._dynamo.variables.torch",
    "torch._dynamo.variables.builtin:BuiltinVariable",
    "torch._dynamo.variables.torch:TorchInGraphFunctionVariable",
)
function_tables: tuple[Any, ...] = tuple(
    function
    for owner in _TABLE_OWNERS
    for function in (getattr(owner, name, None) for name in vars(owner))
    if hasattr(function, "cache_clear") and function.__module__ in (owner.__name__, owner.__dict__.get("__module__"))
)
"""Cached functions that return tables of torch's functions, such as those that a device context affects."""

_dispatch_mode = find_name("torch._C:_get_dispatch_mode")
_FAKE = find_name("torch._C:_TorchDispatchModeKey.FAKE")


def current_fake_mode() -> FakeTensorMode | None:
    """The active mode in which tensors have no data, or None."""
    mode: FakeTensorMode | None = _dispatch_mode(_FAKE)
    return mode


global_hooks: tuple[dict[int, Any], ...] = find_names(
    "torch.nn.modules.module:_global_forward_hooks", "torch.nn.modules.module:_global_forward_pre_hooks"
)
"""The hooks of ``torch.nn.modules.module.register_module_forward_hook`` and ``register_module_forward_pre_hook``."""

recording_mode: Callable[[], Any] = find_name("torch._export.utils:_maybe_find_pre_dispatch_tf_mode_for_export")
"""torch.export's mode that records calls in this thread, or None."""

__all__ = [
    "CeilToInt",
    "ConstantSource",
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
    "PythonMod",
    "ScriptNode",
    "ScriptValue",
    "TorchCall",
    "TorchDispatchMode",
    "TracingContext",
    "TreeSpec",
    "UncapturedHigherOrderOpError",
    "UnsupportedOperatorException",
    "ValueRangeError",
    "ValueRanges",
    "WeakTensorKeyDictionary",
    "arange",
    "bound_sympy",
    "check",
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
    "has_scripted_functions",
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
    "scalar_tensor",
    "scan",
    "set_grad_enabled",
    "set_proxy_slot",
    "set_version_counters",
    "shape_config",
    "sym_float",
    "sym_int",
    "sym_ite",
    "sym_log2",
    "sym_max",
    "sym_min",
    "sym_not",
    "sym_sqrt",
    "sympy_functions",
    "try_solve",
    "unset_fake_temporarily",
    "variable_functions",
    "vmap_for_positions",
]
