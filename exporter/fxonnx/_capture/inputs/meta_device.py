"""Models on the meta device, whose weights have no values, are captured as if they were on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from fxonnx_translations._torch_compat import FakeTensor, FakeTensorMode, pytree

from .example_inputs import Inputs

__all__ = ["on_the_cpu"]


@contextmanager
def on_the_cpu(model: torch.nn.Module, inputs: Inputs) -> Iterator[Inputs]:
    """For the body, tensors on the meta device are fake ones of the CPU, as far as the model can tell.

    Otherwise what forward makes on its own (``torch.arange(n)``) would be of another device than its weights.

    Args:
        model: Its parameters and buffers are again those it had afterwards; tied ones are tied in the body, too.
        inputs: The example inputs.
    """
    before = [
        (tensors, name, tensor)
        for module in model.modules()
        for tensors in (module._parameters, module._buffers)
        for name, tensor in tensors.items()
        if tensor is not None and _is_meta(tensor)
    ]
    leaves = pytree.tree_leaves((inputs.args, inputs.kwargs))
    if not before and not any(isinstance(leaf, torch.Tensor) and _is_meta(leaf) for leaf in leaves):
        yield inputs
        return
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    made: dict[int, torch.Tensor] = {}

    def imagined(tensor: torch.Tensor) -> torch.Tensor:
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
            tensors[name] = imagined(tensor)  # type: ignore[assignment]
        args, kwargs = pytree.tree_map_only(torch.Tensor, imagined, (inputs.args, inputs.kwargs))
        # The export may be inside of ``with torch.device("meta")``, too.
        with torch.device("cpu"):
            yield replace(inputs, args=args, kwargs=kwargs)
    finally:
        for tensors, name, tensor in before:
            tensors[name] = tensor  # type: ignore[assignment]


def _is_meta(tensor: torch.Tensor) -> bool:
    return tensor.is_meta and not isinstance(tensor, FakeTensor)
