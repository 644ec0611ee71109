"""Adapter files: other values for the weights that ``export(adapters=...)`` made graph inputs."""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from fxonnx_translations._builder.dtypes import to_torch_dtype
from fxonnx_translations._builder.initializers import TorchTensor, has_content

from .._paths import not_written, parse_json, path_of
from ..errors import ArgumentError, SaveError, did_you_mean, kind_of
from .atomic_file import AtomicFile
from .checkpoints import StoredTensor, Weights, read_weight_sources
from .saving import check_destination
from .session import to_ort_value
from .stateful import read_states
from .weights import WeightMap

__all__ = ["AdapterSource", "adapter_names", "adapter_values", "write_adapter"]

_CONFIG = "adapter_config.json"
_RANK_AXES = {"lora_A": 0, "lora_B": 1, "lora_embedding_A": 0, "lora_embedding_B": 1}
"""PEFT's names of the two factors, and the axis of each that has the rank as its size."""
_FACTORS_B = ("lora_B", "lora_embedding_B")
"""The factors that are multiplied by the scaling."""


@dataclass(frozen=True)
class AdapterSource:
    """The exported model, as far as adapters refer to it.

    Attributes:
        model: The ONNX model.
        weights: Its weight map.
        patterns: The patterns of the export.
        module: The exported module, if it is known.
    """

    model: ir.Model
    weights: WeightMap
    patterns: Sequence[str]
    module: torch.nn.Module | None

    def inputs(self) -> dict[str, ir.Value]:
        """FQN to graph input; tied weights have the same one."""
        names = adapter_names(self.model)
        return {
            fqn: self.model.graph.initializers[name]
            for name in names
            for fqn in self.weights.sources.get(name, (name,))
        }

    def scaling(self, fqn: str, adapter: str) -> float | None:
        """The factor by which a layer of the exported module multiplies the product of an adapter's two factors."""
        layer = _layer_of(fqn)
        if self.module is None or layer is None:
            return None
        try:
            found = getattr(self.module.get_submodule(layer), "scaling", None)
        except AttributeError:
            return None
        value = found.get(adapter) if isinstance(found, Mapping) else None
        return float(value) if isinstance(value, (int, float)) else None


@dataclass(frozen=True)
class _Given:
    """Tensors of an adapter.

    Attributes:
        tensors: Name to tensor.
        config: PEFT's configuration; None for a state_dict.
        origin: Their origin, for messages.
    """

    tensors: Mapping[str, torch.Tensor]
    config: Mapping[str, Any] | None = None
    origin: str = "the state_dict"


@dataclass(frozen=True)
class _Match:
    """An assignment of given tensors to the adapter weights of a model.

    Attributes:
        names: FQN to name of the given tensor.
        adapter: Name of the exported adapter, the component of FQNs that the given names lack.
        unknown: Names of given tensors that are not adapter weights of the model.
        missing: FQNs without a tensor.
    """

    names: Mapping[str, str]
    adapter: str | None = None
    unknown: Collection[str] = ()
    missing: Collection[str] = field(default=())


def adapter_names(model: ir.Model) -> tuple[str, ...]:
    """Names of the graph inputs that have default values and are not states."""
    states = {pair.initial for pair in read_states(model)}
    return tuple(
        str(value.name)
        for value in model.graph.inputs
        if str(value.name) in model.graph.initializers and value.name not in states
    )


def adapter_values(
    source: AdapterSource,
    weights: Weights | None,
    adapter: str | None,
    check: Callable[[Mapping[str, torch.Tensor]], None],
) -> dict[str, torch.Tensor]:
    """Compute the values of an adapter by graph input.

    Args:
        source: The exported model.
        weights: A directory that PEFT saved, a safetensors file or a state_dict; None for weights of the model.
        adapter: Name of an adapter of the exported PEFT model; None for the default values of the graph inputs.
        check: Raises an error for weights that the program does not accept, by FQN.

    Raises:
        ArgumentError: If the weights do not match the adapter weights of the model.
        SaveError: If the model has no values.
    """
    inputs = source.inputs()
    if not inputs:
        raise ArgumentError(
            "adapters", "the model has no adapter weights", hint='select them: export(..., adapters="*.lora_*")'
        )
    if adapter is not None:
        if weights is not None:
            raise ArgumentError(
                "adapter", "names an adapter of the exported model, but weights are given", hint="omit one of them"
            )
        return _named_adapter(source, inputs, adapter)
    if weights is None:
        return {name: _default_value(source.model.graph.initializers[name]) for name in adapter_names(source.model)}
    given = _read(weights)
    match = _matched(source, inputs, given)
    check(given.tensors)
    values: dict[str, torch.Tensor] = {}
    for fqn, name in match.names.items():
        tensor = given.tensors[name]
        if given.config is not None:
            tensor = _rescaled(tensor, _ratio_of_config(source, fqn, name, match.adapter, given), fqn)
            tensor = _padded(tensor, fqn, inputs[fqn])
        _set(values, inputs[fqn], tensor, f"{name!r} in {given.origin}")
    return values | _zeros(inputs[fqn] for fqn in match.missing)


