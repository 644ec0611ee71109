"""Values of tensors during the capture: constants of the model, and on request the example inputs'.

A fake tensor has a shape but no value, so that ``if mask.any()`` fails in torch.export even for a mask that ``forward``
creates. Inside ``concrete_values``, operators whose operands have concrete values are also run on these, and a guard on
such a tensor is resolved: by its value if it depends on constants only, or, with ``follow_example``, by an unbacked
symbol whose conditions are evaluated for the example.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import torch
from torch import SymBool, SymFloat, SymInt, Tensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from fxonnx_translations._torch_compat import (
    DisableTorchFunction,
    FakeTensor,
    OpOverload,
    WeakTensorKeyDictionary,
    no_dispatch,
    pytree,
)

from ..._context_values import activated, active
from ..._nodes import written_arguments
from .assumption import AssumptionKind, AssumptionLog
from .symbolic_scalars import Scalar, evaluate, is_exact
from .weight_reads import WeightRead, WeightTape

__all__ = [
    "UNINITIALIZED",
    "ConcreteValues",
    "active_values",
    "answer_by_example",
    "concrete_values",
    "dispatch",
    "following_example",
    "from_real_tensor",
    "is_open",
    "number_of",
    "text",
]

LARGEST_TENSOR = 1 << 24
"""Number of elements up to which operators on constants are run for real."""

_aten = torch.ops.aten
# Kernels for shapes return such tensors in the place of their results.
UNINITIALIZED = frozenset(
    {
        *(_aten.empty.memory_format, _aten.empty_like.default, _aten.empty_permuted.default),
        *(_aten.empty_strided.default, _aten.new_empty.default, _aten.new_empty_strided.default),
    }
)


@dataclass(frozen=True)
class _Value:
    """Value of a fake tensor.

    Attributes:
        tensor: The value. Fake tensors that share memory have values that share memory.
        is_certain: Whether it is the same for all inputs of the program.
    """

    tensor: Tensor
    is_certain: bool


@dataclass
class ConcreteValues:
    """The values of one capture.

    Attributes:
        log: Receives the guards that are resolved.
        examples: ``id`` of an example input to its label; of a tensor of the model that becomes an input to its FQN.
        weights: ``id`` of the other parameters and buffers of the model.
        follow_example: Whether the values of the example inputs are known.
        tape: Records the values that are read from weights.
        random_operators: The number of operators so far that draw random numbers.
    """

    log: AssumptionLog
    examples: Mapping[int, str] = field(default_factory=dict)
    weights: frozenset[int] = frozenset()
    follow_example: bool = False
    tape: WeightTape = field(default_factory=WeightTape)
    random_operators: int = 0
    _values: Any = field(default_factory=WeakTensorKeyDictionary)
    # Tensors of one element whose values are expressions of sizes.
    _scalars: Any = field(default_factory=WeakTensorKeyDictionary)
    # The numbers of weights in them, which count once they are read.
    _scalar_reads: MutableMapping[Tensor, tuple[WeightRead, ...]] = field(default_factory=WeakTensorKeyDictionary)
    _conditions: dict[Any, SymBool] = field(default_factory=dict)
    _sources: MutableMapping[Tensor, frozenset[str]] = field(default_factory=WeakTensorKeyDictionary)
    _symbol_sources: dict[Any, frozenset[str]] = field(default_factory=dict)
    # Memory by address of its storage object, with a tensor that keeps it alive: values that are no longer known after
    # a write, that depend on the example, and that belong to the user.
    _lost: dict[int, Tensor] = field(default_factory=dict)
    _uncertain: dict[int, Tensor] = field(default_factory=dict)
    _foreign: dict[int, Tensor] = field(default_factory=dict)
    # By ``id`` of a tensor that is not an input, the tensor and its copy.
    _constants: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    # The result of nonzero to its operand.
    _masks: MutableMapping[Tensor, Tensor] = field(default_factory=WeakTensorKeyDictionary)
    _is_suspended: bool = False

    def track(self, model: torch.nn.Module, inputs: Mapping[str, Any], states: Collection[str]) -> None:
        """Set the tensors whose values are tracked."""
        self.examples = {id(leaf): label for label, leaf in inputs.items() if isinstance(leaf, Tensor)}
        own = {id(attrgetter(name)(model)): name for name in sorted(states)}
        self.weights = frozenset(self.tape.name_weights(model)) - own.keys()
        self.examples = {**own, **self.examples}

    def add_source(self, fake: Tensor, tensor: Tensor) -> None:
        """Record the value of a fake tensor that torch.export creates for a parameter, a buffer or an input."""
        label = self.examples.get(id(tensor))
        if label is not None:
            self._sources[fake] = frozenset({label})
        if not (self.follow_example if label is not None else id(tensor) in self.weights):
            return
        if tensor.is_meta or type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
            return
        value = tensor.detach()
        if label is not None:
            value = value.clone()
        else:
            self._foreign[_memory(value)] = value
            self.tape.add_weight(tensor, value)
        self._values[fake] = _Value(value, label is None)

    def is_constant(self, fake: Tensor) -> bool:
        """Whether a fake tensor has the same value for all inputs of the program."""
        found = self._real_leaves([fake])
        return found is not None and found[1]

    def is_of_sizes(self, value: Any) -> bool:
        """Whether a tensor has one element, an exact expression of sizes: ``torch.tensor(x.shape[0] * 0.5)``."""
        scalar = self._scalars.get(value) if isinstance(value, Tensor) else None
        return scalar is not None and is_exact(scalar, value.dtype)

    def mask_of(self, indices: Tensor) -> Tensor | None:
        """The operand of the ``nonzero`` that returned these indices, or None."""
        return self._masks.get(indices)

    def sources_of(self, value: Any) -> frozenset[str]:
        """Labels of the inputs that a fake tensor, or an unbacked number read from one, depends on."""
        if isinstance(value, Tensor):
            return self._sources.get(value, frozenset())
        return frozenset().union(*(self._symbol_sources.get(symbol, ()) for symbol in value.free_symbols))

    def condition(self, expression: Any) -> SymBool | None:
        """The condition on sizes that an unbacked truth value stands for, or None."""
        return self._conditions.get(expression)

    def dispatch(self, run: Callable[[], Any], func: OpOverload[Any, Any], args: Any, kwargs: Any) -> Any:
        """Run an operator on fake tensors, and on their values if all of them are known.

        Operators that compute the shape of another one have no values, except for resolved guards: the
        number of elements that a constant mask selects.
        """
        self.random_operators += torch.Tag.nondeterministic_seeded in func.tags
        if self._is_suspended and not _reads_value(func):
            return run()
        leaves, structure = pytree.tree_flatten((args, dict(kwargs)))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        written = _written_tensors(func, args, kwargs)
        is_computed = func not in UNINITIALIZED and not self._is_random(func)
        is_computed = is_computed and not any(self._is_foreign(tensor) for tensor in written)
        real = self._real_leaves(leaves) if is_computed else None
        if real is None:
            self._forget(written)
            scalar, reads = (None, ()) if written else self._scalar(func, leaves, structure)
            is_read = scalar is not None and func is _aten._local_scalar_dense.default
            if is_read:
                self.tape.add(reads)
            if is_read and not isinstance(scalar, SymBool):
                return scalar
            with self.suspended():
                result = run()
            self._spread_sources(tensors, result)
            if func is _aten.nonzero.default:
                self._masks[result] = tensors[0]
            if isinstance(scalar, SymBool) and isinstance(result, SymBool):
                # torch.export requires that the truth value of a tensor is unbacked.
                self._conditions[result.node.expr] = scalar
            if isinstance(result, Tensor) and scalar is not None and result.numel() == 1:
                self._scalars[result], self._scalar_reads[result] = scalar, reads
            return result
        values, is_certain = real
        if _reads_value(func):
            actual = self._compute(func, values, structure)
            if is_certain:
                self.tape.read(func, actual, values)
            result = self._answer(func, actual, run, is_certain=is_certain, operands=tensors)
        else:
            with self.suspended():
                result = run()
            if is_certain and _elements(result) > LARGEST_TENSOR:
                self._forget(written)
                return result
            actual = self._compute(func, values, structure)
        self._record(written, result, actual, is_certain=is_certain)
        self._spread_sources(tensors, result)
        return result

    def _answer(
        self, func: OpOverload[Any, Any], actual: Any, run: Callable[[], Any], *, is_certain: bool, operands: Any
    ) -> Any:
        """Result of an operator whose result, or the shape of it, depends on values."""
        if is_certain:
            if not isinstance(actual, Tensor | tuple | list):
                self.log.add(AssumptionKind.CONSTANT, actual)
                return actual
            mode = next(leaf for leaf in operands if isinstance(leaf, FakeTensor)).fake_mode
            return pytree.tree_map_only(Tensor, lambda t: _new_fake(mode, t), actual)
        result = run()
        for fake, real in zip(pytree.tree_leaves(result), pytree.tree_leaves(actual), strict=True):
            if isinstance(fake, Tensor):
                for size, length in zip(fake.shape, real.shape, strict=True):
                    _set_example(size, length)
            else:
                _set_example(fake, real)
        return result

    def _real_leaves(self, leaves: Sequence[Any]) -> tuple[list[Any], bool] | None:
        """The operands with the values of tensors, and whether these are certain; None if one is unknown."""
        found: list[Any] = []
        is_certain = True
        for leaf in leaves:
            real: Any = leaf
            if isinstance(leaf, FakeTensor):
                value = self._values.get(leaf)
                if value is None or _memory(value.tensor) in self._lost:
                    return None
                real = value.tensor
                is_certain &= value.is_certain and _memory(real) not in self._uncertain
            elif isinstance(leaf, Tensor):
                # A tensor attribute that forward writes is an example of its value.
                is_example = id(leaf) in self.examples
                if type(leaf) is not Tensor or leaf.is_meta or (is_example and not self.follow_example):
                    return None
                if _memory(leaf) in self._lost:
                    return None
                is_certain &= not is_example
                real = self._constants.setdefault(id(leaf), (leaf, leaf.detach().clone()))[1]
            elif isinstance(leaf, SymInt | SymFloat | SymBool):
                real = _constant_number(leaf)
                if real is None:
                    real, is_certain = (_example_number(leaf) if self.follow_example else None), False
                if real is None:
                    return None
            elif isinstance(leaf, torch.device) and leaf.type == "meta":
                return None
            found.append(real)
        return found, is_certain

    def _scalar(
        self, func: OpOverload[Any, Any], leaves: Sequence[Any], structure: Any
    ) -> tuple[Scalar | None, tuple[WeightRead, ...]]:
        """Value of an operator on tensors of one element as an expression of sizes, and the numbers of weights in it.

        The value is None if one of the tensors is unknown.
        """
        numbers = []
        reads: tuple[WeightRead, ...] = ()
        for leaf in leaves:
            number: Any = leaf
            if isinstance(leaf, FakeTensor):
                number, used = self._scalars.get(leaf), self._scalar_reads.get(leaf, ())
                value = self._values.get(leaf) if number is None else None
                if value is not None and value.is_certain and value.tensor.numel() == 1 and leaf.dim() == 0:
                    number, used = (None, ()) if _memory(value.tensor) in self._lost else self.tape.number(value.tensor)
                if number is None:
                    return None, ()
                reads += used
            elif isinstance(leaf, Tensor):
                return None, ()
            numbers.append(number)
        args, kwargs = pytree.tree_unflatten(numbers, structure)
        return evaluate(func, args, kwargs), reads

    def _compute(self, func: OpOverload[Any, Any], leaves: list[Any], structure: Any) -> Any:
        with self.suspended():
            return self.tape.run(func, leaves, structure)

    def _record(self, written: Sequence[Tensor], result: Any, actual: Any, *, is_certain: bool) -> None:
        """Record the values of the results and of the tensors that the operator wrote."""
        for fake, real in zip(pytree.tree_leaves(result), pytree.tree_leaves(actual), strict=False):
            if isinstance(fake, FakeTensor) and isinstance(real, Tensor):
                self._values[fake] = _Value(real, is_certain)
        for tensor in written:
            value = self._values.get(tensor)
            if value is not None and not is_certain:
                self._uncertain[_memory(value.tensor)] = value.tensor

    def _forget(self, written: Sequence[Tensor]) -> None:
        """Forget the values of all tensors that share memory with those an operator writes."""
        for tensor in written:
            value = self._values.get(tensor)
            if value is not None:
                self._lost[_memory(value.tensor)] = value.tensor
            elif type(tensor) is Tensor:
                # An attribute of the model, of which views have the memory of its copy.
                self._lost[_memory(tensor)] = tensor
                copied = self._constants.get(id(tensor), (tensor, tensor))[1]
                self._lost[_memory(copied)] = copied
        if written:
            # They do not know which tensors share their memory.
            self._scalars.clear()

    def _is_foreign(self, tensor: Tensor) -> bool:
        """Whether a tensor is, or has as its value, memory of the user."""
        value = self._values.get(tensor)
        return type(tensor) is not FakeTensor or (value is not None and _memory(value.tensor) in self._foreign)

    def _spread_sources(self, operands: Sequence[Tensor], result: Any) -> None:
        sources: frozenset[str] = frozenset().union(*(self._sources.get(operand, ()) for operand in operands))
        if not sources:
            return
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, FakeTensor):
                self._sources[leaf] = sources | self._sources.get(leaf, frozenset())
                numbers: Sequence[Any] = leaf.shape
            else:
                numbers = (leaf,)
            for number in numbers:
                if isinstance(number, SymInt | SymFloat | SymBool):
                    for symbol in number.node.expr.free_symbols:
                        self._symbol_sources.setdefault(symbol, sources)

    def _is_random(self, func: OpOverload[Any, Any]) -> bool:
        return torch.Tag.nondeterministic_seeded in func.tags and not self.follow_example

    @property
    def is_suspended(self) -> bool:
        """Whether operators are ignored."""
        return self._is_suspended

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Ignore operators inside the context: the ones that another one consists of, and bodies of loops.

        Their results have no values. Guards on values that are already concrete are resolved.
        """
        before, self._is_suspended = self._is_suspended, True
        try:
            yield
        finally:
            self._is_suspended = before


