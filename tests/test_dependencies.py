"""The core works without the optional dependencies, and the command line names those that it lacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

OPTIONAL = ("typer", "rich")

EXPORT = """
import torch
import fxonnx

x = torch.rand(2, 4)
model = torch.nn.Linear(4, 3).eval()
program = fxonnx.export(model, (x,), "model.onnx", dynamic_shapes=({0: "batch"},), verify=True, diagnostics=True)
torch.testing.assert_close(program(torch.cat([x, x]))[0], model(torch.cat([x, x])))
"""


COMMAND = "from fxonnx._cli.main import main\nmain()"


def run(code: str, cwd: Path, missing: tuple[str, ...] = OPTIONAL) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, in which some modules cannot be imported."""
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({missing}))\n"
    return subprocess.run([sys.executable, "-c", blocked + code], cwd=cwd, capture_output=True, text=True, check=False)


def test_export_save_and_run_without_extras(tmp_path: Path) -> None:
    done = run(EXPORT, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model.onnx").is_file()
    assert len(list(tmp_path.glob("onnx_export_*_success.html"))) == 1


@pytest.mark.parametrize("missing", [("typer",), ("rich",), OPTIONAL], ids="+".join)
def test_the_command_line_names_what_to_install(tmp_path: Path, missing: tuple[str, ...]) -> None:
    done = run(COMMAND, tmp_path, missing)
    assert done.returncode == 1
    assert done.stderr == (
        "fxonnx: the command line requires typer and rich; install them with: pip install 'fxonnx[cli]'\n"
    )


GENAI = """
import fxonnx.genai
from fxonnx import ExportError

try:
    fxonnx.genai.export("checkpoint", "out", verify={verify})
except ExportError as error:
    print(error)
"""


@pytest.mark.parametrize(("missing", "verify"), [("onnxruntime_genai", True), ("transformers", False)])
def test_the_export_for_genai_names_what_to_install(tmp_path: Path, missing: str, verify: bool) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint/config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    # The library of torchvision may not load beside this build of torch; transformers does without it.
    done = run(GENAI.format(verify=verify), tmp_path, (missing, "torchvision"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        f"error[FX000]: the module {missing} is not installed\nhint: install it with: pip install 'fxonnx[genai]'\n"
    )


def test_other_missing_modules_are_not_hidden(tmp_path: Path) -> None:
    assert "ModuleNotFoundError: import of tempfile halted" in run(COMMAND, tmp_path, ("tempfile",)).stderr