def write_adapter(path: str | os.PathLike[str], values: Mapping[str, torch.Tensor]) -> None:
    """Write values of graph inputs to an adapter file of ONNX Runtime, atomically.

    Raises:
        SaveError: If the file cannot be written.
    """
    import onnxruntime

    destination = path_of(path, "path")
    check_destination(destination)
    adapter = onnxruntime.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    # ONNX Runtime does not hold references to the values before they are written.
    parameters = {name: to_ort_value(tensor.detach().cpu().contiguous()) for name, tensor in values.items()}
    adapter.set_parameters(parameters)
    try:
        with tempfile.TemporaryDirectory(prefix="fxonnx-") as directory:
            written = Path(directory) / "adapter"
            adapter.export_adapter(str(written))
            with AtomicFile(destination) as file:
                file.file.write(written.read_bytes())
                file.commit()
                file.remove_leftovers()
    except OSError as error:
        raise not_written(f"{path} cannot be written", destination, error) from error


def _default_value(value: ir.Value) -> torch.Tensor:
    tensor = value.const_value
    if not isinstance(tensor, TorchTensor) or not has_content(tensor.raw):
        raise SaveError(
            f"{value.name!r} has no values: the model was exported on the meta device or with fake tensors",
            hint="pass them: save_adapter(path, weights), or call apply_weights(state_dict)",
        )
    return tensor.raw.detach()


def _set(values: dict[str, torch.Tensor], graph_input: ir.Value, tensor: torch.Tensor, what: str) -> None:
    """Add the value of a graph input, in its dtype; tied weights must be equal."""
    name = str(graph_input.name)
    shape, dtype = _form(graph_input)
    if tuple(tensor.shape) != shape or (
        tensor.dtype != dtype and not (tensor.is_floating_point() and dtype.is_floating_point)
    ):
        raise ArgumentError(
            "weights",
            f"{what} is {tensor.dtype} of shape {list(tensor.shape)}, expected {dtype} of shape {list(shape)}",
            hint="export the model with an adapter of the largest rank; PEFT's directories of smaller rank are padded",
        )
    tensor = tensor.detach().to(dtype)
    if name in values and not torch.equal(values[name], tensor):
        raise ArgumentError("weights", f"{what} is tied to another weight in the model, but has other values")
    values[name] = tensor


def _zeros(graph_inputs: Iterable[ir.Value]) -> dict[str, torch.Tensor]:
    """The values of layers that an adapter leaves as they are."""
    forms = {str(value.name): _form(value) for value in graph_inputs}
    return {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in forms.items()}


def _form(value: ir.Value) -> tuple[tuple[int, ...], torch.dtype]:
    """The shape and dtype of the input for a weight."""
    return _shape(value), to_torch_dtype(value.dtype)  # type: ignore[arg-type]


def _shape(value: ir.Value) -> tuple[int, ...]:
    return tuple(int(size) for size in value.shape)  # type: ignore[arg-type, union-attr]


# ---- reading


def _read(weights: Weights) -> _Given:
    if not isinstance(weights, (str, os.PathLike)):
        tensors = {name: _loaded(tensor) for name, tensor in read_weight_sources(weights).items()}
        return _Given(tensors)
    path = Path(weights)
    tensors = {name: _loaded(tensor) for name, tensor in read_weight_sources(path).items()}
    config = (path if path.is_dir() else path.parent) / _CONFIG
    if not config.is_file():
        return _Given(tensors, origin=str(path))
    try:
        read = parse_json(config.read_bytes())
        kind = read["peft_type"]
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError("weights", f"{config} is not a configuration of PEFT: it has no peft_type") from error
    if kind != "LORA":
        raise ArgumentError(
            "weights", f"{config} has the type {kind!r}, not 'LORA'", hint="pass the state_dict of the exported weights"
        )
    return _Given(tensors, read, str(path))


