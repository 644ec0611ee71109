"""Weights and states of a model as torch.export sees them: in buffers, with symbolic sizes where they grow.

torch.export copies tensors that forward assigns to buffers (``self.k = torch.cat([self.k, x], 1)``) into the buffers of
the model itself, one after the other: not into those of its submodules, and wrongly if a buffer receives another one's
tensor. Here all of them become writes at the end of forward.

It also replaces the entries of the tables of parameters and buffers by fake tensors. Other references to a weight, as
in a list or a closure, still have the real tensor, which would become a constant, and whose value Python would read
unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
    statically_known_true,
    sym_eq,
)

from fxonnx_translations._torch_compat import ConstantSource, TorchCall, get_proxy_mode, get_proxy_slot, int_oo

from .._written_parameters import written_placeholders
from .constraints.guard_recorder import SourceLine, line_of_node
from .patches.patch import Patch, applied
from .suspicions.attribute_uses import SourceFiles, methods_of

__all__ = [
    "AssignedBuffers",
    "Reassignment",
    "UnknownStates",
    "growing_dims",
    "held_in_buffers",
    "held_weights",
    "merge_tied_tensors",
]


@dataclass(frozen=True)
class UnknownStates:
    """Tensors of a model that become inputs, whose values at the export are not known to the capture.

    Attributes:
        names: FQNs of the parameters and buffers.
        axes: FQN to the axes whose sizes differ between calls.
        branches_on_sizes: Whether the program has the branches of conditions on these sizes, as of values of tensors.
    """

    names: frozenset[str] = frozenset()
    axes: Mapping[str, frozenset[int]] = field(default_factory=dict)
    branches_on_sizes: bool = False


@contextmanager
def held_in_buffers(model: torch.nn.Module, states: UnknownStates) -> Iterator[None]:
    """Context in which states that are plain attributes, whose values torch.export knows, are buffers."""
    moved: list[tuple[torch.nn.Module, str, torch.Tensor, bool]] = []
    try:
        for path in sorted(states.names):
            prefix, _, name = path.rpartition(".")
            owner = attrgetter(prefix)(model) if prefix else model
            if isinstance(owner, torch.nn.Module) and isinstance(vars(owner).get(name), torch.Tensor):
                moved.append((owner, name, vars(owner)[name], name in owner._non_persistent_buffers_set))
                owner._buffers[name] = vars(owner).pop(name)
                owner._non_persistent_buffers_set.add(name)
        yield
    finally:
        for owner, name, tensor, was_marked in moved:
            owner._buffers.pop(name, None)
            if not was_marked:
                owner._non_persistent_buffers_set.discard(name)
            vars(owner)[name] = tensor


def growing_dims(model: torch.nn.Module, states: UnknownStates) -> AbstractContextManager[None]:
    """Context in which torch.export gives symbols to the growing axes of buffers."""
    if not states.axes:
        return nullcontext()
    axes = {id(attrgetter(name)(model)): (name, found) for name, found in states.axes.items()}
    # torch has no value for an unbacked size, and hence no guard on it.
    kind = DimDynamic.UNBACKED if states.branches_on_sizes else DimDynamic.DYNAMIC
    return applied(
        [
            Patch(
                "torch._subclasses.fake_tensor:FakeTensorConverter.from_real_tensor",
                partial(_with_dynamic_axes, axes, kind),
                "the sizes of buffers are constants of the program",
                needs=(ConstantSource,),
            ),
            Patch(
                "torch.fx.experimental.symbolic_shapes:ShapeEnv.create_symbol",
                _symbol_that_may_be_zero,
                "its symbols are positive, and a cache may begin with no rows",
                needs=(ConstantSource,),
            ),
            Patch(
                "torch.fx.experimental.symbolic_shapes:DimConstraints.solve",
                _with_names_of_all_sizes,
                "it raises an IndexError for conditions on sizes that are not those of inputs",
                needs=(ConstantSource,),
            ),
        ]
    )


def _with_names_of_all_sizes(original: Callable[[Any], None], constraints: Any) -> None:
    """``DimConstraints.solve`` with a name for each symbol; the conditions on states are checked after the capture."""
    names = constraints._dcp.symbol_to_source
    conditions = [
        *constraints._multivariate_inequalities,
        *constraints._univariate_inequalities,
        *constraints._congruences,
    ]
    for symbol in {symbol for condition in conditions for symbol in condition.free_symbols}:
        names[symbol] = names.get(symbol) or [ConstantSource(str(symbol))]
    original(constraints)


def _with_dynamic_axes(
    axes: Mapping[int, tuple[str, frozenset[int]]],
    kind: DimDynamic,
    original: Callable[..., Any],
    converter: Any,
    mode: Any,
    tensor: torch.Tensor,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """``FakeTensorConverter.from_real_tensor`` with symbols for the sizes of growing axes."""
    found = axes.get(id(tensor))
    if found is None or mode.shape_env is None:
        return original(converter, mode, tensor, *args, **kwargs)
    name, dynamic = found
    kinds = [kind if axis in dynamic else DimDynamic.STATIC for axis in range(tensor.dim())]
    context: Any = StatelessSymbolicContext(dynamic_sizes=kinds)
    source = ConstantSource(name)
    with mode.shape_env.ignore_fresh_unbacked_symbols():
        return original(converter, mode, tensor, shape_env=mode.shape_env, source=source, symbolic_context=context)


def _symbol_that_may_be_zero(
    original: Callable[..., sympy.Expr], environment: ShapeEnv, value: Any, source: Any, *args: Any, **options: Any
) -> sympy.Expr:
    """``ShapeEnv.create_symbol``, which does not assume that sizes of buffers are positive."""
    if not isinstance(getattr(source, "base", None), ConstantSource):
        return original(environment, value, source, *args, **options)
    size = original(environment, value, source, *args, **{**options, "positive": None})
    if isinstance(size, sympy.Symbol):
        environment.constrain_symbol_range(size, 0, int_oo)
    return size


_PLACE = re.compile(r"(.+):(\d+) in (.+)")


@dataclass(frozen=True)
class Reassignment:
    """A buffer whose value after forward cannot be its value before the next call of a program.

    Attributes:
        name: FQN of the buffer.
        problem: The change by forward.
        line: The line, if it is known.
    """

    name: str
    problem: str
    line: str

    def __str__(self) -> str:
        return f"{self.name!r}: {self.problem}" + (f" at {self.line}" if self.line else "")


class AssignedBuffers:
    """The buffers of a model before a traced call of forward."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._tables: list[tuple[dict[str, Any], dict[str, Any], str]] = []
        self._model = model
        seen: set[int] = set()
        for path, module in model.named_modules():
            table = module._buffers
            if table and id(table) not in seen:
                seen.add(id(table))
                self._tables.append((table, dict(table), f"{path}." if path else ""))

    def write(self) -> list[Reassignment]:
        """Write the assigned tensors to the buffers of before, which are those of the model again.

        Returns:
            The buffers that have no such value, or one of another kind.
        """
        changed = [
            (f"{path}{name}", old, table.get(name))
            for table, before, path in self._tables
            for name, old in before.items()
            if isinstance(old, torch.Tensor) and table.get(name) is not old
        ]
        if not changed:
            return []
        kept = {
            id(old): name for table, before, _ in self._tables for name, old in before.items() if table.get(name) is old
        }
        for table, before, _ in self._tables:
            table.update(before)
        refused: list[Reassignment] = []
        writes: dict[int, tuple[str, torch.Tensor, torch.Tensor]] = {}
        for name, old, new in changed:
            problem = _problem(old, new, [other for _, tensor, other in changed if tensor is old])
            if problem is None and id(old) in kept:
                problem = f"it is also {kept[id(old)]!r} before the call only"
            if problem is not None:
                refused.append(Reassignment(name, problem, str(self._line(name, new) or "")))
            if isinstance(new, torch.Tensor) and new.dtype == old.dtype:
                writes[id(old)] = name, old, new
        memory = {_memory(old) for _, old, _ in writes.values()}
        # The values of all of them first: one may be the tensor of another.
        values = [new.clone() if _memory(new) in memory else new for _, _, new in writes.values()]
        for (name, old, new), value in zip(writes.values(), values, strict=True):
            written = _node(_written(old, value))
            for node in () if written is None else (written, *written.all_input_nodes):
                if node.op == "call_function" and line_of_node(node) is None:
                    node.meta["stack_trace"] = self._stack_trace(name, new)
        return refused

    def _line(self, name: str, new: Any) -> SourceLine | None:
        """The line that computes the new tensor of a buffer, or else the one that assigns it."""
        node = _node(new) if isinstance(new, torch.Tensor) else None
        found = None if node is None else line_of_node(node)
        if found is None:
            path, _, attribute = name.rpartition(".")
            owner = self._model.get_submodule(path)
            found = SourceFiles({type(owner): None}).changing_line(attribute, methods_of(owner))
        return found

    def _stack_trace(self, name: str, new: torch.Tensor) -> str:
        """The stack trace of the write of a buffer: that of the new tensor, if an operator computes it."""
        node = _node(new)
        if node is not None and line_of_node(node) is not None:
            return str(node.meta["stack_trace"])
        line = self._line(name, new)
        match = None if line is None else _PLACE.fullmatch(line.place)
        return "" if match is None else f'File "{match[1]}", line {match[2]}, in {match[3]}'


