"""Lowering from FX to onnx_ir: graph inputs and outputs, dispatch to translations, metadata."""
