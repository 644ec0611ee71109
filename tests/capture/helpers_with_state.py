"""Functions that keep state in variables of their own file, which models of another file call."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

__all__ = ["BOX", "NOTES", "Box", "adds_the_last", "appends", "counts"]

NOTES: list[int] = []
COUNT = 0


class Box:
    made: ClassVar[int] = 0

    def __init__(self) -> None:
        self.value: Any = 0

    def put(self, value: torch.Tensor) -> None:
        self.value = value

    @classmethod
    def numbered(cls, x: torch.Tensor) -> torch.Tensor:
        cls.made += 1
        return x * cls.made


BOX = Box()


def appends(x: torch.Tensor) -> torch.Tensor:
    NOTES.append(1)
    return x * len(NOTES)


def adds_the_last(x: torch.Tensor) -> torch.Tensor:
    last = BOX.value
    BOX.put(x)
    return x + last


def counts(x: torch.Tensor) -> torch.Tensor:
    global COUNT  # noqa: PLW0603 - the statement is the case
    COUNT += 1
    return x * COUNT
