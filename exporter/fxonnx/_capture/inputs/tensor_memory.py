"""Memory of the tensors of an export: inputs that share it, tensors on the meta device, weights of inference mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from fxonnx_translations._builder.sub_byte import copy_of
from fxonnx_translations._torch_compat import FakeTensor, FakeTensorMode, OpOverload, check, pytree

from ..._nodes import schema_of, written_arguments
from ..._turns import one_at_a_time
from ...errors import CaptureError
from ..constraints.guard_recorder import SourceLine, line_of_node
from ..data_dependence.assumption import Assumption, AssumptionKind
from ..suspicions.departures import DepartureKind, record_departure
from .example_inputs import BoundInputs

__all__ = [
    "SharedMemory",
    "as_one_tensor",
    "assumed_equal",
    "meta_as_cpu",
    "normal_weights",
    "reject_shared_writes",
    "with_separate_inputs",
]


@dataclass(frozen=True)
class SharedMemory:
    """Tensors that share memory in the example, of which at least one is an input that is captured as a copy.

    Attributes:
        inputs: Label of the inputs, by index among the leaves of all inputs.
        weights: FQNs of the parameters and buffers.
    """

    inputs: Mapping[int, str]
    weights: tuple[str, ...]


def with_separate_inputs(
    model: torch.nn.Module, inputs: BoundInputs, labels: Sequence[str]
) -> tuple[BoundInputs, tuple[SharedMemory, ...]]:
    """Copy inputs that are the same elements of memory as another input, or that share memory with a weight.

    torch.export distinguishes inputs by identity: it would take a weight that is passed as an input for the input.
    Inputs that overlap otherwise stay as they are; writes to them are refused when the program is functionalized.

    Args:
        model: The model.
        inputs: The example inputs.
        labels: Label of each leaf of the inputs.

    Returns:
        The inputs, and which of them share memory.
    """
    leaves = list(inputs.leaves)
    tensors = {index: leaf for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    weights = _weights_by_memory(model) if tensors else {}
    groups: dict[Any, dict[int, str]] = {}
    for index, tensor in tensors.items():
        memory = _memory_of(tensor)
        key = memory if memory in weights else _view(tensor)
        group = groups.setdefault(key, {})
        if group or memory in weights:
            leaves[index] = copy_of(tensor).requires_grad_(tensor.requires_grad)
            other = f"the weight {weights[memory][0]!r}" if memory in weights else repr(next(iter(group.values())))
            detail = f"{labels[index]!r} shares memory with {other} in the example"
            record_departure(DepartureKind.INTROSPECTION, detail, line="")
        group[index] = labels[index]
    shared = tuple(
        SharedMemory(group, tuple(weights.get(key, ())))
        for key, group in groups.items()
        if len(group) > 1 or key in weights
    )
    if not shared:
        return inputs, ()
    return inputs.with_leaves(leaves), shared


def as_one_tensor(given: Any, shared: Mapping[int, int]) -> Any:
    """Arguments in which leaves are the same object, after an assertion that their values are equal."""
    if not shared:
        return given
    leaves, structure = pytree.tree_flatten(given)
    for index, first in shared.items():
        one, other = leaves[first], leaves[index]
        is_equal: Any = ((one == other) | ((one != one) & (other != other))).all().item()
        check(is_equal)
        leaves[index] = one
    return pytree.tree_unflatten(leaves, structure)


def assumed_equal(shared: Mapping[int, int], labels: Sequence[str]) -> Iterator[Assumption]:
    """The assumptions of a program whose model takes leaves as the same object, whose values its assertions compare."""
    for number, (index, first) in enumerate(shared.items()):
        line = SourceLine("inputs", f"{labels[index]} is {labels[first]}")
        yield Assumption(line, True, AssumptionKind.EXAMPLE, f"Eq(u{number}, 1)")


def _weights_by_memory(model: torch.nn.Module) -> dict[int, list[str]]:
    """The FQNs of the parameters and buffers of a model, by memory."""
    found: dict[int, list[str]] = {}
    for named in (model.named_parameters, model.named_buffers):
        for name, weight in named(remove_duplicate=False):
            memory = _memory_of(weight)
            if memory:
                found.setdefault(memory, []).append(name)
    return found


def _view(tensor: torch.Tensor) -> object:
    """The elements of memory that a tensor covers; the id of a tensor without memory."""
    memory = _memory_of(tensor)
    return (memory, tensor.storage_offset(), tensor.shape, tensor.stride()) if memory else (id(tensor),)


def _memory_of(tensor: torch.Tensor) -> int:
    """An id of the memory of a tensor; 0 for tensors without memory of their own: sparse ones, items of a batch."""
    if tensor.layout is not torch.strided:
        return 0
    try:
        return int(tensor.untyped_storage()._cdata)
    except NotImplementedError:
        # One item of a batch, within vmap.
        return 0


def reject_shared_writes(program: ExportedProgram, shared: Sequence[SharedMemory]) -> None:
    """Refuse a program that writes to memory that tensors of the example share, and reads it through another one.

    Raises:
        CaptureError: If there is such a write; names its line.
    """
    if not shared:
        return
    inputs, weights = _placeholders(program)
    writes = list(_writes(program.graph))
    for group in shared:
        nodes = {repr(label): inputs[index] for index, label in group.inputs.items()}
        nodes |= {f"the weight {name!r}": weights[name] for name in group.weights if name in weights}
        for (written, owner), (read, other) in permutations(nodes.items(), 2):
            for node, memory in writes:
                if memory == _memory(owner) and _is_read_after(other, node):
                    raise CaptureError(
                        f"forward writes to {written} and then reads {read}, which share memory in the example but are "
                        f"separate in an ONNX model\n  at: {line_of_node(node) or node.name}",
                        hint="pass a clone() of one of them as the example, or write to a copy in forward",
                    )


def _placeholders(program: ExportedProgram) -> tuple[list[torch.fx.Node], Mapping[str, torch.fx.Node]]:
    """The placeholders of the user inputs, in order, and of parameters and buffers by FQN."""
    inputs, weights = [], {}
    nodes = program.graph.find_nodes(op="placeholder")
    for spec, node in zip(program.graph_signature.input_specs, nodes, strict=True):
        if spec.kind == InputKind.USER_INPUT:
            inputs.append(node)
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            weights[str(spec.target)] = node
    return inputs, weights


def _writes(graph: torch.fx.Graph) -> Iterator[tuple[torch.fx.Node, int]]:
    """The nodes that write to memory, with that memory."""
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        for given in written_arguments(schema_of(node), node.args, node.kwargs):
            for item in given if isinstance(given, list | tuple) else (given,):
                memory = _memory(item)
                if memory is not None:
                    yield node, memory


def _memory(node: object) -> int | None:
    """An id of the memory of a node's value."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return (_memory_of(value) or None) if isinstance(value, torch.Tensor) else None


