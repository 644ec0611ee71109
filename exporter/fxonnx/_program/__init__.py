"""The exported program: what ``export`` returns, how it is saved and how it runs."""

from .onnx_program import ONNXProgram, weights_of

__all__ = ["ONNXProgram", "weights_of"]
