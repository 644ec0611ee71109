"""Check a model against a target: the nodes that the runtime cannot run, or runs slowly."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import onnx_ir as ir

from .._display import TableList, printable
from .._model_files import load_model, origin_of
from .._public import public
from ..errors import ArgumentError, did_you_mean
from .builtin import PROFILES, Target
from .kernel_table import Kernel, KernelTable, formal_parameters
from .profile import Restriction, TargetProfile, constant_of

if TYPE_CHECKING:
    import onnx

__all__ = ["TargetFinding", "check"]

Severity: TypeAlias = Literal["fails", "slow"]
_Problem: TypeAlias = tuple[Severity, str, str]

_OLDEST_OPSET = 7
_COMMON_TYPES = tuple(ir.DataType[name] for name in ("FLOAT", "FLOAT16", "INT32", "INT64", "INT8"))
# Runtimes turn these nodes into initializers when they load a model.
_NO_KERNEL_NEEDED = frozenset({"Constant"})
# Their results are in the memory of the CPU, even if a device runs them.
_RESULTS_ON_CPU = frozenset({"Constant", "Shape", "Size"})


@public
@dataclass(frozen=True)
class TargetFinding:
    """A node that a target cannot run, or runs slowly.

    Attributes:
        severity: "fails" if the runtime refuses the model, "slow" if it runs the node with a detour.
        op_type: The operator, with its domain unless that is ONNX; ``""`` if the finding is about the whole model.
        node: Name of the node.
        problem: Description of the problem.
        remedy: A change of the export or the model that avoids it.
        module: Path of the module that the node comes from, from the metadata that exporters write; ``""`` without it.
        location: Line of the user's code, ``file.py:12``; ``""`` if the metadata does not name one.
    """

    severity: Severity
    op_type: str
    node: str
    problem: str
    remedy: str
    module: str = ""
    location: str = ""

    def __str__(self) -> str:
        place = ", ".join(text for text in (self.module, self.location) if text)
        subject = f"{self.op_type} {self.node}".strip() or "model"
        return printable(
            f"{self.severity}: {subject}: {self.problem}{f' (at {place})' if place else ''}; {self.remedy}"
        )


class TargetFindings(TableList[TargetFinding]):
    """The findings of a check."""

    _head = ("severity", "operator", "problem", "remedy", "module", "line")

    @staticmethod
    def _cells(item: TargetFinding) -> Sequence[str]:
        operator = f"{item.op_type} {item.node}".strip() or "model"
        return (item.severity, operator, item.problem, item.remedy, item.module, item.location)

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "The target runs the whole model."


@public
def check(model: str | os.PathLike[str] | ir.Model | onnx.ModelProto, target: Target) -> list[TargetFinding]:
    """Find the nodes of a model that a target cannot run, or runs slowly.

    Subgraphs and local functions are included. The model may come from any exporter; those that write the metadata of
    torch.onnx get findings with modules and source lines. Weights are not read.

    Args:
        model: The path of an ONNX file, or a model in memory, which is not modified.
        target: The runtime, by its name.

    Returns:
        The findings in the order of the nodes; empty if the target runs the whole model.

    Raises:
        ArgumentError: If the target does not exist, or the file cannot be loaded.
    """
    if target not in PROFILES:
        problem = f"expected one of {', '.join(map(repr, get_args(Target)))}, got {target!r}"
        raise ArgumentError("target", problem, hint=did_you_mean(target, PROFILES))
    return TargetFindings(_Checker(_with_types(load_model(model)), PROFILES[target]).findings())


def _with_types(model: ir.Model) -> ir.Model:
    """The model with inferred types, if it does not record them all."""
    if all(value.dtype is not None for node in model.graph for value in node.outputs if value.name):
        return model
    from onnx_ir.passes.common import ShapeInferencePass

    inferred = model.clone()
    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=False)(inferred)
    return inferred


class _Checker:
    def __init__(self, model: ir.Model, profile: TargetProfile) -> None:
        self._model = model
        self._profile = profile

    def findings(self) -> Iterator[TargetFinding]:
        """Yield the findings of the model, of its nodes and of its functions' nodes."""
        newest = self._profile.newest_opset
        opset = self._model.opset_imports.get("", 0)
        if opset > newest:
            problem = f"{self._profile.runtime} runs opsets up to {newest}, the model has opset {opset}"
            yield TargetFinding("fails", "", "", problem, f"export with opset_version={newest}")
        yield from self._nodes(self._model.graph, self._model.opset_imports)
        for function in self._model.functions.values():
            yield from self._nodes(function, function.opset_imports)

    def _nodes(self, graph: ir.Graph | ir.Function, opsets: Mapping[str, int]) -> Iterator[TargetFinding]:
        for node in ir.traversal.RecursiveGraphIterator(graph):
            if node.op_identifier() in self._model.functions:
                continue
            for severity, problem, remedy in self._problems(node, opsets):
                module, location = origin_of(node)
                op_type = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
                yield TargetFinding(severity, op_type, node.name or "", problem, remedy, module, location)

    def _problems(self, node: ir.Node, opsets: Mapping[str, int]) -> Iterator[_Problem]:
        profile = self._profile
        if node.domain and node.domain not in profile.domains:
            remedy = "register an implementation of it in the runtime, or give the exporter a translation to ONNX"
            yield "fails", f"{profile.runtime} does not know the domain {node.domain!r}", remedy
            return
        opset = opsets.get(node.domain, 1)
        if not node.domain:
            opset = min(opset, profile.newest_opset)
        if node.op_type not in _NO_KERNEL_NEEDED or node.domain:
            yield from self._kernel_problems(node, opset, opsets)
        name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        restriction = profile.restrictions.get(name, Restriction())
        names = tuple(formal.name for formal in formal_parameters(node.op_type, opset, node.domain).inputs)
        for problem, remedy in restriction.violations(node, names):
            yield "fails", f"{profile.runtime}: {problem}", remedy
        if node.domain:
            return
        if node.op_type in profile.data_dependent:
            problem = "the size of its output depends on data: buffers have the largest possible size"
            yield "slow", problem, "compute a mask of fixed size instead"
        yield from self._layout_problems(node)
        yield from self._quantization_problems(node)

    def _kernel_problems(self, node: ir.Node, opset: int, opsets: Mapping[str, int]) -> Iterator[_Problem]:
        """Yield at most one problem: the operator, or one of its element types, has no kernel."""
        profile = self._profile
        kernel = profile.kernels.find(node.op_type, opset, node.domain)
        types = _types_of(node, opset)
        variable = None if kernel is None else next(self._without_kernel(kernel, types), None)
        if kernel is not None and variable is None:
            return
        missing = None if variable is None else types[variable]
        problem = f"{profile.runtime} has no kernel for {node.op_type} of opset {opset}"
        if missing is not None:
            problem = f"{profile.runtime} has no kernel for {node.op_type} of {missing.name.lower()}"

        def runs(other: int) -> bool:
            return self._has_kernel(node, other)

        wider = None if missing is None else profile.computes_in.get(missing)
        supported: list[ir.DataType] = []
        if kernel is not None and variable is not None and missing is not None:
            wide = [dtype for dtype in _COMMON_TYPES if dtype == wider or _holds(dtype, missing)]
            supported = [dtype for dtype in wide if dtype in kernel.types.get(variable, wide)]
        remedy = _remedy(runs, opset, profile.newest_opset, supported) if not node.domain else "use ONNX operators"
        has_device = profile.falls_back_to_cpu and profile.kernels != profile.cpu_kernels
        if has_device and self._runs_on_cpu(node, opset, types):
            copies = "with copies between the devices" if self._waits(node, opsets) else "where its inputs are"
            yield "slow", f"{problem}: it runs on the CPU, {copies}", remedy
        elif wider is not None:
            yield "slow", f"{problem}: it is computed in {wider.name.lower()}, between conversions", remedy
        elif profile.expands_functions and self._runs_expanded(node, opset):
            yield "slow", f"{problem}: it is replaced by the operators of its definition", remedy
        else:
            yield "fails", problem, remedy

    def _without_kernel(self, kernel: Kernel, types: Mapping[str, ir.DataType]) -> Iterator[str]:
        """The type variables whose element type a kernel does not support, or converts if its types are not listed."""
        converted = () if kernel.types else self._profile.computes_in
        for variable, dtype in types.items():
            if dtype in converted or dtype not in kernel.types.get(variable, (dtype,)):
                yield variable

    def _has_kernel(self, node: ir.Node, opset: int) -> bool:
        found = self._profile.kernels.find(node.op_type, opset, node.domain)
        return found is not None and next(self._without_kernel(found, _types_of(node, opset)), None) is None

    def _waits(self, node: ir.Node, opsets: Mapping[str, int]) -> bool:
        """Whether the device computes an input of a node on the CPU."""
        producers = [value.producer() for value in node.inputs if value is not None]
        return any(
            each is not None
            and each.op_type not in _RESULTS_ON_CPU
            and self._has_kernel(each, opsets.get(each.domain, 1))
            for each in producers
        )

    def _runs_on_cpu(self, node: ir.Node, opset: int, types: Mapping[str, ir.DataType]) -> bool:
        kernel = self._profile.cpu_kernels.find(node.op_type, opset, node.domain)
        return kernel is not None and all(
            types[variable] in self._profile.computes_in for variable in self._without_kernel(kernel, types)
        )

    def _runs_expanded(self, node: ir.Node, opset: int) -> bool:
        types = [None if value is None else value.dtype for value in node.inputs]
        tables = (self._profile.kernels, *((self._profile.cpu_kernels,) if self._profile.falls_back_to_cpu else ()))
        proto = ir.serde.serialize_node(node)
        return not node.domain and _runs_expanded(proto, types, opset, tables, self._profile.computes_in)

    def _layout_problems(self, node: ir.Node) -> Iterator[_Problem]:
        value = node.inputs[0] if node.inputs else None
        producer = None if value is None else value.producer()
        if producer is None or (producer.op_type, node.op_type) not in self._profile.layout_rules:
            return
        source = producer.inputs[0]
        if source is not None and constant_of(source) is not None:
            problem = f"it rearranges the weight {source.name} after {producer.op_type} in every call"
            yield "slow", problem, f"store the weight in the layout that {node.op_type} returns"

    def _quantization_problems(self, node: ir.Node) -> Iterator[_Problem]:
        form = self._profile.quantized_form
        if form is None or node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            return
        runtime = self._profile.runtime
        zero_point = node.inputs[2] if len(node.inputs) > 2 else None
        tensor = None if zero_point is None else constant_of(zero_point)
        if form.symmetric and zero_point is not None and (tensor is None or tensor.numpy().any()):
            yield "fails", f"{runtime} requires zero points of 0", "quantize symmetrically"
        dtype = node.outputs[0].dtype if node.op_type == "QuantizeLinear" else None
        if dtype is not None and dtype not in form.activations:
            expected = " or ".join(sorted(each.name.lower() for each in form.activations))
            problem = f"activations of {dtype.name.lower()} are not fused with the operators around them"
            yield "slow", problem, f"quantize activations to {expected}"


