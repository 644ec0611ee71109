"""Binding of the arguments of a call to the graph inputs, and of graph outputs to the structure of the results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument

from fxonnx_translations._torch_compat import TreeSpec, pytree

from .._capture.inputs.converted_inputs import stacked
from .._capture.inputs.pytree_objects import flatten_objects, is_object
from ..errors import ArgumentError, did_you_mean, kind_of

__all__ = ["BoundCall", "bind_call", "unflatten_outputs"]

_SHOWN_ELEMENTS = 64
_USER_INPUT_KINDS = frozenset({InputKind.USER_INPUT, InputKind.CUSTOM_OBJ})


@dataclass(frozen=True)
class BoundCall:
    """The arguments of one call, in the structure of the example inputs.

    Attributes:
        args: The arguments that were positional at export.
        kwargs: The arguments that were passed by keyword at export, in that order.
        inputs: The leaves that are not constants of the exported program, in graph input order.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[Any, ...]


@dataclass(frozen=True)
class _Frozen:
    """A frozen input, with its value at export."""

    value: torch.Tensor


@dataclass(frozen=True)
class _Listed:
    """An input that is a list of tensors."""


def bind_call(
    exported_program: torch.export.ExportedProgram,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    forward: Callable[..., Any] | None = None,
    frozen: Mapping[int, torch.Tensor] = MappingProxyType({}),
    lists: Collection[int] = (),
) -> BoundCall:
    """Bind the arguments of a call to the parameters of the exported ``forward``.

    Args:
        exported_program: The captured program.
        args: Positional arguments; or the leaves of all arguments, in the order of the example inputs.
        kwargs: Keyword arguments, in any order; they may also name parameters that were positional at export.
        forward: The captured ``forward``, whose signature assigns parameters to positional arguments beyond those
            positional at export. Without it, they are in the order of the example inputs.
        frozen: Leaf index to value of the frozen inputs.
        lists: Leaf indices of the inputs that are lists of tensors in this call; the result has the stacked tensors.

    Raises:
        ArgumentError: If an argument is unknown, missing, given twice, of another structure than at export, or a
            constant with another value. Constants may be omitted.
    """
    parameters, positional = _parameters(exported_program)
    args, kwargs = _restore_nesting(exported_program, args, kwargs)
    signature = _positional_parameters(forward) if len(args) > positional else None
    given = flatten_objects(_arguments_by_name(parameters, positional, args, kwargs, signature))
    expected = [
        spec.arg if isinstance(spec.arg, ConstantArgument) else node.meta.get("val")
        for spec, node in zip(
            exported_program.graph_signature.input_specs,
            exported_program.graph.find_nodes(op="placeholder"),
            strict=True,
        )
        if spec.kind in _USER_INPUT_KINDS
    ]
    for index, tensor in frozen.items():
        expected[index] = _Frozen(tensor)
    for index in lists:
        expected[index] = _Listed()
    values: dict[str, Any] = {}
    inputs: list[Any] = []
    start = 0
    for name, spec in parameters.items():
        leaf_specs = expected[start : start + spec.num_leaves]
        start += spec.num_leaves
        if name in given:
            leaves = _checked_leaves(name, given[name], spec, leaf_specs)
            values[name] = spec.unflatten(leaves)
            inputs.extend(
                leaf
                for leaf, known in zip(leaves, leaf_specs, strict=True)
                if not isinstance(known, ConstantArgument | _Frozen)
            )
        else:
            constants = [known.value for known in leaf_specs if isinstance(known, ConstantArgument | _Frozen)]
            if len(constants) < len(leaf_specs):
                raise ArgumentError(name, "missing argument", hint=_parameters_hint(parameters))
            values[name] = spec.unflatten(constants)
    names = list(parameters)
    return BoundCall(
        tuple(values[name] for name in names[:positional]),
        {name: values[name] for name in names[positional:]},
        tuple(inputs),
    )


