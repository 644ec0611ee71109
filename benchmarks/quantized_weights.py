"""Linear layers with quantized weights: size, and time in ONNX Runtime with one thread, over float32's.

python -m benchmarks.quantized_weights

All forms run alternately in one process; a time is the median.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

import fxonnx

FORMS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "float32": {},
        "int8": {"quantize": "int8"},
        "int4": {"quantize": "int4"},
        "int4, zero points": {"quantize": fxonnx.QuantizeConfig("int4", symmetric=False)},
        "int8, MatMulNBits": {"quantize": "int8", "target": "onnxruntime-genai"},
        "int4, MatMulNBits": {"quantize": "int4", "target": "onnxruntime-genai"},
    }
)
ROWS: Mapping[int, int] = MappingProxyType({1: 500, 32: 60, 256: 12})
"""Number of rows that are multiplied to number of runs."""
_FEATURES = 1024


def _session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(_FEATURES, _FEATURES, bias=False).eval()
    sizes, sessions = {}, {}
    with tempfile.TemporaryDirectory() as directory:
        for name, options in FORMS.items():
            path = Path(directory) / "model.onnx"
            fxonnx.export(model, (torch.ones(1, 2, _FEATURES),), path, dynamic_shapes=({1: "rows"},), **options)
            sizes[name], sessions[name] = path.stat().st_size, _session(path)
    times: dict[str, list[float]] = {name: [] for name in FORMS}
    for rows, runs in ROWS.items():
        feeds = {"input": torch.randn(1, rows, _FEATURES).numpy()}
        seconds: dict[str, list[float]] = {name: [] for name in FORMS}
        for _ in range(runs):
            for name, session in sessions.items():
                start = time.perf_counter()
                session.run(None, feeds)
                seconds[name].append(time.perf_counter() - start)
        for name in FORMS:
            times[name].append(statistics.median(seconds[name]))
    header = " | ".join(f"{rows} rows" for rows in ROWS)
    sys.stdout.write(f"| form | size | {header} |\n|---|---:|{'---:|' * len(ROWS)}\n")
    for name in FORMS:
        ratios = [one / reference for one, reference in zip(times[name], times["float32"], strict=True)]
        columns = " | ".join(f"{ratio:.2f}" for ratio in (sizes[name] / sizes["float32"], *ratios))
        sys.stdout.write(f"| {name} | {columns} |\n")


if __name__ == "__main__":
    main()
