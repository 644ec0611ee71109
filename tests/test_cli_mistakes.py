"""Command line: mistakes of users. Each is one message that names the argument, with the same exit code in every command."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import fxonnx
from fxonnx._cli.commands import app

SOURCE = """
import sys
import torch

x = torch.ones(2, 64)

def make():
    torch.manual_seed(1)
    return torch.nn.Linear(64, 64).eval(), (x,)

def no_input():
    return torch.nn.Linear(64, 64).eval()

def no_model():
    return "model", (x,)

def nothing():
    pass

def needs_a_path(path):
    return torch.load(path), (x,)

def ends_the_process():
    sys.exit("usage: mistakes.py")

def other_input():
    return torch.nn.Linear(64, 64).eval(), (torch.ones(2, 3),)

def more_inputs():
    return torch.nn.Linear(64, 64).eval(), (x, x)

def list_of_keywords():
    return torch.nn.Linear(64, 64).eval(), (x,), ["x"]

def unknown_dynamic_input():
    return torch.nn.Linear(64, 64).eval(), (x,), None, {"inptu": {0: "batch"}}

def wrong_dims():
    return torch.nn.Linear(64, 64).eval(), (x,), None, ({0: 1.5},)
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a module, and with models of all kinds of which most are broken."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "mistaken_models.py").write_text(SOURCE)
    for name in ("directory", "directory.onnx", "directory.pt2", "empty_model", "broken_model"):
        (folder / name).mkdir()
    (folder / "broken_model/config.json").write_text("not JSON")
    (folder / "file").touch()
    for name in ("text.onnx", "text.pt2"):
        (folder / name).write_text("no model")
    torch.manual_seed(0)
    model, args = torch.nn.Linear(64, 64).eval(), (torch.ones(2, 64),)
    fxonnx.export(model, args, folder / "model.onnx")
    fxonnx.export(model, args, folder / "lost.onnx", external_data=True)
    (folder / "lost.onnx.data").unlink()
    content = (folder / "model.onnx").read_bytes()
    (folder / "half.onnx").write_bytes(content[: len(content) // 2])
    torch.save(model.state_dict(), folder / "weights.pt2")
    torch.export.save(torch.export.export(model, args), folder / "model.pt2")
    content = (folder / "model.pt2").read_bytes()
    (folder / "half.pt2").write_bytes(content[: len(content) // 2])
    return folder


@pytest.fixture
def folder(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = tmp_path / "copy"
    shutil.copytree(files, copy)
    monkeypatch.chdir(copy)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return copy


# The exit code, and the beginning of the message; the command line with M: for the module, and the rest of the message.
WRONG = "error[FX001]: "
NOT_WRITTEN = "error[FX006]: "
USAGE = "Usage: "

MISTAKES: list[tuple[str, int, str, str]] = [
    # The source of a model.
    ("export missing.pt2 -o o.onnx", 2, WRONG, "SOURCE: file missing.pt2 does not exist"),
    ("export modle.pt2 -o o.onnx", 2, WRONG, "file modle.pt2 does not exist\nhint: did you mean 'model.pt2'?"),
    ("export directory.pt2 -o o.onnx", 2, WRONG, "SOURCE: directory.pt2 is a directory\nhint: specify the name of a"),
    ("export directory -o o.onnx", 2, WRONG, "SOURCE: directory is neither a .pt2 file nor package.module:function"),
    ("export model.onnx -o o.onnx", 2, WRONG, "SOURCE: model.onnx is neither a .pt2 file nor package.module:function"),
    ("export text.pt2 -o o.onnx", 2, WRONG, "SOURCE: text.pt2 cannot be loaded as an exported program: "),
    ("export half.pt2 -o o.onnx", 2, WRONG, "SOURCE: half.pt2 cannot be loaded as an exported program: "),
    ("export weights.pt2 -o o.onnx", 2, WRONG, "SOURCE: weights.pt2 cannot be loaded as an exported program: "),
    ("export mistaken_models -o o.onnx", 2, WRONG, "SOURCE: mistaken_models is neither a .pt2 file nor package.module"),
    ("export mistaken_models.make -o o.onnx", 2, WRONG, "SOURCE: mistaken_models.make is neither a .pt2 file nor"),
    (
        "export mistaken_models.py -o o.onnx",
        2,
        WRONG,
        "followed by the name of a class or function\nhint: for example mistaken_models.py:make",
    ),
    ("export ./mistaken_models:make -o o.onnx", 2, WRONG, "hint: write the module as in an import statement: mistaken"),
    ("export mistaken_model:make -o o.onnx", 2, WRONG, "cannot be imported: ModuleNotFoundError: No module named"),
    ("export mistaken_model:make -o o.onnx", 2, WRONG, "hint: did you mean 'mistaken_models'?"),
    ("export M:maek -o o.onnx", 2, WRONG, "the module has no such function\nhint: did you mean 'make'?"),
    ("export M:x -o o.onnx", 2, WRONG, "SOURCE: mistaken_models:x: expected a function, got Tensor"),
    ("export M:nothing -o o.onnx", 2, WRONG, ":nothing returned NoneType\nhint: return (model, args)"),
    ("export M:no_input -o o.onnx", 2, WRONG, ":no_input returned Linear\nhint: return (model, args)"),
    ("export M:no_model -o o.onnx", 2, WRONG, ":no_model returned (str, tuple)\nhint: return (model, args)"),
    ("export M:needs_a_path -o o.onnx", 2, WRONG, "missing 1 required positional argument: 'path'"),
    ("export M:ends_the_process -o o.onnx", 2, WRONG, ":ends_the_process raised SystemExit: usage: mistakes.py"),
    ("export M:list_of_keywords -o o.onnx", 2, WRONG, "kwargs: expected a dict of inputs by name, got a list"),
    ("export M:unknown_dynamic_input -o o.onnx", 2, WRONG, "dynamic_shapes: 'inptu' is not a parameter of forward"),
    ("export M:wrong_dims -o o.onnx", 2, WRONG, "dynamic_shapes: "),
    ("export M:other_input -o o.onnx", 1, "error[FX002]: ", "the model itself fails on the example inputs"),
    # Values of options.
    ("export M:make -o o.onnx --opset 99", 2, WRONG, "opset_version: 99 is outside the supported opsets"),
    ("export M:make -o o.onnx --opset ten", 2, USAGE, "Invalid value for '--opset'"),
    ("export M:make -o o.onnx --target tensort", 2, WRONG, "got 'tensort'\nhint: did you mean 'tensorrt'?"),
    (
        "export M:make -o o.onnx --functions repeat",
        2,
        WRONG,
        "functions: expected one of 'none', 'regions', 'repeated'",
    ),
    (
        "export M:make -o o.onnx --metadata all",
        2,
        WRONG,
        "metadata: expected one of 'full', 'names', 'none', got 'all'",
    ),
    ("export M:make -o o.onnx --data-dependent ignore", 2, WRONG, "data_dependent: expected one of 'error', 'example'"),
    ("export M:make -o o.onnx --frozen mask", 2, WRONG, "frozen: 'mask' matches no tensor of the example inputs"),
    ("export M:make -o o.onnx --input-names a,", 2, WRONG, "input_names: expected non-empty strings, got ''"),
    ("export M:make -o o.onnx --output-names a,b", 2, WRONG, "output_names: 'b' is not used: 2 names for 1 outputs"),
    ("export M:make -o o.onnx --quantize int8 --calibration directory", 2, WRONG, "directory is neither a .pt nor a"),
    ("analyze M:make --opset 99", 2, "The model does not export.", "opset_version: 99 is outside the supported opsets"),
    ("analyze M:wrong_dims", 2, "The model does not export.", "dynamic_shapes: "),
    ("hf broken_model -o out --layout optimun", 2, WRONG, "got 'optimun'\nhint: did you mean 'optimum'?"),
    (
        "hf broken_model -o out --dtype fp32,q3",
        2,
        WRONG,
        "dtype: expected names of fp32, fp16, q8, q4, q4f16, got 'q3'",
    ),
    ("genai broken_model -o out --precision int5", 2, WRONG, "expected 'fp32', 'fp16', 'bf16', 'int4', 'int8', got"),
    (
        "genai broken_model -o out --lm-head int8",
        2,
        WRONG,
        "--lm-head: weights in fp32 are not quantized\nhint: pass --precision int4 or int8",
    ),
    (
        "genai broken_model -o out --recipe fast --block-size 32",
        2,
        WRONG,
        "--block-size: the recipe 'fast' includes it\nhint: leave --block-size out, or pass --precision int4 or int8 in",
    ),
    ("genai broken_model -o out --recipe fast --precision int8", 2, WRONG, "recipe: 'fast' includes the quantization,"),
    ("genai broken_model -o out --pooling meen", 2, WRONG, "got 'meen'\nhint: did you mean 'mean'?"),
    ("genai broken_model -o out --adapter adapter", 2, USAGE, "'adapter' is not NAME=DIR"),
    ("hf broken_model -o out --task text-clasification", 2, WRONG, "hint: did you mean 'text-classification'?"),
    # Checkpoints.
    ("hf ./missing -o out", 2, WRONG, "model: directory missing does not exist"),
    ("hf model.onnx -o out", 2, WRONG, "model: model.onnx is a file\nhint: pass a GGUF file, or the"),
    ("hf empty_model -o out", 2, WRONG, "model: empty_model has no config.json"),
    ("hf broken_model -o out", 2, WRONG, "model: broken_model/config.json is not a JSON file: "),
    ("genai ./missing -o out", 2, WRONG, "model: directory missing does not exist"),
    (
        "genai model.onnx -o out",
        2,
        WRONG,
        "model: model.onnx is a file\nhint: pass a GGUF file, or the directory of the model",
    ),
    ("genai empty_model -o out", 2, WRONG, "model: empty_model has no config.json"),
    ("genai broken_model -o out", 2, WRONG, "model: broken_model/config.json is not a JSON file: "),
    # Destinations.
    ("export M:make", 2, USAGE, "Invalid value for --output: specify the ONNX file to write"),
    ("export M:make -o missing/o.onnx", 1, NOT_WRITTEN, "directory missing does not exist\nhint: create it first"),
    ("export M:make -o directory", 1, NOT_WRITTEN, "it is a directory\nhint: specify the name of a file"),
    ("export M:make -o file/o.onnx", 1, NOT_WRITTEN, "file/o.onnx cannot be written: file is not a directory"),
    (
        "export M:make -o o.onnx --report file",
        1,
        NOT_WRITTEN,
        "--report: directory file cannot be created: File exists",
    ),
    (
        "hf empty_model -o broken_model",
        1,
        NOT_WRITTEN,
        "broken_model cannot be written: the directory has files\nhint: pass --f",
    ),
    (
        "genai empty_model -o broken_model",
        1,
        NOT_WRITTEN,
        "the directory has files\nhint: pass --force to replace files of it",
    ),
    ("hf empty_model -o empty_model", 2, WRONG, "model: empty_model has no config.json"),
    ("hf empty_model -o broken_model --force", 2, WRONG, "model: empty_model has no config.json"),
    ("genai empty_model -o broken_model --force", 2, WRONG, "model: empty_model has no config.json"),
    ("genai broken_model -o broken_model", 2, WRONG, "model: broken_model/config.json is not a JSON file: "),
    ("hf broken_model -o broken_model", 1, NOT_WRITTEN, "broken_model cannot be written: the directory has files"),
    ("hf empty_model -o file", 1, NOT_WRITTEN, "file cannot be written: it is a file\nhint: specify a directory"),
    ("genai empty_model -o file", 1, NOT_WRITTEN, "file cannot be written: it is a file\nhint: specify a directory"),
    ("report model.onnx -o missing/o.html", 1, NOT_WRITTEN, "the report cannot be written to missing/o.html: No such"),
    ("report model.onnx -o directory", 1, NOT_WRITTEN, "the report cannot be written to directory: Is a directory"),
    ("demo -o missing/o.onnx", 1, NOT_WRITTEN, "missing/o.onnx cannot be written: directory missing does not exist"),
    ("demo -o directory", 1, NOT_WRITTEN, "directory cannot be written: it is a directory"),
    # A file and a model that do not belong together.
    ("verify M:make model.onnx", 2, WRONG, "SOURCE: model.onnx is neither a .pt2 file nor package.module:function"),
    ("verify model.onnx M:maek", 2, WRONG, "the module has no such function\nhint: did you mean 'make'?"),
    ("verify model.onnx M:more_inputs", 2, WRONG, "args: the file has the inputs input, and the call has 2 tensors"),
    ("verify model.onnx M:other_input", 2, WRONG, "args: eager torch failed: RuntimeError: "),
    ("verify model.onnx M:make", 1, "error[FX008]: ", "ONNX Runtime and eager torch disagree"),
    # Files of external data.
    ("verify lost.onnx M:make", 2, WRONG, "model: the weight 'weight' cannot be read: file "),
    ("diff lost.onnx model.onnx", 2, WRONG, "model: the weight 'weight' cannot be read: "),
    ("report lost.onnx --profile-runtime", 2, WRONG, "hint: the file of external data belongs next to the model"),
    # Numbers of arguments.
    ("exprt M:make -o o.onnx", 2, USAGE, "No such command 'exprt'. Did you mean 'export'"),
    ("diff model.onnx", 2, USAGE, "Missing argument 'SECOND'"),
    ("check model.onnx text.onnx", 2, USAGE, "Got unexpected extra argument(s) (text.onnx)"),
]

# Command lines with a file that is read.
READERS = ["check {}", "diff {} model.onnx", "diff model.onnx {}", "report {}", "verify {} M:make"]
UNREADABLE = [
    ("missing.onnx", "model: file missing.onnx does not exist"),
    ("modle.onnx", "model: file modle.onnx does not exist\nhint: did you mean 'model.onnx'?"),
    ("directory.onnx", "model: directory.onnx is a directory\nhint: specify the name of a file"),
    ("text.onnx", "model: text.onnx cannot be loaded as an ONNX model: "),
    ("half.onnx", "model: half.onnx cannot be loaded as an ONNX model: "),
    ("file", "model: file is not an ONNX model: it imports no opset"),
    ("mistaken_models.py", "model: mistaken_models.py cannot be loaded as an ONNX model: "),
]
MISTAKES += [(line.format(name), 2, WRONG, text) for line in READERS for name, text in UNREADABLE]

# A command line of each command, with an option and an unknown target.
COMMANDS = {
    "export": "export M:make -o o.onnx",
    "analyze": "analyze M:make",
    "check": "check model.onnx",
    "verify": "verify model.onnx M:make",
    "diff": "diff model.onnx model.onnx",
    "report": "report model.onnx",
    "hf": "hf broken_model -o out",
    "genai": "genai broken_model -o out",
    "demo": "demo",
}
MISTAKES += [
    (f"{line} --jsn", 2, USAGE, "No such option: --jsn (Possible options: --json)") for line in COMMANDS.values()
]
MISTAKES += [
    (f"{COMMANDS[name]} --target nowhere", 2, beginning, "target: expected")
    for name, beginning in (
        *(("export", WRONG), ("check", WRONG), ("hf", WRONG), ("genai", WRONG)),
        ("analyze", "The model does not export."),
    )
]


@pytest.mark.parametrize(("line", "exit_code", "beginning", "message"), MISTAKES)
def test_mistakes(folder: Path, line: str, exit_code: int, beginning: str, message: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if "__pycache__" not in path.parts}
    done = CliRunner().invoke(app, line.replace("M:", "mistaken_models:").split(), env={"COLUMNS": "200"})
    assert (done.exit_code, isinstance(done.exception, SystemExit)) == (exit_code, True), done.output
    printed = [text for text in done.output.splitlines(keepends=True) if not text.startswith("warning: ")]
    assert "".join(printed).startswith(beginning), done.output
    assert message in done.output
    assert "Traceback" not in done.output
    assert "--debug" not in done.output
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if "__pycache__" not in path.parts}
    assert after == before


def test_all_commands_are_in_the_table() -> None:
    assert {command.name for command in app.registered_commands} == set(COMMANDS)


def test_a_destination_without_permission(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Permissions do not restrict root.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for line in ("export mistaken_models:make -o o.onnx", "demo -o o.onnx"):
        done = CliRunner().invoke(app, line.split())
        assert done.exit_code == 1
        assert done.stderr == (
            "error[FX006]: o.onnx cannot be written: permission denied\n"
            "hint: write to a directory in which you may create files\n"
            "see: docs/errors/FX006.md\n"
        )
