"""Guards: a saved file gives the model's values or fails, in plain runtimes, and names the limit that does not hold."""

from __future__ import annotations

import io
import json
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn
from torch.export import Dim

import fxonnx
from fxonnx._lower.guards import GUARDS_KEY
from tests.functions import Function

from .guarded_models import MODELS, Limited

Run = Callable[[Sequence[np.ndarray[Any, Any]]], Sequence[Any]]

OPSETS = (11, 12, 13, 15, 17, 18, 20, 21, 23, 24, 25, 26)


def _export(case: Limited, model: nn.Module, **options: Any) -> fxonnx.ONNXProgram:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*cannot be exported for all requested sizes")
        return fxonnx.export(model, (torch.rand(case.shape),), dynamic_shapes=(dict(case.dims),), **options)


def _content(program: fxonnx.ONNXProgram) -> bytes:
    file = io.BytesIO()
    program.save(file)
    return file.getvalue()


def _in_onnxruntime(content: bytes, *, optimized: bool = True) -> Run:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return lambda inputs: session.run(None, dict(zip(names, inputs, strict=True)))


def _in_reference(content: bytes) -> Run:
    evaluator = ReferenceEvaluator(onnx.load_from_string(content))
    return lambda inputs: evaluator.run(None, dict(zip(evaluator.input_names, inputs, strict=True)))


def _in_openvino(content: bytes) -> Run:
    openvino = pytest.importorskip("openvino")
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(content), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(inputs: Sequence[np.ndarray[Any, Any]]) -> Sequence[Any]:
        results = compiled(list(inputs))
        return [results[index].copy() for index in range(len(compiled.outputs))]

    return run


RUNTIMES: dict[str, Callable[[bytes], Run]] = {
    "onnxruntime": _in_onnxruntime,
    "onnxruntime without optimizations": lambda content: _in_onnxruntime(content, optimized=False),
    "reference": _in_reference,
    "openvino": _in_openvino,
}


def _values(model: nn.Module, x: Tensor) -> list[np.ndarray[Any, Any]] | None:
    """The results of the model; None if it fails."""
    try:
        with torch.no_grad():
            result = model(x)
    except RuntimeError:
        return None
    return [np.asarray(one) for one in (result if isinstance(result, tuple) else (result,))]


def _check(run: Run, model: nn.Module, case: Limited, *, named: bool = True) -> int:
    """Compare all shapes of a case with the model, and return how many of them the file accepts.

    Args:
        run: The file in a runtime.
        model: The model.
        case: The shapes.
        named: Whether the runtime shows the name of the node that fails.
    """
    accepted = 0
    for shape in (case.shape, *case.others):
        x = torch.rand(shape)
        expected = _values(model, x)
        try:
            results = run([x.numpy()])
        except Exception as error:  # noqa: BLE001  # runtimes have no common base class of their errors
            message = str(error)
            assert shape != case.shape, message
            assert not named or "requires " in message
            continue
        assert expected is not None, f"the file has values for {shape}, at which the model fails"
        for actual, one in zip(results, expected, strict=True):
            np.testing.assert_allclose(actual, one, rtol=1e-4, atol=1e-4, err_msg=str(shape))
        accepted += 1
    return accepted


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", MODELS)
def test_a_file_is_right_or_fails(name: str, runtime: str, opset: int) -> None:
    case = MODELS[name]
    model = case.make().eval()
    program = _export(case, model, opset_version=opset)
    assert program.record.guards
    assert all(any(found.startswith(guard) for found in program.record.guards) for guard in case.guards)
    content = _content(program)
    onnx.checker.check_model(content, full_check=True)
    accepted = _check(RUNTIMES[runtime](content), model, case, named=runtime != "reference")
    assert case.right <= accepted < 1 + len(case.others)


def _one_output(session: onnxruntime.InferenceSession, name: str, feeds: Any) -> tuple[Any, str]:
    """One output, or None and the error."""
    try:
        return session.run([name], feeds)[0], ""
    except Exception as error:  # noqa: BLE001  # ONNX Runtime's errors have no common base class
        return None, str(error)