def _types_of(node: ir.Node, opset: int) -> dict[str, ir.DataType]:
    """Type variable of the operator to the element type that it has in a node, as far as known."""
    schema = formal_parameters(node.op_type, opset, node.domain)
    found: dict[str, ir.DataType] = {}
    for formals, values in ((schema.inputs, node.inputs), (schema.outputs, node.outputs)):
        for index, value in enumerate(values):
            if not formals or value is None or value.dtype is None or not isinstance(value.type, ir.TensorType):
                continue
            # The last formal parameter may be variadic.
            formal = formals[min(index, len(formals) - 1)]
            found.setdefault(formal.variable, value.dtype)
    first = next((value for value in node.inputs if value is not None and value.dtype is not None), None)
    if first is not None and first.dtype is not None:
        found["*"] = first.dtype
    return found


def _holds(dtype: ir.DataType, other: ir.DataType) -> bool:
    """Whether an element type is at least as large as another one, and floating if that is."""
    return dtype.itemsize >= other.itemsize and (dtype.is_floating_point() or not other.is_floating_point())


def _remedy(runs: Callable[[int], bool], opset: int, newest: int, supported: Sequence[ir.DataType]) -> str:
    """The nearest opset at which the operator has a kernel, or another element type."""
    for other in (*range(opset - 1, _OLDEST_OPSET - 1, -1), *range(opset + 1, newest + 1)):
        if runs(other):
            return f"export with opset_version={other}"
    types = " or ".join(dtype.name.lower() for dtype in supported)
    return f"compute it in {types}" if types else "replace the operator in the model"


