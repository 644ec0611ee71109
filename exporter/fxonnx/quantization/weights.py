"""Weights that the operators of a graph read, and their names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import onnx_ir as ir
import torch

from fxonnx_translations._builder.initializers import DerivedTensor, TorchTensor, sources_of, storage_key

__all__ = [
    "HEAD_NAMES",
    "Weight",
    "has_name_of_head",
    "keys_of_sources",
    "matches_any",
    "parameter_names",
    "stored_value",
]

HEAD_NAMES = frozenset({"lm_head", "embed_out", "output_layer", "proj_out"})
"""Names of the module that computes the logits."""


@dataclass(frozen=True)
class Weight:
    """A matrix of parameters, or the kernel of a convolution, that a node reads.

    Attributes:
        tensor: The stored parameter, or the tensor derived from parameters.
        is_transposed: For products, whether its shape is (in_features, out_features); for tables, always False.
        tied_names: For each parameter that it is computed from, its FQN and the FQNs of the parameters tied to it.
        out_features: Number of outputs of the product, or of rows of the table.
        in_features: Number of inputs of the product, or of columns of the table.
    """

    tensor: TorchTensor | DerivedTensor
    is_transposed: bool
    tied_names: tuple[tuple[str, ...], ...]
    out_features: int
    in_features: int

    @property
    def names(self) -> list[str]:
        """FQNs of all parameters."""
        return [name for tied in self.tied_names for name in tied]

    @property
    def key(self) -> Any:
        """A key that is equal for tied weights."""
        tensor = self.tensor
        return tensor.name if isinstance(tensor, DerivedTensor) else storage_key(tensor.raw, str(tensor.name))

    @property
    def sources(self) -> set[Any]:
        """Keys of the parameters."""
        return set(keys_of_sources(self.tensor))


def parameter_names(exported_program: torch.export.ExportedProgram) -> dict[Any, tuple[str, ...]]:
    """Map the storage of each parameter, and of its transpose, to the names of all parameters tied to it."""
    names: dict[Any, tuple[str, ...]] = {}
    parameters = exported_program.graph_signature.parameters
    for name, tensor in exported_program.state_dict.items():
        if name in parameters or isinstance(tensor, torch.nn.Parameter):
            views = [tensor, tensor.t()] if tensor.dim() == 2 else [tensor]
            for key in {storage_key(view, name): None for view in views}:
                names[key] = (*names.get(key, ()), name)
    return names


def stored_value(value: ir.Value) -> tuple[ir.Value, bool]:
    """The value before all transposes and Casts of a matrix, and whether the matrix is its transpose."""
    is_transposed = False
    while (producer := value.producer()) is not None:
        (source, *others) = producer.inputs
        if producer.op_type == "Transpose" and len(producer.attributes.get_ints("perm", ())) in (0, 2):
            is_transposed = not is_transposed
        elif producer.op_type != "Cast":
            break
        if source is None or others:
            break
        value = source
    return value, is_transposed


def keys_of_sources(tensor: Any) -> Iterator[Any]:
    """Yield the keys of the parameters that a tensor is or is computed from."""
    for source in sources_of(tensor):
        yield storage_key(source.raw, str(source.name))


def matches_any(names: Iterable[str], pattern: str) -> bool:
    """Whether a pattern matches the name of a parameter, of its module, or of a module that contains it."""
    parts = (name.split(".") for name in names)
    return any(fnmatchcase(".".join(each[:count]), pattern) for each in parts for count in range(1, len(each) + 1))


def matches(names: Sequence[str], patterns: Collection[str]) -> bool:
    """Whether one of the patterns matches."""
    return any(matches_any(names, pattern) for pattern in patterns)


def has_name_of_head(weight: Weight) -> bool:
    """Whether a parameter is in a module of the name of the layer of the logits."""
    return any(name.split(".")[-2:-1] and name.split(".")[-2] in HEAD_NAMES for name in weight.names)
