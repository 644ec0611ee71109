"""Saving: bytes, external data, and atomicity when a save fails or is killed."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch

import fxonnx
from fxonnx import ArgumentError, SaveError
from fxonnx._program import protobuf_layout, saving
from fxonnx._program.atomic_file import AtomicFile
from fxonnx._program.saving import save
from fxonnx_translations._builder.initializers import TorchTensor

from .handmade import initializer, linear_model


def run(path: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {"x": np.ones((2, 40), np.float32)})
    return np.asarray(output)


def expected() -> np.ndarray:
    weights = linear_model().graph.initializers
    product = np.ones((2, 40), np.float32) @ weights["weight::T"].const_value.numpy()
    return (product + weights["bias"].const_value.numpy()).reshape(2, 1, 30)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize(
    ("external_data", "names"), [(None, ["m.onnx"]), (False, ["m.onnx"]), (True, ["m.onnx", "m.onnx.data"])]
)
def test_saved_model_is_valid_and_runs(tmp_path: Path, external_data: bool | None, names: list[str]) -> None:
    path = tmp_path / "m.onnx"
    save(linear_model(), path, external_data=external_data)
    assert files(tmp_path) == names
    onnx.checker.check_model(str(path), full_check=True)
    np.testing.assert_allclose(run(path), expected(), rtol=1e-5)
    if not external_data:
        assert onnx.load(path) == protobuf_layout.serialize(linear_model())


def test_bytes_are_deterministic_for_every_kind_of_destination(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    save(linear_model(), buffer)
    save(linear_model(), str(tmp_path / "a.onnx"))
    with (tmp_path / "b.onnx").open("wb") as file:
        save(linear_model(), file)
    assert buffer.getvalue() == (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_external_data_is_aligned_and_small_tensors_are_inline(tmp_path: Path) -> None:
    model = linear_model()
    extra = initializer("extra", TorchTensor(torch.arange(100.0), name="extra"))
    model.graph.register_initializer(extra)
    save(model, tmp_path / "m.onnx", external_data=True)
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    places = {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data} for tensor in proto.graph.initializer
    }
    assert places["weight::T"] == {"location": "m.onnx.data", "offset": "0", "length": "4800"}
    assert places["extra"] == {"location": "m.onnx.data", "offset": "8192", "length": "400"}
    assert places["bias"] == places["target"] == {}
    assert (tmp_path / "m.onnx.data").stat().st_size == 8192 + 400


def test_no_external_data_without_large_tensors(tmp_path: Path) -> None:
    save(linear_model(rows=2, columns=3), tmp_path / "m.onnx", external_data=True)
    assert files(tmp_path) == ["m.onnx"]


def test_external_data_is_the_default_above_the_limit_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "SINGLE_FILE_BYTES", 4000)
    save(linear_model(), tmp_path / "m.onnx")
    assert files(tmp_path) == ["m.onnx", "m.onnx.data"]
    save(linear_model(), tmp_path / "n.onnx", include_initializers=False)
    assert files(tmp_path) == ["m.onnx", "m.onnx.data", "n.onnx"]


@pytest.mark.parametrize("before", [None, False, True])
@pytest.mark.parametrize("external_data", [False, True])
def test_overwriting_a_model_removes_its_external_data(
    tmp_path: Path, before: bool | None, external_data: bool
) -> None:
    path = tmp_path / "m.onnx"
    if before is not None:
        save(linear_model(rows=40, columns=31), path, external_data=before)
    for _ in range(3):
        save(linear_model(), path, external_data=external_data)
        assert files(tmp_path) == (["m.onnx", "m.onnx.data"] if external_data else ["m.onnx"])
        onnx.checker.check_model(str(path), full_check=True)
        np.testing.assert_allclose(run(path), expected(), rtol=1e-5)


def test_permissions_of_the_replaced_file_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(linear_model(), path)
    fresh = tmp_path / "fresh"
    fresh.touch()
    assert path.stat().st_mode == fresh.stat().st_mode
    path.chmod(0o640)
    save(linear_model(), path)
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("options", "initializers", "inputs"),
    [
        ({}, ["weight::T", "bias", "target"], ["x"]),
        ({"keep_initializers_as_inputs": True}, ["weight::T", "bias", "target"], ["x", "weight::T", "bias", "target"]),
        ({"include_initializers": False}, ["target"], ["x", "weight::T", "bias"]),
        (
            {"include_initializers": False, "keep_initializers_as_inputs": True},
            ["target"],
            ["x", "weight::T", "bias", "target"],
        ),
    ],
)
def test_initializer_options(
    tmp_path: Path, options: dict[str, bool], initializers: list[str], inputs: list[str]
) -> None:
    save(linear_model(), tmp_path / "m.onnx", **options)
    graph = onnx.load(tmp_path / "m.onnx").graph
    assert [tensor.name for tensor in graph.initializer] == initializers
    assert [value.name for value in graph.input] == inputs


def test_a_model_without_weights_runs_with_the_weights_as_inputs(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(linear_model(), path, include_initializers=False, keep_initializers_as_inputs=True)
    weights = {
        name: value.const_value.numpy() for name, value in linear_model().graph.initializers.items() if name != "target"
    }
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {"x": np.ones((2, 40), np.float32), **weights})
    np.testing.assert_allclose(output, expected(), rtol=1e-5)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(64, 8).to(torch.bfloat16),
        torch.randn(64, 16).to(torch.float8_e4m3fn),
        torch.randn(64, 8).t(),
        torch.randn(64, 8) > 0,
        torch.tensor(3.0),
        torch.zeros(0, 4),
        torch.arange(200)[::2],
    ],
    ids=["bfloat16", "float8", "transposed", "bool", "0-dim", "empty", "strided"],
)
@pytest.mark.parametrize("external_data", [False, True])
def test_every_kind_of_tensor_is_saved(tmp_path: Path, tensor: torch.Tensor, external_data: bool) -> None:
    model = linear_model()
    model.graph.register_initializer(initializer("extra", TorchTensor(tensor, name="extra")))
    save(model, tmp_path / "m.onnx", external_data=external_data)
    loaded = ir.load(tmp_path / "m.onnx").graph.initializers["extra"].const_value
    assert loaded.tobytes() == TorchTensor(tensor).tobytes()
    assert tuple(loaded.shape) == tuple(tensor.shape)


def test_string_initializers_are_saved(tmp_path: Path) -> None:
    model = linear_model()
    model.graph.register_initializer(initializer("words", ir.StringTensor([b"a", b"bc"], shape=ir.Shape([2]))))
    save(model, tmp_path / "m.onnx")
    assert list(onnx.load(tmp_path / "m.onnx").graph.initializer[-1].string_data) == [b"a", b"bc"]


class Watched(TorchTensor):
    """A tensor that records accesses to its bytes and calls a function before writing them."""

    def __init__(self, tensor: torch.Tensor, name: str, log: list[str], action: Callable[[], None] = lambda: None):
        super().__init__(tensor, name=name)
        self.log = log
        self.action = action

    def tobytes(self) -> bytes:
        self.log.append(f"{self.name}: tobytes")
        return super().tobytes()

    def tofile(self, file: io.BufferedWriter) -> None:
        self.log.append(f"{self.name}: tofile")
        self.action()
        super().tofile(file)


@pytest.mark.parametrize("external_data", [False, True])
def test_each_tensor_is_streamed_once(tmp_path: Path, external_data: bool) -> None:
    log: list[str] = []
    model = linear_model()
    for name in ("p", "q"):
        model.graph.register_initializer(initializer(name, Watched(torch.ones(100), name, log)))
    save(model, tmp_path / "m.onnx", external_data=external_data)
    assert log == ["p: tofile", "q: tofile"]


def fail() -> None:
    raise RuntimeError("the disk of the model is gone")


class Short(TorchTensor):
    """A tensor that writes fewer bytes than its dtype and shape require."""

    def tofile(self, file: io.BufferedWriter) -> None:
        file.write(b"1234")


def _failing(tensor: ir.TensorProtocol) -> ir.Model:
    model = linear_model()
    model.graph.register_initializer(initializer("late", tensor))
    return model


@pytest.mark.parametrize("external_data", [False, True])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (Watched(torch.ones(100), "late", [], fail), "initializer 'late' cannot be written: the disk of the model"),
        (Short(torch.ones(100), name="late"), "initializer 'late' has 4 bytes, but its dtype and shape require 400"),
        (TorchTensor(torch.empty(100, device="meta"), name="late"), "1 weight has no values \\(first: 'late'\\)"),
    ],
    ids=["raises", "short", "meta"],
)
def test_failed_saves_keep_the_old_model_and_leave_no_files(
    tmp_path: Path, tensor: ir.TensorProtocol, message: str, before: bool, external_data: bool
) -> None:
    path = tmp_path / "m.onnx"
    save(linear_model(), path, external_data=before)
    names = files(tmp_path)
    model = _failing(tensor)
    values = dict(model.graph.initializers)
    tensors = [value.const_value for value in values.values()]
    with pytest.raises(SaveError, match=message):
        save(model, path, external_data=external_data)
    assert files(tmp_path) == names
    np.testing.assert_allclose(run(path), expected(), rtol=1e-5)
    assert dict(model.graph.initializers) == values
    assert all(value.const_value is tensor for value, tensor in zip(values.values(), tensors, strict=True))


def test_failed_saves_restore_an_open_file() -> None:
    buffer = io.BytesIO(b"before")
    buffer.seek(0, io.SEEK_END)
    with pytest.raises(SaveError, match="'late' cannot be written"):
        save(_failing(Watched(torch.ones(100), "late", [], fail)), buffer)
    assert buffer.getvalue() == b"before"


@pytest.mark.parametrize("call", range(2))
def test_failed_renames_keep_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    path = tmp_path / "m.onnx"
    save(linear_model(), path, external_data=True)
    replace, calls = os.replace, iter(range(10))

    def failing_replace(source: Path, destination: Path) -> None:
        if next(calls) == call:
            raise OSError(5, "Input/output error")
        replace(source, destination)

    monkeypatch.setattr(os, "replace", failing_replace)
    with pytest.raises(SaveError, match=r"m\.onnx cannot be written: Input/output error"):
        save(linear_model(rows=40, columns=31), path, external_data=True)
    assert files(tmp_path) == ["m.onnx", "m.onnx.data"]
    np.testing.assert_allclose(run(path), expected(), rtol=1e-5)


def test_without_hard_links_external_data_keeps_the_numbered_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(source: Path, destination: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_link)
    path = tmp_path / "m.onnx"
    for names in (["m.onnx", "m.onnx.data"], ["m.onnx", "m.onnx.1.data"], ["m.onnx", "m.onnx.data"]):
        save(linear_model(), path, external_data=True)
        assert files(tmp_path) == sorted(names)
        np.testing.assert_allclose(run(path), expected(), rtol=1e-5)


KILLED = """
import os, sys
sys.path.insert(0, {root!r})
import torch
from tests.program.handmade import initializer, linear_model
from tests.program.test_saving import Watched
from fxonnx._program.saving import save

