"""Mapping between the state_dict and initializers, and replacement of weights."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import torch
from torch.onnx.errors import OnnxExporterWarning

from fxonnx_translations._builder.dtypes import from_torch, to_torch_dtype
from fxonnx_translations._builder.initializers import (
    DerivedTensor,
    TorchTensor,
    derive,
    has_content,
    sources_of,
    storage_key,
    values_of,
)

from .._capture.data_dependence.weight_reads import WeightReads
from .._extensions import add_on
from .._inner_tensors import unwrapped
from .._lower.metadata import relative_file
from .._warnings import warn_user
from ..errors import ArgumentError, did_you_mean, kind_of
from .checkpoints import StoredWeight, Weights, read_weight_sources

__all__ = [
    "WeightMap",
    "build_weight_map",
    "check_weight_reads",
    "reads_metadata",
    "replace_weights",
    "temporary_weights",
]


@dataclass(frozen=True)
class WeightMap:
    """The mapping between FQNs of the state_dict and initializers.

    Attributes:
        initializers: FQN to the initializers that are or are derived from the weight. Tied weights have the same ones;
            a weight that the model does not use has none.
        sources: Initializer name to the FQNs of the weights that it is or is derived from.
        stored: FQN to the name of the tensor in the model that has the weight's values.
        transposed: As ``stored``, for matrices that share the storage of a tensor as its transpose.
    """

    initializers: Mapping[str, tuple[str, ...]]
    sources: Mapping[str, tuple[str, ...]]
    stored: Mapping[str, str]
    transposed: Mapping[str, str] = field(default_factory=dict)


def build_weight_map(model: ir.Model, exported_program: torch.export.ExportedProgram) -> WeightMap:
    """Match initializers with weights of the state_dict by their storages."""
    fqns_by_storage: dict[Any, list[str]] = {}
    fqns_by_transposed_storage: dict[Any, list[str]] = {}
    for fqn, tensor in _weights(exported_program):
        fqns_by_storage.setdefault(storage_key(tensor, fqn), []).append(fqn)
        if tensor.dim() == 2:
            fqns_by_transposed_storage.setdefault(storage_key(tensor.t(), fqn), []).append(fqn)
    initializers: dict[str, list[str]] = {fqn: [] for fqn, _ in _weights(exported_program)}
    sources: dict[str, tuple[str, ...]] = {}
    stored: dict[str, str] = {}
    transposed: dict[str, str] = {}
    for value in model.graph.initializers.values():
        found: list[str] = []
        for source in sources_of(value.const_value):
            key = storage_key(source.raw, str(source.name))
            tied, transposed_to = fqns_by_storage.get(key, []), fqns_by_transposed_storage.get(key, [])
            stored.update(dict.fromkeys(tied, str(source.name)))
            transposed.update(dict.fromkeys(transposed_to, str(source.name)))
            found += [*tied, *transposed_to]
        if found:
            name = str(value.name)
            sources[name] = tuple(dict.fromkeys(found))
            for fqn in sources[name]:
                initializers[fqn].append(name)
    initializers_of = {fqn: tuple(names) for fqn, names in initializers.items()}
    return WeightMap(
        initializers_of,
        sources,
        stored,
        {name: stored_name for name, stored_name in transposed.items() if name not in stored},
    )


def _weights(exported_program: torch.export.ExportedProgram) -> Iterator[tuple[str, torch.Tensor]]:
    yield from exported_program.state_dict.items()
    for name in exported_program.graph_signature.non_persistent_buffers:
        buffer = exported_program.constants.get(name)
        if isinstance(buffer, torch.Tensor):
            yield name, buffer


def replace_weights(
    model: ir.Model,
    weight_map: WeightMap,
    state_dict: Mapping[str, torch.Tensor],
    copies: Collection[ir.Model] = (),
    check: Callable[[Mapping[str, torch.Tensor]], None] = lambda _: None,
) -> dict[str, torch.Tensor]:
    """Replace weights of a model and recompute the derived weights.

    Args:
        model: The model; it is modified only if all weights are valid.
        weight_map: The weight map of the model.
        state_dict: FQN to new weight. Names that the model does not have cause a warning.
        copies: Further models with the same weights, which are replaced as well.
        check: Raises an error for weights that the program does not accept, by FQN.

    Returns:
        The applied weights, including those tied to them, by FQN.

    Raises:
        ArgumentError: If a weight has another shape or dtype, or tied weights have different values.
    """
    if not isinstance(state_dict, Mapping):
        hint = "pass model.state_dict()"
        raise ArgumentError("state_dict", f"expected a dict of tensors by name, got {kind_of(state_dict)}", hint=hint)
    current = _current_weights(model)
    new: dict[str, TorchTensor] = {}
    applied: dict[str, torch.Tensor] = {}
    for name, tensor in unwrapped(state_dict).items():
        if name not in weight_map.initializers:
            text = f"Weight {name!r} not found in the model. Skipped applying."
            hint = did_you_mean(name, weight_map.initializers)
            warn_user(f"{text}\nhint: {hint}" if hint else text, OnnxExporterWarning)
            continue
        stored = weight_map.stored.get(name, weight_map.transposed.get(name))
        if stored is None:
            applied[name] = tensor
            continue
        if name in weight_map.transposed and isinstance(tensor, torch.Tensor):
            tensor = tensor.t()
        real = _checked_weight(name, tensor, current[stored])
        if stored in new and not torch.equal(new[stored].raw, real):
            raise _tied_weights_differ("state_dict", weight_map, stored)
        tied = [other for other, stored_name in weight_map.stored.items() if stored_name == stored]
        transposed_to = [other for other, stored_name in weight_map.transposed.items() if stored_name == stored]
        applied |= dict.fromkeys(tied, tensor) | {other: tensor.t() for other in transposed_to}
        new[stored] = TorchTensor(real, name=stored)
    check(applied)
    for one in (model, *copies):
        for value in one.graph.initializers.values():
            value.const_value = _replace_sources(value.const_value, new)
    return applied


def _tied_weights_differ(argument: str, weight_map: WeightMap, stored_name: str) -> ArgumentError:
    tied = [
        name for name, other in (*weight_map.stored.items(), *weight_map.transposed.items()) if other == stored_name
    ]
    return ArgumentError(
        argument, f"{' and '.join(map(repr, tied))} are tied weights in the model, but have different values here"
    )


def _current_weights(model: ir.Model) -> dict[str, torch.Tensor]:
    """Map the names of the tensors that initializers are or are derived from to their values."""
    return {
        str(source.name): source.raw
        for value in model.graph.initializers.values()
        for source in sources_of(value.const_value)
    }


@contextmanager
def temporary_weights(
    model: ir.Model,
    weight_map: WeightMap,
    weights: Weights,
    check: Callable[[Mapping[str, StoredWeight | torch.Tensor]], None] = lambda _: None,
) -> Iterator[None]:
    """Replace the weights of a model for the body; files are read only when their tensors are written.

    Args:
        model: The model.
        weight_map: The weight map of the model.
        weights: Sources of the weights. Names that the model does not have are ignored.
        check: Raises an error for weights that the program does not accept, by FQN.

    Raises:
        ArgumentError: If a weight has another shape or dtype, or a weight without values in the model is missing.
    """
    given = read_weight_sources(weights)
    current = _current_weights(model)
    new: dict[str, TorchTensor | DerivedTensor] = {}
    for name, stored_name in (*weight_map.stored.items(), *weight_map.transposed.items()):
        source = given.get(name)
        if source is None:
            continue
        tensor: TorchTensor | DerivedTensor
        if not isinstance(source, torch.Tensor) and hasattr(source, "initializer"):
            tensor = source.initializer(stored_name, current[stored_name].dtype)
            if name in weight_map.transposed:
                tensor = derive(stored_name, [tensor], torch.t)
            _check_shape_and_dtype(
                f"{name!r} in {source.path}", tensor.dtype, tuple(tensor.shape.numpy()), current[stored_name]
            )
        else:
            if name in weight_map.transposed and isinstance(source, torch.Tensor):
                source = source.t()
            tensor = TorchTensor(_checked_weight(name, source, current[stored_name], "weights"), name=stored_name)
        if stored_name in new and not torch.equal(values_of(new[stored_name]), values_of(tensor)):
            raise _tied_weights_differ("weights", weight_map, stored_name)
        new.setdefault(stored_name, tensor)
    missing = [
        stored_name for stored_name, tensor in current.items() if stored_name not in new and not has_content(tensor)
    ]
    if missing:
        raise ArgumentError(
            "weights",
            f"missing {', '.join(map(repr, missing[:5]))}{', ...' if len(missing) > 5 else ''} "
            f"({len(missing)} of {len(current)} weights), and the model was exported without values",
            hint=_suggestion(given, weight_map.initializers)
            or "pass weights that no file has in a dict: weights=[file, {name: tensor}]",
        )
    check(given)
    before = {value: value.const_value for value in model.graph.initializers.values()}
    if any(getattr(tensor, "is_packed", False) for tensor in new.values()):
        add_on("quantization").warn_of_rounding(before.values(), new)
    try:
        for value, tensor_before in before.items():
            value.const_value = _replace_sources(tensor_before, new)
        yield
    finally:
        for value, tensor_before in before.items():
            value.const_value = tensor_before


def _suggestion(given: Collection[str], known: Collection[str]) -> str | None:
    """Return a hint for the first given name that is not a known one but similar to a known one not given."""
    missing = [name for name in known if name not in given]
    unknown = [name for name in given if name not in known]
    # The first ones only: a checkpoint of another model has thousands of unknown names.
    for name in unknown[:20]:
        hint = did_you_mean(name, missing)
        if hint is not None:
            return f"{name!r} is not a weight of the model, {hint}"
    return None


def _checked_weight(name: str, tensor: Any, current: torch.Tensor, argument: str = "state_dict") -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(argument, f"{name!r} is {kind_of(tensor)}, not a tensor")
    real = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    _check_shape_and_dtype(repr(name), from_torch(real.dtype), tuple(real.shape), current, argument)
    return real


def _check_shape_and_dtype(
    what: str, dtype: ir.DataType, shape: tuple[int, ...], current: torch.Tensor, argument: str = "weights"
) -> None:
    if dtype != from_torch(current.dtype) or shape != tuple(current.shape):
        found = to_torch_dtype(dtype)
        raise ArgumentError(
            argument,
            f"{what} is {found} of shape {list(shape)}, expected {current.dtype} of shape {list(current.shape)}",
            hint="re-export the model with weights of that shape and dtype",
        )


def _replace_sources(tensor: Any, new: Mapping[str, TorchTensor | DerivedTensor]) -> Any:
    if isinstance(tensor, TorchTensor):
        return new.get(str(tensor.name), tensor)
    if not isinstance(tensor, DerivedTensor):
        return tensor
    sources = [_replace_sources(source, new) for source in tensor.sources]
    if all(one is other for one, other in zip(sources, tensor.sources, strict=True)):
        return tensor
    return tensor.with_sources(sources)


# ---- weights that Python reads


_WEIGHT_READS_KEY = "pkg.fxonnx.weight_reads"
"""Key of the reads in the model's metadata: JSON, a list of lines with the names of weights and the values."""

