"""A torch that has moved functions that fxonnx replaces: patches are skipped with a warning, or the export is refused, never misled."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from typer.testing import CliRunner

import fxonnx
from fxonnx._capture.patches import PatchKind, all_patches, missing_targets
from fxonnx._capture.patches import installed as installed_versions
from fxonnx._capture.patches.installed import installed_version, is_newer, parameters_of, recorded_parameters
from fxonnx._capture.patches.patch import Patch, applied
from fxonnx._cli.commands import app
from fxonnx._cli.loading import load_model
from fxonnx.errors import CaptureError, UntestedTorchError
from fxonnx_translations._optional_names import MissingNameError, find_name, find_names, is_missing

from .degraded import ROOT, names

SPEED = "torch.fx.experimental.sym_node:SymNode.maybe_as_int"
REACH = "torch:linspace"
SOUND = "torch.fx.experimental.symbolic_shapes:ShapeEnv._log_guard"


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that lets torch lack the target of a row."""
    changed: list[tuple[Patch, str]] = []

    def move(target: str) -> None:
        for row in all_patches():
            if row.target == target:
                changed.append((row, target))
                object.__setattr__(row, "target", f"{target}_moved")
                vars(row).pop("missing", None)

    installed_versions._warn_once.cache_clear()
    yield move
    installed_versions._warn_once.cache_clear()
    installed_versions.is_newer.cache_clear()
    for row, target in changed:
        object.__setattr__(row, "target", target)
        vars(row).pop("missing", None)


