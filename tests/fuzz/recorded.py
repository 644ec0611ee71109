"""Check of recorded types and shapes against the values at run time."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime

__all__ = ["Recorded"]

_NAME = re.compile(r"[A-Za-z_]\w*")
_FUNCTIONS: Mapping[str, Any] = {
    "__builtins__": {},
    "Max": max,
    "Min": min,
    "max": max,
    "min": min,
    "floor": math.floor,
    "ceil": math.ceil,
    "Mod": lambda left, right: left % right,
}


class Recorded:
    """A copy of a model with all values of the main graph as outputs.

    Args:
        model: The model.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        outputs = {value.name for value in model.graph.output}
        made = {name for node in model.graph.node for name in node.output}
        model.graph.output.extend(
            value for value in model.graph.value_info if value.name in made and value.name not in outputs
        )
        self._types = {value.name: value.type.tensor_type for value in (*model.graph.input, *model.graph.output)}
        self._squeezed = _squeezed(model.graph)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def differences(self, feeds: Mapping[str, np.ndarray]) -> list[str]:
        """One line for each value whose recorded type or shape differs from the actual one, for these inputs.

        This session is not the tested one: if it fails, there is nothing to compare.
        """
        names = [value.name for value in self._session.get_outputs()]
        values = {**feeds, **dict(zip(names, self._session.run(None, dict(feeds)), strict=True))}
        sizes: dict[str, int] = {}
        found = [self._difference(name, value, sizes) for name, value in values.items() if hasattr(value, "shape")]
        return [text for text in found if text is not None]

    def _difference(self, name: str, value: np.ndarray, sizes: dict[str, int]) -> str | None:
        type_ = self._types[name]
        if onnx.helper.tensor_dtype_to_np_dtype(type_.elem_type) != value.dtype:
            return f"{name} is recorded as {onnx.helper.tensor_dtype_to_string(type_.elem_type)}, is {value.dtype}"
        if not type_.HasField("shape"):
            return None
        dims = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in type_.shape.dim]
        if name in self._squeezed and len(dims) > value.ndim:
            rest = [size for size in value.shape if size != 1]
            if [size for size in (_evaluated(dim, sizes) for dim in dims) if size != 1] == rest:
                return None
        if len(dims) != value.ndim:
            return f"{name} is recorded with shape {dims}, has {list(value.shape)}"
        for dim, size in zip(dims, value.shape, strict=True):
            known = _evaluated(dim, sizes) if dim != "" else size
            if known is None:
                # A data-dependent size: it must be equal wherever its name occurs.
                known = sizes.setdefault(str(dim), size)
            if known != size:
                return f"{name} is recorded with shape {dims}, has {list(value.shape)}, where {dim} is {known}"
        return None


def _squeezed(graph: onnx.GraphProto) -> frozenset[str]:
    """Values that have fewer axes where a dynamic dim is 1: the results of ``x.squeeze()``, which are outputs.

    onnx's checker requires a shape of each output; theirs is the one for other sizes.
    """
    sizes = {node.output[0] for node in graph.node if node.op_type == "Compress"}
    found = {node.output[0] for node in graph.node if node.op_type == "Reshape" and node.input[1] in sizes}
    for node in graph.node:
        if node.op_type in ("Cast", "Identity") and node.input[0] in found:
            found.add(node.output[0])
    return frozenset(found)


def _evaluated(dim: int | str, sizes: Mapping[str, int]) -> int | None:
    if isinstance(dim, int):
        return dim
    if dim in sizes or _NAME.fullmatch(dim):
        return sizes.get(dim)
    try:
        value = eval(dim, {**_FUNCTIONS, **sizes})
    except (NameError, SyntaxError, TypeError, AttributeError):
        return None
    except ZeroDivisionError:
        return None
    return int(value)
