"""Wrong calls; mypy --strict finds an error in each line with a mark and in no other. It is not run."""

from __future__ import annotations

import torch

import fxonnx

model = torch.nn.Linear(2, 3)
x = torch.ones(4, 2)

fxonnx.exprot(model, (x,))  # error: no such name
fxonnx.export(model, (x,), dynamic_shape=({0: "batch"},))  # error: no such parameter
fxonnx.export(model, (x,), opset_version="20")  # error: not an int
fxonnx.export(model, (x,), options=fxonnx.ExportOptions(metadata="all"))  # error: no such choice
fxonnx.export(model, (x,), state="keep")  # error: no such choice
fxonnx.export(model, (x,), options=fxonnx.ExportOptions(numerics="fast"))  # error: no such choice
fxonnx.export(model, (x,), quantize="int5")  # error: no such choice
fxonnx.QuantizeConfig("int8", activations="statik")  # error: no such choice
fxonnx.QuantizeConfig("int8", calibration=3)  # error: not an iterable
fxonnx.export(model, (x,), options=fxonnx.ExportOptions(functions="all"))  # error: no such choice
fxonnx.export(model, (x,), target="coreml")  # error: no such choice
fxonnx.export((x,), model)  # error: the arguments are exchanged
program = fxonnx.export(model, (x,))
constraints = program.constraints  # error: a former member
fxonnx.export(model, (x,), dynamic_axes={"x": {0: "n"}})  # error: a keyword of torch_onnx_export
fxonnx.export(model, (x,), report=True)  # error: a keyword of Diagnostics
fxonnx.torch_onnx_export(model, (x,), dynamic_axes=["x"])  # error: not a dict
fxonnx.Diagnostics(reports=True)  # error: no such field
program.sav("model.onnx")  # error: no such member
text: str = program(x)  # error: a tuple of tensors
