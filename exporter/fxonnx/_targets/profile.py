"""The record of a target: the runtime's operators, limits and preferred graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

import onnx_ir as ir

from fxonnx_translations._opsets.ort_kernels import MISSING_KERNELS, TYPES_WITHOUT_SOME_KERNELS, wider_types

from .kernel_table import KernelTable

__all__ = ["ATTENTION_FORMS", "CPU_KERNELS", "QuantizedForm", "Restriction", "TargetProfile", "constant_of"]

ATTENTION_FORMS = frozenset({"bias", "sinks", "softcap", "window"})
"""Forms of GroupQueryAttention that not all kernels have: a bias of scores, attention sinks, softcaps and windows."""

CPU_KERNELS = KernelTable("onnxruntime")

# Types that are computed in a wider one where a build of ONNX Runtime with fewer kernels lacks one.
_WIDENED = frozenset(ir.DataType[name] for name in ("INT8", "UINT8", "UINT32"))

_FLOATS = frozenset(ir.DataType[name] for name in ("FLOAT", "FLOAT16", "BFLOAT16"))

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def _empty() -> Mapping[_Key, _Value]:
    return MappingProxyType({})


@dataclass(frozen=True)
class QuantizedForm:
    """The form of QuantizeLinear and DequantizeLinear that a runtime fuses.

    Attributes:
        activations: Element types of quantized activations; if uint8 is one and int8 is not, int8 is exported as uint8.
        symmetric: Whether zero points must be 0.
        integer_products: Whether products whose results are floats are fused as MatMulInteger if the scale of the
            activations is computed, and with a bias as int32 otherwise.
        explicit_zero_points: Whether products are fused only if the zero point of the weight is written.
    """

    activations: frozenset[ir.DataType]
    symmetric: bool = False
    integer_products: bool = False
    explicit_zero_points: bool = False


@dataclass(frozen=True)
class TargetProfile:
    """One runtime as data: ``export`` and ``check`` read nothing else about a target.

    Attributes:
        name: The value of the argument ``target``.
        runtime: The runtime in words, for messages.
        kernels: The operators and element types with kernels.
        default_opset: The opset that is exported unless the user specifies one.
        older_opset: The opset for graphs with one of ``older_operators``; None if that is the default as well.
        older_operators: Operators of ATen whose operators of ONNX have no kernel at the default opset.
        newest_opset: The newest opset that the runtime loads.
        domains: The operator domains that it knows, besides the default one.
        patterns: Fusion patterns to enable or disable by default, by name, for this target.
        falls_back_to_cpu: Whether ONNX Runtime's CPU execution provider runs the operators that ``kernels`` lacks.
        cpu_kernels: The kernels of that execution provider, which depend on the build.
        expands_functions: Whether an operator without a kernel is replaced by the function body of its ONNX schema.
        avoided: Operators that the export writes as plainer ones: the runtime has kernels for few forms or none, or
            replaces them by functions that take longer. Forms are ``Resize.axes``, its attribute, and ``one axis``, a
            softmax or an ArgMax of a tensor of one axis.
        refuses_types: Whether a runtime other than ONNX Runtime refuses an operator in a type that ``kernels`` lacks,
            so that the export has to compute in a wider one.
        definitions: Operators without any kernel, each with an element type, to the first opset whose definition runs
            in that type: Casts to a wider one would be of no use.
        computes_in: Element types without a kernel that the runtime converts by itself, and the types it computes in.
        restrictions: Operator, with its domain unless that is ONNX, to the forms of it that are not supported.
        data_dependent: Operators whose output sizes depend on data, if those end the optimization of a graph.
        layout_rules: Operators of a weight, producer and consumer, that run in every call: the weight should be stored
            in the layout that the consumer returns.
        has_matmul_nbits: Whether quantized weights become MatMulNBits and, if it has a kernel, GatherBlockQuantized,
            operators of ONNX Runtime, instead of DequantizeLinear.
        quantized_form: The preferred form of quantized models; None if there is none.
        attention: The forms of GroupQueryAttention besides causal attention, of ``ATTENTION_FORMS``.
    """

    name: str
    runtime: str
    kernels: KernelTable
    default_opset: int
    newest_opset: int
    older_opset: int | None = None
    older_operators: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset()
    patterns: Mapping[str, bool] = field(default_factory=_empty)
    falls_back_to_cpu: bool = False
    cpu_kernels: KernelTable = CPU_KERNELS
    expands_functions: bool = False
    avoided: frozenset[str] = frozenset()
    refuses_types: bool = False
    definitions: Mapping[tuple[str, ir.DataType], int] = field(default_factory=_empty)
    computes_in: Mapping[ir.DataType, ir.DataType] = field(default_factory=_empty)
    restrictions: Mapping[str, Restriction] = field(default_factory=_empty)
    data_dependent: frozenset[str] = frozenset()
    layout_rules: frozenset[tuple[str, str]] = frozenset()
    has_matmul_nbits: bool = False
    quantized_form: QuantizedForm | None = None
    attention: frozenset[str] = ATTENTION_FORMS

    def has_kernel(
        self, op_type: str, dtype: ir.DataType, opset: int, *, variable: str | None = None, domain: str = ""
    ) -> bool:
        """Whether there is a kernel for an operator and an element type; see ``KernelTable.has_kernel``."""
        return self.kernels.has_kernel(op_type, dtype, opset, variable=variable, domain=domain)

    def missing_kernels(self, opset: int) -> Mapping[str, frozenset[ir.DataType]]:
        """Return the element types that the export computes in a wider type, between Casts, by operator.

        Runtimes that choose the types they compute in themselves get the Casts that the ONNX schema requires and no
        others. Operators to avoid are named as well: they are not written in any of these types.

        Args:
            opset: The opset of the export.
        """
        avoided = dict.fromkeys(self.avoided, _FLOATS)
        if not self.falls_back_to_cpu:
            return MappingProxyType({**(self._refused(opset) if self.refuses_types else {}), **avoided})
        if self.kernels == CPU_KERNELS:
            return MappingProxyType({**MISSING_KERNELS, **avoided}) if avoided else MISSING_KERNELS
        lacking = dict(MISSING_KERNELS)
        if self.cpu_kernels != CPU_KERNELS:
            names = [name for domain, name in CPU_KERNELS.kernels if domain == ""]
            lacking |= {name: lacking.get(name, frozenset()) | self._lost(name, opset) for name in names}
        return MappingProxyType(
            {
                op_type: frozenset(dtype for dtype in missing if not self._computes(op_type, dtype, opset))
                for op_type, missing in lacking.items()
            }
            | avoided
        )

    def computes_float64(self, opset: int) -> bool:
        """Whether float64 is computed as such; some runtimes compute it in float32, or have no kernels for it."""
        return ir.DataType.DOUBLE not in self.computes_in and (
            not self.falls_back_to_cpu or self.cpu_kernels.has_kernel("Div", ir.DataType.DOUBLE, opset)
        )

    @property
    def has_gather_nbits(self) -> bool:
        """Whether quantized embeddings become GatherBlockQuantized."""
        return self.has_matmul_nbits and self.has_kernel(
            "GatherBlockQuantized", ir.DataType.UINT8, 1, variable="T1", domain="com.microsoft"
        )

    @property
    def adds_bias(self) -> bool:
        """Whether MatMulNBits has a kernel that adds a bias."""
        return 5 not in self.restrictions.get("com.microsoft::MatMulNBits", Restriction()).absent

    @property
    def has_byte_blocks(self) -> bool:
        """Whether DequantizeLinear has a kernel for 8-bit weights in blocks."""
        return "block_size" not in self.restrictions.get("DequantizeLinear", Restriction()).attributes

    def _refused(self, opset: int) -> dict[str, frozenset[ir.DataType]]:
        """Types without a kernel, but one for a wider type, by operator."""
        castable = [dtype for dtype in TYPES_WITHOUT_SOME_KERNELS if self.has_kernel("Cast", dtype, opset)]
        names = [name for domain, name in self.kernels.kernels if domain == "" and self.kernels.find(name, opset)]
        return {
            name: frozenset(
                dtype
                for dtype in castable
                if not self.has_kernel(name, dtype, opset)
                and any(self.has_kernel(name, wider, opset) for wider in wider_types(name, dtype))
            )
            for name in names
        }

    def _lost(self, op_type: str, opset: int) -> frozenset[ir.DataType]:
        """Types with a kernel in the usual build of ONNX Runtime, but not in the target's."""
        tables = (CPU_KERNELS, self.cpu_kernels)
        usual, own = ({t for t in _WIDENED if table.has_kernel(op_type, t, opset)} for table in tables)
        return frozenset(usual - own)

    def _computes(self, op_type: str, dtype: ir.DataType, opset: int) -> bool:
        since = self.definitions.get((op_type, dtype))
        return self.has_kernel(op_type, dtype, opset) or (since is not None and opset >= since)


