"""Each hint outside of the capture, followed: the refused call prints it, and the changed one works."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.onnx import TrainingMode

import fxonnx
from fxonnx import ExportOptions, InputObserver, QuantizeConfig
from fxonnx.errors import FACTORIZATION_HINT

from .functions import Function, VariadicFunction
from .messages import check_message
from .test_mistakes_by_topic import LINEAR, Counter, NumberOf, drop_in, linear, of, square, thrice, translated, wrong

X = torch.rand(2, 3)
RELU = torch.ops.aten.relu.default
_Call = Callable[[], Any]
_Step = tuple[_Call, _Call]
"""The refused call, and the one after the hint."""


class Gated(nn.Module):
    """A model whose result depends on the value of a weight, which Python reads or torch selects by."""

    def __init__(self, is_read: bool) -> None:
        super().__init__()
        self.is_read = is_read
        self.gate = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_read:
            return x * self.gate if self.gate > 0 else -x
        return torch.where(self.gate > 0, x * self.gate, -x)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


class Writes(nn.Module):
    """A model that writes to a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.count = nn.Parameter(torch.zeros(3), requires_grad=False)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x * self.scale + self.count


class Steps(nn.Module):
    """A model that counts its calls in an attribute, or in a buffer."""

    def __init__(self, is_buffer: bool) -> None:
        super().__init__()
        self.is_buffer = is_buffer
        self.calls: Any = 0
        if is_buffer:
            del self.calls
            self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return x + self.calls


class Reassigned(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(2, 3))
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.last
        self.last = x.to(self.dtype)
        return y


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def two(**options: Any) -> Any:
    return fxonnx.export(Function(added).eval(), (X, X), **options)


def options(**rare: Any) -> Any:
    return linear(options=ExportOptions(**rare))


def quantized(*args: Any, **config: Any) -> _Call:
    return square(quantize=QuantizeConfig(*args, **config))


def quantized_pair(**config: Any) -> _Call:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    return lambda: fxonnx.export(model, (torch.rand(1, 64),), quantize=QuantizeConfig("int8", **config))


def static(batches: Any, **config: Any) -> _Call:
    return quantized("int8", activations="static", calibration=batches, **config)


def observed(*calls: tuple[Any, ...], model: Any = None) -> InputObserver:
    observer = InputObserver()
    for args in calls:
        module = LINEAR if model is None else model
        with observer(module):
            module(*args)
    return observer


def on_meta() -> fxonnx.ONNXProgram:
    return fxonnx.export(nn.Linear(3, 2, device="meta"), (X.to("meta"),))


def written(**names: torch.Tensor) -> str:
    save_file(names or {name: tensor.detach().clone() for name, tensor in LINEAR.named_parameters()}, "w.safetensors")
    return "w.safetensors"


def verified(*, with_data: bool) -> None:
    model, args = nn.Linear(64, 64).eval(), (torch.rand(1, 64),)
    fxonnx.export(model, args, "m.onnx", external_data=True)
    Path("m.onnx.data").rename("m.onnx.data" if with_data else "moved")
    fxonnx.verify("m.onnx", model, args)


def to_the_checkpoint(path: str) -> None:
    Path("below").mkdir()
    program = fxonnx.export(nn.Linear(64, 64, device="meta"), (torch.rand(1, 64, device="meta"),))
    program.save(path, weights=written(**nn.Linear(64, 64).state_dict()), external_data=fxonnx.REFERENCE)


def to_a_link(directory: str) -> None:
    Path("other").mkdir()
    Path("other/m.onnx").touch()
    Path("link.onnx").symlink_to("other/m.onnx")
    linear(f"{directory}.onnx", external_data=True)


def replaced_state() -> fxonnx.ONNXProgram:
    program = fxonnx.export(Counter(), (X,), state="io")
    (name,) = (name for name in program.model.graph.initializers if "total" in name)
    program.model.graph.initializers[name].const_value = onnx_tensor()
    return program


def onnx_tensor() -> Any:
    import onnx_ir

    return onnx_ir.tensor(torch.zeros(2, 3).numpy())


def relu_file(shape: list[Any] | None) -> str:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9), "relu.onnx"
    )
    return "relu.onnx"


def in_list(x: list[torch.Tensor]) -> torch.Tensor:
    x[0].add_(1)
    return x[0] * 2


def list_of_clones(x: list[torch.Tensor]) -> torch.Tensor:
    return (x[0].clone() + 1) * 2


