"""How long an export takes: torch.export alone, fxonnx, and torch.onnx.

    python -m benchmarks.export_speed [--models resnet50,swin_t] [--repeats 3] [--dynamic] [--json speed.json]
        [--no-torch-onnx]

Each repeat runs the three one after the other in this process, so that all of them meet the same noise, and the
garbage collector runs before each. A number is the minimum over the repeats: noise only ever adds time.
``total/capture`` is the minimum of an exporter's CPU seconds over the minimum of torch.export's own, measured
separately under the same settings; below it lies nothing that an exporter built on torch.export could save. Stages are
those of the exporter's fastest repeat, in wall seconds. torch runs on one thread: the arithmetic of an export is small,
and threads that wait for work would count as CPU time. Everything is imported and warmed up on one linear layer before
the first measurement. With ``--dynamic`` the sizes that a model leaves open are dynamic: batch, sequence, height and
width.
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

import onnx_ir as ir
import torch
from torch.fx.experimental import _config as shape_config

import fxonnx

from ._models import DYNAMIC_AXES, SPEED_MODELS, Example, linear_layers
from ._output import geometric_mean, print_table, write_json

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
        self.nodes = _count_nodes(result)


def _count_nodes(result: Any) -> int:
    if isinstance(result, torch.export.ExportedProgram):
        return len(result.graph.nodes)
    model: ir.Model = result.model
    return sum(1 for _ in model.graph.all_nodes())


Axes = Mapping[int, str] | None
"""Dynamic axes of the only input; None if all sizes are static."""

Exporters = dict[str, Callable[[torch.nn.Module, tuple[Any, ...], Axes], Any]]


def _capture(model: torch.nn.Module, args: tuple[Any, ...], axes: Axes) -> torch.export.ExportedProgram:
    shapes = None if axes is None else (dict.fromkeys(axes, torch.export.Dim.DYNAMIC),)
    with shape_config.patch(backed_size_oblivious=True):
        return torch.export.export(
            model, args, dynamic_shapes=shapes, strict=False, prefer_deferred_runtime_asserts_over_guards=True
        )


def _fxonnx(model: torch.nn.Module, args: tuple[Any, ...], axes: Axes) -> Any:
    return fxonnx.export(model, args, dynamic_shapes=None if axes is None else (axes,))


def _torch_onnx(model: torch.nn.Module, args: tuple[Any, ...], axes: Axes) -> Any:
    shapes = None if axes is None else (dict(axes),)
    return torch.onnx.export(model, args, dynamo=True, optimize=True, verbose=False, dynamic_shapes=shapes)


def measure(example: Example, exporters: Exporters, repeats: int, axes: Axes = None) -> dict[str, Measurement]:
    """Runs all exporters on a model, alternating."""
    model, args = example
    measurements = {name: Measurement() for name in exporters}
    for _ in range(repeats):
        for name, exporter in exporters.items():
            measurements[name].add(lambda exporter=exporter: exporter(model, args, axes))
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


def _row(name: str, measurements: dict[str, Measurement], *, digits: int) -> list[str]:
    def seconds(value: float) -> str:
        return f"{value:.{digits}f}"

    ours = measurements["fxonnx"]
    row = [name, str(measurements["capture"].nodes), seconds(min(measurements["capture"].cpu))]
    row += [seconds(ours.stages[stage]) if stage in ours.stages else "" for stage in STAGES]
    row += [seconds(min(ours.cpu)), f"{ratio(measurements, 'fxonnx'):.2f}x", str(ours.nodes)]
    if "torch.onnx" in measurements:
        theirs = measurements["torch.onnx"]
        row += [seconds(min(theirs.cpu)), f"{ratio(measurements, 'torch.onnx'):.2f}x", str(theirs.nodes)]
    return row


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.export_speed", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(SPEED_MODELS), help="names, separated by commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", help="file to write all measurements to")
    parser.add_argument("--no-torch-onnx", action="store_true", help="leave out torch.onnx, the slowest of the three")
    parser.add_argument("--dynamic", action="store_true", help="leave the sizes open that the models leave open")
    options = parser.parse_args(arguments)
    options.models = options.models.split(",")
    if unknown := [name for name in options.models if name not in SPEED_MODELS]:
        parser.error(f"--models: no such model: {', '.join(unknown)}; there are {', '.join(SPEED_MODELS)}")
    if options.repeats < 1:
        parser.error("--repeats: must be at least 1")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the tables and writes the JSON file."""
    options = _parse(arguments)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    exporters: Exporters = {"capture": _capture, "fxonnx": _fxonnx}
    if not options.no_torch_onnx:
        exporters["torch.onnx"] = _torch_onnx
    imports = import_seconds(options.repeats)
    measure(linear_layers(1, 8), exporters, repeats=2)
    linear = measure(linear_layers(1, 8), exporters, repeats=5 * options.repeats)
    models: dict[str, dict[str, Measurement]] = {}
    for name in options.models:
        axes = DYNAMIC_AXES[name] if options.dynamic else None
        models[name] = measure(SPEED_MODELS[name](), exporters, options.repeats, axes)
        print(f"measured {name}", file=sys.stderr)
    means = {
        name: geometric_mean([ratio(row, name) for row in models.values()]) for name in exporters if name != "capture"
    }

    header = ["model", "FX nodes", "torch.export", *STAGES, "fxonnx", "total/capture", "ONNX nodes"]
    blanks = [""] * (len(header) - 3)
    mean_row = ["geometric mean", *blanks, f"{means['fxonnx']:.2f}x", ""]
    if "torch.onnx" in means:
        header += ["torch.onnx", "total/capture", "ONNX nodes"]
        mean_row += ["", f"{means['torch.onnx']:.2f}x", ""]
    rows = [_row(name, row, digits=2) for name, row in models.items()]
    print_table(
        "Seconds per export" + (", dynamic" if options.dynamic else ""),
        header,
        [*rows, mean_row, _row("one linear layer", linear, digits=4)],
    )
    print(f"import fxonnx after torch: {imports['package']:.3f} s; all that an export needs: {imports['export']:.3f} s")
    content = {
        "repeats": options.repeats,
        "dynamic": options.dynamic,
        "models": {name: {key: asdict(value) for key, value in row.items()} for name, row in models.items()},
        "linear": {key: asdict(value) for key, value in linear.items()},
        "geometric_mean_total_over_capture": means,
        "import_seconds": imports,
    }
    write_json(options.json, content)


if __name__ == "__main__":
    main()
