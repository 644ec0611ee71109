"""Each hint of the command line, followed: the refused command prints it, and the changed one succeeds."""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fxonnx._cli.commands import app

from .genai.small_models import make_model, make_tokenizer

SOURCE = """
import torch
from torch import nn

class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return x * self.scale

class Two(nn.Module):
    def forward(self, x, y):
        return x + y

def doubled():
    return Scaled(2.0)

def make():
    return Scaled(2.0).eval(), (torch.rand(2, 3),)

def make_dynamic():
    return Scaled(2.0).eval(), (torch.rand(2, 3),), None, ({0: "n"},)

def make_layer():
    return nn.Linear(64, 64).eval(), (torch.rand(1, 64),)

def make_program():
    return torch.export.export(Scaled(2.0).eval(), (torch.rand(2, 3),))

def make_pair():
    return make_program(), ()

def nothing():
    pass
"""
STEPS: dict[str, tuple[str, str]] = {
    "specify a directory": ("export M:make -o o.onnx --report a_file", "export M:make -o o.onnx --report reports"),
    "for example float32, float16, int64 or bool": (
        "export M:Two --input 2,3:tensor --input 2,3 -o o.onnx",
        "export M:Two --input 2,3:float16 --input 2,3:float16 -o o.onnx",
    ),
    "for example --input 1,3,224,224:float32, once for each input": (
        "export M:Two --input 2,3 -o o.onnx --dynamic x:0=n",
        "export M:Two --input 2,3:float32 --input 2,3:float32 -o o.onnx --dynamic x:0=n --dynamic y:0=n",
    ),
    "write each input once": (
        "export M:Two --input x=2,3 --input x=2,3 -o o.onnx",
        "export M:Two --input x=2,3 --input y=2,3 -o o.onnx",
    ),
    "for example --dynamic x:0=batch": (
        "export M:make -o o.onnx --dynamic batch",
        "export M:make -o o.onnx --dynamic x:0=batch",
    ),
    "axes are counted from 0": (
        "export M:make -o o.onnx --dynamic x:2=n",
        "export M:make -o o.onnx --dynamic x:1=n",
    ),
    "give each axis one name": (
        "export M:make -o o.onnx --dynamic x:0=n --dynamic x:0=m",
        "export M:make -o o.onnx --dynamic x:0=n --dynamic x:1=m",
    ),
    "leave one of them out": (
        "export M:make_dynamic -o o.onnx --dynamic x:0=n",
        "export M:make_dynamic -o o.onnx",
    ),
    "leave it out": ("export M:make_pair -o o.onnx --dynamic x:0=n", "export M:make_pair -o o.onnx"),
    "for example {}:{}": ("export models.py -o o.onnx --input 2,3", "export models.py:make -o o.onnx"),
    "for example mymodels:make_model": ("export models -o o.onnx", "export models:make -o o.onnx"),
    "write the module as in an import statement: {}": (
        "export ./models:make -o o.onnx",
        "export models:make -o o.onnx",
    ),
    "write a function without arguments that returns the model, and pass its name": (
        "export M:Scaled -o o.onnx --input 2,3",
        "export M:doubled -o o.onnx --input 2,3",
    ),
    "{}pass --input 1,3,224,224:float32, once for each input": (
        "export M:doubled -o o.onnx",
        "export M:doubled -o o.onnx --input 1,3,224,224:float32",
    ),
    "leave --input out": ("export M:make -o o.onnx --input 2,3", "export M:make -o o.onnx"),
    "return (model, args), with kwargs and dynamic_shapes if needed, or a model and pass --input": (
        "export M:nothing -o o.onnx",
        "export M:doubled -o o.onnx --input 2,3",
    ),
    "pass --quantize int8": (
        "export M:make_layer -o o.onnx --dynamic-activations",
        "export M:make_layer -o o.onnx --dynamic-activations --quantize int8",
    ),
    "write it with torch.save([batch, ...], path)": (
        "export M:make_layer -o o.onnx --quantize int8 --calibration batch.pt",
        "export M:make_layer -o o.onnx --quantize int8 --calibration batches.pt",
    ),
    "leave {} out": ("export model.pt2 -o o.onnx --input 2,3", "export model.pt2 -o o.onnx"),
    "write it with torch.export.save(torch.export.export(model, args), path)": (
        "export weights.pt2 -o o.onnx",
        "export model.pt2 -o o.onnx",
    ),
    "torch.export.save writes no such entry; do not load the file by torch.export.load, which may execute it": (
        "export changed.pt2 -o o.onnx",
        "export model.pt2 -o o.onnx",
    ),
    "pass --precision int4 or int8": (
        "genai decoder -o out --no-verify --lm-head int8",
        "genai decoder -o out --no-verify --lm-head int8 --precision int8",
    ),
    "leave {} out, or pass --precision int4 or int8 in place of --recipe": (
        "genai decoder -o out --no-verify --recipe fast --block-size 32",
        "genai decoder -o out --no-verify --precision int4 --block-size 32",
    ),
    "pass --force to replace files of it, or specify a directory that does not exist": (
        "genai decoder -o used --no-verify",
        "genai decoder -o used --no-verify --force",
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models.py").write_text(SOURCE)
    (tmp_path / "a_file").touch()
    (tmp_path / "used").mkdir()
    (tmp_path / "used/text").touch()
    model, x = torch.nn.Linear(3, 2).eval(), torch.rand(2, 3)
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "model.pt2")
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive, zipfile.ZipFile(tmp_path / "changed.pt2", "w") as changed:
        for name in archive.namelist():
            changed.writestr(name, archive.read(name).replace(b"torch.ops.aten.linear.default", b"os.system"))
    torch.save(model.state_dict(), tmp_path / "weights.pt2")
    torch.save(torch.rand(1, 64), tmp_path / "batch.pt")
    torch.save([torch.rand(1, 64)], tmp_path / "batches.pt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "models", raising=False)
    return tmp_path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hint", STEPS)
def test_a_followed_hint_of_a_command_works(hint: str, folder: Path) -> None:
    refused, followed = (line.replace("M:", "models:").split() for line in STEPS[hint])
    if "decoder" in refused:
        make_model("llama").save_pretrained(folder / "decoder")
        make_tokenizer().save_pretrained(folder / "decoder")
    done = CliRunner().invoke(app, refused, env={"COLUMNS": "200"})
    assert done.exit_code in (1, 2), done.output
    assert re.search("hint: " + ".*".join(map(re.escape, hint.split("{}"))) + "\n", done.output), done.output
    done = CliRunner().invoke(app, followed, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert (folder / followed[followed.index("-o") + 1]).exists()
