"""Where people type: cells of notebooks, prompts and doctests, with their tracebacks, and Python without assertions."""

from __future__ import annotations

import doctest
import linecache
import subprocess
import sys
import traceback
from pathlib import Path

import numpy
import pytest
import torch

import fxonnx
from fxonnx import CaptureError

_MODEL = """\
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        assert x.dim() == 2
        if x.sum() > 0:
            return x * 2
        return x - 1
"""

_EXPORT = """
import fxonnx
program = fxonnx.export(Model(), (torch.ones(2, 3),), dynamic_shapes={"x": {0: "batch"}})
for x in (torch.ones(4, 3), -torch.ones(5, 3)):
    torch.testing.assert_close(program(x)[0], Model()(x))
"""


def _typed(name: str, *, keeps_lines: bool = True) -> type[torch.nn.Module]:
    """Define the model as a prompt does, which keeps the lines that are typed in the cache of ``linecache``."""
    if keeps_lines:
        linecache.cache[name] = (len(_MODEL), None, _MODEL.splitlines(keepends=True), name)
    namespace: dict[str, type[torch.nn.Module]] = {"__name__": "__main__"}
    exec(compile(_MODEL, name, "exec"), namespace)
    return namespace["Model"]


@pytest.mark.parametrize(
    "name", ["<ipython-input-3-0a1b2c3d4e5f>", "/tmp/ipykernel_712/2849201184.py", "<python-input-1>", "<doctest a[0]>"]
)
def test_branch_in_a_cell(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linecache, "cache", dict(linecache.cache))
    model = _typed(name)()
    program = fxonnx.export(model, (torch.ones(2, 3),), dynamic_shapes={"x": {0: "batch"}})
    for x in (torch.ones(4, 3), -torch.ones(5, 3)):
        torch.testing.assert_close(program(x)[0], model(x))


def test_prompt_that_keeps_no_lines() -> None:
    with pytest.raises(
        CaptureError, match=r"Model\.forward has no source code(.|\n)*at: <stdin>:5 in forward"
    ) as error:
        fxonnx.export(_typed("<stdin>", keeps_lines=False)(), (torch.ones(2, 3),))
    assert "in a notebook or in IPython" in str(error.value)


def test_doctest() -> None:
    lines = [f"... {line}" if line[:1] in ("", " ") else f">>> {line}" for line in (_MODEL + _EXPORT).splitlines()]
    text = "\n".join(lines).replace("\n... \n>>> class", "\n>>> class").replace("... \n>>>", "...\n>>>")
    example = doctest.DocTestParser().get_doctest(text, {"__name__": "__main__"}, "cells", None, None)
    result = doctest.DocTestRunner(verbose=False).run(example)
    assert result.attempted > 4
    assert result.failed == 0


@pytest.mark.parametrize("flag", [pytest.param("-O", marks=pytest.mark.nightly), "-OO"])
def test_python_without_assertions(flag: str, tmp_path: Path) -> None:
    script = tmp_path / "model.py"
    script.write_text(_MODEL + _EXPORT)
    subprocess.run([sys.executable, "-W", "ignore", flag, str(script)], check=True, capture_output=True, timeout=300)


class _AsksForNumber(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(numpy.linspace(0, 1, int(x.sum()))[-1])


def _refused() -> CaptureError:
    with pytest.raises(CaptureError, match=r"(condition|number) that is computed from a tensor must be known") as error:
        fxonnx.export(_AsksForNumber(), (torch.ones(2, 3),))
    return error.value


def test_short_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FXONNX_FULL_TRACEBACK", raising=False)
    error = _refused()
    files = [Path(frame.filename).name for frame in traceback.extract_tb(error.__traceback__)]
    assert files == ["test_interactive.py", "_keywords.py"]
    text = "".join(traceback.format_exception(error))
    assert "torch/" not in text
    assert text.count("Traceback") == 1
    assert type(error.__context__).__name__ == "GuardOnDataDependentSymNode"


def test_traceback_of_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FXONNX_FULL_TRACEBACK", raising=False)
    error = _refused()
    lines = error._render_traceback_()
    assert [line for line in lines if line.startswith("  File")] == [line for line in lines if "in _refused" in line]
    assert any("int(x.sum())" in line for line in lines)
    assert lines.index(next(line for line in lines if "error[FX002]" in line)) == 2


def test_full_traceback_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXONNX_FULL_TRACEBACK", "1")
    error = _refused()
    assert len(traceback.extract_tb(error.__traceback__)) > 5
    assert type(error.__cause__).__name__ == "GuardOnDataDependentSymNode"
