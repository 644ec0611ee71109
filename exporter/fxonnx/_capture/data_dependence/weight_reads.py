"""Values of weights that Python reads during the capture: constants of the program, which other weights would change.

``if self.gate > 0:`` takes one branch, ``float(self.alpha)`` becomes a number. The operators that compute these values
are recorded, and run again for other weights: a weight may change as long as the values do not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fxonnx_translations._torch_compat import (
    DisableTorchFunction,
    OpOverload,
    WeakTensorKeyDictionary,
    no_dispatch,
    pytree,
)

from ..._nodes import written_arguments
from ..constraints.guard_recorder import SourceLine, source_line_of
from .assumption import asking_frame

__all__ = ["DifferentRead", "WeightRead", "WeightReads", "WeightTape"]

_aten = torch.ops.aten
_LIFTS = frozenset({_aten.lift_fresh.default, _aten.lift_fresh_copy.default})
# Only their masks, after the first operand, decide the shape of the result.
_SELECTIONS = frozenset({_aten.index.Tensor, _aten.masked_select.default})
_MASKS = (torch.bool, torch.uint8)

_RANDOM = ""
"""In the place of the name of a weight, random numbers: values that depend on them are not computed again."""


@dataclass(frozen=True)
class WeightRead:
    """A value that the capture read from weights.

    Attributes:
        weights: Names of the weights from which it is computed; tied weights have one of theirs.
        line: The line of code that asked for it.
        value: The number or truth value; the sizes of results whose sizes depend on values.
        place: The result of a step that has the value.
    """

    weights: tuple[str, ...]
    line: SourceLine | None
    value: Any
    place: _Place = field(repr=False)

    def __str__(self) -> str:
        return f"{self.line or 'unknown line'} -> {self.value}"


@dataclass(frozen=True)
class DifferentRead:
    """A read that has another value for other weights.

    Attributes:
        read: The read.
        value: Its value for these weights; the text of an error if a step fails.
    """

    read: WeightRead
    value: Any

    def __str__(self) -> str:
        return f"{self.read} at export, {self.value} with these weights"


@dataclass(frozen=True)
class _Place:
    """A result of a step.

    Attributes:
        step: Index of the step.
        leaf: Index among the leaves of the results.
    """

    step: int
    leaf: int = 0


@dataclass(frozen=True)
class _Step:
    """A weight, or an operator on the results of earlier steps.

    Attributes:
        names: Names of the weight; none for an operator.
        function: The operator; None for a weight.
        leaves: Its operands: places, and constants.
        structure: The structure of its arguments.
        memories: The memories that its operands and results have.
        written: Those that it writes.
    """

    names: tuple[str, ...] = ()
    function: OpOverload[Any, Any] | None = None
    leaves: tuple[Any, ...] = ()
    structure: Any = None
    memories: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()


@dataclass(frozen=True)
class WeightReads:
    """The values that the capture read from weights.

    Attributes:
        reads: The reads, in order.
        steps: Index to step, for those that the reads need, in order.
    """

    reads: tuple[WeightRead, ...] = ()
    steps: Mapping[int, _Step] = field(default_factory=dict, repr=False)

    @property
    def ties(self) -> list[tuple[str, ...]]:
        """The names of each weight that was read; tied weights have several."""
        return [step.names for step in self.steps.values() if step.names]

    @property
    def names(self) -> frozenset[str]:
        """The names of the weights that were read."""
        return frozenset(name for names in self.ties for name in names)

    def of(self, name: str) -> WeightRead | None:
        """The first read of a weight."""
        names = next((names for names in self.ties if name in names), ())
        return next((read for read in self.reads if set(read.weights) & set(names)), None)

    def difference(self, value_of: Callable[[tuple[str, ...]], Tensor]) -> DifferentRead | None:
        """The first read that has another value for other weights."""
        by_step: dict[int, list[WeightRead]] = {}
        for read in self.reads:
            by_step.setdefault(read.place.step, []).append(read)
        results: dict[int, Any] = {}
        for index, step in self.steps.items():
            if step.function is None:
                results[index] = [value_of(step.names)]
            else:
                leaves = [_result(results, leaf) if isinstance(leaf, _Place) else leaf for leaf in step.leaves]
                try:
                    results[index] = pytree.tree_leaves(run_operator(step.function, leaves, step.structure))
                except (RuntimeError, IndexError, ValueError) as error:
                    read = next(one for one in self.reads if one.place.step >= index)
                    text, _, _ = str(error).partition("\n")
                    return DifferentRead(read, f"an error ({text})")
            for read in by_step.get(index, ()):
                value = _value_of(results[index], read.place.leaf)
                if not _is_equal(value, read.value):
                    return DifferentRead(read, value)
        return None


def _result(results: Mapping[int, Sequence[Any]], place: _Place) -> Any:
    return results[place.step][place.leaf]


def _value_of(leaves: Sequence[Any], position: int) -> Any:
    """The number at a position, or the sizes of the tensors from there on."""
    found = leaves[position]
    return [list(leaf.shape) for leaf in leaves] if isinstance(found, Tensor) else found


def _is_equal(one: Any, other: Any) -> bool:
    """Whether two values are equal; NaN is equal to itself."""
    return bool(one == other) or (one != one and other != other)


def run_operator(func: OpOverload[Any, Any], leaves: Sequence[Any], structure: Any) -> Any:
    """Run an operator on real tensors."""
    args, kwargs = pytree.tree_unflatten(list(leaves), structure)
    with no_dispatch(), DisableTorchFunction(), torch.no_grad():
        result = func(*args, **kwargs)
        # The original is a constant of the graph, which later writes must not change.
        return result.clone() if func in _LIFTS else result


@dataclass
class WeightTape:
    """Records the operators that run on concrete values, and which of their results are read.

    Attributes:
        names: ``id`` of a parameter or buffer to its names.
    """

    names: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    _steps: list[_Step] = field(default_factory=list)
    _reads: list[WeightRead] = field(default_factory=list)
    _places: MutableMapping[Tensor, _Place] = field(default_factory=WeakTensorKeyDictionary)
    # A tensor to the number of its memory, and that number to the weights on which its content depends.
    _memories: MutableMapping[Tensor, int] = field(default_factory=WeakTensorKeyDictionary)
    _sources: list[frozenset[str]] = field(default_factory=list)

    def name_weights(self, model: torch.nn.Module) -> Collection[int]:
        """Take the names of the parameters and buffers of a model, and return the ``id`` of each."""
        names: dict[int, list[str]] = {}
        for named in (model.named_parameters, model.named_buffers):
            for name, tensor in named(remove_duplicate=False):
                names.setdefault(id(tensor), []).append(name)
        self.names = {key: tuple(found) for key, found in names.items()}
        return self.names.keys()

    def add_weight(self, weight: Tensor, value: Tensor) -> None:
        """Record a parameter or buffer, whose value is used under another object."""
        names = self.names.get(id(weight), ())
        if names:
            self._places[value] = _Place(len(self._steps))
            memory = self._new_memory(frozenset(names[:1]))
            self._memories[value] = memory
            self._steps.append(_Step(names, memories=frozenset({memory})))

    def run(self, func: OpOverload[Any, Any], leaves: Sequence[Any], structure: Any) -> Any:
        """Run an operator on values, and record it."""
        result = run_operator(func, leaves, structure)
        operands = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        by_address = {_address(one): memory for one in operands if (memory := self._memory(one)) is not None}
        used = frozenset(by_address.values())
        sources: frozenset[str] = frozenset().union(*(self._sources[memory] for memory in used))
        if torch.Tag.nondeterministic_seeded in func.tags:
            sources |= {_RANDOM}
        index = len(self._steps)
        places = tuple(self._places.get(leaf, leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        found = set(used)
        for position, leaf in enumerate(pytree.tree_leaves(result)):
            if isinstance(leaf, Tensor):
                memory = by_address.get(_address(leaf))
                if memory is None:
                    memory = self._new_memory(sources)
                self._memories[leaf] = memory
                self._places[leaf] = _Place(index, position)
                found.add(memory)
        written = self._written(func, leaves, structure)
        for memory in written:
            self._sources[memory] |= sources
        self._steps.append(_Step((), func, places, structure, frozenset(found), written))
        return result

    def read(self, func: OpOverload[Any, Any], result: Any, operands: Sequence[Any]) -> None:
        """Record that Python, or the shape of a tensor, has the result of the last operator."""
        if func in _SELECTIONS:
            operands = [one for one in operands[1:] if isinstance(one, Tensor) and one.dtype in _MASKS]
        known = (self._memory(one) for one in operands if isinstance(one, Tensor))
        sources: frozenset[str] = frozenset().union(*(self._sources[memory] for memory in known if memory is not None))
        if sources and _RANDOM not in sources:
            place = _Place(len(self._steps) - 1)
            self._add(WeightRead(tuple(sorted(sources)), None, _value_of(pytree.tree_leaves(result), 0), place))

    def number(self, value: Tensor) -> tuple[Any, tuple[WeightRead, ...]]:
        """The number in a tensor of one element, and its read if it depends on weights."""
        memory = self._memory(value)
        sources = frozenset[str]() if memory is None else self._sources[memory]
        if not sources or _RANDOM in sources:
            return value.item(), ()
        leaves, structure = pytree.tree_flatten(((value,), {}))
        number = self.run(_aten._local_scalar_dense.default, leaves, structure)
        return number, (WeightRead(tuple(sorted(sources)), None, number, _Place(len(self._steps) - 1)),)

    def add(self, reads: Sequence[WeightRead]) -> None:
        """Record reads for the line that asks."""
        for read in reads:
            self._add(read)

    def found(self) -> WeightReads:
        """The reads, with the steps that they need."""
        if not self._reads:
            return WeightReads()
        needed = {read.place.step for read in self._reads}
        memories: set[int] = set()
        for index in range(len(self._steps) - 1, -1, -1):
            step = self._steps[index]
            if index in needed or step.written & memories:
                needed.add(index)
                memories |= step.memories
                needed |= {leaf.step for leaf in step.leaves if isinstance(leaf, _Place)}
        return WeightReads(tuple(self._reads), {index: self._steps[index] for index in sorted(needed)})

    def _add(self, read: WeightRead) -> None:
        frame = asking_frame()
        if frame is not None:
            read = replace(read, line=source_line_of(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        self._reads.append(read)

    def _written(self, func: OpOverload[Any, Any], leaves: Sequence[Any], structure: Any) -> frozenset[int]:
        """The memories that an operator writes."""
        if not func._schema.is_mutable:
            return frozenset()
        args, kwargs = pytree.tree_unflatten(list(leaves), structure)
        found = pytree.tree_leaves([*written_arguments(func._schema, args, kwargs)])
        known = (self._memory(leaf) for leaf in found if isinstance(leaf, Tensor))
        return frozenset(memory for memory in known if memory is not None)

    def _memory(self, tensor: Tensor) -> int | None:
        return self._memories.get(tensor)

    def _new_memory(self, sources: frozenset[str]) -> int:
        self._sources.append(sources)
        return len(self._sources) - 1


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
