"""Sessions of ONNX Runtime that compute the forward of modules without weights."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..errors import ArgumentError
from .extras import import_extra

__all__ = ["OpenSession", "Session", "like", "on_cpu", "parameters", "replace_forward", "session_for"]

_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "tensor(float)": torch.float32,
        "tensor(float16)": torch.float16,
        "tensor(int32)": torch.int32,
        "tensor(int64)": torch.int64,
        "tensor(bool)": torch.bool,
    }
)


def on_cpu(model_class: Any, **members: Any) -> Any:
    """A subclass whose tensors are on the CPU, although it has no weights there."""
    members |= {
        "device": property(lambda _: torch.device("cpu")),
        "dtype": property(lambda _: torch.float32),
        "__module__": model_class.__module__,
    }
    return type(model_class.__name__, (model_class,), members)


def replace_forward(module: Any, forward: Any) -> None:
    """Give a module another forward with the same signature, which transformers reads."""
    module.forward = like(module.forward, forward)


def like(original: Any, function: Any) -> Any:
    """A function of keywords, with the signature of another one."""

    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        names = list(parameters(original))
        return function(**dict(zip(names, args, strict=False)), **kwargs)

    return called


def parameters(function: Any) -> Mapping[str, Any]:
    """The parameters of a function by name."""
    return inspect.signature(function).parameters


class Session:
    """A session of ONNX Runtime that takes and returns tensors of torch."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.inputs = {value.name: value for value in session.get_inputs()}
        self.outputs = [value.name for value in session.get_outputs()]

    @property
    def caches(self) -> list[str]:
        """Names of the inputs that are keys and values of earlier steps."""
        return [name for name in self.inputs if name.startswith("past_key_values.")]

    @property
    def unknown_inputs(self) -> list[Any]:
        """Inputs of element types that NumPy does not have."""
        return [value for value in self.inputs.values() if value.type not in _DTYPES]

    def empty(self, name: str, batch: int) -> Tensor:
        """A state before the first step, keys or values of (batch, heads, 0, size)."""
        value = self.inputs[name]
        sizes = (size if isinstance(size, int) else 0 for size in value.shape[1:])
        return torch.zeros(batch, *sizes, dtype=_DTYPES[value.type])

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        feeds = {
            name: inputs[name].detach().to(_DTYPES[value.type]).contiguous().numpy()
            for name, value in self.inputs.items()
            if name in inputs
        }
        results = self._session.run(self.outputs, feeds)
        return {name: torch.from_numpy(result) for name, result in zip(self.outputs, results, strict=True)}


def session_for(argument: str, path: Path) -> Session:
    """The session of a file that an argument has asked for, to compare it on the CPU.

    Raises:
        ArgumentError: If it has inputs of element types that NumPy does not have.
    """
    session = Session(import_extra("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"]))
    for value in session.unknown_inputs:
        raise ArgumentError(argument, f"{value.name} is a {value.type}", hint="pass verify=False (--no-verify)")
    return session


OpenSession: TypeAlias = Callable[[Path], Session]
"""Opens the session of a file."""
