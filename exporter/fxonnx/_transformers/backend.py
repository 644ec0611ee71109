"""The backend of ``transformers.exporters``: its exporter, its configuration and its runner.

The module imports transformers, so that only ``register`` imports it.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor
from transformers.exporters.base import ExportedModel, HfExporter
from transformers.exporters.configs import ExportConfigMixin
from transformers.exporters.exporter_dynamo import (
    patch_model_config,
    register_cache_pytrees_for_model,
    reset_model_state,
)
from transformers.exporters.metadata import ExportMetadata, build_export_metadata, record_output_structure
from transformers.exporters.runners.runner_onnx import OnnxModelRunner
from transformers.exporters.utils import decompose_multimodal, is_multimodal, prepare_for_export

from .. import export
from .core import COUNTERS, flatten_objects, pytree
from .parts import with_forward

__all__ = ["FORMAT", "FxonnxConfig", "FxonnxExporter", "FxonnxRunner", "save_with_shared_weights"]

FORMAT = "fxonnx"
_NO_WORD = re.compile(r"[^a-zA-Z0-9]")


@dataclass
class FxonnxConfig(ExportConfigMixin):
    """Configuration of an export.

    Attributes:
        export_format: "fxonnx".
        dynamic: Whether every size of the inputs is dynamic that the model does not fix.
        dynamic_shapes: The dynamic dims, as for ``fxonnx.export``, instead of ``dynamic``.
        opset_version: Target opset; see ``fxonnx.export``.
        target: Runtime whose kernels decide what is fused; see ``fxonnx.export``.
        verify: Whether to compare ONNX Runtime with the model, and to raise an error if they differ.
        quantizer: A quantizer of transformers for ONNX graphs, such as ``OnnxRuntimeQuantizer``.
    """

    export_format: str = FORMAT
    dynamic: bool = False
    dynamic_shapes: Any = None
    opset_version: int | None = None
    target: Any = None
    verify: bool = False
    quantizer: Any = None

    def __post_init__(self) -> None:
        if self.quantizer is not None and self.quantizer.quantizes_fx_graph:
            name = type(self.quantizer).__name__
            raise ValueError(
                f"FxonnxConfig: quantizer: {name} quantizes graphs of torch.export; pass an OnnxRuntimeQuantizer, "
                "or a model that torchao has quantized"
            )


class FxonnxExporter(HfExporter):
    """Export models of transformers to ONNX with ``fxonnx.export``.

    Inputs and outputs have the paths of their tensors as names, caches those of optimum: ``past_key_values.0.key`` and
    ``present.0.key``.
    """

    export_format = FORMAT
    config_class = FxonnxConfig
    program_suffix = ".onnx"
    required_packages = ["torch", "onnx", "onnxruntime"]  # noqa: RUF012 - declared by the base class

    def export_program(
        self, model: Any, sample_inputs: Mapping[str, Any], config: Any
    ) -> tuple[ir.Model, ExportMetadata]:
        """Export one graph.

        Args:
            model: A model of transformers, or a part of one.
            sample_inputs: Keyword arguments of ``forward``; not changed.
            config: A ``FxonnxConfig``.

        Returns:
            The graph, and the structure of its inputs and outputs for ``FxonnxRunner``.

        Raises:
            ExportError: If the model cannot be exported.
        """
        model, prepared, flags = prepare_for_export(model, copy.deepcopy(dict(sample_inputs)))
        _remove_forwards_of_instances(model)
        # Without the values that transformers computes from them for exporters that cannot capture this.
        inputs = {name: value for name, value in prepared.items() if name in sample_inputs}
        register_cache_pytrees_for_model(model)
        with torch.no_grad(), reset_model_state(model), patch_model_config(model, flags), _evaluated(model):
            returned = model(**copy.deepcopy(inputs))
            names = _Outputs.of(returned)
            shapes = config.dynamic_shapes
            if config.dynamic and shapes is None:
                shapes = {name: _all_dynamic(value) for name, value in flatten_objects(inputs).items()}
            program = export(
                with_forward(model, _named_forward(model, names)),
                kwargs=copy.deepcopy(inputs),
                output_names=[*names.leaves, *names.counters],
                dynamic_shapes=shapes,
                opset_version=config.opset_version,
                target=config.target,
                verify=config.verify,
            )
        graph = program.model
        _name_inputs(graph, (name for name, _ in _named_leaves(inputs)))
        if config.quantizer is not None:
            tensors = {name: torch.as_tensor(value) for name, value in _named_leaves(inputs)}
            graph = config.quantizer.quantize(graph, tensors, config.export_format)
        metadata = build_export_metadata(model, inputs, program.exported_program, self.required_packages)
        metadata.in_spec = None  # the names of the graph inputs suffice
        record_output_structure(metadata, pytree.tree_map_only(torch.SymInt, int, returned))
        return graph, metadata

    def export_for_generation(
        self, model: Any, sample_inputs: Mapping[str, Any], config: Any, **options: Any
    ) -> ExportedModel:
        """Export the parts of a generating model, one graph each.

        Args:
            model: A model with ``generate``.
            sample_inputs: Keyword arguments of ``generate``.
            config: The configuration of all parts, or a dict by the names of parts.
            options: ``generation_config`` and ``multi_token_decode``, as transformers' exporters have them.

        Returns:
            The parts that transformers finds, and for models of several modalities those that compute
            ``inputs_embeds``: "embed_tokens" and the encoders, which ``generate`` calls before the others.
        """
        exported = super().export_for_generation(model, dict(sample_inputs), config, **options)
        for name, (part, inputs) in _parts_before_decoder(model, sample_inputs).items():
            if name not in exported.components:
                chosen = config[name] if isinstance(config, dict) else config
                exported.components[name] = self._export_component(part, inputs, chosen)
        return exported

    @classmethod
    def save_program(cls, program: ir.Model, path: str | Path) -> None:
        """Write a graph, and beside it the weights that no other graph in the directory has.

        Args:
            program: The graph.
            path: File of the graph; the weights are in the file with the suffix ``.data``.
        """
        save_with_shared_weights(program, Path(path))

    @classmethod
    def load_program(cls, path: str | Path) -> ir.Model:
        """Read a graph; the weights stay in their files.

        Args:
            path: File of the graph.
        """
        program = ir.load(str(path))
        program.meta["path"] = str(path)  # the runner lets ONNX Runtime read the weights
        return program

    @classmethod
    def program_files(cls, filename: str) -> list[str]:
        """The files of a graph.

        Args:
            filename: File of the graph.
        """
        return [filename, f"{filename}.data"]


class FxonnxRunner(OnnxModelRunner):
    """Run an exported graph in ONNX Runtime, with the inputs and outputs of the model."""

    def __call__(self, share_inputs: bool = True, share_outputs: bool = False, **kwargs: Any) -> Any:
        """Run the graph.

        Args:
            share_inputs: Has no effect: ONNX Runtime reads inputs in place.
            share_outputs: Whether the outputs of a CUDA graph may be overwritten by the next call.
            kwargs: The inputs of the model.

        Returns:
            The result of the model.
        """
        tensors = {name: torch.as_tensor(value) for name, value in _named_leaves(kwargs)}
        return super().__call__(share_inputs, share_outputs, **tensors)

    def unflatten(self, outputs: list[Tensor]) -> Any:
        """Build the result of the model.

        Args:
            outputs: The outputs of the graph.
        """
        count = self.out_spec.num_leaves - len(self.out_constants)
        result = super().unflatten(outputs[:count])
        names = [value.name for value in self.session.get_outputs()]
        for name, value in zip(names[count:], outputs[count:], strict=True):
            _set_counter(result, name.split("."), int(value))
        return result


def _remove_forwards_of_instances(model: torch.nn.Module) -> None:
    """Delete the attributes ``forward`` that transformers leaves in modules: methods of their classes, which patches of
    the classes do not replace.
    """
    for module in model.modules():
        own = vars(module).get("forward")
        if getattr(own, "__func__", None) is type(module).forward:
            del module.forward


def _parts_before_decoder(model: Any, inputs: Mapping[str, Any]) -> dict[str, tuple[Any, dict[str, Any]]]:
    """The parts of a model of several modalities by name, each with its inputs; none for other models."""
    if not is_multimodal(model):
        return {}
    accepted = inspect.signature(model.forward).parameters
    given = {name: value for name, value in inputs.items() if name in accepted}
    parts = {"embed_tokens": (model.get_input_embeddings(), {"input": inputs["input_ids"]})}
    return parts | dict(decompose_multimodal(model, given))


@dataclass(frozen=True)
class _Outputs:
    """Names of the outputs of a graph.

    Attributes:
        leaves: Names of the tensors, in the order of torch's pytree.
        counters: Names of the token counters of caches, which torch's pytree does not have.
    """

    leaves: list[str]
    counters: list[str]

    @classmethod
    def of(cls, returned: Any) -> _Outputs:
        """The names for the outputs of an eager call."""
        parts = list(_named_leaves(returned))
        names = {id(value): name for name, value in reversed(parts)}
        leaves: list[str] = []
        for leaf in pytree.tree_leaves(returned):
            if isinstance(leaf, Tensor):
                name = _present(names.get(id(leaf), "")) or "output"
                leaves.append(name if name not in leaves else f"{name}.{len(leaves)}")
        return cls(leaves, [_present(name) for name, value in parts if not isinstance(value, Tensor)])


def _present(name: str) -> str:
    """The name of a part of a cache as an output."""
    first, dot, rest = name.partition(".")
    return f"present{dot}{rest}" if first in ("past_key_values", "cache_params") else name


def _named_forward(model: Any, names: _Outputs) -> Any:
    def forward(**inputs: Any) -> dict[str, Any]:
        returned = model(**inputs)
        tensors = [leaf for leaf in pytree.tree_leaves(returned) if isinstance(leaf, Tensor)]
        counters = [value for _, value in _named_leaves(returned) if not isinstance(value, Tensor)]
        found = dict(zip(names.leaves, tensors, strict=True))
        return found | dict(zip(names.counters, counters, strict=True))

    return forward


def _named_leaves(tree: Any) -> Iterator[tuple[str, Tensor | int | torch.SymInt]]:
    """Path and value of every tensor, and of every token counter of a cache."""
    for path, value in pytree.tree_leaves_with_path(flatten_objects(tree)):
        name = ".".join(map(_step, path))
        is_counter = name.rpartition(".")[2] in COUNTERS and isinstance(value, int | torch.SymInt)
        if isinstance(value, Tensor) or is_counter:
            yield name, value


def _step(entry: Any) -> str:
    if isinstance(entry, pytree.SequenceKey):
        return str(entry.idx)
    return str(entry.key if isinstance(entry, pytree.MappingKey) else entry.name)


def _all_dynamic(tree: Any) -> Any:
    """Specs of an input in which every axis is dynamic that the model does not fix."""
    if isinstance(tree, Tensor):
        return dict.fromkeys(range(tree.dim()), torch.export.Dim.AUTO)
    if isinstance(tree, Mapping):
        return {name: spec for name, value in tree.items() if (spec := _all_dynamic(value))}
    return [_all_dynamic(value) for value in tree] if isinstance(tree, list | tuple) else None


def _name_inputs(graph: ir.Model, paths: Iterable[str]) -> None:
    """Name the inputs of a graph by their paths; torch joins the steps of a path in a list or a dict by underscores."""
    by_name = {_NO_WORD.sub("_", path).lower(): path for path in paths}
    for value in graph.graph.inputs:
        value.name = by_name.get(_NO_WORD.sub("_", value.name or "").lower(), value.name)


@contextmanager
def _evaluated(model: torch.nn.Module) -> Iterator[None]:
    """Inside the context the model is in evaluation mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _set_counter(result: Any, path: list[str], value: int) -> None:
    """Set a token counter of a cache; steps that are numbers are layers."""
    first, *steps, name = path
    owner = getattr(result, "past_key_values" if first == "present" else first)
    for step in steps:
        owner = owner.layers[int(step)] if step.isdigit() else getattr(owner, step)
    setattr(owner, name, value)


