"""Ways to export a network: ours, both exporters of torch.onnx, and torch.export alone."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch.fx.experimental import _config as shape_config

import fxonnx

from ._zoo import Network

__all__ = ["Exporter", "capture", "count_nodes", "ours", "silenced", "torch_onnx", "torchscript"]

Exporter = Callable[..., Any]
"""``exporter(network, opset=20, dynamic=False)``, returning a program with ``save(buffer)``, or None."""


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Without the warnings and the lines of progress of the exporters."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def capture(network: Network, opset: int = 20, *, dynamic: bool = False) -> torch.export.ExportedProgram:
    """torch.export under the settings of our own capture: the lower bound of every exporter built on it."""
    del opset
    shapes = network.dynamic_shapes(lambda _: torch.export.Dim.DYNAMIC) if dynamic else None
    with shape_config.patch(backed_size_oblivious=True):
        return torch.export.export(
            network.model,
            network.args,
            dict(network.kwargs),
            dynamic_shapes=shapes,
            strict=False,
            prefer_deferred_runtime_asserts_over_guards=True,
        )


def ours(network: Network, opset: int = 20, *, dynamic: bool = False, **options: Any) -> Any:
    """fxonnx."""
    shapes = network.dynamic_shapes() if dynamic else None
    return fxonnx.export(
        network.model, network.args, kwargs=network.kwargs, dynamic_shapes=shapes, opset_version=opset, **options
    )


def torch_onnx(network: Network, opset: int = 20, *, dynamic: bool = False) -> Any:
    """``torch.onnx.export(dynamo=True)`` with its optimizer, as it is by default."""
    shapes = network.dynamic_shapes() if dynamic else None
    return torch.onnx.export(
        network.model,
        network.args,
        kwargs=dict(network.kwargs),
        dynamo=True,
        optimize=True,
        verbose=False,
        dynamic_shapes=shapes,
        opset_version=opset,
    )


class _File:
    """The model written by the TorchScript exporter."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def save(self, buffer: io.BytesIO, **_: Any) -> None:
        buffer.write(self.content)


def torchscript(network: Network, opset: int = 20, *, dynamic: bool = False) -> Any:
    """``torch.onnx.export(dynamo=False)``."""
    names = [f"input_{position}" for position in range(len(network.tensors()))]
    axes = [leaf for spec in network.axes for leaf in _leaf_axes(spec)]
    buffer = io.BytesIO()
    torch.onnx.export(
        network.model,
        network.args,
        buffer,
        kwargs=dict(network.kwargs),
        dynamo=False,
        input_names=names,
        dynamic_axes={name: dict(spec) for name, spec in zip(names, axes, strict=True)} if dynamic else None,
        opset_version=opset,
    )
    return _File(buffer.getvalue())


def _leaf_axes(spec: Any) -> list[Mapping[int, str]]:
    return [leaf for item in spec for leaf in _leaf_axes(item)] if isinstance(spec, tuple) else [spec]


def count_nodes(result: Any) -> int:
    """FX nodes of a capture, ONNX nodes with the nodes of all bodies of a program."""
    if isinstance(result, torch.export.ExportedProgram):
        return len(result.graph.nodes)
    model = ir.from_proto(onnx.load_from_string(result.content)) if isinstance(result, _File) else result.model
    return sum(1 for _ in model.graph.all_nodes())
