"""Binding of the example inputs to the parameters of ``forward``, and the table of those with another form there."""

from __future__ import annotations

import inspect
import io
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import Parameter, Signature
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.nn.parameter import is_lazy

from fxonnx_translations._torch_compat import pytree

from ...errors import ArgumentError, did_you_mean, kind_of
from .pytree_objects import flatten_objects, is_cache, is_object, unflatten_objects

__all__ = [
    "BoundInputs",
    "InputTable",
    "bind_example_inputs",
    "check_model",
    "expand_var_keyword",
    "program_inputs",
    "reject_quantized_inputs",
    "repeated_tensors",
    "user_input_names",
    "with_lists",
]


@dataclass(frozen=True)
class InputTable:
    """The leaves of the example inputs that the captured program takes in another form than the model.

    An index is the position among the leaves of ``(args, kwargs)``, in the order of the graph inputs.

    Attributes:
        objects: The original positional and keyword inputs, if objects among them were flattened.
        lists: Indices of the stacked tensors in the place of lists of a dynamic number of tensors.
        numbers: Indices of the numbers that were converted to tensors.
        frozen: Index to value of the frozen tensors, in the place of which the program has None.
        constants: Label to value of the numbers, strings and frozen tensors that are constants of the program.
        repeated: Index of a leaf that is the same tensor as an earlier one, to the index of that one.
        paths: Placeholder name to path, for inputs inside of objects.
    """

    objects: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None
    lists: frozenset[int] = frozenset()
    numbers: frozenset[int] = frozenset()
    frozen: Mapping[int, torch.Tensor] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    repeated: Mapping[int, int] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)

    def for_model(self, given: Any) -> Any:
        """Arguments of the program as the model takes them: with Python numbers, lists and objects."""
        given = with_lists(_with_numbers(given, self.numbers), self.lists)
        return given if self.objects is None else unflatten_objects(self.objects, given)

    def with_repeated(self, given: Any) -> Any:
        """Arguments in which a tensor that the example has twice is one object."""
        if not self.repeated:
            return given
        leaves, structure = pytree.tree_flatten(given)
        same = [leaves[self.repeated.get(index, index)] for index in range(len(leaves))]
        return pytree.tree_unflatten(same, structure)


def with_lists(given: Any, positions: Collection[int]) -> Any:
    """Replace the stacked tensors at the given leaf positions by lists, as ``forward`` takes them."""
    if not positions:
        return given
    leaves, structure = pytree.tree_flatten(given)
    listed = [list(leaf.unbind(0)) if index in positions else leaf for index, leaf in enumerate(leaves)]
    return pytree.tree_unflatten(listed, structure)


def _with_numbers(given: Any, positions: Collection[int]) -> Any:
    """Replace the tensors at the given leaf positions by the Python numbers that the model expects."""
    if not positions:
        return given
    leaves, structure = pytree.tree_flatten(given)
    numbers = [leaf.item() if index in positions else leaf for index, leaf in enumerate(leaves)]
    return pytree.tree_unflatten(numbers, structure)


# Types of the leaves that torch.export accepts. Numbers are constants if they are not dynamic.
_CONSTANTS = (torch.Tensor, bool, int, float, str, type(None), torch.SymInt, torch.SymFloat, torch.SymBool)
_SPARSE = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


