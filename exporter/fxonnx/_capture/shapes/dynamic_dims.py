"""Inference of dynamic dims from several calls of a model, as in ``more_inputs``: sizes that differ are dynamic."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter, Signature
from typing import Any, TypeAlias

import torch

from fxonnx_translations._torch_compat import pytree

from ..._request import Examples
from ...errors import ArgumentError, did_you_mean, kind_of
from ..inputs.example_inputs import BoundInputs, InputTable, expand_var_keyword
from ..inputs.pytree_objects import flatten_objects
from .dynamic_shapes import (
    DynamicShapes,
    Leaf,
    check_example,
    checked_shapes,
    is_counter,
    name_of_spec,
    read_shapes_by_parameter,
    specs_like,
)
from .spec_keys import graph_names

__all__ = ["AlignedCalls", "ExampleCall", "add_examples", "align_calls"]

ExampleCall: TypeAlias = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Positional and keyword arguments of one call."""

Sizes: TypeAlias = tuple[int | None, ...]
"""The size of a dim in every call; None if the call does not pass the tensor."""

DimNames: TypeAlias = dict[int | None, str]
"""Dynamic axis to dim name; the key None is the value of an int."""


@dataclass(frozen=True)
class AlignedCalls:
    """Several calls of one model, aligned leaf by leaf.

    Attributes:
        signature: Signature of the called method.
        inputs: The call with all tensors, without keywords that have their default value in every call.
        leaves: The leaves of ``inputs``.
        calls: Per call, leaf label to value, without the missing leaves.
        argument: Name of the examples in messages.
    """

    signature: Signature
    inputs: BoundInputs
    leaves: tuple[Leaf, ...]
    calls: tuple[Mapping[str, Any], ...]
    argument: str

    def dims(self, batch: Callable[[Leaf], bool] | None = None) -> list[DimNames]:
        """Infer the dynamic dims of every leaf. Dims with the same size in every call share a name.

        Args:
            batch: Predicate of the tensors whose first axis is the batch, which is always dynamic.
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
                if is_batch and first_batch is not None and _are_compatible(sizes, first_batch):
                    dims[axis] = "batch"
                elif is_batch or len(set(sizes) - {None}) > 1:
                    place = names[leaf.label]
                    # If some calls do not pass the tensor, the sizes in the others decide.
                    same = next((known for known in named if _are_compatible(sizes, known)), sizes)
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
        """Convert ``dims`` to the ``dynamic_shapes`` argument of torch.export, by parameter of ``forward``."""
        inputs = self.inputs
        specs = iter(_spec(leaf, of_leaf) for leaf, of_leaf in zip(self.leaves, dims, strict=True))
        args = [specs_like(value, specs) for value in inputs.args]
        kwargs = {key: specs_like(value, specs) for key, value in inputs.kwargs.items()}
        shapes = dict(inputs.signature.bind(*args, **kwargs).arguments)
        if inputs.var_keyword is not None:
            extra = {key: shapes.pop(key) for key in inputs.kwargs if key not in self.signature.parameters}
            if extra:
                shapes[inputs.var_keyword] = extra
        return shapes

    def arguments(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of a call with the given leaves."""
        spec = pytree.tree_structure((self.inputs.args, dict(self.inputs.kwargs)))
        plain = pytree.tree_unflatten(leaves, spec)
        args, kwargs = self.inputs.table.for_model(plain)
        return args, kwargs

    def complete(self, values: Mapping[str, Any], dims: Sequence[DimNames]) -> tuple[list[Any], int]:
        """Fill the missing leaves of a call with empty tensors.

        Args:
            values: Leaf label to value of the call.
            dims: The dynamic dims; the last dynamic dim of an empty tensor is 0.

        Returns:
            The leaves, and the number of missing tensors.
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

    def call_to_export(self) -> Mapping[str, Any]:
        """The call to use as the example: the one with the fewest dynamic sizes of 1, which torch may specialize."""
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

    def leaves_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Leaf label to value of another call.

        Raises:
            ArgumentError: If the leaves do not match the aligned calls.
        """
        explicit = {*self.inputs.kwargs, *_explicit_keywords(self.signature, [(args, kwargs)])}
        inputs = _bind_call(
            self.signature, (args, _keep_keywords(self.signature, kwargs, explicit)), self.argument, partial=True
        )
        leaves = read_shapes_by_parameter(inputs, None).leaves
        _check_structure(self.inputs, self.leaves, leaves, self.argument)
        for leaf in self.leaves:
            _check_same_type(leaf, [other.value for other in leaves if other.label == leaf.label], self.argument)
        return _values(leaves)