def concrete_values(values: ConcreteValues) -> AbstractContextManager[ConcreteValues]:
    """Track values inside the context, which requires that ``VALUE_PATCHES`` are applied."""
    return activated(values)


def active_values() -> ConcreteValues | None:
    """The values of the current capture, or None if values are not tracked."""
    return active(ConcreteValues)


@dataclass(frozen=True)
class _Decides:
    """Whether the example may resolve guards."""

    by_example: bool = False


def following_example(*, is_requested: bool) -> AbstractContextManager[Any]:
    """Inside the context, guards may be resolved by the example if this is requested."""
    return activated(_Decides(is_requested))


def is_open(value: Any) -> bool:
    """Whether a tensor, or the truth value of one, differs between inputs, for all of which the export must hold."""
    if (active(_Decides) or _Decides()).by_example:
        return False
    if isinstance(value, Tensor):
        values = active(ConcreteValues)
        return isinstance(value, FakeTensor) and (values is None or not values.is_constant(value))
    return isinstance(value, SymInt | SymBool) and bool(free_unbacked_symbols(value))


def number_of(value: Any) -> Any:
    """The symbolic number in a tensor that is known to differ between inputs; other values as they are."""
    is_known = isinstance(value, Tensor) and active(ConcreteValues) is not None
    return value.item() if is_known and is_open(value) else value


