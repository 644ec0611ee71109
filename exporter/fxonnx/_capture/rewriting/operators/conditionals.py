"""Branches on the value of a tensor: ``torch.cond``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true

from fxonnx_translations._torch_compat import TreeSpec, check, get_proxy_mode, pytree

from ...._context_values import activated, active
from ....errors import CaptureError
from ...data_dependence.concrete_values import active_values
from ...patches import copying_operands
from .growing_lists import Padding, Parts, grows_in_a_loop, selected
from .sequences import StackedList
from .state import Objects, Slot, State, containers_in, refuse_change_and_assignment
from .values import (
    UNBOUND,
    Refuse,
    Uses,
    as_condition,
    is_number,
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
    unknown_values,
    watched,
)

__all__ = [
    "SAME_TYPE",
    "Fork",
    "add_output",
    "decided",
    "describe",
    "placeholder",
    "refuse_shared",
    "reject_kept_lists",
    "run_to_end",
    "symbolic_branch",
    "traced_cond",
]

Branches = Sequence[Callable[[], Any]]
CaptureBranches = Callable[[Branches, "State | None"], Any]
Choose = Callable[[Any, Any], Any]
"""Returns one of two sizes, by a condition on sizes."""


@dataclass
class _Run:
    """The outcome of a branch.

    Attributes:
        result: The returned value.
        slots: The variables after it.
        changed: The indices of the variables whose list or dict before it has other items.
    """

    result: Slot
    slots: list[Slot]
    changed: set[int] = field(default_factory=set)

    def part(self, at: int) -> Slot:
        """The returned value, or a variable."""
        return self.result if at < 0 else self.slots[at]

    def pad(self, padding: Mapping[int, Padding]) -> None:
        """Add absent items to lists, by index of the variable."""
        for at, added in padding.items():
            self.slots[at] = replace(self.slots[at], content=added.content(self.slots[at].content))


@dataclass(frozen=True)
class _Output:
    """One tensor that both branches return.

    Attributes:
        part: Index of the variable; -1 is the returned value.
        leaf: Index of the leaf in it.
        dtype: The dtype of a number; None for a tensor.
        like: A tensor with the metadata of the other branch, for a variable that one branch does not define.
        axis: The axis of which the branches return different sizes, if it is the only one. It becomes the first axis of
            the operator's result: torch requires strides that are products of static sizes.
        shape: The shape, if the operator's result is flat: after a condition on sizes, if the branches return others,
            and where strides depend on data. A size that the operator returns as well is None.
        size: The axis of which the output is the size, in place of the tensor.
    """

    part: int
    leaf: int
    dtype: torch.dtype | None
    like: torch.Tensor | None = None
    axis: int = 0
    shape: tuple[Any, ...] | None = None
    size: int | None = None

    def value_of(self, result: torch.Tensor, sizes: Sequence[Any]) -> Any:
        """The value for a result of the operator, after those for the sizes of the shape that are None."""
        if self.dtype is not None:
            return number_of(result)
        if self.shape is not None:
            returned = iter(sizes)
            shape = [next(returned) if size is None else size for size in self.shape]
            check(result.shape[0] == math.prod(shape))
            return result.view(shape)
        return result.movedim(0, self.axis) if self.axis else result


@dataclass
class _Plan:
    """The values after a branch: leaves that are equal in both branches, and the outputs of the operator.

    ``padding`` has the lists to which the branches add different numbers of items. After a condition on sizes,
    ``choose`` gives the size for those of both branches, or None.
    """

    outputs: list[_Output] = field(default_factory=list)
    leaves: dict[int, list[Any]] = field(default_factory=dict)
    specs: dict[int, TreeSpec] = field(default_factory=dict)
    padding: dict[int, Padding] = field(default_factory=dict)
    choose: Choose | None = None

    def set_outputs(self, results: Sequence[torch.Tensor]) -> None:
        """Set the leaves that are results of the operator."""
        sizes: list[Any] = []
        for output, result in zip(self.outputs, results, strict=False):
            value = output.value_of(result, sizes)
            if output.size is not None:
                check(value >= 0)
                sizes.append(value)
            else:
                self.leaves[output.part][output.leaf] = value
                sizes = []


SAME_TYPE = "assign values of the same type"
"""The beginning of the hints about branches of different types."""


class _Asked(BaseException):
    """Leaves a function, with the arguments of ``decided``; no ``except Exception`` of the model handles it."""


_MOST_ANSWERS = 5
"""Each further condition doubles the branches, and runs each of them twice."""
_MOST_OPERATORS = 32 * 4**_MOST_ANSWERS
"""In all of these runs: some tens of seconds."""


@dataclass
class Fork:
    """A run of a function, or of a branch, to its end, with answers to those conditions that are no operators.

    Attributes:
        answers: The answers, in order; None in the body of a loop, where such conditions are operators.
        known: Conditions on sizes that the run has asked, with their answers.
        taken: The number of answers that the run has taken.
        uses: The tensors of the run.
    """

    answers: tuple[bool, ...] | None = ()
    uses: Uses = field(default_factory=Uses)
    known: dict[sympy.Basic, bool] = field(default_factory=dict)
    taken: int = 0


def decided(condition: Any, capture: CaptureBranches, refuse: Refuse, *, is_sized: bool) -> bool | None:
    """The answer to a condition whose branches go on to the end of a function; None if it has to be an operator.

    Without an answer, the function is left, and run to its end once for each; ``capture`` makes both an operator.
    """
    fork = active(Fork)
    if fork is None or fork.answers is None:
        return None
    expression = None if isinstance(condition, torch.Tensor) else condition.node.expr
    if expression in fork.known:
        return fork.known[expression]
    if fork.taken == _MOST_ANSWERS:
        return None
    if fork.taken == len(fork.answers):
        if len(fork.uses.own) * 4 ** (fork.taken + 1) > _MOST_OPERATORS:
            return None
        raise _Asked(capture, refuse, is_sized)
    answer = fork.answers[fork.taken]
    fork.taken += 1
    if expression is not None:
        fork.known[expression] = answer
    return answer


def run_to_end(
    function: Callable[[], Any], state: State | None = None, before: Sequence[Slot] = (), answers: tuple[bool, ...] = ()
) -> Any:
    """Run a function whose conditions may have branches of different types: both go on to its end.

    What it computes before such a condition is computed again in each branch, and must have no effect but its values.
    """
    mode, values = get_proxy_mode(), active_values()
    modules = None if mode is None else dict(mode.tracer.module_stack)
    objects = None if answers else Objects((function,))
    randoms = 0 if values is None else values.random_operators
    try:
        with watched() as uses, activated(Fork(answers, uses)):
            return function()
    except _Asked as asked:
        capture, refuse, is_sized = asked.args
    if mode is not None and modules is not None:
        # torch leaves the modules on it that the error has left.
        mode.tracer.module_stack.clear()
        mode.tracer.module_stack.update(modules)
    if state is not None:
        state.write(before)
    if objects is not None:
        objects.reject_changes(refuse)
    if uses.written:
        refuse("a tensor is modified in place before it", "write to a clone() of the tensor")
    if values is not None and values.random_operators != randoms:
        refuse("random numbers are drawn before it", "call model.eval(), or draw them after the condition")

    def branch(*answer: bool) -> Callable[[], Any]:
        # The sizes for which a branch is traced answer conditions on them.
        return lambda: run_to_end(function, state, before, (*answers, *answer[is_sized:]))

    return capture((branch(True), branch(False)), state)


def symbolic_branch(
    condition: Any, branches: Branches, state: State | None, refuse: Refuse, choose: Choose | None = None
) -> Any:
    """Run a branch of a data-dependent condition as ``torch.cond``.

    The condition is a tensor of one element, or a number that depends on tensors; on sizes, with ``choose``.
    """
    shared = [] if state is None else state.shared()
    before = [] if state is None else state.read()
    runs, uses = [], []
    # A branch on sizes is an object that runs it.
    objects = Objects([getattr(branch, "branch", branch) for branch in branches])
    for branch in branches:
        with observed() as used:
            runs.append(_run(branch, state, before))
        objects.reject_changes(refuse)
        uses.append(used)
    for run in runs:
        _reject_lost_changes(run, state, before, refuse)
    plan = _plan(runs, before, state, refuse, choose)
    for output in plan.outputs:
        for run, used in zip(runs, uses, strict=True):
            add_output(used, run.part(output.part), output.leaf)
        if output.like is not None:
            uses[0].add_sizes(output.like)
    operands = operands_of(uses, refuse)
    numbers = operands.numbers()
    is_tried = get_proxy_mode() is None

    def traced(branch: Callable[[], Any], tried: _Run) -> Callable[..., Any]:
        def run(*given: Any) -> tuple[torch.Tensor, ...]:
            inner = dict(zip(operands.tensors, given, strict=False))
            operands.clone_written(inner)
            if is_tried:
                # Around it, another construct is tried, which asks for the kinds of the results only.
                results = [_as_output(tried, output, inner).clone() for output in plan.outputs]
            else:
                with lifted(inner):
                    outcome = _run(branch, state, before)
                    objects.reject_changes(refuse)
                    outcome.pad(plan.padding)
                    results = [_as_output(outcome, output, inner) for output in plan.outputs]
            return tuple(separate([*results, *(inner[key] for key in operands.written)], given))

        vars(run)["branch"] = branch
        return copying_operands(run)

    results: Sequence[torch.Tensor] = ()
    if choose is None or plan.outputs or operands.written:
        predicate = as_condition(condition)
        with unknown_values():
            results = torch.ops.higher_order.cond(
                predicate, *map(traced, branches, runs), (*operands.tensors.values(), *numbers)
            )
    count = len(plan.outputs)
    operands.write_back(results[count:])
    plan.set_outputs(results)
    if state is not None:
        after = [
            slot.with_leaves(
                plan.leaves[at], plan.specs[at], keep=all(run.slots[at].value is slot.value for run in runs)
            )
            if at in plan.leaves
            else slot
            for at, slot in enumerate(before)
        ]
        for at in plan.padding:
            after[at] = _with_kept(before[at].value, after[at], state.names[at], shared[at], refuse)
        state.write(after)
        reject_kept_lists(state, after, plan.padding, refuse)
        for at, slot in enumerate(after):
            if slot.value is not before[at].value:
                known = before[at].value if not shared[at] else None
                _record_merged(slot.value, [run.slots[at].value for run in runs], objects, known, refuse)
    value = pytree.tree_unflatten(plan.leaves[-1], plan.specs[-1])
    _record_merged(value, [run.result.value for run in runs], objects, None, refuse)
    return value


def _reject_lost_changes(run: _Run, state: State | None, before: Sequence[Slot], refuse: Refuse) -> None:
    """Reject a branch that changes a list and then assigns another one to its variable."""
    for at in run.changed:
        if state is not None and run.slots[at].value is not before[at].value:
            refuse_change_and_assignment(state.names[at], refuse)


def _record_merged(value: Any, sides: Sequence[Any], objects: Objects, own: Any, refuse: Refuse) -> None:
    """Record the lists and dicts of which a branch returns the object itself.

    ``own`` is a list or dict to which only the variable itself refers.
    """
    known = [item for side in sides for item in containers_in(side) if objects.contains(item) and item is not own]
    if known:
        merged([*containers_in(value), *known], refuse)


def traced_cond(
    original: Callable[..., Any],
    pred: Any,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    operands: Any = (),
) -> Any:
    """Replacement of ``torch.cond`` that runs the branches instead of compiling them with TorchDynamo.

    Control flow of transformed functions inside of the branches is captured as operators.
    """
    if not isinstance(pred, torch.Tensor | torch.SymBool):
        return original(pred, true_fn, false_fn, operands)

    def refuse(problem: str, hint: str) -> NoReturn:
        raise CaptureError(f"torch.cond cannot be captured: {problem}", hint=hint)

    return symbolic_branch(pred, (lambda: true_fn(*operands), lambda: false_fn(*operands)), None, refuse)


def _run(branch: Callable[[], Any], state: State | None, before: Sequence[Slot]) -> _Run:
    """Run a branch and restore the variables."""
    try:
        result = Slot.of(branch() if active(Fork) is None else run_to_end(branch, state, before))
        if state is None:
            return _Run(result, [])
        return _Run(result, state.read(), {at for at, slot in enumerate(before) if slot.is_changed})
    finally:
        if state is not None:
            state.write(before)


def _plan(
    runs: Sequence[_Run], before: Sequence[Slot], state: State | None, refuse: Refuse, choose: Choose | None
) -> _Plan:
    plan = _Plan(choose=choose)
    names = [] if state is None else list(state.names)
    for at in range(-1, len(names)):
        if at >= 0 and state is not None and names[at] not in state.site.needed:
            continue
        name = "the returned value" if at < 0 else names[at]
        if at >= 0:
            _pad(plan, at, runs, before[at])
        sides = [run.part(at).flatten() for run in runs]
        unbound = [run.part(at).value is UNBOUND for run in runs]
        if any(unbound) and not all(unbound):
            defined = sides[unbound.index(False)]
            sides = [
                ([UNBOUND] * len(defined[0]), defined[1]) if missing else side
                for missing, side in zip(unbound, sides, strict=True)
            ]
        (left, spec), (right, other) = sides
        if spec != other:
            _refuse_structures([run.part(at).value for run in runs], (spec, other), name, refuse)
        plan.specs[at] = spec
        plan.leaves[at] = []
        for leaf, pair in enumerate(zip(left, right, strict=True)):
            plan.leaves[at].append(_merge_leaf(plan, at, leaf, pair, name, refuse))
    return plan


def _pad(plan: _Plan, at: int, runs: Sequence[_Run], before: Slot) -> None:
    """Add absent items to a list to which the branches add different numbers of items."""
    slots = [run.slots[at] for run in runs]
    if not before.is_container or isinstance(before.value, dict) or any(one.value is not before.value for one in slots):
        return
    if len({len(slot.items) for slot in slots}) > 1:
        padding = Padding.of(before.value, before.items, [slot.items for slot in slots])
        if padding is not None:
            plan.padding[at] = padding
            for run in runs:
                run.pad({at: padding})


def _with_kept(items: Any, after: Slot, name: str, is_shared: bool, refuse: Refuse) -> Slot:
    """The slot of a list to which the branches have added different numbers of items."""
    if isinstance(items, StackedList):
        return Slot(items, Parts(kept := selected(items, after.content).parts, [True] * len(kept)))
    if type(items) is not list:
        return after
    if grows_in_a_loop(items):
        return Slot(items, after.content.parts)
    if is_shared:
        refuse_shared(name, refuse)
    return Slot.of(selected(items, after.content))


def reject_kept_lists(state: State, after: Sequence[Slot], parts: Iterable[int], refuse: Refuse) -> None:
    """Reject lists of variables that the construct cannot set, those of an enclosing function."""
    values = state.values
    for at in parts:
        if values[at] is not after[at].value:
            refuse_shared(state.names[at], refuse)


def refuse_shared(name: str, refuse: Refuse) -> NoReturn:
    """Reject that branches add different numbers of items to a list to which something else refers as well."""
    refuse(
        f"{name} has a different number of items in each branch, and another name, function or condition refers to it",
        f"refer to the list as {name} only, and join nested conditions by and",
    )


def _refuse_structures(values: Sequence[Any], specs: Sequence[TreeSpec], name: str, refuse: Refuse) -> NoReturn:
    counts = [spec.num_leaves // 2 if spec.type is Parts else spec.num_children for spec in specs]
    if specs[0].type is specs[1].type and counts[0] != counts[1]:
        refuse(
            f"{name} has a different number of items in each branch, {counts[0]} and {counts[1]}",
            "compute all items and select those that the condition holds for with a mask, items[mask]",
        )
    left, right = map(describe, values)
    refuse(
        f"{name} is {left} in one branch and {right} in the other",
        "assign values of the same type and structure in both branches",
    )


def _merge_leaf(plan: _Plan, part: int, leaf: int, pair: tuple[Any, Any], name: str, refuse: Refuse) -> Any:
    """The value of a leaf if it is the same in both branches; otherwise add an output."""
    left, right = pair
    if left is right or (
        not is_traced(left) and not is_traced(right) and type(left) is type(right) and _equal(left, right)
    ):
        return left
    missing = [value is UNBOUND for value in pair]
    known = [value for value in pair if value is not UNBOUND]
    if all(isinstance(value, torch.Tensor) for value in known):
        if len(known) == 2:
            _check_tensors(known, name, refuse)
        shape = _chosen_shape(known, plan.choose)
        axis = _differing_axis(known) if shape is None else 0
        if shape is None and not axis and (shape := _returned_shape(known)) is not None:
            sizes = [at for at, size in enumerate(shape) if size is None]
            plan.outputs.extend(_Output(part, leaf, torch.int64, size=at) for at in sizes)
        plan.outputs.append(_Output(part, leaf, None, known[0] if any(missing) else None, axis, shape))
    elif plan.choose is not None and (number := plan.choose(left, right)) is not None:
        return number
    elif all(is_number(value) for value in known):
        plan.outputs.append(_Output(part, leaf, number_dtype(known)))
    elif any(missing) and not any(is_traced(value) for value in known):
        # Only the branch that defines the variable may lead to its use.
        return known[0]
    elif (
        {is_number(left), isinstance(left, torch.Tensor)} == {True, False}
        and any(isinstance(value, torch.Tensor) and value.dim() == 0 for value in pair)
        and all(is_number(value) or isinstance(value, torch.Tensor) for value in pair)
    ):
        (tensor,) = (value for value in pair if isinstance(value, torch.Tensor))
        _check_number(next(value for value in pair if value is not tensor), tensor, name, refuse)
        plan.outputs.append(_Output(part, leaf, None, tensor))
    else:
        refuse(
            f"{name} is {describe(left)} in one branch and {describe(right)} in the other",
            "assign values of the same type, dtype and number of dims in both branches",
        )
    return None


def _chosen_shape(tensors: Sequence[torch.Tensor], choose: Choose | None) -> tuple[Any, ...] | None:
    """The shape after a condition on sizes; None if it is not known."""
    if choose is None or len(tensors) < 2 or (same_shape(*tensors) and all(map(_is_dense, tensors))):
        return None
    shape = tuple(choose(one, other) for one, other in zip(tensors[0].shape, tensors[1].shape, strict=True))
    return None if None in shape else shape


def _returned_shape(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...] | None:
    """The shape of tensors if strides, or those of a copy, depend on data, with None for the sizes that differ.

    torch does not find the strides of the operator's result by those of its branches.
    """
    if len(tensors) < 2 or all(
        _is_dense(tensor) or not free_unbacked_symbols([*tensor.stride(), *tensor.shape[1:]]) for tensor in tensors
    ):
        return None
    pairs = zip(tensors[0].shape, tensors[1].shape, strict=True)
    return tuple(one if statically_known_true(one == other) else None for one, other in pairs)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor is known to be contiguous, without a guard."""
    expected: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if not statically_known_true(stride == expected):
            return False
        expected = expected * size
    return True


