"""Functions whose source code is not the code that runs: edited files, functions of exec, files that are gone."""

from __future__ import annotations

import importlib
import linecache
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxonnx
from fxonnx import CaptureError
from fxonnx._capture.user_code import find_definition, is_compiled_from
from tests.functions import Function

X = torch.arange(6.0).reshape(3, 2) + 1

BRANCH = '''
def forward(x):
    """Add or subtract."""
    if x.sum() > 0:
        y = x + 1
    else:
        y = x - 1
    return y
'''
LOOP = """
def forward(x):
    y = x
    while y.sum() < 100:
        y = y * 2 + 1
    return y
"""
CHECK = """
def forward(x):
    if (x < 0).any():
        return x * 5
    return x + 1
"""
TRUNCATION = """
def forward(x, y):
    if x.shape[0] < y.shape[0]:
        y = y[:x.shape[0]]
    return y * 2
"""


@pytest.fixture
def module(tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """Import a new module with this text."""
    names = []

    def load(text: str) -> Any:
        name = f"edited_module_{len(names)}"
        names.append(name)
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    sys.path.insert(0, str(tmp_path))
    try:
        yield load
    finally:
        sys.path.remove(str(tmp_path))
        for name in names:
            sys.modules.pop(name, None)


def edit(module: Any, old: str, new: str) -> None:
    path = Path(module.__file__)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    os.utime(path, (1e9, 1e9))
    linecache.checkcache(str(path))


CHANGED = {
    "a constant": (BRANCH, "x - 1", "x - 2"),
    "the sign of a zero": (BRANCH.replace("x - 1", "x - 0.0"), "x - 0.0", "x - -0.0"),
    "the type of a constant": (BRANCH.replace("x - 1", "x - True"), "x - True", "x - 1"),
    "an operator": (BRANCH, "x - 1", "x * 1"),
    "a name": (BRANCH, "x.sum()", "x.max()"),
    "the lines": (BRANCH, "\ndef", "\n\n\ndef"),
    "a loop": (LOOP, "y * 2 + 1", "y * 3 + 1"),
    "everything": (BRANCH, BRANCH, "a = 1\n"),
    "the syntax": (BRANCH, "else:", "else"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_function_is_not_rewritten_from_an_edited_file(what: str, module: Callable[[str], Any]) -> None:
    text, old, new = CHANGED[what]
    loaded = module(text)
    edit(loaded, old, new)
    message = r"the source code of forward is not the code that runs(?s:.*)edited_module_0\.py:\d+ in forward"
    with pytest.raises(CaptureError, match=message) as raised:
        fxonnx.export(Function(loaded.forward).eval(), (X,))
    assert "reload the module or restart the process" in str(raised.value)


UNCHANGED = {
    "a docstring": (BRANCH, "Add or subtract.", "Add or subtract one."),
    "a comment": (BRANCH, "y = x - 1", "y = x - 1  # minus"),
    "a function below": (BRANCH + "\n\ndef other():\n    return 1\n", "return 1", "return 2"),
    "spaces": (BRANCH, "x - 1", "x  -  1"),
}


@pytest.mark.parametrize("what", UNCHANGED)
def test_edits_that_do_not_change_the_function_do_not_matter(what: str, module: Callable[[str], Any]) -> None:
    text, old, new = UNCHANGED[what]
    loaded = module(text)
    edit(loaded, old, new)
    program = fxonnx.export(Function(loaded.forward).eval(), (X,))
    for x in (X, -X):
        torch.testing.assert_close(program(x)[0], loaded.forward(x))


@pytest.mark.parametrize("added", ["", "\nelse:\n"])
def test_a_check_is_not_read_from_an_edited_file(added: str, module: Callable[[str], Any]) -> None:
    loaded = module(CHECK + "\n# end\n")
    edit(loaded, "return x * 5", "raise ValueError(x)")
    edit(loaded, "# end\n", added)
    with pytest.raises(CaptureError, match="the source code of forward is not the code that runs"):
        fxonnx.export(Function(loaded.forward).eval(), (X,))


def test_a_truncation_is_not_read_from_an_edited_file(module: Callable[[str], Any]) -> None:
    class Cut(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Any:
            return loaded.forward(x, y)

    loaded = module(TRUNCATION.replace("y = y[:x.shape[0]]", "y = y[:x.shape[0]] + 1"))
    edit(loaded, "y = y[:x.shape[0]] + 1", "y = y[:x.shape[0]]")
    with pytest.warns(UserWarning, match="a < b"):
        program = fxonnx.export(Cut().eval(), (X, torch.ones(5, 2)), dynamic_shapes=({0: "a"}, {0: "b"}))
    with pytest.raises(fxonnx.ArgumentError):
        program(torch.ones(5, 2), torch.ones(5, 2))


def test_a_function_of_exec_with_the_name_of_a_file(module: Callable[[str], Any]) -> None:
    loaded = module(BRANCH)
    namespace: dict[str, Any] = {}
    exec(compile(BRANCH.replace("x - 1", "x - 7"), loaded.__file__, "exec"), namespace)
    with pytest.raises(CaptureError, match="the source code of forward is not the code that runs"):
        fxonnx.export(Function(namespace["forward"]).eval(), (X,))


def test_functions_without_source_code(module: Callable[[str], Any]) -> None:
    loaded = module(BRANCH)
    Path(loaded.__file__).unlink()
    linecache.checkcache(loaded.__file__)
    with pytest.raises(CaptureError, match=r"forward has no source code(?s:.*)hint: define the function in a file"):
        fxonnx.export(Function(loaded.forward).eval(), (X,))
    namespace: dict[str, Any] = {}
    exec(BRANCH, namespace)
    with pytest.raises(CaptureError, match="forward asks for the value of a tensor and was defined by exec, without"):
        fxonnx.export(Function(namespace["forward"]).eval(), (X,))


FORMS = '''
"""Functions that compile to different code than their definitions alone."""
from __future__ import annotations

import math, os.path
from math import floor as lower


def imported(x):
    return math.ceil(x) + lower(x) + len(os.path.join("a", "b"))


def recursive(n):
    """Count down."""
    return 0 if n < 0 else recursive(n - 1)


def outer(scale):
    def inner(x: Missing, *args, factor: float = 2, **kwargs) -> Missing:
        value: Missing = x * scale
        return [item * value for item in args if item in {1, 2.0, "a"}]
    return inner


class Base:
    def __init__(self, __own=1, *, key=lambda: 3):
        super().__init__()
        self.__own = __own
        self.read = lambda: self.__own

    @property
    def own(self):
        class Local:
            __slots__ = ("__a",)
            def get(self): return self.__a
        try:
            with open("a") as file:
                yield from file
        except (OSError, ValueError) as error:
            return error, Local
        finally:
            self.__own = -0.0, float("nan"), 1e400, ..., b"a", 2j


inner = outer(2)
own = Base.own.fget
init = Base.__init__
'''


@pytest.mark.parametrize("name", ["imported", "recursive", "inner", "own", "init"])
def test_a_function_is_equal_to_its_own_definition(name: str, module: Callable[[str], Any]) -> None:
    loaded = module(FORMS)
    function: FunctionType = getattr(loaded, name)
    definition = find_definition(function.__code__)
    assert definition is not None
    assert is_compiled_from(function.__code__, definition.node)


def asserted(x: Tensor) -> Tensor:
    """pytest rewrites this function."""
    assert x.shape[0] > 1, "one row"
    if x.sum() > 0:
        return x + 1
    return x - 1


def test_functions_that_pytest_rewrites() -> None:
    program = fxonnx.export(Function(asserted).eval(), (X,))
    for x in (X, -X):
        torch.testing.assert_close(program(x)[0], asserted(x))
