"""The fixed seeds of ``make test``; ``make fuzz SEEDS=a:b`` runs others."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import fxonnx
from tests.functions import Function

from .check import check
from .comparison import eager, is_stable
from .generator import generate
from .minimizer import minimize
from .outcome import Finding, Outcome
from .program import Program, Sizes
from .python_check import check_python
from .python_generator import generate_python
from .python_program import PythonProgram
from .python_statements import FEATURES
from .recorded import Recorded
from .state_check import check_state
from .state_generator import generate_state
from .worker import Worker

CHUNK = 10
SEEDS = range(300)
PYTHON_SEEDS = range(1030, 1070)
STATE_SEEDS = range(200)


def _chunks(seeds: range, quick: int) -> list[Any]:
    """The first seed of each chunk; the first seeds run with every change."""
    return [pytest.param(seed, marks=[] if seed < quick else pytest.mark.nightly) for seed in seeds[::CHUNK]]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as process:
        yield process


@pytest.mark.parametrize("first", _chunks(SEEDS, 100))
def test_fixed_seeds(first: int, worker: Worker) -> None:
    found = []
    for seed in range(first, first + CHUNK):
        outcome = worker.check(generate(seed))
        found += [f"seed {seed}: {finding.key} at {finding.sizes}: {finding.text}" for finding in outcome.findings]
    assert not found, "\n".join([*found, f"minimized: python -m tests.fuzz --seeds {first}:{first + CHUNK}"])


@pytest.mark.parametrize("first", PYTHON_SEEDS[::CHUNK])
def test_fixed_seeds_of_python_programs(first: int, worker: Worker) -> None:
    found = []
    for seed in range(first, first + CHUNK):
        outcome = worker.check(generate_python(seed))
        found += [f"seed {seed}: {finding.key} at {finding.sizes}: {finding.text}" for finding in outcome.findings]
    assert not found, "\n".join(
        [*found, f"minimized: python -m tests.fuzz --kind python --seeds {first}:{first + CHUNK}"]
    )


@pytest.mark.parametrize("first", _chunks(STATE_SEEDS, 20))
def test_fixed_seeds_of_programs_with_state(first: int, worker: Worker) -> None:
    found = []
    for seed in range(first, first + CHUNK):
        outcome = worker.check(generate_state(seed))
        found += [f"seed {seed}: {finding.key} at {finding.sizes}: {finding.text}" for finding in outcome.findings]
    assert not found, "\n".join(
        [*found, f"minimized: python -m tests.fuzz --kind state --seeds {first}:{first + CHUNK}"]
    )


def test_python_seeds_are_the_same_in_every_process() -> None:
    program = generate_python(11)
    assert program == generate_python(11)
    assert PythonProgram.from_json(program.to_json()).script() == program.script()


def test_state_seeds_are_the_same_in_every_process() -> None:
    program = generate_state(11)
    assert program == generate_state(11)
    assert PythonProgram.from_json(program.to_json()).script() == program.script()


_STATE = """import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.tensor(0))

    def forward(self, x):
        self.n += 1
        return x * self.n