def _differing_axis(tensors: Sequence[torch.Tensor]) -> int:
    """The only axis of which two tensors have different sizes, if all other sizes are static; 0 otherwise."""
    shapes = [[size if isinstance(size, int) else size.node.expr for size in tensor.shape] for tensor in tensors]
    differing = [axis for axis, sizes in enumerate(zip(*shapes, strict=True)) if sizes[0] != sizes[-1]]
    others = [size for axis, size in enumerate(shapes[0]) if axis not in differing]
    return differing[0] if len(differing) == 1 and all(isinstance(size, int) for size in others) else 0


def _check_tensors(tensors: Sequence[torch.Tensor], name: str, refuse: Refuse) -> None:
    left, right = tensors
    if left.dtype != right.dtype or left.dim() != right.dim():
        refuse(
            f"{name} is {describe(left)} in one branch and {describe(right)} in the other",
            "assign values of the same type in both branches: tensors of the same dtype and number of dims",
        )


def _check_number(number: Any, tensor: torch.Tensor, name: str, refuse: Refuse) -> None:
    """Refuse a number that the dtype of the other branch's tensor would change."""
    if not torch.can_cast(number_dtype([number]), tensor.dtype):
        refuse(
            f"{name} is {describe(number)} in one branch and {describe(tensor)} in the other",
            "assign values of the same type, dtype and number of dims in both branches",
        )


