"""Language models for onnxruntime-genai: a directory with the model, its configuration and its tokenizer.

``export`` writes everything that onnxruntime-genai loads and compares the generated tokens with transformers'::

    fxonnx.genai.export("checkpoint", "out")

Requires the extra ``fxonnx[genai]``: transformers and onnxruntime-genai.
"""

from __future__ import annotations

from ._transformers.generation import Quality
from ._transformers.layouts.genai import export

__all__ = ["Quality", "export"]

export.__module__ = Quality.__module__ = __name__
