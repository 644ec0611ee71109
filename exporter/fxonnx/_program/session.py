"""Running a model in ONNX Runtime with torch tensors."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx_ir as ir
import torch

from fxonnx_translations._builder.dtypes import to_torch_dtype

from ..errors import ArgumentError, RuntimeSessionError
from .protobuf_layout import external_bytes
from .saving import SINGLE_FILE_BYTES, save

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["Initializer", "Session", "as_tensor"]

Initializer: TypeAlias = "Callable[[str | bytes], onnxruntime.InferenceSession]"
"""Makes a session of a serialized model, or of the path of one that is too large for that."""

_QUIET = 3  # errors only
_UNKNOWN_TO_NUMPY = frozenset(
    {
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
    }
)


class Session:
    """An ONNX Runtime session of a model as it is now; later changes of the model do not reach it.

    Args:
        model: The model.
        initializer: Makes the session; by default on CUDA where there is it, and on the CPU.

    Raises:
        RuntimeSessionError: If ONNX Runtime can not load it.
    """

    def __init__(self, model: ir.Model, initializer: Initializer | None = None) -> None:
        self._inputs = tuple(model.graph.inputs)
        self._needed = sum(str(value.name) not in model.graph.initializers for value in self._inputs)
        self._output_names = [str(value.name) for value in model.graph.outputs]
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        source = self._source(model)
        try:
            self._session = (initializer or _default_session)(source)
        except Exception as error:
            self.close()
            raise RuntimeSessionError(f"ONNX Runtime can not load the model: {error}") from error

    def _source(self, model: ir.Model) -> bytes | str:
        if external_bytes(model) <= SINGLE_FILE_BYTES:
            buffer = BytesIO()
            save(model, buffer)
            return buffer.getvalue()
        self._directory = tempfile.TemporaryDirectory(prefix="fxonnx-")
        path = os.path.join(self._directory.name, "model.onnx")
        save(model, path, external_data=True)
        return path

    def close(self) -> None:
        """Removes the files that a large model was handed over in."""
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def run(self, values: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """Runs the model once.

        Args:
            values: A tensor or number for each graph input, in order; those that have an initializer may be left out.

        Returns:
            The graph outputs in order, on the CPU.

        Raises:
            ArgumentError: If a value does not fit its input.
            RuntimeSessionError: If ONNX Runtime fails.
        """
        if not self._needed <= len(values) <= len(self._inputs):
            raise ArgumentError("args", f"the model has {len(self._inputs)} inputs, not {len(values)}")
        feeds = {
            str(graph_input.name): _to_ort(as_tensor(value, graph_input))
            for value, graph_input in zip(values, self._inputs, strict=False)
        }
        try:
            outputs = self._session.run_with_ort_values(self._output_names, feeds)
        except Exception as error:
            raise RuntimeSessionError(f"ONNX Runtime can not run the model: {error}") from error
        return tuple(_to_torch(output) for output in outputs)


def _default_session(source: str | bytes) -> onnxruntime.InferenceSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _QUIET
    available = onnxruntime.get_available_providers()
    providers = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in available]
    return onnxruntime.InferenceSession(source, options, providers=providers)


def as_tensor(value: Any, graph_input: ir.Value) -> torch.Tensor:
    """The value as a tensor on the CPU.

    Raises:
        ArgumentError: If it has not the dtype and the rank that the graph expects.
    """
    name = str(graph_input.name)
    if graph_input.dtype is None:
        raise ArgumentError(name, "this graph input has no dtype")
    dtype = to_torch_dtype(graph_input.dtype)
    if isinstance(value, np.ndarray | np.generic):
        value = torch.from_numpy(np.asarray(value))
    if isinstance(value, (bool, int, float)):
        found: torch.dtype | None = torch.tensor(value).dtype
        if isinstance(value, float) and dtype.is_floating_point:
            # A Python float has no width of its own.
            found = dtype
        tensor = torch.tensor(value, dtype=found)
    elif isinstance(value, torch.Tensor):
        tensor = value.detach().cpu().resolve_conj().resolve_neg()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
    else:
        raise ArgumentError(name, f"expected a tensor, got {type(value).__name__}")
    if tensor.dtype != dtype:
        raise ArgumentError(name, f"expected dtype {dtype}, got {tensor.dtype}")
    if graph_input.shape is not None:
        expected = [dim if isinstance(dim, int) else str(dim.value) for dim in graph_input.shape]
        if len(expected) != tensor.dim() or any(
            isinstance(dim, int) and dim != size for dim, size in zip(expected, tensor.shape, strict=True)
        ):
            text = ", ".join(map(str, expected))
            raise ArgumentError(name, f"expected shape [{text}], got {list(tensor.shape)}")
    return tensor.contiguous()


def _to_ort(tensor: torch.Tensor) -> onnxruntime.OrtValue:
    import onnxruntime

    if tensor.dtype not in _UNKNOWN_TO_NUMPY:
        return onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy())
    carrier = torch.uint16 if tensor.itemsize == 2 else torch.uint8
    onnx_type = int(ir.tensor_adapters.from_torch_dtype(tensor.dtype))
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(tensor.view(carrier).numpy(), onnx_type)


def _to_torch(value: onnxruntime.OrtValue) -> torch.Tensor:
    dtype = to_torch_dtype(ir.DataType(value.element_type()))
    if dtype not in _UNKNOWN_TO_NUMPY:
        return torch.from_numpy(value.numpy())
    # DLPack knows bfloat16, but ONNX Runtime hands out no float8 with it.
    content = bytearray(ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()))
    return (torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)).reshape(value.shape())
