"""The patches of functions of sizes."""

from __future__ import annotations

from ...constraints.guard_recorder import truth_as_number
from ..patch import Patch
from .arguments import ARGUMENT_PATCHES
from .expressions import EXPRESSION_PATCHES
from .math_functions import MATH_PATCHES
from .truth_values import TRUTH_PATCHES

__all__ = ["SIZE_PATCHES"]

SIZE_PATCHES: tuple[Patch, ...] = (
    *MATH_PATCHES,
    *EXPRESSION_PATCHES,
    *ARGUMENT_PATCHES,
    *TRUTH_PATCHES,
    Patch("torch:SymBool.__int__", truth_as_number, "torch does not record the file that makes a condition a number"),
)