@pytest.mark.parametrize("name", MODELS)
def test_every_output_alone_fails(name: str) -> None:
    case = MODELS[name]
    model = case.make().eval()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(_content(_export(case, model)), options)
    failing = 0
    for shape in case.others:
        x = torch.rand(shape)
        feeds = {session.get_inputs()[0].name: x.numpy()}
        expected = _values(model, x)
        fails = []
        for index, output in enumerate(session.get_outputs()):
            actual, message = _one_output(session, output.name, feeds)
            if actual is None:
                assert "requires " in message
                fails.append(index)
            else:
                assert expected is not None
                np.testing.assert_allclose(actual, expected[index], rtol=1e-4, atol=1e-4)
        assert len(fails) in (0, len(session.get_outputs()))
        failing += bool(fails)
    assert failing


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer, self.norm = nn.Linear(32, 32), nn.Linear(32, 32), nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.outer(self.inner(x).relu()))


class _Blocks(nn.Module):
    """Repeated blocks after a branch on the value of a condition on a size, as marked regions or as modules."""

    def __init__(self, *, marked: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block() for _ in range(3))
        self.marked = marked

    def forward(self, x: Tensor) -> Tensor:
        is_long = bool(x.shape[1] > 40)  # a limit: of a branch on the size itself, both sides would be exported
        if is_long:
            x = x * 2
        call = torch.compiler.nested_compile_region(_call) if self.marked else _call
        for block in self.blocks:
            x = call(block, x)
        return x


def _call(block: nn.Module, x: Tensor) -> Any:
    return block(x)


BLOCKS = Limited(nn.Identity, (2, 30, 32), {1: "n"}, (), ((2, 40, 32), (2, 41, 32), (2, 1, 32)))


@pytest.mark.parametrize("functions", ["none", "repeated"])
@pytest.mark.parametrize("optimized", [True, False])
def test_functions(functions: Any, optimized: bool) -> None:
    model = _Blocks(marked=False).eval()
    program = _export(BLOCKS, model, options=fxonnx.ExportOptions(functions=functions))
    assert len(program.model.functions) == (functions == "repeated")
    assert _check(_in_onnxruntime(_content(program), optimized=optimized), model, BLOCKS) == 3
    calls = [node.op_type for node in program.model.graph if node.domain]
    assert calls == (["_Block"] * 3 if functions == "repeated" else [])


def test_the_optimizer_of_transformers(tmp_path: Path) -> None:
    optimizer = pytest.importorskip("onnxruntime.transformers.optimizer")
    model = _Blocks(marked=False).eval()
    path = tmp_path / "model.onnx"
    _export(BLOCKS, model).save(path)
    optimized = optimizer.optimize_model(str(path), model_type="bert", num_heads=2, hidden_size=32, opt_level=0)
    assert any(node.op_type == "SkipLayerNormalization" for node in optimized.model.graph.node)
    assert _check(_in_onnxruntime(optimized.model.SerializeToString()), model, BLOCKS) == 3


def test_quantize_dynamic(tmp_path: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    path = tmp_path / "model.onnx"
    _export(BLOCKS, _Blocks(marked=False).eval()).save(path)
    quantize_dynamic(path, tmp_path / "quantized.onnx")
    run = _in_onnxruntime((tmp_path / "quantized.onnx").read_bytes())
    assert run([np.zeros((2, 40, 32), np.float32)])[0].shape == (2, 40, 32)
    with pytest.raises(Exception, match="requires n <= 40"):
        run([np.zeros((2, 41, 32), np.float32)])


def test_our_quantization() -> None:
    program = _export(BLOCKS, _Blocks(marked=False).eval(), quantize="int8")
    run = _in_onnxruntime(_content(program))
    assert run([np.zeros((2, 40, 32), np.float32)])[0].shape == (2, 40, 32)
    with pytest.raises(Exception, match="requires n <= 40"):
        run([np.zeros((2, 41, 32), np.float32)])


def test_the_names_are_listed_and_follow_renamed_dims(tmp_path: Path) -> None:
    case = MODELS["branch"]
    report = fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path)
    program = _export(case, case.make(), diagnostics=report)
    (name,) = program.record.guards
    assert name.startswith("requires n <= 40 (guarded_models.py:")
    assert json.loads(program.model.metadata_props[GUARDS_KEY]) == [name]
    assert name in next(tmp_path.glob("*.md")).read_text(encoding="utf-8")
    program.rename_axes({"n": "length"})
    (renamed,) = program.record.guards
    assert renamed == name.replace("n <=", "length <=")
    assert json.loads(program.model.metadata_props[GUARDS_KEY]) == [renamed]
    with pytest.raises(Exception, match=r"requires length <= 40 \(guarded_models.py:"):
        _in_onnxruntime(_content(program))([np.zeros((2, 41), np.float32)])


