"""Directories of exports: what a killed process leaves, and what the next export removes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fxonnx._transformers.directory import staged_directory
from fxonnx.errors import SaveError

KILLED = """
import os, signal, sys
from pathlib import Path
from fxonnx._transformers.directory import staged_directory
with staged_directory(Path(sys.argv[1])) as staging:
    (staging / "weights.data").write_bytes(bytes(1000))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="directories cannot be locked")
def test_leftovers_of_killed_exports(tmp_path: Path) -> None:
    out = tmp_path / "out"
    others = [tmp_path / ".out.backup.tmp", tmp_path / ".out.v2.0a1b2c3d.tmp"]
    done = subprocess.run([sys.executable, "-c", KILLED, str(out)], check=False)
    assert done.returncode == -9
    (leftover,) = tmp_path.iterdir()
    for other in others:
        other.mkdir()
    with staged_directory(tmp_path / "other"):
        assert leftover.exists()
    with staged_directory(out) as first:
        assert not leftover.exists()
        with staged_directory(out) as second:
            # That of another export that still runs.
            assert first.exists()
            (second / "a.txt").write_text("second")
        (first / "b.txt").write_text("first")
    assert sorted(path.name for path in out.iterdir()) == ["a.txt", "b.txt"]
    assert sorted(tmp_path.glob(".*.tmp")) == others


def test_a_failed_export_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="no"), staged_directory(tmp_path / "out"):
        raise SaveError("no")
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveError, match=r"file cannot be written: it is a file\nhint: specify a directory"):
        staged_directory(tmp_path / "file").__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
