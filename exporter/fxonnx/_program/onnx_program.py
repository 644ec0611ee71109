"""``ONNXProgram``, the result of an export."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NoReturn

import onnx
import onnx_ir as ir
import torch

from .._comparison import OutputComparison
from .._display import bytes_text
from .._lower.guards import renamed as guards_renamed
from .._lower.inlining import inlined
from .._lower.metadata import MetadataLevel
from .._public import public
from ..errors import SaveError
from . import saving, verification
from .adapters import AdapterSource, adapter_names, adapter_values, write_adapter
from .call_binding import unflatten_outputs
from .changes import optimize_model, rename_dims
from .checkpoints import Weights
from .external_data import REFERENCE, ExternalData, with_external_references
from .interface import GraphInterface, Sessions, described, html_summary
from .protobuf_layout import PROTOBUF_LIMIT, check_level, serialize, tensor_bytes
from .quantization import ProgramQuantization
from .record import ExportRecord
from .references import Model
from .session import Session, SessionFactory, compute_values, run_reference
from .stateful import StatefulSession
from .value_comparison import Comparison
from .weights import WeightMap, build_weight_map, check_weight_reads, replace_weights, temporary_weights

__all__ = ["ONNXProgram", "weights_of"]


_INSTEAD = MappingProxyType(
    {
        **dict.fromkeys(("run", "predict", "infer", "forward"), "program(*args, **kwargs)"),
        "check": "fxonnx.check(program.model)",
        "export": "program.save(path)",
        "SerializeToString": "program.model_proto.SerializeToString()",
        **dict.fromkeys(("onnx_model", "graph", "proto", "to_proto"), "program.model, or program.model_proto of onnx"),
    }
)
"""Members of other libraries' models to what an ONNXProgram has."""


