"""One program through one exporter: its saved file in ONNX Runtime beside the model in eager torch."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import onnxruntime
import torch
from torch.utils import _pytree as pytree

from .program import Built, Program

__all__ = ["EXPORTERS", "KINDS", "Verdict", "judge"]

EXPORTERS = ("fxonnx", "dynamo", "torchscript")

KINDS = {
    "right": "r",
    "limited": "l",  # right at the example; at other inputs the file fails
    "wrong": "w",
    "refused": "x",
    "not loaded": "n",  # by ONNX Runtime, or it fails at the example
    "timeout": "t",
    "crash": "c",
    "invalid": "-",  # eager torch cannot run the example
}
"""The kinds of verdicts, and the letters that stand for them in the stored table."""

_TOLERANCES = {"float64": 1e-5, "bfloat16": 5e-2, ".half()": 1e-2, "dtype=float16": 1e-2, "torch.float16": 1e-2}


@dataclass(frozen=True)
class Verdict:
    """The result of an export: one of ``KINDS``, and a text."""

    kind: str
    text: str = ""
    seconds: float = 0.0


def judge(program: Program, exporter: str) -> Verdict:
    """The verdict of one exporter.

    Args:
        program: The program.
        exporter: One of ``EXPORTERS``.
    """
    with _quiet(), tempfile.TemporaryDirectory() as folder:
        try:
            built = program.load(Path(folder))
            results = _eager(built, len(program.calls))
            if (
                difference := _difference([value.numpy() for value in _results(built, 0)], results[0] or [], 1e-6)
            ) is not None:
                return Verdict("invalid", f"eager torch itself differs: {difference}")
        except Exception as error:  # noqa: BLE001 - any error of the program
            return Verdict("invalid", _line(error))
        path = f"{folder}/model.onnx"
        start = time.process_time()
        try:
            _EXPORT[exporter](built, program.options, path)
        except Exception as error:  # noqa: BLE001 - the verdict
            known = "" if exporter != "fxonnx" or _is_ours(error) else "RAW "
            return Verdict("refused", known + _line(error), time.process_time() - start)
        seconds = time.process_time() - start
        found = _compare(built, path, results, _tolerance(program))
        if found.kind == "wrong" and (wide := _in_double(program)) is not None:
            # torch rounds within its kernels, some of which are off by a quarter of a value: the file may be nearer.
            exact = _of_types(_eager(wide.load(Path(folder)), len(program.calls)), results)
            found = _compare(built, path, exact, _tolerance(program))
        return Verdict(found.kind, found.text, seconds)


def _in_double(program: Program) -> Program | None:
    """A layer in half precision with the same inputs and weights in float64, which has results without rounding."""
    half = next(
        (name for name in ("bfloat16", "float16") if f"return Model().to(torch.{name})" in program.source), None
    )
    if half is None:
        return None
    source = program.source.replace(f".to(torch.{half})", f".to(torch.{half}).double()")
    source = source.replace(".bfloat16()", ".bfloat16().double()")
    calls = tuple(call.replace("dtype=float16)", "dtype=float16).double()") for call in program.calls)
    return replace(program, source=source, calls=calls)


def _of_types(
    exact: Sequence[list[torch.Tensor] | None], wanted: Sequence[list[torch.Tensor] | None]
) -> list[list[torch.Tensor] | None]:
    pairs = zip(exact, wanted, strict=True)
    return [
        None if have is None or want is None else [one.to(two.dtype) for one, two in zip(have, want, strict=True)]
        for have, want in pairs
    ]


def _is_ours(error: Exception) -> bool:
    return type(error).__module__.startswith("fxonnx")


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


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


def _leaves(result: Any) -> list[torch.Tensor]:
    leaves = [leaf for leaf in pytree.tree_leaves(result) if leaf is not None]
    return [leaf if isinstance(leaf, torch.Tensor) else torch.tensor(leaf) for leaf in leaves]


def _eager(built: Built, calls: int) -> list[list[torch.Tensor] | None]:
    """The results of each call; None for a call that eager torch cannot run, which cannot be the example."""
    results: list[list[torch.Tensor] | None] = [_results(built, 0)]
    for call in range(1, calls):
        with contextlib.suppress(Exception):
            results.append(_results(built, call))
        if len(results) == call:
            results.append(None)
    return results


def _results(built: Built, call: int) -> list[torch.Tensor]:
    model = built.model()  # with gradients, as for the exports: traces have other operators without
    with torch.no_grad():
        return [leaf.detach().clone() for leaf in _leaves(model(*built.inputs(call)))]


def _names(inputs: Sequence[Any]) -> list[str]:
    return [f"i{place}" for place in range(len(inputs))]


def _export_ours(built: Built, options: dict[str, Any], path: str) -> None:
    import fxonnx

    inputs = built.inputs(0)
    shapes = built.dynamic_shapes()
    fxonnx.export(built.model(), inputs, path, input_names=_names(inputs), dynamic_shapes=shapes, **options)


def _export_dynamo(built: Built, options: dict[str, Any], path: str) -> None:
    inputs = built.inputs(0)
    shapes = built.dynamic_shapes()
    opset = options.get("opset_version")
    torch.onnx.export(
        built.model(),
        inputs,
        path,
        dynamo=True,
        input_names=_names(inputs),
        dynamic_shapes=shapes,
        opset_version=opset,
        verbose=False,
    )


def _export_torchscript(built: Built, options: dict[str, Any], path: str) -> None:
    inputs = built.inputs(0)
    shapes = built.dynamic_shapes() or ()
    axes = {name: dims for name, dims in zip(_names(inputs), shapes, strict=False) if dims}
    opset = min(options.get("opset_version") or 17, 20)
    torch.onnx.export(
        built.model(), inputs, path, dynamo=False, input_names=_names(inputs), dynamic_axes=axes, opset_version=opset
    )


_EXPORT = {"fxonnx": _export_ours, "dynamo": _export_dynamo, "torchscript": _export_torchscript}


def _tolerance(program: Program) -> float:
    """The tolerance of the least exact type that a program mentions, relative to the largest element of a result."""
    found = [tolerance for name, tolerance in _TOLERANCES.items() if name in program.text]
    return max(found, default=2e-4)


def _compare(built: Built, path: str, results: Sequence[list[torch.Tensor] | None], tolerance: float) -> Verdict:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - any of ONNX Runtime
        return Verdict("not loaded", _line(error))
    names = {each.name for each in session.get_inputs()}
    limit = ""
    for call, wanted in enumerate(results):
        if wanted is None:
            continue
        inputs = built.inputs(call)
        feeds = {name: _array(value) for name, value in zip(_names(inputs), inputs, strict=True) if name in names}
        try:
            found = session.run(None, feeds)
        except Exception as error:  # noqa: BLE001 - any of ONNX Runtime
            if call == 0:
                return Verdict("not loaded", f"fails at the example: {_line(error)}")
            limit = limit or f"fails at call {call}: {_line(error)}"
            continue
        difference = _difference(found, wanted, tolerance)
        if difference is not None:
            return Verdict("wrong", f"at call {call}: {difference}")
    return Verdict("limited", limit) if limit else Verdict("right")


def _array(value: Any) -> numpy.ndarray[Any, Any]:
    return value.detach().numpy() if isinstance(value, torch.Tensor) else numpy.asarray(value)


def _difference(found: Sequence[Any], wanted: Sequence[torch.Tensor], tolerance: float) -> str | None:
    if len(found) != len(wanted):
        return f"{len(found)} outputs instead of {len(wanted)}"
    for number, (array, want) in enumerate(zip(found, wanted, strict=True)):
        have = torch.from_numpy(numpy.asarray(array))
        if have.dtype != want.dtype:
            return f"output {number}: {have.dtype} instead of {want.dtype}"
        if have.shape != want.shape:
            return f"output {number}: shape {tuple(have.shape)} instead of {tuple(want.shape)}"
        allowed = tolerance if want.is_floating_point() or want.is_complex() else 0.0
        kind = torch.complex128 if want.is_complex() else torch.float64
        have, want = have.to(kind), want.to(kind)
        finite = want[want.isfinite()].abs()
        scale = finite.max().item() if finite.numel() else 1.0
        if not torch.isclose(have, want, rtol=allowed, atol=allowed * max(scale, 1e-3), equal_nan=True).all():
            return f"output {number}: {_first(have, want, allowed)}"
    return None


def _first(have: torch.Tensor, want: torch.Tensor, tolerance: float) -> str:
    wrong = ~torch.isclose(have, want, rtol=tolerance, atol=tolerance, equal_nan=True)
    wrong = wrong if wrong.any() else torch.ones_like(wrong)
    place = int(wrong.flatten().nonzero()[0])
    return f"{have.flatten()[place].item():.6g} instead of {want.flatten()[place].item():.6g}"
