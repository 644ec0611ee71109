"""``ONNXProgram``, the result of an export: running, verifying and saving the model."""

from .onnx_program import ONNXProgram, weights_of

__all__ = ["ONNXProgram", "weights_of"]
