"""Command line: written files, output, and error messages."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner, Result

import fxonnx
import fxonnx._cli.demo
from fxonnx import ArgumentError, UnsupportedOperatorError, VerificationError
from fxonnx._cli.commands import app
from fxonnx._cli.main import main
from fxonnx._cli.progress import bytes_text, showing_progress
from fxonnx._progress import Counter, observing_counts

SOURCE = """
import torch

class Half(torch.nn.Module):
    def forward(self, x, y=None):
        return x * 0.5 if y is None else x * 0.5 + y

@torch.library.custom_op("fxonnx_test_{module}::mystery", mutates_args=())
def mystery(x: torch.Tensor) -> torch.Tensor:
    return x.clone()

@mystery.register_fake
def _(x):
    return torch.empty_like(x)

class Mystery(torch.nn.Module):
    def forward(self, x):
        return mystery(x)

x = torch.ones(2, 3)
number = 3

def two():
    return Half(), (x,)

def three():
    return Half(), (x,), {{"y": x}}

def four():
    return Half(), (x,), None, {{"x": {{0: "batch"}}}}

def unsupported():
    return Mystery(), (x,)

def model_only():
    return Half()

def no_model():
    return x, x

def narrow():
    class Narrow(torch.nn.Module):
        def forward(self, x):
            return x + 1 if x.shape[0] > 1 else x

    return Narrow().eval(), (torch.ones(3),), {{}}, ({{0: "batch"}},)

def raises():
    raise RuntimeError("no weights today")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module in the working directory that defines functions to export."""
    name = f"made_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(SOURCE.format(module=name)))
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "notes.pt2").write_text("not an archive")
    torch.save(3, tmp_path / "number.pt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize(
    ("function", "inputs"),
    [("two", {"x": [2, 3]}), ("three", {"x": [2, 3], "y": [2, 3]}), ("four", {"x": ["batch", 3]})],
)
def test_export_of_a_function(module: str, tmp_path: Path, function: str, inputs: dict[str, list[Any]]) -> None:
    result = invoke("export", f"{module}:{function}", "-o", "m.onnx")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("wrote m.onnx: ")
    assert result.stdout.endswith("opset 20\n")
    # stderr is not a terminal: no progress in logs.
    assert [line for line in result.stderr.splitlines() if not line.startswith("warning: ")] == []
    graph = onnx.load(tmp_path / "m.onnx").graph
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    found = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in graph.input
    }
    assert found == inputs


def test_export_of_a_file_with_options(module: str, tmp_path: Path) -> None:
    torch.export.save(torch.export.export(torch.nn.Linear(3, 2), (torch.ones(4, 3),)), "linear.pt2")
    result = invoke(
        *(
            "export",
            "linear.pt2",
            "--output",
            "m.onnx",
            "--opset",
            "18",
            "--verify",
            "--profile",
            "--report",
            "reports",
        ),
        *("--input-names", "data", "--output-names", "logits"),
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout.endswith("opset 18, verified against the exported program\n")
    for stage in ("capture", "prepare", "lower", "verify", "save", "total"):
        assert stage in result.stdout
    graph = onnx.load(tmp_path / "m.onnx").graph
    assert [value.name for value in (*graph.input, *graph.output)] == ["data", "logits"]
    assert len(list((tmp_path / "reports").glob("onnx_export_*_success.html"))) == 1


def test_several_sizes(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = []
    verify = fxonnx._program.verification.verify
    monkeypatch.setattr(
        "fxonnx._program.verification.verify", lambda *a, **k: trials.append(k["sizes"]) or verify(*a, **k)
    )
    result = invoke("export", f"{module}:four", "-o", "m.onnx", "--all-sizes", "--strict-shapes")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.endswith("verified\n")
    assert trials == ["auto"]


def test_strict_shapes(module: str, tmp_path: Path) -> None:
    result = invoke("export", f"{module}:narrow", "-o", "m.onnx")
    assert result.exit_code == 0
    assert "warning: the model cannot be exported for all requested sizes, only for:\n  batch >= 2" in result.stderr
    assert "UserWarning" not in result.stderr
    result = invoke("export", f"{module}:narrow", "-o", "n.onnx", "--strict-shapes")
    assert result.exit_code == 1
    assert "only for:\n  batch >= 2" in result.stderr
    assert not (tmp_path / "n.onnx").exists()


def test_exact_numerics(module: str, tmp_path: Path) -> None:
    assert invoke("export", f"{module}:two", "-o", "m.onnx", "--numerics", "exact").exit_code == 0
    metadata = {entry.key: entry.value for entry in onnx.load(tmp_path / "m.onnx").metadata_props}
    assert metadata["pkg.fxonnx.numerics"] == "exact"


REPEATED = """
import torch

