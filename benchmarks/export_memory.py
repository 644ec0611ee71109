"""How much memory an export with saving takes above the loaded model: fxonnx and torch.onnx.

    python -m benchmarks.export_memory [--models bert_base,linear_layers] [--size 10000] [--json memory.json]

Every measurement has a process of its own, which builds the model, exports and saves a small model to have everything
imported and warmed up, resets the kernel's peak of its resident memory (Linux only), exports and saves, and reads the
peak. The number is that peak above the resident memory just before: the cost of an export beside the model itself.
``linear_layers`` are six bias-free linear layers of ``size`` x ``size``: 2.4 GB at the default size, more than a
protobuf message can hold.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ._memory import peak_of
from ._output import print_table, text, write_json
from ._zoo import ZOO, Network, linear_layers

EXPORTERS = ("fxonnx", "torch.onnx")
MODELS = ("bert_base", "vit_b_16", "llama_16_layers", "linear_layers")
MIB = 2**20


def _build(name: str, size: int) -> Network:
    return linear_layers(6, size) if name == "linear_layers" else ZOO[name]()


def _export(exporter: str, network: Network, path: Path) -> object:
    if exporter == "fxonnx":
        import fxonnx

        return fxonnx.export(network.model, network.args, path, kwargs=network.kwargs)
    return torch.onnx.export(network.model, network.args, path, kwargs=dict(network.kwargs), dynamo=True, verbose=False)


def measure(model_name: str, exporter_name: str, size: int) -> dict[str, int]:
    """Measures one export in this process.

    Returns:
        Bytes of ``weights``, of the ``peak`` above the loaded model, and of all ``files`` written.
    """
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    network = _build(model_name, size)
    with tempfile.TemporaryDirectory() as folder:
        _export(exporter_name, linear_layers(1, 8), Path(folder, "warm.onnx"))
    with tempfile.TemporaryDirectory() as folder:
        peak, _ = peak_of(lambda: _export(exporter_name, network, Path(folder, "model.onnx")))
        files = sum(path.stat().st_size for path in Path(folder).iterdir())
    weights = sum(parameter.nbytes for parameter in network.model.parameters())
    return {"weights": weights, "peak": peak, "files": files}


def _measure_in_child(model: str, exporter: str, size: int) -> dict[str, int]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.export_memory",
        "--child",
        exporter,
        "--models",
        model,
        "--size",
        str(size),
    ]
    output = subprocess.check_output(command, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    found: dict[str, int] = json.loads(output.splitlines()[-1])
    return found


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.export_memory", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    parser.add_argument("--size", type=int, default=10_000, help="rows and columns of each linear layer")
    parser.add_argument("--json", help="file to write all measurements to")
    parser.add_argument("--child", choices=EXPORTERS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.models = options.models.split(",")
    if unknown := [name for name in options.models if name not in (*ZOO, *MODELS)]:
        parser.error(f"--models: no such model: {', '.join(unknown)}; there are {', '.join(MODELS)}")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the table and writes the JSON file."""
    options = _parse(arguments)
    if options.child is not None:
        print(json.dumps(measure(options.models[0], options.child, options.size)))
        return
    results: dict[str, dict[str, dict[str, int]]] = {}
    for model in options.models:
        results[model] = {exporter: _measure_in_child(model, exporter, options.size) for exporter in EXPORTERS}
    rows: list[dict[str, Any]] = []
    for model, row in results.items():
        ours, theirs = (row[exporter] for exporter in EXPORTERS)
        mib = {f"{name} MiB": found["peak"] / MIB for name, found in row.items()}
        sizes = {"weights MiB": ours["weights"] / MIB, **mib}
        rows.append({"model": model, **sizes, "files": ours["files"] / theirs["files"]})
    keys = list(rows[0])
    print_table("Peak memory of an export with saving", keys, [[text(row[key]) for key in keys] for row in rows])
    write_json(options.json, {"size": options.size, "rows": rows, "details": results})


if __name__ == "__main__":
    main()
