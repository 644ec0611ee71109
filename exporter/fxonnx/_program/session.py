"""ONNX Runtime sessions with torch tensors as inputs and outputs, intermediate values, and onnx's reference."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx_ir as ir
import torch

from fxonnx_translations._builder.default_device import cpu_by_default
from fxonnx_translations._builder.dtypes import from_torch, to_torch_dtype
from fxonnx_translations._builder.initializers import TorchTensor, has_content
from fxonnx_translations._builder.sub_byte import FLOAT4_PAIRS, PER_BYTE, contiguous, onnx_sizes, pack, unpack
from fxonnx_translations._torch_compat import pytree

from .._interrupts import interruption_point
from .._model_files import is_sequence
from ..errors import ArgumentError, RuntimeSessionError, did_you_mean
from .accuracy_level import UNROUNDED
from .protobuf_layout import serialize, tensor_bytes
from .saving import SINGLE_FILE_BYTES, save

if TYPE_CHECKING:
    import onnxruntime

__all__ = [
    "Session",
    "SessionFactory",
    "as_graph_input",
    "as_tensor",
    "compute_values",
    "from_numpy",
    "run_reference",
    "session_in_float",
    "to_ort_value",
]

SessionFactory: TypeAlias = "Callable[[str | bytes], onnxruntime.InferenceSession]"
"""Creates a session from a serialized model, or from the path of a model too large to serialize."""

_QUIET = 3  # errors only
_NOT_IN_NUMPY = frozenset(
    {
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
        *PER_BYTE,
    }
)


class Session:
    """An ONNX Runtime session for a snapshot of a model; later changes of the model have no effect on it.

    Args:
        model: The model.
        session_factory: Creates the session; by default with the CUDA execution provider if available, and the CPU one.
        file: The file that the model was loaded from, which ONNX Runtime loads; by default, the model is serialized.

    Raises:
        RuntimeSessionError: If ONNX Runtime cannot load the model.
    """

    def __init__(
        self, model: ir.Model, session_factory: SessionFactory | None = None, *, file: str | None = None
    ) -> None:
        self._inputs = tuple(model.graph.inputs)
        self._needed = sum(str(value.name) not in model.graph.initializers for value in self._inputs)
        self._outputs = tuple(model.graph.outputs)
        self._output_names = [str(value.name) for value in self._outputs]
        self._has_lists = any(map(is_sequence, (*model.graph.inputs, *model.graph.outputs)))
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        with cpu_by_default():
            source = self._source(model) if file is None else file
        try:
            self._session = (session_factory or _default_session)(source)
        except Exception as error:
            self.close()
            raise RuntimeSessionError(f"ONNX Runtime cannot load the model: {error}") from error

    def _source(self, model: ir.Model) -> bytes | str:
        if tensor_bytes(model) <= SINGLE_FILE_BYTES:
            buffer = BytesIO()
            save(model, buffer)
            return buffer.getvalue()
        self._directory = tempfile.TemporaryDirectory(prefix="fxonnx-")
        path = os.path.join(self._directory.name, "model.onnx")
        save(model, path, external_data=True)
        return path

    def close(self) -> None:
        """Remove the temporary files through which a large model was loaded."""
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def run(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Run the model once.

        Args:
            values: A tensor or number for each graph input, in order, for a sequence a list of tensors or the stacked
                tensor; inputs with an initializer may be omitted.

        Returns:
            The graph outputs in order, on the CPU: tensors, and lists of tensors for sequences.

        Raises:
            ArgumentError: If a value does not match the dtype or shape of its graph input.
            RuntimeSessionError: If ONNX Runtime fails.
        """
        if not self._needed <= len(values) <= len(self._inputs):
            raise ArgumentError("args", f"the model has {len(self._inputs)} inputs, got {len(values)} values")
        with cpu_by_default():
            feeds = {
                str(graph_input.name): _feed(as_graph_input(value, graph_input))
                for value, graph_input in zip(values, self._inputs, strict=False)
            }
        if self._has_lists:
            self._check_outputs()
        try:
            # ONNX Runtime's Python interface has sequences of arrays, but none of OrtValues.
            interruption_point()
            run = self._session.run if self._has_lists else self._session.run_with_ort_values
            outputs = run(self._output_names, feeds)
        except Exception as error:
            raise RuntimeSessionError(f"ONNX Runtime cannot run the model: {error}") from error
        with cpu_by_default():
            return tuple(map(_to_torch, outputs))

    def _check_outputs(self) -> None:
        """Reject the outputs that ONNX Runtime cannot return as arrays, as it returns lists of tensors."""
        for value in self._outputs:
            dtype = None if value.dtype is None else to_torch_dtype(value.dtype)
            if dtype in _NOT_IN_NUMPY:
                raise RuntimeSessionError(
                    f"ONNX Runtime cannot return the output {value.name!r}, {dtype}, of a model with lists of tensors",
                    hint="return it as float32 or as an integer",
                )


