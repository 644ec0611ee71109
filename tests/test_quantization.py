"""ONNX Runtime's quantization tools on exported models: preprocessing, dynamic and static quantization."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference
from torch import nn
from torch.nn import functional as F

import fxonnx

from .models.torchvision_shim import import_torchvision

Feeds = dict[str, np.ndarray]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = [part(x).view(batch, length, 4, 4).transpose(1, 2) for part in (self.query, self.key, self.value)]
        return self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(batch, length, 16))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner, self.head = nn.Embedding(20, 16), nn.Linear(16, 16), nn.Linear(16, 20, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(self.table(x)).relu())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[0])


def convolutions() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)),
    )


def bert() -> nn.Module:
    import_torchvision()
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 50}
    return BertModel(BertConfig(num_hidden_layers=1, max_position_embeddings=40, **sizes))


IDS = torch.randint(0, 20, (2, 7), generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])


@dataclass(frozen=True)
class Model:
    """A model with its inputs and dynamic axes."""

    make: Callable[[], nn.Module]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    dynamic: Any = ({0: "batch", 1: "length"},)

    def export(self, path: Path, opset: int, dynamic: bool) -> tuple[Feeds, list[np.ndarray]]:
        """Export and save the model.

        Returns:
            Its inputs, and its outputs in ONNX Runtime.
        """
        torch.manual_seed(0)
        shapes = self.dynamic if dynamic else None
        program = fxonnx.export(
            self.make().eval(), self.args, path, kwargs=self.kwargs, dynamic_shapes=shapes, opset_version=opset
        )
        values = zip(program.model.graph.inputs, (*self.args, *self.kwargs.values()), strict=True)
        feeds = {str(value.name): tensor.numpy() for value, tensor in values}
        return feeds, run(path, feeds)


_PADDED = {"input_ids": {0: "batch", 1: "length"}, "attention_mask": {0: "batch", 1: "length"}}
MODELS = {
    "conv": Model(convolutions, (torch.rand(2, 3, 12, 12),), dynamic=({0: "batch"},)),
    "lstm": Model(Recurrent, (torch.rand(2, 6, 8),)),
    "tied": Model(Tied, (IDS,)),
    "attention": Model(Attention, (torch.rand(2, 5, 16),)),
    "bert": Model(bert, kwargs={"input_ids": IDS, "attention_mask": MASK}, dynamic=_PADDED),
}


class Feeding(CalibrationDataReader):
    def __init__(self, feeds: Feeds) -> None:
        self._feeds = iter([feeds])

    def get_next(self) -> Feeds | None:
        return next(self._feeds, None)


def run(path: Path, feeds: Feeds, *, optimized: bool = True) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, feeds)


def check_near(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert np.abs(ours - theirs).max() < 0.06 * np.abs(theirs).max()


ATTENTION_OPERATOR = "ONNX Runtime's tools take ONNX's Attention (opset 23) for their own one of the same name"
WHERE = "ONNX Runtime's QOperator format leaves a Where without its inputs"
"""It keeps the node as it is and drops the float tensors that it reads."""


def _params(opsets: tuple[int, ...], limits: dict[tuple[str, int | None], str]) -> list[Any]:
    """Parameters of all models and opsets, with xfail marks for limits of others; None stands for all opsets."""
    params = []
    for name in MODELS:
        for opset in opsets:
            reason = limits.get((name, opset), limits.get((name, None)))
            marks = [] if reason is None else [pytest.mark.xfail(strict=True, reason=f"ort: {reason}")]
            params.append(pytest.param(name, opset, marks=marks, id=f"{name}-{opset}"))
    return params


AT_23 = {("attention", 23): ATTENTION_OPERATOR, ("bert", 23): ATTENTION_OPERATOR}


@pytest.mark.parametrize(("name", "opset"), _params((13, 18, 23), AT_23))
@pytest.mark.exact_products
def test_dynamic_quantization(tmp_path: Path, name: str, opset: int) -> None:
    path = tmp_path / "float.onnx"
    feeds, expected = MODELS[name].export(path, opset, dynamic=True)
    quantize_dynamic(path, tmp_path / "dynamic.onnx", weight_type=QuantType.QInt8)
    quantized = onnx.load(tmp_path / "dynamic.onnx")
    assert any(tensor.data_type == onnx.TensorProto.INT8 for tensor in quantized.graph.initializer)
    check_near(run(tmp_path / "dynamic.onnx", feeds), expected)


@pytest.mark.parametrize(("name", "opset"), _params((13, 20, 23), AT_23))
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.exact_products
def test_quantization_preprocessing(tmp_path: Path, name: str, opset: int, dynamic: bool) -> None:
    path, prepared = tmp_path / "float.onnx", tmp_path / "prepared.onnx"
    feeds, expected = MODELS[name].export(path, opset, dynamic)
    # Required by the tool because the sequence length is bounded by the position embedding.
    merge = name == "bert" and dynamic
    onnx.save(SymbolicShapeInference.infer_shapes(onnx.load(path), auto_merge=merge), tmp_path / "inferred.onnx")
    check_near(run(tmp_path / "inferred.onnx", feeds), expected)
    quant_pre_process(path, prepared, auto_merge=merge)
    # ONNX Runtime's fusion of MatMul and Add creates names that clash when the optimized model is loaded again.
    check_near(run(prepared, feeds, optimized=False), expected)
    quantize_static(prepared, tmp_path / "static.onnx", Feeding(feeds))
    check_near(run(tmp_path / "static.onnx", feeds), expected)


@pytest.mark.parametrize(("name", "opset"), _params((13, 21), {("bert", None): WHERE}))
def test_static_quantization_to_operators(tmp_path: Path, name: str, opset: int) -> None:
    path = tmp_path / "float.onnx"
    feeds, expected = MODELS[name].export(path, opset, dynamic=True)
    quantize_static(path, tmp_path / "static.onnx", Feeding(feeds), quant_format=QuantFormat.QOperator)
    check_near(run(tmp_path / "static.onnx", feeds), expected)


@pytest.mark.exact_products
def test_workaround_at_opset_23(tmp_path: Path) -> None:
    path = tmp_path / "float.onnx"
    feeds, expected = MODELS["attention"].export(path, 23, dynamic=True)
    quantize_dynamic(path, tmp_path / "dynamic.onnx", op_types_to_quantize=["MatMul"])
    check_near(run(tmp_path / "dynamic.onnx", feeds), expected)
    quant_pre_process(path, tmp_path / "prepared.onnx", skip_symbolic_shape=True)
    quantize_static(tmp_path / "prepared.onnx", tmp_path / "static.onnx", Feeding(feeds))
    check_near(run(tmp_path / "static.onnx", feeds), expected)


def test_initializers_have_no_value_info(tmp_path: Path) -> None:
    MODELS["conv"].export(tmp_path / "float.onnx", 20, dynamic=True)
    graph = onnx.load(tmp_path / "float.onnx").graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    assert not weights.keys() & {value.name for value in graph.value_info}
    (folded,) = (weight for name, weight in weights.items() if name == "0.weight::folded")
    metadata = {entry.key: entry.value for entry in folded.metadata_props}
    assert metadata["pkg.fxonnx.recipe"] == "folded"
    assert metadata["pkg.fxonnx.derived_from"].startswith("0.weight, 1.weight")