def _as_output(outcome: _Run, output: _Output, inner: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """A leaf of the outcome of a branch as a tensor."""
    slot = outcome.part(output.part)
    value = UNBOUND if slot.value is UNBOUND else slot.flatten()[0][output.leaf]
    if output.dtype is not None:
        if output.size is not None:
            value = value.shape[output.size]
        return number_tensor(0 if value is UNBOUND else value, output.dtype)
    if value is UNBOUND:
        return placeholder(output.like)
    if is_number(value) and output.like is not None:
        return number_tensor(value, output.like.dtype, output.like)
    result: torch.Tensor = inner.get(id(value), value)
    if output.shape is not None:
        return result.reshape(-1)
    return result.movedim(output.axis, 0).contiguous() if output.axis else result


def placeholder(like: Any) -> torch.Tensor:
    """Zeros in place of a variable that is not defined, and not used, on this path.

    Sizes that depend on data inside of the branch are 0.
    """
    shape: Any = like.shape
    sizes = [0 if isinstance(size, torch.SymInt) and not size.node.has_hint() else size for size in shape]
    return torch.zeros(sizes, dtype=like.dtype, device=like.device)


def add_output(used: Uses, slot: Slot, leaf: int) -> None:
    """Record an outer value that a branch or a body returns as it is."""
    if slot.value is not UNBOUND:
        used.add(slot.flatten()[0][leaf])


def _equal(left: Any, right: Any) -> bool:
    try:
        return bool(left == right)
    except (RuntimeError, ValueError):
        return False


def describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        shape = ", ".join(str(size) for size in value.shape)
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape ({shape})"
    if value is UNBOUND:
        return "undefined"
    return "None" if value is None else f"of type {type(value).__name__}"
