"""The graphs that exports make: their nodes, and how fast ONNX Runtime loads and runs them.

    python -m benchmarks.graphs [--models gpt2,llama] [--set zoo|steps] [--target onnxruntime] [--opsets 20,23]
        [--nodes] [--json graphs.json]

Beside our graphs there are those of torch.onnx at each opset, of its TorchScript exporter at the first one, and eager
torch. All of one model run alternately in one process, each on one thread; seconds of runs are medians, those of loads
the least of several, and ratios ours over theirs, so that below 1 is better. ``best`` is an exporter's fastest opset,
``default`` the first one. With ``--nodes`` nothing runs and only nodes are counted.
"""

from __future__ import annotations

import argparse
import gc
import io
import logging
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ._exporters import count_nodes, ours, silenced, torch_onnx, torchscript
from ._output import print_table, text, with_means, write_json
from ._zoo import LANGUAGE_STEPS, ZOO, Network

SETS = {"zoo": ZOO, "steps": LANGUAGE_STEPS}
SECONDS = 10.0
"""Of all runs of a model's graphs together."""
SESSIONS = 8
"""Of each graph, one after the other."""
BLOCK = 0.005
"""Seconds of the runs of one graph that follow each other."""


def exported(network: Network, opsets: Sequence[int], target: str | None = None) -> dict[str, Any]:
    """Name to program, or to None where an exporter fails."""
    options = {} if target is None else {"target": target}
    makers: dict[str, Callable[[], Any]] = {
        f"fxonnx {opset}": lambda opset=opset: ours(network, opset, **options) for opset in opsets
    }
    makers |= {f"torch.onnx {opset}": lambda opset=opset: torch_onnx(network, opset) for opset in opsets}
    makers["TorchScript"] = lambda: torchscript(network, opsets[0])
    programs = {}
    for name, make in makers.items():
        try:
            with silenced():
                programs[name] = make()
        except Exception as error:  # noqa: PERF203
            if name.startswith("fxonnx"):
                raise
            sys.stderr.write(f"  {name}: {type(error).__name__}\n")
            programs[name] = None
    return programs


def content_of(program: Any) -> bytes:
    """The model with its weights."""
    buffer = io.BytesIO()
    program.save(buffer, external_data=False)
    return buffer.getvalue()


def session_of(content: bytes) -> Any:
    """A session on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def load_seconds(content: bytes) -> float:
    """CPU seconds to make a session, which is dropped at once: beside others it would get new memory, page by page."""
    began = time.process_time()
    session = session_of(content)
    seconds = time.process_time() - began
    del session
    return seconds


def seconds_of(run: Callable[[], Any]) -> float:
    """Of one run."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def run_times(runs: Mapping[str, Callable[[], Any]], total: float, order: random.Random) -> dict[str, list[float]]:
    """Seconds of each; a turn of one is a run that warms the caches up after the others, and some that count."""
    once = {name: min(seconds_of(run) for _ in range(3)) for name, run in runs.items()}
    counts = {name: max(1, int(BLOCK / seconds)) for name, seconds in once.items()}
    turns = sum((counts[name] + 1) * once[name] for name in runs)
    found: dict[str, list[float]] = {name: [] for name in runs}
    gc.disable()
    for _ in range(min(200, max(5, int(total / turns)))):
        for name in order.sample(list(runs), len(runs)):
            runs[name]()
            count = counts[name]
            found[name].append(seconds_of(lambda name=name, count=count: [runs[name]() for _ in range(count)]) / count)
    gc.enable()
    return found


