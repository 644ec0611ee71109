"""The exported program: what ``export`` returns, how it is saved and how it runs."""

from .onnx_program import ONNXProgram

__all__ = ["ONNXProgram"]