def three():
    blocks = [torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.GELU()) for _ in range(3)]
    return torch.nn.Sequential(*blocks).eval(), (torch.ones(2, 3),)
"""


def test_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "repeated_model.py").write_text(REPEATED)
    monkeypatch.syspath_prepend(str(tmp_path))
    result = invoke("export", "repeated_model:three", "-o", str(tmp_path / "m.onnx"), "--functions", "repeated")
    assert result.exit_code == 0, result.stderr
    assert "3 nodes, 1 functions, opset" in result.stdout
    assert len(onnx.load(tmp_path / "m.onnx").functions) == 1


LINEAR = """
import torch

def linear():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()
    return model, (torch.ones(2, 32),)
"""


def test_quantized_activations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "linear_model.py").write_text(LINEAR)
    monkeypatch.syspath_prepend(str(tmp_path))
    batches = [torch.arange(64.0).sin().reshape(2, 32), torch.ones(2, 32)]
    torch.save(batches, tmp_path / "batches.pt")
    np.savez(tmp_path / "batches.npz", input=torch.stack(batches).numpy())
    command = ["export", "linear_model:linear", "-o", "quantized.onnx", "--verify", "--quantize", "int8"]
    monkeypatch.chdir(tmp_path)
    contents = []
    for name in ("batches.pt", "batches.npz"):
        result = invoke(*command, "--calibration", name)
        assert result.exit_code == 0, result.stderr
        assert re.search(r"0 +Gemm +int8 +2048 +576 +\d", result.stdout)
        contents.append((tmp_path / "quantized.onnx").read_bytes())
    assert contents[0] == contents[1]
    result = invoke(*command, "--dynamic-activations")
    assert result.exit_code == 0, result.stderr
    operators = {node.op_type for node in onnx.load("quantized.onnx").graph.node}
    assert {"QuantizeLinear", "MatMulInteger"} <= operators


def test_progress_on_a_terminal(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = invoke("export", f"{module}:two", "-o", "m.onnx")
    assert result.exit_code == 0, result.stderr
    # The last text of the display.
    assert "saving 1.0 / 1.0 kB" in result.stderr


@pytest.mark.parametrize(
    ("stages", "file"),
    [((), ""), (("capture", "save"), ""), ((), " unet/model.onnx")],
    ids=["plain", "counted", "file"],
)
def test_bytes_are_shown_while_a_model_is_saved(stages: tuple[str, ...], file: str) -> None:
    console = Console(force_terminal=True, file=io.StringIO(), width=80, color_system=None)
    with showing_progress(console, stages) as on_stage:
        on_stage("capture")
        # A session of another stage writes a model as well.
        Counter("bytes", 3_000_000).add(2_000_000)
        time.sleep(0.2)  # the display is refreshed 10 times a second
        on_stage(f"save{file}")
        Counter("bytes", 4_700_000_000).add(1_200_000_000)
        time.sleep(0.2)
    Counter("bytes", 9_000_000_000).add(9_000_000_000)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "capture" in shown
    assert f"saving{file} 1.2 / 4.7 GB" in shown
    assert "MB" not in shown
    assert "9.0" not in shown
    assert bytes_text(0, 5_000_000) == "0.0 / 5.0 MB"
    assert bytes_text(1, 1500) == "0.0 / 1.5 kB"


def test_attempts_and_sizes_are_counted() -> None:
    class Rows(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.sum() > 0 else x

    counts: list[tuple[str, int, int | None]] = []
    with observing_counts(lambda *count: counts.append(count)):
        fxonnx.export(Rows().eval(), (torch.rand(4, 2),), dynamic_shapes=({0: "n"},), verify="auto")
    attempts = [count for count in counts if count[0] == "attempts"]
    assert attempts == [("attempts", number, None) for number in range(1, len(attempts) + 1)]
    assert len(attempts) > 1
    sizes = [count for count in counts if count[0] == "sizes"]
    assert sizes == [("sizes", number, len(sizes)) for number in range(1, len(sizes) + 1)]
    assert len(sizes) > 2


def test_saves_count_their_bytes(tmp_path: Path) -> None:
    program = fxonnx.export(torch.nn.Linear(40, 40).eval(), (torch.rand(1, 40),))
    for destination, external_data in ((tmp_path / "m.onnx", True), (tmp_path / "n.onnx", False), (io.BytesIO(), None)):
        counts: list[tuple[int, int]] = []
        with observing_counts(lambda unit, *count, counts=counts: counts.append(count)):
            program.save(destination, external_data=external_data)
        assert counts == sorted(counts)
        assert counts[-1][0] == counts[-1][1]
        if isinstance(destination, Path):
            files = tmp_path.glob(f"{destination.name}*")
            assert counts[-1][0] == sum(file.stat().st_size for file in files)


ERRORS = [
    ("missing.pt2", "error[FX001]: SOURCE: file missing.pt2 does not exist"),
    ("notes.pt2", "notes.pt2 cannot be loaded as an exported program: "),
    (
        "MODULE",
        "is neither a .pt2 file nor package.module:function nor file.py:function\nhint: for example mymodels:make_model",
    ),
    (":two", "SOURCE: :two is neither"),
    ("no_such_module:two", "SOURCE: no_such_module cannot be imported: ModuleNotFoundError: No module named"),
    ("broken:two", "SOURCE: broken cannot be imported: SyntaxError: "),
    ("MODULE:nothing", ":nothing: the module has no such function"),
    ("MODULE:number", ":number: expected a function, got int"),
    ("MODULE:raises", ":raises raised RuntimeError: no weights today"),
    ("MODULE:model_only", ":model_only returned Half\nhint: return (model, args)"),
    ("MODULE:no_model", ":no_model returned (Tensor, Tensor)\nhint: return (model, args)"),
    (
        "MODULE:unsupported",
        "error[FX004]: 1 operator has no ONNX translation and no decomposition at opset 20:\n  fxonnx_test_",
    ),
    ("MODULE:two --opset 6", "error[FX001]: opset_version: 6 is outside the supported opsets"),
    ("MODULE:two --target tensort", "got 'tensort'\nhint: did you mean 'tensorrt'?"),
    ("MODULE:two --quantize int5", "error[FX001]: quantize: dtype: expected one of 'int4', 'int8', got 'int5'"),
    ("MODULE:two --calibration x.pt", "--calibration: activations are quantized together with weights\nhint: pass --q"),
    ("MODULE:two --quantize int8 --calibration x.txt", "--calibration: x.txt is neither a .pt nor a .npz file"),
    ("MODULE:two --quantize int8 --calibration missing.pt", "--calibration: missing.pt cannot be loaded: "),
    ("MODULE:two --quantize int8 --calibration number.pt", "number.pt contains an int, not a list of batches\nhint: "),
    ("MODULE:two --quantize int4 --dynamic-activations", 'activations="dynamic" requires 8-bit weights'),
    ("MODULE:two --numerics fast", "error[FX001]: numerics: expected one of 'default', 'exact', got 'fast'"),
    ("MODULE:two --input-names x,x", "error[FX001]: input_names: 'x' is given twice"),
    (
        "MODULE:two -o missing/m.onnx",
        "error[FX006]: missing/m.onnx cannot be written: directory missing does not exist",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), ERRORS)
def test_errors_are_one_message_and_leave_no_file(module: str, tmp_path: Path, arguments: str, message: str) -> None:
    before = sorted(tmp_path.glob("*.onnx"))
    result = invoke("export", "-o", "m.onnx", *arguments.replace("MODULE", module).split())
    assert result.exit_code == (2 if "error[FX001]" in result.stderr else 1)
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert sorted(tmp_path.glob("*.onnx")) == before
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize(
    ("source", "kind"), [("missing.pt2", ArgumentError), ("MODULE:unsupported", UnsupportedOperatorError)]
)
def test_debug_shows_the_traceback(module: str, source: str, kind: type[Exception]) -> None:
    result = invoke("export", source.replace("MODULE", module), "-o", "m.onnx", "--debug")
    assert result.exit_code == 1
    assert isinstance(result.exception, kind)


def test_unexpected_errors(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def surprising(*_: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("fxonnx._cli.loading.load_model", surprising)
    result = invoke("export", f"{module}:two", "-o", "m.onnx")
    assert result.exit_code == 1
    assert result.stderr.endswith("error: KeyError: 'surprise'\nhint: --debug shows the traceback\n")


def test_a_failed_verification_leaves_no_file(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disagree(*args: object, **kwargs: object) -> None:
        raise VerificationError("ONNX Runtime and eager torch disagree")

    monkeypatch.setattr("fxonnx._program.verification.verify", disagree)
    result = invoke("export", f"{module}:two", "-o", "m.onnx", "--verify")
    assert result.exit_code == 1
    assert "error[FX008]: ONNX Runtime and eager torch disagree" in result.stderr
    assert not (tmp_path / "m.onnx").exists()


def test_demo(tmp_path: Path) -> None:
    path = tmp_path / "alexnet.onnx"
    result = invoke("demo", "-o", str(path))
    assert result.exit_code == 0, result.stderr
    for line in (
        "capture, seconds",
        "check, seconds",
        "max error, batch 10",
        "max error, batch 3",
        "file size",
        "openvino",
    ):
        assert line in result.stdout
    graph = onnx.load(path).graph
    assert [value.name for value in graph.input] == ["actual_input_1"]
    assert [value.name for value in graph.output] == ["output1"]
    assert graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    parameters = set(fxonnx._cli.demo.AlexNet().state_dict())
    assert parameters == {name.split("::")[0] for tensor in graph.initializer if "." in (name := tensor.name)}


def test_demo_fails_on_a_mismatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Tiny(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean((1, 2, 3)) if torch.compiler.is_exporting() else x.sum((1, 2, 3))

    monkeypatch.setattr(fxonnx._cli.demo, "AlexNet", Tiny)
    result = invoke("demo", "-o", str(tmp_path / "m.onnx"))
    assert result.exit_code == 1
    assert "error[FX008]: ONNX Runtime and eager torch disagree at batch 10: 10 of 10 elements differ" in result.stderr


def test_demo_checks_its_destination_first(tmp_path: Path) -> None:
    result = invoke("demo", "-o", str(tmp_path / "missing" / "m.onnx"))
    assert result.exit_code == 1
    assert "missing does not exist" in result.stderr
    assert "capture" not in result.stderr


def test_help_and_version_without_torch() -> None:
    code = """
