"""The verdict on one row: its saved file in ONNX Runtime beside the model in eager torch, at all of its calls."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import re
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import onnx
import onnxruntime
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

import fxonnx

from ..fuzz.python_generator import EagerTimeoutError, time_limit
from .row import Model, Row

__all__ = ["EXPORTERS", "VERDICTS", "Result", "dims_text", "judge"]

EXPORTERS = ("fxonnx", "dynamo", "torchscript")

VERDICTS = {
    "right": "at all calls",
    "limited": "right within limits that the export names; the file fails at the other calls",
    "refused": "an error of the exporter that explains itself",
    "raw error": "another error, or a file that ONNX Runtime does not load",
    "wrong": "a result that differs, or a file that fails without a limit",
    "timeout": "given up",
    "invalid": "eager torch cannot run the model",
}


@dataclass(frozen=True)
class Result:
    """The outcome of one export.

    Attributes:
        verdict: One of ``VERDICTS``.
        text: The limits, or the reason why the model is not right.
        dims: The dims that were asked for.
        seconds: Processor time of the export.
        capture: Processor time of ``torch.export.export`` alone, if it captures the model.
        nodes: The nodes of the file.
    """

    verdict: str
    text: str = ""
    dims: str = ""
    seconds: float | None = None
    capture: float | None = None
    nodes: int | None = None


def judge(row: Row, exporter: str = "fxonnx") -> Result:
    """Export a model and compare the saved file with it.

    Args:
        row: The model.
        exporter: One of ``EXPORTERS``.
    """
    with _quiet(), tempfile.TemporaryDirectory() as folder:
        try:
            torch.manual_seed(0)
            model = row.build()
            module = model.called()
            wanted = [_eager(module, call) for call in model.calls]
            changed = _difference(_arrays(_eager(module, model.calls[0])), wanted[0], model.tolerance)
        except Exception as error:  # noqa: BLE001 - any error of the library
            return Result("invalid", _first_sentence(error))
        dims = dims_text(model.dims)
        if changed is not None:
            return Result("invalid", f"eager torch itself differs: {changed}", dims)
        path = f"{folder}/model.onnx"
        start = time.process_time()
        try:
            limits = _EXPORT[exporter](model, module, path)
        except Exception as error:  # noqa: BLE001 - the verdict
            own = isinstance(error, fxonnx.ExportError | torch.onnx.errors.OnnxExporterError)
            return Result("refused" if own else "raw error", _first_sentence(error), dims, _since(start))
        seconds = _since(start)
        verdict, text = _compare(model, path, wanted, limits)
        if verdict == "wrong":
            with _StableSorts():
                stable = [_eager(module, call) for call in model.calls]
            if any(_difference(_arrays(one), other, 0.0) for one, other in zip(stable, wanted, strict=True)):
                verdict, text = _compare(model, path, stable, limits)
                text = f"{text}, with the order of a stable sort".lstrip(", ") if verdict == "right" else text
        nodes = _count(onnx.load(path, load_external_data=False))
        capture = _capture_seconds(model, module) if exporter == "fxonnx" and model.own_export is None else None
        return Result(verdict, text, dims, seconds, capture, nodes)


def dims_text(dims: Any) -> str:
    """The names of the dynamic dims, in their order."""
    names = [leaf if isinstance(leaf, str) else getattr(leaf, "__name__", "") for leaf in pytree.tree_leaves(dims)]
    return ", ".join(dict.fromkeys(filter(None, names)))


def _since(start: float) -> float:
    return round(time.process_time() - start, 1)


def _first_sentence(error: BaseException) -> str:
    """The lines of a message up to the hint, without paths of this machine."""
    lines = [line.strip() for line in str(error).partition("hint:")[0].strip().splitlines() if line.strip()]
    text = re.sub(r"^error\[(FX\d+)\]: ", r"\1: ", " ".join(lines[:3]))
    text = re.sub(r"(?<![\w.])/\S*?/(?:site-packages|site)/", "", text)
    return f"{type(error).__name__}: {text}"[:240] if not isinstance(error, fxonnx.ExportError) else text[:240]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    texts = io.StringIO()
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(texts), contextlib.redirect_stdout(texts):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


class _StableSorts(TorchFunctionMode):
    """Sorts keep the order of equal elements, which torch does not specify."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch."""
        given = dict(kwargs or {})
        if func in (torch.sort, torch.argsort, torch.Tensor.sort, torch.Tensor.argsort):
            given |= dict(zip(("dim", "descending"), args[1:], strict=False))
            args, given["stable"] = args[:1], True
        return func(*args, **given)


def _leaves(outputs: Any) -> list[torch.Tensor]:
    leaves = [leaf for leaf in pytree.tree_leaves(outputs) if leaf is not None]
    return [leaf if isinstance(leaf, torch.Tensor) else torch.tensor(leaf) for leaf in leaves]


