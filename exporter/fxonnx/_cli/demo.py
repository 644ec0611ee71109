"""``fxonnx demo``: export AlexNet and verify it, without dependencies besides fxonnx's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from .._comparison import compare
from .._diagnostics import Diagnostics
from .._export import export
from .._targets import PROFILES
from .._targets.check import check
from ..errors import VerificationError

__all__ = ["AlexNet", "DemoResult", "run_demo"]

_BATCH, _OTHER_BATCH = 10, 3


class AlexNet(nn.Module):
    """AlexNet with the layers and parameter names of torchvision.

    Takes float32 images [batch, 3, 224, 224] and returns logits [batch, classes].
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, kernel_size=11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(64, 192, kernel_size=5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(192, 384, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((6, 6))
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Linear(4096, classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify a batch of images."""
        logits: torch.Tensor = self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))
        return logits


@dataclass(frozen=True)
class DemoResult:
    """Result of the demo.

    Attributes:
        seconds: Stage name to seconds.
        nodes: Number of ONNX nodes.
        initializers: Number of initializers.
        file_size: Size of the model file in bytes.
        max_error: Batch size to the largest absolute difference from eager torch.
        targets: The targets that run every node at full speed, according to their profiles.
    """

    seconds: dict[str, float]
    nodes: int
    initializers: int
    file_size: int
    max_error: dict[int, float]
    targets: tuple[str, ...]


def run_demo(path: Path, on_stage: Callable[[str], None] | None = None) -> DemoResult:
    """Export AlexNet with a dynamic batch, check the file, and run it at two batch sizes."""
    import onnx
    import onnxruntime

    generator = torch.Generator().manual_seed(0)
    model = AlexNet().eval()
    images = torch.rand(_BATCH, 3, 224, 224, generator=generator)
    program = export(
        model,
        (images,),
        path,
        dynamic_shapes={"x": {0: "batch"}},
        input_names=["actual_input_1"],
        output_names=["output1"],
        diagnostics=Diagnostics(on_stage=on_stage),
    )
    seconds = dict(program.record.timings)
    start = time.perf_counter()
    _announce(on_stage, "check")
    onnx.checker.check_model(str(path), full_check=True)
    seconds["check"] = time.perf_counter() - start
    start = time.perf_counter()
    _announce(on_stage, "run")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    max_error = {}
    for batch in (_BATCH, _OTHER_BATCH):
        (output,) = session.run(["output1"], {"actual_input_1": images[:batch].numpy()})
        with torch.no_grad():
            expected = model(images[:batch])
        (row,) = compare(["output1"], [expected], [torch.from_numpy(output)])
        if row.status != "ok":
            raise VerificationError(
                f"ONNX Runtime and eager torch disagree at batch {batch}: {row.message}", rows=[row]
            )
        max_error[batch] = row.max_abs or 0.0
    seconds["run"] = time.perf_counter() - start
    graph = program.model.graph
    targets = tuple(target for target in PROFILES if not check(program.model, target))
    return DemoResult(seconds, len(graph), len(graph.initializers), path.stat().st_size, max_error, targets)


def _announce(on_stage: Callable[[str], None] | None, stage: str) -> None:
    if on_stage is not None:
        on_stage(stage)
