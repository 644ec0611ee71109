"""Coverage by the runs of a proof: the branches and loops of the program, and the operators that the model runs."""

from __future__ import annotations

import dis
import math
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import CodeType, FrameType, FunctionType, MappingProxyType, MethodType
from typing import Any, NamedTuple, TypeAlias

import torch

from fxonnx_translations._torch_compat import OpOverload, TorchDispatchMode, pytree

from ..._capture import Assumption
from ..._capture.eager_runs import is_plain
from ..._provenance import source_line
from ..._user_files import is_user_frame
from .record import unproved

__all__ = ["FILLS", "MOVES", "CodePath", "Coverage"]


@dataclass
class Coverage:
    """The branches and loops of a captured program, with the numbers of their calls in each run.

    Args:
        module: The module of the captured program.
    """

    module: torch.fx.GraphModule
    _runs: list[Mapping[str, int]] = field(default_factory=list)
    _first: int = 0

    def __post_init__(self) -> None:
        self._branches: dict[str, Assumption] = {}
        self._loops: dict[str, Assumption] = {}
        for path, node in _control_flow(self.module):
            names = [f"{path}{argument.target}" for argument in node.all_input_nodes if argument.op == "get_attr"]
            if node.target is torch.ops.higher_order.cond:
                for name, value in zip(names, ("true", "false"), strict=False):
                    self._branches[name] = unproved(self._line(name, node), f"the branch for {value}")
            else:
                self._loops[names[1]] = unproved(self._line(names[1], node), "a different number of iterations")

    def _line(self, name: str, node: torch.fx.Node) -> str:
        """The first line of a subgraph, or of its operator if the subgraph is empty."""
        graph: Any = self.module.get_submodule(name).graph
        traced = [one for one in graph.nodes if one.op == "call_function" and one.meta.get("stack_trace")]
        return source_line(traced[0] if traced else node)

    def add(self, calls: Mapping[str, int]) -> None:
        """Add the calls of one run, by path of the subgraph."""
        self._runs.append(dict(calls))

    def begin(self) -> None:
        """Begin with runs at other sizes."""
        self._first = len(self._runs)

    @property
    def has_loops(self) -> bool:
        """Whether the program has loops."""
        return bool(self._loops)

    @property
    def has_untaken(self) -> bool:
        """Whether there is a branch, or the body of a loop, that no run at these sizes has called."""
        runs = self._runs[self._first :]
        return not all(any(run.get(name) for run in runs) for name in (*self._branches, *self._loops))

    def missing(self) -> tuple[Assumption, ...]:
        """The branches that no run has taken, and the loops with the same number of iterations in all runs."""
        branches = [part for name, part in self._branches.items() if not any(run.get(name) for run in self._runs)]
        loops = [part for name, part in self._loops.items() if len({run.get(name, 0) for run in self._runs}) < 2]
        return tuple(dict.fromkeys([*branches, *loops]))


def _control_flow(module: torch.fx.GraphModule) -> Iterator[tuple[str, torch.fx.Node]]:
    """The nodes of ``cond`` and ``while_loop``, also inside of subgraphs, with the path of the graph."""
    operators = (torch.ops.higher_order.cond, torch.ops.higher_order.while_loop)
    for name, part in module.named_modules():
        if isinstance(part, torch.fx.GraphModule):
            path = f"{name}." if name else ""
            yield from ((path, node) for node in part.graph.nodes if node.target in operators)


