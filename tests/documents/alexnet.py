"""AlexNet, the first example of all documents about the exporter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch

from tests.models.torchvision_shim import import_torchvision

__all__ = ["INPUT_NAMES", "check_file", "make"]

INPUT_NAMES = ["actual_input_1"] + ["learned_%d" % i for i in range(16)]  # noqa: UP031 - as it is written there


def make() -> Any:
    """AlexNet with random weights and narrow linear layers."""
    import_torchvision()
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.alexnet(weights=None)
    # The first two have nearly all weights, and no document shows them.
    model.classifier[1], model.classifier[4] = torch.nn.Linear(9216, 64), torch.nn.Linear(64, 64)
    model.classifier[6] = torch.nn.Linear(64, 1000)
    return model.eval()


def check_file(path: Path, model: Any, input_name: str = "actual_input_1") -> onnx.ModelProto:
    """Check, print and run a file as in the documents."""
    proto = onnx.load(path)
    onnx.checker.check_model(proto)
    onnx.checker.check_graph(proto.graph, onnx.checker.DEFAULT_CONTEXT)
    assert "Conv[" in onnx.helper.printable_graph(proto.graph)
    images = np.random.default_rng(0).standard_normal((10, 3, 224, 224)).astype(np.float32)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs = session.run(None, {input_name: images})
    assert outputs[0].shape == (10, 1000)
    with torch.no_grad():
        np.testing.assert_allclose(outputs[0], model(torch.from_numpy(images)).numpy(), rtol=1e-3, atol=1e-5)
    return proto
