"""Loops with a data-dependent number of iterations: ``torch.while_loop``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from fxonnx_translations._torch_compat import FakeTensor, TreeSpec, check, get_proxy_mode, sym_max

from ...patches import copying_operands
from .conditionals import (
    add_output,
    describe,
    placeholder,
    refuse_shared,
    reject_kept_lists,
)
from .growing_lists import Chunks, GrowingList, check_not_empty, tried_lists
from .sequences import StackedList, integer
from .state import Objects, Slot, State, containers_in, refuse_change_and_assignment, unchanged_objects
from .values import (
    NUMBER_DEVICE,
    UNBOUND,
    Refuse,
    Uses,
    as_condition,
    is_dynamic_size,
    is_number,
    is_symbolic,
    is_traced,
    lifted,
    merged,
    number_dtype,
    number_of,
    number_tensor,
    observed,
    operands_of,
    same_shape,
    separate,
    shares,
    unknown_values,
)

__all__ = ["Counter", "Counting", "symbolic_loop"]

_MAX_TRIALS = 6
_LAST = -1
"""``leaf`` of the last item of a list to which the loop adds items."""


@dataclass(frozen=True)
class Counting:
    """A ``while`` loop that counts: an iteration changes a variable by the same step.

    Attributes:
        start: Returns the value of the counter.
        step: Returns the number that each iteration adds to it.
        sides: Returns the sides of the test, the smaller one first, for a value of the counter.
        sign: Whether the difference of the sides falls (-1) or grows (1) with the counter.
        is_inclusive: Whether the loop goes on while both sides are equal.
        sized: Returns the variables that the loop changes and whose sizes the test reads.
        assign: Sets the counter.
        name: Name of the counter.
        is_used: Whether the counter is read after the loop.
    """

    start: Callable[[], Any]
    step: Callable[[], Any]
    sides: Callable[[Any], tuple[Any, Any]]
    sign: int
    is_inclusive: bool
    sized: Callable[[], Sequence[Any]]
    assign: Callable[[Any], None]
    name: str
    is_used: bool

    def count(self, *, data_dependent: bool, static: bool = False) -> Any:
        """The number of iterations, which may be negative; None if it is not known."""
        start, step = self.start(), self.step()
        if type(step) is not int or step * self.sign >= 0 or not is_number(start):
            return None
        if not all(isinstance(value, torch.Tensor) for value in self.sized()):
            return None
        smaller, larger = self.sides(start)
        gap: Any = integer(larger - smaller) if data_dependent else larger - smaller
        if not (is_dynamic_size(gap) or (static and type(gap) is int)) or (is_symbolic(gap) and not data_dependent):
            return None
        if self.is_inclusive:
            gap = gap + 1
        return gap if abs(step) == 1 else (gap + abs(step) - 1) // abs(step)


class Counter:
    """The index of the iteration of a ``for`` loop: a tensor that the loop carries.

    Attributes:
        last: The last index that was read, as a number.
        has_chunks: Whether operators in the loop ask whether a chunk of a dim is empty.
    """

    def __init__(self, count: Any, span: tuple[Any, int] | None = None) -> None:
        self.count = count
        self.span = span
        self.last: Any = None
        self.has_chunks = False
        self.tensor = torch.zeros((), dtype=torch.int64, device=NUMBER_DEVICE)

    def index(self) -> Any:
        """The index as a number, with its limits."""
        index: Any = self.tensor.item()
        check(index >= 0)
        check(index < self.count)
        if self.has_chunks:
            check_not_empty(index, self.count, self.span)
        self.last = index
        return index


@dataclass
class _Carry:
    """One tensor that the loop carries.

    Attributes:
        part: Index of the variable.
        leaf: Index of the leaf in its value.
        dtype: The dtype of a number; None for a tensor.
        initial: The value before the first iteration.
        is_written: Whether iterations write it in place.
    """

    part: int
    leaf: int
    dtype: torch.dtype | None
    initial: torch.Tensor
    is_written: bool = False


@dataclass
class _Growth:
    """A list to which each iteration adds items.

    Attributes:
        part: Index of the variable.
        like: The tensors that one iteration adds.
        last: The last item before the loop; None for an empty list.
        at_front: Whether they are inserted before the others.
        is_filtered: Whether a branch of a condition does not add some of them.
        chunks: The sizes of the items if they differ.
        carry: The last item, if iterations read it.
    """

    part: int
    like: list[torch.Tensor]
    last: torch.Tensor | None
    at_front: bool = False
    is_filtered: bool = False
    chunks: Chunks | None = None
    carry: _Carry | None = None

    @property
    def buffers(self) -> int:
        """The number of buffers for the items."""
        return len(self.like) if self.chunks is None else 1

    def extended(
        self, before: Any, parts: list[torch.Tensor], length: Any, kept: torch.Tensor | None, counter: Counter | None
    ) -> StackedList:
        """The list after the loop.

        ``length`` is None if the iterations fill the buffers, ``kept`` if all have added each of the items.
        """
        if self.chunks is not None and counter is not None:
            return self.chunks.extended(before, parts[0], counter.count)
        return StackedList.extended(before, parts, length, kept, at_front=self.at_front)


@dataclass
class _Plan:
    """The values that a loop carries, its variables before it, and how it is refused."""

    state: State
    start: list[Slot]
    counter: Counter | None
    refuse: Refuse
    carries: list[_Carry] = field(default_factory=list)
    growths: list[_Growth] = field(default_factory=list)
    specs: dict[int, tuple[list[Any], TreeSpec]] = field(default_factory=dict)
    # The variables to which an iteration assigns another list or dict.
    assigned: set[int] = field(default_factory=set)
    # The carried tensors after an iteration, of a loop in another construct that is tried: it asks for no values.
    tried: list[torch.Tensor] | None = None

    def entered(self, carried: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The carried tensors at the start of an iteration: bodies must not write their arguments."""
        return [
            shares(value.clone(), value) if carry.is_written else value
            for carry, value in zip(self.carries, carried, strict=True)
        ]

    def slots(self, carried: Sequence[torch.Tensor], *, growing: bool = True) -> list[Slot]:
        """The variables during an iteration, or after the loop."""
        made = list(self.start)
        leaves = {part: list(values) for part, (values, _) in self.specs.items()}
        last: dict[int, torch.Tensor] = {}
        for carry, value in zip(self.carries, carried, strict=False):
            if carry.leaf == _LAST:
                last[carry.part] = value
                continue
            leaves[carry.part][carry.leaf] = value if carry.dtype is None else number_of(value)
        for part, (_, spec) in self.specs.items():
            keep = isinstance(self.start[part].value, list | dict) and part not in self.assigned
            made[part] = self.start[part].with_leaves(leaves[part], spec, keep=keep)
        if growing:
            for growth in self.growths:
                made[growth.part] = Slot.of(GrowingList(last.get(growth.part, growth.last)))
        return made