def test_guards_can_be_left_off() -> None:
    case = MODELS["branch"]
    program = _export(case, case.make(), options=fxonnx.ExportOptions(guards=False))
    assert program.record.guards == ()
    assert GUARDS_KEY not in program.model.metadata_props
    assert [node.op_type for node in program.model.graph] == ["Add"]
    with pytest.raises(fxonnx.ArgumentError, match="guards: expected one of False, True, got 'yes'"):
        _export(case, case.make(), options=fxonnx.ExportOptions(guards="yes"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "dims"),
    [
        (lambda x: x * 2 if x.shape[1] > 40 else x + 1, {1: Dim("n", max=40)}),
        (lambda x: x * 2 if x.shape[0] > 4 else x + 1, {1: "n"}),
        (lambda x: x.mT @ x, {0: "b", 1: "n"}),
    ],
    ids=["range of a Dim", "static", "no limit"],
)
def test_exports_for_all_that_was_asked_have_none(function: Any, dims: Any) -> None:
    contents = []
    for guards in (True, False):
        options = fxonnx.ExportOptions(guards=guards)
        program = fxonnx.export(Function(function), (torch.rand(2, 6, 3),), dynamic_shapes=(dims,), options=options)
        assert program.record.guards == ()
        contents.append(_content(program))
    assert contents[0] == contents[1]


def test_conditions_that_always_hold_leave_no_constants() -> None:
    auto = dict.fromkeys(range(3), Dim.AUTO)
    tensors = [torch.rand(2, 3, 5), torch.rand(2, 3, 4), torch.rand(2, 4, 5)]
    function = Function(lambda ts: torch.baddbmm(*ts))
    program = fxonnx.export(function, (tensors,), dynamic_shapes=([auto] * 3,))
    assert not program.model.graph.initializers


