"""Mistakes of users in control flow, custom operators, calls, files, quantization, checkpoints and old scripts."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import fxonnx
from fxonnx import QuantizeConfig

from .functions import Function, VariadicFunction
from .messages import check_message
from .models.torchvision_shim import import_torchvision
from .test_mistakes import MISTAKES as FIRST_MISTAKES

X = torch.rand(2, 3)
LINEAR = nn.Linear(3, 2).eval()
RELU = torch.ops.aten.relu.default


def wrong(value: Any) -> Any:
    """An argument of a wrong type."""
    return value


_Row = tuple[Callable[[], Any], type[Exception], str]


@torch.library.custom_op("mistakes::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("mistakes::thrice", mutates_args=())
def thrice(x: torch.Tensor) -> torch.Tensor:
    return x * 3


thrice.register_fake(torch.empty_like)
_LIBRARY = torch.library.Library("mistakes", "FRAGMENT")
_LIBRARY.define("half(Tensor x) -> Tensor")
_LIBRARY.impl("half", lambda x: x / 2, "CPU")


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 1


class NumberOf(nn.Module):
    def forward(self, x: torch.Tensor, k: int) -> torch.Tensor:
        return x[:, :k]


def _other_types(x: torch.Tensor) -> Any:
    if x.sum() > 0:
        return x, x
    return x


def _other_type_of_a_name(x: torch.Tensor) -> Any:
    y: Any = [x]
    if x.sum() > 0:
        y = x
    return y


def _growing(x: torch.Tensor) -> Any:
    found = []
    while x.sum() > 0.1:
        x = x / 2
        found.append(x)
    return found


def _key(x: torch.Tensor) -> torch.Tensor:
    found = {}
    for value in x.flatten():
        found[value.item()] = value
    return torch.stack(list(found.values()))


def _handled(x: torch.Tensor) -> torch.Tensor:
    try:
        if x.sum() < 0:
            raise ValueError
    except ValueError:
        return x * 2
    return x


def _advanced(x: torch.Tensor) -> Any:
    rows = iter(x)
    if next(rows).sum() > 0:
        return next(rows)
    return [x]


def _negative(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("negative input")


def of(function: Callable[[torch.Tensor], Any], x: torch.Tensor = X, **options: Any) -> Callable[[], Any]:
    return lambda: fxonnx.export(Function(function).eval(), (x,), **options)


def linear(*args: Any, **options: Any) -> fxonnx.ONNXProgram:
    return fxonnx.export(LINEAR, (X,), *args, **options)


def square(**options: Any) -> Callable[[], Any]:
    """The export of a layer that can be quantized."""
    return lambda: fxonnx.export(nn.Sequential(nn.Linear(64, 64)).eval(), (torch.rand(1, 64),), **options)


def drop_in(**options: Any) -> Callable[[], Any]:
    return lambda: fxonnx.torch_onnx_export(LINEAR, (X,), input_names=["input"], **options)


def translated(function: Any) -> Callable[[], Any]:
    return of(torch.relu, custom_translation_table={RELU: function})


def _argument(make: Callable[[], Any], match: str) -> _Row:
    return make, fxonnx.ArgumentError, match


def _capture(make: Callable[[], Any], match: str) -> _Row:
    return make, fxonnx.CaptureError, match


def _dependent(function: Callable[[torch.Tensor], Any], match: str = "") -> _Row:
    """Code that asks for the value of a tensor: the message has the line, the input and both ways out."""
    ways = r'depends on "x": pass data_dependent="example" (?s:.*)frozen=\["x"\]'
    return _capture(of(function), rf"value of a tensor(?s:.*){match}(?s:.*)at: \S*test_mistakes_by_topic(?s:.*){ways}")


CONTROL_FLOW: dict[str, _Row] = {
    "types of results": _dependent(_other_types, "of type tuple in one branch"),
    "types of a name": _dependent(_other_type_of_a_name, "y is a float32 tensor .* and of type list"),
    "growing list": _dependent(_growing, "it adds items to a list"),
    "values as keys": _dependent(_key),
    "handled error": _dependent(_handled),
    "advanced iterator": _dependent(_advanced, "it advances a tuple_iterator"),
    "index of a list": _dependent(lambda x: [x, x + 1][int(x.sum().item()) % 2]),
    "sorted by values": _dependent(lambda x: x[sorted(range(2), key=lambda i: x[i].sum().item())]),
    "loop over values": _dependent(lambda x: sum(x * value for value in x.unique().tolist())),
    "text of a tensor": _capture(
        of(lambda x: x * len(str(x))),
        r"the text of a tensor \(\S*test_mistakes_by_topic\.py:\d+ (?s:.*)hint: write",
    ),
    "raises": _capture(
        of(_negative), r"the model itself fails (?s:.*)negative input\n  at: \S*test_mistakes_by_topic\.py:\d+ in _neg"
    ),
    "gradient of an input": _capture(
        of(lambda x: torch.autograd.grad(x.sin().sum(), x)[0]),
        r"does not require grad(?s:.*)at: (?s:.*)hint: call model",
    ),
    "another device": _capture(
        of(lambda x: x + torch.ones(3, device="meta")), r"device meta(?s:.*)at: (?s:.*)hint: call model\(\*args"
    ),
    "NumPy result": _capture(
        of(lambda x: x.numpy()), r"forward returns a NumPy array(?s:.*)at: (?s:.*)hint: return the tensor"
    ),
    "generator as result": _capture(
        of(lambda x: (one for one in [x])), r"of the class generator(?s:.*)hint: return ten"
    ),
    "no forward": _capture(lambda: fxonnx.export(nn.ModuleList([LINEAR]), (X,)), "ModuleList.*missing the required"),
    "None for a tensor": _capture(
        lambda: fxonnx.export(VariadicFunction(lambda x, y: x + y), (X, None)), r"'NoneType'\n  at: (?s:.*)hint: call"
    ),
}
SIZES: dict[str, _Row] = {
    "bool": _argument(lambda: linear(dynamic_shapes={"input": True}), r'its spec is True\nhint: .*\{0: "batch"\}'),
    "name": _argument(lambda: linear(dynamic_shapes={"input": "n"}), r"its spec is 'n'\nhint: .*\{0: \"batch\"\}"),
    "set": _argument(lambda: linear(dynamic_shapes={"input": {0}}), r"its spec is \{0\}\nhint: pass a dim for each"),
    "swapped": _argument(
        lambda: linear(dynamic_shapes={"input": {"batch": 0}}), "has the key 'batch'\nhint: the keys are axes: for ex"
    ),
    "output": _argument(
        lambda: linear(dynamic_shapes={"output": {0: "n"}}), "'output' is not a parameter .*\nhint: .*: input"
    ),
    "empty name": _argument(
        lambda: linear(dynamic_shapes={"input": {0: ""}}), "axis 0 of input is empty\nhint: pass a n"
    ),
    "class": _argument(lambda: linear(dynamic_shapes={"input": {0: Dim}}), r"hint: pass a name, a torch\.export\.Dim"),
    "number of elements": _argument(
        lambda: fxonnx.export(Function(sum), ([X, X],), dynamic_shapes={"x": [{0: "n"}]}),
        r"x has 2 elements, but its spec has 1: .*\nhint: pass 2 specs",
    ),
    "frozen": _argument(
        lambda: linear(frozen=["input"], dynamic_shapes={"input": {0: "n"}}),
        "input is None or frozen.*\nhint: pass None",
    ),
    "static in the program": _capture(
        lambda: fxonnx.export(torch.export.export(LINEAR, (X,)), dynamic_shapes={"input": {0: "n"}}),
        r"captured with a fixed size (?s:.*)is always 2\nhint: pass dynamic_shapes to torch\.export\.export",
    ),
    "view": _capture(
        of(lambda x: x.view(2, 3), dynamic_shapes=({0: "n"},)), r"'n', is always 2\n    at: (?s:.*)hint: look for sizes"
    ),
    "two names": _capture(
        lambda: fxonnx.export(
            VariadicFunction(lambda x, y: x + y), (X, X), dynamic_shapes=[[{0: "n"}, {0: "m"}]], strict_shapes=True
        ),
        r"only for:\n  m == n\n    at: (?s:.*)hint: pass strict_shapes=False",
    ),
    "example of size 1": _capture(
        of(lambda x: x.squeeze(0), X[:1], dynamic_shapes=({0: "n"},), strict_shapes=True),
        r"the example has n = 1\n(?s:.*)hint: pass an example of a different size",
    ),
    "size of a call": _argument(
        lambda: of(lambda x: x.reshape(-1, 4), torch.rand(8, 3), dynamic_shapes=({0: "n"},))()(torch.rand(7, 3)),
        r"exported for n % 4 == 0, got n = 7(?s:.*)hint: .*export again",
    ),
    "more inputs": _argument(
        lambda: linear(more_inputs=[((X, X), None)]), r"too many positional arguments\nhint: .*one call"
    ),
    "more inputs without kwargs": _argument(
        lambda: linear(more_inputs=[(X,)]), r"expected pairs .*\nhint: write \[\(\("
    ),
    "number": _argument(
        lambda: fxonnx.export(NumberOf(), (X, 2), dynamic_scalars={"n"}), "no number 'n'\nhint: the numbers are: k"
    ),
    "inputs of a program": _argument(
        lambda: fxonnx.export(torch.export.export(LINEAR, (X,)), (X, X)), "takes 1 inputs, got 2 .*\nhint: leave it out"
    ),
}
OPERATORS: dict[str, _Row] = {
    "no shape": _capture(
        of(lambda x: twice(x)),
        r"result of mistakes::twice, .*\n  at: \S*topic\.py:\d+ (?s:.*)hint: .*register_fake\(\"mistakes::twice\"",
    ),
    "no shape, declared": _capture(
        of(lambda x: torch.ops.mistakes.half(x)),
        r"result of mistakes::half, .*\n  at: \S*topic\.py:\d+ (?s:.*)hint: .*register_fake\(\"mistakes::half\"",
    ),
    "no translation": (
        of(lambda x: thrice(x)),
        fxonnx.UnsupportedOperatorError,
        r"mistakes\.thrice\.default, used once, first at \S*functions\.py:\d+(?s:.*)hint: pass a translation of your own",
    ),
    "no operator of ONNX": (
        of(lambda x: torch.linalg.eig(x[:, :2])[0]),
        fxonnx.UnsupportedOperatorError,
        r"linalg_eig(?s:.*)hint: return the matrix and factorize it outside of the graph, or call what can be exported: eigh",
    ),
    "no factorization of complex numbers": (
        of(lambda x: torch.linalg.ldl_factor(x[:, :2] * 1j)[0]),
        fxonnx.UnsupportedOperatorError,
        r"linalg_ldl_factor(?s:.*)hint: return the matrix .* lu_factor, cholesky and solve of complex ones as well",
    ),
    "older opset": (
        of(lambda x: torch.linalg.inv(x[:, :2]), opset_version=9),
        fxonnx.UnsupportedOperatorError,
        r"supported from opset 11\nhint: pass opset_version=11",
    ),
    "type of an older opset": _argument(
        of(lambda x: x * 2, X.bfloat16(), opset_version=9), "input 'x' is BFLOAT16, .*\nhint: pass opset_version=13"
    ),
    "raises": (
        translated(lambda op, x: 1 // 0),
        fxonnx.TranslationError,
        r"relu\.default: ZeroDivisionError: .*\n  in: \S*topic\.py:\d+ (?s:.*)hint: .*aten::relu\(Tensor self\)",
    ),
    "parameters": (
        translated(lambda op: None),
        fxonnx.TranslationError,
        r"takes 1 positional argument(?s:.*)hint: the function is called with op and the arguments of aten::relu",
    ),
    "element type": (
        translated(lambda op, x: op.Cast(x, to=7)),
        fxonnx.TranslationError,
        r"returned INT64, torch returns FLOAT(?s:.*)hint: convert the value: op\.Cast",
    ),
    "shape": (
        translated(lambda op, x: op.Transpose(x, perm=[1, 0])),
        fxonnx.TranslationError,
        r"returned shape \[3, 2\], torch returns \[2, 3\](?s:.*)hint: op\.result\.shape",
    ),
    "rank": (
        translated(lambda op, x: op.Unsqueeze(x, [0])),
        fxonnx.TranslationError,
        r"returned (rank|shape)(?s:.*)hint: op\.result\.shape",
    ),
    "number as result": (
        translated(lambda op, x: 3),
        fxonnx.TranslationError,
        r"returned an int, not a value of the graph(?s:.*)hint: return the value of the last op",
    ),
    "number of results": (
        translated(lambda op, x: (x, x)),
        fxonnx.TranslationError,
        r"returned 2 values, torch returns 1(?s:.*)hint: .*aten::relu",
    ),
    "list": _argument(
        of(torch.relu, custom_translation_table=[torch.relu]), r"expected a dict, got a list\nhint: write \{torch\.ops"
    ),
    "packet": _argument(
        of(torch.relu, custom_translation_table={torch.ops.aten.relu: abs}), r"overload packet\nhint: .*relu\.default"
    ),
    "symbolic name": _argument(
        lambda: fxonnx.register_custom_op_symbolic("relu", lambda g, x: x, 17),
        "'relu' is not .*\nhint: write namespace",
    ),
}
CALLS: dict[str, _Row] = {
    "nothing": _argument(lambda: linear()(), "input: missing argument\nhint: the exported arguments are: input"),
    "unknown name": _argument(lambda: linear()(inptu=X), "inptu: unknown argument\nhint: did you mean 'input'"),
    "list": _argument(lambda: linear()([[1.0, 2.0, 3.0]]), r"expected a tensor, got list\nhint: pass torch\.tensor"),
    "integers": _argument(lambda: linear()(X.long()), r"got torch\.int64\nhint: convert .*\.to\(torch\.float32\)"),
    "meta": _argument(lambda: linear()(X.to("meta")), r"without, on the meta device or fake\nhint: pass a tensor on"),
    "run": (lambda: linear().run(X), AttributeError, r"no attribute 'run'; it is program\(\*args"),
    "proto": (
        lambda: linear().onnx_model,
        AttributeError,
        r"'onnx_model'; it is program\.model, or program\.model_proto",
    ),
    "pickle": (lambda: pickle.dumps(linear()), fxonnx.SaveError, r"cannot be pickled: .*\nhint: save the file"),
    "no state": _argument(lambda: linear().stateful_session(), 'no state, .*\nhint: export with state="io"'),
    "state of outputs": _argument(
        lambda: fxonnx.export(Counter(), (X,), state="outputs").stateful_session(), 'hint: export with state="io"'
    ),
    "forbidden state": (
        lambda: fxonnx.export(Counter(), (X,), state="error"),
        fxonnx.StateError,
        r"forward writes to 'total'(?s:.*)topic\.py:\d+\nhint: pass state=\"io\"",
    ),
    "value as text": _argument(
        lambda: linear().compute_values("linear", (X,)), r"got 'linear'\nhint: write \['linear'\]"
    ),
    "unknown value": _argument(lambda: linear().compute_values(["linaer"], (X,)), "hint: did you mean 'linear'"),
    "dims as a list": _argument(lambda: linear().rename_axes(wrong(["a"])), "got a list\nhint: write"),
    "weights of a module": _argument(
        lambda: linear().apply_weights(wrong(LINEAR)),
        r"state_dict: expected a dict .*Linear\nhint: pass model\.state_dict\(\)",
    ),
    "dtype of weights": _argument(
        lambda: linear().apply_weights({"weight": torch.rand(2, 3).double()}), "torch.float64 .*\nhint: re-export"
    ),
}
CHECKS: dict[str, _Row] = {
    "sizes as a dict": _argument(
        lambda: linear(dynamic_shapes={"input": {0: "n"}}).verify(sizes=wrong({"n": 5})),
        r"sizes: expected 'auto' or a list of dicts, .*\nhint: for example \[\{\"n\": 3\}\]",
    ),
    "negative size": _argument(
        lambda: linear(dynamic_shapes={"input": {0: "n"}}).verify(sizes=[{"n": -1}]), r"'n' is -1\nhint: pass an int of"
    ),
    "dtype": _argument(
        lambda: linear().verify((X.half(),)), "eager torch failed: .*Half and Float\nhint: call the model"
    ),
    "number": _argument(
        lambda: fxonnx.verify(3, LINEAR, (X,)), "program: expected an ONNXProgram .*got an int\nhint: wr"
    ),
    "model": _argument(
        lambda: fxonnx.verify(LINEAR, LINEAR, (X,)), r"got a Linear\nhint: write verify\(fxonnx\.export"
    ),
    "no inputs": _argument(lambda: fxonnx.verify("m.onnx"), r"model: a saved file has no model .*\nhint: verify\(path"),
    "text as a file": _argument(
        lambda: fxonnx.diff(linear(), 3), "model: expected a path .*got int\nhint: pass a path"
    ),
    "report of a number": _argument(lambda: fxonnx.report(3, "x.html"), "got int\nhint: pass a path"),
    "target": _argument(lambda: fxonnx.check(linear().model, "ort-web"), "target: expected one of 'onnxruntime'"),
    "directory of a report": _argument(
        lambda: fxonnx.Diagnostics(report=True, artifacts_dir=3), "artifacts_dir: expected a path, got 3\nhint: write"
    ),
}
FILES: dict[str, _Row] = {
    "external data": _argument(
        lambda: linear("m.onnx", external_data="yes"), 'external_data: expected True, False, None, "safetensors" or'
    ),
    "no weights": (
        lambda: fxonnx.export(nn.Linear(3, 2, device="meta"), (X.to("meta"),)).save("m.onnx"),
        fxonnx.SaveError,
        r"2 weights have no values .*\nhint: pass them: save\(\.\.\., weights=",
    ),
    "no directory": (
        lambda: fxonnx.save_all({"a": linear()}, "none"),
        fxonnx.SaveError,
        "directory none does not exist\nhint: create it first",
    ),
    "no adapter": _argument(lambda: linear().save_adapter("a.onnx_adapter"), "no adapter weights\nhint: select them"),
    "names of adapters": _argument(
        lambda: linear(adapters="lora"), r"'lora' matches no parameter .*\nhint: for example"
    ),
    "adapters": _argument(lambda: linear(adapters=3), r"adapters: expected a pattern .*got 3\nhint: write"),
    "names as a dict": _argument(
        lambda: linear(input_names={"input": "x"}), r"got \{'input': 'x'\}\nhint: write \[\"x\"\]"
    ),
    "name None": _argument(lambda: linear(output_names=[None]), "non-empty strings, got None\nhint: leave names at"),
}
QUANTIZATION: dict[str, _Row] = {
    "element type": _argument(square(quantize=QuantizeConfig("fp4")), "dtype: .*got 'fp4'"),
    "bool": _argument(square(quantize=True), 'quantize: expected "int4", .*got True\nhint: write quantize="int4"'),
    "block": _argument(square(quantize=QuantizeConfig(block_size=33)), "block_size: .*33"),
    "names": _argument(
        square(quantize=QuantizeConfig(include=["nope*"])), r"include: 'nope\*' matches no .*\nhint: the layers are '0'"
    ),
    "no calibration": _argument(
        square(quantize=QuantizeConfig("int8", activations="static")), "requires calibration\nhint: pass batches"
    ),
    "batches": _argument(
        square(quantize=QuantizeConfig("int8", activations="static", calibration=[torch.rand(1, 3)])),
        r"batch 0 does not fit the model: input: expected shape \[1, 64\], got \[1, 3\]\nhint: ",
    ),
    "no batches": _argument(
        square(quantize=QuantizeConfig("int8", activations="static", calibration=[])), "calibration: .*\nhint: "
    ),
    "opset": _argument(square(quantize="int4", opset_version=9), "require opset 21, .*\nhint: pass opset_version=21"),
}
OPTIONS: dict[str, _Row] = {
    "pattern": _argument(
        lambda: linear(options=fxonnx.ExportOptions(patterns={"gelu2": False})),
        "pattern 'gelu2'\nhint: did you mean 'g",
    ),
    "IR version": _argument(
        lambda: linear(options=fxonnx.ExportOptions(ir_version=99)),
        "99 cannot be written: .*\nhint: pass a number from",
    ),
    "IR version as text": _argument(
        lambda: linear(options=fxonnx.ExportOptions(ir_version=wrong("9"))), "got '9'\nhint: pass a"
    ),
    "metadata": _argument(
        lambda: linear(options=fxonnx.ExportOptions(metadata="all")), "metadata: expected one of 'full'"
    ),
    "guards": _argument(
        lambda: linear(options=fxonnx.ExportOptions(guards="no")), "guards: expected one of False, True, got 'no'"
    ),
    "opset bool": _argument(lambda: linear(opset_version=True), "expected an int, got True\nhint: pass a number"),
    "options": _argument(
        lambda: linear(options={"metadata": "none"}), "expected an fxonnx.ExportOptions.*\nhint: write"
    ),
    "scalars as text": _argument(lambda: linear(dynamic_scalars="k"), "expected a set of names, got 'k'\nhint: write"),
    "target": _argument(lambda: linear(target="cpu"), "target: expected one of None, 'onnxruntime', .*got 'cpu'"),
}
OLD_SCRIPTS: dict[str, _Row] = {
    "training": _argument(
        drop_in(training=True), r"training: expected a torch\.onnx\.TrainingMode, .*\nhint: pass Train"
    ),
    "opset": _argument(drop_in(opset_version=6), "6 is outside the supported opsets\nhint: pass a number from 7"),
    "axes as a list": _argument(drop_in(dynamic_axes=["input"]), r"got \['input'\]\nhint: write \{\"x\": \{0: \"batch"),
    "axes as a name": _argument(
        drop_in(dynamic_axes={"input": "n"}), r"spec of 'input' is 'n'\nhint: pass \{axis: name"
    ),
    "axis": _argument(drop_in(dynamic_axes={"input": {7: "n"}}), "it has no axis 7\nhint: its axes are 0 to 1"),
    "axes and shapes": _argument(
        drop_in(dynamic_axes={"input": {0: "n"}}, dynamic_shapes={"input": {0: "n"}}),
        "is also given\nhint: specify all",
    ),
    "custom opsets": _argument(drop_in(custom_opsets={"my": "1"}), r"version of 'my' is '1', .*\nhint: write \{"),
    "functions": _argument(drop_in(export_modules_as_functions="yes"), 'hint: leave it out, or pass functions="rep'),
    "compat": _argument(drop_in(compat="ts"), "compat: expected one of None, 'torchscript', got 'ts'"),
    "file": _argument(drop_in(f=5), "f: expected a path or a binary file, got int"),
}
CHECKPOINTS: dict[str, _Row] = {
    "precision": _argument(lambda: _genai(".", "out", precision="int2"), "got 'int2'\nhint: did you mean 'int4' or"),
    "target": _argument(lambda: _genai(".", "out", target="tpu"), "target: expected 'cpu', 'cuda', got 'tpu'\nhint: "),
    "number": _argument(lambda: _genai(3, "out"), "model: "),
    "layer": _argument(lambda: _genai(LINEAR, "out"), "model: "),
    "layout": _argument(lambda: _huggingface(".", "out", layout="onnx"), "layout: expected 'optimum', .*got 'onnx'"),
    "dtype": _argument(lambda: _huggingface(".", "out", dtype="int4"), r"got 'int4'\nhint: write dtype=\"q8\""),
    "model of torch": _argument(lambda: _huggingface(LINEAR, "out"), "model: "),
    "nothing to load": _argument(lambda: _load("none"), "directory none does not exist\nhint: pass a directory that"),
    "no checkpoint": _argument(lambda: _huggingface("./none", "out"), "directory none does not exist"),
}
MISTAKES = {
    f"{group}, {name}": row
    for group, rows in {
        "control flow": CONTROL_FLOW,
        "sizes": SIZES,
        "operators": OPERATORS,
        "calls": CALLS,
        "checks": CHECKS,
        "files": FILES,
        "quantization": QUANTIZATION,
        "options": OPTIONS,
        "old scripts": OLD_SCRIPTS,
        "checkpoints": CHECKPOINTS,
    }.items()
    for name, row in rows.items()
}


def _genai(*args: Any, **options: Any) -> Any:
    import_torchvision()
    import fxonnx.genai

    return fxonnx.genai.export(*args, **options)


def _huggingface(*args: Any, **options: Any) -> Any:
    import_torchvision()
    import fxonnx.huggingface

    return fxonnx.huggingface.export(*args, **options)


def _load(directory: str) -> Any:
    import_torchvision()
    import fxonnx.huggingface

    return fxonnx.huggingface.load(directory)


def test_there_are_many() -> None:
    assert len(FIRST_MISTAKES) + len(MISTAKES) > 220


@pytest.fixture(autouse=True)
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make, kind, match = MISTAKES[name]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=match) as caught:
        make()
    check_message(caught.value)
