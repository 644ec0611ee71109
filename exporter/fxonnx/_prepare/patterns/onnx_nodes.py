"""Insert ONNX operators, in particular of ONNX Runtime's own domain."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.onnx.ops  # defines the operator that stands for any ONNX operator

from fxonnx_translations._builder.dtypes import from_torch

from ..._provenance import copy_provenance

__all__ = ["insert_onnx_op"]

_KINDS = {int: "i", float: "f", str: "s"}


def insert_onnx_op(
    origin: torch.fx.Node,
    op_type: str,
    inputs: Sequence[torch.fx.Node | None],
    attributes: Mapping[str, int | float | str],
    results: Sequence[torch.Tensor],
    domain: str = "com.microsoft",
) -> list[torch.fx.Node]:
    """Insert an operator before a node.

    Args:
        origin: The node, whose provenance the new ones get.
        op_type: Name of the operator.
        inputs: Its inputs; None for those that are omitted.
        attributes: Its attributes.
        results: Fake values of its outputs.
        domain: Its domain.

    Returns:
        The nodes of the outputs.
    """
    values: dict[str, list[Any]] = {"i": [], "f": [], "s": []}
    kinds, positions = [], []
    for value in attributes.values():
        kind = _KINDS[type(value)]
        kinds.append(kind)
        positions.append([len(values[kind]), len(values[kind]) + 1])
        values[kind].append(value)
    dtypes = [int(from_torch(result.dtype)) for result in results]
    with origin.graph.inserting_before(origin):
        node = origin.graph.call_function(
            torch.ops.onnx_symbolic._symbolic_multi_out.default,
            (list(inputs), op_type, dtypes),
            {
                "shapes": [],
                "attr_keys": list(attributes),
                "attr_types": kinds,
                "attr_pos": positions,
                "attr_ints": values["i"],
                "attr_floats": values["f"],
                "attr_strs": values["s"],
                "metadata_props_keys": [],
                "metadata_props_values": [],
                "domain": domain,
                "version": 1 if domain else None,
            },
        )
        outputs = [origin.graph.call_function(operator.getitem, (node, index)) for index in range(len(results))]
    node.meta["val"] = list(results)
    copy_provenance(node, origin)
    for output, result in zip(outputs, results, strict=True):
        output.meta["val"] = result
        copy_provenance(output, origin)
    return outputs
