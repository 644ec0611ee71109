"""Command line: models from files, with the shapes of their inputs and dynamic dims as options."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

import fxonnx
from fxonnx import ArgumentError
from fxonnx._cli.commands import app
from fxonnx._cli.inputs import example_inputs, named_as_options

SOURCE = """
import torch
from torch import nn

from sizes_of_models import WIDTH

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 2), nn.Dropout())

    def forward(self, x, scale=None):
        y = self.layers(x)
        return y if scale is None else y * scale

class Wide(nn.Module):
    def __init__(self, width):
        super().__init__()

class Embedding(nn.Embedding):
    def __init__(self):
        super().__init__(2, 3)

class Several(nn.Module):
    def forward(self, *xs, **named):
        return xs[0] + xs[1] * named["k"]

class Constant(nn.Module):
    def forward(self):
        return torch.ones(3)

class Fails(nn.Module):
    def __init__(self):
        raise ValueError("no weights today")

net = Net()
number = 3

def make():
    torch.manual_seed(1)
    return Net().eval()

def traced():
    return torch.jit.trace(make(), torch.ones(3, WIDTH))

def program():
    return torch.export.export(make(), (torch.ones(3, WIDTH),)), (torch.ones(3, WIDTH),)

def make_all():
    return make(), (torch.ones(3, WIDTH),), None, {"x": {0: "batch"}}

