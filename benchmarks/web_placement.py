"""Where onnxruntime-web runs the nodes of models: on WebGPU or on the CPU, and the copies between them.

    python -m benchmarks.web_placement model.onnx other.onnx

The models are loaded with WebGPU in headless Chromium (an adapter in software); the log says where each node runs.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.web.browser import serve

__all__ = ["Placement", "place"]


@dataclass(frozen=True)
class Placement:
    """Where the nodes of a model run, after ONNX Runtime's optimizations.

    Attributes:
        on_gpu: The number of nodes on WebGPU.
        on_cpu: Operator and name of the nodes on the CPU.
        uploads: The number of copies to the device.
        downloads: The number of copies from the device, for which the GPU must finish.
    """

    on_gpu: int
    on_cpu: tuple[tuple[str, str], ...]
    uploads: int
    downloads: int

    def __str__(self) -> str:
        """One line, with the operators on the CPU."""
        operators = Counter(op_type for op_type, _ in self.on_cpu)
        named = ", ".join(f"{name} {count}" for name, count in sorted(operators.items()))
        copies = f"{self.uploads} copies to the GPU, {self.downloads} back"
        return (
            f"{self.on_gpu} nodes on the GPU, {len(self.on_cpu)} on the CPU, {copies}{f' ({named})' if named else ''}"
        )


def place(paths: Sequence[Path], level: str = "all") -> list[Placement]:
    """Load models with WebGPU.

    Args:
        paths: The ONNX files; external data lies beside them.
        level: ``graphOptimizationLevel`` of onnxruntime-web.

    Raises:
        RuntimeError: If a model is not loaded.
    """
    models = {}
    places = {}
    for index, path in enumerate(paths):
        places[f"/{index}/"] = path.parent
        data = [each.name for each in path.parent.glob(f"{path.name}[._]data*")]
        files = [{"path": name, "data": f"/{index}/{name}"} for name in data]
        models[str(index)] = {"model": f"/{index}/{path.name}", "data": files}
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "models.json").write_text(json.dumps({"models": models, "level": level}))
        with serve({**places, "/probe/": Path(name), "/": Path(__file__).parent}) as site:
            logs = site.open("web_placement.html", webgpu=True, seconds=300)
    if "error" in logs:
        raise RuntimeError(logs["error"][0])
    return [_placement(path, logs[str(index)]) for index, path in enumerate(paths)]


def _placement(path: Path, lines: Sequence[str]) -> Placement:
    """Read the log of a session; the nodes of subgraphs are listed as well."""
    error = next((line for line in lines if line.startswith("error: ")), None)
    if error is not None:
        raise RuntimeError(f"{path}: {error}")
    counts: Counter[str] = Counter()
    nodes: list[tuple[str, str]] = []
    provider = ""
    for line in lines:
        text = line.split("VerifyEachNodeIsAssignedToAnEp]")[-1].strip()
        if found := re.search(r"placed on \[(\w+?)ExecutionProvider\]\. Number of nodes: (\d+)", text):
            provider = found[1]
            counts[provider] += int(found[2])
        elif found := re.fullmatch(r"(\w+) \((.*)\)", text):
            if found[1].startswith("Memcpy"):
                counts[found[1]] += 1
            elif provider == "CPU":
                nodes.append((found[1], found[2]))
    uploads, downloads = counts["MemcpyFromHost"], counts["MemcpyToHost"]
    return Placement(counts["WebGpu"] - uploads - downloads, tuple(nodes), uploads, downloads)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Where onnxruntime-web runs the nodes of models with WebGPU.")
    parser.add_argument("models", nargs="+", type=Path)
    paths = parser.parse_args().models
    for path, placement in zip(paths, place(paths), strict=True):
        print(f"{path}: {placement}")


if __name__ == "__main__":
    main()