def _is_read_after(placeholder: torch.fx.Node, write: torch.fx.Node) -> bool:
    """Whether a node after a write reads the memory of a placeholder."""
    memory = _memory(placeholder)
    node = write.next
    while node.op != "root":
        if any(_memory(item) == memory for item in node.all_input_nodes):
            return True
        node = node.next
    return False


# Other classes may not tell whether they are of inference mode, as parameters of lazy modules do not.
_PLAIN = (torch.Tensor, torch.nn.Parameter)


@contextmanager
def meta_as_cpu(model: torch.nn.Module, inputs: BoundInputs) -> Iterator[BoundInputs]:
    """Replace tensors on the meta device by CPU fake tensors inside the context.

    Otherwise tensors that forward creates (``torch.arange(n)``) would be on a different device than the weights.
    """
    before: list[tuple[dict[str, Any], str, torch.Tensor]] = [
        (tensors, name, tensor)
        for module in model.modules()
        for tensors in (module._parameters, module._buffers)
        for name, tensor in tensors.items()
        if tensor is not None and _is_meta(tensor)
    ]
    if not before and not any(map(_is_meta, inputs.tensors)):
        yield inputs
        return
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    made: dict[int, torch.Tensor] = {}

    def as_cpu_fake(tensor: torch.Tensor) -> torch.Tensor:
        if not _is_meta(tensor):
            return tensor
        if id(tensor) not in made:
            fake: torch.Tensor = FakeTensor(mode, tensor.detach(), torch.device("cpu"))
            made[id(tensor)] = (
                torch.nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else fake
            )
        return made[id(tensor)]

    try:
        for tensors, name, tensor in before:
            tensors[name] = as_cpu_fake(tensor)
        changed = inputs.with_tensors(as_cpu_fake)
        # The user may export inside of ``with torch.device("meta")``.
        with torch.device("cpu"):
            yield changed
    finally:
        for tensors, name, tensor in before:
            tensors[name] = tensor


def _is_meta(tensor: torch.Tensor) -> bool:
    return tensor.is_meta and not isinstance(tensor, FakeTensor)


@contextmanager
def normal_weights(model: Any) -> Iterator[None]:
    """Replace parameters and buffers that were created in inference mode inside the context, in the same memory.

    torch cannot use them where it records gradients, as a capture does.
    """
    if not _inference_weights(model):
        yield
        return
    # Another thread may export the same model.
    with one_at_a_time():
        before = _inference_weights(model)
        made: dict[int, torch.Tensor] = {}
        for tensors, name, tensor in before:
            if id(tensor) not in made:
                made[id(tensor)] = _in_same_memory(tensor)
            tensors[name] = made[id(tensor)]
        try:
            yield
        finally:
            for tensors, name, tensor in before:
                tensors[name] = tensor


def _inference_weights(model: Any) -> list[tuple[dict[str, Any], str, torch.Tensor]]:
    """The tables, names and tensors of the weights that were created in inference mode."""
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    tables: list[dict[str, Any]] = [table for module in modules for table in (module._parameters, module._buffers)]
    return [
        (table, name, tensor)
        for table in tables
        for name, tensor in table.items()
        if type(tensor) in _PLAIN and tensor.is_inference()
    ]


def _in_same_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the elements and attributes of another one, which is not of inference mode."""
    with torch.inference_mode(False), torch.no_grad():
        if tensor.layout == torch.strided:
            empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            storage: Any = tensor.untyped_storage()
            found = empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
        else:
            found = tensor.clone()
        if isinstance(tensor, torch.nn.Parameter):
            found = torch.nn.Parameter(found, tensor.requires_grad)
    vars(found).update(vars(tensor))
    return found