_Types: TypeAlias = "dict[str, ir.DataType]"


def _runs_expanded(
    node: onnx.NodeProto,
    types: Sequence[ir.DataType | None],
    opset: int,
    tables: Sequence[KernelTable],
    converted: Collection[ir.DataType],
) -> bool:
    """Whether every operator of a node's function body has a kernel, or a function body that runs."""
    body = _body(node, types, opset)
    if body is None:
        return False
    known: _Types = {name: dtype for name, dtype in zip(body.input, types, strict=False) if dtype is not None}
    for inner in body.node:
        inputs = [known.get(name) for name in inner.input]
        bound = _bound(inner, inputs, opset)
        _record_outputs(inner, inputs, bound, opset, known)
        if inner.op_type == "Constant" or any(_has_kernel(inner, bound, opset, table, converted) for table in tables):
            continue
        if not _runs_expanded(inner, inputs, opset, tables, converted):
            return False
    return True


def _body(node: onnx.NodeProto, types: Sequence[ir.DataType | None], opset: int) -> onnx.FunctionProto | None:
    """The function body that ONNX Runtime uses at an opset, or None if it uses none."""
    import onnx

    try:
        schema: Any = onnx.defs.get_schema(node.op_type, opset, node.domain)
    except onnx.defs.SchemaError:
        return None
    fixed = [version for version in schema.function_opset_versions if version <= opset]
    built = [version for version in schema.context_dependent_function_opset_versions if version <= opset]
    if fixed:
        body = _parsed(schema.get_function_with_opset_version(max(fixed)))
        # A body of fixed text is not used if operators in it have changed since its opset.
        changed = (
            formal_parameters(inner.op_type, max(fixed)).since != formal_parameters(inner.op_type, opset).since
            for inner in body.node
        )
        return None if any(changed) else body
    if not built or None in types:
        return None
    inputs = [_type_proto(dtype) for dtype in types]
    text = schema.get_context_dependent_function_with_opset_version(max(built), node.SerializeToString(), inputs)
    return _parsed(text) if text else None