@public
class ONNXProgram:
    """An exported model: the ONNX model and the record of its export.

    Args:
        model: The ONNX model.
        record: The record of its export.

    Attributes:
        model: The ``onnx_ir.Model``. After modifying it, call ``release``.
        record: Captured program, options, timings, constraints, assumptions, fusions, proof, ...
    """

    def __init__(self, model: ir.Model, record: ExportRecord) -> None:
        self.model = model
        self.record = record
        self._sessions = Sessions()
        self._weights: WeightMap | None = None
        self._applied: dict[str, torch.Tensor] = {}

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __getattr__(self, name: str) -> Any:
            """Raise an AttributeError that says where the member is."""
            hint = f"; it is {_INSTEAD[name]}" if name in _INSTEAD else ""
            raise AttributeError(f"'ONNXProgram' object has no attribute {name!r}{hint}", name=name, obj=self)

    def __copy__(self) -> ONNXProgram:
        """Another program, with the same tensors in memory: changes of one do not reach the other."""
        record, quantization = self.record, self.record.quantization
        if quantization is not None:
            record = replace(record, quantization=replace(quantization, float_model=quantization.float_model.clone()))
        other = ONNXProgram(self.model.clone(), record)
        other._sessions.factory = self._sessions.factory
        other._applied = dict(self._applied)
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> ONNXProgram:
        """As ``copy.copy``."""
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        """Raise an error: pickle is for neither captured programs nor functions that translate operators."""
        raise SaveError(
            "an ONNXProgram cannot be pickled: it holds the captured program and the model",
            hint="save the file, program.save(path), or send program.model_proto.SerializeToString() to a process",
        )

    @property
    def exported_program(self) -> torch.export.ExportedProgram:
        """The program as torch.export captured it."""
        return self.record.capture.exported_program

    @property
    def interface(self) -> GraphInterface:
        """The graph inputs and outputs: binding of arguments, states and adapters."""
        return GraphInterface(self.model, self.record, self._sessions, MappingProxyType(self._applied))

    @property
    def quantization(self) -> ProgramQuantization:
        """The program beside the model before the quantization."""
        return ProgramQuantization(self.interface)

    @property
    def model_proto(self) -> onnx.ModelProto:
        """The model as a protobuf message, created on each access with a copy of all weights.

        Raises:
            SaveError: If the weights are too large for one message or have no values.
        """
        size = tensor_bytes(self.model)
        if size > PROTOBUF_LIMIT:
            raise SaveError(
                f"the model has {size / 2**30:.1f} GiB of weights, and a protobuf message must stay below 2 GiB",
                hint="use program.save(path), which stores the weights as external data",
            )
        saving.check_values(value.const_value for value in self.model.graph.initializers.values())
        return serialize(self.model)

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model in ONNX Runtime.

        Args:
            *args: Positional arguments, as for the exported ``forward``.
            **kwargs: Keyword arguments, in any order.

        Returns:
            The graph outputs in order: a flat tuple, without outputs that are None, complex outputs as real tensors
            with a last dimension of 2, a list of tensors for each list of dynamic length. States come last; every call
            starts from the states at export.

        Raises:
            ArgumentError: If the arguments do not match the exported ones or their sizes violate a constraint, or
                their values take another branch than the example; see ``record.assumptions``.
            RuntimeSessionError: If ONNX Runtime cannot load or run the model.
        """
        inputs = self.interface.bind(args, kwargs)
        if self._sessions.session is None:
            self._sessions.session = Session(self.model, self._sessions.factory)
        return self._sessions.session.run(inputs)

    def call_reference(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model in onnx's reference implementation: slow, but with every dtype; otherwise like ``__call__``."""
        saving.check_values(value.const_value for value in self.model.graph.initializers.values())
        return run_reference(self.model, self.interface.bind(args, kwargs))

    def unflatten(self, outputs: Sequence[Any]) -> Any:
        """Arrange graph outputs in the structure that ``forward`` returns, including None and other constants.

        Args:
            outputs: The graph outputs of a call, with or without the states at the end.

        Raises:
            ArgumentError: If the number of outputs differs from the graph's.
        """
        extra = len(self.interface.states)
        own = len(self.model.graph.outputs) - extra
        return unflatten_outputs(self.exported_program, outputs[:own] if len(outputs) == own + extra else outputs)

    def compute_values(
        self, value_names: Sequence[str], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> tuple[Any, ...]:
        """Evaluate intermediate values of the model, given their names in the graph.

        Args:
            value_names: Names of graph inputs, initializers or node outputs of the main graph.
            args: Positional inputs.
            kwargs: Keyword inputs.

        Returns:
            The values, in the order of ``value_names``: tensors, and lists of tensors for sequences.

        Raises:
            ArgumentError: If a name is not the name of a value, or the inputs do not match the exported ones.
        """
        return compute_values(self.model, value_names, self.interface.bind(args, kwargs or {}), self._sessions.factory)

    def initialize_inference_session(self, initializer: SessionFactory | None = None) -> None:
        """Create the session that subsequent calls use.

        Args:
            initializer: Function that takes the serialized model, or the path of a model above 1.5 GiB, and returns an
                ``onnxruntime.InferenceSession``, for example with other execution providers or session options.
        """
        self.release()
        self._sessions.factory = initializer
        self._sessions.session = Session(self.model, initializer)

    def stateful_session(self) -> StatefulSession:
        """Create a session in which each call starts with the state that the previous call left.

        Raises:
            ArgumentError: If the program was not exported with ``state="io"`` or has no state.
            RuntimeSessionError: If ONNX Runtime cannot load the model.
        """
        return StatefulSession(self.model, self.interface.bind)

    @property
    def weights(self) -> WeightMap:
        """The mapping between FQNs of the state_dict and initializers."""
        if self._weights is None:
            self._weights = build_weight_map(self.model, self.exported_program)
        return self._weights

    def apply_weights(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Replace weights of the model; derived weights (a transpose, a folded batch norm) are recomputed.

        Args:
            state_dict: FQN to new weight, for all or some weights. Names that the model does not have cause a warning.

        Raises:
            ArgumentError: If a weight has another shape or dtype than at export, or tied weights have different values.
        """
        quantization = self.record.quantization
        copies = [] if quantization is None else [quantization.float_model]
        check = partial(self._check_reads, argument="state_dict")
        self._applied |= replace_weights(self.model, self.weights, state_dict, copies, check)
        self.release()

    def rename_axes(self, rename_mapping: Mapping[str | ir.SymbolicDim, str]) -> None:
        """Rename dims, including in expressions, constraints and metadata.

        Args:
            rename_mapping: Dim name or ``ir.SymbolicDim`` to new name. Names that no dim has are ignored, with a
                warning.

        Raises:
            ArgumentError: If a key is not a name or ``ir.SymbolicDim``, or a new name is empty, a number or taken.
        """
        names = rename_dims(self.model, rename_mapping)
        before = self.record.capture.limits
        limits = before.renamed(names)
        guards = guards_renamed(self.model, self.record.guards, before, limits)
        self.record = replace(self.record, capture=replace(self.record.capture, limits=limits), guards=guards)
        self.model.metadata_props.update(limits.metadata())
        self.release()

    def optimize(self) -> None:
        """Optimize the model with onnxscript's optimizer, if the outputs for the example inputs stay the same.

        Weights that the optimizer folds are no longer derived weights: ``apply_weights`` does not update them.
        """
        inputs = None
        if self.record.example_inputs is not None:
            args, kwargs = self.record.example_inputs
            inputs = self.interface.bind(args, kwargs)
        optimized = optimize_model(self.model, inputs)
        if optimized is not None:
            self.model = optimized
            self.release()

    def save(
        self,
        destination: str | os.PathLike[str] | BinaryIO,
        *,
        include_initializers: bool = True,
        keep_initializers_as_inputs: bool = False,
        external_data: ExternalData = None,
        weights: Weights | None = None,
        inline: bool = False,
        metadata: MetadataLevel | None = None,
    ) -> None:
        """Save the model atomically, one tensor at a time.

        Args:
            destination: A path, or a writable binary file such as ``io.BytesIO``. Of a link, the target is replaced.
            include_initializers: Whether to store the weights (parameters, persistent buffers and derived weights);
                they are graph inputs otherwise. Shapes, scalars and constants are always stored.
            keep_initializers_as_inputs: Whether initializers are also graph inputs.
            external_data: Whether to store tensors above 256 bytes as external data in ``<name>.data``. None: only if
                they exceed 1.5 GiB in total. "safetensors": in ``<name>.safetensors``. ``fxonnx.REFERENCE``: reference
                the safetensors files given as ``weights``, which must be in the directory of the model or below; only
                derived weights are stored in ``<name>.data``.
            weights: Weights to store instead of the program's: a safetensors file, the index file of a sharded
                checkpoint, a directory, a state_dict, or a list of these, in which later ones override earlier ones.
                Files are read one tensor at a time, and their floating-point numbers converted to the type of the
                weight in the model; the program itself is not modified.
            inline: Whether to store the flat graph of a model with functions.
            metadata: Provenance of nodes in the file, at most the export's, which is the default: "full", "names"
                (module scopes and operators, without FX nodes and stack traces) or "none".

        Raises:
            ArgumentError: If ``weights`` do not match the model, or it does not have the metadata.
            SaveError: If the model cannot be written; an existing file at the destination is then unchanged.
        """
        check_level(metadata, self.record.options.metadata)
        with ExitStack() as stack:
            if weights is not None:
                stack.enter_context(temporary_weights(self.model, self.weights, weights, self._check_reads))
            model = inlined(self.model) if inline else self.model
            if external_data == REFERENCE:
                model = with_external_references(model)
            saving.save(
                model,
                destination,
                include_initializers=include_initializers,
                keep_initializers_as_inputs=keep_initializers_as_inputs,
                external_data=external_data,
                metadata=metadata,
            )

    def save_adapter(
        self, path: str | os.PathLike[str], weights: Weights | None = None, *, adapter: str | None = None
    ) -> None:
        """Write an adapter file (``.onnx_adapter``) for ONNX Runtime's ``LoraAdapter`` and genai's ``Adapters``.

        Args:
            path: The file; an existing one is replaced atomically.
            weights: Values of all adapter weights: a directory saved by PEFT, a safetensors file or a state_dict. Names
                may lack a prefix and the name of the adapter, as in PEFT's files. The scaling of a PEFT directory is
                converted to the exported model's, and a smaller rank is padded with zeros; the values of a
                state_dict are stored as they are. By default, the default values of the program.
            adapter: Instead of ``weights``, the name of an adapter of the exported PEFT model.

        Raises:
            ArgumentError: If the program has no adapter weights, or the given weights do not match them.
            SaveError: If the file cannot be written, or the program has no values.
        """
        source = AdapterSource(self.model, self.weights, self.record.options.adapters, self.record.capture.source)
        write_adapter(path, adapter_values(source, weights, adapter, self._check_reads))

    def verify(
        self,
        args: tuple[Any, ...] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        model: Model | None = None,
        sizes: Literal["auto"] | Sequence[Mapping[str, int]] | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        locate: bool = False,
    ) -> list[OutputComparison]:
        """Compare ONNX Runtime with the model in eager torch; see ``fxonnx.verify``."""
        return verification.verify(self, args, kwargs, model=model, sizes=sizes, rtol=rtol, atol=atol, locate=locate)

    def compare(
        self,
        args: tuple[Any, ...] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        model: Model | None = None,
        sizes: Literal["auto"] | Sequence[Mapping[str, int]] | None = None,
        rtol: float | None = None,
        atol: float | None = None,
    ) -> Comparison:
        """Compare ONNX Runtime with the model, and find the first value that differs if an output does.

        If the captured program, run in PyTorch, differs from the model as well, the difference is in the capture, and
        ``Comparison.capture`` has these outputs. Where ONNX Runtime differs from the captured program, each operator
        of that is applied to the ONNX values of its inputs, so that errors of earlier operators do not count; in half
        precision, it is computed in float32. The values of fused operators are compared at their results, those in the
        bodies of loops and branches one iteration after the other.

        Args:
            args: Positional inputs; if ``kwargs`` is also None, the example inputs.
            kwargs: Keyword inputs.
            model: The model to compare with, as for ``fxonnx.verify``; by default the one that was exported.
            sizes: Sizes of the dynamic dims, as for ``fxonnx.verify``; the first ones with a difference are examined.
            rtol: Relative tolerance, as for ``fxonnx.verify``.
            atol: Absolute tolerance.

        Raises:
            ArgumentError: If inputs are missing or do not match the exported ones, or sizes violate the constraints.
            RuntimeSessionError: If ONNX Runtime cannot load or run the model.
        """
        return verification.compare_with_model(self, args, kwargs, model=model, sizes=sizes, rtol=rtol, atol=atol)

    def release(self) -> None:
        """Close the ONNX Runtime session; the next call creates one from the current model."""
        self._sessions.release()

    def _check_reads(self, given: Mapping[str, Any], argument: str = "weights") -> None:
        """Raise an ArgumentError for weights of which Python would read other values than at export."""
        program = self.exported_program
        current = {**program.constants, **program.state_dict, **self._applied}
        check_weight_reads(self.record.capture.weight_reads, current, given, argument)

    def _repr_html_(self) -> str:
        """The summary that notebooks show."""
        return html_summary(self.model, self.record.capture)

    def __repr__(self) -> str:
        graph = self.model.graph
        functions = f"{len(self.model.functions)} functions, " if self.model.functions else ""
        adapters = frozenset(adapter_names(self.model))
        more = f", {len(adapters)} adapter weights" if adapters else ""
        return (
            f"ONNXProgram(opset {self.model.opset_imports.get('')}, {len(graph)} nodes, {functions}"
            f"{len(graph.initializers)} initializers, {bytes_text(tensor_bytes(self.model))} of weights,\n"
            f"  inputs:  {described(value for value in graph.inputs if value.name not in adapters)}{more}\n"
            f"  outputs: {described(graph.outputs)})"
        )


@public
def weights_of(program: ONNXProgram) -> WeightMap:
    """Return the mapping between FQNs of the state_dict and initializers of a program."""
    return program.weights