def measure(network: Network, programs: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """For each program: ``bytes`` of the file, seconds of a ``load`` and a ``run``; for eager torch only the latter.

    All sessions are made anew several times, in another order each time: where in memory one lies makes differences of
    a few percent that stay as long as it lives.
    """
    contents = {name: content_of(program) for name, program in programs.items() if program is not None}
    arrays = [tensor.numpy() for tensor in network.tensors()]
    order = random.Random(0)
    loads: dict[str, list[float]] = {name: [] for name in contents}
    times: dict[str, list[float]] = {name: [] for name in (*contents, "eager")}

    def eager() -> None:
        with torch.no_grad():
            network.model(*network.args, **network.kwargs)

    for _ in range(SESSIONS):
        for name in order.sample(list(contents), len(contents)):
            loads[name].append(load_seconds(contents[name]))
    for _ in range(SESSIONS):
        runs: dict[str, Callable[[], Any]] = {"eager": eager}
        for name in order.sample(list(contents), len(contents)):
            session = session_of(contents[name])
            feed = dict(zip((value.name for value in session.get_inputs()), arrays, strict=True))
            runs[name] = lambda session=session, feed=feed: session.run(None, feed)
        for name, seconds in run_times(runs, SECONDS / SESSIONS, order).items():
            times[name] += seconds
    found: dict[str, dict[str, float]] = {name: {"run": statistics.median(values)} for name, values in times.items()}
    for name, content in contents.items():
        # The least: new memory for large weights takes up to twice the time in some sessions of any of the files.
        found[name] |= {"bytes": len(content), "load": min(loads[name])}
    return found


def row_of(name: str, opsets: Sequence[int], nodes: Mapping[str, int], found: Mapping[str, Mapping[str, float]]) -> Any:
    """The table's row: nodes of ours, and ratios of ours to others'."""
    first = opsets[0]
    row: dict[str, Any] = {"model": name}
    for opset in opsets:
        mine, theirs = nodes[f"fxonnx {opset}"], nodes.get(f"torch.onnx {opset}")
        row[f"nodes {opset}"] = mine
        row[f"nodes/theirs {opset}"] = mine / theirs if theirs else None
    if not found:
        return row

    def best(exporter: str) -> str | None:
        names = [f"{exporter} {opset}" for opset in opsets if f"{exporter} {opset}" in found]
        return min(names, key=lambda name: found[name]["run"], default=None)

    def ratio(mine: str | None, theirs: str | None, key: str = "run") -> float | None:
        return found[mine][key] / found[theirs][key] if mine in found and theirs in found else None

    default = f"fxonnx {first}"
    row["ms"] = 1000 * found[default]["run"]
    for opset in opsets:
        row[f"run {opset}"] = ratio(f"fxonnx {opset}", f"torch.onnx {opset}")
    row["default/best"] = ratio(default, best("torch.onnx"))
    row["best/best"] = ratio(best("fxonnx"), best("torch.onnx"))
    row["load"] = ratio(default, f"torch.onnx {first}", "load")
    row["load best"] = ratio(best("fxonnx"), best("torch.onnx"), "load")
    row["size"] = ratio(default, f"torch.onnx {first}", "bytes")
    row["/TorchScript"] = ratio(default, "TorchScript")
    row["/eager"] = ratio(default, "eager")
    return row


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the table and writes the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=SETS, default="zoo", help="steps: transformers at the lengths of use")
    parser.add_argument("--models", help="some of the set, separated by semicolons or commas")
    parser.add_argument("--opsets", default="20,23")
    parser.add_argument("--target", help="of our exports")
    parser.add_argument("--nodes", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    networks = SETS[options.set]
    separator = ";" if options.set == "steps" else ","
    names = options.models.split(separator) if options.models else list(networks)
    opsets = [int(opset) for opset in options.opsets.split(",")]
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    rows, details = [], {}
    for name in names:
        torch.manual_seed(0)
        network = networks[name]()
        programs = exported(network, opsets, options.target)
        nodes = {key: count_nodes(program) for key, program in programs.items() if program is not None}
        found = {} if options.nodes else measure(network, programs)
        rows.append(row_of(name, opsets, nodes, found))
        details[name] = {"nodes": nodes, "measured": found}
        sys.stderr.write(f"{name}: {' '.join(f'{key} {text(value)}' for key, value in rows[-1].items())}\n")
    columns = dict.fromkeys(key for row in rows for key in row)
    table = with_means(rows, [key for key in columns if key not in ("model", "ms") and not key.startswith("nodes ")])
    keys = list(dict.fromkeys(key for row in table for key in row))
    print_table("Graphs", keys, [[text(row.get(key)) for key in keys] for row in table])
    write_json(options.json, {"opsets": opsets, "target": options.target, "rows": table, "details": details})


if __name__ == "__main__":
    main()
