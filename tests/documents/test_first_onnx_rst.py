"""The first versions of the document "onnx.rst": a tracer, symbolic functions, parameters as graph inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn
from torch.autograd import Variable

import fxonnx

from . import alexnet


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    with fxonnx.installed():
        yield


def test_alexnet_with_parameters_as_inputs() -> None:
    dummy_input = Variable(torch.randn(10, 3, 224, 224))
    model = alexnet.make()
    torch.onnx.export(model, dummy_input, "alexnet.proto", verbose=True, keep_initializers_as_inputs=True)
    proto = alexnet.check_file(Path("alexnet.proto"), model, "x")
    names = [value.name for value in proto.graph.input]
    assert names[0] == "x"
    assert set(names) > {name for name, _ in model.named_parameters()}
    assert [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim] == [10, 3, 224, 224]


def test_missing_operator_is_named() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.ops.aten._standard_gamma_grad.default(x, x), torch.ops.aten._dirichlet_grad.default(x, x, x)

    with pytest.raises(torch.onnx.errors.UnsupportedOperatorError) as info:
        torch.onnx.export(Model().eval(), (torch.rand(3, 3),), dynamo=True)
    for part in ("_standard_gamma_grad", "_dirichlet_grad", "test_first_onnx_rst.py:", "custom_translation_table={"):
        assert part in str(info.value)


def elu(g: Any, input: Any, alpha: float, inplace: bool = False) -> Any:
    return g.op("Elu", input, alpha_f=alpha)


def test_a_symbolic_function_for_an_operator() -> None:
    torch.onnx.register_custom_op_symbolic("aten::elu", elu, 9)
    try:
        torch.onnx.export(nn.ELU(0.3).eval(), (torch.randn(3),), "elu.onnx", dynamo=True, verify=True)
    finally:
        torch.onnx.unregister_custom_op_symbolic("aten::elu", 9)
    (node,) = onnx.load("elu.onnx").graph.node
    assert (node.op_type, round(node.attribute[0].f, 3)) == ("Elu", 0.3)


class MyRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(min=0)

    @staticmethod
    def symbolic(g: Any, x: Any) -> Any:
        assert x.type().sizes() == [2, 3]
        return g.op("Relu", x)


def test_a_symbolic_function_in_the_class() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return MyRelu.apply(x)

    program = torch.onnx.export(Model().eval(), (torch.randn(2, 3),), dynamo=True, verify=True)
    assert [node.op_type for node in program.model.graph] == ["Relu"]


class WordModel(nn.Module):
    """The recurrent network of the word_language_model example."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.encoder = nn.Embedding(11, 6)
        self.rnn = getattr(nn, kind)(6, 6, 2)
        self.decoder = nn.Linear(6, 11)
        self.decoder.weight = self.encoder.weight

    def forward(self, input: torch.Tensor, hidden: Any) -> Any:
        output, hidden = self.rnn(self.encoder(input), hidden)
        decoded = self.decoder(output.view(-1, 6))
        return torch.log_softmax(decoded, dim=1), hidden


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_word_language_model(kind: str) -> None:
    torch.manual_seed(0)
    state = torch.randn(2, 3, 6)
    hidden = (state, state + 1) if kind == "LSTM" else state
    model = WordModel(kind).eval()
    ids = torch.randint(0, 11, (5, 3))
    shapes = ({0: "time", 1: "batch"}, ({1: "batch"}, {1: "batch"}) if kind == "LSTM" else {1: "batch"})
    torch.onnx.export(model, (ids, hidden), "model.onnx", dynamo=True, dynamic_shapes=shapes, verify="auto")


class SuperResolution(nn.Module):
    """The network of the super_resolution example."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 64, 5, padding=2), nn.ReLU(), nn.Conv2d(64, 32, 3, padding=1), nn.ReLU()
        )
        self.conv4 = nn.Conv2d(32, upscale_factor**2, 3, padding=1)
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pixel_shuffle(self.conv4(self.layers(x)))


class Generator(nn.Module):
    """The generator of the dcgan example."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(8, 16, 4, 1, 0, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(True),
            nn.ConvTranspose2d(16, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.main(input)


@pytest.mark.parametrize(
    ("model", "x"),
    [(SuperResolution(3), torch.randn(1, 1, 12, 10)), (Generator(), torch.randn(2, 8, 1, 1))],
    ids=["super-resolution", "dcgan"],
)
@pytest.mark.parametrize("opset", [11, 20])
def test_examples(model: nn.Module, x: torch.Tensor, opset: int) -> None:
    shapes = ({0: "batch", 2: "h", 3: "w"},)
    torch.onnx.export(
        model.eval(), (x,), "m.onnx", dynamo=True, opset_version=opset, dynamic_shapes=shapes, verify="auto"
    )
