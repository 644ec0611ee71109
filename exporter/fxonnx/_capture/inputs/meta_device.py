"""Capture of meta-device models with CPU fake tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fxonnx_translations._torch_compat import FakeTensor, FakeTensorMode

from .example_inputs import BoundInputs

__all__ = ["meta_as_cpu"]


@contextmanager
def meta_as_cpu(model: torch.nn.Module, inputs: BoundInputs) -> Iterator[BoundInputs]:
    """Replace tensors on the meta device by CPU fake tensors inside the context.

    Otherwise tensors that forward creates (``torch.arange(n)``) would be on a different device than the weights.

    Args:
        model: The model; its parameters and buffers are restored on exit. Tied weights remain tied.
        inputs: The example inputs.

    Yields:
        The example inputs with fake tensors.
    """
    before: list[tuple[dict[str, Any], str, torch.Tensor]] = [
        (tensors, name, tensor)
        for module in model.modules()
        for tensors in (module._parameters, module._buffers)
        for name, tensor in tensors.items()
        if tensor is not None and _is_meta(tensor)
    ]
    if not before and not any(map(_is_meta, inputs.tensors)):
        yield inputs
        return
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    made: dict[int, torch.Tensor] = {}

    def as_cpu_fake(tensor: torch.Tensor) -> torch.Tensor:
        if not _is_meta(tensor):
            return tensor
        if id(tensor) not in made:
            fake: torch.Tensor = FakeTensor(mode, tensor.detach(), torch.device("cpu"))
            made[id(tensor)] = (
                torch.nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else fake
            )
        return made[id(tensor)]

    try:
        for tensors, name, tensor in before:
            tensors[name] = as_cpu_fake(tensor)
        changed = inputs.with_tensors(as_cpu_fake)
        # The user may export inside of ``with torch.device("meta")``.
        with torch.device("cpu"):
            yield changed
    finally:
        for tensors, name, tensor in before:
            tensors[name] = tensor


def _is_meta(tensor: torch.Tensor) -> bool:
    return tensor.is_meta and not isinstance(tensor, FakeTensor)
