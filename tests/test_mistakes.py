"""Mistakes that users make: each is one error with the argument, the place and a remedy; and models in wrappers."""

from __future__ import annotations

import io
import logging
import runpy
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Distribution
from torch.export import Dim

import fxonnx
from fxonnx._capture.plan import held_torch_log

from .messages import check_message

X = torch.rand(2, 3)


class Second(nn.Module):
    """A model that ignores its second input."""

    def forward(self, x: torch.Tensor, c: Any = None) -> torch.Tensor:
        del c
        return x * 2


class WithoutReturn(nn.Module):
    def forward(self, x: torch.Tensor) -> None:
        x.sin()


class WithGenerator(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(x.shape, generator=torch.Generator().manual_seed(0))


class WithDebugger(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        breakpoint()
        return x + 1


def _table() -> Any:
    kind = type("DataFrame", (), {"__module__": "pandas.core.frame"})
    return kind()


class Mode(Enum):
    SUM = "sum"


def _empty_cache() -> Any:
    return type("DynamicCache", (), {"__module__": "transformers.cache_utils"})()


def _endless() -> list[Any]:
    values: list[Any] = [X]
    values.append(values)
    return values


def _second(value: Any) -> Callable[[], Any]:
    return lambda: fxonnx.export(Second(), (X,), kwargs={"c": value})


class Sum(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class Apply(nn.Module):
    """A model of one input."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Linear(3, 2))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x)


class Plain:
    """An object that is not a tensor."""


def _closed() -> io.BytesIO:
    file = io.BytesIO()
    file.close()
    return file


def _endlessly(x: torch.Tensor) -> torch.Tensor:
    return _endlessly(x)


def _nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.nested.nested_tensor([X, X[:1]])


LINEAR, SUM = nn.Linear(3, 2).eval(), Sum().eval()
RELU = torch.ops.aten.relu.default
Options: Any = fxonnx.ExportOptions
_Row = tuple[Callable[[], Any], type[Exception], str]


def linear(*args: Any, **options: Any) -> Callable[[], Any]:
    """The export of a linear layer."""
    return lambda: fxonnx.export(LINEAR, (X,), *args, **options)


def exported(model: Any, *args: Any, **options: Any) -> Callable[[], Any]:
    return lambda: fxonnx.export(model, *args, **options)


def applied(function: Callable[[torch.Tensor], Any], **options: Any) -> Callable[[], Any]:
    """The export of a function."""
    return lambda: fxonnx.export(Apply(function).eval(), (X,), **options)


def dims(spec: Any) -> Callable[[], Any]:
    return linear(dynamic_shapes=spec)


def _argument(make: Callable[[], Any], match: str) -> _Row:
    return make, fxonnx.ArgumentError, match


def _capture(make: Callable[[], Any], match: str) -> _Row:
    return make, fxonnx.CaptureError, match


MODELS: dict[str, _Row] = {
    "class": _argument(
        exported(nn.Linear, (X,)), r"model: Linear is a class\nhint: pass an instance: Linear\(\.\.\.\)"
    ),
    "nothing": _argument(exported(None, (X,)), "model: expected an nn.Module or an ExportedProgram, got a NoneType"),
    "function": _argument(exported(abs, (X,)), "got the function abs\nhint: call it from the forward of an nn.Module"),
    "state dict": _argument(
        exported(LINEAR.state_dict(), (X,)), r"got an OrderedDict\nhint: create the model and .*load_state_dict"
    ),
    "path": _argument(exported("model.pt", (X,)), r"got a str\nhint: load the model first: torch\.load\("),
    "lazy": _argument(exported(nn.LazyLinear(3), (X,)), "lazy modules create their parameters in the first call"),
    "no result": _argument(
        exported(WithoutReturn(), (X,)), r"model: forward returns no tensor\nhint: return the results"
    ),
    "text as result": _argument(applied(lambda x: "text"), r"model: forward returns no tensor"),
    "object as result": _capture(
        applied(lambda x: Plain()), r"forward returns an object of the class \S+Plain, .*\nhint: .*register_dataclass"
    ),
    "generator in forward": _capture(
        exported(WithGenerator(), (X,)),
        r"numbers of rand from a torch\.Generator.*\n  at: .*test_mistakes\.py:\d+ in .*\nhint: omit generator=",
    ),
    "debugger": _capture(
        exported(WithDebugger(), (X,)), r"at: .*test_mistakes\.py:\d+ in (?s:.*)\nhint: remove breakpoint\(\)"
    ),
    "missing attribute": _capture(
        applied(lambda x: LINEAR.nothing(x)),
        r"the model itself fails on the example inputs: AttributeError\n.*'nothing'\n  at: .*test_mistakes\.py:\d+",
    ),
    "missing file": _capture(
        applied(lambda x: x + len(Path("none").read_text())),
        r"the model itself fails on the example inputs: FileNotFoundError\n.*\n  at: .*test_mistakes\.py:\d+",
    ),
    "recursion": _capture(applied(_endlessly), r"RecursionError\n(?s:.*)at: .*test_mistakes\.py:\d+ in _endlessly"),
    "value of a tensor": _capture(
        applied(lambda x: torch.tensor(sorted(x.flatten().tolist()))),
        r"asks for the value of a tensor(?s:.*)at: .*test_mistakes\.py:\d+(?s:.*)hint: .*data_dependent=\"example\"",
    ),
}
INPUTS: dict[str, _Row] = {
    "none": _argument(exported(LINEAR), "args: the example inputs do not match Linear.forward.*missing a required arg"),
    "too many": _argument(exported(LINEAR, (X, X)), "args: the example inputs do not match .* too many positional"),
    "too few": _argument(exported(SUM, (X,)), "args: the example inputs do not match .* required argument: 'y'"),
    "list": _argument(exported(LINEAR, [X]), r"args: expected a tuple or a tensor, got a list\nhint: pass a tuple"),
    "unknown keyword": _argument(
        exported(SUM, (X,), kwargs={"y": X, "z": X}), "kwargs: .*unexpected keyword argument 'z'"
    ),
    "twice": _argument(exported(SUM, (X, X), kwargs={"x": X}), "multiple values for argument 'x'"),
    "keywords": _argument(exported(SUM, (X,), kwargs=X), "kwargs: expected a dict of inputs by name, got a Tensor"),
    "shape": _capture(
        exported(LINEAR, (X.T,)),
        r"the model itself fails .*: RuntimeError\n  mat1 and mat2 shapes cannot be multiplied \(3x2 and 3x2\)\n"
        r"hint: call model\(\*args, \*\*kwargs\) until it runs",
    ),
    "shape in a layer": _capture(
        exported(Layers().eval(), (X,)), r"\(2x4 and 3x2\)\n(?s:.*)  in module 'layers\.1' \(Linear\)"
    ),
    "double": _capture(exported(LINEAR, (X.double(),)), r"same dtype(?s:.*)\nhint: pass input\.float\(\) .*double\(\)"),
    "half weights": _capture(exported(nn.Linear(3, 2).half().eval(), (X,)), r"\nhint: pass input\.half\(\) as the ex"),
    "text": _capture(exported(LINEAR, ("a",)), "itself fails .*: TypeError\n.*must be Tensor, not str"),
    "array": _argument(
        exported(Second(), (np.ones(3),)),
        r"args: args\[0\] is a numpy\.ndarray, which .*\nhint: pass torch\.from_numpy\(array\)",
    ),
    "array in a list": _argument(
        _second([X, {"a": np.ones(3)}]), r"kwargs: kwargs\['c'\]\[1\]\['a'\] is a numpy\.ndarray"
    ),
    "number of numpy": _argument(_second(np.int64(3)), r"is a numpy\.int64.*\nhint: pass value\.item\(\)"),
    "table": _argument(_second(_table()), r"is a pandas\.DataFrame.*\nhint: .*value\.to_numpy\(\)"),
    "set": _argument(_second({1, 2}), r"kwargs\['c'\] is a set, .*\nhint: pass a list or a tuple"),
    "generator": _argument(_second(i for i in ()), r"is a generator, .*\nhint: pass list\(iterator\)"),
    "file": _argument(_second(io.StringIO("a")), r"is a StringIO, .*\nhint: read the file"),
    "bytes": _argument(_second([b"a"]), r"kwargs\['c'\]\[0\] is a bytes, .*\nhint: .* as attributes of the model"),
    "class": _argument(_second(nn.Linear), r"kwargs\['c'\] is the class Linear, which"),
    "function": _argument(_second(len), r"kwargs\['c'\] is a builtin_function_or_method, which"),
    "python module": _argument(_second(io), r"kwargs\['c'\] is a module, which"),
    "layer as an input": _argument(
        _second(nn.Linear(3, 2)), r"is a Linear, .*\nhint: make it a submodule of the model"
    ),
    "dtype as an input": _argument(_second(torch.float16), r"kwargs\['c'\] is a dtype, which"),
    "generator of torch": _argument(_second(torch.Generator()), r"kwargs\['c'\] is a Generator, which"),
    "enum": _argument(_second(Mode.SUM), r"kwargs\['c'\] is a Mode, which"),
    "no tensors": _argument(_second({"a": SimpleNamespace(b=1)}), r"kwargs\['c'\]\['a'\] is a SimpleNamespace, which"),
    "empty cache": _argument(_second(_empty_cache()), r"is a DynamicCache, .*\nhint: leave an empty cache out"),
    "cycle": _argument(_second(_endless()), r"kwargs\['c'\]\[1\] contains itself\nhint: "),
    "sparse": _argument(exported(LINEAR, (X.to_sparse(),)), r"args\[0\] is a sparse tensor.*\nhint: .*to_dense\(\)"),
    "sparse rows": _argument(_second(torch.eye(2).to_sparse_csr()), r"kwargs\['c'\] is a sparse tensor"),
    "nested": _argument(exported(LINEAR, (_nested(),)), r"is a nested tensor, .*\nhint: .*to_padded_tensor"),
    "more inputs": _argument(linear(more_inputs=[X]), r"more_inputs: expected pairs of args and kwargs, got a Tensor"),
    "number of inputs": _argument(linear(more_inputs=3), "more_inputs: expected a list of examples, got an int"),
}
NAMES: dict[str, _Row] = {
    "text": _argument(
        linear(input_names="x"), r"input_names: expected a list of strings, got 'x'\nhint: write \['x'\]"
    ),
    "number": _argument(linear(input_names=[1]), "input_names: expected non-empty strings, got 1"),
    "empty": _argument(linear(input_names=[""]), "input_names: expected non-empty strings, got ''"),
    "twice": _argument(exported(SUM, (X, X), input_names=["x", "x"]), "input_names: 'x' is given twice"),
    "too many": _argument(exported(Second(), (X,), input_names=["a", "b"]), "input_names: 'b' is not used"),
    "too many outputs": _argument(
        linear(output_names=["a", "b"]), "output_names: 'b' is not used: 2 names for 1 output"
    ),
    "input and output": _argument(
        linear(input_names=["a"], output_names=["a"]), "output_names: 'a' is also the name of an input"
    ),
}
DIMS: dict[str, _Row] = {
    "key": _argument(dims({"inptu": {0: "n"}}), r"dynamic_shapes: 'inptu' is not .*\nhint: did you mean 'input'\?"),
    "no parameter": _argument(
        exported(Second(), (X,), dynamic_shapes={"y": {0: "n"}}), "dynamic_shapes: 'y' is not a parameter of forward"
    ),
    "axis": _argument(dims({"input": {5: "n"}}), r"has shape \(2, 3\), so it has no axis 5\nhint: its axes are 0 to 1"),
    "negative axis": _argument(dims({"input": {-3: "n"}}), "so it has no axis -3"),
    "axis as text": _argument(dims({"input": {"0": "n"}}), "its spec has the key '0'\nhint: the keys are axes"),
    "fraction": _argument(dims({"input": {0: 3.5}}), r"the spec of axis 0 of input is 3\.5\nhint: pass a name"),
    "other size": _argument(
        dims({"input": {0: 7}}), r"is 7, but the example has 2\nhint: an int keeps the axis static"
    ),
    "out of range": _argument(
        dims({"input": {0: Dim("n", min=5, max=9)}}), r"but the example has 2\nhint: pass an example within the range"
    ),
    "too many specs": _argument(dims(({0: "n"}, {0: "n"})), "it has 2 elements, but there are 1 inputs"),
    "text": _argument(dims("batch"), "dynamic_shapes: expected a dict, a tuple or a list, got 'batch'"),
    "too many axes": _argument(dims({"input": ["n", None, None]}), "its spec has 3 entries"),
    "sizes of one Dim": _argument(
        exported(SUM, (X, X[:1]), dynamic_shapes=({0: Dim("n")}, {0: Dim("n")})),
        "Dim 'n' is 2 on axis 0 of x, but 1 on",
    ),
    "fixed by the model": _capture(dims({"input": {1: "n"}}), "input axis 1, 'n', is always 3\nhint: look for sizes"),
    "legacy keyword": (
        linear(dynamic_axes={"input": {0: "n"}}),
        TypeError,
        r"got the keyword 'dynamic_axes': fxonnx\.torch_onnx_export takes it",
    ),
}
OPTIONS: dict[str, _Row] = {
    "misspelled": (linear(verfy=True), TypeError, "unexpected keyword argument 'verfy'; did you mean 'verify'"),
    "rare": (linear(functions="all"), TypeError, r"pass it as options=fxonnx\.ExportOptions\(functions=\.\.\.\)"),
    "torch's": (linear(do_constant_folding=True), TypeError, r"fxonnx\.torch_onnx_export takes it"),
    "opset as text": _argument(linear(opset_version="17"), r"opset_version: expected an int, got '17'\nhint: pass 17$"),
    "opset as float": _argument(
        linear(opset_version=17.0), r"opset_version: expected an int, got 17\.0\nhint: pass 17"
    ),
    "old opset": _argument(linear(opset_version=3), r"opset_version: 3 is outside .*\nhint: pass a number from 7 to"),
    "future opset": _argument(linear(opset_version=99), "opset_version: 99 is outside the supported opsets"),
    "verify": _argument(linear(verify="yes"), "verify: expected one of False, True, 'auto', got 'yes'"),
    "target": _argument(linear(target="tensorflow"), r"target: expected one of .*\nhint: did you mean 'tensorrt'\?"),
    "quantize": _argument(
        linear(quantize="int3"), r"quantize: dtype: .*got 'int3'\nhint: did you mean 'int4' or 'int8'"
    ),
    "state": _argument(linear(state="keep"), "state: expected one of 'warn', 'io', 'outputs', 'error', got 'keep'"),
    "numerics": _argument(
        lambda: Options(numerics="fast") and linear(options=Options(numerics="fast"))(), "numerics: ex"
    ),
    "dict": _argument(linear(options={"numerics": "exact"}), "options: expected an fxonnx.ExportOptions, got"),
    "diagnostics": _argument(linear(diagnostics="page"), r"diagnostics: expected an fxonnx\.Diagnostics or a bool"),
    "frozen": _argument(linear(frozen=["z"]), r"frozen: 'z' matches no tensor .*\nhint: the graph inputs are: input"),
    "frozen text": _argument(linear(frozen="input"), "frozen: expected a list of names, got 'input'"),
    "scalars": _argument(linear(dynamic_scalars=["k"]), "dynamic_scalars: the example inputs have no number 'k'"),
    "data dependent": _argument(linear(data_dependent="trace"), "data_dependent: expected one of 'error', 'example'"),
    "key of a translation": _argument(
        linear(custom_translation_table={"aten::relu": abs}), r"'aten::relu' is not an operator\nhint: .*relu\.default"
    ),
    "translation": _argument(
        linear(custom_translation_table={RELU: 3}), "the value for aten.relu.default is an int, not a function"
    ),
    "translation of nothing": (
        applied(torch.relu, custom_translation_table={RELU: lambda op, x: None}),
        fxonnx.TranslationError,
        r"translating aten\.relu\.default: the translation returned None(?s:.*)\nhint: return the value of the last op",
    ),
    "operator of a translation": (
        applied(torch.relu, custom_translation_table={RELU: lambda op, x: op.Foo(x)}),
        fxonnx.UnsupportedOperatorError,
        "ONNX has no Foo at opset 20, did you mean",
    ),
}
FILES: dict[str, _Row] = {
    "number": _argument(linear(3), "f: expected a path or a binary file, got int"),
    "closed": _argument(linear(_closed()), "f: the file is closed\nhint: save the model before"),
    "text": _argument(linear(io.StringIO()), 'f: the file is open for writing text\nhint: open it with mode "wb"'),
    "directory": (linear("."), fxonnx.SaveError, "is a directory\nhint: specify the name of a file"),
    "no directory": (linear("none/m.onnx"), fxonnx.SaveError, "directory none does not exist\nhint: create it first"),
    "nothing": _argument(
        lambda: linear()().save(None),
        r'destination: expected a path or a binary file, got None\nhint: write "model\.onnx"',
    ),
    "file to verify": _argument(lambda: fxonnx.verify("none.onnx", LINEAR, (X,)), "file none.onnx does not exist"),
}
CALLS: dict[str, _Row] = {
    "too many": _argument(
        lambda: linear()()(X, X), "args: got 2 positional arguments, but the model was exported with 1"
    ),
    "shape": _argument(lambda: linear()()(X.T), r"input: expected shape \[2, 3\], got \[3, 2\]"),
    "size": _argument(
        lambda: linear()()(torch.rand(5, 3)),
        r'expected shape \[2, 3\], got \[5, 3\]\nhint: .* export with dynamic_shapes={"input": {0: "input_0"}}',
    ),
    "rtol": _argument(
        lambda: linear()().verify(rtol="a"), "rtol: expected a number of at least 0, got 'a'\nhint: rtol=1e-3"
    ),
    "atol": _argument(lambda: linear()().verify(atol=-1), "atol: expected a number of at least 0, got -1"),
    "dtype": _argument(lambda: linear()()(X.double()), r"expected dtype torch\.float32, .*\nhint: convert the values"),
    "dim": _argument(lambda: dims({"input": {0: "n"}})().verify(sizes=[{"m": 3}]), "sizes: unknown dim 'm'\nhint: the"),
    "other weights": (
        lambda: linear()().verify(model=nn.Linear(3, 2)),
        fxonnx.VerificationError,
        "the model has other weights than the program: 'weight' and 1 more",
    ),
    "weights": _argument(
        lambda: linear()().apply_weights({"weight": torch.rand(3, 3)}), r"'weight' is .* of shape \[3, 3\], expected"
    ),
}
MISTAKES = {
    f"{group}, {name}": row
    for group, rows in {
        "model": MODELS,
        "inputs": INPUTS,
        "names": NAMES,
        "dims": DIMS,
        "options": OPTIONS,
        "files": FILES,
        "calls": CALLS,
    }.items()
    for name, row in rows.items()
}


def test_there_are_many() -> None:
    assert len(MISTAKES) > 90


@pytest.mark.filterwarnings("ignore:the model is in training mode")
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make, kind, match = MISTAKES[name]
    monkeypatch.setattr(sys, "breakpointhook", _quit)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=match) as caught:
        make()
    check_message(caught.value)
    # torch's own log does not precede the message.
    assert capfd.readouterr().err == ""


def _quit() -> None:
    from bdb import BdbQuit

    raise BdbQuit


def test_some_parameters_are_renamed() -> None:
    linear = nn.Linear(3, 2).eval()
    with pytest.warns(UserWarning, match="more names than the model has inputs: parameters are renamed to 'y'"):
        fxonnx.export(linear, (X,), input_names=["x", "y"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fxonnx.export(linear, (X,), input_names=["x", "w", "b"])


def test_a_quantization_without_effect() -> None:
    with pytest.warns(UserWarning, match="quantize: the model has no linear layer that can be quantized"):
        applied(torch.relu, quantize="int8")()


def test_tensors_of_inference_mode() -> None:
    with torch.inference_mode():
        x = torch.rand(2, 3)
    program = fxonnx.export(LINEAR, (x,), dynamic_shapes={"input": {0: "n"}}, verify="auto")
    torch.testing.assert_close(program(x)[0], LINEAR(X.copy_(x)))


def test_errors_are_of_public_classes() -> None:
    with pytest.raises(fxonnx.CaptureError) as caught:
        dims({"input": {1: "n"}})()
    assert type(caught.value) is fxonnx.CaptureError


def test_the_log_of_torch(tmp_path: Path) -> None:
    """The traceback that torch logs is on the page, or is shown with verbose."""
    handlers = logging.getLogger("torch._subclasses.fake_tensor").handlers
    handler: Any = next(one for one in handlers if type(one.formatter).__module__.startswith("torch."))
    shown = io.StringIO()
    before = handler.setStream(shown)
    diagnostics = fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path)
    with pytest.raises(fxonnx.CaptureError):
        exported(LINEAR, (X.T,), diagnostics=diagnostics)()
    assert shown.getvalue() == ""
    for page in tmp_path.iterdir():
        assert "failed while attempting to run meta for aten.mm.default" in page.read_text()
    with pytest.raises(fxonnx.CaptureError):
        exported(LINEAR, (X.T,), diagnostics=fxonnx.Diagnostics(verbose=True))()
    assert "failed while attempting to run meta for aten.mm.default" in shown.getvalue()
    handler.setStream(before)


def test_a_wrong_call_of_the_log() -> None:
    """Logging reports the error and goes on."""
    handlers = logging.getLogger("torch._dynamo").handlers
    handler = next(one for one in handlers if type(one.formatter).__module__.startswith("torch."))
    with held_torch_log() as texts:
        handler.handle(logging.LogRecord("torch._dynamo", logging.WARNING, __file__, 1, "%d", ("x",), None))
    assert texts == ["%d"]


class Slots:
    """An object without ``__dict__``, one attribute of which has a mangled name and one no value."""

    __slots__ = ("__scale", "a", "unset")

    def __init__(self, a: torch.Tensor, scale: int = 1) -> None:
        self.a = a
        self.__scale = scale

    def scale(self) -> int:
        return self.__scale


class Derived(Slots):
    """An object with ``__slots__`` and ``__dict__``."""

    def __init__(self, a: torch.Tensor) -> None:
        super().__init__(a)
        self.more = {"b": a * 2}


@dataclass(frozen=True, slots=True)
class Frozen:
    a: torch.Tensor
    mode: str = "sum"


class Uncopyable:
    def __init__(self, a: torch.Tensor) -> None:
        self.a = a
        self.lock = threading.Lock()

    def __deepcopy__(self, memory: Any) -> Any:
        raise TypeError


class SumOf(nn.Module):
    """A model that reads a tensor of its second input, and the constants beside it."""

    def forward(self, x: torch.Tensor, c: Any) -> torch.Tensor:
        y = x * c.scale() if isinstance(c, Slots) else x
        y = y + c.more["b"] if isinstance(c, Derived) else y
        return y + c.a


@pytest.mark.parametrize("kind", [lambda a: SimpleNamespace(a=a), Slots, Derived, Frozen, Uncopyable])
def test_objects_hold_tensors(kind: Callable[[torch.Tensor], Any]) -> None:
    """A call with as many arguments as there are tensors is not one with the tensors themselves."""
    model = SumOf().eval()
    program = fxonnx.export(model, (X, kind(torch.ones(2, 3))))
    for given in (kind(torch.rand(2, 3)), kind(torch.rand(2, 3))):
        torch.testing.assert_close(program(X, given)[0], model(X, given))


def test_a_shape_as_an_input() -> None:
    program = fxonnx.export(Second(), (X, X.shape))
    torch.testing.assert_close(program(X, X.shape)[0], X * 2)
    torch.testing.assert_close(program(X, (2, 3))[0], X * 2)
    with pytest.raises(fxonnx.ArgumentError, match=r"c: got 4, but .* the constant 2"):
        program(X, torch.Size([4, 3]))


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel], ids=["compiled", "parallel"])
def test_models_in_wrappers(wrap: Callable[[nn.Module], nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of inputs and weights are those of the module inside."""
    # torch.compile disables the validation of distributions permanently; it is restored after the test.
    monkeypatch.setattr(Distribution, "_validate_args", Distribution._validate_args)
    linear = nn.Linear(3, 2).eval()
    program = fxonnx.export(wrap(linear), (X,))
    assert [value.name for value in program.model.graph.inputs] == ["input"]
    assert {*program.model.graph.initializers} == {"weight", "bias"}
    torch.testing.assert_close(program(X)[0], linear(X))


def test_an_attribute_like_that_of_a_compiled_model() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._orig_mod = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self._orig_mod(x) + 1

    model = Own().eval()
    torch.testing.assert_close(fxonnx.export(model, (X,))(X)[0], model(X))


def test_the_package_is_a_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["fxonnx", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("fxonnx", run_name="__main__")
    assert ended.value.code == 0
    assert fxonnx.__version__ in capsys.readouterr().out
