"""Values that depend on the data of tensors: conditions, numbers, their form as operands, and the memory they share.

The operators for branches and loops return new tensors, also where Python returns a variable as it is: lists that are
one object, and tensors that share memory in eager torch, are copies in the captured program. As long as none of them is
written in place, the two are equal.

Outer values that a branch or a loop body uses become operands of a higher-order operator.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NoReturn

import sympy
import torch
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.fx.experimental.symbolic_shapes import (
    ShapeEnv,
    free_unbacked_symbols,
    is_concrete_int,
    statically_known_true,
)
from torch.overrides import TorchFunctionMode

from fxonnx_translations._torch_compat import (
    ExportFunctions,
    FakeTensor,
    current_fake_mode,
    functorch,
    get_proxy_mode,
    get_proxy_slot,
    pytree,
    recording_mode,
    recording_mode_off,
    set_proxy_slot,
    sym_ite,
    sym_not,
)

from ...._context_values import activated, active
from ...constraints.guard_recorder import assertions_of_branch
from ...data_dependence.concrete_values import active_values
from ...function_transforms import reject_lost_gradients
from ...patches.value_calls import with_numbers_as_bounds
from ...suspicions.handled_errors import recorded_as_conditional
from ...suspicions.introspection import without_traced_results

__all__ = [
    "NUMBER_DEVICE",
    "SYMBOLIC",
    "UNBOUND",
    "Refuse",
    "SharedMemory",
    "Uses",
    "as_condition",
    "as_number",
    "copied_back",
    "is_dynamic_size",
    "is_number",
    "is_symbolic",
    "is_traced",
    "is_undecided",
    "lifted",
    "merged",
    "number_dtype",
    "number_of",
    "number_tensor",
    "observed",
    "operands_of",
    "recorded_memory",
    "repeats",
    "same_shape",
    "separate",
    "shares",
    "storage_of",
    "symbol_value",
    "unknown_values",
    "watched",
]


Refuse = Callable[[str, str], NoReturn]
"""Raises the error for a construct that cannot be an operator, with the problem and the hint."""


@dataclass
class SharedMemory:
    """The copies of one capture, by the ids of their storages.

    Attributes:
        copies: Storage of a copy to the storages whose memory it shares in eager torch.
        repeated: Storages that hold several copies of the same memory.
        copied_back: Storages of results that are copied to the tensor that they are a copy of.
        containers: Lists and dicts with their items, and with the function that raises the error for their construct.
    """

    copies: dict[int, set[int]] = field(default_factory=dict)
    repeated: set[int] = field(default_factory=set)
    copied_back: set[int] = field(default_factory=set)
    containers: list[tuple[Any, Any, Refuse]] = field(default_factory=list)
    # Their ids are valid as long as the storages exist.
    _tensors: list[torch.Tensor] = field(default_factory=list)

    def keep(self, *tensors: torch.Tensor) -> list[int]:
        """The ids of the tensors' storages, which remain valid."""
        self._tensors.extend(tensors)
        return [storage_of(tensor) for tensor in tensors]


def recorded_memory() -> AbstractContextManager[SharedMemory]:
    """Record copies inside the context."""
    return activated(SharedMemory())


def storage_of(tensor: torch.Tensor) -> int:
    """The id of a tensor's storage; inside vmap, the whole batch's."""
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return int(tensor.untyped_storage()._cdata)


def shares(copy: torch.Tensor, *originals: torch.Tensor) -> torch.Tensor:
    """Record that a tensor is a copy of tensors whose memory it shares in eager torch; return it."""
    memory = active(SharedMemory)
    if memory is not None:
        key, *others = memory.keep(copy, *originals)
        memory.copies.setdefault(key, set()).update(others)
    return copy