def _sum(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def _sum_of_equals(x: Tensor, y: Tensor) -> Tensor:
    return x + y if x.shape == y.shape else x - y


def _sum_with_size(x: Tensor, y: Tensor) -> Tensor:
    y = x + y
    return y * x.shape[0]


@pytest.mark.filterwarnings("ignore:(?s).*cannot be exported for all requested sizes")
@pytest.mark.parametrize(
    ("function", "guards"), [(_sum, 0), (_sum_of_equals, 1), (_sum_with_size, 1)], ids=lambda one: str(one)[:20]
)
def test_operators_that_check_sizes_need_no_guard(function: Any, guards: int) -> None:
    dims = ({0: "a"}, {0: "b"})
    program = fxonnx.export(Function(function), (torch.rand(3), torch.rand(3)), dynamic_shapes=dims)
    assert len(program.record.guards) == guards
    run = _in_onnxruntime(_content(program))
    for a in (1, 2, 5):
        for b in (1, 2, 5):
            x, y = torch.rand(a), torch.rand(b)
            try:
                (result,) = run([x.numpy(), y.numpy()])
            except Exception:  # noqa: BLE001  # ONNX Runtime's errors have no common base class
                assert a != b
                continue
            np.testing.assert_allclose(result, function(x, y), rtol=1e-6)


@pytest.mark.parametrize("dim", [Dim.AUTO, Dim.DYNAMIC], ids=str)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("name", ["branch", "remainder", "outputs", "pool"])
def test_exported_programs(name: str, loaded: bool, strict: bool, dim: Any) -> None:
    """The guards of a program that torch.export captured, in memory and after it was saved and loaded."""
    case = MODELS[name]
    model = case.make().eval()
    dims = ({axis: dim for axis in case.dims if axis},)
    exported = torch.export.export(model, (torch.rand(case.shape),), dynamic_shapes=dims, strict=strict)
    program = fxonnx.export(_loaded(exported) if loaded else exported)
    assert program.record.guards
    assert _check(_in_onnxruntime(_content(program)), model, case, named=False) < 1 + len(case.others)


class _RoundedKernel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.avg_pool2d(x, kernel_size=max(1, round(min(x.shape[-2:]) / 32)))


@pytest.mark.parametrize("loaded", [False, True])
def test_a_rounded_quotient_in_an_exported_program(loaded: bool) -> None:
    model = _RoundedKernel()
    dims = ({2: Dim.AUTO, 3: Dim.AUTO},)
    exported = torch.export.export(model, (torch.rand(1, 1, 64, 96),), dynamic_shapes=dims)
    program = fxonnx.export(_loaded(exported) if loaded else exported)
    case = Limited(
        nn.Identity, (1, 1, 64, 96), {2: "h", 3: "w"}, (), ((1, 1, 100, 130), (1, 1, 60, 70), (1, 1, 96, 64))
    )
    assert _check(_in_onnxruntime(_content(program)), model, case) == 3


class _OfSize(nn.Module):
    """A convolution, for whose layout torch asks for conditions on sizes too, and a factor that depends on a size."""

    def __init__(self, factor: Callable[[int, int], int], kernel: int = 3) -> None:
        super().__init__()
        self.convolution, self.factor = nn.Conv2d(1, 2, kernel, 2, 1), factor

    def forward(self, x: Tensor) -> Tensor:
        y = self.convolution(x)
        return y * self.factor(x.shape[2], x.shape[3])


_FACTORS: dict[str, Callable[[int, int], int]] = {
    "odd": lambda h, w: 2 if h % 2 == 1 else 3,
    "not a multiple": lambda h, w: 2 if h % 3 != 0 else 3,
    "rest above": lambda h, w: 2 if h % 4 > 1 else 3,
    "rest below": lambda h, w: 2 if w % 4 < 2 else 3,
    "one block": lambda h, w: 2 if h // 8 == 1 else 3,
    "more than one block": lambda h, w: 2 if h // 8 > 1 else 3,
    "more than two": lambda h, w: 2 if h > 2 else 3,
    "larger": lambda h, w: 2 if w - h > 0 else 3,
    "at least two": lambda h, w: 2 if h // 6 >= 2 else 3,
    "both": lambda h, w: 2 if h > 9 and w % 2 == 0 else 3,
    "square": lambda h, w: 2 if h**2 > 9 * w else 3,
    "one more than a result": lambda h, w: 2 if (h - 1) // 4 > 1 else 3,
    "not a number": lambda h, w: 2 if h != 13 else 3,
    "not a number of elements": lambda h, w: 2 if h * w != 7 * 15 else 3,
    "no remainder": lambda h, w: 2 if not h % 2 else 3,
}


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("name", _FACTORS)
def test_conditions_of_the_form_of_a_memory_layout(name: str, loaded: bool) -> None:
    """Comparisons with 0, 1 and 2, as torch makes them to choose strides, are the model's here."""
    model = _OfSize(_FACTORS[name]).eval()
    exported = torch.export.export(
        model, (torch.rand(1, 1, 12, 15),), dynamic_shapes=({2: Dim.DYNAMIC, 3: Dim.DYNAMIC},)
    )
    program = fxonnx.export(_loaded(exported) if loaded else exported)
    others = tuple((1, 1, h, w) for h in (2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 24, 30) for w in (4, 6, 9, 15, 18))
    case = Limited(nn.Identity, (1, 1, 12, 15), {2: "h", 3: "w"}, (), others)
    assert 1 < _check(_in_onnxruntime(_content(program)), model, case) < 1 + len(others)


@pytest.mark.parametrize("loaded", [False, True])
def test_conditions_on_memory_layouts_are_no_guards(loaded: bool) -> None:
    """At the sizes that torch compares with 1, the loaded program itself fails, the file does not."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Sigmoid()).eval()
    dims = ({0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC},)
    exported = torch.export.export(model, (torch.rand(2, 1, 12, 15),), dynamic_shapes=dims)
    program = fxonnx.export(_loaded(exported) if loaded else exported)
    assert program.record.guards == ()
    case = Limited(nn.Identity, (2, 1, 12, 15), {2: "h"}, (), ((1, 1, 1, 1), (2, 1, 2, 15), (3, 1, 12, 2)))
    assert _check(_in_onnxruntime(_content(program)), model, case) == 4


def _loaded(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    return torch.export.load(file)


def test_ranges_of_exported_programs_are_no_guards() -> None:
    dims = ({0: Dim("n", min=3, max=39)},)
    exported = torch.export.export(nn.ReLU(), (torch.rand(5),), dynamic_shapes=dims)
    program = fxonnx.export(exported)
    assert [str(one) for one in program.record.constraints] == ["input.shape[0] >= 3", "input.shape[0] <= 39"]
    assert program.record.guards == ()


def _indexed(x: Tensor, n: Tensor) -> Tensor:
    for i in range(n):
        x = x + [1.0, 2.0, 3.0][i]
    return x


class _Counted(nn.Module):
    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        return _indexed(x, n)


def test_numbers_of_loops_that_follow_the_example() -> None:
    with pytest.warns(UserWarning, match="branches on the values of its inputs"):
        program = fxonnx.export(_Counted(), (torch.zeros(2), torch.tensor(2)), data_dependent="example")
    assert all(guard.startswith("requires for i in range(n): -> 2") for guard in program.record.guards)
    run = _in_onnxruntime(_content(program))
    assert run([np.zeros(2, np.float32), np.array(2)])[0].tolist() == [3, 3]
    with pytest.raises(Exception, match="requires for i in range"):
        run([np.zeros(2, np.float32), np.array(3)])


def test_verification_expects_a_failure_outside_of_the_limits() -> None:
    case = MODELS["branch"]
    guarded = _export(case, case.make(), verify="auto")
    program = _export(case, case.make(), options=fxonnx.ExportOptions(guards=False))
    program.verify(sizes="auto")
    program.record = replace(program.record, guards=guarded.record.guards)
    message = (
        r"requires n <= 40 .*, but it computes outputs for n = 41\nhint: the file has to fail outside of its limits"
    )
    with pytest.raises(fxonnx.VerificationError, match=message):
        program.verify(sizes="auto")


def test_a_limit_of_two_dims_without_an_onnx_form_is_reported() -> None:
    def function(x: Tensor) -> Tensor:
        return x * 2 if (x.shape[0] & x.shape[1]) == 4 else x

    dims = ({0: "n", 1: "m"},)
    with pytest.warns(UserWarning, match="does not check a limit of its inputs itself: it requires .*at opset 17"):
        program = fxonnx.export(Function(function), (torch.rand(5, 6),), dynamic_shapes=dims, opset_version=17)
    assert program.record.guards == ()


def _factored(x: Tensor) -> Tensor:
    if x.shape[0] > 8:
        x = x + torch.linalg.eigvals(x).real
    return x


def _of_bits(x: Tensor) -> Tensor:
    if (x.shape[0] & 4) == 4:
        x = x * 2
    return x


def _of_logarithm(x: Tensor) -> Tensor:
    return x * 2 if math.ceil(math.log(x.shape[0])) == 2 else x


@pytest.mark.parametrize(
    ("function", "allowed"), [(_factored, range(1, 9)), (_of_bits, range(4, 8)), (_of_logarithm, range(3, 8))]
)
def test_a_branch_or_its_condition_without_an_onnx_form_is_a_limit(function: Any, allowed: range) -> None:
    """Both branches of a condition on a size are exported where opsets have a form of them, one of them elsewhere."""
    with pytest.warns(UserWarning, match="the model cannot be exported for all requested sizes"):
        program = fxonnx.export(
            Function(function), (torch.rand(5, 5),), dynamic_shapes=({0: "n", 1: "n"},), opset_version=17
        )
    run = _in_onnxruntime(_content(program))
    for n in range(1, 20):
        x = torch.rand(n, n)
        if n in allowed:
            np.testing.assert_array_equal(run([x.numpy()])[0], function(x).numpy())
        else:
            with pytest.raises(Exception, match="requires"):
                run([x.numpy()])


@pytest.mark.parametrize(
    ("function", "rows", "allowed"),
    [
        (lambda x: x * 2 if (x.shape[0] & 4) == 4 else x, 5, range(4, 8)),
        (lambda x: nn.functional.avg_pool1d(x[None], 2, math.ceil(math.log(x.shape[0]))), 12, range(8, 21)),
        (lambda x: x * 2 if (x.shape[0] / 2).is_integer() else x, 9, range(1, 40, 2)),
        (lambda x: x * 2 if (x.shape[0] / 3).is_integer() else x, 9, range(3, 40, 3)),
        (lambda x: x * 2 if math.log2(x.shape[0]) > 3 else x, 9, range(9, 40)),
    ],
)
def test_a_limit_of_one_dim_by_floats(function: Any, rows: int, allowed: range) -> None:
    model = Function(function)
    with pytest.warns(UserWarning, match="the model cannot be exported for all requested sizes"):
        program = fxonnx.export(model, (torch.rand(rows),), dynamic_shapes=({0: "n"},), opset_version=17)
    run = _in_onnxruntime(_content(program))
    for n in range(1, 40):
        x = torch.rand(n)
        if n in allowed:
            np.testing.assert_array_equal(run([x.numpy()])[0], model(x).numpy())
        else:
            with pytest.raises(Exception, match="requires"):
                run([x.numpy()])
