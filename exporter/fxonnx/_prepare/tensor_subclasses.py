"""Weights that are tensor subclasses, as quantization libraries use them: replaced by the tensors that they wrap."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputSpec,
    TensorArgument,
)

from fxonnx_translations._library_ops.float4 import E2M1, block_scales, unpacked_codes
from fxonnx_translations._torch_compat import FakeTensor

from .._inner_tensors import is_wrapper, unwrapped
from .._nodes import input_of, item_index
from .._own_operators import define_operator
from .._provenance import copy_provenance, source_line
from ..errors import CaptureError
from .graph_utils import insert_call, module_attribute, nodes_between, replace_node, splice, store_attribute
from .inline import inline_subgraphs
from .tracing import TraceError, trace_call

__all__ = ["unwrap_subclasses"]


def _dequantize(
    packed: Tensor, scale: Tensor, tensor_scale: Tensor | None, block_size: int, is_swizzled: bool, dtype: torch.dtype
) -> Tensor:
    rows, columns = packed.shape[0], 2 * packed.shape[1]
    scales = block_scales(scale, tensor_scale, shape=(rows, columns // block_size), is_swizzled=is_swizzled)
    numbers = torch.tensor(E2M1, device=packed.device)[unpacked_codes(packed).long()]
    return (numbers * scales.repeat_interleave(block_size, 1)).to(dtype)


def _dequantized_shape(
    packed: Tensor, scale: Tensor, tensor_scale: Tensor | None, block_size: int, is_swizzled: bool, dtype: torch.dtype
) -> Tensor:
    return packed.new_empty((packed.shape[0], 2 * packed.shape[1]), dtype=dtype)


_OPERATOR = define_operator(
    "fxonnx::dequantize_float4(Tensor packed, Tensor scale, Tensor? tensor_scale, int block_size, bool is_swizzled, "
    "ScalarType dtype) -> Tensor",
    _dequantize,
    _dequantized_shape,
)
_DEQUANTIZE = torch.ops.fxonnx.dequantize_float4.default
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_ACCESS = torch.ops.export.access_subclass_inner_tensor.default


@dataclass(frozen=True)
class _Wrapped:
    """A tensor subclass of the graph.

    Attributes:
        example: An instance with fake tensors.
        parts: Attribute to the node of the inner tensor.
    """

    example: Any
    parts: Mapping[str, _Value]

    def nodes(self) -> Iterator[torch.fx.Node]:
        """Yield the nodes of the inner tensors."""
        for part in self.parts.values():
            if isinstance(part, _Wrapped):
                yield from part.nodes()
            else:
                yield part

    def rebuilt(self, tensors: Iterator[torch.Tensor]) -> torch.Tensor:
        """An instance of the subclass with the given inner tensors, in the order of ``nodes``."""
        _attributes, context = self.example.__tensor_flatten__()
        inner = {
            attribute: part.rebuilt(tensors) if isinstance(part, _Wrapped) else next(tensors)
            for attribute, part in self.parts.items()
        }
        made: torch.Tensor = type(self.example).__tensor_unflatten__(
            inner, context, self.example.size(), self.example.stride()
        )
        return made


_Value: TypeAlias = "torch.fx.Node | _Wrapped"


def unwrap_subclasses(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Replace weights that wrap other tensors by these tensors, named ``<weight>.<attribute>``.

    Args:
        program: The captured program; not changed.

    Returns:
        The program with the weights replaced and calls on subclasses traced to calls on plain tensors; the captured
        program itself if it has no such weights.

    Raises:
        CaptureError: If a weight has no storage and cannot be unwrapped, an input or output of the program is a tensor
            subclass, or a call on one cannot be traced.
    """
    placeholders = program.graph.find_nodes(op="placeholder")
    if not any(is_wrapper(node.meta.get("val")) for node in placeholders):
        _reject_missing_storage(program.state_dict, program.constants)
        return program
    graph = torch.fx.Graph()
    output: Any = graph.graph_copy(program.graph, {}, return_output_node=True)
    graph.output(output[0]).meta.update(output[1].meta)
    for copy, node in zip(graph.find_nodes(op="placeholder"), placeholders, strict=True):
        copy.name = node.name  # the copy of ``input`` is ``input_1``
    module = torch.fx.GraphModule(program.graph_module, graph)
    inline_subgraphs(module)
    state_dict, constants = unwrapped(program.state_dict), unwrapped(program.constants)
    _reject_missing_storage(state_dict, constants)
    unwrapping = _Unwrapping(module)
    inputs = unwrapping.replace_inputs(program.graph_signature.input_specs)
    unwrapping.run()
    inputs = unwrapping.lift_constants(inputs, constants)
    outputs = unwrapping.outputs(program.graph_signature.output_specs)
    graph.lint()
    module.recompile()
    return torch.export.ExportedProgram(
        module,
        graph,
        ExportGraphSignature(inputs, outputs),
        state_dict,
        program.range_constraints,
        program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=constants,
        verifiers=program.verifiers,
    )


