"""Faster versions of functions of torch that every captured operator goes through.

Each replacement returns the same result as the original, so that the captured program is the same with and without it.
In order: generated code, source locations, torch functions, unbacked symbols.
"""

from __future__ import annotations

import linecache
import operator
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from traceback import FrameSummary, StackSummary
from types import FrameType
from typing import Any

import torch

from fxonnx_translations._torch_compat import (
    DisableTorchFunction,
    FakeTensor,
    LazyGraphModule,
    in_kernel_invocation_manager,
    is_contiguous,
    prims_common,
)

from ..._inner_tensors import is_wrapper
from ..constraints.size_forms import (
    CACHED_OPERATIONS,
    cached_expression,
    cached_layout_check,
    decide_relation,
    maybe_as_int,
    remainder,
    sym_node_operation,
)
from . import shape_rules
from .patch import Patch, PatchKind, StandIn, ValuePatch, is_tracing

__all__ = ["SPEED_PATCHES", "filter_frames"]

_TORCH = os.path.dirname(torch.__file__) + os.sep
_GENERATED = "<eval_with_key>"
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def graph_module_class(original: Callable[[], type[torch.fx.GraphModule]]) -> type[torch.fx.GraphModule]:
    """``_get_graph_module_cls``: the class that generates Python code when it is called, not when it is created."""
    return LazyGraphModule


