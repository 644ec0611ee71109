"""Which operators of torch's operator database export, run, and agree with eager torch.

    python -m benchmarks.op_coverage [--dtypes float32,int64] [--entries add,mul] [--samples 8] [--processes 2]
                                     [--results build/op_coverage.jsonl] [--fresh] [--static] [--failures]
                                     [--opset 18]
    python -m benchmarks.op_coverage --notes

Every entry and dtype is one task of a worker process. A worker that dies, or takes longer than two minutes for a task,
costs that task only, which is then recorded as "crash". Finished tasks are appended to the results file, and a second
run goes on where the first was stopped. With all entries and dtypes the support page ``translations/SUPPORT.md`` is
written; ``--notes`` keeps its results, and updates the reasons for samples that are not right and the section on exact
numerics.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ._workers import sweep

__all__ = ["main"]

DTYPES = "float32,float16,bfloat16,float64,int64,int32,uint8,bool,complex64"
SUPPORT_PAGE = Path(__file__).parent.parent / "translations" / "SUPPORT.md"
Task = tuple[str, str]


def work(samples: int, dynamic: bool, opset: int | None) -> None:
    """The worker: tasks as JSON lines in, results as JSON lines out."""
    import torch

    from tests.ops.checking import check
    from tests.ops.opinfo import entries

    torch.set_num_threads(1)
    by_name = {entry.full_name: entry for entry in entries()}
    results = os.fdopen(os.dup(1), "w")
    # Output of kernels must not end up among the results.
    os.dup2(2, 1)
    for line in sys.stdin:
        name, dtype = json.loads(line)
        entry = by_name[name]
        known = getattr(torch, dtype) in entry.supported_dtypes("cpu")
        outcomes = check(entry, getattr(torch, dtype), samples, dynamic=dynamic, opset=opset) if known else []
        record = {"entry": name, "dtype": dtype, "outcomes": [asdict(outcome) for outcome in outcomes]}
        print(json.dumps(record), file=results, flush=True)


def _crashed(task: Task, code: int) -> dict[str, Any]:
    name, dtype = task
    outcome = {"name": f"{name}-{dtype}", "status": "crash", "detail": f"the process ended with {code}"}
    return {"entry": name, "dtype": dtype, "outcomes": [outcome]}


def summary(records: Mapping[Task, list[dict[str, Any]]]) -> str:
    """Entries with all samples right, per dtype, and how often each thing went wrong."""
    lines = []
    by_dtype = defaultdict(list)
    for (_, dtype), outcomes in records.items():
        measured = [outcome for outcome in outcomes if outcome["status"] != "eager"]
        if measured:
            by_dtype[dtype].append(measured)
    for dtype, tasks in by_dtype.items():
        good = sum(all(outcome["status"] == "ok" for outcome in outcomes) for outcomes in tasks)
        counts: dict[str, int] = defaultdict(int)
        for outcomes in tasks:
            for outcome in outcomes:
                counts[outcome["status"]] += 1
        rest = ", ".join(f"{status} {count}" for status, count in sorted(counts.items()))
        lines.append(f"{dtype:10} {good:4} of {len(tasks):4} entries ({100 * good / len(tasks):.1f} %)   {rest}")
    return "\n".join(lines)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Operator coverage over torch's operator database.")
    parser.add_argument("--dtypes", default=DTYPES)
    parser.add_argument("--entries", default="", help="names, separated by commas; all by default")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", default="build/op_coverage.jsonl")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--static", action="store_true", help="leave out the dynamic run")
    parser.add_argument("--failures", action="store_true", help="print everything that is not right")
    parser.add_argument("--opset", type=int, help="of the exports whose sizes are fixed; the default one by default")
    parser.add_argument(
        "--notes", action="store_true", help="only update the texts of the support page, without results"
    )
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.samples, not options.static, options.opset)
        return
    if options.notes:
        from ._support import updated

        SUPPORT_PAGE.write_text(updated(SUPPORT_PAGE.read_text()))
        return
    from tests.ops.opinfo import entries

    names = [entry.full_name for entry in entries()]
    wanted = [name for name in options.entries.split(",") if name] or names
    if unknown := sorted(set(wanted) - set(names)):
        parser.error(f"--entries: torch's operator database has no {', '.join(unknown)}")
    path = Path(options.results)
    path.parent.mkdir(parents=True, exist_ok=True)
    if options.fresh:
        path.unlink(missing_ok=True)
    records: dict[Task, list[dict[str, Any]]] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            record = json.loads(line)
            records[record["entry"], record["dtype"]] = record["outcomes"]
    tasks = [(name, dtype) for dtype in options.dtypes.split(",") for name in wanted]
    left = [task for task in tasks if task not in records]
    arguments = ["--samples", str(options.samples), *(["--static"] if options.static else [])]
    arguments += [] if options.opset is None else ["--opset", str(options.opset)]
    with path.open("a") as file:
        for task, answer in sweep(left, options.processes, ["benchmarks.op_coverage", "--work", *arguments]):
            record = _crashed(task, answer) if isinstance(answer, int) else answer
            records[record["entry"], record["dtype"]] = record["outcomes"]
            file.write(json.dumps(record) + "\n")
            file.flush()
    chosen = {task: records[task] for task in tasks}
    if options.failures:
        for outcomes in chosen.values():
            for outcome in outcomes:
                if outcome["status"] not in ("ok", "eager"):
                    print(f"{outcome['name']:40} {outcome['status']:12} {' '.join(outcome['detail'].split())[:400]}")
    print(summary(chosen))
    if wanted == names and options.dtypes == DTYPES and options.opset is None:
        from ._support import support_page

        SUPPORT_PAGE.write_text(support_page(chosen, DTYPES.split(",")))


if __name__ == "__main__":
    main()