def _loaded(tensor: Any) -> torch.Tensor:
    if isinstance(tensor, StoredTensor):
        return tensor.load()
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError("weights", f"expected a state_dict of tensors, it has {kind_of(tensor)}")
    return tensor


# ---- names


def _matched(source: AdapterSource, inputs: Mapping[str, ir.Value], given: _Given) -> _Match:
    """Assign the given tensors to the adapter weights.

    PEFT's files lack the name of the adapter in ``lora_A.<adapter>.weight``, and the exported module may be a wrapper
    of the one they were saved from, or a part of it.
    """
    fqns = list(inputs)
    common = set(fqns[0].split(".")).intersection(*(fqn.split(".") for fqn in fqns))
    components = [None, *(part for part in fqns[0].split(".") if part in common)]
    matches = [_match_without(fqns, given.tensors, component) for component in components]
    best = min(matches, key=lambda match: len(match.missing))
    unknown = _significant(source, given, best)
    # The configuration of PEFT tells an adapter of fewer layers from one that is incomplete.
    has_layers = given.config is not None and bool(best.names) and _are_layers(best.missing, best.names)
    if not unknown and (has_layers or not best.missing):
        return best
    problem = [f"missing {_listed(best.missing)}"] if best.missing else []
    problem += [f"{_listed(unknown)} {'is' if len(unknown) == 1 else 'are'} not among its inputs"] if unknown else []
    hint = did_you_mean(next(iter(unknown), ""), best.missing, "export a model with all weights that the adapters have")
    raise ArgumentError(
        "weights", f"{given.origin} does not match the adapter weights: {'; '.join(problem)}", hint=hint
    )


def _are_layers(missing: Collection[str], found: Collection[str]) -> bool:
    """Whether weights are whole layers; an adapter without a layer leaves it as it is."""
    return {_layer_of(fqn) for fqn in missing}.isdisjoint({_layer_of(fqn) for fqn in found})


def _match_without(fqns: Sequence[str], given: Collection[str], component: str | None) -> _Match:
    """Match names after removing a component of the FQNs, up to a prefix of either side."""
    short = {".".join(part for part in fqn.split(".") if part != component): fqn for fqn in fqns}
    best: dict[str, str] = {}
    for first in short:
        for name in given:
            if name == first or name.endswith(f".{first}"):
                prefix = name.removesuffix(first)
                found = {fqn: prefix + key for key, fqn in short.items() if prefix + key in given}
            elif first.endswith(f".{name}"):
                prefix = first.removesuffix(name)
                named = {fqn: key.removeprefix(prefix) for key, fqn in short.items()}
                found = {fqn: key for fqn, key in named.items() if key in given}
            else:
                continue
            if len(found) > len(best):
                best = found
        if best:
            break
    used = set(best.values())
    return _Match(
        best, component, [name for name in given if name not in used], [fqn for fqn in fqns if fqn not in best]
    )


def _significant(source: AdapterSource, given: _Given, match: _Match) -> list[str]:
    """The unmatched tensors without which the adapter would be another one."""
    if given.config is not None:
        return list(match.unknown)
    return [
        name
        for name in match.unknown
        if name not in source.weights.initializers and any(fnmatchcase(name, pattern) for pattern in source.patterns)
    ]


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, list(names)[:3])) + (f", ... ({len(names)})" if len(names) > 3 else "")


# ---- scaling and rank


def _layer_of(fqn: str) -> str | None:
    """The layer that a weight of PEFT belongs to, or None for other names."""
    parts = fqn.split(".")
    position = next((index for index, part in enumerate(parts) if part.startswith("lora_")), None)
    return None if position is None else ".".join(parts[:position])


def _of_adapter(fqn: str, before: str, after: str) -> str:
    """Replace the name of an adapter, which a module may have as well; PEFT's follows the factor."""
    parts, layer = fqn.split("."), _layer_of(fqn)
    first = 0 if layer is None else layer.count(".") + 1
    if len(parts) == first + 2 and parts[-1] in ("weight", "bias"):  # no name after the factor
        first = 0
    return ".".join([*parts[:first], *(after if part == before else part for part in parts[first:])])