def _parameters(exported_program: torch.export.ExportedProgram) -> tuple[dict[str, TreeSpec], int]:
    """Return the name and tree spec of every example argument, positional ones first, and the number of those."""
    args_spec, kwargs_spec = exported_program.call_spec.in_spec.children()
    signature = exported_program.module_call_graph[0].signature
    names = [] if signature is None else list(signature.forward_arg_names or [])[: args_spec.num_children]
    # Programs not created by torch.export have no argument names.
    names += [f"args[{index}]" for index in range(len(names), args_spec.num_children)]
    parameters = dict(zip(names, args_spec.children(), strict=True))
    parameters.update(zip(kwargs_spec.context, kwargs_spec.children(), strict=True))
    return parameters, len(names)


def _parameters_hint(parameters: Mapping[str, TreeSpec]) -> str:
    return f"the exported arguments are: {', '.join(parameters) or 'none'}"


def _restore_nesting(
    exported_program: torch.export.ExportedProgram, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Restore the exported structure of the arguments if only their leaves are given."""
    spec = exported_program.call_spec.in_spec
    is_nested = any(not one.is_leaf() for part in spec.children() for one in part.children())
    if kwargs or not is_nested or len(args) != spec.num_leaves:
        return args, kwargs
    if not all(pytree.tree_structure(argument).is_leaf() and not is_object(argument) for argument in args):
        return args, kwargs
    nested: tuple[Sequence[Any], Mapping[str, Any]] = pytree.tree_unflatten(args, spec)
    return nested


def _positional_parameters(forward: Callable[..., Any] | None) -> list[inspect.Parameter] | None:
    """Return the parameters that may be passed by position; None if the signature is unknown."""
    try:
        signature = None if forward is None else inspect.signature(forward)
    except (TypeError, ValueError):
        # Scripted methods have no signature.
        return None
    if signature is None:
        return None
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [each for each in signature.parameters.values() if each.kind in kinds]


def _arguments_by_name(
    parameters: Mapping[str, TreeSpec],
    positional: int,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    signature: Sequence[inspect.Parameter] | None,
) -> dict[str, Any]:
    given = _positional_by_name(parameters, positional, args, signature)
    if given is None and not kwargs and len(args) == len(parameters):
        # As ``ExportedProgram.module()`` accepts them: all arguments, in the order of the graph inputs.
        given = dict(zip(parameters, args, strict=True))
    if given is None:
        raise ArgumentError(
            "args",
            f"got {len(args)} positional arguments, but the model was exported with {positional}",
            hint=_parameters_hint(parameters),
        )
    for name, value in kwargs.items():
        if name not in parameters:
            hint = did_you_mean(name, parameters, _parameters_hint(parameters))
            raise ArgumentError(name, "unknown argument", hint=hint)
        if name in given:
            raise ArgumentError(name, "argument given both by position and by name")
        given[name] = value
    return given


def _positional_by_name(
    parameters: Mapping[str, TreeSpec],
    positional: int,
    args: Sequence[Any],
    signature: Sequence[inspect.Parameter] | None,
) -> dict[str, Any] | None:
    """Map positional arguments to parameter names; None if one does not correspond to an exported argument."""
    names = list(parameters)
    if signature is None:
        return dict(zip(names, args, strict=False)) if len(args) <= len(names) else None
    given = dict(zip(names[:positional], args, strict=False))
    # Keyword arguments at export are in the caller's order, positional ones in the order of forward's signature.
    further = signature[positional : len(args)]
    if positional + len(further) < len(args):
        return None
    for parameter, value in zip(further, args[positional:], strict=False):
        if parameter.name in parameters:
            given[parameter.name] = value
        elif not _is_same(value, parameter.default):
            return None
    return given


def _checked_leaves(name: str, value: Any, spec: TreeSpec, expected: Sequence[Any]) -> list[Any]:
    try:
        leaves = spec.flatten_up_to(_without_sizes(value))
    except ValueError as error:
        raise ArgumentError(name, f"the structure differs from the exported one: {error}") from error
    for index, (leaf, known) in enumerate(zip(leaves, expected, strict=True)):
        if isinstance(known, _Frozen):
            leaves[index] = _checked_frozen(name, leaf, known.value)
        elif isinstance(known, _Listed):
            leaves[index] = stacked(leaf, name)
        elif not isinstance(known, ConstantArgument):
            leaves[index] = _convert_leaf(leaf, known)
        elif not _is_same(leaf, known.value):
            given = f"{kind_of(leaf)}" if isinstance(leaf, torch.Tensor) else repr(leaf)
            raise ArgumentError(
                name,
                f"got {given}, but the model was exported with the constant {known.value!r}",
                hint="re-export with the other value, or with dynamic_scalars if it is a number",
            )
    return leaves


def _without_sizes(value: Any) -> Any:
    """Replace every torch.Size by a tuple, which torch.export makes of it."""

    def is_size(part: Any) -> bool:
        return isinstance(part, torch.Size)

    if not any(map(is_size, pytree.tree_leaves(value, is_leaf=is_size))):
        return value
    return pytree.tree_map(lambda part: tuple(part) if is_size(part) else part, value, is_leaf=is_size)


def _checked_frozen(name: str, leaf: Any, value: torch.Tensor) -> torch.Tensor:
    """The value of a frozen input, which may be omitted."""
    if leaf is None:
        return value
    if not isinstance(leaf, torch.Tensor) or leaf.dtype != value.dtype or not torch.equal(leaf.cpu(), value.cpu()):
        given = leaf.tolist() if isinstance(leaf, torch.Tensor) and leaf.numel() <= _SHOWN_ELEMENTS else "other values"
        exported = value.tolist() if value.numel() <= _SHOWN_ELEMENTS else "those of the example"
        raise ArgumentError(
            name,
            f"got {given}, but the argument is frozen and the values at export are {exported}",
            hint="pass the values of the example, or nothing; or re-export with the other values",
        )
    return value


def _convert_leaf(leaf: Any, known: Any) -> Any:
    """Convert a number to a 0-d tensor, or a tensor with one element to an int, where the program expects it."""
    if isinstance(known, torch.Tensor) and known.dim() == 0 and isinstance(leaf, bool | int | float):
        if isinstance(leaf, bool) == (known.dtype == torch.bool) and (
            not isinstance(leaf, float) or known.dtype.is_floating_point
        ):
            return torch.tensor(leaf, dtype=known.dtype, device="cpu")
    elif isinstance(known, torch.SymInt) and isinstance(leaf, torch.Tensor) and leaf.numel() == 1:
        return int(leaf)
    return leaf


def _is_same(value: Any, constant: Any) -> bool:
    # repr distinguishes True from 1, 1 from 1.0 and -0.0 from 0.0, and equates NaN with NaN.
    return type(value) is type(constant) and (value is constant or repr(value) == repr(constant))


def unflatten_outputs(exported_program: torch.export.ExportedProgram, outputs: Sequence[Any]) -> Any:
    """Arrange graph outputs in the structure that the captured program returns.

    Args:
        exported_program: The captured program.
        outputs: A value for each graph output.

    Raises:
        ArgumentError: If the number of values differs from the number of graph outputs.
    """
    structure = exported_program.call_spec.out_spec
    leaves = [spec.arg for spec in exported_program.graph_signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    given = iter(outputs)
    expected = sum(not _is_not_an_output(leaf) for leaf in leaves)
    if structure is None or expected != len(outputs):
        raise ArgumentError("outputs", f"the model has {expected} outputs, got {len(outputs)} values")
    values = [_output_value(leaf, given) for leaf in leaves]
    return pytree.tree_unflatten(values, structure)


def _is_not_an_output(leaf: Any) -> bool:
    """Whether a result is None or a string, which ONNX values cannot represent."""
    return isinstance(leaf, ConstantArgument) and (leaf.value is None or isinstance(leaf.value, str))


def _output_value(leaf: Any, outputs: Iterator[Any]) -> Any:
    if _is_not_an_output(leaf):
        return leaf.value
    value = next(outputs)
    return value if isinstance(leaf, TensorArgument) else value.item()