def lists(function: Callable[..., Any]) -> _Call:
    return lambda: fxonnx.export(
        Function(function).eval(), ([X, X],), state="io", dynamic_shapes=(fxonnx.TensorList("n"),)
    )


EXPORTS: dict[str, _Step] = {
    "return the results: a graph has outputs": (of(lambda x: None), of(lambda x: x.sin())),
    "pass True for a report": (lambda: linear(diagnostics="page"), lambda: linear(diagnostics=True)),
    'write artifacts_dir="reports"': (
        lambda: fxonnx.Diagnostics(report=True, artifacts_dir=wrong(3)),
        lambda: linear(diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir="reports")),
    ),
    "pass a translation of your own: export(..., {})": (
        of(thrice),
        of(thrice, custom_translation_table={torch.ops.mistakes.thrice.default: lambda op, x: op.Mul(x, 3.0)}),
    ),
    FACTORIZATION_HINT: (of(lambda x: torch.linalg.eigvals(x @ x.T)), of(lambda x: torch.linalg.eigvalsh(x @ x.T))),
    "pass opset_version={}": (
        of(lambda x: x * 2, X.bfloat16(), opset_version=9),
        of(lambda x: x * 2, X.bfloat16(), opset_version=13),
    ),
    "write fxonnx.ExportOptions(...)": (
        lambda: linear(options={"metadata": "none"}),
        lambda: options(metadata="none"),
    ),
    "specify all dynamic dims in one of them": (
        drop_in(dynamic_axes={"input": {0: "n"}}, dynamic_shapes={"input": {0: "n"}}),
        drop_in(dynamic_axes={"input": {0: "n"}}),
    ),
    'write ["image_grid_thw"]': (lambda: two(frozen="y"), lambda: two(frozen=["y"])),
    'write "*.lora_*"': (lambda: linear(adapters=3), lambda: linear(adapters="wei*")),
    "pass a number from {} to {}, or nothing for {}": (
        lambda: linear(opset_version=3),
        lambda: linear(opset_version=7),
    ),
    "pass {}": (lambda: linear(opset_version="17"), lambda: linear(opset_version=17)),
    "pass a number, or nothing for {}": (lambda: linear(opset_version=True), lambda: linear(opset_version=None)),
    "write [{}]": (lambda: linear(input_names="x"), lambda: linear(input_names=["x"])),
    'write ["x"]: one name for each input or output, in order': (
        lambda: linear(input_names={"input": "x"}),
        lambda: linear(input_names=["x"]),
    ),
    "write {torch.ops.aten.relu.default: my_relu}": (
        of(torch.relu, custom_translation_table=[torch.relu]),
        translated(lambda op, x: op.Relu(x)),
    ),
    "the keys are overloads of torch's operators, such as torch.ops.aten.relu.default": (
        of(torch.relu, custom_translation_table={"aten::relu": abs}),
        translated(lambda op, x: op.Relu(x)),
    ),
    "name the overload, such as torch.ops.{}.default": (
        of(torch.relu, custom_translation_table={torch.ops.aten.relu: lambda op, x: op.Relu(x)}),
        translated(lambda op, x: op.Relu(x)),
    ),
    "write a function that emits operators: def translation(op, x): return op.Relu(x)": (
        translated(3),
        translated(lambda op, x: op.Relu(x)),
    ),
    "pass opset_version=15 or newer, or ir_version={}": (
        lambda: linear(opset_version=14, options=ExportOptions(functions="repeated")),
        lambda: linear(opset_version=15, options=ExportOptions(functions="repeated")),
    ),
    'write {"gelu": False}': (
        lambda: options(patterns=wrong(["gelu"])),
        lambda: options(patterns={"gelu": False}),
    ),
    "names of values are unique": (
        lambda: linear(input_names=["a"], output_names=["a"]),
        lambda: linear(input_names=["a"], output_names=["b"]),
    ),
    "leave names at the end out instead": (
        lambda: two(input_names=["a", None]),
        lambda: two(input_names=["a"]),
    ),
    "select both or none of them": (
        lambda: fxonnx.export(Tied().eval(), (X,), adapters="first.weight"),
        lambda: fxonnx.export(Tied().eval(), (X,), adapters="*.weight"),
    ),
    "compute the result with operators of torch, as torch.where, or do not select this weight": (
        lambda: fxonnx.export(Gated(True).eval(), (X,), adapters="gate"),
        lambda: fxonnx.export(Gated(False).eval(), (X,), adapters="gate"),
    ),
    "select other parameters, or pass another state": (
        lambda: fxonnx.export(Writes().eval(), (X,), state="io", adapters="*"),
        lambda: fxonnx.export(Writes().eval(), (X,), state="io", adapters="scale"),
    ),
    'pass state="io" to make the updated tensors inputs and outputs, or state="outputs" to return them': (
        lambda: fxonnx.export(Counter(), (X,), state="error"),
        lambda: fxonnx.export(Counter(), (X,), state="io"),
    ),
    'hold the value in a buffer (self.register_buffer(name, torch.tensor(value))) and pass state="io", '
    "or pass it to forward as an input": (
        lambda: fxonnx.export(Steps(False).eval(), (X,), state="error"),
        lambda: fxonnx.export(Steps(True).eval(), (X,), state="io"),
    ),
    "assign a tensor of the same dtype and rank to one buffer, and give it a value before the export": (
        lambda: fxonnx.export(Reassigned(torch.int64).eval(), (X,), state="io"),
        lambda: fxonnx.export(Reassigned(torch.float32).eval(), (X,), state="io"),
    ),
    'write to clones of the tensors, or pass state="warn" to drop the updates': (lists(in_list), lists(list_of_clones)),
    "return x.to_dense()": (of(lambda x: x.to_sparse()), of(lambda x: x.to_sparse().to_dense())),
    "compute the dense tensor with to_dense() before it, or the sparse one from weights and constants": (
        of(lambda x: torch.sparse.softmax(x.to_sparse(), 1).to_dense()),
        of(lambda x: x.to_sparse().to_dense().softmax(1)),
    ),
}
CALLS: dict[str, _Step] = {
    "use one InputObserver for each model": (
        lambda: _observe_both(InputObserver()),
        lambda: observed((X, X), model=Function(added)).infer_arguments(),
    ),
    "call the model inside 'with observer(model):'": (
        lambda: InputObserver().infer_arguments(),
        lambda: observed((X,)).infer_arguments(),
    ),
    "{} calls were recorded": (
        lambda: observed((X,)).infer_arguments(3),
        lambda: observed((X,)).infer_arguments(0),
    ),
    "{}=1e-3, for example": (lambda: linear().verify(rtol=wrong("a")), lambda: linear().verify(rtol=1e-3)),
    "pass a path, an onnx_ir.Model or a ModelProto": (
        lambda: fxonnx.report(wrong(3), "x.html"),
        lambda: fxonnx.report(linear().model, "x.html"),
    ),
    "the file of external data belongs next to the model": (
        lambda: verified(with_data=False),
        lambda: verified(with_data=True),
    ),
    "pass inputs of other sizes": (
        lambda: (linear("m.onnx"), fxonnx.verify("m.onnx", LINEAR, (X,), sizes=[{"n": 3}])),
        lambda: (linear("m.onnx", dynamic_shapes=({0: "n"},)), fxonnx.verify("m.onnx", LINEAR, (X[:1],))),
    ),
    "verify(path, model, args)": (
        lambda: (linear("m.onnx"), fxonnx.verify("m.onnx")),
        lambda: (linear("m.onnx"), fxonnx.verify("m.onnx", LINEAR, (X,))),
    ),
    "write verify(fxonnx.export(model, args), model, args)": (
        lambda: fxonnx.verify(wrong(LINEAR), LINEAR, (X,)),
        lambda: fxonnx.verify(fxonnx.export(LINEAR, (X,)), LINEAR, (X,)),
    ),
    'pass an int of at least 0: sizes=[{"{}": 3}]': (
        lambda: linear(dynamic_shapes=({0: "n"},)).verify(sizes=[{"n": -1}]),
        lambda: linear(dynamic_shapes=({0: "n"},)).verify(sizes=[{"n": 3}]),
    ),
    "pass the exported model": (lambda: linear().verify(model=wrong(nn.Linear)), lambda: linear().verify(model=LINEAR)),
    "call the model with these inputs": (lambda: linear().verify((X.half(),)), lambda: linear().verify((X,))),
    "pass the tensors of the export; by the names of the graph inputs, constants are omitted": (
        lambda: (linear("m.onnx"), fxonnx.verify("m.onnx", VariadicFunction(added), (X, X))),
        lambda: (linear("m.onnx"), fxonnx.verify("m.onnx", LINEAR, (X,))),
    ),
    "pass torch.tensor(value)": (
        lambda: linear()([[1.0, 2.0, 3.0]] * 2),
        lambda: linear()(torch.tensor([[1.0, 2.0, 3.0]] * 2)),
    ),
    "convert the values with .to({})": (lambda: linear()(X.double()), lambda: linear()(X.double().to(torch.float32))),
    "pass a tensor on the CPU, such as torch.rand(shape)": (
        lambda: linear()(X.to("meta")),
        lambda: linear()(torch.rand(X.shape)),
    ),
    "convert it with .to_dense()": (
        lambda: linear()(X.to_sparse()),
        lambda: linear()(X.to_sparse().to_dense()),
    ),
    'write {"n": "batch"}': (
        lambda: linear(dynamic_shapes=({0: "n"},)).rename_axes(wrong(["n"])),
        lambda: linear(dynamic_shapes=({0: "n"},)).rename_axes({"n": "batch"}),
    ),
    "re-export with the other value, or with dynamic_scalars if it is a number": (
        lambda: fxonnx.export(NumberOf(), (X, 2))(X, 3),
        lambda: fxonnx.export(NumberOf(), (X, 2), dynamic_scalars={"k"})(X, 3),
    ),
    "pass the values of the example, or nothing; or re-export with the other values": (
        lambda: two(frozen=["y"])(X, X + 1),
        lambda: two(frozen=["y"])(X, X),
    ),
    "pass model.state_dict()": (
        lambda: linear().apply_weights(wrong(LINEAR)),
        lambda: linear().apply_weights(LINEAR.state_dict()),
    ),
    "re-export the model with weights of that shape and dtype": (
        lambda: linear().apply_weights({"weight": torch.rand(4, 3)}),
        lambda: fxonnx.export(nn.Linear(3, 4).eval(), (X,)).apply_weights({"weight": torch.rand(4, 3)}),
    ),
    "export the model again with these weights, or compute the result with operators of torch": (
        lambda: fxonnx.export(Gated(True).eval(), (X,)).apply_weights({"gate": torch.tensor(-1.0)}),
        lambda: fxonnx.export(Gated(False).eval(), (X,)).apply_weights({"gate": torch.tensor(-1.0)}),
    ),
    'export with state="io" a model whose forward mutates its buffers or inputs': (
        lambda: linear().stateful_session(),
        lambda: fxonnx.export(Counter(), (X,), state="io").stateful_session()(X),
    ),
    "create the session before modifying the graph": (
        lambda: replaced_state().stateful_session(),
        lambda: fxonnx.export(Counter(), (X,), state="io").stateful_session()(X),
    ),
    'select them: export(..., adapters="*.lora_*")': (
        lambda: linear().save_adapter("a.onnx_adapter"),
        lambda: linear(adapters="*").save_adapter("a.onnx_adapter"),
    ),
    "omit one of them": (
        lambda: linear(adapters="*").save_adapter("a.onnx_adapter", LINEAR.state_dict(), adapter="a"),
        lambda: linear(adapters="*").save_adapter("a.onnx_adapter", LINEAR.state_dict()),
    ),
    "pass them: save_adapter(path, weights), or call apply_weights(state_dict)": (
        lambda: fxonnx.export(nn.Linear(3, 2, device="meta"), (X.to("meta"),), adapters="*").save_adapter("a"),
        lambda: fxonnx.export(nn.Linear(3, 2, device="meta"), (X.to("meta"),), adapters="*").save_adapter(
            "a", LINEAR.state_dict()
        ),
    ),
    "pass quantize to export": (lambda: linear().quantization.report(), lambda: _quantized().quantization.report()),
    "pass the program that fxonnx.export returns as model": (
        lambda: (linear("m.onnx"), fxonnx.report("m.onnx", "x.html", compare=True)),
        lambda: fxonnx.report(linear(), "x.html", compare=True),
    ),
    "declare both in the file: onnx.helper.make_tensor_value_info(name, type, shape)": (
        lambda: fxonnx.report(relu_file(None), "x.html", profile_runtime=True),
        lambda: fxonnx.report(relu_file([2, "n"]), "x.html", profile_runtime=True),
    ),
    "save the file, program.save(path), or send program.model_proto.SerializeToString() to a process": (
        lambda: linear().__reduce__(),
        lambda: linear().model_proto.SerializeToString(),
    ),
}
FILES: dict[str, _Step] = {
    "os.fsdecode(path)": (lambda: linear(b"m.onnx"), lambda: linear(os.fsdecode(b"m.onnx"))),
    "specify the name of a file": (lambda: linear("."), lambda: linear("./m.onnx")),
    'write "model.onnx"': (lambda: linear().save(wrong(None)), lambda: linear().save("model.onnx")),
    'open it with mode "wb"': (lambda: _saved("w"), lambda: _saved("wb")),
    "save the model before the file is closed": (lambda: _saved("wb", closed=True), lambda: _saved("wb")),
    "pass keyword inputs of forward as kwargs=": (
        lambda: fxonnx.export(LINEAR, (), wrong({"input": X})),
        lambda: fxonnx.export(LINEAR, (), kwargs={"input": X}),
    ),
    "save to a path": (
        lambda: _saved("wb", external_data=True),
        lambda: linear().save("m.onnx", external_data=True),
    ),
    "save to the file that it leads to, {}": (lambda: to_a_link("link"), lambda: to_a_link("other/m")),
    "pass them: save(..., weights=<safetensors files or state_dicts>), or call apply_weights(state_dict)": (
        lambda: on_meta().save("m.onnx"),
        lambda: on_meta().save("m.onnx", weights=[LINEAR.state_dict()]),
    ),
    "pass weights that no file has in a dict: weights=[file, {name: tensor}]": (
        lambda: on_meta().save("m.onnx", weights=written(weight=LINEAR.weight.detach().clone())),
        lambda: on_meta().save(
            "m.onnx", weights=[written(weight=LINEAR.weight.detach().clone()), {"bias": torch.rand(2)}]
        ),
    ),
    "pass them: save(path, weights=<safetensors files>, external_data=fxonnx.REFERENCE)": (
        lambda: linear().save("m.onnx", external_data=fxonnx.REFERENCE),
        lambda: linear().save("m.onnx", weights=written(), external_data=fxonnx.REFERENCE),
    ),
    "save the model into the directory of the checkpoint": (
        lambda: to_the_checkpoint("below/m.onnx"),
        lambda: to_the_checkpoint("m.onnx"),
    ),
    "load other formats with torch.load(path, weights_only=True) and pass the state_dict": (
        lambda: (torch.save(LINEAR.state_dict(), "w.pt"), on_meta().save("m.onnx", weights="w.pt")),
        lambda: (
            torch.save(LINEAR.state_dict(), "w.pt"),
            on_meta().save("m.onnx", weights=[torch.load("w.pt", weights_only=True)]),
        ),
    ),
    "export with metadata={}": (
        lambda: options(metadata="none").save("m.onnx", metadata="full"),
        lambda: options(metadata="full").save("m.onnx", metadata="full"),
    ),
}
B, WIDE = torch.rand(1, 64), torch.rand(64)
QUANTIZATION: dict[str, _Step] = {
    'write quantize="int4"': (square(quantize=True), square(quantize="int4")),
    'pass embeddings="int8", or target="onnxruntime-genai"': (
        quantized("int4", embeddings="int4"),
        quantized("int4", embeddings="int8"),
    ),
    "pass opset_version={} or newer, or leave it out": (
        square(quantize="int4", opset_version=9),
        square(quantize="int4", opset_version=21),
    ),
    'pass activations="dynamic"': (
        quantized("int8", weights_only=["0"]),
        quantized_pair(weights_only=["0"], activations="dynamic"),
    ),
    'leave calibration out, or pass activations="static"': (
        quantized("int8", activations="dynamic", calibration=[B]),
        static([B]),
    ),
    "name these layers in exclude": (
        quantized_pair(activations="static", calibration=[torch.rand(1, 64)], weights_only=["0"]),
        quantized_pair(activations="static", calibration=[torch.rand(1, 64)], exclude=["0"]),
    ),
    'pass batches of representative inputs: QuantizeConfig("int8", calibration=loader)': (
        quantized("int8", activations="static"),
        quantized("int8", calibration=[B], activations="static"),
    ),
    "write calibration=[batch]": (static(B), static([B])),
    "an iterator that was used before is exhausted; pass a list or a DataLoader": (static(iter(())), static([B])),
    "check the batch, or exclude the layers that read or compute it": (static([B * float("nan")]), static([B])),
    'write {"*.down_proj": {}}': (quantized("int4", block_sizes=wrong([32])), quantized("int4", block_sizes={"0": 32})),
    "pass 32 or 128": (quantized("int4", block_size=33), quantized("int4", block_size=32)),
    "pass the mean square of each input feature": (
        quantized("int4", importance={"0": -WIDE}),
        quantized("int4", importance={"0": WIDE.square()}),
    ),
    'write ["*.mlp.*"]': (quantized("int4", include=wrong("0*")), quantized("int4", include=["0*"])),
    'pass {}="int8", or leave {} out to quantize only weights': (
        quantized("int4", activations="dynamic"),
        quantized("int8", activations="dynamic"),
    ),
    "leave it out": (
        quantized("int8", activations="dynamic", symmetric=False),
        quantized("int8", activations="dynamic"),
    ),
    "leave activations and calibration out to quantize only weights": (
        lambda: _embedding(QuantizeConfig("int8", activations="dynamic")),
        lambda: _embedding(QuantizeConfig("int8", embeddings="int8")),
    ),
    "name the layer in include or exclude": (
        quantized("int4", lm_head="int8"),
        quantized("int4", include=["0"]),
    ),
    'pass quantize="int4" to quantize the weights of another checkpoint': (
        lambda: QuantizeConfig.from_checkpoint(_plain_checkpoint()),
        square(quantize="int4"),
    ),
}
OLD_SCRIPTS: dict[str, _Step] = {
    "pass TrainingMode.EVAL, PRESERVE or TRAINING, or nothing": (
        drop_in(training=True),
        drop_in(training=TrainingMode.PRESERVE),
    ),
    "call export to write one": (
        lambda: fxonnx.export_to_pretty_string(LINEAR, (X,), f="m.onnx"),
        lambda: fxonnx.torch_onnx_export(LINEAR, (X,), "m.onnx"),
    ),
    "both select this exporter": (drop_in(dynamo=wrong("yes")), drop_in(dynamo=True)),
    'leave it out, or pass functions="repeated" for functions of repeated modules': (
        drop_in(export_modules_as_functions=True),
        drop_in(functions="repeated"),
    ),
    'write {"my_domain": 1}': (drop_in(custom_opsets={"my": "1"}), drop_in(custom_opsets={"my": 1})),
    "write namespace::operator": (
        lambda: fxonnx.register_custom_op_symbolic("relu", lambda g, x: x, 17),
        lambda: _registered("aten::relu"),
    ),
}
FOLLOWED: dict[str, _Step] = EXPORTS | CALLS | FILES | QUANTIZATION | OLD_SCRIPTS


