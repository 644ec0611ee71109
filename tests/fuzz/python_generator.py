"""Random Python programs: functions with control flow, aliases, scopes and handlers that eager torch runs."""

from __future__ import annotations

import random
import signal
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch

from .python_blocks import Blocks, NoOperandError
from .python_program import PARAMETERS, VARIANTS, Case, PythonProgram
from .python_statements import FEATURES

__all__ = ["EagerTimeoutError", "generate_python", "time_limit"]

_OPSETS = (13, 17, 18, 20, 20, 21, 23)
_ROWS = (4, 3, 5, 2)
_ATTEMPTS = 40
_SECONDS = 2
_FREQUENT = frozenset({"branches", "loops", "writes", "returns", "breaks", "continues", "lists", "aliases", "views"})

_MODULE = '''\
"""A random program."""

import contextlib
from types import SimpleNamespace

import torch


def repeated(p, times):
    return p if times <= 0 else repeated(p * 0.5 + 1, times - 1)


{function}class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([0.5, -1.0, 2.0]), requires_grad=False)
        self.register_buffer("buffer", torch.tensor([1.0, 0.25, -0.5]))
        self.h = torch.tensor([0.5, 0.0, -1.5])
        self.count = 1

{helper}    def forward(self, {parameters}):
{body}
'''


class EagerTimeoutError(BaseException):
    """A program runs too long in eager torch; no handler of a model catches it."""


@contextmanager
def time_limit(seconds: float = _SECONDS) -> Iterator[None]:
    """Raise ``EagerTimeoutError`` after these seconds of processor time."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise EagerTimeoutError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def generate_python(seed: int, without: Collection[str] = ()) -> PythonProgram:
    """The random program of a seed; the same in every process.

    Args:
        seed: The seed.
        without: Features of ``python_statements.FEATURES`` that it does not have.
    """
    rng = random.Random(seed)
    for _ in range(_ATTEMPTS):
        try:
            program = _drawn(rng, seed, frozenset(without))
        except NoOperandError:
            continue
        if _is_valid(program):
            return program
    raise RuntimeError(f"no program of seed {seed} runs in eager torch")


def _drawn(rng: random.Random, seed: int, without: frozenset[str]) -> PythonProgram:
    others = [name for name in PARAMETERS if name != "x" and rng.random() < 0.4]
    parameters = ["x", *others]
    # Some features for each program, so that programs differ in kind and are captured often enough.
    absent = {name for name in FEATURES if rng.random() < (0.3 if name in _FREQUENT else 0.7)}
    blocks = Blocks(rng, without | absent)
    function = blocks.function("function", {"p": "V"}, ("V",), rng.randint(1, 2), ["p"])
    helper = blocks.function("helper", {"p": "V"}, ("V",), rng.randint(1, 2), ["self", "p", "q=0.5"])
    returned = tuple(rng.choice(("V", "V", "R", "S", "I")) for _ in range(rng.randint(1, 3)))
    body = blocks.body({name: PARAMETERS[name] for name in parameters}, returned, rng.randint(2, 5))
    text = "\n".join(body)
    helper = [f"    {line}" for line in [*helper, ""]] if "self.helper(" in text else []
    function = [*function, "", "", ""] if "function(" in "\n".join([text, *helper]) else []
    source = _MODULE.format(
        function="\n".join(function),
        helper="\n".join([*helper, ""]) if helper else "",
        parameters=", ".join(parameters),
        body="\n".join(f"        {line}" for line in body),
    )
    naming = rng.choice(("static", "static", "names", "names", "DYNAMIC", "AUTO"))
    rows = rng.choice(_ROWS)
    cases: list[Case] = [(rows, variant) for variant in VARIANTS]
    if naming != "static":
        cases += [(size, variant) for size in (1, 2, 6) for variant in ("base", "flipped", "other")]
    return PythonProgram(
        seed,
        source,
        rng.choice(_OPSETS),
        naming,  # type: ignore[arg-type]
        rng.choice(("warn", "outputs")),
        rng.choice(("error",) * 7 + ("example",)),  # type: ignore[arg-type]
        cases[0],
        tuple(cases[1:]),
    )


def _is_valid(program: PythonProgram) -> bool:
    """Whether eager torch runs the example and most of the other inputs, with finite results of moderate size."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory, torch.random.fork_rng():
        try:
            model = program.load(Path(directory))
        except SyntaxError:
            return False
        ran = [_runs(model, program, case) for case in (program.example, *program.cases)]
    return ran[0] and sum(ran) >= 0.7 * len(ran)


def _runs(model: type[torch.nn.Module], program: PythonProgram, case: Case) -> bool:
    try:
        with time_limit():
            outputs = model().eval()(*program.example_inputs(case))
    except (Exception, EagerTimeoutError):  # noqa: BLE001 - programs raise any exception
        return False
    leaves: Sequence[object] = torch.utils._pytree.tree_leaves(outputs)
    return all(not isinstance(leaf, torch.Tensor) or bool((leaf.abs() < 1e6).all()) for leaf in leaves)
