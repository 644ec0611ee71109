"""Models of transformers for the runtimes of Hugging Face: optimum, transformers.js and sentence-transformers.

``export`` writes the directory that they load, and compares it with the model; ``load`` runs it in Python::

    fxonnx.huggingface.export("checkpoint", "out", layout="transformers.js", dtype="fp32,q8")
    model = fxonnx.huggingface.load("out")

Requires the extra ``fxonnx[huggingface]``: transformers, huggingface_hub and onnxruntime.
"""

from __future__ import annotations

from ._transformers.layouts.optimum import ExportedModel, Layout, export
from ._transformers.runner import load, register
from ._transformers.verify import FileCheck

__all__ = ["ExportedModel", "FileCheck", "Layout", "export", "load", "register"]

for _definition in (ExportedModel, FileCheck, export, load, register):
    _definition.__module__ = __name__
