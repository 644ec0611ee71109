"""Decoding steps of language models: sessions and their runs."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
import onnxruntime
import torch

import fxonnx
from fxonnx._capture.inputs.pytree_objects import object_parts

__all__ = ["dynamic_parts", "run", "session", "zero_state"]


def session(
    model: torch.nn.Module, inputs: Mapping[str, Any], shapes: Mapping[str, Any]
) -> onnxruntime.InferenceSession:
    """A session of the model exported with these inputs."""
    file = BytesIO()
    fxonnx.export(model, (), file, kwargs=inputs, dynamic_shapes=shapes)
    return onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])


def run(program: onnxruntime.InferenceSession, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run the inputs that the program has; returns its outputs by name."""
    wanted = {given.name for given in program.get_inputs()}
    names = [made.name for made in program.get_outputs()]
    feeds = {name: value for name, value in inputs.items() if name in wanted}
    return dict(zip(names, program.run(None, feeds), strict=True))


def dynamic_parts(small: Any, large: Any, batch: Any, past: str = "past") -> dict[str, dict[int, Any]]:
    """Dynamic dims of a cache, found by comparison: ``batch`` for axis 0, ``past`` for other axes.

    Args:
        small: A cache.
        large: A cache with another batch size and another number of tokens.
        batch: The spec of the batch dim.
        past: The spec of the other dynamic dims.
    """
    others = object_parts(large)
    return {
        name: {
            axis: past if axis else batch
            for axis, sizes in enumerate(zip(part.shape, others[name].shape, strict=True))
            if sizes[0] != sizes[1]
        }
        for name, part in object_parts(small).items()
        if isinstance(part, torch.Tensor)
    }


def zero_state(program: onnxruntime.InferenceSession, prefix: str, batch: int) -> dict[str, np.ndarray]:
    """The state before the first token: dynamic pasts are empty, fixed sizes hold zeros."""
    return {
        given.name: np.zeros(
            [size if isinstance(size, int) else 0 if axis else batch for axis, size in enumerate(given.shape)],
            np.float32 if given.type == "tensor(float)" else np.int64,
        )
        for given in program.get_inputs()
        if given.name.startswith(f"{prefix}.")
    }