@dataclass(frozen=True)
class BoundInputs:
    """Example inputs that match the signature of ``forward``.

    Attributes:
        args: Positional inputs.
        kwargs: Keyword inputs, in the order of the graph inputs.
        signature: Signature of ``forward``, with ``**kwargs`` replaced by the keywords that are passed.
        var_keyword: Name of the ``**kwargs`` parameter, or None.
        table: The leaves that have another form than in the call of the model.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    signature: Signature
    var_keyword: str | None = None
    table: InputTable = field(default_factory=InputTable)

    @cached_property
    def _flat(self) -> tuple[list[Any], Any]:
        leaves, structure = pytree.tree_flatten((self.args, dict(self.kwargs)))
        return leaves, structure

    @property
    def leaves(self) -> Sequence[Any]:
        """The leaves of ``args`` and ``kwargs``, in the order of the graph inputs."""
        return self._flat[0]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the leaves."""
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    def with_leaves(self, leaves: Iterable[Any]) -> BoundInputs:
        """The same structure with other leaves."""
        args, kwargs = pytree.tree_unflatten(leaves, self._flat[1])
        return replace(self, args=args, kwargs=kwargs)

    def with_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> BoundInputs:
        """The same inputs with each tensor replaced."""
        return self.with_leaves(change(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves)

    def names(self) -> tuple[str, ...]:
        """Name of each positional input: its parameter, or ``ys[1]`` for an element of ``*ys``."""
        positional: list[str] = []
        for parameter in self.signature.parameters.values():
            if parameter.kind == Parameter.VAR_POSITIONAL:
                extra = len(self.args) - len(positional)
                positional.extend(f"{parameter.name}[{index}]" for index in range(extra))
            elif parameter.kind != Parameter.KEYWORD_ONLY:
                positional.append(parameter.name)
        return tuple(positional[: len(self.args)])

    def flattened_object_ids(self) -> frozenset[int]:
        """The ``id`` of every dict in ``args`` and ``kwargs`` that replaces a flattened object."""
        if self.table.objects is None:
            return frozenset()
        leaves, structure = pytree.tree_flatten(self.table.objects, is_leaf=is_object)
        parts = structure.flatten_up_to((self.args, self.kwargs))
        return frozenset(id(part) for leaf, part in zip(leaves, parts, strict=True) if is_object(leaf))


def check_model(model: Any) -> None:
    """Reject models of a type that torch.export does not accept, and modules without all of their weights.

    Raises:
        ArgumentError: If it is neither an nn.Module, a scripted function nor an ExportedProgram, or if its parameters
            are not initialized, or distributed.
    """
    if isinstance(model, torch.nn.Module):
        # Scripts and modules with a forward of their own have none in the class.
        if getattr(model.forward, "__func__", None) is torch.nn.Module.forward:
            name = type(model).__name__
            hint = "define it in the class, or in an nn.Module that holds this one; nn.Sequential calls layers in a row"
            raise ArgumentError("model", f"{name} has no forward, which computes the results", hint=hint)
        _check_initialized(model)
        _check_gathered(model)
        return
    if isinstance(model, torch.jit.ScriptFunction | ExportedProgram):
        return
    if isinstance(model, type) and issubclass(model, torch.nn.Module):
        raise ArgumentError("model", f"{model.__name__} is a class", hint=f"pass an instance: {model.__name__}(...)")
    if callable(model):
        name = getattr(model, "__name__", type(model).__name__)
        raise ArgumentError(
            "model",
            f"expected an nn.Module or an ExportedProgram, got the function {name}",
            hint="call it from the forward of an nn.Module and pass that module",
        )
    hint = "pass the nn.Module whose forward is called, such as a pipeline's model"
    if isinstance(model, str | os.PathLike):
        hint = "load the model first: torch.load(path, weights_only=False), or torch.export.load(path) for a .pt2 file"
    elif isinstance(model, Mapping):
        hint = "create the model and call model.load_state_dict(state_dict): a state_dict has no forward"
    raise ArgumentError("model", f"expected an nn.Module or an ExportedProgram, got {kind_of(model)}", hint=hint)


def _check_initialized(model: torch.nn.Module) -> None:
    if not any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        return
    names = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if is_lazy(tensor)]
    shown = ", ".join(map(repr, names[:4])) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    raise ArgumentError(
        "model",
        f"lazy modules create their parameters in the first call, which has not happened: {shown}",
        hint="run the model once before the export: model(*args)",
    )


def _check_gathered(model: torch.nn.Module) -> None:
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    tensor: Any = sys.modules.get("torch.distributed.tensor")
    sharding = () if fsdp is None else (fsdp.FullyShardedDataParallel, fsdp.FSDPModule)
    found = [(name, "by FSDP") for name, module in model.named_modules() if isinstance(module, sharding)]
    if not found and tensor is not None:
        weights = (*model.named_parameters(), *model.named_buffers())
        found = [
            (name.rpartition(".")[0], "as DTensors") for name, weight in weights if isinstance(weight, tensor.DTensor)
        ]
    if found:
        name, how = found[0]
        raise ArgumentError(
            "model",
            f"the weights of {repr(name) if name else 'the model'} are distributed over processes {how}",
            hint="gather them in a model without it: state = get_model_state_dict(model, "
            "options=StateDictOptions(full_state_dict=True)), both of torch.distributed.checkpoint.state_dict, then "
            "plain_model.load_state_dict(state)",
        )


