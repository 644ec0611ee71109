"""The matches and near misses of one fusion pattern."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

__all__ = ["Matches", "Mismatch", "check_uses"]

_Match = TypeVar("_Match")


class Mismatch(Exception):
    """Raised by a matcher: the subgraph is not the pattern. The message is one sentence for the user."""


class Matches:
    """The result of applying a fusion pattern to a graph.

    Attributes:
        fused: The nodes that replaced a match, in order.
        missed: Anchors of subgraphs that nearly match, with the reason why they do not.
    """

    def __init__(self) -> None:
        self.fused: list[torch.fx.Node] = []
        self.missed: dict[torch.fx.Node, str] = {}

    def replace(self, end: torch.fx.Node, fused: torch.fx.Node) -> None:
        """Replace the end of a match by an operator, which is recorded."""
        end.replace_all_uses_with(fused)
        self.fused.append(fused)

    def attempt(
        self,
        anchor: torch.fx.Node,
        match: Callable[[torch.fx.Node], _Match],
        is_near: Callable[[torch.fx.Node], bool] = lambda anchor: True,
    ) -> _Match | None:
        """Call a matcher.

        Args:
            anchor: The node at which the pattern begins.
            match: The matcher, which raises ``Mismatch`` for other subgraphs.
            is_near: Whether a mismatch is a near miss; called after a mismatch only.

        Returns:
            The result of the matcher; None after a mismatch.
        """
        try:
            return match(anchor)
        except Mismatch as mismatch:
            if anchor.users and is_near(anchor):
                self.missed[anchor] = str(mismatch)
            return None


def check_uses(node: torch.fx.Node, name: str) -> None:
    """Check that a node has exactly one user.

    Args:
        node: An inner node of a pattern.
        name: Its meaning, for the reason: "the scores".

    Raises:
        Mismatch: If it has none or several.
    """
    if len(node.users) != 1:
        raise Mismatch(f"another operator uses {name}")
