"""A user's script, checked with mypy --strict; it is not run."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import torch

import fxonnx
import fxonnx.genai
from fxonnx import ArgumentError, InputObserver, ONNXProgram

model = torch.nn.Linear(2, 3)
x = torch.ones(4, 2)

program: ONNXProgram = fxonnx.export(model, (x,), dynamic_shapes=({0: "batch"},), opset_version=20)
program = fxonnx.export(
    model,
    x,
    Path("model.onnx"),
    verify="auto",
    options=fxonnx.ExportOptions(patterns={"gelu": False}),
    target="onnxruntime",
)
program = fxonnx.export(model, x, options=fxonnx.ExportOptions(numerics="exact", functions="repeated"))
program = fxonnx.export(model, x, quantize="int4")
program = fxonnx.export(model, x, quantize=fxonnx.QuantizeConfig("int8", symmetric=False, exclude=["*.gate"]))
program = fxonnx.export(model, x, quantize=fxonnx.QuantizeConfig("int8", calibration=[x, (x, 1), {"input": x}]))
program = fxonnx.export(model, x, quantize=fxonnx.QuantizeConfig("int8", activations="dynamic"))
differences: list[float | None] = [layer.relative_error for layer in program.quantization.report((x,)).layers]
config: fxonnx.QuantizeConfig = fxonnx.QuantizeConfig.from_checkpoint("checkpoint")
program = fxonnx.export(
    model, x, frozen=["input"], data_dependent="example", options=fxonnx.ExportOptions(guards=False)
)
program = fxonnx.export(model, x, adapters="*.lora_*")
program = fxonnx.export(model, x, adapters=["weight", "bias"])
program.save_adapter(Path("a.onnx_adapter"), {"weight": torch.ones(3, 2)})
program.save_adapter("a.onnx_adapter", adapter="german")
selected: tuple[str, ...] = program.interface.adapters
lines: list[str] = [str(one.line) for one in program.record.assumptions if one.kind is fxonnx.AssumptionKind.EXAMPLE]
target: fxonnx.Target = "tensorrt"
findings: list[fxonnx.TargetFinding] = fxonnx.check(program.model, target)
findings += fxonnx.check("model.onnx", "openvino")
options = fxonnx.ExportOptions(metadata="names", ir_version=10)
program = fxonnx.export(model, x, options=options, diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=Path("x")))
program = fxonnx.export(model, x, diagnostics=True)
program = fxonnx.torch_onnx_export(model, (x,), "m.onnx", True, dynamic_axes={"x": {0: "n"}}, dynamo=False, state="io")
record: fxonnx.ExportRecord = program.record
interface: fxonnx.GraphInterface = program.interface
quantization: fxonnx.ProgramQuantization = program.quantization
program = fxonnx.export(model, ([x, x],), dynamic_shapes=(fxonnx.TensorList("number", {0: "batch"}),))
program = fxonnx.export(model, kwargs={"input": x}, dynamic_shapes={"input": {0: torch.export.Dim("batch", max=9)}})
program.save(BytesIO(), external_data=False)
program.save("model.onnx", external_data="safetensors")
program.save("model.onnx", metadata="names")
outputs: tuple[torch.Tensor, ...] = program(x)
rows: list[fxonnx.OutputComparison] = program.verify(sizes=[{"batch": 3}])
rows += fxonnx.verify(program, model, (torch.rand(2, 3),), sizes="auto") + fxonnx.verify(program, (torch.rand(2, 3),))
rows += fxonnx.verify("model.onnx", model, x, {}) + program.verify(model=model)
text: str = rows[0].message + fxonnx.__version__

directory: Path = fxonnx.genai.export("checkpoint", "out", precision="int4", verify=False)
directory = fxonnx.genai.export(model, directory, tokenizer="checkpoint", pooling="mean", normalize=True)

for constraint in program.record.constraints:
    dims: tuple[str, ...] = constraint.dims

try:
    fxonnx.export(model, (x,), opset_version=99)
except ArgumentError as error:
    argument: str = error.argument

with InputObserver() as observer, observer(model):
    model(x)
program = fxonnx.export(model, observer.infer_arguments())

fxonnx.install()
assert fxonnx.installed()
with fxonnx.installed():
    torch.onnx.export(model, (x,), dynamo=True)
