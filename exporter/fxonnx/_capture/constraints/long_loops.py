"""Captures that end where a loop over a dynamic size would be unrolled for a long example.

torch.export notices only afterwards that such a loop specializes a dim. The rewritten loop has one iteration, so the
time of the export does not grow with the example.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import sympy

from ..rewriting.source.loop_lines import begins_loop
from ..shapes.dim_specs import is_auto
from ..shapes.dynamic_shapes import Leaf
from .guard_recorder import Guard, GuardLog
from .specialized_dims import SpecializedDim, input_source

__all__ = ["LongLoopFound", "LongLoops"]

_MIN_SIZE = 32
_PLACE = re.compile(r"(.+):(\d+) in ")


class LongLoopFound(BaseException):
    """Ends a capture; not an Exception, which models handle to select fallbacks."""


@dataclass
class LongLoops:
    """Ends a capture at the first long loop over a dim that the user requested to be dynamic.

    Attributes:
        leaves: The leaves of the inputs.
        found: The dim of the loop at which the capture ended.
    """

    leaves: Sequence[Leaf]
    found: SpecializedDim | None = None
    _evaluations: Counter[str] = field(default_factory=Counter)

    def watch(self, log: GuardLog) -> None:
        """Observe the guards of the capture."""
        log.observer = self._observe

    def _observe(self, log: GuardLog, guard: Guard) -> None:
        symbols = guard.expression.free_symbols
        if guard.line is None or len(symbols) != 1:
            return
        (symbol,) = symbols
        self._evaluations[guard.line.place] += 1
        size = _fixed_size(guard.expression)
        if (size is None or size < _MIN_SIZE) and self._evaluations[guard.line.place] < _MIN_SIZE:
            return
        place = _PLACE.match(guard.line.place)
        dim = self._requested(log.sources.get(symbol, ""), guard)
        if dim is not None and place is not None and begins_loop(place[1], int(place[2])):
            self.found = dim
            raise LongLoopFound(dim.label)

    def _requested(self, source: str, guard: Guard) -> SpecializedDim | None:
        for leaf in self.leaves:
            for axis, spec in leaf.dims.items():
                if input_source(leaf, axis) == source and not is_auto(spec):
                    size = leaf.value if axis is None else leaf.value.shape[axis]
                    return SpecializedDim(leaf, axis, int(size), () if guard.line is None else (guard.line,))
        return None


def _fixed_size(guard: sympy.Basic) -> int | None:
    """The only size that a guard allows, if it is an equation."""
    numbers = [side for side in guard.args if side.is_Integer] if isinstance(guard, sympy.Eq) else []
    return int(numbers[0]) if numbers else None