def dispatch(
    original: Callable[..., Any],
    mode: Any,
    func: Any,
    types: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Replacement of ``FakeTensorMode.dispatch`` that also runs operators on concrete values."""
    values = active(ConcreteValues)
    if values is None or not isinstance(func, OpOverload):
        return original(mode, func, types, args, kwargs)
    return values.dispatch(lambda: original(mode, func, types, args, kwargs), func, args, kwargs)


def from_real_tensor(
    original: Callable[..., Tensor], self: Any, mode: Any, t: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    """Replacement of ``FakeTensorConverter.from_real_tensor`` that records the value of the new fake tensor."""
    fake = original(self, mode, t, *args, **kwargs)
    values = active(ConcreteValues)
    if values is not None:
        with no_dispatch(), DisableTorchFunction(), torch.no_grad():
            values.add_source(fake, t)
    return fake


def answer_by_example(original: Callable[..., None], self: Any, orig_expr: Any, unsound_result: Any) -> None:
    """Replacement of ``ShapeEnv._log_real_tensor_propagation``, which torch calls if it follows the example."""
    values = active(ConcreteValues)
    if values is not None:
        values.log.add(AssumptionKind.EXAMPLE, unsound_result, str(orig_expr))


def text(original: Callable[..., str], self: Tensor, specification: str) -> str:
    """``Tensor.__format__`` of a tensor of rank 0, whose value torch.export does not insert: ``f"expert_{index}"``."""
    if isinstance(self, FakeTensor) and self.dim() == 0:
        number = self.item()
        return format(int(number) if isinstance(number, SymInt) else number, specification)
    return original(self, specification)


def _reads_value(func: OpOverload[Any, Any]) -> bool:
    """Whether the result of an operator, or the shape of it, depends on values."""
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


def _written_tensors(func: OpOverload[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The arguments that an operator writes to."""
    if not func._schema.is_mutable:
        return []
    leaves = pytree.tree_leaves([*written_arguments(func._schema, args, kwargs)])
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _elements(result: Any) -> int:
    """Number of elements of the largest tensor of a result whose sizes are static."""
    return max((leaf.numel() for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)), default=0)


