"""One row of the table: a model of a library, its calls, and the dims that a deployer asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import nn

__all__ = ["Calls", "Model", "Row", "make", "models", "rand", "randint", "randn", "row"]

Calls = Sequence[tuple[torch.Tensor, ...]]


class _Called(nn.Module):
    """A model with another call than its own ``forward``."""

    def __init__(self, model: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self.call = call

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.call(self.model, *inputs)


@dataclass(frozen=True)
class Model:
    """A model with its inputs.

    Attributes:
        module: The model, of which the outputs may be nested.
        calls: The inputs of each call, tensors only: the example, and other sizes or values.
        dims: ``dynamic_shapes`` of the export.
        call: How the model is called, if not by its ``forward``: the model and the inputs to the outputs.
        options: Further options of ``fxonnx.export``.
        tolerance: The largest difference of an output, relative to its largest element.
        own_export: The library's own export to ONNX, which writes a file; it runs after ``fxonnx.install()``.
    """

    module: nn.Module
    calls: Calls
    dims: Any = None
    call: Callable[..., Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-3
    own_export: Callable[[str], object] | None = None

    def called(self) -> nn.Module:
        """The model to export, in evaluation mode."""
        module = self.module if self.call is None else _Called(self.module, self.call)
        return module if isinstance(module, torch.jit.ScriptModule) else module.eval()


@dataclass(frozen=True)
class Row:
    """A model that is made in the process that judges it, since its library may be missing.

    Attributes:
        library: The name of its package on the index, as in ``libraries.txt``.
        name: The name of the model.
        build: Makes it.
        real: Whether it has trained weights, from the package.
        seconds: Processor time after which its export is given up.
    """

    library: str
    name: str
    build: Callable[[], Model]
    real: bool = False
    seconds: int = 120

    @property
    def key(self) -> str:
        """Its name in the stored results."""
        return f"{self.library}/{self.name}"


def make(path: str, *arguments: Any, **options: Any) -> Any:
    """Call a class or function of a library, which is imported only now: ``make("torchaudio.transforms.MFCC", n_mfcc=13)``."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)(*arguments, **options)


def row(library: str, *, real: bool = False, seconds: int = 120) -> Callable[[Callable[[], Model]], Row]:
    """Make a function a row that has its name."""
    return lambda build: Row(library, build.__name__.strip("_"), build, real, seconds)


def models(library: str, table: Mapping[str, Callable[[], Model]], *, seconds: int = 120) -> tuple[Row, ...]:
    """The rows of models that differ in little."""
    return tuple(Row(library, name, build, seconds=seconds) for name, build in table.items())


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    """Numbers from 0 to 1."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normally distributed numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def randint(high: int, *shape: int, seed: int = 0) -> torch.Tensor:
    """Integers from 0 to ``high - 1``."""
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))