def wait():
    print("writing", flush=True)
    sys.stdin.read()

model = linear_model(rows=40, columns=31)
model.graph.register_initializer(initializer("late", Watched(torch.ones(100), "late", [], wait)))
save(model, {path!r}, external_data={external_data})
"""


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("external_data", [False, True])
def test_killed_saves_keep_the_old_model(tmp_path: Path, before: bool, external_data: bool) -> None:
    path = tmp_path / "m.onnx"
    save(linear_model(), path, external_data=before)
    root = str(Path(__file__).parents[2])
    script = textwrap.dedent(KILLED).format(root=root, path=str(path), external_data=external_data)
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        # A save to the same path must not remove the temporary file of a running save.
        assert any(name.endswith(".tmp") for name in files(tmp_path))
        process.send_signal(signal.SIGKILL)
    onnx.checker.check_model(str(path), full_check=True)
    np.testing.assert_allclose(run(path), expected(), rtol=1e-5)
    save(linear_model(), path, external_data=external_data)
    assert files(tmp_path) == (["m.onnx", "m.onnx.data"] if external_data else ["m.onnx"])


@pytest.mark.parametrize("call", range(13))
def test_saves_killed_at_any_system_call_leave_a_valid_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    path = tmp_path / "m.onnx"
    save(linear_model(), path, external_data=True)
    calls = iter(range(100))

    def dying(function: Callable[..., None]) -> Callable[..., None]:
        def run_or_die(*args: object, **kwargs: object) -> None:
            if next(calls) == call:
                os._exit(9)
            function(*args, **kwargs)

        return run_or_die

    child = os.fork()
    if child == 0:
        for name in ("fsync", "replace", "link", "unlink"):
            monkeypatch.setattr(os, name, dying(getattr(os, name)))
        save(linear_model(), path, external_data=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    # Python 3.10 makes fewer calls.
    assert os.waitstatus_to_exitcode(status) == 9 or (call > 10 and sys.version_info < (3, 11))
    np.testing.assert_allclose(run(path), expected(), rtol=1e-5)
    save(linear_model(), path, external_data=True)
    assert files(tmp_path) == ["m.onnx", "m.onnx.data"]
    onnx.checker.check_model(str(path), full_check=True)


def test_concurrent_saves_to_the_same_path(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with AtomicFile(path) as outer:
        outer.file.write(b"outer")
        save(linear_model(), path)
        outer.commit()
    assert path.read_bytes() == b"outer"
    assert files(tmp_path) == ["m.onnx"]


class BytesPath(os.PathLike[Any]):
    def __fspath__(self) -> bytes:
        return b"m.onnx"


@pytest.mark.parametrize(
    "call",
    [
        lambda path: fxonnx.diff(path, path),
        lambda path: fxonnx.check(path, "onnxruntime"),
        lambda path: fxonnx.report(path, "m.html"),
        lambda path: fxonnx.report(onnx.ModelProto(), path),
        lambda path: fxonnx.verify(path, torch.nn.ReLU(), (torch.ones(1),)),
        lambda path: fxonnx.export(torch.nn.ReLU().eval(), (torch.ones(1),)).save(io.BytesIO(), weights=path),
    ],
)
@pytest.mark.parametrize("path", ["m\0", Path("m\0"), b"m", BytesPath(), "\ud800", "n" * 300])
def test_what_is_no_path_is_refused(call: Any, path: Any) -> None:
    with pytest.raises(fxonnx.ExportError, match=r"expected|is not the name of a file|too long"):
        call(path)


@pytest.mark.parametrize("exists", [False, True])
def test_the_target_of_a_link_is_replaced(tmp_path: Path, exists: bool) -> None:
    (tmp_path / "runs").mkdir()
    target, link = tmp_path / "runs" / "m.onnx", tmp_path / "latest.onnx"
    if exists:
        target.write_bytes(b"before")
    link.symlink_to(Path("runs", "m.onnx"))
    save(linear_model(), link)
    assert link.is_symlink()
    assert files(tmp_path / "runs") == ["m.onnx"]
    onnx.checker.check_model(str(target), full_check=True)
    with pytest.raises(SaveError, match=r"latest.onnx is a link, and external data .*\nhint: save to .*runs/m\.onnx"):
        save(linear_model(), link, external_data=True)


@pytest.mark.parametrize(
    ("target", "message"),
    [("a.onnx", "it is a link that leads to itself"), ("missing/m.onnx", "directory .*missing does not exist")],
)
def test_links_that_lead_nowhere(tmp_path: Path, target: str, message: str) -> None:
    (tmp_path / "a.onnx").symlink_to(tmp_path / target)
    with pytest.raises(SaveError, match=f"a.onnx cannot be written: {message}" if target == "a.onnx" else message):
        save(linear_model(), tmp_path / "a.onnx")
    assert files(tmp_path) == ["a.onnx"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"x": 1}, "f: expected a path or a binary file, got dict\nhint: pass keyword inputs of forward as kwargs="),
        (3, "f: expected a path or a binary file, got int"),
        (io.StringIO(), 'f: the file is open for writing text\nhint: open it with mode "wb"'),
        (b"m.onnx", r"f: expected a path or a binary file, got bytes\nhint: os.fsdecode\(path\)"),
        ("m\0.onnx", r"f: 'm\\x00.onnx' is not the name of a file: it has a null byte"),
        (Path("m\0.onnx"), r"f: 'm\\x00.onnx' is not the name of a file: it has a null byte"),
        ("\ud800.onnx", r"f: '\\ud800.onnx' is not the name of a file"),
        (BytesPath(), r"f: expected the path as str, got bytes\nhint: os.fsdecode\(path\)"),
    ],
)
def test_what_is_no_destination_is_refused_before_the_capture(value: Any, message: str) -> None:
    def fail(module: Any, args: Any) -> None:
        raise RuntimeError("captured")

    model = torch.nn.Linear(2, 2)
    model.register_forward_pre_hook(fail)
    with pytest.raises(ArgumentError, match=message):
        fxonnx.export(model, (torch.ones(1, 2),), value)
    with pytest.raises(ArgumentError, match=message.replace("f:", "destination:", 1)):
        save(linear_model(), value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing/m.onnx", r"missing/m\.onnx cannot be written: directory .*missing does not exist\nhint: create it"),
        ("directory", "directory cannot be written: it is a directory"),
        ("pipe", "pipe cannot be written: it is not a regular file"),
        ("file/m.onnx", r"file/m\.onnx cannot be written: .*file is not a directory\nhint: specify a file in"),
        ("n" * 300, "cannot be written: File name too long"),
    ],
)
def test_invalid_destination(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    names = files(tmp_path)
    with pytest.raises(SaveError, match=message):
        save(linear_model(), tmp_path / name)
    assert files(tmp_path) == names


def test_unwritable_destination(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Permissions do not restrict root.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(SaveError, match=r"m\.onnx cannot be written: permission denied"):
        save(linear_model(), tmp_path / "m.onnx")


ERRORS = {
    errno.EACCES: "permission denied\nhint: write to a directory in which you may create files",
    errno.EROFS: "permission denied\nhint: write to a directory in which you may create files",
    errno.ENOSPC: r"no space left on the device\nhint: it takes about [\d.]+ \w+, and [\d.]+ \w+ are free",
    errno.EIO: "Input/output error$",
}


@pytest.mark.parametrize("number", ERRORS)
@pytest.mark.parametrize("external_data", [False, True])
def test_errors_of_the_device(
    number: int, external_data: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same words whatever is written, and an existing file is left as it was."""
    program = fxonnx.export(torch.nn.Linear(64, 64).eval(), (torch.rand(1, 64),))
    path = tmp_path / "m.onnx"
    path.write_bytes(b"before")

    def fail(*_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(SaveError, match=rf"m\.onnx cannot be written: {ERRORS[number]}"):
        program.save(path, external_data=external_data)
    assert (files(tmp_path), path.read_bytes()) == (["m.onnx"], b"before")
    with pytest.raises(SaveError, match=rf"{tmp_path.name} cannot be written: {ERRORS[number]}"):
        fxonnx.save_all({"a": program}, tmp_path)


def test_external_data_requires_a_path() -> None:
    with pytest.raises(SaveError, match="external data requires a path, not an open file\nhint: save to a path"):
        save(linear_model(), io.BytesIO(), external_data=True)


def test_too_large_for_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huge = TorchTensor(torch.empty(2**29 + 1, device="meta"), name="huge")
    model = _failing(huge)
    with pytest.raises(
        SaveError, match=r"2\.0 GiB, and a single ONNX file must stay below 2 GiB\nhint: .*external_data"
    ):
        save(model, tmp_path / "m.onnx", external_data=False)
    with pytest.raises(SaveError, match="hint: save to a path, so that the weights are stored as external data"):
        save(model, io.BytesIO())
    assert files(tmp_path) == []


def test_initializer_without_a_value(tmp_path: Path) -> None:
    model = linear_model()
    model.graph.initializers["bias"].const_value = None
    with pytest.raises(SaveError, match="initializer 'bias' has no value"):
        save(model, tmp_path / "m.onnx")


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**14 - 1, 2**14, 2**31 - 1])
def test_varint_encoding(number: int) -> None:
    proto = onnx.ModelProto()
    # Field 1 of a ModelProto, ir_version, is a varint.
    proto.ParseFromString(b"\x08" + protobuf_layout._varint(number))
    assert proto.ir_version == number
