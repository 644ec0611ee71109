"""Rules that hold for every translation: docstrings, parameters, tests."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pytest

import tests.translations as tables
from fxonnx_translations import _aten, _complex, _library_ops
from fxonnx_translations._builtin import MODULES, default_registry
from fxonnx_translations._registry import OpKey, Translation

from . import (
    test_complex,
    test_complex_solve,
    test_complex_structural,
    test_fft,
    test_join_split,
    test_random,
    test_scan,
)
from .harness import Case
from .operators import overload_of


def _records() -> Iterator[Translation]:
    seen = set()
    registry = default_registry()
    for candidates in (*registry.table.values(), *registry.complex_table.values()):
        for record in candidates:
            if id(record) not in seen:
                seen.add(id(record))
                yield record


WRITTEN = [record for record in _records() if inspect.isfunction(record.function) and record.data is None]


TABLED = [record for record in _records() if isinstance(record.function, partial)]
"""Rows of tables: functions of one operator with arguments that are the same in each call."""


def _function_name(record: Translation) -> str:
    function: Any = record.function
    return str(function.func.__name__ if isinstance(function, partial) else function.__qualname__)


@pytest.mark.parametrize("record", WRITTEN, ids=_function_name)
def test_docstring_begins_with_the_schemas(record: Translation) -> None:
    lines = [line.strip() for line in (record.function.__doc__ or "").splitlines()]
    for line, target in zip(lines, map(overload_of, record.targets), strict=False):
        assert target is None or line == str(target._schema)


@pytest.mark.parametrize("record", TABLED, ids=_function_name)
def test_the_docstring_of_a_table_has_the_schemas_of_its_rows(record: Translation) -> None:
    function: Any = record.function
    lines = [line.strip() for line in (function.func.__doc__ or "").splitlines()]
    if any(line.startswith("aten::") for line in lines):
        for target in map(overload_of, record.targets):
            assert target is None or str(target._schema) in lines


@pytest.mark.parametrize("record", [*WRITTEN, *TABLED], ids=_function_name)
def test_parameters_are_those_of_the_schemas(record: Translation) -> None:
    parameters = inspect.signature(record.function).parameters
    takes_more = any(parameter.kind == inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    for target in filter(None, map(overload_of, record.targets)):
        for argument in target._schema.arguments:
            if takes_more and argument.name not in parameters:
                continue
            assert argument.name in parameters, f"{target}: no parameter {argument.name}"
            # If overloads disagree, a parameter may have a default that the schema lacks, but not the reverse.
            assert not argument.has_default_value() or parameters[argument.name].default is not inspect.Parameter.empty


def test_every_module_of_translations_is_registered() -> None:
    found = {
        importlib.import_module(module.name)
        for room in (_aten, _complex, _library_ops)
        for module in pkgutil.walk_packages(room.__path__, room.__name__ + ".")
    }
    with_translations = {
        module
        for module in found
        if hasattr(module, "TRANSLATIONS")
        or any(
            hasattr(value, "__translations__") and value.__module__ == module.__name__
            for value in vars(module).values()
        )
    }
    assert with_translations <= set(MODULES)


def _existing(table: Iterable[OpKey]) -> set[str]:
    """The targets as rows name them, without those that this torch lacks."""
    return {str(target) for target in map(overload_of, table) if target is not None}


def test_every_translation_has_a_row() -> None:
    rows = {
        case.target
        for module in pkgutil.iter_modules(tables.__path__)
        for case in getattr(importlib.import_module(f"{tables.__name__}.{module.name}"), "CASES", ())
        if isinstance(case, Case)
    }
    rows |= {draw.target for draw in test_random.DRAWS}
    targets = _existing(default_registry().table)
    assert sorted(targets - rows) == []


def test_every_complex_translation_has_a_row() -> None:
    rows = {
        case.target
        for table in (test_complex, test_complex_solve, test_complex_structural, test_fft)
        for case in table.CASES
    }
    rows |= {case.target for table in (test_join_split, test_scan) for case in table.CASES if case.name == "complex"}
    rows |= {draw.target for draw in test_random.DRAWS if "complex" in draw.name}
    targets = _existing(default_registry().complex_table)
    assert sorted(targets - rows) == []


def test_structural_rows_have_a_real_translation_and_name_arguments() -> None:
    registry = default_registry()
    for candidates in registry.complex_table.values():
        for record in candidates:
            for target in record.targets if record.data is not None else ():
                operator = overload_of(target)
                if operator is None:
                    continue
                names = {argument.name for argument in operator._schema.arguments}
                assert operator in registry, target
                assert not record.data or names & set(record.data), target