@dataclass(frozen=True)
class Restriction:
    """Forms of one operator that a runtime does not run.

    Attributes:
        constant: Inputs that must be constants.
        absent: Inputs that must be omitted.
        outputs: The number of outputs that are supported; None for all.
        ranks: Numbers of axes of the first input that are supported; empty for any.
        static: Whether the first input must have a static shape.
        attributes: Attribute to its supported values; the default of an attribute that is omitted is supported.
        types: Element types of the first input that the restriction is about; empty for all.
        whole: Inputs that are not broadcast: their last axis must have the size of the first input's.
    """

    constant: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    outputs: int | None = None
    ranks: tuple[int, ...] = ()
    static: bool = False
    attributes: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: MappingProxyType({}))
    types: frozenset[ir.DataType] = frozenset()
    whole: tuple[int, ...] = ()

    def violations(self, node: ir.Node, inputs: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        """Yield the problem and the remedy for each part of the restriction that a node violates.

        Args:
            node: The node.
            inputs: Names of the operator's inputs.
        """
        first = _input(node, 0)
        if self.types and (first is None or first.dtype not in self.types):
            return
        for index in self.whole:
            size, whole = _last_size(_input(node, index)), _last_size(first)
            if size != whole and None not in (size, whole) and (isinstance(whole, int) or size == 1):
                problem = f"its input {_name(inputs, index)} has {size} elements in its last axis and is not broadcast"
                yield f"{problem}: the results are wrong", "expand the input to the size of that axis"
        for index in self.constant:
            value = _input(node, index)
            if value is not None and constant_of(value) is None:
                yield f"its input {_name(inputs, index)} must be a constant", "make the sizes it depends on static"
        for index in self.absent:
            if _input(node, index) is not None:
                yield f"its input {_name(inputs, index)} is not supported", "export with a lower opset_version"
        if self.outputs is not None and any(map(_is_used, node.outputs[self.outputs :])):
            count = "output is" if self.outputs == 1 else f"{self.outputs} outputs are"
            yield f"only its first {count} supported", "compute the other outputs with other operators"
        yield from self._shape_violations(first)
        for name, supported in self.attributes.items():
            attribute = node.attributes.get(name)
            if attribute is None or attribute.is_ref():
                continue
            values = attribute.value if isinstance(attribute.value, (list, tuple)) else (attribute.value,)
            if not all(value in supported for value in values):
                allowed = ", ".join(map(str, supported)) or "none"
                yield f"its attribute {name} is {attribute.value}, supported: {allowed}", "use another form of it"

    def _shape_violations(self, value: ir.Value | None) -> Iterator[tuple[str, str]]:
        shape = None if value is None else value.shape
        if shape is None:
            return
        if self.ranks and len(shape) not in self.ranks:
            allowed = " or ".join(map(str, self.ranks))
            yield f"its first input has {len(shape)} axes, supported are {allowed}", "reshape the input"
        if self.static and not shape.is_static():
            yield "its first input must have a static shape", "export with static sizes for these dims"


def constant_of(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer or of a Constant node."""
    if value.const_value is not None:
        return value.const_value
    node = value.producer()
    if node is None or node.op_type != "Constant":
        return None
    attribute = node.attributes.get("value")
    return attribute.as_tensor() if attribute is not None else ir.tensor([0])


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _last_size(value: ir.Value | None) -> int | ir.SymbolicDim | None:
    """The size of the last axis; 1 for a tensor without axes, None if the shape is unknown."""
    if value is None or value.shape is None:
        return None
    return value.shape[-1] if value.shape else 1


def _name(inputs: tuple[str, ...], index: int) -> str:
    return inputs[index] if index < len(inputs) else str(index)


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