def align_calls(
    signature: Signature, calls: Sequence[ExampleCall], argument: str, if_missing: Mapping[str | int, Any] | None = None
) -> AlignedCalls:
    """Align several calls of a method by leaf.

    A keyword that is None, an int, float, bool or string is ignored if it has the default value of its parameter.

    Args:
        signature: Signature of the called method.
        calls: The arguments of the calls.
        argument: Name of the calls in messages.
        if_missing: Values of parameters, by name or position, for the calls that do not pass them.

    Raises:
        ArgumentError: If no call has all the tensors, a tensor has two ranks or dtypes, or a float, bool or string has
            two values.
    """
    calls = [_with_missing(signature, call, if_missing or {}) for call in calls]
    explicit = _explicit_keywords(signature, calls)
    bound = [
        _bind_call(signature, (args, _keep_keywords(signature, kwargs, explicit)), argument) for args, kwargs in calls
    ]
    every = [read_shapes_by_parameter(inputs, None).leaves for inputs in bound]
    counts = [(sum(isinstance(leaf.value, torch.Tensor) for leaf in leaves), len(leaves)) for leaves in every]
    most = counts.index(max(counts))
    inputs, leaves = bound[most], every[most]
    values = tuple(_values(others) for others in every)
    for others in every:
        _check_structure(inputs, leaves, others, argument)
    for leaf in leaves:
        _check_same_type(leaf, [of_call[leaf.label] for of_call in values if leaf.label in of_call], argument)
    return AlignedCalls(signature, inputs, leaves, values, argument)


def _align_more_inputs(
    inputs: BoundInputs, leaves: tuple[Leaf, ...], calls: Sequence[ExampleCall], argument: str
) -> AlignedCalls:
    """Align additional calls with the example inputs.

    Raises:
        ArgumentError: If a call does not match the structure of the example inputs.
    """
    signature = inputs.signature
    explicit = {*inputs.kwargs, *_explicit_keywords(signature, calls)}
    values = [_values(leaves)]
    for args, kwargs in calls:
        bound = _bind_call(signature, (args, _keep_keywords(signature, kwargs, explicit)), argument, partial=True)
        others = read_shapes_by_parameter(bound, None).leaves
        unknown = _by_argument(bound, others).keys() - _by_argument(inputs, leaves).keys()
        if unknown:
            raise ArgumentError(
                argument,
                f"{min(unknown)!r} is not among args and kwargs",
                hint=did_you_mean(
                    min(unknown),
                    _by_argument(inputs, leaves),
                    "args and kwargs are the first example and must have every input of the others",
                ),
            )
        _check_structure(inputs, leaves, others, argument)
        values.append(_values(others))
    for leaf in leaves:
        _check_same_type(leaf, [of_call[leaf.label] for of_call in values if leaf.label in of_call], argument)
    return AlignedCalls(signature, inputs, leaves, tuple(values), argument)


def _spec(leaf: Leaf, dims: DimNames) -> Any:
    if isinstance(leaf.value, torch.Tensor):
        return dims
    return dims.get(None)


def _are_compatible(sizes: Sizes, others: Sizes) -> bool:
    return all(one == other or None in (one, other) for one, other in zip(sizes, others, strict=True))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_constant(value: Any) -> bool:
    return isinstance(value, int | float | str)