if __name__ == "__main__":
    raise SystemExit("run as a script")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with models in another one."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models/made-models.py").write_text(SOURCE)
    (tmp_path / "models/sizes_of_models.py").write_text("WIDTH = 4\n")
    (tmp_path / "models/typing.py").write_text("import torch\nLinear = torch.nn.Flatten\n")
    (tmp_path / "models/broken.py").write_text("def (")
    (tmp_path / "models/empty.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    torch.export.save(torch.export.export(nn.Linear(3, 2), (torch.ones(4, 3),)), "linear.pt2")
    yield tmp_path
    for name in [one for one, module in sys.modules.items() if str(tmp_path) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


def invoke(line: str) -> Result:
    return CliRunner().invoke(app, line.replace("M:", "models/made-models.py:").split(), env={"COLUMNS": "200"})


EXPORTS: list[tuple[str, dict[str, tuple[int, list[Any]]]]] = [
    ("M:Net --input 3,4", {"x": (1, [3, 4])}),
    ("M:Net --input 3,4:float32 --dynamic x:0=batch", {"x": (1, ["batch", 4])}),
    ("M:Net --input x=3,4, --input scale=1:float32 --dynamic x:-2=n", {"x": (1, ["n", 4]), "scale": (1, [1])}),
    (
        "M:Net --input 3,4 --input 3,1:int64 --dynamic x:0=n --dynamic scale:0=n",
        {"x": (1, ["n", 4]), "scale": (7, ["n", 1])},
    ),
    ("M:net --input 3,4", {"x": (1, [3, 4])}),
    ("M:make --input 3,4 --dynamic x:0=n", {"x": (1, ["n", 4])}),
    ("M:traced --input 3,4 --dynamic x:0=n", {"x": (1, ["n", 4])}),
    ("M:make_all", {"x": (1, ["batch", 4])}),
    ("M:Embedding --input 2,3:int64 --dynamic input:1=tokens", {"input": (7, [2, "tokens"])}),
    (
        "M:Several --input 3,4 --input 3,1 --input k=:float32 --dynamic xs_0:0=n --dynamic xs_1:0=n",
        {"xs_0": (1, ["n", 4]), "xs_1": (1, ["n", 1]), "k": (1, [])},
    ),
    ("M:Constant", {}),
    ("models/typing.py:Linear --input 2,3,4", {"input": (1, [2, 3, 4])}),
    ("torch.nn:ReLU --input 2,3 --dynamic input:0=n", {"input": (1, ["n", 3])}),
]


@pytest.mark.parametrize(("source", "inputs"), EXPORTS, ids=[row[0] for row in EXPORTS])
def test_exports(folder: Path, source: str, inputs: dict[str, tuple[int, list[Any]]]) -> None:
    done = invoke(f"export {source} m.onnx --verify")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("wrote m.onnx: ")
    found = {
        value.name: (
            value.type.tensor_type.elem_type,
            [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim],
        )
        for value in onnx.load("m.onnx").graph.input
    }
    assert found == inputs
    checked = invoke(f"verify m.onnx {source.partition(' --dynamic')[0]}")
    assert checked.exit_code == 0, checked.output  # a class has the same weights each time
    assert invoke(f"analyze {source}").exit_code == 0


def test_the_file_has_the_dims_that_the_options_name(folder: Path) -> None:
    assert invoke("export M:Net --input 3,4 --dynamic x:0=batch -o m.onnx").exit_code == 0
    session = onnxruntime.InferenceSession("m.onnx", providers=["CPUExecutionProvider"])
    (module,) = [one for name, one in sys.modules.items() if name.startswith("made-models")]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = module.Net().eval()
    for rows in (1, 2, 7):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(torch.from_numpy(session.run(None, {"x": x.numpy()})[0]), net(x).detach())


WRONG = [
    # Sources.
    ("export models/made-models.py m.onnx", "SOURCE: models/made-models.py has to be followed by the name of a class"),
    ("export models/made-models.py m.onnx", "hint: for example models/made-models.py:Net"),
    ("export models/empty.py m.onnx", "hint: for example models/empty.py:make_model"),
    ("export models/broken.py:Net m.onnx", "broken.py cannot be imported: SyntaxError: "),
    (
        "export models/made-model.py:Net m.onnx",
        "file models/made-model.py does not exist\nhint: did you mean 'made-models",
    ),
    ("export models:Net m.onnx", "SOURCE: models:Net: the module has no such function"),
    (
        "export M:Embeding --input 3,4 m.onnx",
        ":Embeding: the module has no such function\nhint: did you mean 'Embedding'?",
    ),
    ("export M:number --input 3,4 m.onnx", ":number: expected a function, got int"),
    (
        "export M:Wide --input 3,4 m.onnx",
        "missing 1 required positional argument: 'width'\nhint: write a function without",
    ),
    ("export M:Fails --input 3,4 m.onnx", ":Fails raised ValueError: no weights today\nsee: "),
    (
        "export M:Net m.onnx",
        ":Net is a Net without example inputs\nhint: pass --input 1,3,224,224:float32, once for each",
    ),
    ("analyze M:make", ":make returned Net\nhint: return (model, args), or pass --input"),
    ("verify linear.pt2 M:net", ":net is a Net without example inputs\nhint: pass --input"),
    # Inputs.
    (
        "export M:Net --input 3x4 m.onnx",
        "--input: '3x4' is not [NAME=]SHAPE[:DTYPE]\nhint: for example --input 1,3,224",
    ),
    ("export M:Net --input -1,4 m.onnx", "--input: '-1,4' is not [NAME=]SHAPE[:DTYPE]"),
    ("export M:Net --input x= m.onnx", "--input: 'x=' is not [NAME=]SHAPE[:DTYPE]"),
    ("export M:Net --input 3,4:floot32 m.onnx", "torch has no dtype 'floot32'\nhint: did you mean 'float32'?"),
    (
        "export M:Net --input 3,4:nn m.onnx",
        "torch has no dtype 'nn'\nhint: for example float32, float16, int64 or bool",
    ),
    ("export M:Net --input 99999999,99999999 m.onnx", "--input: '99999999,99999999' cannot be made: "),
    ("export M:Net --input x=3,4 --input x=3,4 m.onnx", "--input: 'x' is given twice\nhint: write each input once"),
    (
        "export M:Net --input 3,4 --input 1 --input 1 m.onnx",
        "--input: the example inputs do not match Net.forward(x, scale",
    ),
    ("analyze M:Net --input 3 --input 1 --input 1 --dynamic x:0=n", "--input: forward does not take these inputs: too"),
    ("export M:make_all --input 3,4 m.onnx", "made-models.py:make_all returns its inputs\nhint: leave --input out"),
    ("export linear.pt2 --input 4,3 m.onnx", "--input: a .pt2 file has its inputs and dims\nhint: leave --input out"),
    ("verify m.onnx linear.pt2 --input 4,3", "--input: a .pt2 file has its inputs and dims\nhint: leave --input out"),
    (
        "export M:program --dynamic x:0=n m.onnx",
        "--dynamic: models/made-models.py:program returns an exported program, which has its dims\nhint: leave it out",
    ),
    ("export M:traced --input 3,4 --dynamic z:0=n m.onnx", "--dynamic: "),
    # Dims.
    (
        "export M:Net --input 3,4 --dynamic x:0 m.onnx",
        "--dynamic: 'x:0' is not INPUT:AXIS=NAME\nhint: for example --dynamic x:",
    ),
    ("export M:Net --input 3,4 --dynamic x=batch m.onnx", "--dynamic: 'x=batch' is not INPUT:AXIS=NAME"),
    ("export M:Net --input 3,4 --dynamic x:0=2*n m.onnx", "--dynamic: 'x:0=2*n' is not INPUT:AXIS=NAME"),
    ("export M:Net --input 3,4 --dynamic x:first=n m.onnx", "--dynamic: 'x:first=n' is not INPUT:AXIS=NAME"),
    (
        "export M:Net --input 3,4 --dynamic X:0=n m.onnx",
        "--dynamic: 'X:0=n': forward has no input 'X'\nhint: did you mean 'x'?",
    ),
    (
        "analyze M:Net --input 3,4 --dynamic scale:0=n",
        "--dynamic: 'scale:0=n': forward has no input 'scale'\nhint: the inputs are: x",
    ),
    (
        "export M:Net --input 3,4 --dynamic x:2=n m.onnx",
        "--dynamic: 'x:2=n': x has the shape [3, 4], and no axis 2\nhint: axes are",
    ),
    ("export M:Net --input 3,4 --dynamic x:0=a --dynamic x:-2=b m.onnx", "--dynamic: axis 0 of x is given twice"),
    (
        "export M:make_all --dynamic x:0=n m.onnx",
        "--dynamic: models/made-models.py:make_all returns dynamic_shapes\nhint: leave",
    ),
    (
        "export linear.pt2 --dynamic x:0=n m.onnx",
        "--dynamic: a .pt2 file has its inputs and dims\nhint: leave --dynamic out",
    ),
]


@pytest.mark.parametrize(("line", "message"), WRONG)
def test_mistakes(folder: Path, line: str, message: str) -> None:
    done = invoke(line)
    assert done.exit_code == 2, done.output
    printed = [text for text in done.stderr.splitlines() if not text.startswith("warning: ")]
    assert printed[0].startswith("error[FX001]: ")
    assert message in done.stderr
    assert done.stderr.endswith("\nsee: docs/errors/FX001.md\n")
    assert "--debug" not in done.stderr
    assert not (folder / "m.onnx").exists()


def test_errors_that_only_the_export_finds_name_the_option() -> None:
    with (
        pytest.raises(ArgumentError, match=r"^error.FX001.: --dynamic: no\nhint: other$"),
        named_as_options((), ("x:0=n",)),
    ):
        raise ArgumentError("dynamic_shapes['x']", "no", hint="other")
    with pytest.raises(ArgumentError, match=": --input: no"), named_as_options(("3",), ()):
        raise ArgumentError("args", "no")
    with pytest.raises(ArgumentError, match=": dynamic_shapes: no"), named_as_options(("3",), ()):
        raise ArgumentError("dynamic_shapes", "no")


@pytest.mark.parametrize("line", ["export M:Net --input 3,4", "export M:Net a.onnx -o b.onnx --input 3,4"])
def test_one_file_is_written(folder: Path, line: str) -> None:
    done = invoke(line)
    assert done.exit_code == 2
    assert "Invalid value for --output: " in done.output
    assert not list(folder.glob("*.onnx"))


def test_example_inputs_are_the_same_each_time() -> None:
    texts = ["2,3", "4:int64", "5:bool", "6:bfloat16", "2:complex64", "name=3:float64"]
    (args, kwargs), (again, _) = example_inputs(texts), example_inputs(texts)
    assert [each.dtype for each in args] == [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64]
    assert kwargs["name"].dtype == torch.float64
    for one, other in zip(args, again, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
        assert torch.view_as_real(one).min() >= 0 if one.is_complex() else one.min() >= 0


def test_the_address_of_a_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fxonnx._public.documentation_address", lambda: "https://example.org/docs")
    done = invoke("check missing.onnx")
    assert done.stderr.endswith("\nsee: https://example.org/docs/errors/FX001.html\n")
    assert fxonnx.ExportError.code == "FX000"
