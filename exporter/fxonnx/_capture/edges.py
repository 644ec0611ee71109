"""Edges: single sizes at which a model takes another branch, where the branch for all other sizes may compute the same.

``if pad > 0: x = F.pad(x, (0, pad))`` skips a padding by nothing, and ``if x.shape != skip.shape`` an interpolation to
the same size. With the answer for the other sizes, the captured program may be right at all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import sympy
from torch.fx.experimental.sym_node import SymNode

from fxonnx_translations._torch_compat import ValueRanges, bound_sympy, int_oo

from .._user_files import is_user_frame
from .constraints.guard_recorder import GuardLog, user_line
from .data_dependence.checks import answer_at
from .evaluating_code import Asking, evaluating_frame
from .patches.patch import Patch, applied

__all__ = ["answered_beside_edges", "edge_of", "has_edges"]


def has_edges(conditions: Mapping[sympy.Basic, Asking]) -> bool:
    """Whether conditions of a model, with sizes as symbols, have edges, and are no checks.

    Args:
        conditions: The conditions with their places.
    """
    return any(
        edge_of(condition, dict.fromkeys(condition.free_symbols, ValueRanges(1, int_oo))) and answer_at(asking) is None
        for condition, asking in conditions.items()
    )


@contextmanager
def answered_beside_edges(kept: Collection[str] | None, log: GuardLog) -> Iterator[None]:
    """Answer the conditions of a model on sizes as for the sizes beside their edges, whatever the size of the example.

    Args:
        kept: The lines whose conditions are answered for the example; None for all lines.
        log: Receives the conditions that the answers assume.
    """
    if kept is None:
        context: Any = nullcontext()
    else:
        patch = Patch(
            "torch.fx.experimental.sym_node:SymNode.guard_bool",
            partial(_guard_bool, kept, log),
            "a model branches on single sizes",
        )
        context = applied((patch,))
    with context:
        yield


def _guard_bool(
    kept: Collection[str], log: GuardLog, original: Callable[..., bool], self: SymNode, file: str, line: int
) -> bool:
    """``SymNode.guard_bool``, which a model calls in ``if x.shape[0] % 8 != 0``."""
    frame = evaluating_frame(sys._getframe(1))
    if frame is None or not is_user_frame(frame):
        return original(self, file, line)
    condition, environment = self.expr, self.shape_env
    symbols = condition.free_symbols
    if environment is None or not symbols or not symbols <= environment.backed_var_to_val.keys():
        return original(self, file, line)
    edge = edge_of(condition, {symbol: environment.var_to_range[symbol] for symbol in symbols})
    if edge is None or environment._maybe_evaluate_static(condition) is not None:
        return original(self, file, line)
    assumed, answer = edge
    place = user_line(frame)
    # A check of the sizes does not choose between computations.
    if str(place) in kept or answer_at(frame) is not None:
        return original(self, file, line)
    log.edges.setdefault(assumed, place)
    return answer


def edge_of(condition: sympy.Basic, ranges: Mapping[sympy.Symbol, Any]) -> tuple[sympy.Basic, bool] | None:
    """The sizes beside the edge of a condition as a relation, and the answer there; None without an edge."""
    if not isinstance(condition, sympy.Rel) or not all(side.is_integer for side in condition.args):
        return None
    if isinstance(condition, sympy.Eq | sympy.Ne):
        return sympy.Ne(*condition.args), isinstance(condition, sympy.Ne)
    # The condition is that a number is positive.
    number = condition.gts - condition.lts + (0 if isinstance(condition, sympy.Gt | sympy.Lt) else 1)
    bounds = bound_sympy(number, dict(ranges))
    if bounds.lower == 0:
        return sympy.Ne(number, 0), True
    return (sympy.Ne(1 - number, 0), False) if bounds.upper == 1 else None
