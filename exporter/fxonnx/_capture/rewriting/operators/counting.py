"""``while`` loops that count: their number of iterations is known before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .sequences import integer
from .values import is_dynamic_size, is_number, is_symbolic

__all__ = ["Counting"]


@dataclass(frozen=True)
class Counting:
    """A ``while`` loop that counts: an iteration changes a variable by the same step.

    Attributes:
        start: Returns the value of the counter.
        step: Returns the number that each iteration adds to it.
        sides: Returns the sides of the test, the smaller one first, for a value of the counter.
        sign: Whether the difference of the sides falls (-1) or grows (1) with the counter.
        is_inclusive: Whether the loop goes on while both sides are equal.
        sized: Returns the variables that the loop changes and whose sizes the test reads.
        assign: Sets the counter.
        name: Name of the counter.
        is_used: Whether the counter is read after the loop.
    """

    start: Callable[[], Any]
    step: Callable[[], Any]
    sides: Callable[[Any], tuple[Any, Any]]
    sign: int
    is_inclusive: bool
    sized: Callable[[], Sequence[Any]]
    assign: Callable[[Any], None]
    name: str
    is_used: bool

    def count(self, *, data_dependent: bool, static: bool = False) -> Any:
        """The number of iterations, which may be negative; None if it is not known.

        Args:
            data_dependent: Whether the number may depend on the data of tensors.
            static: Whether it may be a Python number.
        """
        start, step = self.start(), self.step()
        if type(step) is not int or step * self.sign >= 0 or not is_number(start):
            return None
        if not all(isinstance(value, torch.Tensor) for value in self.sized()):
            return None
        smaller, larger = self.sides(start)
        gap: Any = integer(larger - smaller) if data_dependent else larger - smaller
        if not (is_dynamic_size(gap) or (static and type(gap) is int)) or (is_symbolic(gap) and not data_dependent):
            return None
        if self.is_inclusive:
            gap = gap + 1
        return gap if abs(step) == 1 else (gap + abs(step) - 1) // abs(step)
