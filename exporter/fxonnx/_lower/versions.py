"""The range of opsets and IR versions that models are written in."""

from __future__ import annotations

import onnx
import onnx.defs
import onnx.helper

__all__ = ["FUNCTIONS_IR_VERSION", "NEWEST_IR_VERSION", "NEWEST_OPSET", "OLDEST_OPSET", "ir_versions"]

OLDEST_OPSET = 7
# Limited by the installed onnx; 28 is the newest opset that the translations were tested at.
NEWEST_OPSET = min(28, onnx.defs.onnx_opset_version())
NEWEST_IR_VERSION = int(onnx.IR_VERSION)
FUNCTIONS_IR_VERSION = 8
"""The IR version that introduced functions in models."""


def ir_versions(opset: int) -> tuple[int, int]:
    """The default IR version of an opset, and the lowest possible one.

    The default is 10, as torch.onnx has it, from opset 20 on, or the version that a newer opset requires. Older opsets
    get the version they require: runtimes old enough to ask for an old opset reject newer IR versions.
    """
    # Before IR version 4 every initializer was also a graph input.
    needed = max(4, int(onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])))
    return (max(10, needed) if opset >= 20 else needed), needed
