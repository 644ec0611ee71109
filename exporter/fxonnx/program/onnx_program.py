"""``ONNXProgram``: what ``export`` returns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import onnx
import onnx_ir as ir
import torch

from ..capture.constraints import Constraint, Limits
from ..errors import SaveError
from . import saving
from .binding import bind
from .session import Session
from .wire import PROTOBUF_LIMIT, external_bytes

if TYPE_CHECKING:
    from ..verification import Row

__all__ = ["ONNXProgram"]


class ONNXProgram:
    """An exported model.

    Args:
        model: The model.
        exported_program: The program it was made of.
        timings: Stage name to seconds.
        example_inputs: Positional and keyword example inputs; by default those of the exported program.
        limits: For which sizes it may be used.
        source: The model it was captured from, if that is at hand.
        objects: Positional and keyword inputs as the model takes them, if there are objects among them.

    Attributes:
        model: The ``onnx_ir.Model``; it may be changed, call ``release`` afterwards.
        exported_program: The program it was made of, as torch.export captured it.
        limits: For which sizes it may be used.
        source: The model it was captured from, or None.
        objects: Inputs as that model takes them, if there are objects among them.
    """

    def __init__(
        self,
        model: ir.Model,
        exported_program: torch.export.ExportedProgram,
        *,
        timings: Mapping[str, float] = MappingProxyType({}),
        example_inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
        limits: Limits | None = None,
        source: torch.nn.Module | None = None,
        objects: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None,
    ) -> None:
        self.model = model
        self.exported_program = exported_program
        self.limits = Limits() if limits is None else limits
        self.source = source
        self.objects = objects
        self._timings = timings
        self._example_inputs = example_inputs
        self._session: Session | None = None

    @property
    def timings(self) -> Mapping[str, float]:
        """Stage name to wall-clock seconds, in the order of the stages."""
        return MappingProxyType(dict(self._timings))

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The conditions on the sizes of the inputs: what the model needs, and the ranges in ``dynamic_shapes``.

        They are also in the metadata of the model, as JSON under ``pkg.fxonnx.constraints``.
        """
        return self.limits.constraints

    @property
    def example_inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The positional and keyword inputs it was exported with, if they are known."""
        return self.exported_program.example_inputs if self._example_inputs is None else self._example_inputs

    @property
    def model_proto(self) -> onnx.ModelProto:
        """The model as a protobuf message, made anew with a copy of all weights.

        Raises:
            SaveError: If the weights are too large for one message.
        """
        size = external_bytes(self.model)
        if size > PROTOBUF_LIMIT:
            raise SaveError(
                f"the model has {size / 2**30:.1f} GiB of weights, and a protobuf message must stay below 2 GiB",
                hint="use program.save(path), which puts the weights into a second file",
            )
        return ir.serde.serialize_model(self.model)

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        """Runs the model in ONNX Runtime.

        Args:
            *args: Positional arguments, as for the exported ``forward``.
            **kwargs: Keyword arguments, in any order.

        Returns:
            The graph outputs in order: a flat tuple, without the outputs that are None, complex outputs as real
            tensors with a last dimension of 2.

        Raises:
            ArgumentError: If the arguments do not fit the exported ones, or their sizes not the constraints.
            RuntimeSessionError: If ONNX Runtime can not load or run the model.
        """
        call = bind(self.exported_program, args, kwargs)
        self.limits.check(call.inputs)
        if self._session is None:
            self._session = Session(self.model)
        return self._session.run(call.inputs)

    def save(
        self,
        destination: str | os.PathLike[str] | BinaryIO,
        *,
        include_initializers: bool = True,
        keep_initializers_as_inputs: bool = False,
        external_data: bool | None = None,
    ) -> None:
        """Saves the model: tensor by tensor, and all or nothing.

        Args:
            destination: A path, or a file open for writing bytes such as ``io.BytesIO``.
            include_initializers: Whether the weights (parameters, persistent buffers and what is derived from them)
                are in the file. Shapes, scalars and constants of the graph always are.
            keep_initializers_as_inputs: Whether initializers are graph inputs, too.
            external_data: Whether tensors above 256 bytes go to the side file ``<name>.data``. None: only when they
                have more than 1.5 GiB together.

        Raises:
            SaveError: If the model can not be written; what was at the destination before is then still there.
        """
        saving.save(
            self.model,
            destination,
            include_initializers=include_initializers,
            keep_initializers_as_inputs=keep_initializers_as_inputs,
            external_data=external_data,
        )

    def verify(
        self,
        args: tuple[Any, ...] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        sizes: Literal["auto"] | Sequence[Mapping[str, int]] | None = None,
        rtol: float | None = None,
        atol: float | None = None,
    ) -> list[Row]:
        """Compares ONNX Runtime with eager torch; see ``fxonnx.verify``."""
        from ..verification import verify

        return verify(self, args, kwargs, sizes=sizes, rtol=rtol, atol=atol)

    def release(self) -> None:
        """Drops the ONNX Runtime session; the next call makes one of the model as it is then."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def __repr__(self) -> str:
        graph = self.model.graph
        return (
            f"ONNXProgram(opset {self.model.opset_imports.get('')}, {len(graph)} nodes, "
            f"{len(graph.initializers)} initializers, {_bytes(external_bytes(self.model))} of weights,\n"
            f"  inputs:  {_values(graph.inputs)}\n"
            f"  outputs: {_values(graph.outputs)})"
        )


def _values(values: Any) -> str:
    return ", ".join(_value(value) for value in values) or "none"


def _value(value: ir.Value) -> str:
    dtype = "?" if value.dtype is None else value.dtype.name.lower()
    if value.shape is None:
        return f"{value.name}: {dtype}"
    dims = ", ".join(str(dim) if isinstance(dim, int) else str(dim.value) for dim in value.shape)
    return f"{value.name}: {dtype}[{dims}]"


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
