"""State that becomes graph inputs: parameters and buffers whose values before a call are those that the last one left.

Their values at the export are not known to the capture: values that Python reads from them are read in each call. Nor
are the sizes of those that grow. Which ones forward writes is known after a capture only; another one follows if it may
have computed with a value or a size of theirs. Numbers in attributes (``self.step += 1``) become buffers of a copy.
"""

from __future__ import annotations

import copy
import dis
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from fxonnx_translations._torch_compat import get_proxy_mode

from .._export_signature import read_signature
from .._written_parameters import written_placeholders
from ..errors import CaptureError, StateError
from .constraints.constraint_solver import Bounds, is_implied, normal_forms
from .constraints.guard_recorder import GuardLog, SourceLine, line_of_node
from .constraints.guard_sources import copy_guards, slice_guards
from .constraints.relation_forms import text_of
from .plan import Capture, CapturePlan
from .suspicions.attribute_changes import AttributeChange
from .suspicions.attribute_uses import methods_of
from .traced_states import UnknownStates
from .user_code import codes_of

__all__ = ["capture_with_states", "with_number_states"]

_HINT = "let the tensor keep its shape: write to a buffer of the largest size, and count its entries in another one"


def capture_with_states(
    run: Callable[[CapturePlan], tuple[Capture, CapturePlan]], plan: CapturePlan, model: torch.nn.Module
) -> tuple[Capture, CapturePlan]:
    """Capture a model until it computes with no value, or size, at the export of a tensor that it changes.

    Tensors that the captured program does not write keep their values, so that these may be known: no program that
    follows from them writes the tensors either.

    Raises:
        StateError: If a buffer changes its shape, and the program is not valid for all of its shapes.
    """
    refusal: StateError | None = None
    while True:
        try:
            traced, last = run(plan)
        except CaptureError:
            if refusal is not None:
                raise refusal from None
            raise
        program, states = traced.exported_program, plan.states
        names = states.names | _written(program, model) | _read_in_branches(traced, model)
        axes = {name: found | states.axes.get(name, frozenset()) for name, found in _changed_axes(program)}
        axes = {**states.axes, **axes}
        # torch knows the value of a plain attribute up to the first write.
        is_computed = last.has_concrete_values or traced.assumptions or not names <= _weights(model).keys()
        if axes != states.axes or (names != states.names and is_computed):
            plan = replace(plan, states=replace(states, names=names, axes=axes))
            continue
        try:
            return _with_checked_sizes(traced, last.log, states), last
        except StateError as error:
            if states.branches_on_sizes:
                raise refusal or error from None
            refusal = error
        plan = replace(plan, states=UnknownStates(names, axes, branches_on_sizes=True))


def _written(program: ExportedProgram, model: torch.nn.Module) -> frozenset[str]:
    """FQNs of the tensors of a model that a program may write, and of those that share memory with them."""
    placeholders = written_placeholders(program.graph)
    if not placeholders:
        return frozenset()
    names = [str(one.target) for one in read_signature(program).inputs if one.name in placeholders and one.target]
    tensors = dict(_tensors_of(model, names))
    memory = {key for key in map(_memory, tensors.values()) if key}
    return frozenset(tensors) | {name for name, tensor in _weights(model).items() if _memory(tensor) in memory}


def _read_in_branches(traced: Capture, model: torch.nn.Module) -> frozenset[str]:
    """FQNs of the attributes with tensors that a program with branches has as constants, and that methods assign.

    Two calls with equal inputs do not tell one that keeps the last input, and is read in a later call, from a cache.
    """
    found = set()
    modules = dict(model.named_modules()) if traced.rewrites else {}
    for path in traced.exported_program.constants:
        prefix, _, name = path.rpartition(".")
        owner = modules.get(prefix)
        if owner is not None and isinstance(vars(owner).get(name), torch.Tensor) and _assigns(owner, name):
            found.add(path)
    return frozenset(found)


def _assigns(owner: torch.nn.Module, name: str) -> bool:
    """Whether a method other than ``__init__`` assigns an attribute, also one without source code."""
    methods = (code for code in methods_of(owner) if code.co_name != "__init__")
    steps = (step for method in methods for code in codes_of(method) for step in dis.get_instructions(code))
    return any(step.opname == "STORE_ATTR" and step.argval == name for step in steps)


