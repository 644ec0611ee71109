"""The fixed seeds of ``make test``; ``make fuzz SEEDS=a:b`` runs others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .generator import generate
from .program import Program
from .worker import Worker

CHUNK = 10
SEEDS = range(300)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as process:
        yield process


@pytest.mark.parametrize("first", SEEDS[::CHUNK])
def test_fixed_seeds(first: int, worker: Worker) -> None:
    found = []
    for seed in range(first, first + CHUNK):
        outcome = worker.check(generate(seed))
        found += [f"seed {seed}: {finding.key} at {finding.sizes}: {finding.text}" for finding in outcome.findings]
    assert not found, "\n".join([*found, f"minimized: python -m tests.fuzz --seeds {first}:{first + CHUNK}"])


def test_seeds_are_the_same_in_every_process() -> None:
    program = generate(11, empty=True)
    assert program == generate(11, empty=True)
    assert Program.from_json(program.to_json()).script() == program.script()
