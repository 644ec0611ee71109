"""Dynamic dims from examples: what differs between calls of a model is dynamic."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any, TypeAlias

import torch

from fxonnx_translations._torch_compat import pytree

from ...errors import ArgumentError
from ..inputs.example_inputs import BoundInputs, expand_var_keyword
from ..inputs.input_names import graph_names
from ..inputs.pytree_objects import flatten_objects, unflatten_objects
from .dynamic_shapes import Leaf, fill, is_counter, read_shapes_by_parameter

__all__ = ["AlignedCalls", "DimNames", "ExampleCall", "align_calls", "align_more_inputs"]

ExampleCall: TypeAlias = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Positional and keyword arguments of one call."""

Sizes: TypeAlias = tuple[int | None, ...]
"""A size in every call, None where the tensor was not given."""

DimNames: TypeAlias = dict[int | None, str]
"""Names of dynamic axes; the key None stands for the value of an int."""


@dataclass(frozen=True)
class AlignedCalls:
    """Several calls of one model, leaf by leaf.

    Attributes:
        signature: Of the method that is called.
        inputs: The call that has all the tensors, without the keywords that say what is so by default.
        leaves: Its leaves.
        calls: For every call the values of its leaves by label; what was not given is not in it.
        argument: What to call the examples in messages.
    """

    signature: Signature
    inputs: BoundInputs
    leaves: tuple[Leaf, ...]
    calls: tuple[Mapping[str, Any], ...]
    argument: str

    def dims(self, batch: Callable[[Leaf], bool] | None = None) -> list[DimNames]:
        """The dynamic dims of every leaf. DimNames that have the same size in every call share a name.

        Args:
            batch: Tells whether the first axis of a tensor is the batch, dynamic even if the calls have one size of it.
        """
        names = dict(zip((leaf.label for leaf in self.leaves), graph_names(self.leaves), strict=True))
        named: dict[Sizes, str] = {}
        first_batch: Sizes | None = None
        found = []
        for leaf in self.leaves:
            dims: DimNames = {}
            for axis, sizes in self._sizes(leaf):
                is_batch = axis == 0 and batch is not None and batch(leaf)
                if is_batch and first_batch is None:
                    first_batch = sizes
                    named[sizes] = "batch"
                if is_batch and first_batch is not None and _may_be_equal(sizes, first_batch):
                    dims[axis] = "batch"
                elif is_batch or len(set(sizes) - {None}) > 1:
                    place = names[leaf.label]
                    # A tensor that some calls do not give shares a name if the others do not speak against it.
                    same = next((known for known in named if _may_be_equal(sizes, known)), sizes)
                    dims[axis] = named.setdefault(same, place if axis is None else f"{place}_dim_{axis}")
            found.append(dims)
        return found

    def _sizes(self, leaf: Leaf) -> Iterator[tuple[int | None, Sizes]]:
        values = [call.get(leaf.label) for call in self.calls]
        if isinstance(leaf.value, torch.Tensor):
            for axis in range(leaf.value.dim()):
                yield axis, tuple(None if value is None else int(value.shape[axis]) for value in values)
        elif _is_int(leaf.value) and not is_counter(leaf):
            yield None, tuple(values)

    def dynamic_shapes(self, dims: Sequence[DimNames]) -> dict[str, Any]:
        """``dims`` by name of ``forward``'s parameters, as torch.export takes it."""
        inputs = self.inputs
        specs = iter(_spec(leaf, of_leaf) for leaf, of_leaf in zip(self.leaves, dims, strict=True))
        args = [fill(value, specs) for value in inputs.args]
        kwargs = {key: fill(value, specs) for key, value in inputs.kwargs.items()}
        shapes = dict(inputs.signature.bind(*args, **kwargs).arguments)
        if inputs.var_keyword is not None:
            extra = {key: shapes.pop(key) for key in inputs.kwargs if key not in self.signature.parameters}
            if extra:
                shapes[inputs.var_keyword] = extra
        return shapes

    def arguments(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments with other leaves."""
        spec = pytree.tree_structure((self.inputs.args, dict(self.inputs.kwargs)))
        plain = pytree.tree_unflatten(leaves, spec)
        args, kwargs = plain if self.inputs.objects is None else unflatten_objects(self.inputs.objects, plain)
        return args, kwargs

    def complete(self, values: Mapping[str, Any], dims: Sequence[DimNames]) -> tuple[list[Any], int]:
        """The leaves of one call, an empty tensor for each that is not given, and how many those are.

        Args:
            values: The leaves that are given, by label.
            dims: The dynamic dims: the last one of an empty tensor is 0.
        """
        sizes = {
            name: values[leaf.label].shape[axis]
            for leaf, of_leaf in zip(self.leaves, dims, strict=True)
            for axis, name in of_leaf.items()
            if axis is not None and leaf.label in values
        }
        leaves, missing = [], 0
        for leaf, of_leaf in zip(self.leaves, dims, strict=True):
            if leaf.label in values or not isinstance(leaf.value, torch.Tensor):
                leaves.append(values.get(leaf.label, 0 if is_counter(leaf) else leaf.value))
                continue
            missing += 1
            shape = [sizes.get(of_leaf.get(axis, ""), size) for axis, size in enumerate(leaf.value.shape)]
            if of_leaf:
                shape[max(axis for axis in of_leaf if axis is not None)] = 0
            leaves.append(leaf.value.new_zeros(shape))
        return leaves, missing

    def best(self) -> Mapping[str, Any]:
        """The call to export with: a size of 1 may be traced as if it were the only one."""
        dims = self.dims()

        def rank(values: Mapping[str, Any]) -> tuple[int, int]:
            leaves, missing = self.complete(values, dims)
            ones = sum(
                leaf.shape[axis] == 1
                for leaf, of_leaf in zip(leaves, dims, strict=True)
                for axis in of_leaf
                if axis is not None
            )
            return ones, missing

        return min(self.calls, key=rank)

    def read(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The leaves of another call by label.

        Raises:
            ArgumentError: If they are not among those of the aligned calls.
        """
        told = {*self.inputs.kwargs, *_told(self.signature, [(args, kwargs)])}
        inputs = _bound(self.signature, (args, _kept(self.signature, kwargs, told)), self.argument, partial=True)
        leaves = read_shapes_by_parameter(inputs, None).leaves
        _check_covered(self.inputs, self.leaves, leaves, self.argument)
        for leaf in self.leaves:
            _check_alike(leaf, [other.value for other in leaves if other.label == leaf.label], self.argument)
        return _values(leaves)


def align_calls(
    signature: Signature, calls: Sequence[ExampleCall], argument: str, if_missing: Mapping[str | int, Any] | None = None
) -> AlignedCalls:
    """Finds out what belongs together in several calls.

    A keyword that is None, or an int, float, bool or string, says nothing if it is the default of its parameter.

    Args:
        signature: Of the method that is called.
        calls: The arguments of the calls.
        argument: What to call the calls in messages.
        if_missing: Values of parameters, by name or position, for the calls that do not give them.

    Raises:
        ArgumentError: If no call has all the tensors, or a tensor has two ranks or dtypes, or a number that is no int,
            a bool or a string has two values.
    """
    calls = [_with_missing(signature, call, if_missing or {}) for call in calls]
    told = _told(signature, calls)
    bound = [_bound(signature, (args, _kept(signature, kwargs, told)), argument) for args, kwargs in calls]
    every = [read_shapes_by_parameter(inputs, None).leaves for inputs in bound]
    counts = [(sum(isinstance(leaf.value, torch.Tensor) for leaf in leaves), len(leaves)) for leaves in every]
    most = counts.index(max(counts))
    inputs, leaves = bound[most], every[most]
    values = tuple(_values(others) for others in every)
    for others in every:
        _check_covered(inputs, leaves, others, argument)
    for leaf in leaves:
        _check_alike(leaf, [of_call[leaf.label] for of_call in values if leaf.label in of_call], argument)
    return AlignedCalls(signature, inputs, leaves, values, argument)


def align_more_inputs(
    inputs: BoundInputs, leaves: tuple[Leaf, ...], calls: Sequence[ExampleCall], argument: str
) -> AlignedCalls:
    """The calls beside the one that ``inputs`` belongs to.

    Args:
        inputs: The inputs of the first call.
        leaves: Its leaves.
        calls: The others.
        argument: What to call these in messages.

    Raises:
        ArgumentError: If they do not fit the first one.
    """
    signature = inputs.signature
    told = {*inputs.kwargs, *_told(signature, calls)}
    values = [_values(leaves)]
    for args, kwargs in calls:
        bound = _bound(signature, (args, _kept(signature, kwargs, told)), argument, partial=True)
        others = read_shapes_by_parameter(bound, None).leaves
        unknown = _by_argument(bound, others).keys() - _by_argument(inputs, leaves).keys()
        if unknown:
            raise ArgumentError(
                argument,
                f"{min(unknown)!r} is not among args and kwargs",
                hint="args and kwargs are the first example, and must have every input of the others",
            )
        _check_covered(inputs, leaves, others, argument)
        values.append(_values(others))
    for leaf in leaves:
        _check_alike(leaf, [of_call[leaf.label] for of_call in values if leaf.label in of_call], argument)
    return AlignedCalls(signature, inputs, leaves, tuple(values), argument)


def _spec(leaf: Leaf, dims: DimNames) -> Any:
    if isinstance(leaf.value, torch.Tensor):
        return dims
    return dims.get(None)


def _may_be_equal(sizes: Sizes, others: Sizes) -> bool:
    return all(one == other or None in (one, other) for one, other in zip(sizes, others, strict=True))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_constant(value: Any) -> bool:
    return isinstance(value, int | float | str)


def _values(leaves: Sequence[Leaf]) -> dict[str, Any]:
    return {leaf.label: leaf.value for leaf in leaves if _says_something(leaf)}


def _says_something(leaf: Leaf) -> bool:
    """None does not, and neither does an object without tensors, such as the empty cache of a first call."""
    return isinstance(leaf.value, torch.Tensor | int | float | str)


def _bound(signature: Signature, call: ExampleCall, argument: str, *, partial: bool = False) -> BoundInputs:
    args, kwargs = call
    try:
        (signature.bind_partial if partial else signature.bind)(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(argument, f"a call does not fit the signature {signature}: {error}") from error
    given = (args, kwargs)
    args, kwargs = plain = flatten_objects(given)
    return BoundInputs(args, kwargs, *expand_var_keyword(signature, kwargs), None if plain is given else given)


def _with_missing(signature: Signature, call: ExampleCall, if_missing: Mapping[str | int, Any]) -> ExampleCall:
    args, kwargs = call
    names = list(signature.parameters)
    given = {**signature.bind_partial(*args, **kwargs).arguments, **kwargs}
    missing = {names[key] if isinstance(key, int) else key: value for key, value in if_missing.items()}
    missing = {name: value for name, value in missing.items() if given.get(name) is None}
    # A None that was given by position makes room.
    positional = [missing.pop(name, value) for name, value in zip(names, args, strict=False)]
    return (*positional, *args[len(names) :]), {**kwargs, **missing}


def _told(signature: Signature, calls: Sequence[ExampleCall]) -> Collection[str]:
    """The keywords that say something else than the default in one of the calls."""
    return {
        name
        for _, kwargs in calls
        for name, value in kwargs.items()
        if not _is_default(signature.parameters.get(name), value)
    }


def _is_default(parameter: Parameter | None, value: Any) -> bool:
    default = parameter.default if parameter is not None and parameter.kind != Parameter.VAR_KEYWORD else None
    if value is None or default is None:
        return value is default
    return _is_constant(value) and type(value) is type(default) and bool(value == default)


def _kept(signature: Signature, kwargs: Mapping[str, Any], told: Collection[str]) -> dict[str, Any]:
    """The keywords in the order of the signature, with the defaults of numbers that other calls give."""
    order = [*signature.parameters, *kwargs]
    kept = {}
    for name in dict.fromkeys(order):
        parameter = signature.parameters.get(name)
        if name not in told or (name in kwargs and kwargs[name] is None and _is_default(parameter, None)):
            continue
        if name in kwargs:
            kept[name] = kwargs[name]
        elif parameter is not None and _is_constant(parameter.default):
            kept[name] = parameter.default
    return kept


def _check_covered(inputs: BoundInputs, known: Sequence[Leaf], given: Sequence[Leaf], argument: str) -> None:
    """An argument of a call has all the leaves that it has in the call with the most tensors, or none of them."""
    expected, found = _by_argument(inputs, known), _by_argument(inputs, given)
    for name, leaves in found.items():
        labels = [leaf.label for leaf in leaves]
        if name not in expected:
            raise ArgumentError(
                argument,
                "At least one call to the observed model must contain all the named arguments: "
                f"{name!r} is not in the call with the most tensors, which has {', '.join(expected)}",
                hint="give a value for it in value_if_missing, or make one call with everything",
            )
        others = [leaf.label for leaf in expected[name]]
        if labels != others and any(map(_says_something, leaves)):
            positional = inputs.names()
            what = f"Positional argument {positional.index(name)}" if name in positional else f"Named argument {name!r}"
            raise ArgumentError(
                argument,
                f"{what} has {len(labels)} tensors in one call and {len(others)} in another: "
                f"{', '.join(labels)}; {', '.join(others)}",
                hint="containers must have the same elements in every call, or none",
            )


def _by_argument(inputs: BoundInputs, leaves: Sequence[Leaf]) -> dict[str, list[Leaf]]:
    """Leaves by argument: a parameter, or one element of ``*args``."""
    variable = next((p.name for p in inputs.signature.parameters.values() if p.kind == Parameter.VAR_POSITIONAL), None)
    found: dict[str, list[Leaf]] = {}
    for leaf in leaves:
        name = leaf.parameter
        if name == variable:
            name += leaf.path.partition("]")[0] + "]"
        found.setdefault(name, []).append(leaf)
    return {name: found[name] for name in found if any(map(_says_something, found[name]))}


def _check_alike(leaf: Leaf, values: Sequence[Any], argument: str) -> None:
    for value in values:
        if isinstance(value, torch.Tensor) and isinstance(leaf.value, torch.Tensor):
            if value.dim() == leaf.value.dim() and value.dtype == leaf.value.dtype:
                continue
            found = [f"{tensor.dtype} of shape {tuple(tensor.shape)}" for tensor in (leaf.value, value)]
            raise ArgumentError(argument, f"{leaf.label} is {found[0]} in one call and {found[1]} in another")
        if isinstance(value, torch.Tensor) or isinstance(leaf.value, torch.Tensor):
            raise ArgumentError(argument, f"{leaf.label} is a tensor in one call and none in another")
        if _is_constant(value) and not (_is_int(value) and _is_int(leaf.value)) and repr(value) != repr(leaf.value):
            raise ArgumentError(
                argument,
                f"Two calls were made with different constant values: {leaf.label} is {leaf.value!r} and {value!r}",
                hint="it becomes part of the model; observe calls with one value of it",
            )
