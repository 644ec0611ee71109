"""Ordinary models through all stages of a user's workflow: export, call, save, load the file, run, compare.

Nothing is mocked: models are exported by ``fxonnx.export``, files are written to disk, checked by ``onnx.checker`` and
loaded by ONNX Runtime from there.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import fxonnx
from fxonnx.errors import ArgumentError, ExportError, UnsupportedOperatorError

from ..hygiene import check_graph

__all__ = [
    "OPSETS",
    "Row",
    "T",
    "check",
    "check_example_of_ones",
    "check_in_half_precision",
    "ids",
    "limit",
    "mask",
    "ordinary",
    "rows_of",
]

SIZES: Mapping[str, tuple[int, int]] = {
    # Name of a dynamic dim: (size in the example inputs, second size).
    "batch": (2, 4),
    "time": (6, 9),
    "height": (8, 12),
    "width": (8, 16),
    "depth": (4, 6),
    "nodes": (5, 7),
    "edges": (8, 11),
    "queries": (3, 5),
    "keys": (4, 6),
}


OPSETS = (11, 13, 17, 23)


@dataclass(frozen=True, init=False)
class T:
    """A random example tensor: ``T("batch", 5)``.

    Args:
        *shape: Sizes; a string is the name of a dynamic dim of ``SIZES``.
        dtype: dtype of the tensor.
        low: Minimum value.
        high: Upper bound of the values, exclusive; the name of a dim stands for its size.
    """

    shape: tuple[int | str, ...]
    dtype: torch.dtype
    low: float
    high: float | str

    def __init__(
        self, *shape: int | str, dtype: torch.dtype = torch.float32, low: float = -2.0, high: float | str = 2.0
    ) -> None:
        for name, value in (("shape", shape), ("dtype", dtype), ("low", low), ("high", high)):
            object.__setattr__(self, name, value)

    def make(self, sizes: Mapping[str, int], generator: torch.Generator) -> torch.Tensor:
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in self.shape]
        high = sizes[self.high] if isinstance(self.high, str) else self.high
        values = torch.rand(shape, generator=generator, dtype=torch.float64) * (high - self.low) + self.low
        if self.dtype == torch.bool:
            return values > 0
        return values.to(self.dtype) if self.dtype.is_floating_point else values.floor().to(self.dtype)

    @property
    def dynamic(self) -> dict[int, str] | None:
        return {axis: dim for axis, dim in enumerate(self.shape) if isinstance(dim, str)} or None


def ids(*shape: int | str, high: int | str = 10) -> T:
    """An example of int64 from 0 to ``high`` - 1."""
    return T(*shape, dtype=torch.int64, low=0, high=high)


def mask(*shape: int | str) -> T:
    """An example of bools."""
    return T(*shape, dtype=torch.bool)


@dataclass(frozen=True)
class Row:
    """One ordinary model.

    Attributes:
        name: Name of the model.
        build: Builds the model.
        inputs: Positional example inputs; ``T`` anywhere inside dicts, lists and tuples.
        kwargs: Keyword example inputs.
        sizes: Sizes of dims (example, second) that override those of ``SIZES``.
        constrained: Constraints that the export must warn about, each with sizes that it excludes and that the program
            must reject, as changes to the example sizes. Other sizes of 1 are all run.
        dynamic_shapes: For inputs inside objects; by default derived from the dim names in ``inputs`` and ``kwargs``.
        half: Whether the model is run in half precision.
        loose: Relative and absolute tolerance for ill-conditioned values.
        options: Further options of the export.
        marks: pytest marks.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    constrained: Mapping[str, tuple[Mapping[str, int], ...]] = field(default_factory=dict)
    dynamic_shapes: Any = None
    half: bool = False
    loose: tuple[float, float] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    marks: tuple[pytest.MarkDecorator, ...] = ()

    def model(self) -> nn.Module:
        """The model, with the same weights each time."""
        torch.manual_seed(0)
        return self.build().eval()

    @property
    def dims(self) -> dict[str, tuple[int, int]]:
        """Name of each dynamic dim to its sizes: example and second."""
        named = (dim for leaf in self._leaves() for dim in leaf.shape if isinstance(dim, str))
        return {dim: self.sizes.get(dim, SIZES.get(dim, (0, 0))) for dim in named}

    def _leaves(self) -> Iterator[T]:
        return (leaf for leaf in pytree.tree_leaves((self.inputs, dict(self.kwargs))) if isinstance(leaf, T))

    def call(self, sizes: Mapping[str, int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword inputs of these sizes."""
        generator = torch.Generator().manual_seed(0)

        def make(leaf: Any) -> Any:
            return leaf.make(sizes, generator) if isinstance(leaf, T) else leaf

        return pytree.tree_map(make, self.inputs), pytree.tree_map(make, dict(self.kwargs))

    @property
    def spec(self) -> Any:
        """``dynamic_shapes`` of the export; None if the row has no dynamic dim."""
        if self.dynamic_shapes is not None or not self.dims:
            return self.dynamic_shapes

        def dynamic(leaf: Any) -> Any:
            return leaf.dynamic if isinstance(leaf, T) else None

        positional = list(pytree.tree_map(dynamic, self.inputs))
        parameters = list(inspect.signature(self.model().forward).parameters.values())
        if not self.kwargs:
            return (tuple(positional),) if parameters[0].kind is inspect.Parameter.VAR_POSITIONAL else tuple(positional)
        names = [parameter.name for parameter in parameters[: len(positional)]]
        return dict(zip(names, positional, strict=True)) | pytree.tree_map(dynamic, dict(self.kwargs))


class _Forward(nn.Module):
    """A function as a module; as ``self``, the module provides a few weights."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 5))
        self.table = nn.Parameter(torch.linspace(-1.0, 1.0, 100).reshape(20, 5))
        self.register_buffer("offset", torch.arange(5.0))
        takes_self = next(iter(inspect.signature(function).parameters), "") == "self"
        # Bound as a method, so that torch.export sees the function's signature.
        self.forward = function.__get__(self) if takes_self else function


def limit(owner: str, reason: str) -> tuple[pytest.MarkDecorator, ...]:
    """The xfail mark of a row, with whose limit it is: ours, torch, onnx or ort."""
    return (pytest.mark.xfail(strict=True, reason=f"{owner}: {reason}"),)


def ordinary(*inputs: Any, **options: Any) -> Callable[[Any], Row]:
    """Decorator that makes a row of a function or module class.

    Args:
        *inputs: Positional example inputs.
        **options: Further attributes of the ``Row``.
    """

    def row(model: Any) -> Row:
        build = model if inspect.isclass(model) else lambda: _Forward(model)
        return Row(model.__name__, build, inputs, **options)

    return row


def rows_of(*themes: ModuleType) -> Iterator[Row]:
    """The rows of modules, in definition order."""
    for theme in themes:
        for value in vars(theme).values():
            for row in value if isinstance(value, tuple) else (value,):
                if isinstance(row, Row):
                    yield replace(row, name=f"{theme.__name__.rpartition('.')[2]}-{row.name}")


@dataclass(frozen=True)
class _Call:
    """Inputs of one size with the outputs of eager torch."""

    sizes: Mapping[str, int]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    expected: Sequence[Any]


def _eager(row: Row, sizes: Mapping[str, int]) -> _Call:
    args, kwargs = row.call(sizes)
    copies = pytree.tree_map_only(torch.Tensor, torch.clone, (args, dict(kwargs)))
    with torch.no_grad():
        # A new model for each call, since some mutate their buffers.
        returned = row.model()(*copies[0], **copies[1])
    expected = [value for value in pytree.tree_leaves(_plain(returned)) if value is not None]
    return _Call(sizes, args, kwargs, [_real(value) for value in expected])


def _plain(value: Any) -> Any:
    """Dataclasses as dicts."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


def _real(value: Any) -> torch.Tensor:
    tensor = torch.as_tensor(value).detach()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor.resolve_neg()


def _compare(row: Row, found: Sequence[Any], call: _Call, where: str) -> None:
    at = f"{where}, sizes {dict(call.sizes)}"
    assert len(found) == len(call.expected), f"{at}: {len(found)} outputs instead of {len(call.expected)}"
    for position, (ours, theirs) in enumerate(zip(found, call.expected, strict=True)):
        rtol, atol = row.loose or (1e-4, 1e-5)
        if theirs.dtype == torch.float16:
            rtol, atol = max(rtol, 1e-2), max(atol, 1e-2)
        np.testing.assert_allclose(
            ours, theirs.numpy(), rtol=rtol, atol=atol, strict=True, err_msg=f"{at}: output {position}"
        )


def _example_sizes(row: Row) -> dict[str, int]:
    return {dim: example for dim, (example, _) in row.dims.items()}


def _calls(row: Row) -> list[_Call]:
    """Calls at the example sizes, at second sizes, and at size 1 of each dim and of all, without excluded sizes."""
    example = _example_sizes(row)
    sizes = [example, {dim: second for dim, (_, second) in row.dims.items()}]
    sizes += [example | {dim: 1} for dim in row.dims]
    excluded = [example | each for refused in row.constrained.values() for each in refused]
    alone = {dim: 1 for dim in row.dims if example | {dim: 1} not in excluded}
    sizes.append(example | alone)
    return [_eager(row, each) for number, each in enumerate(sizes) if each not in (excluded + sizes[:number])]


def _run(session: onnxruntime.InferenceSession, call: _Call) -> list[Any]:
    leaves = pytree.tree_leaves(_plain((call.args, dict(call.kwargs))))
    tensors = [_real(leaf).numpy() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return session.run(None, dict(zip([value.name for value in session.get_inputs()], tensors, strict=True)))


def _load(model: Path | bytes) -> onnxruntime.InferenceSession:
    """A session of a file, or of a model serialized to memory."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if isinstance(model, bytes):
        onnx.checker.check_model(model, full_check=True)
        return onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    onnx.checker.check_model(str(model), full_check=True)
    return onnxruntime.InferenceSession(str(model), options, ["CPUExecutionProvider"])


def _export(row: Row, model: nn.Module, call: _Call, *, dynamic: bool, **options: Any) -> fxonnx.ONNXProgram:
    """Export the row; warnings about sizes must match its declared constraints."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program = fxonnx.export(
            model,
            call.args,
            kwargs=call.kwargs,
            dynamic_shapes=row.spec if dynamic else None,
            **{**row.options, **options},
        )
    check_graph(program.model_proto, weights=program.weights.sources)
    narrowed = [str(each.message) for each in caught if "all requested sizes" in str(each.message)]
    if dynamic and not row.constrained:
        assert not narrowed, narrowed
    if dynamic and row.constrained:
        missing = [text for text in row.constrained if not any(text in each for each in narrowed)]
        assert not missing, f"the export does not warn of {missing}: {narrowed}"
        assert len(program.record.constraints) == len(row.constrained), program.record.constraints
    return program


def _save_in_every_form(program: fxonnx.ONNXProgram, folder: Path) -> Iterator[tuple[str, Path | bytes]]:
    for form, external_data in (("inline", None), ("external", True), ("safetensors", "safetensors")):
        path = folder / form / "model.onnx"
        path.parent.mkdir()
        program.save(path, external_data=external_data)
        yield form, path
    stream = BytesIO()
    program.save(stream)
    yield "BytesIO", stream.getvalue()
    yield "model_proto", program.model_proto.SerializeToString()


def _refuses(row: Row, program: fxonnx.ONNXProgram) -> None:
    for text, refused in row.constrained.items():
        for sizes in refused:
            args, kwargs = row.call(_example_sizes(row) | sizes)
            with pytest.raises(ArgumentError) as raised:
                program(*args, **kwargs)
            assert text in str(raised.value)


def check(row: Row, folder: Path, opset: int | None = None) -> None:
    """Export a row statically and dynamically, and compare the saved files with eager torch.

    Args:
        row: The row.
        folder: The directory for its files.
        opset: A further opset besides the default one.
    """
    calls = _calls(row)
    example = calls[0]
    static = _export(row, row.model(), example, dynamic=False)
    _compare(row, [value.numpy() for value in static(*example.args, **example.kwargs)], example, "static, called")
    path = folder / "static.onnx"
    static.save(path)
    _compare(row, _run(_load(path), example), example, "static, inline")
    program = static
    if row.spec is not None:
        program = _export(row, row.model(), example, dynamic=True)
        for call in calls:
            found = [value.numpy() for value in program(*call.args, **call.kwargs)]
            _compare(row, found, call, "dynamic, called")
        _refuses(row, program)
    if opset is not None:
        _check_at_opset(row, program.exported_program, opset, calls, folder / f"opset{opset}.onnx")
    for form, saved in _save_in_every_form(program, folder):
        session = _load(saved)
        for call in calls:
            _compare(row, _run(session, call), call, form)


def _check_at_opset(
    row: Row, captured: torch.export.ExportedProgram, opset: int, calls: list[_Call], path: Path
) -> None:
    """Convert the captured program for another opset, and compare the saved file with eager torch."""
    try:
        program = fxonnx.export(captured, opset_version=opset)
    except UnsupportedOperatorError as error:
        # An opset that does not support the row is an error, which names the lowest one that does.
        if re.search(r"is supported from opset \d+", str(error)):
            return
        raise
    assert program.model.opset_imports[""] == opset
    program.save(path)
    session = _load(path)
    for call in calls:
        _compare(row, _run(session, call), call, f"opset {opset}")


def check_in_half_precision(row: Row, folder: Path) -> None:
    """Export a row with float16 weights and inputs, and compare its saved file with eager torch."""
    half = replace(row, build=lambda: row.build().half(), inputs=_halved(row.inputs), kwargs=_halved(row.kwargs))
    calls = _calls(half)
    program = _export(half, half.model(), calls[0], dynamic=half.spec is not None)
    path = folder / "model.onnx"
    program.save(path)
    session = _load(path)
    for call in calls:
        _compare(half, _run(session, call), call, "float16")


def _halved(inputs: Any) -> Any:
    def halved(leaf: Any) -> Any:
        is_float = isinstance(leaf, T) and leaf.dtype == torch.float32
        return T(*leaf.shape, dtype=torch.float16, low=leaf.low, high=leaf.high) if is_float else leaf

    return pytree.tree_map(halved, inputs)


def check_example_of_ones(row: Row) -> None:
    """Export a row with all dynamic dims 1 in the example: correct at other sizes or rejected, never silently wrong."""
    args, kwargs = row.call(dict.fromkeys(row.dims, 1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            program = fxonnx.export(row.model(), args, kwargs=kwargs, dynamic_shapes=row.spec, **row.options)
        except ExportError:
            return
    warned = any("all requested sizes" in str(each.message) for each in caught)
    for call in _calls(row):
        try:
            found = program(*call.args, **call.kwargs)
        except ArgumentError:
            assert warned, f"the export does not warn of {program.record.constraints}"
            continue
        _compare(row, [value.numpy() for value in found], call, "exported at ones")