def _reject_missing_storage(*weights: Mapping[str, Any]) -> None:
    """Raise a CaptureError for the weights whose values cannot be read."""
    names = [
        f"{name!r} ({type(tensor).__name__})"
        for tensors in weights
        for name, tensor in tensors.items()
        if type(tensor) not in _PLAIN and isinstance(tensor, torch.Tensor) and _lacks_storage(tensor)
    ]
    if names:
        raise CaptureError(
            f"weights without storage, whose values cannot be read: {', '.join(dict.fromkeys(names))}",
            hint="implement __tensor_flatten__ and __tensor_unflatten__ for the tensor subclass, or replace the "
            "weights by plain tensors before the export",
        )


def _lacks_storage(tensor: torch.Tensor) -> bool:
    if isinstance(tensor, FakeTensor) or tensor.is_meta or tensor.layout is not torch.strided:
        return False
    return tensor.numel() > 0 and tensor.data_ptr() == 0


class _Unwrapping:
    """The replacement of tensor subclasses in the graph of a module, in place."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self._module = module
        self._graph = module.graph
        self._wrapped: dict[torch.fx.Node, _Wrapped] = {}
        self._replaced: set[torch.fx.Node] = set()
        self._constants: dict[str, None] = {}

    def replace_inputs(self, specs: list[InputSpec]) -> list[InputSpec]:
        """Replace placeholders of subclasses by one placeholder for each inner tensor; return the new specs."""
        new_specs = []
        for spec, node in zip(specs, self._graph.find_nodes(op="placeholder"), strict=True):
            example = node.meta.get("val")
            if not is_wrapper(example):
                new_specs.append(spec)
                continue
            if spec.kind == InputKind.USER_INPUT:
                raise CaptureError(
                    f"input {node.name!r} is a tensor subclass, {type(example).__name__}",
                    hint="pass its inner tensors, and create it in forward",
                )
            self._replaced.add(node)
            self._wrapped[node] = self._inputs(node, node.name, example)
            names = [name for name, _ in _leaves(str(spec.target), example)]
            for inner, name in zip(self._wrapped[node].nodes(), names, strict=True):
                new_specs.append(InputSpec(spec.kind, TensorArgument(inner.name), name, spec.persistent))
        return new_specs

    def _inputs(self, before: torch.fx.Node, stem: str, example: Any) -> _Wrapped:
        attributes, _context = example.__tensor_flatten__()
        parts: dict[str, _Value] = {}
        for attribute in attributes:
            inner, name = getattr(example, attribute), f"{stem}_{attribute}"
            if is_wrapper(inner):
                parts[attribute] = self._inputs(before, name, inner)
                continue
            with self._graph.inserting_before(before):
                node = self._graph.placeholder(name)
            node.target = node.name
            node.meta["val"] = inner
            copy_provenance(node, before)
            parts[attribute] = node
        return _Wrapped(example, parts)

    def run(self) -> None:
        """Replace the calls on subclasses."""
        for node in list(self._wrapped):
            self._dequantize(node)
        for node in list(self._graph.nodes):
            if node.op == "call_function" and any(operand in self._wrapped for operand in node.all_input_nodes):
                self._replace(node)
        for node in reversed(self._graph.nodes):
            if node in self._replaced and not node.users:
                self._graph.erase_node(node)

    def _dequantize(self, node: torch.fx.Node) -> None:
        """Replace a weight of 4-bit numbers, unless the model reads its inner tensors, by its values."""
        wrapped = self._wrapped[node]
        arguments = _float4_arguments(wrapped.example)
        if arguments is None or any(user.target is _ACCESS for user in node.users):
            return
        inner = {id(inner.meta["val"]): inner for inner in wrapped.nodes()}
        call = next(other for other in self._graph.nodes if other.op != "placeholder")
        operands = tuple(inner.get(id(one), one) for one in arguments)
        origin = next(iter(node.users), node)
        values = insert_call(call, _DEQUANTIZE, operands, val=_DEQUANTIZE(*arguments), origin=origin)
        node.replace_all_uses_with(values)
        del self._wrapped[node]

    def lift_constants(self, specs: list[InputSpec], constants: dict[str, Any]) -> list[InputSpec]:
        """Turn the tensors that traced calls create into inputs of the program; return the new specs."""
        lifted: list[InputSpec] = []
        first = next(iter(self._graph.nodes))
        for name in self._constants:
            constants[name] = getattr(self._module, name)
            with self._graph.inserting_before(first):
                node = self._graph.placeholder(f"c_{name}")
            for use in self._graph.find_nodes(op="get_attr"):
                if use.target == name:
                    node.meta["val"] = use.meta["val"]
                    use.replace_all_uses_with(node)
                    self._graph.erase_node(use)
            lifted.append(InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), name, None))
        return [*lifted, *specs]

    def outputs(self, specs: list[OutputSpec]) -> list[OutputSpec]:
        """Return the specs of the outputs, with the new names of their nodes."""
        new_specs = []
        outputs: Any = self._graph.output_node().args[0]
        for spec, value in zip(specs, outputs, strict=True):
            if value in self._wrapped:
                name = type(self._wrapped[value].example).__name__
                raise CaptureError(
                    f"output {spec.arg.name!r} is a tensor subclass, {name}", hint="return plain tensors"
                )
            is_tensor = isinstance(spec.arg, TensorArgument) and isinstance(value, torch.fx.Node)
            new_specs.append(OutputSpec(spec.kind, TensorArgument(value.name), spec.target) if is_tensor else spec)
        return new_specs

    def _replace(self, node: torch.fx.Node) -> None:
        """Replace a call on subclasses."""
        source: Any = node.args[0] if node.args else None
        if node.target is _ACCESS and node.args[1] in self._wrapped[source].parts:
            self._set(node, self._wrapped[source].parts[str(node.args[1])], ())
        else:
            before = node.prev
            result = self._traced(node)
            self._set(node, result, nodes_between(before, node))

    def _set(self, node: torch.fx.Node, result: Any, made: Any) -> None:
        """Replace the uses of a node by its result; subclasses are replaced with their own calls."""
        self._replaced.add(node)
        if isinstance(result, _Wrapped):
            self._wrapped[node] = result
        elif isinstance(result, (list, tuple)):
            for user in list(node.users):
                if user.target is operator.getitem:
                    self._set(user, result[item_index(user)], made)
        else:
            replace_node(node, result, made)

    def _traced(self, node: torch.fx.Node) -> Any:
        """The result of a call, traced to calls on plain tensors that are inserted before it."""
        sources = [source for source in node.all_input_nodes if source.op != "get_attr"]
        inputs: list[torch.fx.Node] = []
        for source in sources:
            inputs.extend(self._wrapped[source].nodes() if source in self._wrapped else [source])
        restore: list[Callable[[Iterator[torch.fx.Node]], Any]] = []

        def run(*tensors: Any) -> list[Any]:
            values = iter(tensors)
            given = {
                source: self._wrapped[source].rebuilt(values) if source in self._wrapped else next(values)
                for source in sources
            }
            target: Any = node.target
            if target is _ACCESS:
                result = getattr(given[input_of(node)], str(node.args[1]))
            else:
                result = target(*torch.fx.map_arg(node.args, given.get), **torch.fx.map_arg(node.kwargs, given.get))
            flat: list[Any] = []
            restore.append(_flattened(result, flat))
            return flat

        with self._graph.inserting_before(node):
            call = self._graph.call_function(run, tuple(inputs))
        try:
            trace = trace_call(call, run, check=False, pre_dispatch=False)
        except TraceError as error:
            kinds = sorted(
                {type(self._wrapped[source].example).__name__ for source in sources if source in self._wrapped}
            )
            raise CaptureError(
                f"{node.target} cannot be traced on the tensor subclass {' and '.join(kinds)}: {error}"
                f"\n  at: {source_line(node)}"
            ) from error
        finally:
            self._graph.erase_node(call)

        def attribute(inner: torch.fx.Node) -> str:
            name = store_attribute(self._module, f"constant_of_{node.name}", module_attribute(trace, inner))
            self._constants[name] = None
            return name

        return restore[-1](iter(splice(self._graph, node, trace.graph, inputs, attribute)))


def _leaves(name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
    return iter(unwrapped({name: tensor}).items())


def _flattened(value: Any, flat: list[Any]) -> Callable[[Iterator[torch.fx.Node]], Any]:
    """Append the plain tensors of a result to a list; return a function that restores its structure from nodes."""
    if is_wrapper(value):
        attributes, _context = value.__tensor_flatten__()
        parts = {attribute: _flattened(getattr(value, attribute), flat) for attribute in attributes}
        return lambda nodes: _Wrapped(value, {attribute: part(nodes) for attribute, part in parts.items()})
    if isinstance(value, (list, tuple)):
        items = [_flattened(item, flat) for item in value]
        return lambda nodes: [item(nodes) for item in items]
    flat.append(value)
    return next


def _float4_arguments(tensor: Any) -> Sequence[Any] | None:
    """Return the arguments of ``fxonnx::dequantize_float4`` for a weight of torchao's NVFP4, else None.

    Weights with dynamically quantized activations are not dequantized.
    """
    kind = type(tensor)
    if kind.__name__ != "NVFP4Tensor" or not kind.__module__.startswith("torchao.") or tensor.dim() != 2:
        return None
    if tensor.act_quant_kwargs is not None or not tensor.qdata.is_contiguous():
        return None
    factor = tensor.per_tensor_scale
    if factor is not None and factor.dim():
        return None
    return tensor.qdata, tensor.scale, factor, tensor.block_size, tensor.is_swizzled_scales, tensor.orig_dtype