def _eager(module: torch.nn.Module, call: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    with torch.no_grad():
        return [leaf.detach().clone() for leaf in _leaves(module(*copy.deepcopy(call)))]


def _arrays(tensors: Sequence[torch.Tensor]) -> list[Any]:
    return [tensor.numpy() for tensor in tensors]


def _names(model: Model) -> list[str]:
    return [f"in{number}" for number in range(len(model.calls[0]))]


def _export_ours(model: Model, module: torch.nn.Module, path: str) -> list[fxonnx.Constraint]:
    """The limits of the file."""
    if model.own_export is not None:
        fxonnx.install()
        try:
            model.own_export(path)
        finally:
            fxonnx.uninstall()
        return []
    program = fxonnx.export(
        module,
        copy.deepcopy(model.calls[0]),
        path,
        input_names=_names(model),
        dynamic_shapes=model.dims,
        **model.options,
    )
    return [constraint for constraint in program.record.constraints if constraint.narrows]


def _export_dynamo(model: Model, module: torch.nn.Module, path: str) -> list[fxonnx.Constraint]:
    example = copy.deepcopy(model.calls[0])
    torch.onnx.export(
        module, example, path, dynamo=True, input_names=_names(model), dynamic_shapes=_dims_of(model), verbose=False
    )
    return []


def _export_torchscript(model: Model, module: torch.nn.Module, path: str) -> list[fxonnx.Constraint]:
    example = copy.deepcopy(model.calls[0])
    axes = {name: dims for name, dims in zip(_names(model), model.dims or (), strict=False) if dims}
    torch.onnx.export(
        module, example, path, dynamo=False, input_names=_names(model), dynamic_axes=axes, opset_version=17
    )
    return []


_EXPORT: dict[str, Callable[[Model, torch.nn.Module, str], list[fxonnx.Constraint]]] = {
    "fxonnx": _export_ours,
    "dynamo": _export_dynamo,
    "torchscript": _export_torchscript,
}


_MOST_SECONDS = 60
"""Of processor time that torch.export alone may take."""


def _dims_of(model: Model) -> Any:
    """``dynamic_shapes`` in the form of torch, which has one entry for all of ``*inputs``."""
    return (tuple(model.dims),) if model.call is not None and model.dims is not None else model.dims


def _capture_seconds(model: Model, module: torch.nn.Module) -> float | None:
    dims = pytree.tree_map(lambda name: torch.export.Dim.AUTO if isinstance(name, str) else name, _dims_of(model))
    signal.setitimer(signal.ITIMER_PROF, 0)  # the limit of the row, which is ours
    start = time.process_time()
    try:
        with time_limit(_MOST_SECONDS):
            torch.export.export(module, copy.deepcopy(tuple(model.calls[0])), dynamic_shapes=dims)
    except (Exception, EagerTimeoutError):  # noqa: BLE001 - torch alone cannot capture every model that fxonnx exports
        return None
    return _since(start)


def _count(model: onnx.ModelProto) -> int:
    """The nodes of a model, of its functions, and of subgraphs."""

    def count(nodes: Sequence[onnx.NodeProto]) -> int:
        bodies = [attribute.g for node in nodes for attribute in node.attribute if attribute.HasField("g")]
        return len(nodes) + sum(count(body.node) for body in bodies)

    return count(model.graph.node) + sum(count(function.node) for function in model.functions)


def _violated(model: Model, call: Sequence[torch.Tensor], limits: Sequence[fxonnx.Constraint]) -> list[str]:
    """The limits that the sizes of a call violate; one of unnamed dims may be violated."""
    sizes = {
        name: tensor.shape[axis]
        for dims, tensor in zip(model.dims or (), call, strict=False)
        for axis, name in (dims or {}).items()
    }
    return [each.text for each in limits if not (set(each.dims) <= set(sizes) and each.holds(sizes))]


def _compare(
    model: Model, path: str, wanted: Sequence[Sequence[torch.Tensor]], limits: Sequence[fxonnx.Constraint]
) -> tuple[str, str]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - any of ONNX Runtime
        return "raw error", f"not loaded: {_first_sentence(error)}"
    names = [one.name for one in session.get_inputs()]
    given = names if model.own_export is not None else _names(model)
    violated: dict[str, None] = {}
    for number, (call, want) in enumerate(zip(model.calls, wanted, strict=True)):
        sizes = ", ".join(str(tuple(tensor.shape)) for tensor in call)
        feeds = {name: tensor.detach().numpy() for name, tensor in zip(given, call, strict=True) if name in names}
        outside = _violated(model, call, limits)
        try:
            found = session.run(None, feeds)
        except Exception as error:  # noqa: BLE001 - any of ONNX Runtime
            if number == 0 or not outside:
                return "wrong", f"the file fails at {sizes}: {_first_sentence(error)}"[:240]
            violated |= dict.fromkeys(outside)
            continue
        difference = _difference(found, want, model.tolerance)
        if difference is not None:
            return "wrong", f"at {sizes}: {difference}" + (f", outside of {', '.join(outside)}" if outside else "")
    if violated:
        return "limited", ", ".join(violated)[:240]
    return "right", ", ".join(each.text for each in limits)[:240]


def _difference(found: Sequence[Any], wanted: Sequence[torch.Tensor], tolerance: float) -> str | None:
    """The first difference; numbers differ by the norm of an output that the tolerance is relative to."""
    if len(found) != len(wanted):
        return f"{len(found)} outputs instead of {len(wanted)}"
    for number, (array, want) in enumerate(zip(found, wanted, strict=True)):
        have = torch.from_numpy(numpy.asarray(array))
        want = torch.view_as_real(want.resolve_conj()) if want.is_complex() and not have.is_complex() else want
        if have.shape != want.shape:
            return f"output {number} has the shape {tuple(have.shape)} instead of {tuple(want.shape)}"
        if have.dtype != want.dtype:
            return f"output {number} is {have.dtype} instead of {want.dtype}"
        kind = torch.complex128 if want.is_complex() else torch.float64
        is_exact = not (want.is_floating_point() or want.is_complex())
        have, want = have.to(kind), want.to(kind)
        finite = want[want.isfinite()].abs()
        largest = max(finite.max().item(), 1e-3) if finite.numel() else 1.0
        allowed = 0.0 if is_exact else tolerance * largest
        if not torch.isclose(have, want, rtol=0.0, atol=allowed, equal_nan=True).all():
            return f"output {number} differs by {(have - want).abs().nan_to_num().max().item() / largest:.1e} of its largest element"
    return None
