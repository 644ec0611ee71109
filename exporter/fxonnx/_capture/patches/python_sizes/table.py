"""The patches of functions of sizes."""

from __future__ import annotations

from ..patch import Patch
from .arguments import ARGUMENT_PATCHES
from .expressions import EXPRESSION_PATCHES
from .math_functions import MATH_PATCHES

__all__ = ["SIZE_PATCHES"]

SIZE_PATCHES: tuple[Patch, ...] = (*MATH_PATCHES, *EXPRESSION_PATCHES, *ARGUMENT_PATCHES)
