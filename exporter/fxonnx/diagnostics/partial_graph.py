"""The part of the graph that a failed capture had traced."""

from __future__ import annotations

import traceback

import torch

__all__ = ["partial_graph"]


def partial_graph(error: BaseException) -> str:
    """The text of the graph that torch.export had traced when an error was raised, "" if tracing had not begun.

    torch.export drops its graph when it fails, but the frames of the traceback still refer to the tracer.

    Args:
        error: The error; its causes are searched as well, the last one first.
    """
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    for one in reversed(chain):
        for frame, _ in traceback.walk_tb(one.__traceback__):
            for value in frame.f_locals.values():
                graph = getattr(value, "graph", None) if isinstance(value, torch.fx.Tracer) else None
                if isinstance(graph, torch.fx.Graph) and len(graph.nodes):
                    return str(graph)
    return ""