import sys
from fxonnx._cli.main import main
from fxonnx._cli.progress import bytes_text, showing_progress
from fxonnx._progress import Counter, observing_counts
sys.argv = ["fxonnx", sys.argv[1]]
try:
    main()
finally:
    assert "torch" not in sys.modules
"""
    for option, text in (("--help", "Export PyTorch models to ONNX."), ("--version", f"fxonnx {fxonnx.__version__}")):
        done = subprocess.run([sys.executable, "-c", code, option], check=True, capture_output=True, text=True)
        assert text in done.stdout


def test_main_is_the_console_script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["fxonnx", "--version"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("fxonnx ")


class Bomb:
    """An object that runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("entry", ["m/data/sample_inputs/model.pt", "m/data/weights/weight_0"])
def test_pickled_objects_are_not_loaded(tmp_path: Path, entry: str) -> None:
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.rand(1, 2),))
    torch.export.save(program, tmp_path / "m.pt2")
    buffer = io.BytesIO()
    torch.save(Bomb(tmp_path / "boom"), buffer)
    with zipfile.ZipFile(tmp_path / "m.pt2") as source, zipfile.ZipFile(tmp_path / "bad.pt2", "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("weights_config.json") and entry.endswith("weight_0"):
                content = content.replace(b'"use_pickle": false', b'"use_pickle": true')
            target.writestr(name, buffer.getvalue() if name == entry else content)
    result = invoke("export", str(tmp_path / "bad.pt2"), "-o", str(tmp_path / "m.onnx"))
    assert result.exit_code == 2
    assert "cannot be loaded as an exported program" in result.output
    assert not (tmp_path / "boom").exists()
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize("command", [command.name or "" for command in app.registered_commands])
def test_help_of_every_command_has_an_example_and_exit_codes(command: str) -> None:
    text = CliRunner().invoke(app, [command, "--help"]).stdout
    assert f"Example: fxonnx {command} " in text
    assert "Exit code 0" in text


def test_completion_of_shells() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert "--install-completion" in result.stdout


NOISY = """
import logging, sys, torch, warnings

def noisy():
    logging.getLogger("some_library").warning("cannot load a library")
    logging.getLogger("some_library").error("an error of a library")
    file = "/usr/lib/site-packages/some_library.py"
    warnings.warn_explicit("old function of a library", FutureWarning, file, 1)
    warnings.warn_explicit("a limit of a library", UserWarning, file, 1)
    return torch.nn.ReLU(), (torch.ones(2),)
"""


def test_logs_of_libraries(tmp_path: Path) -> None:
    """Logs and deprecations of libraries that are imported are not for users of a command, except errors."""
    (tmp_path / "noisy_models.py").write_text(NOISY)
    command = [sys.executable, "-m", "fxonnx", "export", "noisy_models:noisy", "-o", "m.onnx"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == "an error of a library\nwarning: a limit of a library\n"