def _tensors_of(model: torch.nn.Module, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters, buffers and tensor attributes of a model with some FQNs."""
    for name in names:
        try:
            value = attrgetter(name)(model)
        except AttributeError:
            # A tensor that forward creates.
            continue
        if isinstance(value, torch.Tensor):
            yield name, value


def _weights(model: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    """The parameters and buffers by FQN, also the further names of one tensor."""
    return dict([*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)])


def _memory(tensor: torch.Tensor) -> int:
    """An id of the memory of a tensor; 0 for tensors without memory of their own, such as sparse ones."""
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else 0


def _resized(program: ExportedProgram) -> Iterator[tuple[str, torch.fx.Node, torch.fx.Node]]:
    """FQN and placeholder of the buffers that become tensors of another shape, and the nodes of these."""
    targets = {spec.arg.name: str(spec.target) for spec in program.graph_signature.input_specs if spec.target}
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.set_.source_Tensor):
        old, new = node.args
        if isinstance(old, torch.fx.Node) and old.name in targets:
            yield targets[old.name], old, new


def _changed_axes(program: ExportedProgram) -> Iterator[tuple[str, frozenset[int]]]:
    """FQN of the buffers that become tensors of another shape, and the axes of another size."""
    for name, old, new in _resized(program):
        pairs = zip(_sizes(old), _sizes(new), strict=False)
        if len(_sizes(old)) == len(_sizes(new)):
            yield name, frozenset(axis for axis, (before, after) in enumerate(pairs) if before != after)


def _sizes(node: torch.fx.Node) -> list[sympy.Expr]:
    return [
        size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size) for size in node.meta["val"].shape
    ]


def _with_checked_sizes(traced: Capture, log: GuardLog, states: UnknownStates) -> Capture:
    """Name the dims of the buffers that grow, and check that the program is valid for all of their sizes.

    Raises:
        StateError: If a condition on such a size holds for the sizes at the export, and may not hold in another call.
    """
    if not states.axes:
        return traced
    sizes = _GrowingSizes(log)
    names = dict(traced.dim_names)
    for name, old, new in _resized(traced.exported_program):
        for axis in sorted(states.axes[name]):
            symbol = sizes.add(old, new, axis)
            if symbol is None or symbol in traced.dim_names:
                raise StateError(
                    f"forward changes the shape of {name!r}, whose size of axis {axis} is that of another tensor\n"
                    f"  at: {line_of_node(new) or new.name}",
                    hint=_HINT,
                )
            names.setdefault(symbol, f"{name.replace('.', '_')}_{axis}")
    for condition, line in sizes.invalid(traced.exported_program):
        shown = condition.xreplace({symbol: sympy.Symbol(name) for symbol, name in names.items()})
        if shown in (sympy.true, sympy.false):
            cause = "takes a branch"
        elif {symbol.name for symbol in shown.free_symbols} <= {*names.values()}:
            cause = f"the program is valid for {text_of(shown)} only,"
        else:  # a number that is known in a call only
            cause = "the program checks a number that it computes,"
        changed = " and ".join(map(repr, sorted(states.axes)))
        place = f"\n  at: {line}" if line is not None else ""
        raise StateError(
            f"forward changes the shape of {changed}, and {cause} by the size at the export{place}",
            hint=_HINT,
        )
    return replace(traced, dim_names=names)


class _GrowingSizes:
    """The symbols of the sizes of buffers before a call, and their sizes after it."""

    def __init__(self, log: GuardLog) -> None:
        self._log = log
        self._after: dict[sympy.Symbol, sympy.Expr] = {}
        self._bounds: dict[sympy.Symbol, Bounds] = {}
        self._environment: Any = None

    def add(self, old: torch.fx.Node, new: torch.fx.Node, axis: int) -> sympy.Symbol | None:
        """Add a size of a buffer, and return its symbol; None if it has none of its own."""
        symbol, following = _sizes(old)[axis], _sizes(new)[axis]
        if not symbol.is_Symbol or self._after.setdefault(symbol, following) != following:
            return None
        self._environment = old.meta["val"].shape[axis].node.shape_env
        never_shrinks = sympy.expand(following - symbol).is_nonnegative
        self._bounds[symbol] = Bounds(int(self._environment.backed_var_to_val.get(symbol, 0)) if never_shrinks else 0)
        return symbol

    def invalid(self, program: ExportedProgram) -> Iterator[tuple[sympy.Basic, SourceLine | None]]:
        """The conditions of a program that may not hold in a later call, with their lines."""
        if not self._after:
            return
        example = self._environment.backed_var_to_val
        others = [*copy_guards(program, example, self._log.layouts), *slice_guards(program, example)]
        for guard in [*self._log.guards, *others]:
            condition = self._replaced(guard.expression)
            # torch's symbols are positive: of a size of 0, "size + 1 == 1" is false.
            if condition == sympy.false or not (
                condition.free_symbols.isdisjoint(self._after) or self._holds_always(condition)
            ):
                yield condition, guard.line
        for total, line in self._log.nonzero.items():
            symbols = self._replaced(total).free_symbols & self._after.keys()
            if symbols and not any((self._bounds[symbol].low or 0) > 0 for symbol in symbols):
                yield sympy.true, line

    def _replaced(self, expression: sympy.Basic) -> Any:
        return expression.xreplace({symbol: self._environment.replace(symbol) for symbol in expression.free_symbols})

    def _holds_always(self, condition: sympy.Basic) -> bool:
        """Whether a condition holds for all sizes, or is an equation that remains true from one call to the next."""
        if isinstance(condition, sympy.Eq):
            difference = condition.lhs - condition.rhs
            if sympy.expand(difference.xreplace(self._after) - difference) == 0:
                return True
        return all(is_implied(form, self._bounds) for form in normal_forms(condition))


_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64}
_KINDS: tuple[tuple[type, tuple[type, ...]], ...] = (
    (bool, (bool, torch.SymBool)),
    (int, (int, torch.SymInt)),
    (float, (float, torch.SymFloat)),
)


@dataclass(frozen=True)
class _Number:
    """A number in an attribute of a module.

    Attributes:
        path: The attribute, with the path of its module.
        owner: The module.
        name: The attribute.
        value: The number at the export.
        line: The change, with its line, as text.
    """

    path: str
    owner: torch.nn.Module
    name: str
    value: float
    line: str

    @property
    def kind(self) -> type:
        """The type of the number."""
        return type(self.value)

    def load(self) -> Any:
        """Replace the buffer by the number in it, and return this."""
        number = self.owner._buffers.pop(self.name).item()  # type: ignore[union-attr]
        vars(self.owner)[self.name] = number
        return number

    def store(self, before: Any) -> None:
        """Replace the number by a buffer that holds it.

        Raises:
            StateError: If it is a number of another type.
        """
        number: Any = vars(self.owner).pop(self.name, None)
        if number is before and get_proxy_mode() is not None:
            raise _refusal(f"{self.line}, by a function that refers to another copy of the model")
        kind = _kind_of(number) or type(number)
        if kind is not self.kind:
            raise _refusal(f"{self.line}, of type {kind.__name__} instead of {self.kind.__name__}")
        self.owner._buffers[self.name] = torch.scalar_tensor(number, dtype=_DTYPES[self.kind])


def with_number_states(model: Any, changes: Sequence[AttributeChange]) -> torch.nn.Module:
    """A copy of a model, with the same weights, that holds numbers in buffers between the calls of forward.

    Raises:
        StateError: If one of them is not a number in an attribute of a module; names its line.
    """
    if not isinstance(model, torch.nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise _refusal("\n  ".join(map(str, changes)))
    tensors = [*model.parameters(), *model.buffers()]
    try:
        copied = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    except (TypeError, RuntimeError, AttributeError, ValueError) as error:
        raise _refusal("\n  ".join(map(str, changes)), f"the model cannot be copied: {error}") from error
    numbers = [_number(copied, change) for change in changes if not change.is_random]
    for number in numbers:
        del vars(number.owner)[number.name]
        number.owner._buffers[number.name] = torch.tensor(number.value, dtype=_DTYPES[number.kind])
    forward = copied.forward

    @functools.wraps(forward)
    def with_numbers(*args: Any, **kwargs: Any) -> Any:
        tensors = [(number, number.owner._buffers[number.name]) for number in numbers]
        before = [number.load() for number in numbers]
        try:
            outputs = forward(*args, **kwargs)
            for number, value in zip(numbers, before, strict=True):
                number.store(value)
        finally:
            for number, tensor in tensors:
                if number.owner._buffers.setdefault(number.name, tensor) is tensor:
                    vars(number.owner).pop(number.name, None)
        return outputs

    copied.forward = with_numbers
    return copied


def _number(model: torch.nn.Module, change: AttributeChange) -> _Number:
    """The number that an attribute of a model holds.

    Raises:
        StateError: If it holds none.
    """
    path, _, name = change.path.rpartition(".")
    owner = dict(model.named_modules()).get(path)
    value = None if owner is None else vars(owner).get(name)
    if owner is None or type(value) not in _DTYPES:
        raise _refusal(str(change))
    return _Number(change.path, owner, name, value, str(change))  # type: ignore[arg-type]


def _kind_of(number: Any) -> type | None:
    """The type of a number, also of a symbolic one."""
    return next((kind for kind, types in _KINDS if isinstance(number, types)), None)


def _refusal(text: str, reason: str = "") -> StateError:
    return StateError(
        'forward changes Python attributes that later calls read, and with state="io" only numbers (int, float, bool) '
        f"in attributes of modules become inputs and outputs:\n  {text}" + (f"\n  {reason}" if reason else ""),
        hint="hold the value in a buffer: self.register_buffer(name, torch.tensor(value)), or pass it as an input",
    )