_LISTED_VALUES = 16
"""Number of values of one line up to which the metadata lists them; of more it has a digest."""


def check_weight_reads(
    reads: WeightReads, current: Mapping[str, Any], given: Mapping[str, Any], argument: str = "weights"
) -> None:
    """Check that the values that Python read from weights are the same for other weights.

    Args:
        reads: The values.
        current: FQN to weight of the program.
        given: FQN to the weight that replaces it: a tensor, or one in a file.
        argument: Name of the argument with these weights.

    Raises:
        ArgumentError: If one is not; the error has the line that reads it.
    """
    if not reads.reads or reads.names.isdisjoint(given):
        return

    def at_export(names: Sequence[str]) -> torch.Tensor:
        weight: torch.Tensor = next(current[name] for name in names if name in current)
        return weight.detach()

    def value_of(names: Sequence[str]) -> torch.Tensor:
        old = at_export(names)
        name = next((name for name in names if name in given), None)
        return old if name is None else _loaded(name, given[name], old, argument)

    found = reads.difference(value_of)
    if found is None:
        return
    used = [names for names in reads.ties if names[0] in found.read.weights and not given.keys().isdisjoint(names)]
    changed = [names for names in used if not torch.equal(value_of(names), at_export(names))] or used
    names = [next(name for name in names if name in given) for names in changed]
    raise ArgumentError(
        argument,
        f"Python read {_listed_names(names)} during the capture, and the value is a constant of the program:"
        f"\n  {found}",
        hint="export the model again with these weights, or compute the result with operators of torch",
    )