def create_graph_module(original: Callable[..., Any], root: Any, graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """``_create_graph_module_for_export`` with the same class."""
    return LazyGraphModule(root, graph)


class UserStacks(StandIn):
    """The class ``CapturedTraceback`` for ``torch.fx.proxy``, which only formats the frames from ``forward`` on.

    torch resolves the source lines of all frames of the process, and then drops its own files. In the
    subgraphs of ``cond`` and loops, the innermost frames are code that TorchDynamo has generated, with the number of
    the compilation as file name: they are replaced by the user's lines that the code was generated from.
    """

    def __init__(self, original: Any) -> None:
        super().__init__(original)
        self._frames: dict[tuple[str, int, str], FrameSummary] = {}

    def extract(self) -> Any:
        """Capture the stack of the caller; its ``summary()`` is the result."""
        return _UserStack(self._frames, sys._getframe(1)) if is_tracing() else self._original.extract()


class _UserStack:
    """The stack of a node, from the outermost ``forward`` to the innermost frame."""

    def __init__(self, known: dict[tuple[str, int, str], FrameSummary], frame: FrameType | None) -> None:
        self._known = known
        self._keys: list[tuple[str, int, str]] = []
        self._generated: torch.fx.Node | None = None
        outermost = 0
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(_GENERATED):
                # Only the innermost one: its node has the whole stack in the traced function.
                self._generated = self._generated or _generating_node(frame)
            else:
                self._keys.append((code.co_filename, frame.f_lineno or 0, code.co_name))
            if code.co_name == "forward":
                outermost = len(self._keys)
            # torch.export's function that calls the model.
            frame = None if code.co_name == "_non_strict_export" else frame.f_back
        del self._keys[outermost:]

    def summary(self) -> StackSummary:
        """The frames, outermost first."""
        stack = StackSummary()
        for key in reversed(self._keys):
            frame = self._known.get(key)
            if frame is None:
                frame = self._known[key] = FrameSummary(*key)
            stack.append(frame)
        if self._generated is not None:
            trace = self._generated.meta.get("stack_trace") or ""
            stack.extend(
                _TracedFrame(file, int(line), name)
                for file, line, name in _FRAME.findall(trace)
                if not file.startswith(_TORCH)
            )
        return stack


class _TracedFrame(FrameSummary):
    """A frame of a function that TorchDynamo has traced."""


def filter_frames(original: Callable[..., StackSummary], tracer: Any, stack: StackSummary) -> StackSummary:
    """``_filter_traceback_frames``, which keeps frames with the name ``forward``; traced functions are kept as well."""
    kept = {id(frame) for frame in original(tracer, stack)}
    return StackSummary.from_list([frame for frame in stack if id(frame) in kept or isinstance(frame, _TracedFrame)])


def _generating_node(frame: FrameType) -> torch.fx.Node | None:
    """The node of TorchDynamo's graph that the current line of generated code calls; None if it is not known."""
    module = frame.f_locals.get("self")
    name, assigns, _ = linecache.getline(frame.f_code.co_filename, frame.f_lineno).partition("=")
    if not isinstance(module, torch.fx.GraphModule) or not assigns:
        return None
    return next((node for node in module.graph.nodes if node.name == name.strip()), None)


def without_torch_functions(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function that only reads tensors, without the modes that record or redirect functions of torch.

    torch.export holds three such modes while it traces, and each attribute that is read passes through all of them.
    """
    with DisableTorchFunction():
        return original(*args, **kwargs)


def record_value(original: Callable[..., Any], proxy: Any, value: Any) -> Any:
    """``set_meta`` without these modes, unless they record the inner tensors of a tensor subclass."""
    if type(value) is not FakeTensor and is_wrapper(value):
        return original(proxy, value)
    return without_torch_functions(original, proxy, value)


def extract_metadata(original: Callable[..., Any], result: torch.Tensor) -> Any:
    """``_extract_tensor_metadata`` without the name of the memory format, which ``meta["val"]`` tells with its strides.

    It asks three times for the layout of each symbolic result, and nothing reads the answer.
    """
    return original(result, include_contiguity=False)


def free_unbacked_symbols_with_path(
    original: Callable[..., Any], value: Any, path: Any, *args: Any, **kwargs: Any
) -> dict[Any, Any]:
    """``_free_unbacked_symbols_with_path``, which compares all sizes and strides with an empty set of symbols."""
    pending = kwargs.get("pending")
    if pending is not None and not pending:
        return {}
    result: dict[Any, Any] = original(value, path, *args, **kwargs)
    return result


_PATCHES: tuple[Patch, ...] = (
    Patch(
        "torch.fx._lazy_graph_module:_get_graph_module_cls",
        graph_module_class,
        "torch generates and compiles Python code for every intermediate graph module",
        needs=(LazyGraphModule,),
        strict=False,
    ),
    Patch(
        "torch.export.exported_program:_create_graph_module_for_export",
        create_graph_module,
        "torch generates and compiles the Python code of a program that is not called",
        needs=(LazyGraphModule,),
        strict=False,
    ),
    ValuePatch(
        "torch.fx.proxy:CapturedTraceback",
        UserStacks,
        "it resolves the source lines of all frames for every node",
    ),
    *(
        Patch(
            target,
            without_torch_functions,
            "every attribute of a tensor that is read passes through torch.export's modes for functions of torch",
            needs=(DisableTorchFunction,),
        )
        for target in (
            "torch.fx.experimental.proxy_tensor:track_tensor",
            "torch._subclasses.fake_tensor:FakeTensorMode.from_tensor",
        )
    ),
    Patch(
        "torch.fx.experimental.proxy_tensor:set_meta",
        record_value,
        "every attribute of a tensor that is read passes through torch.export's modes for functions of torch",
        needs=(DisableTorchFunction,),
    ),
    Patch(
        "torch.fx.experimental.proxy_tensor:_extract_tensor_metadata",
        extract_metadata,
        "torch compares the layout of each tensor with three memory formats, which nothing reads",
    ),
    Patch(
        "torch.fx.experimental.symbolic_shapes:_free_unbacked_symbols_with_path",
        free_unbacked_symbols_with_path,
        "torch searches all nodes for unbacked symbols even if the program has none",
    ),
    Patch(
        "torch._subclasses.fake_tensor:FakeTensorMode.dispatch",
        shape_rules.dispatch,
        "torch hashes all arguments for its cache, or runs a decomposition of many operators for one shape",
        needs=(in_kernel_invocation_manager, is_contiguous, prims_common),
    ),
    *(
        Patch(
            f"torch.fx.experimental.sym_node:SymNode._{name}",
            partial(sym_node_operation, name),
            "checks of memory layouts compute the same strides for every tensor",
        )
        for name in CACHED_OPERATIONS
    ),
    Patch(
        "torch.fx.experimental.sym_node:SymNode._mod",
        remainder,
        "sympy expands the products of sizes in views, and divides polynomials",
    ),
    *(
        Patch(
            f"torch._prims_common:{name}",
            cached_layout_check,
            "every operator evaluates the memory layout of its tensors again",
        )
        for name in ("is_contiguous", "is_channels_last_contiguous_2d", "is_channels_last_contiguous_3d")
    ),
    *(
        Patch(
            f"sympy.core.relational:{name}",
            partial(decide_relation, relation),
            "sympy takes milliseconds to find that assumptions do not decide a relation of strides",
        )
        for name, relation in (("is_eq", operator.eq), ("is_ge", operator.ge))
    ),
    ValuePatch(
        "torch.fx.experimental.sym_node:SymNode.expr",
        cached_expression,
        "it traverses the expression even if the result is cached",
    ),
    Patch(
        "torch.fx.experimental.sym_node:SymNode.maybe_as_int",
        maybe_as_int,
        "it evaluates assumptions of every subexpression",
    ),
)

SPEED_PATCHES: tuple[Patch, ...] = tuple(replace(patch, kind=PatchKind.SPEED) for patch in _PATCHES)
"""Applied by torch.export for speed: the captured program is the same without them."""