def symbolic_loop(
    keep_going: Callable[[], Any],
    step: Callable[[], None],
    state: State,
    counter: Counter | None,
    refuse: Refuse,
    recount: Callable[[], bool] | None = None,
) -> None:
    """Run a loop as ``torch.while_loop``.

    ``recount`` runs the loop with a counter, which lists require, and returns whether it has one.
    """
    shared = state.shared()
    start = state.read()
    plan = _Plan(state, start, counter, refuse)
    try:
        uses = _tried(plan, keep_going, step)
    except GuardOnDataDependentSymNode:
        if counter is None:
            raise
        # An operator asks whether a chunk is empty, and none is. Without need, the number of each node would change.
        counter.has_chunks = True
        plan = _Plan(state, start, counter, refuse)
        uses = _tried(plan, keep_going, step)
    if plan.growths and recount is not None and recount():
        return
    operands = operands_of([uses], refuse, (carry.initial for carry in plan.carries))
    written = operands.written
    constant = {key: tensor for key, tensor in operands.tensors.items() if key not in written}
    buffers = _buffers(plan)
    first: list[torch.Tensor] = [
        *([] if counter is None else [counter.tensor]),
        *(carry.initial for carry in plan.carries),
        *buffers,
        *(operands.tensors[key] for key in written),
    ]
    additional = (*constant.values(), *operands.numbers())
    head = 0 if counter is None else 1
    size = head + len(plan.carries)

    def enter(given: Sequence[Any]) -> dict[int, torch.Tensor]:
        if counter is not None:
            counter.tensor = given[0]
        inner = dict(zip(written, given[size + len(buffers) :], strict=False))
        return inner | dict(zip(constant, given[len(first) :], strict=False))

    def condition(*given: Any) -> torch.Tensor:
        with _restored(plan), lifted(enter(given)):
            state.write(plan.slots(given[head:size]))
            return as_condition(keep_going()).clone()

    def body(*given: Any) -> tuple[torch.Tensor, ...]:
        if plan.tried is not None:
            return tuple(tensor.clone() for tensor in (*given[:head], *plan.tried, *given[size : len(first)]))
        with _restored(plan), lifted(inner := enter(given)):
            operands.clone_written(inner)
            state.write(plan.slots(plan.entered(given[head:size])))
            step()
            after = state.read()
            values = [_carried_value(carry, after, inner) for carry in plan.carries]
            stored = _store(plan, given[size : size + len(buffers)], after, given, inner)
        counted = [] if counter is None else [given[0] + 1]
        return tuple(separate([*counted, *values, *stored, *(inner[key] for key in written)], given))

    carried = tuple(separate(first, additional))
    with unknown_values():
        results = torch.ops.higher_order.while_loop(condition, copying_operands(body), carried, additional)
    # Results with gradients are views of a function of autograd, which refuses to write to them.
    results = [shares(value.clone(), value) if value.requires_grad else value for value in results]
    operands.write_back(results[size + len(buffers) :])
    after = plan.slots(results[head:size], growing=False)
    added_items = _split(plan, results[size : size + len(buffers)])
    for growth, (parts, kept) in zip(plan.growths, added_items, strict=True):
        if kept is not None and shared[growth.part]:
            refuse_shared(state.names[growth.part], refuse)
        before, length = start[growth.part].value, _length(state, results[0])
        after[growth.part] = Slot.of(growth.extended(before, parts, length, kept, counter))
    state.write(after)
    reject_kept_lists(state, after, (growth.part for growth in plan.growths), refuse)
    for part in plan.assigned:
        if shared[part] and after[part].is_container and start[part].is_container:
            merged([after[part].value, *(container for container, _ in start[part].containers)], refuse)
    if counter is not None:
        counter.tensor = results[0]