def _new_fake(mode: Any, tensor: Tensor) -> Tensor:
    return FakeTensor(mode, tensor.to("meta"), tensor.device)


def _constant_number(number: SymInt | SymFloat | SymBool) -> int | float | bool | None:
    """Value of a symbolic number that is a constant."""
    expression = number.node.expr
    if expression.free_symbols:
        return None
    return _as_python(number, expression)


def _example_number(number: SymInt | SymFloat | SymBool) -> int | float | bool | None:
    """Value of a symbolic number for the example inputs."""
    environment = number.node.shape_env
    expression = number.node.expr.xreplace(environment.real_tensor_prop_unbacked_vals)
    expression = expression.xreplace(environment.backed_var_to_val)
    return None if expression.free_symbols else _as_python(number, expression)


def _as_python(number: SymInt | SymFloat | SymBool, value: Any) -> int | float | bool:
    if isinstance(number, SymBool):
        return bool(value)
    return int(value) if isinstance(number, SymInt) else float(value)


def _set_example(number: Any, value: Any) -> None:
    """Define the unbacked symbol of a number that was read from a tensor by its value for the example."""
    if not isinstance(number, SymInt | SymFloat | SymBool):
        return
    expression, environment = number.node.expr, number.node.shape_env
    if isinstance(number, SymBool):
        # torch represents the value of a bool tensor as u0 == 1.
        expression, value = expression.lhs, int(value)
    if expression.is_Symbol:
        environment.set_real_tensor_prop_unbacked_vals(expression, value)