def _values(leaves: Sequence[Leaf]) -> dict[str, Any]:
    return {leaf.label: leaf.value for leaf in leaves if _has_value(leaf)}


def _has_value(leaf: Leaf) -> bool:
    """Whether a leaf is a tensor, number or string; not None or the empty cache of a first call."""
    return isinstance(leaf.value, torch.Tensor | int | float | str)


def _bind_call(signature: Signature, call: ExampleCall, argument: str, *, partial: bool = False) -> BoundInputs:
    args, kwargs = call
    try:
        (signature.bind_partial if partial else signature.bind)(*args, **kwargs)
    except TypeError as error:
        unknown = next((name for name in kwargs if name not in signature.parameters), None)
        known = "pass the inputs of one call of the model in each pair: [((x, y), {}), ...]"
        hint = did_you_mean(unknown, signature.parameters, known)
        raise ArgumentError(argument, f"a call does not match the signature {signature}: {error}", hint=hint) from error
    given = (args, kwargs)
    args, kwargs = plain = flatten_objects(given)
    table = InputTable(None if plain is given else given)
    return BoundInputs(args, kwargs, *expand_var_keyword(signature, kwargs), table)


def _with_missing(signature: Signature, call: ExampleCall, if_missing: Mapping[str | int, Any]) -> ExampleCall:
    args, kwargs = call
    names = list(signature.parameters)
    given = {**signature.bind_partial(*args, **kwargs).arguments, **kwargs}
    missing = {names[key] if isinstance(key, int) else key: value for key, value in if_missing.items()}
    missing = {name: value for name, value in missing.items() if given.get(name) is None}
    # A positional None counts as missing.
    positional = [missing.pop(name, value) for name, value in zip(names, args, strict=False)]
    return (*positional, *args[len(names) :]), {**kwargs, **missing}


def _explicit_keywords(signature: Signature, calls: Sequence[ExampleCall]) -> Collection[str]:
    """Names of the keywords with a value other than the default in at least one call."""
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


def _keep_keywords(signature: Signature, kwargs: Mapping[str, Any], explicit: Collection[str]) -> dict[str, Any]:
    """Select the explicit keywords, in the order of the signature; add defaults of constants that other calls pass."""
    order = [*signature.parameters, *kwargs]
    kept = {}
    for name in dict.fromkeys(order):
        parameter = signature.parameters.get(name)
        if name not in explicit or (name in kwargs and kwargs[name] is None and _is_default(parameter, None)):
            continue
        if name in kwargs:
            kept[name] = kwargs[name]
        elif parameter is not None and _is_constant(parameter.default):
            kept[name] = parameter.default
    return kept


def _check_structure(inputs: BoundInputs, known: Sequence[Leaf], given: Sequence[Leaf], argument: str) -> None:
    """Check that an argument has all the leaves that it has in the call with the most tensors, or none of them."""
    expected, found = _by_argument(inputs, known), _by_argument(inputs, given)
    for name, leaves in found.items():
        labels = [leaf.label for leaf in leaves]
        if name not in expected:
            raise ArgumentError(
                argument,
                "At least one call to the observed model must contain all the named arguments: "
                f"{name!r} is not in the call with the most tensors, which has {', '.join(expected)}",
                hint="set its value in value_if_missing, or make one call with all arguments",
            )
        others = [leaf.label for leaf in expected[name]]
        if labels != others and any(map(_has_value, leaves)):
            positional = inputs.names()
            kind = f"Positional argument {positional.index(name)}" if name in positional else f"Named argument {name!r}"
            raise ArgumentError(
                argument,
                f"{kind} has {len(labels)} tensors in one call and {len(others)} in another: "
                f"{', '.join(labels)}; {', '.join(others)}",
                hint="containers must have the same elements in every call, or none",
            )


