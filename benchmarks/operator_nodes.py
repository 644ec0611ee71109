"""Nodes of single operators: samples of torch's operator database, exported by us and by torch.onnx.

    python -m benchmarks.operator_nodes [--dtypes float32,int64] [--entries add,mul] [--samples 3] [--opset 20]
                                        [--numerics exact] [--processes 1] [--json operators.json] [--details]

For each entry, the nodes of the samples that both exporters export and ONNX Runtime runs right: ours, theirs, their
ratio, and the reason for a ratio above 1.5, from the largest ratio down. ``--details`` prints every sample with its
operators. An export by torch.onnx is made once: results are kept in ``benchmarks/results/operator_nodes_peer.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ._operator_reasons import REASONS
from ._output import print_table, text, write_json
from ._workers import sweep

__all__ = ["OPSET", "PEER_RESULTS", "SAMPLES", "main", "records_of", "rows_of", "setting_of"]

PEER_RESULTS = Path(__file__).parent / "results" / "operator_nodes_peer.json"
SAMPLES, OPSET = 3, 20
"""The defaults, for which the results of torch.onnx are kept with the benchmark."""
MOST_SAMPLES = 100
"""Samples of an entry from which those measured are chosen, spread evenly."""
TOLERANCE = 10
"""Times the default tolerance of torch.testing."""
Record = dict[str, Any]


# ---- the worker


def work(samples: int, opset: int, numerics: str) -> None:
    """Read ``[entry, dtype, with_peer]`` as lines of JSON, write the records of its samples."""
    import logging

    import torch

    from tests.ops.opinfo import entries

    torch.set_num_threads(1)
    logging.disable(logging.ERROR)
    by_name = {entry.full_name: entry for entry in entries()}
    settings = {"samples": samples, "opset": opset, "numerics": numerics}
    results = os.fdopen(os.dup(1), "w")
    # Output of kernels and exporters must not end up among the results.
    os.dup2(2, 1)
    for line in sys.stdin:
        name, dtype, with_peer = json.loads(line)
        record = records_of(by_name[name], getattr(torch, dtype), with_peer=with_peer, **settings)
        print(json.dumps(record), file=results, flush=True)


def records_of(
    entry: Any, dtype: Any, *, with_peer: bool, samples: int = SAMPLES, opset: int = OPSET, numerics: str = "default"
) -> Record:
    """Return the records of an entry's samples by exporter and name of the sample.

    Args:
        entry: The entry of the operator database.
        dtype: The dtype of its samples; there are none if the entry does not support it.
        with_peer: Whether to export with torch.onnx as well.
        samples: Number of samples.
        opset: Target opset.
        numerics: Our numerics.
    """
    from tests.ops.opinfo import problems

    found = list(problems(entry, dtype, MOST_SAMPLES)) if dtype in entry.supported_dtypes("cpu") else []
    record: Record = {"ours": {}, "theirs": {}}
    for problem in _spread(found, samples):
        record["ours"][problem.name] = _measure(problem, lambda p: _ours(p, opset, numerics))
        if with_peer:
            record["theirs"][problem.name] = _measure(problem, lambda p: _torch_onnx(p, opset))
    return record


def _spread(items: Sequence[Any], count: int) -> list[Any]:
    if len(items) <= count:
        return list(items)
    return [items[round(index * (len(items) - 1) / max(count - 1, 1))] for index in range(count)]


def _ours(problem: Any, opset: int, numerics: str) -> Any:
    import fxonnx

    return fxonnx.export(
        problem.model, problem.copies(), opset_version=opset, options=fxonnx.ExportOptions(numerics=numerics)
    )  # type: ignore[arg-type]


def _torch_onnx(problem: Any, opset: int) -> Any:
    import torch

    # Captured once: torch.onnx would try several strategies for a program that it cannot export.
    exported = torch.export.export(problem.model, problem.copies(), strict=False)
    return torch.onnx.export(exported, dynamo=True, optimize=True, verbose=False, opset_version=opset)


def _measure(problem: Any, make: Callable[[Any], Any]) -> Record:
    """Return the operators of the graph, or the failure under ``error``."""
    import torch
    from torch.utils import _pytree as pytree

    torch.manual_seed(0)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            with torch.no_grad():
                expected = [leaf for leaf in pytree.tree_leaves(problem.model(*problem.copies())) if leaf is not None]
        except Exception as error:  # noqa: BLE001 - not an export problem
            return {"error": f"eager: {type(error).__name__}"}
        try:
            program = make(problem)
            operators = [node.op_type for node in program.model.graph.all_nodes()]
            found = _run(program, problem)
        except Exception as error:  # noqa: BLE001 - every failure of an exporter is a result
            return {"error": type(error).__name__, "detail": " ".join(str(error).split())[:200]}
    if len(found) != len(expected):
        return {"error": "wrong", "detail": f"{len(found)} results instead of {len(expected)}"}
    for position, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if difference := _difference(problem, position, ours, theirs):
            return {"error": "wrong", "detail": difference}
    return {"operators": " ".join(operators)}


def _run(program: Any, problem: Any) -> list[Any]:
    import onnxruntime
    import torch

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    buffer = io.BytesIO()
    program.save(buffer, external_data=False)
    session = onnxruntime.InferenceSession(buffer.getvalue(), options, providers=["CPUExecutionProvider"])
    tensors = [torch.view_as_real(x.resolve_conj()) if x.is_complex() else x for x in problem.copies()]
    # An unused input may be missing.
    names = [value.name for value in program.model.graph.inputs]
    feed = dict(zip(names, (tensor.resolve_neg().numpy() for tensor in tensors), strict=True))
    kept = {value.name for value in session.get_inputs()}
    results = session.run(None, {name: value for name, value in feed.items() if name in kept})
    return [torch.from_numpy(value) for value in results]


def _difference(problem: Any, position: int, ours: Any, theirs: Any) -> str:
    import torch

    from tests.ops.deviations import UNDEFINED
    from tests.ops.running import is_random

    reference = torch.as_tensor(theirs)
    if reference.is_complex():
        reference = torch.view_as_real(reference.resolve_conj().resolve_neg())
    if isinstance(theirs, float):
        reference = reference.to(ours.dtype)
    if ours.shape != reference.shape or ours.dtype != reference.dtype:
        return f"result {position}: {ours.dtype}{list(ours.shape)}, not {reference.dtype}{list(reference.shape)}"
    if problem.name.rpartition("-")[0].rpartition("-")[0] in UNDEFINED:
        return ""
    rtol, atol = torch.testing._comparison.default_tolerances(reference)
    try:
        torch.testing.assert_close(ours, reference, rtol=TOLERANCE * rtol, atol=TOLERANCE * atol, equal_nan=True)
    except AssertionError as error:
        if problem.defined is not None or is_random(problem, position, theirs):
            return ""
        return " ".join(str(error).split())[:200]
    return ""


# ---- the table


def measure(
    names: Sequence[str], dtypes: Sequence[str], options: argparse.Namespace
) -> tuple[dict[str, Record], dict[str, Record]]:
    """Return the records of our samples and of torch.onnx's, by name of the sample."""
    import torch

    kept: dict[str, Any] = {}
    if PEER_RESULTS.exists():
        kept = json.loads(PEER_RESULTS.read_text())
    setting = setting_of(torch.__version__, options.opset, options.samples)
    theirs: dict[str, dict[str, Record]] = kept.setdefault(setting, {})
    tasks = [(name, dtype, f"{name}-{dtype}" not in theirs) for dtype in dtypes for name in names]
    command = ["benchmarks.operator_nodes", "--work", "--numerics", options.numerics]
    command += ["--samples", str(options.samples), "--opset", str(options.opset)]
    ours: dict[str, Record] = {}
    for number, (task, record) in enumerate(sweep(tasks, options.processes, command)):
        name, dtype, with_peer = task
        if isinstance(record, int):
            sys.stderr.write(f"{name}-{dtype}: the process ended with {record}\n")
            record = {"ours": {}, "theirs": {}}
        ours |= record["ours"]
        if with_peer:
            theirs[f"{name}-{dtype}"] = {
                sample: {key: value for key, value in result.items() if key != "detail"}
                for sample, result in record["theirs"].items()
            }
            if number % 10 == 0:
                _keep(kept)
    _keep(kept)
    wanted = {f"{name}-{dtype}" for name in names for dtype in dtypes}
    return ours, {key: value for task, found in theirs.items() if task in wanted for key, value in found.items()}