def _tried(plan: _Plan, keep_going: Callable[[], Any], step: Callable[[], None]) -> Uses:
    """The values that iterations on trial use, until the variables and types that the loop carries are known."""
    state, counter = plan.state, plan.counter
    for _ in range(_MAX_TRIALS):
        with observed():
            carried = [_without_value(carry.initial) for carry in plan.carries]
            index = torch.zeros((), dtype=torch.int64, device=NUMBER_DEVICE)
        versions = [tensor._version for tensor in carried]
        with (
            unchanged_objects((keep_going, step), plan.refuse) as objects,
            tried_lists(slot.value for slot in plan.start if type(slot.value) is list),
            observed([*carried, index]) as used,
            _restored(plan),
        ):
            if counter is not None:
                counter.tensor = index
            state.write(plan.slots(carried))
            before = state.read()
            as_condition(keep_going())
            step()
            after = state.read()
            _note_assigned(plan, before, after, objects)
        if not _revise(plan, before, after):
            for carry, tensor, version in zip(plan.carries, carried, versions, strict=True):
                carry.is_written = tensor._version != version
                if carry.leaf != _LAST:
                    add_output(used, after[carry.part], carry.leaf)
            for growth in plan.growths:
                growing = after[growth.part].value
                growth.like, growth.at_front = list(growing.added), bool(growing.at_front)
                growth.is_filtered = any(kept is not True for kept in growing.kept)
                _chunks(plan, growth, used)
                for tensor in growth.like:
                    used.add(tensor)
                    used.add_sizes(tensor)
            if get_proxy_mode() is None:
                plan.tried = [_carried_value(carry, after, {}) for carry in plan.carries]
            return used
    return plan.refuse(
        "the types of its variables differ in each iteration", "assign values of the same type in every iteration"
    )


def _chunks(plan: _Plan, growth: _Growth, used: Uses) -> None:
    """Note the sizes of the items that iterations add to a list if their shapes differ."""
    shapes: list[Any] = [size for item in growth.like for size in item.shape]
    sizes = [size.node.expr for size in shapes if isinstance(size, torch.SymInt)]
    if all(used.is_outer(symbol) for size in sizes for symbol in size.free_symbols):
        return
    # Every iteration appends its chunks, in the order of the dim, to a list whose other items are known.
    is_regular = not (plan.state.site.flags or growth.at_front or growth.is_filtered)
    counter, before = plan.counter, plan.start[growth.part].value
    if is_regular and type(before) is list and counter is not None and counter.last is not None:
        growth.chunks = Chunks.of(growth.like, counter.last, counter.count, counter.span)
    if growth.chunks is None:
        plan.refuse(
            f"the items that it adds to {plan.state.names[growth.part]} differ in their shape",
            "append tensors of one shape in every iteration, or chunks of a constant size that torch.cat joins: "
            "x[i : i + 32] for i in range(0, x.shape[0], 32)",
        )


