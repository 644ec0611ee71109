"""The values of an export's context: the only context variable of the packages."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest

from fxonnx._context_values import activated, active

from .test_tree import PACKAGES, short


@dataclass
class Recorder:
    """A value of a type of its own."""

    name: str


class Setting(int):
    """Another type."""


def test_the_innermost_value_of_a_type_is_active() -> None:
    assert active(Recorder) is None
    with activated(Recorder("outer")) as outer, activated(Setting(0)):
        with activated(Recorder("inner")) as inner:
            assert active(Recorder) is inner
            assert active(Setting) == 0
        with pytest.raises(ValueError, match="on purpose"), activated(Recorder("failing")):
            raise ValueError("on purpose")
        assert active(Recorder) is outer
    assert active(Recorder) is None
    assert active(Setting) is None


def test_other_threads_have_values_of_their_own() -> None:
    found: list[Recorder | None] = []
    with activated(Recorder("here")):
        thread = threading.Thread(target=lambda: found.append(active(Recorder)))
        thread.start()
        thread.join()
    assert found == [None]


def test_there_is_no_other_context_variable() -> None:
    assert [short(path) for path in PACKAGES if "ContextVar(" in path.read_text()] == [
        "exporter/fxonnx/_context_values.py"
    ]
