"""Coverage of the branches and loops of a captured program by the runs of a proof."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..._capture import Assumption
from ..._provenance import source_line
from .record import unproved

__all__ = ["Coverage"]


@dataclass
class Coverage:
    """The branches and loops of a captured program, with the numbers of their calls in each run.

    Args:
        module: The module of the captured program.
    """

    module: torch.fx.GraphModule
    _runs: list[Mapping[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._branches: dict[str, Assumption] = {}
        self._loops: dict[str, Assumption] = {}
        for path, node in _control_flow(self.module):
            names = [f"{path}{argument.target}" for argument in node.all_input_nodes if argument.op == "get_attr"]
            if node.target is torch.ops.higher_order.cond:
                for name, value in zip(names, ("true", "false"), strict=False):
                    self._branches[name] = unproved(self._line(name, node), f"the branch for {value}")
            else:
                self._loops[names[1]] = unproved(self._line(names[1], node), "a different number of iterations")

    def _line(self, name: str, node: torch.fx.Node) -> str:
        """The first line of a subgraph, or of its operator if the subgraph is empty."""
        graph: Any = self.module.get_submodule(name).graph
        traced = [one for one in graph.nodes if one.op == "call_function" and one.meta.get("stack_trace")]
        return source_line(traced[0] if traced else node)

    def add(self, calls: Mapping[str, int]) -> None:
        """Add the calls of one run, by path of the subgraph."""
        self._runs.append(dict(calls))

    def missing(self) -> tuple[Assumption, ...]:
        """The branches that no run has taken, and the loops with the same number of iterations in all runs."""
        branches = [part for name, part in self._branches.items() if not any(run.get(name) for run in self._runs)]
        loops = [part for name, part in self._loops.items() if len({run.get(name, 0) for run in self._runs}) < 2]
        return tuple(dict.fromkeys([*branches, *loops]))


def _control_flow(module: torch.fx.GraphModule) -> Iterator[tuple[str, torch.fx.Node]]:
    """The nodes of ``cond`` and ``while_loop``, also inside of subgraphs, with the path of the graph."""
    operators = (torch.ops.higher_order.cond, torch.ops.higher_order.while_loop)
    for name, part in module.named_modules():
        if isinstance(part, torch.fx.GraphModule):
            path = f"{name}." if name else ""
            yield from ((path, node) for node in part.graph.nodes if node.target in operators)