def _problem(old: torch.Tensor, new: Any, others: list[Any]) -> str | None:
    """Why a tensor cannot be the next value of a buffer; None if it can."""
    if not isinstance(new, torch.Tensor):
        return f"it becomes {'None' if new is None else type(new).__name__}"
    if new.dtype != old.dtype:
        return f"its dtype becomes {new.dtype} instead of {old.dtype}"
    if new.dim() != old.dim():
        return f"its rank becomes {new.dim()} instead of {old.dim()}"
    if any(other is not new for other in others):
        return "it is a tensor with several names, which become different tensors"
    return None


def _written(old: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Record the write of a tensor to a buffer."""
    target = old.detach() if old.requires_grad and old.is_leaf else old
    if target.dim() == value.dim() and statically_known_true(sym_eq(tuple(target.shape), tuple(value.shape))):
        return target.copy_(value)
    # Of another shape, the tensor becomes the buffer; a clone, since torch compares the size with a view's memory.
    result: torch.Tensor = target.set_(value.clone())  # type: ignore[call-overload]
    return result


def _node(tensor: torch.Tensor) -> torch.fx.Node | None:
    """The node of a traced tensor."""
    mode = get_proxy_mode()
    slot = None if mode is None else get_proxy_slot(tensor, mode.tracer, None)
    proxy = getattr(slot, "proxy", slot)
    return proxy.node if isinstance(proxy, torch.fx.Proxy) else None


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def merge_tied_tensors(program: ExportedProgram) -> None:
    """Let a program that writes a tensor with several names read and write it under the first one."""
    stored: Mapping[str, Any] = program.state_dict
    if len({id(tensor) for tensor in stored.values()}) == len(stored):
        return
    named: dict[int, list[torch.fx.Node]] = {}
    nodes = program.graph.find_nodes(op="placeholder")
    for spec, node in zip(program.graph_signature.input_specs, nodes, strict=True):
        if spec.target in stored:
            named.setdefault(id(stored[spec.target]), []).append(node)
    tied = [found for found in named.values() if len(found) > 1]
    written = written_placeholders(program.graph) if tied else set()
    for first, *others in tied:
        if not written.isdisjoint(node.name for node in (first, *others)):
            for node in others:
                node.replace_all_uses_with(first)


_Tables: TypeAlias = Mapping[int, tuple[Mapping[str, Any], str]]
"""``id`` of a weight to the table that has it, and its name there."""

_PLAIN = (torch.nn.Parameter, torch.Tensor)
# They are about the tensor itself, not about its values.
_IDENTITY = frozenset({"data_ptr", "untyped_storage", "storage"})

_LONGEST_LIST = 1000
"""Lists of tensors are shorter; longer ones are data."""


@contextmanager
def held_weights(model: torch.nn.Module) -> Iterator[None]:
    """Use the fake tensor of a weight also where the model holds the weight itself."""
    patch = Patch(
        "torch._export.non_strict_utils:_NonStrictTorchFunctionHandler._override",
        partial(_override, _weight_tables(model)),
        "torch.export makes a constant of a weight that is not in the tables of its module, and reads its value",
        strict=False,
    )
    with applied((patch,)):
        yield


def _weight_tables(model: torch.nn.Module) -> _Tables:
    """The places of the parameters and buffers of a model."""
    return {
        id(tensor): (table, name)
        for module in model.modules()
        for table in (module._parameters, module._buffers)
        for name, tensor in table.items()
        if type(tensor) in _PLAIN
    }


def _override(
    tables: _Tables,
    original: Callable[..., TorchCall],
    self: Any,
    func: Callable[..., Any],
    args: Any,
    kwargs: Any,
) -> TorchCall:
    """``_NonStrictTorchFunctionHandler._override``: the fake tensors of weights in place of these in the arguments."""

    def current(value: Any) -> Any:
        if type(value) in _PLAIN and (place := tables.get(id(value))) is not None:
            return place[0].get(place[1], value)
        return value

    def all_current(value: Any) -> Any:
        is_list = type(value) in (list, tuple) and len(value) <= _LONGEST_LIST
        return type(value)(map(current, value)) if is_list else current(value)

    if getattr(func, "__name__", "") not in _IDENTITY:
        args = tuple(map(all_current, args))
        kwargs = {name: all_current(value) for name, value in kwargs.items()} if kwargs else kwargs
    return original(self, func, args, kwargs)