_LEAST_BYTES = 1024
"""Smaller weights are stored in the graph."""
_END = 256
"""Bytes at both ends by which weights are found before they are compared."""


def save_with_shared_weights(model: ir.Model, path: Path) -> None:
    """Save a graph with external data; weights that another graph in the directory stores are references to it.

    Args:
        model: The graph; not changed.
        path: File of the graph. The weights are in the file with the suffix ``.data``, which may be empty.
    """
    values = [value for graph in model.graphs() for value in graph.initializers.values()]
    originals = {value: value.const_value for value in values}
    stored = _stored_weights(path)
    try:
        new: list[ir.Value] = []
        for value in values:
            tensor = value.const_value
            if tensor is None or tensor.nbytes < _LEAST_BYTES:
                continue
            data = tensor.tobytes()
            same = next((each for each in stored.get(_key(tensor, data), ()) if each.tobytes() == data), None)
            if same is None:
                new.append(value)
            else:
                value.const_value = _reference(same, tensor)
        tensors = [value.const_value for value in new if value.const_value is not None]
        weights = f"{path.name}.data"
        (path.parent / weights).write_bytes(b"")
        made = ir.external_data.convert_tensors_to_external(tensors, path.parent, weights) if tensors else []
        for value, external in zip(new, made, strict=True):
            value.const_value = external
        ir.save(model, str(path))
    finally:
        for value, tensor in originals.items():
            value.const_value = tensor


_Key: TypeAlias = tuple[ir.DataType, tuple[int, ...], bytes, bytes]


def _key(tensor: ir.TensorProtocol, data: Any) -> _Key:
    """Element type, shape, and the first and last bytes."""
    return tensor.dtype, tuple(tensor.shape.numpy()), bytes(data[:_END]), bytes(data[-_END:])


def _stored_weights(path: Path) -> dict[_Key, list[ir.ExternalTensor]]:
    """The weights that other graphs in the directory store in files of their own."""
    found: dict[_Key, list[ir.ExternalTensor]] = {}
    for other in sorted(path.parent.glob("*.onnx")):
        for graph in ir.load(str(other)).graphs() if other.name != path.name else ():
            for value in graph.initializers.values():
                tensor = value.const_value
                if isinstance(tensor, ir.ExternalTensor):
                    key = _key(tensor, tensor.numpy().reshape(-1).view(np.uint8))
                    found.setdefault(key, []).append(tensor)
    return found


def _reference(stored: ir.ExternalTensor, tensor: ir.TensorProtocol) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        stored.location,
        stored.offset,
        stored.length,
        stored.dtype,
        shape=stored.shape,
        name=tensor.name or "",
        base_dir=stored.base_dir,
    )
