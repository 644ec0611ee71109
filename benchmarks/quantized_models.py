"""Models quantized with PT2E, for ONNX Runtime: size, time with one thread over float32's, and integer kernels.

python -m benchmarks.quantized_models

All forms run in one process, in rounds of consecutive runs of each session, as a deployed model runs. "run by run" runs
each session once in turn: it finds the caches full of the weights of the others. A time is the median of a round, and
the lowest of the rounds, because other processes only add to it. Weights are random.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

import fxonnx
from fxonnx._targets import Target
from tests.models.torchvision_shim import import_torchvision

_ROUNDS = 5
_INTEGER_OPERATORS = ("QLinearConv", "QGemm", "MatMulIntegerToFloat", "QLinearAdd")


def _xnnpack(*, is_dynamic: bool = False) -> Any:
    from torchao.testing.pt2e._xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

    return XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True, is_dynamic=is_dynamic))


def _x86(*, is_dynamic: bool = False) -> Any:
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    config = x86.get_default_x86_inductor_quantization_config(is_dynamic=is_dynamic)
    return x86.X86InductorQuantizer().set_global(config)


def _x86_with_embeddings() -> Any:
    from torchao.quantization.pt2e.quantizer.composable_quantizer import ComposableQuantizer
    from torchao.quantization.pt2e.quantizer.embedding_quantizer import EmbeddingQuantizer

    return ComposableQuantizer([EmbeddingQuantizer(), _x86(is_dynamic=True)])


def _image_network(name: str) -> nn.Module:
    """A network of torchvision whose batch norms have the statistics of noise."""
    model: nn.Module = getattr(import_torchvision().models, name)()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(4, 3, 96, 96))
    return model


def _vit() -> nn.Module:
    import_torchvision()
    import timm

    model: nn.Module = timm.create_model("vit_tiny_patch16_224")
    return model


class _Bert(nn.Module):
    """A classifier of sentences, of the size of MiniLM-L6."""

    def __init__(self) -> None:
        super().__init__()
        import_torchvision()
        from transformers import BertConfig, BertForSequenceClassification

        sizes = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
        self.model = BertForSequenceClassification(BertConfig(num_hidden_layers=6, **sizes))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        return logits


@dataclass(frozen=True)
class Case:
    """A model with its quantizer."""

    name: str
    make: Callable[[], nn.Module]
    quantizer: Callable[[], Any]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    runs: int


def _image(size: int = 224) -> tuple[torch.Tensor, ...]:
    return (torch.randn(1, 3, size, size),)


def _sentence() -> tuple[torch.Tensor, ...]:
    return torch.randint(0, 30522, (1, 64)), torch.ones(1, 64, dtype=torch.int64)


CASES = (
    Case("ResNet-18, 64 x 64, XNNPACK", lambda: _image_network("resnet18"), _xnnpack, lambda: _image(64), 40),
    Case("ResNet-18, XNNPACK", lambda: _image_network("resnet18"), _xnnpack, _image, 8),
    Case("MobileNetV2, X86", lambda: _image_network("mobilenet_v2"), _x86, _image, 15),
    Case("ViT-tiny, XNNPACK", _vit, _xnnpack, _image, 8),
    Case("BERT, X86 dynamic, with embeddings", _Bert, _x86_with_embeddings, _sentence, 10),
    Case("BERT, X86", _Bert, _x86, _sentence, 10),
)


def _quantized(model: nn.Module, quantizer: Any, inputs: tuple[torch.Tensor, ...]) -> nn.Module:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    prepared = prepare_pt2e(torch.export.export(model, inputs).module(), quantizer)
    with torch.no_grad():
        prepared(*inputs)
    converted: nn.Module = convert_pt2e(prepared)
    return converted


def _session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.optimized_model_filepath = str(path.with_suffix(".optimized.onnx"))
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _medians(sessions: Sequence[Any], inputs: tuple[torch.Tensor, ...], runs: int, consecutive: int) -> list[float]:
    seconds: list[list[float]] = [[] for _ in sessions]
    for _ in range(runs // consecutive):
        for times, session in zip(seconds, sessions, strict=True):
            names = [value.name for value in session.get_inputs()]
            feeds = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
            for _ in range(consecutive):
                start = time.perf_counter()
                session.run(None, feeds)
                times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in seconds]


def _times(sessions: Sequence[Any], inputs: tuple[torch.Tensor, ...], runs: int, consecutive: int) -> list[float]:
    rounds = [_medians(sessions, inputs, runs, consecutive) for _ in range(_ROUNDS)]
    return [min(medians) for medians in zip(*rounds, strict=True)]


def _row(case: Case, directory: Path) -> str:
    torch.manual_seed(0)
    model, inputs = case.make().eval(), case.inputs()
    converted = _quantized(model, case.quantizer(), inputs)
    forms: Mapping[str, tuple[nn.Module, Target | None]] = {
        "plain": (model, None),
        "float32": (model, "onnxruntime"),
        "quantized": (converted, "onnxruntime"),
    }
    paths = [directory / f"{name}.onnx" for name in forms]
    for path, (exported, target) in zip(paths, forms.values(), strict=True):
        fxonnx.export(exported, inputs, path, target=target)
    sessions = [_session(path) for path in paths]
    sizes = [path.stat().st_size for path in paths]
    times, in_turn = (_times(sessions, inputs, case.runs, consecutive) for consecutive in (case.runs, 1))
    names = [value.name for value in sessions[-1].get_inputs()]
    (found,) = sessions[-1].run(None, {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)})
    with torch.no_grad():
        expected, reference = converted(*inputs), model(*inputs)
    scale = reference.abs().max()
    errors = ((torch.from_numpy(found) - expected).abs().max() / scale, (expected - reference).abs().max() / scale)
    nodes = Counter(node.op_type for node in onnx.load(paths[-1].with_suffix(".optimized.onnx")).graph.node)
    operators = ", ".join(f"{nodes[name]} {name}" for name in _INTEGER_OPERATORS if nodes[name])
    quotients = (sizes[-1] / sizes[0], times[-1] / times[0], times[-1] / times[1], in_turn[-1] / in_turn[1])
    ratios = " | ".join(f"{quotient:.2f}" for quotient in quotients)
    return f"| {case.name} | {ratios} | {errors[0]:.1e} | {errors[1]:.1e} | {operators} |\n"


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    columns = ("size", "time", "of target", "run by run", "difference to torch", "torch's to float32", "kernels")
    sys.stdout.write(f"| model, quantizer | {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) - 1)}---|\n")
    wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory:
        for case in CASES:
            if not wanted or any(word in case.name for word in wanted):
                sys.stdout.write(_row(case, Path(directory)))
                sys.stdout.flush()


if __name__ == "__main__":
    main()
