"""The tensors that fxonnx makes for itself are on the CPU, also where the user has set another default device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

__all__ = ["cpu_by_default"]


def cpu_by_default() -> AbstractContextManager[object]:
    """Context in which tensors are created on the CPU, unless a device is named.

    Models run outside of it: they are made for the default device of the user.
    """
    is_cpu = torch.get_default_device().type == "cpu"
    return nullcontext() if is_cpu else torch.device("cpu")