def repeats(copy: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    """Record that all items of a tensor share their memory with another one; return it."""
    memory = active(SharedMemory)
    if memory is not None:
        memory.repeated.update(memory.keep(copy))
    return shares(copy, original)


def copied_back(result: torch.Tensor, original: torch.Tensor) -> None:
    """Copy the result of an operator to the tensor that the operator's body writes."""
    memory = active(SharedMemory)
    if memory is not None:
        memory.copied_back.update(memory.keep(result))
    # A parameter is written without gradients only.
    target = original.detach() if original.requires_grad and original.is_leaf else original
    target.copy_(result)


def merged(containers: Sequence[Any], refuse: Refuse) -> None:
    """Record lists and dicts that are one object in eager torch: none of them may change later."""
    memory = active(SharedMemory)
    if memory is not None:
        memory.containers += ((container, container.copy(), refuse) for container in containers)


NUMBER_DEVICE = torch.device("cpu")
"""The device of tensors that stand for numbers, whatever the model is on: the same in all branches and iterations."""

_COMPARISONS: Mapping[type[sympy.Basic], Callable[[Any, Any], Any]] = MappingProxyType(
    {
        sympy.StrictGreaterThan: operator.gt,
        sympy.GreaterThan: operator.ge,
        sympy.StrictLessThan: operator.lt,
        sympy.LessThan: operator.le,
        sympy.Equality: operator.eq,
        sympy.Unequality: operator.ne,
    }
)
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class _Unbound:
    """Marker for a variable without a value."""

    def __repr__(self) -> str:
        return "UNBOUND"


UNBOUND = _Unbound()


def is_symbolic(value: Any) -> bool:
    """Whether the truth of a value depends on the data of tensors."""
    if isinstance(value, torch.Tensor):
        values = active_values()
        if not isinstance(value, FakeTensor) or value.constant is not None or value.numel() != 1:
            return False
        return values is None or not values.is_constant(value)
    return isinstance(value, SYMBOLIC) and bool(free_unbacked_symbols(value))


def is_traced(value: Any) -> bool:
    """Whether a value is a tensor or a symbolic number."""
    return isinstance(value, (torch.Tensor, *SYMBOLIC))


def is_dynamic_size(value: Any) -> bool:
    """Whether a size or a number has no fixed value during the capture."""
    return isinstance(value, torch.SymInt) and not is_concrete_int(value)


def is_undecided(value: Any) -> bool:
    """Whether a condition on sizes differs between sizes."""
    if not isinstance(value, torch.SymBool):
        return False
    return not (statically_known_true(value) or statically_known_true(sym_not(value)))


def is_number(value: Any) -> bool:
    """Whether a value is a Python number, or stands for one."""
    return isinstance(value, bool | int | float | torch.SymInt | torch.SymFloat | torch.SymBool)


def as_condition(value: Any) -> torch.Tensor:
    """The truth of a value as a 0-dim boolean tensor."""
    if isinstance(value, torch.Tensor):
        return as_number(value.reshape(()) if value.dtype == torch.bool else value.reshape(()) != 0)
    if isinstance(value, torch.SymInt | torch.SymFloat):
        value = value != 0
    if isinstance(value, torch.SymBool) and _is_comparison_of_floats(value):
        expression = value.node.expr
        sides = [value.node.shape_env.create_symfloatnode(side, hint=None) for side in expression.args]
        left, right = (torch.scalar_tensor(side, dtype=torch.float64, device=NUMBER_DEVICE) for side in sides)
        compared: torch.Tensor = _COMPARISONS[type(expression)](left, right)
        return compared
    if isinstance(value, torch.SymBool):
        flag: Any = value
        return torch.scalar_tensor(flag, dtype=torch.bool, device=NUMBER_DEVICE)
    return torch.full((), bool(value), dtype=torch.bool, device=NUMBER_DEVICE)


def _is_comparison_of_floats(value: torch.SymBool) -> bool:
    expression = value.node.expr
    return type(expression) in _COMPARISONS and not all(symbol.is_integer for symbol in expression.free_symbols)


def number_dtype(values: Sequence[Any]) -> torch.dtype:
    """The dtype that represents Python numbers."""
    if all(isinstance(value, bool | torch.SymBool) for value in values):
        return torch.bool
    return torch.float64 if any(isinstance(value, float | torch.SymFloat) for value in values) else torch.int64


def as_number(tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """A tensor on the device of numbers, or of a tensor that stands for the same variable on another path."""
    device = NUMBER_DEVICE if like is None else like.device
    # Without a copy, which the graph would have, where it is there.
    return tensor if tensor.device == device or tensor.is_meta else tensor.to(device)


def number_tensor(value: Any, dtype: torch.dtype, like: torch.Tensor | None = None) -> torch.Tensor:
    """A number as a 0-dim tensor, on the device of another tensor if one is given."""
    if isinstance(value, torch.Tensor):
        return as_number(value.reshape(()).to(dtype), like)
    if isinstance(value, bool | torch.SymBool):
        return as_number(as_condition(value).to(dtype), like)
    return torch.scalar_tensor(value, dtype=dtype, device=NUMBER_DEVICE if like is None else like.device)


def number_of(tensor: torch.Tensor) -> Any:
    """The number that a 0-dim tensor represents; booleans remain tensors."""
    return tensor if tensor.dtype == torch.bool else tensor.item()


def same_shape(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors always have the same shape."""
    return one.dim() == other.dim() and all(
        statically_known_true(left == right) for left, right in zip(one.shape, other.shape, strict=True)
    )


def separate(values: Sequence[torch.Tensor], inputs: Sequence[Any]) -> list[torch.Tensor]:
    """Clone the tensors that share memory with an input or an earlier one: bodies must not return aliases."""
    storages = {storage_of(value) for value in inputs if isinstance(value, torch.Tensor)}
    made = []
    for value in values:
        storage = storage_of(value)
        made.append(shares(value.clone(), value) if storage in storages else value)
        storages.add(storage)
    return made


_DATA: Any = torch.Tensor.data.__get__  # type: ignore[attr-defined]


@dataclass
class Uses:
    """The outer values that a trial run used.

    Attributes:
        tensors: ``id`` to outer tensor, in order of first use.
        versions: ``id`` to the tensor's version at the first use.
        own: ``id`` to tensor that is not an outer one.
        data: ``id`` of an outer tensor, its ``data``, which counts writes by itself, and the version of that.
        symbols: Outer symbols of sizes and numbers that were used.
        flags: The booleans among them, whose values are ``Eq(symbol, 1)``.
        shape_env: Their environment.
        first: Numbers of the first unbacked integer and float symbol that are not outer ones.
        tracer: The tracer of the graph outside; None in a trial run of another construct.
    """

    tensors: dict[int, torch.Tensor] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    own: dict[int, Any] = field(default_factory=dict)
    data: list[tuple[int, torch.Tensor, int]] = field(default_factory=list)
    symbols: dict[sympy.Symbol, None] = field(default_factory=dict)
    flags: dict[sympy.Symbol, torch.SymBool] = field(default_factory=dict)
    shape_env: ShapeEnv | None = None
    first: tuple[int, int] = (0, 0)
    tracer: Any = None

    @property
    def written(self) -> list[int]:
        """``id`` of the outer tensors that were modified in place, also through views."""
        found = dict.fromkeys(key for key, tensor in self.tensors.items() if tensor._version != self.versions[key])
        return [*(found | dict.fromkeys(key for key, tensor, version in self.data if tensor._version != version))]

    def add(self, value: Any) -> None:
        """Record an outer value."""
        if isinstance(value, torch.Tensor):
            if id(value) not in self.tensors and id(value) not in self.own and not self._is_literal(value):
                self.tensors[id(value)] = value
                self.versions[id(value)] = value._version
        elif isinstance(value, SYMBOLIC):
            self.shape_env = value.node.shape_env
            outer = [symbol for symbol in value.node.expr.free_symbols if self.is_outer(symbol)]
            self.symbols |= dict.fromkeys(sorted(outer, key=str))
            if isinstance(value, torch.SymBool):
                self.flags |= {symbol: value for symbol in outer if value.node.expr == sympy.Eq(symbol, 1)}

    def _is_literal(self, value: torch.Tensor) -> bool:
        """Whether a tensor is a constant that the trial run has made by ``torch.Tensor([1.0])``, which no mode sees."""
        if not isinstance(value, FakeTensor) or value.constant is None:
            return False
        return self.tracer is None or get_proxy_slot(value, self.tracer, None) is None

    def add_sizes(self, value: torch.Tensor) -> None:
        """Record the outer symbols in the shape of a tensor."""
        for size in value.shape:
            self.add(size)

    def is_outer(self, symbol: sympy.Symbol) -> bool:
        """Whether the trial run has not made a symbol."""
        for prefix, first in zip(("u", "zuf"), self.first, strict=True):
            number = symbol.name.removeprefix(prefix)
            if number != symbol.name and number.isdigit():
                return int(number) < first
        return True


class _Observer(TorchFunctionMode):
    """Records the tensors that functions of torch receive and that no function inside the context has returned."""

    def __init__(self, uses: Uses, call: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self._uses, self._call = uses, call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in _leaves((args, kwargs)):
            self._uses.add(leaf)
        result = self._call(func, args, kwargs or {})
        if func == _DATA and id(args[0]) in self._uses.tensors:
            self._uses.data.append((id(args[0]), result, result._version))
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and id(leaf) not in self._uses.tensors:
                self._uses.own[id(leaf)] = leaf
        return result


class _Substitution(TorchFunctionMode):
    """Replaces outer tensors in the arguments of torch's functions by operands of the higher-order operator."""

    def __init__(self, operands: Mapping[int, torch.Tensor]) -> None:
        super().__init__()
        self._operands = operands

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outer: dict[int, torch.Tensor] = {}

        def operand(tensor: torch.Tensor) -> torch.Tensor:
            given = self._operands.get(id(tensor), tensor)
            outer[id(given)] = tensor
            return given

        args, kwargs = pytree.tree_map_only(torch.Tensor, operand, (args, kwargs or {}))
        result = _call(func, args, kwargs)
        # In-place operators return their tensor: a variable that is assigned the result stays the same tensor.
        return outer.get(id(result), result)


def _call(func: Any, args: Any, kwargs: Any) -> Any:
    """Call a function of torch; indices that are symbolic numbers or 0-dim tensors become ``select`` and ``slice``.

    Inside of the body of a higher-order operator, torch.export's own mode, which does the same, is not active.
    """
    name = getattr(func, "__name__", "")
    if name == "item":
        # Of a view at a symbolic offset, torch cannot compute the item.
        args = (args[0].clone(),)
    elif name == "__getitem__" and isinstance(args[0], torch.Tensor):
        args = (args[0], with_numbers_as_bounds(_without_offsets(args[1])))
        func, args, kwargs = ExportFunctions()._override(func, args, kwargs)
    elif name in ("equal", "allclose"):
        func, args, kwargs = ExportFunctions()._override(func, args, kwargs)
    elif name == "__setitem__" and _has_symbolic_index(args[1]):
        tensor, index, value = args
        index = with_numbers_as_bounds(_without_offsets(index))
        parts = list(index) if isinstance(index, tuple) else [index]
        if not any(_is_dense_index(part) for part in parts):
            target = _call(torch.Tensor.__getitem__, (tensor, index), {})
            return target.copy_(value) if isinstance(value, torch.Tensor) else target.fill_(value)
        view, dense = _view_and_dense(parts)
        return func(_call(torch.Tensor.__getitem__, (tensor, view), {}), dense, value)
    elif name == "__setitem__" and isinstance(args[0], torch.Tensor):
        func, args, kwargs = ExportFunctions()._override(func, args, kwargs)
    return func(*args, **kwargs)


def _without_offsets(index: Any) -> Any:
    """The index, whose 0-dim tensors are no views: their items become sizes."""
    if isinstance(index, tuple):
        return tuple(_without_offsets(part) for part in index)
    if isinstance(index, slice):
        return slice(*map(_without_offsets, (index.start, index.stop, index.step)))
    return index.clone() if _is_scalar_index(index) else index


def _has_symbolic_index(index: Any) -> bool:
    parts = list(index) if isinstance(index, tuple) else [index]
    limits = [limit for part in parts if isinstance(part, slice) for limit in (part.start, part.stop)]
    return any(isinstance(part, torch.SymInt) or _is_scalar_index(part) for part in [*parts, *limits])


def _is_scalar_index(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and not part.dim() and part.dtype != torch.bool


def _view_and_dense(parts: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The view of an index, which torch takes first, and the index of that view by tensors."""
    view: list[Any] = []
    dense: list[Any] = []
    for part in parts:
        if _is_dense_index(part):
            axes = part.dim() if isinstance(part, torch.Tensor) and part.dtype == torch.bool else 1
            view.extend([slice(None)] * axes)
            dense.append(part)
        else:
            view.append(part)
            if part is Ellipsis:
                dense.append(part)
            elif part is None or isinstance(part, slice):
                dense.append(slice(None))
    return tuple(view), tuple(dense)


def _is_dense_index(part: Any) -> bool:
    return isinstance(part, list) or (isinstance(part, torch.Tensor) and part.dim() > 0)


@contextmanager
def observed(own: Sequence[Any] = ()) -> Iterator[Uses]:
    """Record the outer values that are used inside the context, without recording its operators in a graph.

    ``own`` are tensors that are not outer ones.
    """
    outside = get_proxy_mode()
    uses = Uses(own={id(value): value for value in own}, tracer=None if outside is None else outside.tracer)
    with ExitStack() as stack:
        if recording_mode() is not None:
            stack.enter_context(recording_mode_off())
        stack.enter_context(disable_proxy_modes_tracing())
        environment = _shape_env_of()
        if environment is not None:
            stack.enter_context(environment.ignore_fresh_unbacked_symbols())
            stack.enter_context(assertions_of_branch(environment))
            uses.first = environment.unbacked_symint_counter, environment.unbacked_symfloat_counter
        stack.enter_context(_Observer(uses, _call))
        stack.enter_context(unknown_values())
        stack.enter_context(recorded_as_conditional())
        stack.enter_context(without_traced_results())
        yield uses


@contextmanager
def watched() -> Iterator[Uses]:
    """Record the outer values that are used inside the context, whose operators the graph has."""
    uses = Uses()
    with _Observer(uses, lambda func, args, kwargs: func(*args, **kwargs)):
        yield uses


def unknown_values() -> AbstractContextManager[None]:
    """Context in which operators have no concrete values: bodies run on trial, and for several iterations."""
    values = active_values()
    return nullcontext() if values is None else values.suspended()


@contextmanager
def lifted(operands: Mapping[int, torch.Tensor]) -> Iterator[None]:
    """Replace outer tensors by operands inside the context."""
    environment = _shape_env_of()
    own = nullcontext() if environment is None else assertions_of_branch(environment)
    with own, _Substitution(operands), without_traced_results():
        yield


def _shape_env_of() -> ShapeEnv | None:
    """The shape environment of the current capture."""
    mode = current_fake_mode()
    return None if mode is None else mode.shape_env


def symbol_value(symbol: sympy.Symbol, environment: ShapeEnv, flag: torch.SymBool | None = None) -> Any:
    """The number for a symbol in the graph that is being traced.

    The flag is the boolean that the symbol stands for, which torch traces in its place.
    """
    proxy_mode = get_proxy_mode()
    if proxy_mode is not None:
        known = proxy_mode.tracer.sympy_expr_tracker.get(symbol)
        if known is not None:
            return known.value
    hint = environment.backed_var_to_val.get(symbol)
    number = environment.create_symintnode(symbol, hint=None if hint is None else int(hint))
    if proxy_mode is not None and flag is not None and isinstance(number, torch.SymInt):
        choice: Any = sym_ite(flag, 1, 0)
        set_proxy_slot(number, proxy_mode.tracer, get_proxy_slot(choice, proxy_mode.tracer))
    return number


@dataclass
class Operands:
    """The operands of a higher-order operator.

    Attributes:
        tensors: ``id`` to outer tensor.
        symbols: Symbols of sizes that no dim of these tensors has.
        uses: The values that the trial runs used.
        written: The tensors that they write in place, by ``id``.
    """

    tensors: dict[int, torch.Tensor]
    symbols: list[sympy.Symbol]
    uses: Sequence[Uses]
    written: list[int]

    def clone_written(self, inner: dict[int, torch.Tensor]) -> None:
        """Copy the written ones among the operands inside of a body, which must not write its arguments."""
        for key in self.written:
            inner[key] = shares(inner[key].clone(), inner[key])

    def write_back(self, results: Sequence[torch.Tensor]) -> None:
        """Write the results of the operator to the tensors that its body writes."""
        for key, final in zip(self.written, results, strict=True):
            copied_back(final, self.tensors[key])

    def numbers(self) -> list[Any]:
        """The values of the symbols in the graph that is being traced."""
        environment = next((used.shape_env for used in self.uses if used.shape_env is not None), None)
        if environment is None:
            return []
        flags = {symbol: flag for used in self.uses for symbol, flag in used.flags.items()}
        return [symbol_value(symbol, environment, flags.get(symbol)) for symbol in self.symbols]


def operands_of(uses: Sequence[Uses], refuse: Refuse, carried: Iterable[torch.Tensor] = ()) -> Operands:
    """The operands for the values that trial runs used, beside those that a loop carries.

    In-place writes to a tensor that shares memory with another operand are refused: the two are cloned separately.
    """
    tensors: dict[int, torch.Tensor] = {}
    for used in uses:
        tensors |= {key: tensor for key, tensor in used.tensors.items() if key not in tensors}
    dims: list[Any] = [size for tensor in tensors.values() for size in tensor.shape]
    sizes = {size.node.expr for size in dims if isinstance(size, torch.SymInt)}
    symbols = dict.fromkeys(symbol for used in uses for symbol in used.symbols if symbol not in sizes)
    written = sorted({key for used in uses for key in used.written}, key=list(tensors).index)
    storages = [storage_of(tensor) for tensor in tensors.values()]
    if any(storages.count(storage_of(tensors[key])) > 1 for key in written):
        refuse(
            "a tensor is modified in place, and a view of it is used as well",
            "write to a clone() of the tensor",
        )
    reject_lost_gradients([*tensors.values(), *carried])
    return Operands(tensors, list(symbols), uses, written)


def _leaves(values: Any) -> Iterator[Any]:
    for leaf in pytree.tree_leaves(values):
        if isinstance(leaf, slice):
            yield from (leaf.start, leaf.stop, leaf.step)
        else:
            yield leaf