def _note_assigned(plan: _Plan, before: Sequence[Slot], after: Sequence[Slot], objects: Objects) -> None:
    """Note the variables whose list or dict is another object after an iteration."""
    for part, (old, new) in enumerate(zip(before, after, strict=True)):
        if new.value is old.value or not new.is_container:
            continue
        name = plan.state.names[part]
        if old.is_changed:
            refuse_change_and_assignment(name, plan.refuse)
        if any(objects.contains(item) for item in containers_in(new.value)):
            plan.refuse(
                f"{name} becomes an object that exists before the iteration", f"assign a copy: {name} = [*items]"
            )
        plan.assigned.add(part)


def _without_value(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor whose value is not known, since it differs in each iteration."""
    copied = tensor.clone()
    if isinstance(copied, FakeTensor):
        copied.constant = None
    return copied


def _revise(plan: _Plan, before: Sequence[Slot], after: Sequence[Slot]) -> bool:
    """Add the values that an iteration changes to the plan; return whether there are any."""
    changed = False
    for part, name in enumerate(plan.state.names):
        if name not in plan.state.site.needed:
            continue
        if isinstance(after[part].value, GrowingList):
            changed = _carry_last(plan, part, after[part].value) or changed
            continue
        if _is_growth(before[part], after[part]):
            like = after[part].items[: len(after[part].items) - len(before[part].items)]
            if not all(isinstance(item, torch.Tensor) for item in like):
                plan.refuse(f"{name} grows by values that are not tensors", "append tensors only")
            plan.growths.append(_Growth(part, like, _last_of(plan.start[part].value)))
            changed = True
            continue
        changed = _revise_part(plan, part, before[part], after[part]) or changed
    return changed


def _last_of(items: Any) -> torch.Tensor | None:
    """The last item of a list before a loop; None if there is none, or if the length of the list is not known."""
    last = items[-1] if type(items) is list and items else None
    return last if isinstance(last, torch.Tensor) else None


def _carry_last(plan: _Plan, part: int, growing: GrowingList) -> bool:
    """Carry the last item of a list if an iteration reads it; return whether the plan changes."""
    (growth,) = (growth for growth in plan.growths if growth.part == part)
    if not growing.is_last_read or growth.carry is not None:
        return False
    name = f"the last item of {plan.state.names[part]}"
    growth.carry = _carry(part, _LAST, name, growth.last, growing.like_last(), plan.refuse)
    plan.carries.append(growth.carry)
    return True


def _revise_part(plan: _Plan, part: int, before: Slot, after: Slot) -> bool:
    name = plan.state.names[part]
    leaves, spec = after.flatten()
    if plan.start[part].value is UNBOUND:
        initial, now = [UNBOUND] * len(leaves), [UNBOUND] * len(leaves)
        if before.value is not UNBOUND:
            now = before.flatten()[0]
        if after.value is UNBOUND:
            return False
    else:
        initial, expected = plan.start[part].flatten()
        now = before.flatten()[0]
        if expected != spec:
            plan.refuse(
                f"{name} is {describe(plan.start[part].value)} before the loop and {describe(after.value)} after an "
                "iteration",
                "start with a value of the same type and structure, such as torch.zeros(...)",
            )
    known = {carry.leaf: carry for carry in plan.carries if carry.part == part}
    changed = False
    for leaf, (first, value, result) in enumerate(zip(initial, now, leaves, strict=True)):
        if value is result or (
            leaf not in known and not is_traced(value) and not is_traced(result) and value == result
        ):
            continue
        carry = _carry(part, leaf, name, first, result, plan.refuse)
        if leaf not in known:
            plan.carries.append(carry)
            changed = True
        elif _kind(carry) != _kind(known[leaf]):
            plan.carries[plan.carries.index(known[leaf])] = carry
            changed = True
    if changed:
        plan.specs[part] = (initial, spec)
    return changed


def _carry(part: int, leaf: int, name: str, first: Any, result: Any, refuse: Refuse) -> _Carry:
    """The carried tensor for a leaf with its value before the loop and after an iteration."""
    if isinstance(result, torch.Tensor):
        if first is UNBOUND:
            return _Carry(part, leaf, None, placeholder(result))
        if is_number(first) and result.dim() == 0:
            return _Carry(part, leaf, None, number_tensor(first, result.dtype, result))
        if isinstance(first, torch.Tensor) and first.dtype == result.dtype and same_shape(first, result):
            return _Carry(part, leaf, None, first)
    elif is_number(result):
        if first is UNBOUND or is_number(first):
            known = [result] if first is UNBOUND else [first, result]
            dtype = number_dtype(known)
            return _Carry(part, leaf, dtype, number_tensor(0 if first is UNBOUND else first, dtype))
        if isinstance(first, torch.Tensor) and first.dim() == 0:
            return _Carry(part, leaf, None, first)
    return refuse(
        f"{name} is {describe(first)} before the loop and {describe(result)} after an iteration",
        "start with a tensor of the same shape and dtype, such as torch.zeros(...)",
    )


def _kind(carry: _Carry) -> tuple[torch.dtype | None, torch.dtype, int]:
    return carry.dtype, carry.initial.dtype, carry.initial.dim()


def _carried_value(carry: _Carry, after: Sequence[Slot], inner: dict[int, torch.Tensor]) -> torch.Tensor:
    slot = after[carry.part]
    if carry.leaf == _LAST:
        last: torch.Tensor = slot.value.last()
        return inner.get(id(last), last)
    value = UNBOUND if slot.value is UNBOUND else slot.flatten()[0][carry.leaf]
    if value is UNBOUND:
        return carry.initial.clone()
    if is_number(value) or carry.dtype is not None:
        return number_tensor(value, carry.dtype or carry.initial.dtype, carry.initial)
    tensor: torch.Tensor = inner.get(id(value), value)
    return tensor


def _is_growth(before: Slot, after: Slot) -> bool:
    """Whether a list has more items, and the same ones at its beginning or its end."""
    if not (before.is_container and after.value is before.value and isinstance(before.value, list)):
        return False
    count, items = len(before.items), after.items
    return len(items) > count and any(
        all(one is other for one, other in zip(before.items, kept, strict=True))
        for kept in (items[:count], items[len(items) - count :])
    )


def _buffers(plan: _Plan) -> list[torch.Tensor]:
    """Zeros for the items that iterations add to lists, and for whether they do."""
    if not plan.growths:
        return []
    if plan.counter is None:
        plan.refuse("it adds items to a list, whose length is not known before the loop", "use a for loop over a range")
    count: Any = plan.counter.count
    if not isinstance(count, int):
        count = sym_max(count, 0)
    buffers = []
    for growth in plan.growths:
        if growth.chunks is not None:
            buffers.append(growth.chunks.buffer(growth.like[0]))
            continue
        buffers += [torch.zeros((count, *like.shape), dtype=like.dtype, device=like.device) for like in growth.like]
        if growth.is_filtered:
            size = len(growth.like)
            buffers.append(torch.zeros((count, size), dtype=torch.bool, device=growth.like[0].device))
    return buffers


def _store(
    plan: _Plan,
    buffers: Sequence[torch.Tensor],
    after: Sequence[Slot],
    given: Sequence[Any],
    inner: dict[int, torch.Tensor],
) -> list[torch.Tensor]:
    """Write the added items to the buffers."""
    remaining, stored = iter(buffers), []
    for growth in plan.growths:
        growing = after[growth.part].value
        items = [inner.get(id(item), item) for item in growing.added]
        if growth.chunks is not None:
            stored.append(growth.chunks.stored(next(remaining), items, given[0]))
            continue
        if growth.is_filtered:
            kept = torch.stack([as_condition(kept) for kept in growing.kept])
            items.append(kept.to(growth.like[0].device))
        for item in items:
            buffer, index = next(remaining), given[0].reshape(1)
            position = buffer.shape[0] - 1 - index if growth.at_front else index
            stored.append(shares(torch.index_put(buffer, (position,), item.unsqueeze(0)), buffer, item))
    return stored


def _split(plan: _Plan, buffers: Sequence[torch.Tensor]) -> list[tuple[list[torch.Tensor], torch.Tensor | None]]:
    """The buffers of each list: its items, and whether iterations have added them."""
    given = iter(buffers)
    return [
        ([next(given) for _ in range(growth.buffers)], next(given) if growth.is_filtered else None)
        for growth in plan.growths
    ]


def _length(state: State, counter: torch.Tensor) -> Any:
    """The number of iterations if a flag may have ended the loop; None if it is known before."""
    if not state.site.flags:
        return None
    length = counter.item()
    check(length >= 0)
    return length


@contextmanager
def _restored(plan: _Plan) -> Iterator[None]:
    """Restore the variables and the counter on exit."""
    counter = plan.counter
    tensor = None if counter is None else counter.tensor
    try:
        yield
    finally:
        plan.state.write(plan.start)
        if counter is not None and tensor is not None:
            counter.tensor = tensor
