"""How an export grows with the model: a Llama of more and more layers.

    python -m benchmarks.growth [--layers 4,16,64,128,256] [--json growth.json] [--only-ours]

Every measurement has a process of its own, which exports a small model first to have everything imported and warmed
up, then captures the network with torch.export alone, and then exports it. Seconds are the CPU's, with torch on
one thread; memory is the peak of the process during the export above the memory before it. The exponent is the slope of
a line through the logarithms; 1 would be linear in the layers.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ._exporters import capture, count_nodes, ours, silenced, torch_onnx
from ._memory import peak_of
from ._output import print_table, text, write_json
from ._zoo import linear_layers, llama_stack

EXPORTERS = {"fxonnx": ours, "torch.onnx": torch_onnx}
LAYERS = "4,16,64,128,256"


def measure(layers: int, exporter: str) -> dict[str, float]:
    """In this process: CPU seconds of ``capture`` alone and of the whole export, ``peak`` bytes and ``nodes``."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    export = EXPORTERS[exporter]
    network = llama_stack(layers)
    with silenced():
        capture(llama_stack(1))
        export(linear_layers(1, 8))
        captures = [_seconds(lambda: capture(network)) for _ in range(2 if layers < 64 else 1)]
        began = time.process_time()
        peak, program = peak_of(lambda: export(network))
        total = time.process_time() - began
    return {"capture": min(captures), "total": total, "peak": peak, "nodes": count_nodes(program)}


def _seconds(run: Any) -> float:
    gc.collect()
    began = time.process_time()
    run()
    return time.process_time() - began


def exponent(layers: Sequence[int], values: Sequence[float]) -> float:
    """The power of the number of layers that fits the values best."""
    return float(np.polyfit(np.log(layers), np.log(values), 1)[0])


def _in_child(layers: int, exporter: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.growth", "--child", exporter, "--layers", str(layers)]
    output = subprocess.check_output(command, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    found: dict[str, float] = json.loads(output.splitlines()[-1])
    return found


def rows_of(layers: Sequence[int], found: Mapping[str, Sequence[Mapping[str, float]]]) -> list[dict[str, Any]]:
    """A row for each number of layers, and one of the exponents."""
    rows: list[dict[str, Any]] = []
    for index, count in enumerate(layers):
        row: dict[str, Any] = {"layers": count}
        for name, each in found.items():
            one = each[index]
            row |= {f"{name} nodes": int(one["nodes"]), f"{name} capture": one["capture"]}
            row |= {f"{name} total": one["total"], f"{name}/capture": one["total"] / one["capture"]}
            row[f"{name} a layer"] = one["total"] / count
            row[f"{name} MiB"] = one["peak"] / 2**20
        rows.append(row)
    last: dict[str, Any] = {"layers": "exponent"}
    for name, each in found.items():
        last[f"{name} total"] = exponent(layers, [one["total"] for one in each])
        last[f"{name} capture"] = exponent(layers, [one["capture"] for one in each])
        last[f"{name} MiB"] = exponent(layers, [max(one["peak"], 1.0) for one in each])
    return [*rows, last]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the table and writes the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default=LAYERS)
    parser.add_argument("--json")
    parser.add_argument("--only-ours", action="store_true")
    parser.add_argument("--child", choices=EXPORTERS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    layers = [int(count) for count in options.layers.split(",")]
    if options.child is not None:
        print(json.dumps(measure(layers[0], options.child)))
        return
    names = ["fxonnx"] if options.only_ours else list(EXPORTERS)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for count in layers:
        for name in names:
            found[name].append(_in_child(count, name))
            print(f"{count} layers, {name}: {found[name][-1]}", file=sys.stderr)
    rows = rows_of(layers, found)
    keys = list(rows[0])
    print_table("Growth", keys, [[text(row.get(key)) for key in keys] for row in rows])
    write_json(options.json, {"layers": layers, "rows": rows, "details": found})


if __name__ == "__main__":
    main()