def setting_of(version: str, opset: int, samples: int) -> str:
    """The key of kept results."""
    return f"torch {version}, opset {opset}, {samples} samples"


def _keep(content: Mapping[str, Any]) -> None:
    PEER_RESULTS.parent.mkdir(exist_ok=True)
    PEER_RESULTS.write_text(json.dumps(content, indent=0, sort_keys=True) + "\n")


def rows_of(ours: Mapping[str, Record], theirs: Mapping[str, Record]) -> list[Record]:
    """One row per entry and dtype with samples that both export right, the largest ratio first."""
    rows: dict[str, Record] = {}
    for sample, record in ours.items():
        other = theirs.get(sample)
        if other is None or "error" in record or "error" in other:
            continue
        task = sample.rpartition("-")[0]
        name, _, dtype = task.rpartition("-")
        row = rows.setdefault(task, {"operator": name, "dtype": dtype, "samples": 0, "nodes": 0, "theirs": 0})
        row["samples"] += 1
        row["nodes"] += len(record["operators"].split())
        row["theirs"] += len(other["operators"].split())
    for row in rows.values():
        # A sample without nodes counts as one.
        row["nodes/theirs"] = max(row["nodes"], row["samples"]) / max(row["theirs"], row["samples"])
        row["reason"] = REASONS.get(row["operator"], "") if row["nodes/theirs"] > 1.5 else ""
    return sorted(rows.values(), key=lambda row: (-row["nodes/theirs"], -row["nodes"], row["operator"]))


