"""Names in files that a terminal or a browser would obey: they are escaped wherever they are shown."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

import fxonnx
from fxonnx import ArgumentError
from fxonnx._cli.commands import app
from fxonnx._cli.messages import readable_messages
from fxonnx._display import printable
from fxonnx._warnings import warn_user
from fxonnx.diagnostics.printing import graph_text

NAME = "\x1b]52;c;ZXZpbA==\x07\r\nFORGED\x7f\x9b2J\u202e\u2066\u2028\x00"
"""Writes the clipboard, begins a line, clears the screen, and reverses the text after it."""
ESCAPED = r"\x1b]52;c;ZXZpbA==\x07\r\nFORGED\x7f\x9b2J\u202e\u2066\u2028\x00"
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]|^\s*FORGED", re.MULTILINE)

SOURCE = f"""
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x.relu()

def make():
    return Model(), (torch.ones(2, 4),)

def fail():
    raise ValueError({NAME!r})

def refuse():
    return Model(), (torch.ones(2, 4),), {{}}, {{{NAME!r}: None}}
"""


def _write(path: str, name: str, op_type: str = "Relu") -> None:
    node = helper.make_node(op_type, [f"x{name}"], [f"y{name}"], name=f"n{name}", doc_string=f"d{name}")
    metadata = {"name_scopes": repr(["", f"m{name}", "y"]), "class_hierarchy": repr([f"M{name}", "A", "y"])}
    for key, text in {**metadata, "stack_trace": f'File "/a{name}/b.py", line 3, in forward'}.items():
        node.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=text)
    ends = [helper.make_tensor_value_info(f"{end}{name}", TensorProto.FLOAT, [f"n{name}", 4]) for end in "xy"]
    weight = helper.make_tensor(f"w{name}", TensorProto.FLOAT, [1], [1.0])
    graph = helper.make_graph([node], f"g{name}", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    model.producer_name = f"p{name}"
    helper.set_model_props(model, {"pkg.fxonnx.guards": json.dumps([f"requires {name}"])})
    Path(path).write_bytes(model.SerializeToString())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "hostile_names_source.py").write_text(SOURCE)
    _write("plain.onnx", "")
    _write("bad.onnx", NAME.rstrip("\0"))
    _write("unknown.onnx", NAME.rstrip("\0"), f"Unknown{NAME}".rstrip("\0"))
    for name in ("hf", "adapter"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": NAME}))
    return tmp_path


COMMANDS = {
    "diff": (["diff", "bad.onnx", "plain.onnx"], True),
    "diff-json": (["diff", "bad.onnx", "plain.onnx", "--json"], False),
    "check": (["check", "unknown.onnx"], True),
    "check-json": (["check", "unknown.onnx", "--json"], False),
    "verify": (["verify", "bad.onnx", "hostile_names_source:make"], True),
    "verify-json": (["verify", "bad.onnx", "hostile_names_source:make", "--json"], False),
    "report": (["report", "bad.onnx", "-o", "bad.html"], False),
    "report-profile": (["report", "bad.onnx", "-o", "bad.html", "--profile-runtime"], False),
    "export": (["export", "hostile_names_source:fail", "-o", "m.onnx"], False),
    "export-refused": (["export", "hostile_names_source:refuse", "-o", "m.onnx"], True),
    "export-report": (["export", "hostile_names_source:refuse", "-o", "m.onnx", "--report", "reports"], True),
    "analyze": (["analyze", "hostile_names_source:refuse"], True),
    "analyze-json": (["analyze", "hostile_names_source:refuse", "--json"], False),
    "hf": (["hf", "hf", "-o", "out"], False),
    "genai": (["genai", "hf", "-o", "out"], False),
}
"""Name to command, and whether its text has the name in one line."""


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_escape_names(name: str, folder: Path) -> None:
    command, has_name = COMMANDS[name]
    # The error of a user's function or of a library may have lines of its own.
    result = CliRunner().invoke(app, command)
    assert "Traceback" not in result.output
    allowed = RAW if has_name else re.compile(RAW.pattern.partition("|^")[0])
    assert allowed.search(result.output) is None, ascii(result.output)
    if has_name:
        assert ESCAPED.removesuffix(r"\x00") in result.output, ascii(result.output)
    for page in [*folder.glob("*.html"), *folder.glob("reports/*")]:
        text = page.read_text(encoding="utf-8")
        assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", text) is None
        assert r"\x1b]52;c;ZXZpbA==\x07" in text


def _error() -> str:
    return str(ArgumentError("weights", f"{NAME} is unknown", hint=NAME))


def _warning() -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_user(NAME)
    return str(caught[0].message)


def _diff() -> str:
    return str(fxonnx.diff("bad.onnx", "plain.onnx"))


def _diff_page() -> str:
    return fxonnx.diff("bad.onnx", "plain.onnx")._repr_html_()


def _findings() -> str:
    return str(fxonnx.check("unknown.onnx", "onnxruntime"))


def _graph() -> str:
    return graph_text(ir.load("bad.onnx"))


@pytest.mark.parametrize(
    "text", [_error, _warning, _diff, _diff_page, _findings, _graph], ids=lambda each: each.__name__
)
def test_texts_escape_names(text: Callable[[], str], folder: Path) -> None:
    shown = text()
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", shown) is None
    assert r"\x1b]52;c;ZXZpbA==\x07" in shown


@pytest.mark.parametrize(
    ("text", "line", "lines"),
    [
        ("a\tb\nc", r"a\tb\nc", "a\tb\nc"),
        ("a\r\x1b[2J", r"a\r\x1b[2J", r"a\r\x1b[2J"),
        ("naïve Ω 漢字 👍 \u05d0", "naïve Ω 漢字 👍 \u05d0", "naïve Ω 漢字 👍 \u05d0"),
        ("\udc80\x85", r"\udc80\x85", r"\udc80\x85"),
        (r"C:\x1b", r"C:\x1b", r"C:\x1b"),
    ],
)
def test_printable(text: str, line: str, lines: str) -> None:
    assert printable(text) == line
    assert printable(text, lines=True) == lines


def test_warnings_of_libraries_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    with readable_messages(debug=False):
        warnings.warn(NAME, stacklevel=1)
    assert r"\x1b]52" in capsys.readouterr().err


def test_guards_of_another_form(folder: Path) -> None:
    model = onnx.load("plain.onnx")
    for text in ("[" * 100_000, "1", "[1, 2]", "{"):
        helper.set_model_props(model, {"pkg.fxonnx.guards": text})
        onnx.save(model, "guards.onnx")
        result = CliRunner().invoke(app, ["check", "guards.onnx"])
        assert "error[FX001]: model: its metadata pkg.fxonnx.guards is not a record" in result.output