def _parsed(text: bytes) -> onnx.FunctionProto:
    import onnx

    body = onnx.FunctionProto()
    body.ParseFromString(text)
    return body


def _type_proto(dtype: ir.DataType | None) -> bytes:
    import onnx

    return bytes(onnx.helper.make_tensor_type_proto(int(dtype or 0), None).SerializeToString())


def _bound(node: onnx.NodeProto, inputs: Sequence[ir.DataType | None], opset: int) -> _Types:
    """Type variables of the operator to the element types of a node's inputs."""
    formals = formal_parameters(node.op_type, opset).inputs
    bound: _Types = {}
    for index, dtype in enumerate(inputs):
        if dtype is not None and formals:
            bound.setdefault(formals[min(index, len(formals) - 1)].variable, dtype)
    return bound


def _record_outputs(
    node: onnx.NodeProto, inputs: Sequence[ir.DataType | None], bound: _Types, opset: int, known: _Types
) -> None:
    """Record the element types of a node's outputs, as far as they follow from its inputs."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type == "Cast" and "to" in attributes:
        known[node.output[0]] = bound["T2"] = ir.DataType(attributes["to"].i)
    elif node.op_type == "CastLike" and inputs[1] is not None:
        known[node.output[0]] = inputs[1]
    elif node.op_type == "Constant":
        tensor = attributes.get("value")
        is_float = any(name.startswith("value_float") for name in attributes)
        dtype = ir.DataType.FLOAT if is_float else ir.DataType.INT64
        known[node.output[0]] = dtype if tensor is None else ir.DataType(tensor.t.data_type)
    else:
        for name, formal in zip(node.output, formal_parameters(node.op_type, opset).outputs, strict=False):
            dtype_or_none = bound.get(formal.variable, formal.only_type)
            if dtype_or_none is not None:
                known[name] = dtype_or_none


def _has_kernel(
    node: onnx.NodeProto,
    bound: Mapping[str, ir.DataType],
    opset: int,
    table: KernelTable,
    converted: Collection[ir.DataType],
) -> bool:
    kernel = table.find(node.op_type, opset)
    return kernel is not None and all(
        dtype in converted or dtype in kernel.types.get(name, (dtype,)) for name, dtype in bound.items()
    )