def _observe_both(observer: InputObserver) -> None:
    for model, args in ((LINEAR, (X,)), (Function(added), (X, X))):
        with observer(model):
            model(*args)


def _quantized() -> fxonnx.ONNXProgram:
    return square(quantize="int8")()  # type: ignore[no-any-return]


def _embedding(config: QuantizeConfig) -> fxonnx.ONNXProgram:
    return fxonnx.export(nn.Embedding(64, 64).eval(), (torch.tensor([1, 2]),), quantize=config)


def _plain_checkpoint() -> Path:
    directory = Path("checkpoint")
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    save_file({"weight": torch.rand(2, 2)}, directory / "model.safetensors")
    return directory


def _saved(mode: str, *, closed: bool = False, **options: Any) -> None:
    with open("m.onnx", mode) as file:
        if closed:
            file.close()
        linear().save(wrong(file), **options)


def _registered(name: str) -> None:
    fxonnx.register_custom_op_symbolic(name, lambda g, x: g.op("Relu", x), 17)
    fxonnx.unregister_custom_op_symbolic(name, 17)


@pytest.fixture(autouse=True)
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("hint", FOLLOWED)
def test_a_followed_hint_works(hint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refused, followed = FOLLOWED[hint]
    (tmp_path / "refused").mkdir()
    (tmp_path / "followed").mkdir()
    monkeypatch.chdir(tmp_path / "refused")
    with pytest.raises(fxonnx.ExportError) as caught:
        refused()
    check_message(caught.value)
    assert re.fullmatch(".*".join(map(re.escape, hint.split("{}"))), caught.value.hint or ""), caught.value
    monkeypatch.chdir(tmp_path / "followed")
    result = followed()
    if isinstance(result, fxonnx.ONNXProgram) and result.record.quantization is None:
        result.verify()