def _listed_names(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (f", ... ({len(names)} weights)" if len(names) > 3 else "")


def _loaded(name: str, given: Any, old: torch.Tensor, argument: str) -> torch.Tensor:
    """A weight that is given, in the dtype and on the device of the one at export."""
    tensor: torch.Tensor = given
    if not isinstance(given, torch.Tensor):
        real = old.real.dtype if old.is_complex() else old.dtype
        tensor = values_of(given.initializer(name, real))
        tensor = torch.view_as_complex(tensor) if old.is_complex() else tensor
    if tensor.shape != old.shape:
        raise ArgumentError(
            argument,
            f"{name!r} has the shape {list(tensor.shape)}, expected {list(old.shape)}",
            hint="re-export the model with weights of that shape and dtype",
        )
    return tensor.detach().to(old.device, old.dtype)


def reads_metadata(reads: WeightReads) -> dict[str, str]:
    """The reads as an entry of the model's metadata; empty without any."""
    values: dict[tuple[str, tuple[str, ...]], list[Any]] = {}
    for read in reads.reads:
        file, separator, rest = str(read.line or "").partition(":")
        found = values.setdefault((f"{relative_file(file)}:{rest}" if separator else file, read.weights), [])
        if read.value not in found[-_LISTED_VALUES:]:
            found.append(read.value)
    content = [{"line": line, "weights": list(weights), **_listed(found)} for (line, weights), found in values.items()]
    return {_WEIGHT_READS_KEY: json.dumps(content)} if content else {}


def _listed(values: Sequence[Any]) -> dict[str, Any]:
    """The values of a line, or their digest if there are many."""
    if len(values) > _LISTED_VALUES:
        return {"sha256": hashlib.sha256(repr(values).encode()).hexdigest()}
    return {"values": [str(one) if isinstance(one, complex) or not _is_finite(one) else one for one in values]}


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
