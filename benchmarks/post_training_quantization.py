"""Post-training quantization to int8, beside ONNX Runtime's tools: size, time with one thread, signal-to-noise ratio.

python -m benchmarks.post_training_quantization

All forms run alternately in one process; a time is the shortest one, over float32's. Weights are random, batch
norms have the statistics of the images. The signal is the difference of an output from the mean over all inputs.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import fxonnx
from fxonnx import QuantizeConfig
from tests.models.torchvision_shim import import_torchvision

Batch = dict[str, torch.Tensor]
_BATCHES, _TESTS = 16, 8


def _images(count: int) -> torch.Tensor:
    coarse = F.interpolate(torch.randn(count, 3, 8, 8), 64, mode="bilinear")
    return coarse + 0.3 * torch.randn(count, 3, 64, 64)


def _image_network(name: str) -> nn.Module:
    model: nn.Module = getattr(import_torchvision().models, name)(num_classes=100)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            # The mean over all batches; the initial statistics are left out.
            module.momentum = None
    with torch.no_grad():
        for _ in range(20):
            model(_images(16))
    return model


def _with_large_weights(model: nn.Module) -> nn.Module:
    """With the usual initialization, the outputs of a transformer hardly depend on its inputs."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.06)
    return model


def _vit() -> nn.Module:
    import_torchvision()
    import timm

    return _with_large_weights(timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=100))


def _bert() -> nn.Module:
    import_torchvision()
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536, "num_labels": 10}
    return _with_large_weights(BertForSequenceClassification(BertConfig(num_hidden_layers=6, **sizes)))


def _sentence() -> Batch:
    mask = torch.ones(1, 64, dtype=torch.int64)
    mask[:, int(torch.randint(32, 65, ())) :] = 0
    return {"input_ids": torch.randint(0, 30522, (1, 64)), "attention_mask": mask}


@dataclass(frozen=True)
class Case:
    """A model with its inputs."""

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    has_linear_layers: bool = True
    embeddings: Any = "float"


CASES = (
    Case("ResNet-18, 64 x 64", lambda: _image_network("resnet18"), lambda: {"x": _images(1)}, False),
    Case("MobileNetV2, 64 x 64", lambda: _image_network("mobilenet_v2"), lambda: {"x": _images(1)}, False),
    Case("ViT-tiny, 64 x 64", _vit, lambda: {"x": _images(1)}),
    Case("BERT of 6 layers, int8 embeddings", _bert, _sentence, embeddings="int8"),
)


def _write(case: Case, directory: Path) -> Iterator[Path]:
    """Write all forms of a model, float32 first."""
    from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model = case.make().eval()
    batches = [case.batch() for _ in range(_BATCHES)]
    forms: dict[str, QuantizeConfig | None] = {
        "float32": None,
        "static": QuantizeConfig("int8", calibration=batches, embeddings=case.embeddings),
        "dynamic": QuantizeConfig("int8", activations="dynamic", embeddings=case.embeddings),
    }
    options: dict[str, Any] = {"target": "onnxruntime", "opset_version": 20}
    for name, config in forms.items():
        if name == "dynamic" and not case.has_linear_layers:
            continue
        fxonnx.export(model, (), directory / f"{name}.onnx", kwargs=batches[0], quantize=config, **options)
        yield directory / f"{name}.onnx"
    plain, prepared, static = (str(directory / f"{name}.onnx") for name in ("float32", "prepared", "quantize_static"))
    quant_pre_process(plain, prepared, skip_symbolic_shape=True)
    types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "per_channel": True}
    quantize_static(prepared, static, _Reader(batches), **types)
    yield Path(static)
    if case.has_linear_layers:
        quantize_dynamic(plain, directory / "quantize_dynamic.onnx", weight_type=QuantType.QInt8, per_channel=True)
        yield directory / "quantize_dynamic.onnx"


class _Reader:
    """Batches for ``quantize_static``."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = iter(batches)

    def get_next(self) -> Mapping[str, Any] | None:
        """Return the next batch."""
        batch = next(self._batches, None)
        return None if batch is None else _feeds(batch)


def _feeds(batch: Batch) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in batch.items()}


def _session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _outputs(session: Any, tests: list[Batch]) -> torch.Tensor:
    return torch.cat([torch.from_numpy(session.run(None, _feeds(batch))[0]) for batch in tests])


def main() -> None:
    for case in CASES:
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as directory:
            paths = list(_write(case, Path(directory)))
            sizes = [path.stat().st_size for path in paths]
            sessions = [_session(path) for path in paths]
        tests = [case.batch() for _ in range(_TESTS)]
        expected = _outputs(sessions[0], tests)
        seconds: list[list[float]] = [[] for _ in sessions]
        for _ in range(80):
            for found, session in zip(seconds, sessions, strict=True):
                start = time.perf_counter()
                session.run(None, _feeds(tests[0]))
                found.append(time.perf_counter() - start)
        times = [min(found) for found in seconds]
        for index, path in enumerate(paths):
            noise = (_outputs(sessions[index], tests) - expected).square().sum().item()
            signal = (expected - expected.mean(0)).square().sum().item()
            ratio = f"{10 * math.log10(signal / noise):5.1f} dB" if noise else "        "
            relative = f"time {times[index] / times[0]:.2f}, size {sizes[index] / sizes[0]:.2f}, {ratio}"
            sys.stdout.write(f"{case.name:34} {path.stem:17} {times[index] * 1e3:7.2f} ms, {relative}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