# Resizing to the same size is exact in all modes.
MOVES = frozenset(
    {
        *("view", "_unsafe_view", "_reshape_alias", "alias", "detach", "clone", "contiguous", "as_strided", "copy_"),
        *("lift_fresh", "lift_fresh_copy"),
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
FILLS = frozenset(
    {
        *("zeros", "ones", "full", "scalar_tensor", "new_zeros", "new_ones", "new_full"),
        *("zeros_like", "ones_like", "full_like"),
    }
)
_MOST_ELEMENTS = 64
"""Of tensors whose numbers are compared one by one."""
_RANDOM = torch.Tag.nondeterministic_seeded
_RANGES = frozenset({"arange", "linspace"})
"""Operators whose numbers are sizes."""


class CodePath:
    """The operators of the first of several runs, except those that only move values, for comparison with other runs.

    A branch that clamps large values, or that reads a value and decides by it, agrees with the other one for most
    inputs. A branch that only pads, slices or repeats does so for none if it does not for random ones.
    """

    def __init__(self, *, at_edges: bool = True) -> None:
        self.at_edges = at_edges
        """Whether the runs after the first one are at edges, which may ask further conditions."""
        self._first: _Recorder | None = None
        self._first_program: Callable[[], object] = object
        self._steps: set[_Step] = set()
        self._further: set[_Step] = set()

    def is_same(self, run: Callable[[], object], program: Callable[[], object], model: Any, *, has_loops: bool) -> bool:
        """Whether a run calls the operators of the first one, with the same numbers and types.

        What is computed from sizes alone, such as the center of an image, or what an attribute keeps of another call
        with these sizes, is another value at other sizes, and then one that the program computes there as well.

        Args:
            run: Calls the model.
            program: Calls the program with the same inputs.
            model: The model, whose attributes may keep tensors of other calls.
            has_loops: Whether the program has loops, which run the operators of the model more or less often.
        """
        with _Recorder(_kept(model)) as recorder, _recorded_steps() as steps:
            run()
        is_edge = self._first is not None and self.at_edges
        (self._further if is_edge else self._steps).update(steps)
        if self._first is None:
            self._first, self._first_program = recorder, program
        if self._first.calls == recorder.calls:
            return True
        differing = _differing(self._first.on_inputs, recorder.on_inputs)
        if differing is None and has_loops:
            differing = _differing(_once(self._first.on_inputs), _once(recorder.on_inputs))
        if differing is None:
            return False
        kept = self._first.others
        others = [one for one in _distinct(recorder.others) if not any(_are_close(one, other) for other in kept)]
        with _Known(others) as known:
            program()
        # A value that the program has at all sizes may be the model's by accident: another operator has it.
        with _Known(others) as before:
            self._first_program()

        def are_new(numbers: Sequence[float]) -> bool:
            return all(map(known.has, numbers)) and not all(map(before.has, numbers))

        for index, one in enumerate(others):
            is_found, numbers = known.has_tensor(index), known.numbers_of(one)
            # Each number of a small grid is one of larger grids too.
            is_new = are_new(numbers) or (is_found and len(numbers) > 1 and not before.has_tensor(index))
            if not (is_new if numbers else is_found):
                return False
        return (not differing.constants or are_new(differing.constants)) and all(map(known.has_call, differing.calls))

    @property
    def is_decided(self) -> bool:
        """Whether the runs at edges have taken both ways at each condition that no run before them asks.

        A condition that only the edge asks may have another answer at further sizes.
        """
        asked = {(code, offset) for code, offset, _ in self._steps}
        ways: defaultdict[tuple[CodeType, int], set[int]] = defaultdict(set)
        for code, offset, following in self._further:
            if offset >= 0 and (code, offset) not in asked:
                ways[code, offset].add(following)
        return all(
            len(ways[code, offset]) > 1
            for code, offset in list(ways)
            if dis.opname[code.co_code[offset]].startswith(("POP_JUMP", "JUMP_IF"))
        )


_Step: TypeAlias = tuple[CodeType, int, int]
"""An instruction of user code and the following one, by their offsets."""


@contextmanager
def _recorded_steps() -> Iterator[set[_Step]]:
    """Record the instructions of user code that run inside the context."""
    found: set[_Step] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not is_user_frame(frame):
            return None
        last = -1

        def step(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal last
            if event == "opcode":
                found.add((frame.f_code, last, frame.f_lasti))
                last = frame.f_lasti
            return step

        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return step

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield found
    finally:
        sys.settrace(before)


class _Recorder(TorchDispatchMode):
    """Records the calls of operators that compute, with the constants among their operands.

    A constant that only becomes a part of another tensor, as the padding of a sequence does, is not recorded.

    Attributes:
        calls: The calls.
        on_inputs: Those with an operand that is not computed from sizes alone.
        others: Their operands that are, or that no operator of the run has computed.

    Args:
        kept: Tensors that count as computed from sizes, by their memory.
    """

    def __init__(self, kept: Mapping[int, torch.Tensor]) -> None:
        super().__init__()
        self._kept = kept
        self.calls: list[tuple[Any, ...]] = []
        self.on_inputs: list[tuple[Any, ...]] = []
        self.others: list[torch.Tensor] = []
        self._constants: dict[int, tuple[torch.Tensor, Any]] = {}
        self._of_sizes: dict[int, torch.Tensor] = {}
        self._of_inputs: set[int] = set()

    def __torch_dispatch__(
        self, func: OpOverload[Any, Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, kwargs = func._schema.name.partition("::")[2], kwargs or {}
        tensors = _tensors((args, (*kwargs.values(),)))
        if name.startswith("lift_fresh"):  # of torch.tensor: an earlier tensor may have had the memory
            self._of_inputs -= set(map(_memory, tensors))
        operands = [self._constants.get(_memory(one)) for one in tensors]
        others = [one for one in tensors if _memory(one) not in self._of_inputs]
        if func._schema.is_mutable:
            written = set(map(_memory, tensors))
            others = [one.clone() for one in others]
            self.others = [one.clone() if _memory(one) in written else one for one in self.others]
        are_of_sizes = (_memory(one) in self._of_sizes or _memory(one) in self._kept for one in tensors)
        is_of_sizes = all(are_of_sizes) and _RANDOM not in func.tags
        result = func(*args, **kwargs)
        call = str(func), () if name in _RANGES else _numbers(func, args, kwargs)
        constants = [constant for _, constant in filter(None, operands)]
        for tensor in _tensors(result):
            memory = _memory(tensor)
            self._constants.pop(memory, None)
            is_literal = name.startswith("lift_fresh") and tensor.numel() <= _MOST_ELEMENTS
            if name in FILLS or is_literal or (name in MOVES and constants and len(constants) == len(operands)):
                content = [str(number) for number in tensor.flatten().tolist()] if is_literal else constants
                # The tensor is kept, so that no other one has its memory.
                self._constants[memory] = tensor, call if name in FILLS else content
            # An earlier tensor may have had the memory.
            self._of_sizes.pop(memory, None)
            self._of_inputs.discard(memory)
            if is_of_sizes:
                self._of_sizes[memory] = tensor
            elif name not in MOVES or len(others) < len(tensors):
                self._of_inputs.add(memory)
        if name not in MOVES and name not in FILLS:
            self.calls.append((*call, constants))
        if not is_of_sizes and (name not in MOVES or len(others) < len(tensors)):
            self.others += others
            self.on_inputs += [(*call, constants)] if name not in MOVES and name not in FILLS else []
        return result


_Call: TypeAlias = tuple[Any, ...]
"""An operator, its numbers and its constants."""


class _Differing(NamedTuple):
    """The calls with other numbers in a second run, and the numbers of its other constants."""

    calls: list[_Call]
    constants: list[float]


def _differing(one: Sequence[_Call], other: Sequence[_Call]) -> _Differing | None:
    """The differences of the calls of two runs; None if they differ in more than numbers."""
    if len(one) != len(other):
        return None
    found = _Differing([], [])
    for mine, theirs in zip(one, other, strict=True):
        numbers = _other_numbers(mine[2], theirs[2])
        if mine[0] != theirs[0] or numbers is None:
            return None
        found.constants.extend(numbers)
        if mine[1] != theirs[1]:
            found.calls.append(theirs)
    return found


def _once(calls: Sequence[_Call]) -> Sequence[_Call]:
    """The calls without those that an earlier one repeats."""
    return list({repr(call): call for call in calls}.values())


def _other_numbers(one: Any, other: Any) -> list[float] | None:
    """The numbers of constants in the place of other numbers of others; None if they differ in more."""
    if one == other:
        return []
    if isinstance(one, str) and isinstance(other, str):
        try:
            return [float(number) for number in (one, other)][1:]
        except ValueError:
            return None
    if not isinstance(one, list | tuple) or type(one) is not type(other) or len(one) != len(other):
        return None
    parts = [_other_numbers(*pair) for pair in zip(one, other, strict=True)]
    return None if None in parts else [number for part in parts for number in part or ()]


def _have_same_numbers(one: _Call, other: _Call) -> bool:
    """Whether two calls have the same numbers, but for the rounding of float32."""
    if one[0] != other[0] or len(one[1]) != len(other[1]):
        return False
    return all(
        name == key and (value == text or _is_close(value, text))
        for (name, value), (key, text) in zip(one[1], other[1], strict=True)
    )


def _is_close(one: str, other: str) -> bool:
    try:
        return math.isclose(float(one), float(other), rel_tol=1e-6)
    except ValueError:
        return False


class _Known(TorchDispatchMode):
    """Records the calls of operators with their numbers, and the numbers in small operands and results.

    Args:
        others: Tensors to find among the operands and results.
    """

    supports_higher_order_operators = True

    def __init__(self, others: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._missing = {index: one.clone() for index, one in enumerate(others)}
        self._calls: list[_Call] = []
        self._numbers: set[float] = set()

    def __torch_dispatch__(
        self, func: OpOverload[Any, Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            # A loop or branch, whose functions torch would run without the mode.
            return func(*pytree.tree_map_only(FunctionType | MethodType, self._recorded, tuple(args)), **kwargs)
        result = func(*args, **kwargs)
        self._calls.append((str(func), _numbers(func, args, kwargs)))
        leaves = pytree.tree_leaves((args, kwargs))
        self._numbers |= {float(leaf) for leaf in leaves if isinstance(leaf, int | float)}
        for tensor in _tensors((args, (*kwargs.values(),), result)):
            self._numbers |= set(self.numbers_of(tensor))
            self._missing = {index: one for index, one in self._missing.items() if not _are_close(one, tensor)}
        return result

    def _recorded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with self:
                return function(*args)

        return call

    def has_tensor(self, index: int) -> bool:
        """Whether a tensor is found as a whole."""
        return index not in self._missing

    def numbers_of(self, tensor: torch.Tensor) -> list[float]:
        """The elements of a small tensor, by which it is found; none of others."""
        is_small = tensor.numel() <= _MOST_ELEMENTS and not tensor.is_complex()
        return tensor.double().flatten().tolist() if is_small else []

    def has_call(self, call: _Call) -> bool:
        """Whether an operator has been called with these numbers."""
        return any(_have_same_numbers(one, call) for one in self._calls)

    def has(self, number: float) -> bool:
        """Whether a number is one of an operand or a result, but for the rounding of float32."""
        place = bisect_left(self._sorted, number)
        return any(math.isclose(number, one, rel_tol=1e-6) for one in self._sorted[max(place - 1, 0) : place + 1])

    @cached_property
    def _sorted(self) -> list[float]:
        """The numbers, once all of them are recorded."""
        return sorted(number for number in self._numbers if not math.isnan(number))


def _distinct(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors without small ones that are the same as an earlier one, as loops compute them."""
    return list(
        {
            (one.dtype, one.shape, tuple(one.flatten().tolist()) if one.numel() <= _MOST_ELEMENTS else id(one)): one
            for one in tensors
        }.values()
    )


def _are_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether tensors have the same elements in the same order, apart from rounding."""
    if one.numel() != other.numel() or one.dtype != other.dtype:
        return False
    # Not all operators exist for booleans and 8 bits.
    wide = torch.complex128 if one.is_complex() else torch.float64
    one, other = one.flatten().to(wide), other.flatten().to(wide)
    rounding = 1e-6 * float(one.abs().nan_to_num(0.0, 0.0, 0.0).amax()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=1e-6, atol=rounding, equal_nan=True)


def _kept(model: Any) -> dict[int, torch.Tensor]:
    """The tensors in attributes of a model, without its parameters, by their memory, which no other tensor gets."""
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    leaves = (leaf for module in modules for leaf in pytree.tree_leaves(vars(module)))
    tensors = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and is_plain(leaf))
    return {_memory(tensor): tensor for tensor in tensors if not isinstance(tensor, torch.nn.Parameter)}


def _tensors(values: Any) -> list[torch.Tensor]:
    """The tensors among the operands or results of an operator, which are no deeper than in lists."""
    if isinstance(values, torch.Tensor):
        return [values]
    return [one for each in values for one in _tensors(each)] if isinstance(values, list | tuple) else []


def _memory(tensor: torch.Tensor) -> int:
    """The storage of a tensor, which its views share."""
    return int(tensor.untyped_storage()._cdata)


def _numbers(func: OpOverload[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The numbers, flags, texts and dtypes among the arguments of a call, without sizes and axes."""
    kinds = _arguments(func)
    given = {**dict(zip(kinds, args, strict=False)), **kwargs}
    return tuple(
        (name, str(value))
        for name, value in sorted(given.items())
        if isinstance(value, bool | float | str | torch.dtype)
        or (isinstance(value, int) and kinds.get(name) in ("number", "Scalar", "Tensor"))
    )


@lru_cache(maxsize=512)
def _arguments(func: OpOverload[Any, Any]) -> Mapping[str, str]:
    """The names and types of the parameters of an operator, in their order; torch makes new objects at each access."""
    return MappingProxyType({one.name: str(one.type) for one in func._schema.arguments})
