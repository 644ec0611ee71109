"""``python -m tests.fuzz --seeds 0:1000``: checks random programs and prints a script for every finding."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from .generator import KINDS, generate
from .minimizer import minimize
from .outcome import Outcome
from .program import Program
from .python_generator import generate_python
from .python_program import PythonProgram
from .python_statements import FEATURES
from .state_generator import generate_state
from .worker import Worker


def main() -> int:
    """Run the seeds; the exit code is 0 if there are no findings."""
    options = _options()
    low, _, high = options.seeds.partition(":")
    seeds = range(int(low), int(high or int(low) + 1))
    counted: Counter[str] = Counter()
    began = time.monotonic()
    failed = []
    with Worker() as worker:
        for seed in seeds:
            program = _program(seed, options)
            if options.show:
                print(program.script())
            outcome = worker.check(program)
            counted.update(_counts(outcome))
            if outcome.findings:
                failed.append(seed)
                _report(program, outcome, worker, minimal=not options.whole)
    summary = ", ".join(f"{name} {count}" for name, count in counted.most_common())
    print(f"{len(seeds)} seeds in {time.monotonic() - began:.0f} s: {summary}")
    print(f"{len(failed)} with findings: {failed}" if failed else "no findings")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seeds", default="0:100", metavar="A:B", help="the seeds A to B - 1, or one seed")
    parser.add_argument("--zero", action="store_true", help="also run the programs at sizes of 0")
    kinds = "the statements that programs mostly consist of, random by default; python: programs with control flow"
    kinds += "; state: programs that run as a sequence of calls"
    parser.add_argument("--kind", choices=(*KINDS, "python", "state"), help=kinds)
    parser.add_argument(
        "--without", default="", metavar="A,B", help=f"features that Python programs do not have: {', '.join(FEATURES)}"
    )
    parser.add_argument("--whole", action="store_true", help="do not minimize")
    parser.add_argument("--show", action="store_true", help="print every program as a script")
    options = parser.parse_args()
    options.without = frozenset(filter(None, options.without.split(",")))
    if not options.without <= set(FEATURES):
        parser.error(f"--without: unknown features {sorted(options.without - set(FEATURES))}")
    return options


def _program(seed: int, options: argparse.Namespace) -> Program | PythonProgram:
    if options.kind == "state":
        return generate_state(seed)
    if options.kind == "python":
        return generate_python(seed, options.without)
    return generate(seed, empty=options.zero, kind=options.kind)


def _counts(outcome: Outcome) -> list[str]:
    counts = [outcome.status, *{finding.key for finding in outcome.findings}]
    if outcome.refused:
        counts.append("refused at some sizes")
    if outcome.unstable:
        counts.append("unstable in eager torch")
    return [*counts, *outcome.limited]


def _report(program: Program | PythonProgram, outcome: Outcome, worker: Worker, *, minimal: bool) -> None:
    """Print one finding of each key with the smallest program that reproduces it."""
    keys = {finding.key: finding for finding in reversed(outcome.findings)}
    for finding in keys.values():
        small = minimize(program, finding, worker) if minimal else program
        print(f"\n# seed {program.seed}, {program.kind}, {finding.key} at {finding.sizes}: {finding.text}")
        print(small.script(None if finding.sizes is None else [finding.sizes]))
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
