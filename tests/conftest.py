"""Seeds for all tests: inputs and weights are random, and the same in every run."""

from __future__ import annotations

import random

import numpy
import pytest
import torch


def seed() -> None:
    torch.manual_seed(0)
    numpy.random.seed(0)
    random.seed(0)


def pytest_configure() -> None:
    seed()  # tables of examples are created when their module is imported


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """A test draws the same numbers alone and after others."""
    seed()
