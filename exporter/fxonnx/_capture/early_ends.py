"""Captures that end where it is certain that a dynamic dim has one size, which torch.export notices only afterwards.

Where a loop over a dynamic size would be unrolled for a long example, the rewritten loop has one iteration, so that the
time of the export does not grow with the example. Where a convolution meets a dynamic number of channels, which its
weight determines, or the model raises an error for all sizes but one, the next attempt has a static dim; exports of
optimum request all dims of images to be dynamic.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType

import sympy

from .constraints.guard_recorder import Guard, GuardLog
from .constraints.specialized_dims import SpecializedDim, input_source
from .data_dependence.assumption import asking_frame
from .data_dependence.checks import raises_otherwise
from .rewriting.analysis import begins_loop
from .shapes.dim_specs import is_auto
from .shapes.dynamic_shapes import Leaf

__all__ = ["EarlyEnd", "EarlyEnds"]

_MIN_SIZE = 32
_PLACE = re.compile(r"(.+):(\d+) in ")
_CONVOLUTION = "calc_conv_nd_return_shape"
"""Function of torch that compares the channels of an input and a weight."""


class EarlyEnd(BaseException):
    """Ends a capture; not an Exception, which models handle to select fallbacks."""


@dataclass
class EarlyEnds:
    """Ends a capture at the first loop, convolution or check of a dim that the user requested to be dynamic.

    Attributes:
        leaves: The leaves of the inputs.
        unrolls_long_loops: Whether long loops end no capture.
        strict_shapes: Whether only long loops end one: the error is about all dims.
        found: The dim at which the capture ended.
        is_long_loop: Whether it ended at a loop.
    """

    leaves: Sequence[Leaf]
    unrolls_long_loops: bool = False
    strict_shapes: bool = False
    found: SpecializedDim | None = None
    is_long_loop: bool = False
    _evaluations: Counter[str] = field(default_factory=Counter)
    _dims: dict[str, tuple[Leaf, int | None]] = field(init=False)

    def __post_init__(self) -> None:
        requested = ((leaf, axis) for leaf in self.leaves for axis, spec in leaf.dims.items() if not is_auto(spec))
        self._dims = {input_source(leaf, axis): (leaf, axis) for leaf, axis in requested}

    def watch(self, log: GuardLog) -> None:
        """Observe the guards of the capture."""
        log.observer = self._observe

    def _observe(self, log: GuardLog, guard: Guard) -> None:
        symbols = guard.expression.free_symbols
        if len(symbols) != 1:
            return
        (symbol,) = symbols
        size, dim = _fixed_size(guard.expression), self._requested(log.sources.get(symbol, ""), guard)
        if dim is None:
            return
        is_fixed = size is not None and symbol in guard.expression.args
        self.is_long_loop = self._is_at_long_loop(guard, size)
        if self.is_long_loop or (is_fixed and not self.strict_shapes and _is_certain()):
            self.found = dim
            raise EarlyEnd(dim.label)

    def _is_at_long_loop(self, guard: Guard, size: int | None) -> bool:
        if guard.line is None or self.unrolls_long_loops:
            return False
        self._evaluations[guard.line.place] += 1
        if (size is None or size < _MIN_SIZE) and self._evaluations[guard.line.place] < _MIN_SIZE:
            return False
        place = _PLACE.match(guard.line.place)
        return place is not None and begins_loop(place[1], int(place[2]))

    def _requested(self, source: str, guard: Guard) -> SpecializedDim | None:
        if source not in self._dims:
            return None
        leaf, axis = self._dims[source]
        size = leaf.value if axis is None else leaf.value.shape[axis]
        return SpecializedDim(leaf, axis, int(size), () if guard.line is None else (guard.line,))


def _fixed_size(guard: sympy.Basic) -> int | None:
    """The only size that a guard allows, if it is an equation."""
    numbers = [side for side in guard.args if side.is_Integer] if isinstance(guard, sympy.Eq) else []
    return int(numbers[0]) if numbers else None


def _is_certain() -> bool:
    """Whether no other size than that of the evaluated equation is valid."""
    asking = asking_frame()
    if asking is not None and raises_otherwise(asking):
        return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != _CONVOLUTION:
        frame = frame.f_back
    return frame is not None