class Add(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x.shape[0]


def export(n: int = 3, **options: Any) -> fxonnx.ONNXProgram:
    return fxonnx.export(Add().eval(), (torch.rand(n, 2),), dynamic_shapes=({0: "n"},), **options)


def outcomes(kind: str, *wanted: str) -> list[dict[str, str]]:
    """The outcomes of the exports without each name, in processes of their own."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.capture.degraded", kind, *wanted]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = [json.loads(line) for line in printed.splitlines()]
    assert found
    return found


def misleading(found: list[dict[str, str]]) -> list[dict[str, str]]:
    """The outcomes that are neither as designed for the kind of row nor works."""
    return [
        one
        for one in found
        if one["outcome"] != "works" and not (one["kind"] in ("sound", "name") and "error[FX010]: " in one["outcome"])
    ]


# A kernel, a shape function, a value, and a function imported by name; the tests below try functions of each kind.
SAMPLE = ("aten::lstm.input", "aten::conv_tbc", "torch:Tensor.data", "torch.fx.proxy:CapturedTraceback")


def test_some_rows_without_their_targets() -> None:
    labels = {row.target: f"{index} {row.target}" for index, row in enumerate(all_patches())}
    assert not misleading(outcomes("rows", *(labels[target] for target in SAMPLE)))


@pytest.mark.nightly
def test_all_rows_without_their_targets() -> None:
    found = outcomes("rows")
    assert len(found) == len(all_patches())
    assert not misleading(found)


def test_some_private_names_are_missing() -> None:
    found = outcomes("names", "torch._C.DispatchKey", "torch._functorch.predispatch")
    assert [one["outcome"].startswith("ImportError: error[FX010]: ") for one in found] == [True, False]
    assert not misleading(found)


@pytest.mark.nightly
def test_all_private_names_are_missing() -> None:
    found = outcomes("names")
    assert len(found) == len(names()) >= 70
    assert not misleading(found)
    assert sum(one["outcome"] == "works" for one in found) >= 42


@pytest.mark.parametrize(
    ("target", "consequence"),
    [
        (SPEED, r"exports take longer:\n  torch\.fx\..*SymNode\.maybe_as_int_moved does not exist \(it evaluates"),
        (REACH, r"their dims are static:\n  torch\.linspace_moved does not exist \(it specializes the number of steps"),
    ],
)
def test_a_skipped_row_is_one_warning(moved: Any, target: str, consequence: str) -> None:
    moved(target)
    with pytest.warns(UserWarning, match=rf"torch 2\S+ lacks functions that fxonnx replaces; without .*{consequence}"):
        program = export()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export()
    torch.testing.assert_close(program(torch.ones(5, 2))[0], torch.full((5, 2), 6.0))
    assert [one.kind for one in missing_targets()] == [PatchKind.SPEED if target == SPEED else PatchKind.REACH]


def test_a_row_for_soundness_is_an_error(moved: Any) -> None:
    moved(SOUND)
    expected = (
        r"error\[FX010\]: torch 2\S+ lacks functions that fxonnx replaces so that no result is silently wrong:\n"
        r"  torch\.fx\.experimental\.symbolic_shapes\.ShapeEnv\._log_guard_moved does not exist \(torch keeps only the "
        r"range of a guard .*\)\nhint: install torch 2\.15\.0 or a newer fxonnx; FXONNX_UNTESTED_TORCH=warn exports"
    )
    with pytest.raises(UntestedTorchError, match=expected):
        export()


def test_a_newer_torch_is_named(moved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    moved(SOUND)
    newer = Version("2.16.1")
    installed_versions.is_newer.cache_clear()
    monkeypatch.setattr(
        installed_versions, "installed_version", lambda name: newer if name == "torch" else installed_version(name)
    )
    with pytest.raises(
        UntestedTorchError, match=r"fxonnx \S+ is tested with torch 2\.13 to 2\.15\.0; torch 2\.16\.1 lacks"
    ):
        export()


def test_untested_torch_on_request(moved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    moved(SOUND)
    monkeypatch.setenv("FXONNX_UNTESTED_TORCH", "warn")
    stages: list[str] = []

    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1 if x.shape[0] > 3 else x.sum(1)

    with pytest.warns(
        UserWarning, match=r"constraints may be missed and results silently wrong:\n  .*_log_guard_moved"
    ):
        program = fxonnx.export(
            Branches().eval(),
            (torch.rand(5, 2),),
            dynamic_shapes=({0: "n"},),
            diagnostics=fxonnx.Diagnostics(on_stage=stages.append),
        )
    assert "verify" in stages
    unproved = [str(one) for one in program.record.assumptions]
    assert "_log_guard_moved does not exist" in unproved[0]
    assert len(unproved) == 1 + len(program.record.constraints) > 1
    assert all("constraint n" in one for one in unproved[1:])


def test_a_wrong_capture_on_untested_torch_is_an_error(moved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two states of scan that begin with one tensor become one; the model itself fails if it is told of an export."""
    moved("torch._dynamo.utils:clone_input")
    monkeypatch.setenv("FXONNX_UNTESTED_TORCH", "warn")

    class Sums(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            zero = torch.zeros(x.shape[1])

            def step(state: Any, row: Tensor) -> Any:
                return (state[0] + row, state[1] * 2 + row), state[0] + state[1]

            return scan(step, (zero, zero), x)[1]

    with (
        pytest.warns(UserWarning, match="clone_input_moved"),
        pytest.raises(
            CaptureError, match="the captured program does not compute what the model computes, at the example"
        ),
    ):
        fxonnx.export(Sums().eval(), (torch.rand(5, 4),))


def test_other_parameters_count_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def target(x: int, *more: int, flag: bool = True, **rest: int) -> int:
        return x

    assert parameters_of(target) == "x, *more, flag, **rest"
    assert parameters_of(lambda a, b=1, *, c: a) == "a, b, *, c"
    monkeypatch.setattr(sys.modules[__name__], "replaced", target, raising=False)
    row = Patch(f"{__name__}:replaced", lambda original, *args: 7, "of a reason")
    with monkeypatch.context() as patched:
        patched.setattr("fxonnx._capture.patches.patch.recorded_parameters", lambda: {row.target: ["x, flag", "x, y"]})
        assert row.missing is not None
        assert str(row.missing).endswith("replaced has other parameters, (x, *more, flag, **rest) (of a reason)")
        installed_versions._warn_once.cache_clear()
        with pytest.warns(UserWarning, match="replaced has other parameters"), applied([row]):
            assert sys.modules[__name__].replaced(3) == 3
    again = Patch(row.target, row.replacement, row.why)
    with applied([again]):
        assert sys.modules[__name__].replaced(3) == 7
        # The parameters are the original's, also while it is replaced.
        assert Patch(row.target, row.replacement, row.why).parameters() == "x, *more, flag, **rest"
    assert sys.modules[__name__].replaced(3) == 3


def test_all_parameters_are_recorded() -> None:
    assert not [one for one in all_patches() if not one.optional and one.applies and one.missing]
    # A call of a function of C++ may be one of Python, depending on the tests before.
    rows = [one for one in all_patches() if one.applies and not one.target.startswith("torch._C:")]
    unrecorded = [one.target for one in rows if one.parameters() and one.target not in recorded_parameters()]
    assert not unrecorded, "run python -m fxonnx._capture.patches.installed"


def test_versions_are_not_compared_as_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    for installed, expected in (("2.9.1", True), ("2.13.0+cpu", False), ("2.100", False), ("2.13.0.dev1", False)):
        monkeypatch.setattr("fxonnx._capture.patches.patch.installed_version", lambda name, one=installed: Version(one))
        assert Patch("torch:linspace", print, "", before="2.13").applies == expected
        assert Patch("torch:linspace", print, "", since="2.13").applies != expected


def test_known_versions_of_libraries_are_quiet() -> None:
    """An older version of a library lacks models, and has functions with other parameters: its rows are skipped."""
    row = Patch("transformers:no_such_function", print, "of a reason", optional=True)
    assert row.missing is not None
    assert not is_newer("transformers")
    assert is_newer("no_such_library")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with applied([row]):
            pass


def test_a_target_of_another_form_is_skipped() -> None:
    immutable = Patch("builtins:int.bit_count", lambda original: original, "of a reason", PatchKind.SPEED)
    installed_versions._warn_once.cache_clear()
    with pytest.warns(UserWarning, match=r"bit_count cannot be replaced, TypeError: "), applied([immutable]):
        pass
    assert (3).bit_count() == 2


def test_an_absent_library_is_not_mentioned() -> None:
    absent = Patch("no_such_library.models:forward", print, "of a reason", optional=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with applied([absent]):
            pass
    present = Patch("json.decoder:no_such_function", print, "of a reason", optional=True)
    installed_versions._warn_once.cache_clear()
    with (
        pytest.warns(UserWarning, match=r"json.* lacks .*\n  json\.decoder\.no_such_function does not"),
        applied([present]),
    ):
        pass


def test_files_are_not_loaded_without_the_patches(moved: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(Add(), (torch.rand(3, 2),)), path)
    assert load_model(str(path)).model is not None
    moved("torch:load")
    with pytest.raises(UntestedTorchError, match=r"torch\.load_moved does not exist \(torch\.export\.load unpickles"):
        load_model(str(path))


def test_the_report_and_the_command_line_list_skipped_rows(moved: Any, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["--version", "--verbose"])
    assert (result.exit_code, result.output.splitlines()[-1]) == (0, "all patches apply")
    assert "\ntorch 2." in result.output
    moved(REACH)
    with pytest.warns(UserWarning, match="linspace_moved"):
        export(diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path))
    for page in (*tmp_path.glob("*.html"), *tmp_path.glob("*.md")):
        assert "torch.linspace_moved does not exist" in page.read_text()
    result = CliRunner().invoke(app, ["--version", "--verbose"])
    assert result.output.splitlines()[-1].endswith("specializes the number of steps) (reach)")


def test_a_feature_without_its_private_name(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_name("torch._C:no_such_name")
    assert is_missing(found)
    assert is_missing(found.part)
    assert not isinstance(3, found)
    assert find_names("torch:rand", "torch:no_such_name") == (torch.rand,)
    assert find_name("torch.no_such_module:name", 3) == 3
    with pytest.raises(MissingNameError, match=r"torch \S+ does not have torch\._C\.no_such_name\.part, which fxonnx"):
        found.part()
    monkeypatch.setattr("fxonnx._capture.patches.functional.scan", found)

    class Scans(nn.Module):
        def forward(self, x: Tensor) -> Any:
            from torch._higher_order_ops.associative_scan import associative_scan

            return associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")

    with pytest.raises(UntestedTorchError, match=r"error\[FX010\]: torch \S+ does not have torch\._C\.no_such_name"):
        fxonnx.export(Scans().eval(), (torch.rand(4, 2),), dynamic_shapes=({0: "n"},))


def test_errors_are_no_capture_errors() -> None:
    assert not issubclass(UntestedTorchError, CaptureError)