def repeated_tensors(inputs: BoundInputs) -> dict[int, int]:
    """Map the index of each leaf that is the same tensor as an earlier one to the index of that one."""
    firsts: dict[int, int] = {}
    repeated = {}
    for index, leaf in enumerate(inputs.leaves):
        if isinstance(leaf, torch.Tensor) and firsts.setdefault(id(leaf), index) != index:
            repeated[index] = firsts[id(leaf)]
    return repeated


def bind_example_inputs(
    model: torch.nn.Module, args: Any, kwargs: Any, names: Sequence[str] = (), *, by_signature: bool = False
) -> BoundInputs:
    """Bind the example inputs to ``forward``.

    Keyword inputs keep the order that the user gave them, but those with their own names among ``names`` come at the
    places of these. With ``by_signature``, this is so only if nothing else in ``names`` is the name of a tensor.

    As in torch.onnx, a dict at the end of ``args`` may hold the keyword inputs if ``kwargs`` is empty. It does if all
    of its keys are parameters without a value, or if only this reading matches the signature.

    Args:
        model: The model.
        args: Positional inputs.
        kwargs: Keyword inputs.
        names: The user's names of the first graph inputs.
        by_signature: Sort keyword inputs by the signature, as the TorchScript exporter of torch.onnx does.

    Raises:
        ArgumentError: If ``args`` is not a tuple, ``kwargs`` is not a dict with string keys, or they do not match the
            signature of ``forward``.
    """
    positional = _check_args(args)
    keywords = _check_kwargs(kwargs)
    for index, value in enumerate(positional):
        _check_types(value, "args", f"[{index}]")
    for name, value in keywords.items():
        _check_types(value, "kwargs", f"[{name!r}]")
    positional, keywords = _normal_tensors((positional, keywords))
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError) as error:
        raise ArgumentError("model", f"the signature of its forward cannot be read: {error}") from error
    if positional and not keywords and isinstance(positional[-1], dict) and _keys_are_names(positional[-1]):
        trailing: dict[str, Any] = positional[-1]
        literal = _binding_error(signature, positional, {})
        reading = _binding_error(signature, positional[:-1], trailing)
        named = _names_parameters(signature, len(positional) - 1, trailing)
        if (named and (trailing or reading is None)) or (literal is not None and reading is None):
            positional, keywords = positional[:-1], trailing
    problem = _binding_error(signature, positional, keywords)
    # A function that replaces forward, and has its signature by functools.wraps, may need fewer inputs.
    own = inspect.signature(model.forward, follow_wrapped=False)
    if problem is not None and _binding_error(own, positional, keywords) is None:
        signature, problem = own, None
    if problem is not None:
        wrong = "kwargs" if "keyword" in problem else "args"
        unknown = next((name for name in keywords if name not in signature.parameters), None)
        hint = "pass positional inputs in order in args and keyword inputs by name in kwargs"
        if positional and all(isinstance(value, int) for value in positional):
            hint = f"args has tensors, not their shape: torch.rand{positional}"
        raise ArgumentError(
            wrong,
            f"the example inputs do not match {type(model).__name__}.forward{signature}: {problem}",
            hint=did_you_mean(unknown, signature.parameters, hint),
        )
    if by_signature:
        if signature is not own:
            keywords = {**_unset_options(signature, own, len(positional)), **keywords}
        keywords = {name: keywords[name] for name in [*signature.parameters, *keywords] if name in keywords}
    given = (positional, keywords)
    _check_rebuilt(given)
    args, tensor_kwargs = plain = flatten_objects(given)
    labels = names[_tensor_count(args) :]
    in_order = by_signature and _are_in_order(tensor_kwargs, labels)
    order = [*tensor_kwargs] if in_order else _keyword_order(tensor_kwargs, labels)
    keywords, ordered = ({name: inputs[name] for name in order} for inputs in (keywords, tensor_kwargs))
    objects = None if plain is given else (positional, keywords)
    return BoundInputs(args, ordered, *expand_var_keyword(signature, keywords), InputTable(objects))


def _unset_options(signature: Signature, own: Signature, count: int) -> dict[str, bool | None]:
    """The defaults that the TorchScript exporter of torch.onnx passes to a function that replaces forward.

    optimum's replacement sets ``use_cache`` only if it is among its arguments.
    """
    kinds = [parameter.kind for parameter in own.parameters.values()]
    if Parameter.VAR_KEYWORD not in kinds or own == signature:
        return {}
    return {
        name: parameter.default
        for name, parameter in [*signature.parameters.items()][count:]
        if parameter.default is None or isinstance(parameter.default, bool)
    }


