"""The fixed seeds of ``make test``; ``make fuzz SEEDS=a:b`` runs others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .check import check
from .comparison import eager, is_stable
from .generator import generate
from .program import Program, Sizes
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


def _program(*lines: str, sizes: tuple[Sizes, ...] = ()) -> Program:
    return Program(0, "modules", 20, None, {}, lines, ("v1",), (2, 3, 4), sizes)


def test_nan_lost_by_an_operator_is_not_a_finding() -> None:
    for line in ("v0 = x / 0", "v0 = x * 0 - torch.inf"):
        outcome = check(_program(line, "v1 = F.max_pool1d(v0, 2)"))
        assert outcome.findings == ()
        assert outcome.limited == ("ONNX Runtime's MaxPool ignores NaN and -inf",)


def test_nan_is_compared_with_exact_numerics() -> None:
    outcome = check(_program("v0 = torch.log(x - 100)", "v1 = torch.sign(v0)"))
    assert outcome.findings == ()
    assert outcome.limited == ("default numerics do not preserve NaN",)


def test_difference_without_nan_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    # ONNX Runtime's outputs are compared with another result than torch's.
    for module in ("check", "comparison"):
        name = f"tests.fuzz.{module}.eager"
        monkeypatch.setattr(name, lambda *args, **options: [value + 1 for value in eager(*args, **options)])
    outcome = check(_program("v0 = x / 2", "v1 = F.max_pool1d(v0, 2)"))
    assert [finding.kind for finding in outcome.findings] == ["wrong"]
    assert outcome.limited == ()


def test_result_that_depends_on_convolution_layout_is_not_a_finding() -> None:
    # With a length of 1 the result of the convolution has another memory layout, so that reshape copies it.
    lines = (
        "v0 = F.conv_transpose1d(x.transpose(1, 2), self.weight.reshape(4, 2, 2), stride=2, output_padding=1)",
        "v1 = v0.reshape(-1, v0.shape[-1])",
        "v0.index_fill_(1, torch.tensor([0, -1]), 0)",
    )
    outcome = check(_program(*lines, sizes=((7, 1, 3), (3, 2, 2))))
    assert outcome.findings == ()
    assert outcome.unstable == ((7, 1, 3),)


def test_result_that_depends_on_the_rounding_of_a_saturated_function_is_not_a_finding() -> None:
    # In float32 as in float64 it is next to 1, in the file it may be 1.
    program = _program("v0 = torch.tanh(x * 0 + 8)", "v1 = torch.floor(v0)", sizes=((2, 3, 4),))
    expected = eager(program, (2, 3, 4))
    assert not is_stable(program, (2, 3, 4), expected, 0)