def _factor(fqn: str) -> str | None:
    return next((part for part in fqn.split(".") if part in _RANK_AXES), None)


def _rescaled(tensor: torch.Tensor, ratio: float, fqn: str) -> torch.Tensor:
    """Multiply the second factor, so that the scaling of the exported model gives the adapter's."""
    return tensor * ratio if ratio != 1 and _factor(fqn) in _FACTORS_B else tensor


def _ratio_of_config(source: AdapterSource, fqn: str, name: str, adapter: str | None, given: _Given) -> float:
    """The scaling of an adapter in PEFT's format, relative to the exported model's."""
    config, layer = given.config or {}, _layer_of(fqn)
    if _factor(fqn) not in _FACTORS_B or layer is None:
        return 1.0
    exported = None if adapter is None else source.scaling(fqn, adapter)
    if exported is None:
        raise ArgumentError(
            "weights",
            f"the scaling of {layer!r} in the exported model is not known, so {given.origin} cannot be converted",
            hint="export the PEFT model, or pass the state_dict with values for the scaling of the exported model",
        )
    factors = [key for key in given.tensors if _layer_of(key) == _layer_of(name) and _factor(key) in _FACTORS_B]
    rank = next(given.tensors[key].shape[1] for key in factors if given.tensors[key].dim() > 1)
    alpha = config.get("lora_alpha", rank)
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", str(_layer_of(name))):
            alpha = value
            break
    return float(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)) / exported


def _padded(tensor: torch.Tensor, fqn: str, graph_input: ir.Value) -> torch.Tensor:
    """Pad the factors of a smaller rank with zeros, which add nothing to their product."""
    axis, shape = _RANK_AXES.get(_factor(fqn) or "", 0), _shape(graph_input)
    if _factor(fqn) is None or tensor.dim() != len(shape) or tensor.dim() < 2 or tensor.shape[axis] >= shape[axis]:
        return tensor
    padding = tensor.new_zeros([*tensor.shape[:axis], shape[axis] - tensor.shape[axis], *tensor.shape[axis + 1 :]])
    return torch.cat([tensor, padding], axis)


def _named_adapter(source: AdapterSource, inputs: Mapping[str, ir.Value], adapter: str) -> dict[str, torch.Tensor]:
    """The values of another adapter of the exported PEFT model."""
    if source.module is None:
        raise ArgumentError("adapter", "the exported module is not known", hint="pass the weights instead")
    state = source.module.state_dict()
    fqns = list(inputs)
    common = set(fqns[0].split(".")).intersection(*(fqn.split(".") for fqn in fqns))
    renamed = {
        exported: {fqn: _of_adapter(fqn, exported, adapter) for fqn in fqns}
        for exported in fqns[0].split(".")
        if exported in common and _of_adapter(fqns[0], exported, "") != fqns[0]
    }
    exported = max(renamed, key=lambda part: sum(name in state for name in renamed[part].values()), default="")
    names = {fqn: name for fqn, name in renamed.get(exported, {}).items() if name in state}
    missing = [fqn for fqn in fqns if fqn not in names]
    if not names or not _are_layers(missing, names):
        known = sorted({key for module in source.module.modules() for key in _scalings(module)})
        hint = did_you_mean(adapter, known, f"the adapters of the model are: {', '.join(known) or 'none'}")
        raise ArgumentError("adapter", f"the exported model has no adapter {adapter!r} with the same layers", hint=hint)
    others = [
        name
        for name in state
        if name not in names.values()
        and _of_adapter(name, adapter, "") != name
        and any(fnmatchcase(name, pattern) for pattern in source.patterns)
    ]
    if others:
        raise ArgumentError(
            "adapter",
            f"{adapter!r} has weights that are not inputs of the exported model: {_listed(others)}",
            hint="export the model with the adapter that has the most layers",
        )
    values: dict[str, torch.Tensor] = {}
    for fqn, name in names.items():
        before, after = source.scaling(fqn, exported), source.scaling(fqn, adapter)
        ratio = 1.0 if before is None or after is None else after / before
        tensor = _padded(_rescaled(state[name], ratio, fqn), fqn, inputs[fqn])
        _set(values, inputs[fqn], tensor, repr(name))
    return values | _zeros(inputs[fqn] for fqn in missing)


def _scalings(module: torch.nn.Module) -> Mapping[str, Any]:
    found = getattr(module, "scaling", None)
    return found if isinstance(found, Mapping) else {}
