"""Seeds for all tests, and ``--sample``: a part of each large table, for every change; ``make nightly`` runs the rest."""

from __future__ import annotations

import gc
import logging
import os
import platform
import random
import zlib
from collections import defaultdict
from pathlib import Path

import numpy
import pytest
import torch


def seed() -> None:
    # torch.manual_seed also formats a stack for each kind of device that the machine lacks.
    torch.default_generator.manual_seed(0)
    numpy.random.seed(0)
    random.seed(0)


def pytest_configure() -> None:
    os.environ["FXONNX_FULL_TRACEBACK"] = "1"  # a test that fails shows where
    seed()  # tables of examples are created when their module is imported
    # pytest adds its handlers to the loggers that do not propagate. For a handler of this one, which needs none, torch
    # formats a stack for each symbol and each guard.
    logging.getLogger("torch.__trace").propagate = True
    # Collections take a tenth of the time of the suite otherwise: each looks at the objects of torch and of all tests.
    gc.set_threshold(10_000, 20, 20)


def _saturates() -> bool:
    """Whether this is an x86 processor on which ONNX Runtime's sums of uint8 times int8 saturate at 16 bits."""
    information = Path("/proc/cpuinfo")
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    return is_x86 and information.exists() and "vnni" not in information.read_text()


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "give the marker nightly to cases of tables: two of three of 2 cases and more, 47 of 48 from 100 on, most of whole models"
    parser.addoption("--sample", action="store_true", help=text)
    parser.addoption("--quick", action="store_true", help="as --sample, also for the tables that otherwise run whole")


# Tables that run whole: complaints and mistakes of users, refusals, hostile files, the rules for texts, and the types of
# transformers without those that have the marker.
_WHOLE = (
    *("tests/capture/test_refusals.py", "tests/test_cli", "tests/test_complaints.py", "tests/test_docs.py"),
    *("tests/test_drop_in.py", "tests/test_errors.py", "tests/test_hostile_files.py", "tests/test_language.py"),
    *("tests/test_public.py", "tests/huggingface/test_backend.py::test_types"),
    "tests/huggingface/test_export.py::test_types",
)

# Tests of whole models, which take seconds each.
_WHOLE_MODELS = ("tests/genai/", "tests/huggingface/", "tests/models/", "tests/lower/test_functions.py")


# Of how many cases one runs in every change, for functions with at least so many cases.
_SHARES = ((1000, 192), (100, 48), (40, 24), (8, 12), (4, 6), (2, 3))
_SHARES_OF_WHOLE_MODELS = ((40, 40), (8, 24), (4, 12), (2, 6))
_SHARES_OF_EVERYDAY_USE = ((16, 8),)


def _share(name: str, count: int) -> int:
    """Of how many cases one runs in every change, for a function with ``count`` of them."""
    if name.startswith("tests/ordinary/"):
        shares = _SHARES_OF_EVERYDAY_USE
    else:
        shares = _SHARES_OF_WHOLE_MODELS if name.startswith(_WHOLE_MODELS) else _SHARES
    return next((share for least, share in shares if count >= least), 1)


def _sample(items: list[pytest.Item], whole: tuple[str, ...]) -> None:
    """Give the marker nightly to cases by the checksum of their name, so that new cases do not change the choice.

    Args:
        items: The tests.
        whole: The beginnings of the names of tests that all run.
    """
    tables: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not item.nodeid.startswith(whole) and item.get_closest_marker("nightly") is None:
            tables[item.nodeid.partition("[")[0]].append(item)
    for name, cases in tables.items():
        share = _share(name, len(cases))
        kept = [case for case in cases if zlib.crc32(case.nodeid.encode()) % share == 0] or cases[:1]
        for case in cases:
            if case not in kept:
                case.add_marker(pytest.mark.nightly)


@pytest.hookimpl(tryfirst=True)  # before cases are selected by their markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--sample") or config.getoption("--quick"):
        _sample(items, () if config.getoption("--quick") else _WHOLE)
    if _saturates():
        reason = "ort: sums of products of uint8 and int8 saturate on x86 without VNNI"
        for item in items:
            if item.get_closest_marker("exact_products") is not None:
                # Not strict: some models have no sums that are large enough.
                item.add_marker(pytest.mark.xfail(strict=False, reason=reason))


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """A test draws the same numbers alone and after others."""
    seed()