def _totals(rows: Sequence[Record]) -> Record:
    nodes, theirs = sum(row["nodes"] for row in rows), sum(row["theirs"] for row in rows)
    samples = sum(row["samples"] for row in rows)
    ratio = nodes / theirs if theirs else None
    return {"operator": "sum", "samples": samples, "nodes": nodes, "theirs": theirs, "nodes/theirs": ratio}


def _print_details(ours: Mapping[str, Record], theirs: Mapping[str, Record], rows: Sequence[Record]) -> None:
    for row in rows:
        task = f"{row['operator']}-{row['dtype']}"
        print(f"\n{task}: {row['nodes']} / {row['theirs']} = {row['nodes/theirs']:.2f}  {row['reason']}")
        for sample, record in ours.items():
            other = theirs.get(sample, {})
            if sample.rpartition("-")[0] == task:
                print(f"  {sample}: ours {_brief(record)}\n      torch.onnx {_brief(other)}")


def _brief(record: Record) -> str:
    if "error" in record:
        return f"{record['error']}: {record.get('detail', '')}"
    counts = Counter(record.get("operators", "").split())
    return f"{counts.total()}: {' '.join(f'{name}*{count}' if count > 1 else name for name, count in counts.items())}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--entries", default="", help="names, separated by commas; all by default")
    parser.add_argument(
        "--samples", type=int, default=SAMPLES, help="of an entry, spread evenly over those of the database"
    )
    parser.add_argument("--opset", type=int, default=OPSET)
    parser.add_argument("--numerics", choices=("default", "exact"), default="default")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--details", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        work(options.samples, options.opset, options.numerics)
        return
    from tests.ops.opinfo import entries

    names = [entry.full_name for entry in entries()]
    wanted = [name for name in options.entries.split(",") if name] or names
    if unknown := sorted(set(wanted) - set(names)):
        parser.error(f"--entries: torch's operator database has no {', '.join(unknown)}")
    ours, theirs = measure(wanted, options.dtypes.split(","), options)
    rows = rows_of(ours, theirs)
    total = _totals(rows)
    above = [row for row in rows if row["nodes/theirs"] > 1.5]
    if options.details:
        _print_details(ours, theirs, rows)
    else:
        columns = ("operator", "dtype", "samples", "nodes", "theirs", "nodes/theirs", "reason")
        print_table("Nodes of operators", columns, [[text(row.get(key)) for key in columns] for row in (*above, total)])
    unexplained = sum(not row["reason"] for row in above)
    sums = f"{total['nodes']} nodes, torch.onnx {total['theirs']}"
    print(f"{sums}; {len(above)} entries above 1.5, {unexplained} without a reason")
    write_json(options.json, {"rows": [*above, total], "all": rows})


if __name__ == "__main__":
    main()
