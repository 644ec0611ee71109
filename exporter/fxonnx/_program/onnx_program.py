"""``ONNXProgram``: what ``export`` returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import MappingProxyType
from typing import Any, BinaryIO, Literal

import onnx
import onnx_ir as ir
import torch

from .._capture import Capture
from .._capture.constraints.constraint import Constraint
from .._comparison import Row
from .._options import Options
from ..errors import SaveError
from . import saving, verification
from .call_binding import bind_call, check_counted, unflatten_outputs
from .checkpoints import Weights
from .external_data import REFERENCE, ExternalData
from .external_references import with_external_references
from .inspection import compute_values, run_reference
from .onnxscript_optimizer import optimize_model
from .protobuf_layout import PROTOBUF_LIMIT, external_bytes, serialize
from .rename_dims import rename_dims
from .session import Session, SessionFactory
from .stateful import StatefulSession, StatePair, read_states
from .weights import WeightMap, read_weights, replace_weights, temporary_weights

__all__ = ["ONNXProgram", "weights_of"]


class ONNXProgram:
    """An exported model.

    Args:
        model: The model.
        capture: The captured program, its example inputs and constraints.
        options: The options of the export.
        timings: Stage name to seconds.
        patterns: Name of each fusion pattern to its number of matches.

    Attributes:
        model: The ``onnx_ir.Model``; it may be changed, call ``release`` afterwards.
        capture: The captured program, its example inputs and constraints.
        options: The options of the export.
        patterns: Name of each fusion pattern to its number of matches.
    """

    def __init__(
        self,
        model: ir.Model,
        capture: Capture,
        options: Options | None = None,
        timings: Mapping[str, float] = MappingProxyType({}),
        *,
        patterns: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.model = model
        self.capture = capture
        self.options = Options() if options is None else options
        self.patterns = MappingProxyType(dict(patterns))
        self._timings = timings
        self._session: Session | None = None
        self._initializer: SessionFactory | None = None
        self._weights: WeightMap | None = None
        self._applied: dict[str, torch.Tensor] = {}

    @property
    def exported_program(self) -> torch.export.ExportedProgram:
        """The program as torch.export captured it."""
        return self.capture.exported_program

    @property
    def frozen_arguments(self) -> Mapping[str, Any]:
        """Label to value of the numbers and strings that are constants of the model."""
        return MappingProxyType(dict(self.capture.frozen_arguments))

    @property
    def forward(self) -> Callable[..., Any] | None:
        """The ``forward`` of the exported module; None if an ``ExportedProgram`` was exported."""
        return None if self.capture.source is None else self.capture.source.forward

    @property
    def timings(self) -> Mapping[str, float]:
        """Stage name to wall-clock seconds, in the order of the stages."""
        return MappingProxyType(dict(self._timings))

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The conditions on the sizes of the inputs: what the model needs, and the ranges in ``dynamic_shapes``.

        They are also in the metadata of the model, as JSON under ``pkg.fxonnx.constraints``, together with the sizes
        that must not be 0.
        """
        return self.capture.limits.constraints

    @property
    def example_inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The positional and keyword inputs it was exported with, if they are known."""
        examples: tuple[tuple[Any, ...], dict[str, Any]] | None = self.exported_program.example_inputs
        return examples

    @property
    def model_proto(self) -> onnx.ModelProto:
        """The model as a protobuf message, made anew with a copy of all weights.

        Raises:
            SaveError: If the weights are too large for one message, or have no values.
        """
        size = external_bytes(self.model)
        if size > PROTOBUF_LIMIT:
            raise SaveError(
                f"the model has {size / 2**30:.1f} GiB of weights, and a protobuf message must stay below 2 GiB",
                hint="use program.save(path), which puts the weights into a second file",
            )
        saving.check_values(value.const_value for value in self.model.graph.initializers.values())
        return serialize(self.model)

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        """Runs the model in ONNX Runtime.

        Args:
            *args: Positional arguments, as for the exported ``forward``.
            **kwargs: Keyword arguments, in any order.

        Returns:
            The graph outputs in order: a flat tuple, without the outputs that are None, complex outputs as real
            tensors with a last dimension of 2. States come last; each call begins with those at export.

        Raises:
            ArgumentError: If the arguments do not fit the exported ones, or their sizes not the constraints.
            RuntimeSessionError: If ONNX Runtime can not load or run the model.
        """
        inputs = self.graph_inputs(args, kwargs)
        if self._session is None:
            self._session = Session(self.model, self._initializer)
        return self._session.run(inputs)

    def graph_inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of a call for the graph inputs, in their order; those of states are not among them.

        Args:
            args: Positional arguments, as for the exported ``forward``.
            kwargs: Keyword arguments, in any order.

        Raises:
            ArgumentError: If the arguments do not fit the exported ones, or their sizes not the constraints.
        """
        call = bind_call(self.exported_program, args, kwargs, self.forward)
        self.capture.limits.check(call.inputs)
        check_counted(call, self.capture.counted)
        return call.inputs

    def call_reference(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        """Runs the model in onnx's reference implementation, which is slow and has every dtype; as a call otherwise."""
        saving.check_values(value.const_value for value in self.model.graph.initializers.values())
        return run_reference(self.model, self.graph_inputs(args, kwargs))

    def unflatten(self, outputs: Sequence[torch.Tensor]) -> Any:
        """Graph outputs in the structure that the model returns, with its None and other constants in their places.

        Args:
            outputs: What a call returned, with or without the states behind.

        Raises:
            ArgumentError: If there are more or fewer than the graph has.
        """
        own = len(self.model.graph.outputs) - len(self.states)
        return unflatten_outputs(
            self.exported_program, outputs[:own] if len(outputs) == own + len(self.states) else outputs
        )

    def compute_values(
        self, value_names: Sequence[str], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Computes values inside of the model, by the names that they have in the graph.

        Args:
            value_names: Graph inputs, initializers or outputs of nodes of the main graph.
            args: Positional inputs.
            kwargs: Keyword inputs.

        Returns:
            The values, in the order of their names.

        Raises:
            ArgumentError: If there is no such value, or the inputs do not fit.
        """
        return compute_values(self.model, value_names, self.graph_inputs(args, kwargs or {}), self._initializer)

    def initialize_inference_session(self, initializer: SessionFactory | None = None) -> None:
        """Makes the session that the next calls use.

        Args:
            initializer: Takes the serialized model, or the path of one above 1.5 GiB, and returns an
                ``onnxruntime.InferenceSession``, with other providers or options for example.
        """
        self.release()
        self._initializer = initializer
        self._session = Session(self.model, initializer)

    @property
    def states(self) -> tuple[StatePair, ...]:
        """What forward writes to, with its graph inputs and outputs, if it was exported with ``state``."""
        return read_states(self.model)

    def stateful_session(self) -> StatefulSession:
        """A session whose calls go on from the state that the call before left.

        Raises:
            ArgumentError: If the program was not exported with ``state="io"``, or has no state.
            RuntimeSessionError: If ONNX Runtime can not load the model.
        """
        return StatefulSession(self.model, self.graph_inputs)

    @property
    def weights(self) -> WeightMap:
        """Names of the weights in the state_dict and in the model."""
        if self._weights is None:
            self._weights = read_weights(self.model, self.exported_program)
        return self._weights

    @property
    def applied_weights(self) -> Mapping[str, torch.Tensor]:
        """The weights that ``apply_weights`` put in the place of the model's."""
        return MappingProxyType(self._applied)

    def apply_weights(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Puts other weights in the place of the model's, by their names in the state_dict.

        What is computed from them (a transpose, a folded batch norm) is computed anew.

        Args:
            state_dict: All weights or some. A name that the model does not have is a warning.

        Raises:
            ArgumentError: If a weight has another shape or dtype than at export, or tied weights are not equal.
        """
        self._applied |= replace_weights(self.model, self.weights, state_dict)
        self.release()

    def rename_axes(self, rename_mapping: Mapping[str | ir.SymbolicDim, str]) -> None:
        """Gives dims other names, also in expressions, in the constraints and in the metadata.

        Args:
            rename_mapping: Name, or ``ir.SymbolicDim``, to new name. Names that no dim has are left out.

        Raises:
            ArgumentError: If a key is neither, or a new name is empty or that of another dim.
        """
        names = rename_dims(self.model, rename_mapping)
        self.capture = replace(self.capture, limits=self.capture.limits.renamed(names))
        self.model.metadata_props.update(self.capture.limits.metadata())
        self.release()

    def optimize(self) -> None:
        """Runs onnxscript's optimizer on the model, and keeps the result if it computes the same on the example inputs.

        The weights are then those of the model as it is now: what the optimizer folded has no recipe any more.
        """
        inputs = None
        if self.example_inputs is not None:
            args, kwargs = self.example_inputs
            inputs = self.graph_inputs(args, kwargs)
        better = optimize_model(self.model, inputs)
        if better is not None:
            self.model = better
            self.release()

    def save(
        self,
        destination: str | os.PathLike[str] | BinaryIO,
        *,
        include_initializers: bool = True,
        keep_initializers_as_inputs: bool = False,
        external_data: ExternalData = None,
        weights: Weights | None = None,
    ) -> None:
        """Saves the model: tensor by tensor, and all or nothing.

        Args:
            destination: A path, or a file open for writing bytes such as ``io.BytesIO``.
            include_initializers: Whether the weights (parameters, persistent buffers and what is derived from them)
                are in the file. Shapes, scalars and constants of the graph always are.
            keep_initializers_as_inputs: Whether initializers are graph inputs, too.
            external_data: Whether tensors above 256 bytes go to the side file ``<name>.data``. None: only when they
                have more than 1.5 GiB together. "safetensors": to ``<name>.safetensors``. ``fxonnx.REFERENCE``: the
                model points into the safetensors files given as ``weights``, which must be in its directory or below;
                only what is computed from them goes to ``<name>.data``.
            weights: Values of the weights in the place of the program's: a safetensors file, the index of several, a
                directory of them, a state_dict, or a list of these, of which later ones win. Files are read tensor by
                tensor as they are written; the program stays as it is.

        Raises:
            ArgumentError: If ``weights`` do not fit the model.
            SaveError: If the model can not be written; what was at the destination before is then still there.
        """
        with ExitStack() as stack:
            if weights is not None:
                stack.enter_context(temporary_weights(self.model, self.weights, weights))
            model = with_external_references(self.model) if external_data == REFERENCE else self.model
            saving.save(
                model,
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
        return verification.verify(self, args, kwargs, sizes=sizes, rtol=rtol, atol=atol)

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


def weights_of(program: ONNXProgram) -> WeightMap:
    """The mapping between names in the state_dict of the model and initializers of the program."""
    return program.weights


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