def session_in_float(source: str | bytes) -> onnxruntime.InferenceSession:
    """Create the default session, but multiply activations by quantized weights without rounding the activations."""
    return _default_session(source, dict([UNROUNDED]))


def _default_session(
    source: str | bytes, entries: Mapping[str, str] = MappingProxyType({})
) -> onnxruntime.InferenceSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _QUIET
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    available = onnxruntime.get_available_providers()
    providers = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in available]
    return onnxruntime.InferenceSession(source, options, providers=providers)


def as_graph_input(value: Any, graph_input: ir.Value) -> torch.Tensor | list[torch.Tensor]:
    """Convert a value for a graph input as ``as_tensor`` does; for a sequence, each of its items.

    Raises:
        ArgumentError: If the value does not match the type or shape of the graph input.
    """
    if not is_sequence(graph_input):
        return as_tensor(value, graph_input)
    return [as_tensor(item, graph_input) for item in value]


def as_tensor(value: Any, graph_input: ir.Value) -> torch.Tensor:
    """Convert a value for a graph input to a contiguous CPU tensor; complex numbers become pairs of real ones.

    Raises:
        ArgumentError: If the value does not match the dtype or shape of the graph input.
    """
    name = str(graph_input.name)
    if graph_input.dtype is None:
        raise ArgumentError(name, "this graph input has no dtype")
    dtype = to_torch_dtype(graph_input.dtype)
    if isinstance(value, np.ndarray | np.generic):
        value = from_numpy(np.asarray(value), name)
    if isinstance(value, (bool, int, float)):
        found: torch.dtype | None = torch.tensor(value, device="cpu").dtype
        if isinstance(value, float) and dtype.is_floating_point:
            # Python floats have no dtype; they take the graph input's.
            found = dtype
        tensor = torch.tensor(value, dtype=found, device="cpu")
    elif isinstance(value, torch.Tensor):
        tensor = _with_values(value, name).detach().cpu()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())
        tensor = tensor.resolve_neg()
    else:
        hint = "pass torch.tensor(value)"
        if any(map(torch.is_tensor, pytree.tree_leaves(value))):
            hint = "pass the tensors themselves: program(*args), or program(**kwargs) by name"
        raise ArgumentError(name, f"expected a tensor, got {type(value).__name__}", hint=hint)
    if tensor.dtype != dtype:
        raise ArgumentError(
            name, f"expected dtype {dtype}, got {tensor.dtype}", hint=f"convert the values with .to({dtype})"
        )
    if graph_input.shape is not None:
        expected = [dim if isinstance(dim, int) else str(dim.value) for dim in graph_input.shape]
        sizes = onnx_sizes(tensor.shape, dtype) if dtype in PER_BYTE else tensor.shape
        if len(expected) != tensor.dim() or any(
            isinstance(dim, int) and dim != size for dim, size in zip(expected, sizes, strict=True)
        ):
            text = ", ".join(map(str, expected))
            raise ArgumentError(
                name, f"expected shape [{text}], got {list(sizes)}", hint=_dynamic(name, expected, sizes)
            )
    return contiguous(tensor)


def _dynamic(name: str, expected: Sequence[int | str], sizes: Sequence[int]) -> str | None:
    """The dims that an export has to declare as dynamic for other sizes than the example's; None for another rank."""
    if len(expected) != len(sizes) or not name.isidentifier():
        return None
    axes = [axis for axis, (dim, size) in enumerate(zip(expected, sizes, strict=True)) if dim not in (size, str(dim))]
    dims = ", ".join(f'{axis}: "{name}_{axis}"' for axis in axes)
    return f'the size of the example is part of the model: export with dynamic_shapes={{"{name}": {{{dims}}}}}'