"""


def _state_program(**options: Any) -> PythonProgram:
    chosen = {"opset": 20, "naming": "names", "state": "io", "data_dependent": "error", **options}
    return PythonProgram(0, _STATE, **chosen, example=(3, "base"), cases=((4, "flipped"), (2, "base")), kind="state")


def test_a_program_with_state_is_run_as_a_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_state(_state_program()) == Outcome(status="right")
    # A file that starts each call from the first state.
    monkeypatch.setattr("tests.fuzz.state_check._KEY", "no metadata")
    (wrong, lost) = check_state(_state_program()).findings
    assert (wrong.kind, wrong.text.partition(": ")[0], wrong.sizes) == ("wrong", "call 2", (4, "flipped"))
    assert (lost.kind, lost.text) == ("unreported", "n is changed by the model without an output or a warning")


def test_state_that_rounding_decides_is_no_finding() -> None:
    """The sum of two rows that are normalized is 0, but for rounding; a batch norm of equal numbers is."""
    assert check_state(generate_state(10443)).findings == ()
    assert check_state(generate_state(71665)).findings == ()


def test_smallest_program_with_state_keeps_the_calls_before(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding("wrong", "call 2", (4, "flipped"))

    def check_without_export(program: PythonProgram) -> Outcome:
        """A program is wrong if it counts and has a second call."""
        return Outcome((finding,) if "self.n += 1" in program.source and program.cases else ())

    monkeypatch.setattr(worker, "check", check_without_export)
    small = minimize(_state_program(opset=13), finding, worker)
    assert (small.state, small.opset, small.cases) == ("io", 20, ((4, "flipped"),))


def test_programs_without_features() -> None:
    words = {
        "handlers": r"\b(try|suppress)\b",
        "nonlocal": r"\bnonlocal\b",
        "loops": r"^ *while ",
        "writes": r"(add|fill|copy|neg|zero)_\(",
    }
    assert words.keys() <= set(FEATURES)
    sources = "".join(generate_python(seed, words.keys()).source for seed in range(4))
    assert not re.search("|".join(words.values()), sources, re.MULTILINE)


def _python_program(body: str, **options: Any) -> PythonProgram:
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    source = f"import torch\n\n\nclass Model(torch.nn.Module):\n    h = torch.ones(3)\n\n    def forward(self, x):\n{lines}\n"
    chosen = {"opset": 20, "naming": "names", "state": "warn", "data_dependent": "error", **options}
    return PythonProgram(0, source, **chosen, example=(4, "base"), cases=((4, "flipped"), (1, "zero")))


BODY = "if x.sum() > 0:\n    return x * 2\nunused = 1\nfor row in x:\n    x = x + 1\nreturn x"


def test_python_program_that_is_exported_is_right() -> None:
    outcome = check_python(_python_program(BODY))
    assert outcome == Outcome(status="right, rewritten")


def test_refusal_of_a_python_program_is_counted_by_its_message() -> None:
    outcome = check_python(_python_program("return torch.stack([x] * int(x.abs().sum()))"))
    assert outcome.findings == ()
    assert outcome.status.startswith("refused: CaptureError: ")


def test_write_to_an_input_without_a_warning_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    program = _python_program("x += 1\nreturn x * 2")
    assert check_python(_python_program("x += 1\nreturn x")).findings == ()
    assert check_python(program).findings == ()
    assert check_python(program.replaced(state="outputs")).findings == ()

    def export_quietly(*args: Any, **options: Any) -> fxonnx.ONNXProgram:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return export(*args, **options)

    export = fxonnx.export
    monkeypatch.setattr(fxonnx, "export", export_quietly)
    assert {finding.key for finding in check_python(program).findings} == {"unreported"}


def test_smallest_python_program_with_a_finding(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding("wrong", "", (4, "flipped"))

    def check_without_export(program: PythonProgram) -> Outcome:
        """A program is wrong if it has a loop over rows, and runs."""
        is_wrong = "for row in x:" in program.source and "return" in program.source
        return Outcome((finding,) if is_wrong else ())

    monkeypatch.setattr(worker, "check", check_without_export)
    small = minimize(_python_program(BODY, opset=13, state="outputs"), finding, worker)
    assert (small.opset, small.state, small.cases) == (20, "warn", ((4, "flipped"),))
    assert small.source.endswith("        for row in x:\n            pass\n        return x\n")


def test_programs_that_run_too_long_are_no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.python_generator._SECONDS", 0.01)
    outcome = check_python(
        _python_program("while True:\n    try:\n        x = x + 1\n    except Exception:\n        pass")
    )
    assert outcome.status == "eager torch fails"


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


def test_fewer_axes_at_one_element_are_not_a_finding() -> None:
    outcome = check(_program("v1 = (x * 2).squeeze(0)", sizes=((1, 3, 4), (1, 1, 4), (5, 1, 4))))
    assert (outcome.status, outcome.findings) == ("compared", ())


@pytest.mark.parametrize("changed", [None, 0, 1, 2])
def test_other_sizes_beside_fewer_axes_are_a_finding(changed: int | None, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = Function(lambda x: (x * 2).squeeze(0))
    fxonnx.export(model, (torch.ones(5, 3, 4),), path, dynamic_shapes=({0: "batch", 1: "seq"},))
    proto = onnx.load(path)
    if changed is not None:
        proto.graph.output[0].type.tensor_type.shape.dim[changed].dim_value = 9
    feeds = {"x": np.ones((1, 3, 4), dtype=np.float32)}
    assert bool(Recorded(proto).differences(feeds)) == (changed is not None)


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


def test_result_that_depends_on_the_rounding_of_a_centered_value_is_not_a_finding() -> None:
    # The element that equals the mean is 0 or next to 0, in the file it may be either.
    program = _program("v0 = F.layer_norm(x * 0 + torch.tensor([0.1, 0.2, 0.3, 0.2]), (4,))", "v1 = v0.bool()")
    expected = eager(program, (2, 3, 4))
    assert not is_stable(program, (2, 3, 4), [~value for value in expected], 0)
    assert not is_stable(program, (2, 3, 4), [torch.ones_like(expected[0])], 0)


def test_a_comparison_that_the_rounding_of_a_normalization_decides_is_not_a_finding() -> None:
    # The element is 1 in float32 as in float64, in the file it may be next to it.
    program = _program("v0 = F.layer_norm(x * 0 + torch.tensor([0.0, 1.0, 0.0, 1.0]), (4,), eps=0.0)", "v1 = v0 > 1")
    expected = eager(program, (2, 3, 4))
    assert not is_stable(program, (2, 3, 4), expected, 0)


def test_a_model_that_a_fusion_of_onnx_runtime_breaks_is_not_a_finding() -> None:
    lines = "v0 = x * 2", "v1 = F.scaled_dot_product_attention(v0, v0, v0, attn_mask=v0 @ v0.mT)"
    outcome = check(_program(*lines, sizes=((2, 3, 4),)))
    assert outcome.findings == ()
    assert outcome.limited == ("MatMulScaleFusion removes a node that others use",)
