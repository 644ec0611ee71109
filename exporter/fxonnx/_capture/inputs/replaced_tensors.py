"""Tensors in another form during an export: those on the meta device, and weights of inference mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fxonnx_translations._torch_compat import FakeTensor, FakeTensorMode

from ..._turns import one_at_a_time
from .example_inputs import BoundInputs

__all__ = ["meta_as_cpu", "normal_weights"]

# Other classes may not tell whether they are of inference mode, as parameters of lazy modules do not.
_PLAIN = (torch.Tensor, torch.nn.Parameter)


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


@contextmanager
def normal_weights(model: Any) -> Iterator[None]:
    """Replace parameters and buffers that were created in inference mode inside the context, in the same memory.

    torch cannot use them where it records gradients, as a capture does.

    Args:
        model: The model, without effect if it is not a module. Tied weights remain tied.
    """
    if not _inference_weights(model):
        yield
        return
    # Another thread may export the same model.
    with one_at_a_time():
        before = _inference_weights(model)
        made: dict[int, torch.Tensor] = {}
        for tensors, name, tensor in before:
            if id(tensor) not in made:
                made[id(tensor)] = _in_same_memory(tensor)
            tensors[name] = made[id(tensor)]
        try:
            yield
        finally:
            for tensors, name, tensor in before:
                tensors[name] = tensor


def _inference_weights(model: Any) -> list[tuple[dict[str, Any], str, torch.Tensor]]:
    """The tables, names and tensors of the weights that were created in inference mode."""
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    tables: list[dict[str, Any]] = [table for module in modules for table in (module._parameters, module._buffers)]
    return [
        (table, name, tensor)
        for table in tables
        for name, tensor in table.items()
        if type(tensor) in _PLAIN and tensor.is_inference()
    ]


def _in_same_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the elements and attributes of another one, which is not of inference mode."""
    with torch.inference_mode(False), torch.no_grad():
        if tensor.layout == torch.strided:
            empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            storage: Any = tensor.untyped_storage()
            found = empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
        else:
            found = tensor.clone()
        if isinstance(tensor, torch.nn.Parameter):
            found = torch.nn.Parameter(found, tensor.requires_grad)
    vars(found).update(vars(tensor))
    return found