def _tensor_count(inputs: Any) -> int:
    return sum(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(inputs))


def _are_in_order(keywords: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Whether names are labels in the order of the signature, since they have other names for tensors.

    In optimum's names for Pix2Struct, "attention_mask" is the parameter ``decoder_attention_mask``.
    """
    has_others = any(name.partition(".")[0] not in keywords for name in names)
    return has_others and any(isinstance(value, torch.Tensor) and key not in names for key, value in keywords.items())


def _keyword_order(keywords: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Sort keyword inputs so that each one that is among the names of the graph inputs is at the place of its name."""
    named = [name for name in names if name in keywords]
    others = [name for name in keywords if name not in named]
    order: list[str] = []
    place = 0
    while named or others:
        is_next = named and (not others or names.index(named[0]) <= place)
        order.append((named if is_next else others).pop(0))
        place += _tensor_count(keywords[order[-1]])
    return order


def _check_rebuilt(given: Any) -> None:
    """Reject inputs that pytree cannot rebuild: a NamedTuple whose ``__new__`` does not take its fields."""
    try:
        pytree.tree_map(lambda leaf: leaf, given)
    except TypeError as error:
        raise ArgumentError(
            "args",
            f"an input cannot be created from its parts: {error}",
            hint="remove __new__ from the NamedTuple, or let it accept all fields by position",
        ) from error


def _check_types(value: Any, argument: str, path: str, above: tuple[int, ...] = ()) -> None:
    """Reject inputs that no graph can have, with the path of the first one.

    Raises:
        ArgumentError: If it is an array, a set, an iterator, a container that contains itself, or neither a tensor nor
            a constant of torch.export nor an object that holds tensors.
    """
    if isinstance(value, Mapping | list | tuple):
        if id(value) in above:
            raise ArgumentError(
                argument, f"{argument}{path} contains itself", hint="pass a value that ends: tensors in lists or dicts"
            )
        parts = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, part in parts:
            _check_types(part, argument, f"{path}[{key!r}]", (*above, id(value)))
        return
    library = type(value).__module__.partition(".")[0]
    if isinstance(value, torch.Tensor) and (value.is_nested or value.is_sparse or value.layout in _SPARSE):
        kind = "nested" if value.is_nested else "sparse"
        hint = f"pass a dense tensor: {'value.to_padded_tensor(0)' if value.is_nested else 'value.to_dense()'}"
        raise ArgumentError(argument, f"{argument}{path} is a {kind} tensor, which ONNX does not have", hint=hint)
    if library == "pandas":
        hint = "pass torch.from_numpy(value.to_numpy())"
    elif library == "numpy" and not isinstance(value, bool | int | float | complex | str):
        hint = "pass torch.from_numpy(array)" if getattr(value, "ndim", 0) else "pass value.item(), or a tensor"
    elif isinstance(value, set | frozenset):
        hint = "pass a list or a tuple, which have an order"
    elif isinstance(value, Iterator):
        is_file = isinstance(value, io.IOBase)
        hint = "read the file, and pass a tensor of its values" if is_file else "pass list(iterator)"
    elif isinstance(value, _CONSTANTS) or pytree._get_node_type(value) in pytree.SUPPORTED_NODES or is_object(value):
        return
    elif isinstance(value, torch.nn.Module):
        hint = "make it a submodule of the model: assign it to an attribute"
    elif is_cache(type(value)):
        hint = "leave an empty cache out, or fill it by a call of the model"
    else:
        hint = "pass tensors, numbers, strings or objects with tensors; set other values as attributes of the model"
    name = f"a {library}.{type(value).__name__}" if library in ("numpy", "pandas") else kind_of(value)
    if isinstance(value, type):
        name = f"the class {value.__name__}"
    raise ArgumentError(argument, f"{argument}{path} is {name}, which a graph cannot have as an input", hint=hint)


def _normal_tensors(given: tuple[Any, Any]) -> tuple[Any, Any]:
    """Copy tensors that were created in inference mode, which no program with gradients can use."""
    copies: dict[int, torch.Tensor] = {}

    def normal(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_inference():
            return tensor
        with torch.inference_mode(False):
            return copies.setdefault(id(tensor), tensor.clone())

    leaves = pytree.tree_leaves(given)
    if not any(isinstance(leaf, torch.Tensor) and leaf.is_inference() for leaf in leaves):
        return given
    found: tuple[Any, Any] = pytree.tree_map_only(torch.Tensor, normal, given)
    return found


def _check_args(args: Any) -> tuple[Any, ...]:
    if isinstance(args, torch.Tensor):
        return (args,)
    if isinstance(args, tuple):
        return args
    if isinstance(args, list):
        hint = "pass a tuple: (a, b) for two inputs, ([a, b],) for one input that is a list"
    elif isinstance(args, Mapping):
        hint = "pass inputs by name as kwargs=..., or ({...},) for one input that is a dict"
    else:
        hint = "pass a tuple of the inputs, such as (x,)"
    raise ArgumentError("args", f"expected a tuple or a tensor, got {kind_of(args)}", hint=hint)


def _check_kwargs(kwargs: Any) -> dict[str, Any]:
    if kwargs is None:
        return {}
    if not isinstance(kwargs, Mapping):
        hint = 'write kwargs={"mask": mask}, and positional inputs in args'
        raise ArgumentError("kwargs", f"expected a dict of inputs by name, got {kind_of(kwargs)}", hint=hint)
    for key in kwargs:
        if not isinstance(key, str):
            raise ArgumentError("kwargs", f"expected names of forward's parameters as keys, got {key!r}")
    return dict(kwargs)


def _keys_are_names(value: Mapping[Any, Any]) -> bool:
    return all(isinstance(key, str) for key in value)


def _names_parameters(signature: Signature, count: int, keywords: Mapping[str, Any]) -> bool:
    """Whether all keywords are parameters that ``count`` positional inputs leave without a value."""
    parameters = signature.parameters.values()
    by_keyword = {p.name for p in parameters if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)}
    by_position = [p.name for p in parameters if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    return keywords.keys() <= by_keyword.difference(by_position[:count])


def _binding_error(signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return None


def expand_var_keyword(signature: Signature, keywords: Mapping[str, Any]) -> tuple[Signature, str | None]:
    """Replace ``**kwargs`` in a signature by the keywords that are passed through it."""
    variable = next((p for p in signature.parameters.values() if p.kind == Parameter.VAR_KEYWORD), None)
    if variable is None:
        return signature, None
    named = [parameter for parameter in signature.parameters.values() if parameter is not variable]
    known = {parameter.name for parameter in named if parameter.kind != Parameter.POSITIONAL_ONLY}
    extra = [Parameter(key, Parameter.KEYWORD_ONLY) for key in keywords if key not in known]
    return Signature([*named, *extra]), variable.name


def user_input_names(program: ExportedProgram) -> list[str]:
    """Placeholder names of the user inputs, including constants."""
    return [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]


def program_inputs(program: ExportedProgram) -> BoundInputs:
    """Bound inputs of an ExportedProgram, with the fake tensors of its placeholders as examples."""
    placeholders = program.graph.find_nodes(op="placeholder")
    values = [
        node.meta.get("val")
        for spec, node in zip(program.graph_signature.input_specs, placeholders, strict=True)
        if spec.kind == InputKind.USER_INPUT
    ]
    in_spec = program.call_spec.in_spec
    if in_spec is None:
        raise ArgumentError("model", "the ExportedProgram has no call_spec.in_spec, the structure of its inputs")
    args, kwargs = pytree.tree_unflatten(values, in_spec)
    signature = program.module_call_graph[0].signature
    known = signature.forward_arg_names if signature is not None else None
    names = [name for name in known or () if name not in kwargs]
    if len(names) != len(args):
        # torch has one name for all of *args.
        names = [f"arg{index}" for index in range(len(args))]
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    parameters += [Parameter(name, Parameter.KEYWORD_ONLY) for name in kwargs]
    return BoundInputs(tuple(args), kwargs, Signature(parameters))


def reject_quantized_inputs(labels: Iterable[tuple[str, Any]]) -> None:
    """Reject quantized inputs.

    Raises:
        ArgumentError: If an input is quantized.
    """
    for label, value in labels:
        if isinstance(value, torch.Tensor) and value.is_quantized:
            raise ArgumentError(
                "args",
                f"{label!r} is a quantized tensor: inputs of ONNX models have neither scale nor zero point",
                hint="pass a float tensor and quantize it in forward, for example with QuantStub",
            )
