"""The matches and near misses of one fusion pattern."""

from __future__ import annotations

import torch

__all__ = ["Matches"]


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
