"""Weights as a quantized model represents them, for the comparison with eager torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch

from fxonnx_translations._builder.initializers import DerivedTensor, TorchTensor, sources_of, values_of

from .._program.weights import WeightMap
from .._warnings import warn_user
from ..errors import ArgumentError
from .packed_weights import PackedTensor
from .quantized_tensor import QuantizedTensor

__all__ = ["DequantizedWeights", "dequantized_weights", "warn_of_rounding"]

aten = torch.ops.aten


@dataclass(frozen=True)
class DequantizedWeights:
    """The values of quantized parameters.

    Attributes:
        products: FQN to value, for all uses but embeddings.
        tables: FQN to value in embeddings, if it is another one.
    """

    products: Mapping[str, torch.Tensor]
    tables: Mapping[str, torch.Tensor]

    def replace_tables(self, module: torch.nn.Module) -> None:
        """Replace the weights of embeddings in a captured module, but not their other uses, in place."""
        if not isinstance(module, torch.fx.GraphModule):
            return
        for index, (fqn, table) in enumerate(self.tables.items()):
            name = f"_table_{index}"
            module.register_buffer(name, table)
            for node in module.graph.find_nodes(op="get_attr", target=fqn):
                for user in list(node.users):
                    if user.target is aten.embedding.default:
                        with module.graph.inserting_before(user):
                            user.replace_input_with(node, module.graph.get_attr(name))
        module.recompile()

    def for_model(self, source: torch.nn.Module) -> dict[str, torch.Tensor]:
        """All values, by the names of the original model, where only embedding modules have tables of their own."""
        modules = dict(source.named_modules())
        tables = {
            fqn: table
            for fqn, table in self.tables.items()
            if isinstance(modules.get(fqn.rpartition(".")[0]), torch.nn.Embedding)
        }
        return {**self.products, **tables}


def dequantized_weights(model: ir.Model, weight_map: WeightMap) -> DequantizedWeights:
    """Compute the values of all quantized parameters of a model.

    Raises:
        ArgumentError: If a quantized weight is computed from parameters, so that these have no values of their own.
    """
    values: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]] = ({}, {})
    floats: dict[str, torch.Tensor] = {}
    for initializer in model.graph.initializers.values():
        tensor = initializer.const_value
        if isinstance(tensor, TorchTensor):
            floats[str(tensor.name)] = values_of(tensor)
        elif isinstance(tensor, QuantizedTensor) and tensor.part == "codes":
            values[tensor.layout in ("rows", "gather_nbits")].update(_parameters(tensor))
    products, tables = values
    # A table has its own integers, or is a floating-point number, or shares the integers of the tied layer.
    tables = {**{name: value for name, value in floats.items() if name in products}, **tables}
    products = {**tables, **products}

    def by_fqn(found: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        named = {fqn: found[name] for fqn, name in weight_map.stored.items() if name in found}
        return named | {fqn: found[name].t() for fqn, name in weight_map.transposed.items() if name in found}

    return DequantizedWeights(by_fqn(products), by_fqn(tables))


def _parameters(tensor: QuantizedTensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names and values of the parameters that a quantized weight consists of."""
    (source,) = tensor.sources
    value = tensor.dequantized()
    if not isinstance(source, DerivedTensor):
        yield str(source.name), value.to(source.raw.dtype)
        return
    parts = list(sources_of(source))
    contents = [values_of(part) for part in parts]
    positions = _positions(source, {id(part): content for part, content in zip(parts, contents, strict=True)})
    flat = torch.cat([content.flatten() for content in contents])
    if positions is None or not torch.equal(flat[positions], values_of(source).flatten()):
        raise ArgumentError(
            "program",
            f"{tensor.name!r} is quantized after it is computed from {', '.join(repr(part.name) for part in parts)}, "
            "which eager torch does not compute with",
            hint="verify the export without quantize, or exclude this layer",
        )
    quantized = torch.empty_like(flat)
    quantized[positions] = value.flatten().to(flat.dtype)
    split = torch.split(quantized, [content.numel() for content in contents])
    for part, content, new in zip(parts, contents, split, strict=True):
        yield str(part.name), new.reshape(content.shape)


def _positions(source: DerivedTensor, contents: Mapping[int, torch.Tensor]) -> torch.Tensor | None:
    """The elements of parameters, in the order of a tensor that only rearranges them; None for other tensors."""
    numbered, start = {}, 0
    for key, content in contents.items():
        numbered[key] = torch.arange(start, start + content.numel()).reshape(content.shape)
        start += content.numel()

    def rearranged(tensor: TorchTensor | DerivedTensor) -> torch.Tensor:
        if isinstance(tensor, DerivedTensor):
            return tensor.recipe(*map(rearranged, tensor.sources))
        return numbered[id(tensor)]

    positions = rearranged(source).flatten()
    is_rearranged = positions.dtype == torch.int64 and torch.equal(positions.sort().values, torch.arange(start))
    return positions if is_rearranged else None


def warn_of_rounding(tensors: Iterable[Any], new: Mapping[str, TorchTensor | DerivedTensor]) -> None:
    """Warn of linear layers that are rounded although the weights come from a quantized checkpoint."""
    rounded = [
        str(source.name)
        for tensor in tensors
        if isinstance(tensor, QuantizedTensor)
        and tensor.part == "codes"
        and tensor.layout in ("columns", "matmul_nbits")
        for source in sources_of(tensor)
        if not isinstance(new.get(str(source.name)), PackedTensor)
    ]
    if rounded:
        names = ", ".join(map(repr, rounded[:3])) + (", ..." if len(rounded) > 3 else "")
        warn_user(f"{names}: rounded to nearest, since the checkpoint has no integers for these weights")
