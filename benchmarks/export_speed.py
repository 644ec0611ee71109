"""How long an export takes: torch.export alone, fxonnx, and both exporters of torch.onnx.

    python -m benchmarks.export_speed [--models resnet50,swin_t] [--repeats 3] [--dynamic] [--json speed.json]
        [--only-ours]

Each repeat runs all of them one after the other in this process, so that all of them meet the same noise, and the
garbage collector runs before each; failed exports are left out. A number is the minimum over the repeats: noise only
adds time. ``fxonnx/capture`` is the minimum of an exporter's CPU seconds over the minimum of torch.export's own,
measured separately under the same settings; below it lies nothing that an exporter built on torch.export could save.
Stages are the fastest repeat's, in wall seconds. torch runs on one thread: the arithmetic of an export is
small, and threads that wait for work would count as CPU time. Everything is imported and warmed up on one linear layer
before the first measurement. With ``--dynamic`` the sizes that a model leaves open are dynamic: batch, sequence,
height, width and the length of the past.
"""

from __future__ import annotations

import argparse
import gc
import logging
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from ._exporters import Exporter, capture, count_nodes, ours, silenced, torch_onnx, torchscript
from ._output import print_table, text, with_means, write_json
from ._zoo import ZOO, Network, linear_layers

STAGES = ("capture", "prepare", "lower")


@dataclass
class Measurement:
    """All repeats of one way to export one model.

    Attributes:
        cpu: CPU seconds of each repeat.
        wall: Wall seconds of each repeat.
        nodes: FX nodes for torch.export, ONNX nodes for the exporters.
        stages: Wall seconds of each stage in the fastest repeat, where the exporter tells.
    """

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    nodes: int = 0
    stages: dict[str, float] = field(default_factory=dict)

    def add(self, run: Callable[[], Any]) -> None:
        """Runs once and keeps the times; the result is dropped."""
        gc.collect()
        cpu, wall = time.process_time(), time.perf_counter()
        result = run()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        if not self.cpu or cpu < min(self.cpu):
            self.stages = dict(getattr(result, "timings", {}))
        self.cpu.append(cpu)
        self.wall.append(wall)
        self.nodes = count_nodes(result)


def measure(
    network: Network, exporters: Mapping[str, Exporter], repeats: int, *, dynamic: bool = False
) -> dict[str, Measurement]:
    """Runs all exporters on a network, alternating; without those that fail."""
    measurements = {name: Measurement() for name in exporters}
    for _ in range(repeats):
        for name in list(measurements):
            try:
                with silenced():
                    measurements[name].add(lambda name=name: exporters[name](network, dynamic=dynamic))
            except Exception as error:  # noqa: BLE001, PERF203 - the table has no number for it
                sys.stderr.write(f"  {name}: {type(error).__name__}\n")
                del measurements[name]
    return measurements


def ratio(measurements: dict[str, Measurement], exporter: str) -> float:
    """``total/capture`` of an exporter."""
    return min(measurements[exporter].cpu) / min(measurements["capture"].cpu)


def import_seconds(repeats: int) -> dict[str, float]:
    """Seconds that importing fxonnx adds to a process that has torch: the package, and all that an export needs."""
    found: dict[str, float] = {}
    for name, statement in {"package": "import fxonnx", "export": "from fxonnx import export"}.items():
        code = f"import time, torch; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"
        runs = [subprocess.check_output([sys.executable, "-c", code], text=True) for _ in range(repeats)]
        found[name] = min(map(float, runs))
    return found


def row_of(name: str, measurements: Mapping[str, Measurement]) -> dict[str, Any]:
    """The table's row."""
    ours = measurements["fxonnx"]
    row: dict[str, Any] = {"model": name, "FX nodes": measurements["capture"].nodes}
    row["torch.export"] = min(measurements["capture"].cpu)
    row |= {stage: ours.stages.get(stage) for stage in STAGES}
    for other in measurements:
        if other != "capture":
            row |= {other: min(measurements[other].cpu), f"{other}/capture": ratio(measurements, other)}
            row[f"{other} nodes"] = measurements[other].nodes
    if "torch.onnx" in measurements:
        row["torch.onnx/fxonnx"] = row["torch.onnx"] / row["fxonnx"]
    return row


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.export_speed", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(ZOO), help="names, separated by commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", help="file to write all measurements to")
    parser.add_argument("--only-ours", action="store_true", help="leave out torch.onnx, the slowest")
    parser.add_argument("--dynamic", action="store_true", help="leave the sizes open that the models leave open")
    options = parser.parse_args(arguments)
    options.models = options.models.split(",")
    if unknown := [name for name in options.models if name not in ZOO]:
        parser.error(f"--models: no such model: {', '.join(unknown)}; there are {', '.join(ZOO)}")
    if options.repeats < 1:
        parser.error("--repeats: must be at least 1")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the tables and writes the JSON file."""
    options = _parse(arguments)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    exporters: dict[str, Exporter] = {"capture": capture, "fxonnx": ours}
    if not options.only_ours:
        exporters |= {"torch.onnx": torch_onnx, "TorchScript": torchscript}
    imports = import_seconds(options.repeats)
    measure(linear_layers(1, 8), exporters, repeats=2)
    linear = measure(linear_layers(1, 8), exporters, repeats=5 * options.repeats)
    models: dict[str, dict[str, Measurement]] = {}
    for name in options.models:
        torch.manual_seed(0)
        models[name] = measure(ZOO[name](), exporters, options.repeats, dynamic=options.dynamic)
        print(f"measured {name}", file=sys.stderr)
    rows = [row_of(name, row) for name, row in models.items()]
    ratios = [f"{name}/capture" for name in exporters if name != "capture"] + ["torch.onnx/fxonnx"]
    table = [*with_means(rows, ratios), row_of("one linear layer", linear)]
    keys = list(dict.fromkeys(key for row in table for key in row))
    title = "CPU seconds per export" + (", dynamic" if options.dynamic else "")
    print_table(title, keys, [[text(row.get(key)) for key in keys] for row in table])
    print(f"import fxonnx after torch: {imports['package']:.3f} s; all that an export needs: {imports['export']:.3f} s")
    content = {
        "repeats": options.repeats,
        "dynamic": options.dynamic,
        "rows": table,
        "details": {name: {key: asdict(value) for key, value in row.items()} for name, row in models.items()},
        "import_seconds": imports,
    }
    write_json(options.json, content)


if __name__ == "__main__":
    main()
