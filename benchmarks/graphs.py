"""The graphs that exports make: nodes, and how fast ONNX Runtime loads and runs them, beside those of torch.onnx.

    python -m benchmarks.graphs [--models gpt2,llama] [--opset 20] [--latency] [--json graphs.json]

Nodes are those of the graph and of all bodies in it. With ``--latency`` each pair of models is run alternately on one
thread in one process; the numbers are medians, and ratios ours over theirs, so that below 1 is better.
"""

from __future__ import annotations

import argparse
import io
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch

import fxonnx

from ._output import geometric_mean, print_table, write_json
from ._zoo import ZOO, Network

RUNS = 30
LOADS = 5


def nodes_of(program: Any) -> int:
    return sum(1 for _ in program.model.graph.all_nodes())


def exported(network: Network, opset: int) -> tuple[Any, Any]:
    """Our program and that of torch.onnx, or None where it fails."""
    model, args, kwargs = network
    ours = fxonnx.export(model, args, kwargs=kwargs, opset_version=opset)
    try:
        theirs = torch.onnx.export(model, args, kwargs=kwargs, dynamo=True, opset_version=opset, verbose=False)
    except Exception:  # noqa: BLE001 - the table says that it failed
        return ours, None
    return ours, theirs


def _session(content: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _content(program: Any) -> bytes:
    buffer = io.BytesIO()
    program.save(buffer, external_data=False)
    return buffer.getvalue()


def _seconds(run: Any) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def latencies(network: Network, programs: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Median seconds of one run, and of loading, for each program."""
    _, args, kwargs = network
    contents = [_content(program) for program in programs]
    loads = [[_seconds(lambda content=content: _session(content)) for content in contents] for _ in range(LOADS)]
    sessions = [_session(content) for content in contents]
    tensors = [value.numpy() for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    feeds = [dict(zip((value.name for value in session.get_inputs()), tensors, strict=True)) for session in sessions]
    runs = []
    for number in range(RUNS + 3):
        pair = list(zip(sessions, feeds, strict=True))
        # Who goes first changes, and the first rounds warm up.
        order = pair if number % 2 else pair[::-1]
        seconds = [_seconds(lambda session=session, feed=feed: session.run(None, feed)) for session, feed in order]
        if number >= 3:
            runs.append(seconds if number % 2 else seconds[::-1])
    return [statistics.median(column) for column in zip(*runs, strict=True)], [
        statistics.median(column) for column in zip(*loads, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help=f"some of {', '.join(ZOO)}")
    parser.add_argument("--opset", type=int, default=20)
    parser.add_argument("--latency", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in options.models.split(",") if options.models else ZOO:
        torch.manual_seed(0)
        network = ZOO[name]()
        ours, theirs = exported(network, options.opset)
        row: dict[str, Any] = {"model": name, "nodes": nodes_of(ours)}
        if theirs is not None:
            row |= {"torch.onnx nodes": nodes_of(theirs), "ratio": nodes_of(ours) / nodes_of(theirs)}
            if options.latency:
                (run, their_run), (load, their_load) = latencies(network, (ours, theirs))
                row |= {"ms": 1000 * run, "latency": run / their_run, "load": load / their_load}
        rows.append(row)
        sys.stderr.write(f"{name}\n")
    columns = ("ratio", "latency", "load") if options.latency else ("ratio",)
    means = {column: geometric_mean([row[column] for row in rows if column in row]) for column in columns}
    rows.append({"model": "geometric mean", **means})
    keys = list(dict.fromkeys(key for row in rows for key in row))
    print_table(f"opset {options.opset}", keys, [[_text(row.get(key)) for key in keys] for row in rows])
    write_json(options.json, {"opset": options.opset, "rows": rows})


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