def _with_values(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Return a tensor whose values can be read."""
    if not has_content(tensor):
        problem = "expected a tensor with values, got one without, on the meta device or fake"
        raise ArgumentError(name, problem, hint="pass a tensor on the CPU, such as torch.rand(shape)")
    if tensor.layout != torch.strided:
        raise ArgumentError(
            name, f"expected a dense tensor, got one of layout {tensor.layout}", hint="convert it with .to_dense()"
        )
    return tensor


def from_numpy(array: np.ndarray[Any, Any], name: str) -> torch.Tensor:
    """Convert an array of any element type that ONNX and torch have, ml_dtypes included.

    Raises:
        ArgumentError: If torch has no dtype for the array.
    """
    # torch accepts neither another byte order nor negative strides, and warns of read-only memory.
    array = np.require(array.astype(array.dtype.newbyteorder("="), copy=False), requirements=["C", "W"])
    if array.dtype == np.uint64:
        # ONNX Runtime's uint64 is numpy's ulonglong, which torch does not know.
        array = array.view(np.uint64)
    try:
        if array.dtype.isbuiltin == 1:
            return torch.from_numpy(array)
        element_type = ir.DataType.from_numpy(array.dtype)
        dtype = to_torch_dtype(element_type)
    except TypeError as error:
        raise ArgumentError(name, f"torch has no dtype for a NumPy array of {array.dtype}") from error
    if dtype == FLOAT4_PAIRS:
        pairs = array.view(np.uint8).reshape(*array.shape[:-1], -1, 2)
        return torch.from_numpy(pairs[..., 0] | pairs[..., 1] << 4).view(dtype)
    if dtype in PER_BYTE:
        return torch.from_numpy(array.astype(np.int8 if element_type.is_signed() else np.uint8)).view(dtype)
    return torch.from_numpy(array.view(np.uint16 if array.itemsize == 2 else np.uint8)).view(dtype)


def to_ort_value(tensor: torch.Tensor) -> onnxruntime.OrtValue:
    """Convert a contiguous CPU tensor of any dtype, whose memory the result may share."""
    import onnxruntime

    if tensor.dtype not in _NOT_IN_NUMPY:
        return onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy())
    onnx_type = int(from_torch(tensor.dtype))
    if tensor.dtype in PER_BYTE:
        # ONNX Runtime takes the shape from the array, and the packed elements from the beginning of its memory.
        array = np.zeros(onnx_sizes(tensor.shape, tensor.dtype), np.uint8)
        packed = pack(tensor)
        array.reshape(-1)[: packed.numel()] = packed.numpy()
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, onnx_type)
    carrier = torch.uint16 if tensor.itemsize == 2 else torch.uint8
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(tensor.view(carrier).numpy(), onnx_type)


def _feed(value: torch.Tensor | list[torch.Tensor]) -> onnxruntime.OrtValue | list[np.ndarray[Any, Any]]:
    return to_ort_value(value) if isinstance(value, torch.Tensor) else [item.numpy() for item in value]


def _to_torch(value: Any) -> Any:
    if isinstance(value, list):
        return [from_numpy(item, "outputs") for item in value]
    return from_numpy(value, "outputs") if isinstance(value, np.ndarray) else _ort_value_to_torch(value)


def _ort_value_to_torch(value: onnxruntime.OrtValue) -> torch.Tensor:
    dtype = to_torch_dtype(ir.DataType(value.element_type()))
    if dtype not in _NOT_IN_NUMPY:
        return from_numpy(value.numpy(), "outputs")
    # ONNX Runtime's DLPack export supports bfloat16 but not float8.
    content = bytearray(ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()))
    if dtype in PER_BYTE:
        packed = torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
        return unpack(packed, dtype, value.shape())
    return (torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)).reshape(value.shape())


def compute_values(
    model: ir.Model, names: Sequence[str], inputs: Sequence[Any], session_factory: SessionFactory | None
) -> tuple[Any, ...]:
    """Evaluate values of the main graph in ONNX Runtime.

    Args:
        model: The model; its outputs are restored afterwards.
        names: Names of graph inputs, initializers or node outputs.
        inputs: A value for each graph input.
        session_factory: Creates the session.

    Raises:
        ArgumentError: If a name is not that of a value of the main graph.
    """
    graph = model.graph
    values = {str(value.name): value for node in graph for value in node.outputs}
    given = {str(value.name): index for index, value in enumerate(graph.inputs)}
    known = [*given, *graph.initializers, *values]
    if isinstance(names, str):
        raise ArgumentError("value_names", f"expected a list of names, got {names!r}", hint=f"write [{names!r}]")
    for name in names:
        if name not in known:
            raise ArgumentError(
                "value_names",
                f"{name!r} is not a value of the main graph",
                hint=did_you_mean(name, known, "program.model.graph lists its values"),
            )
    found: dict[str, Any] = {}
    for name in names:
        if name in given and given[name] < len(inputs):
            found[name] = as_graph_input(inputs[given[name]], graph.inputs[given[name]])
        elif name in graph.initializers and (constant := graph.initializers[name].const_value) is not None:
            found[name] = from_numpy(constant.numpy().copy(), name)
    wanted = [values[name] for name in dict.fromkeys(names) if name not in found]
    if wanted:
        outputs = list(graph.outputs)
        try:
            graph.outputs[:] = wanted
            session = Session(model, session_factory)
            try:
                computed = session.run(inputs)
            finally:
                session.close()
        finally:
            graph.outputs[:] = outputs
        found |= {str(value.name): tensor for value, tensor in zip(wanted, computed, strict=True)}
    return tuple(found[name] for name in names)


def run_reference(model: ir.Model, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Run a model in onnx's reference implementation.

    Raises:
        RuntimeSessionError: If the reference implementation fails.
    """
    from onnx.reference import ReferenceEvaluator

    graph_inputs = model.graph.inputs
    feeds = {
        str(graph_input.name): pytree.tree_map(
            lambda tensor: TorchTensor(tensor).numpy(), as_graph_input(value, graph_input)
        )
        for value, graph_input in zip(inputs, graph_inputs, strict=False)
    }
    try:
        outputs: Any = ReferenceEvaluator(serialize(model)).run(None, feeds)
    except Exception as error:
        raise RuntimeSessionError(f"onnx's reference implementation cannot run the model: {error}") from error
    return tuple(pytree.tree_map(lambda output: from_numpy(output.copy(), "outputs"), output) for output in outputs)