def _by_argument(inputs: BoundInputs, leaves: Sequence[Leaf]) -> dict[str, list[Leaf]]:
    """Group the leaves by argument: a parameter, or an element of ``*args``."""
    variable = next((p.name for p in inputs.signature.parameters.values() if p.kind == Parameter.VAR_POSITIONAL), None)
    found: dict[str, list[Leaf]] = {}
    for leaf in leaves:
        name = leaf.parameter
        if name == variable:
            name += leaf.path.partition("]")[0] + "]"
        found.setdefault(name, []).append(leaf)
    return {name: found[name] for name in found if any(map(_has_value, found[name]))}


def _check_same_type(leaf: Leaf, values: Sequence[Any], argument: str) -> None:
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
                hint="it becomes a constant of the program; observe calls with the same value",
            )


_ARGUMENT = "more_inputs"


def add_examples(shapes: DynamicShapes, more_inputs: Examples) -> tuple[DynamicShapes, tuple[ExampleCall, ...]]:
    """Mark the dims that differ between the examples as dynamic, under the user's names if they have any.

    Args:
        shapes: The first example with its ``dynamic_shapes``.
        more_inputs: The additional examples.

    Returns:
        The extended shapes, and the additional examples in the form that the exported program takes.

    Raises:
        ArgumentError: If an example does not match the first one, or contradicts ``dynamic_shapes``.
    """
    if not isinstance(more_inputs, Sequence):
        raise ArgumentError(
            _ARGUMENT, f"expected a list of examples, got {kind_of(more_inputs)}", hint="write [((x, y), {}), ...]"
        )
    calls = [_call(example) for example in more_inputs]
    aligned = _align_more_inputs(shapes.inputs, shapes.leaves, calls, _ARGUMENT)
    for values in aligned.calls:
        check_example(shapes.leaves, [values.get(leaf.label) for leaf in shapes.leaves])
    dims = aligned.dims()
    users: dict[str, str] = {}
    for leaf, found in zip(shapes.leaves, dims, strict=True):
        for axis, name in found.items():
            own = name_of_spec(leaf.dims.get(axis))
            if own is not None:
                users.setdefault(name, own)
    leaves = []
    for leaf, found in zip(shapes.leaves, dims, strict=True):
        for axis in found:
            if axis in leaf.fixed:
                raise _contradiction(leaf, axis, aligned)
        named = {axis: users.get(name, name) for axis, name in found.items()}
        both = named | dict(leaf.dims)
        leaves.append(replace(leaf, dims={axis: both[axis] for axis in sorted(both, key=lambda axis: axis or 0)}))
    others = tuple(aligned.arguments(aligned.complete(values, dims)[0]) for values in aligned.calls[1:])
    return checked_shapes(leaves, shapes.inputs), others


def _call(example: Any) -> ExampleCall:
    if not isinstance(example, tuple | list) or len(example) != 2:
        kind = type(example).__name__
        raise ArgumentError(
            _ARGUMENT, f"expected pairs of args and kwargs, got a {kind}", hint="write [((x, y), {}), ...]"
        )
    args, kwargs = example
    args = (args,) if isinstance(args, torch.Tensor) else args
    kwargs = {} if kwargs is None else kwargs
    if not isinstance(args, tuple) or not isinstance(kwargs, Mapping):
        raise ArgumentError(
            _ARGUMENT,
            f"expected pairs of a tuple and a dict, got {kind_of(args)} and {kind_of(kwargs)}",
            hint="write [((x, y), {}), ...]",
        )
    return args, kwargs


def _contradiction(leaf: Leaf, axis: int | None, aligned: AlignedCalls) -> ArgumentError:
    values = [values[leaf.label] for values in aligned.calls if leaf.label in values]
    sizes = dict.fromkeys(value if axis is None else int(value.shape[axis]) for value in values)
    place = leaf.label if axis is None else f"axis {axis} of {leaf.label}"
    return ArgumentError(
        _ARGUMENT,
        f"{place} is static in dynamic_shapes, but the examples have {', '.join(map(str, sizes))}",
        hint="name it in dynamic_shapes, or remove its spec",
    )
