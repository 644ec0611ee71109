"""Random numbers after ``torch.manual_seed`` in forward: the same in every run, so that they are constants.

Generators of the model are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from fxonnx_translations._torch_compat import DisableTorchFunction, OpOverload, no_dispatch, pytree

from ..._context_values import activated, active
from ..._warnings import warn_user
from ...errors import CaptureError
from ..constraints.guard_recorder import line_of_node

__all__ = ["draw", "draw_at_run_time", "manual_seed", "reject_generators", "unseeded"]


@dataclass
class _Seed:
    """The seed that forward has set, if any.

    Attributes:
        patches: Applies ``draw``. TorchDynamo cannot trace it in the subgraphs of models without a seed.
        generator: The generator of the numbers that follow; None if they are not known.
    """

    patches: Callable[[], AbstractContextManager[None]]
    stack: ExitStack
    generator: torch.Generator | None = None
    is_patched: bool = False


@contextmanager
def unseeded(patches: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Inside the context, random numbers are drawn at run time until forward sets a seed."""
    with ExitStack() as stack, activated(_Seed(patches, stack)):
        yield


def manual_seed(original: Callable[..., torch.Generator], seed: Any) -> torch.Generator:
    """``torch.manual_seed`` in forward: seed the generator of the capture instead of the process'."""
    state = active(_Seed)
    if state is not None:
        is_known = isinstance(seed, int) and not isinstance(seed, bool)
        state.generator = torch.Generator().manual_seed(seed) if is_known else None
        if not state.is_patched:
            state.is_patched = True
            state.stack.enter_context(state.patches())
    return torch.default_generator


def reject_generators(program: ExportedProgram) -> None:
    """Refuse operators that draw from a generator of the model, which an ONNX model cannot do.

    Raises:
        CaptureError: If there are any.
    """
    for node in program.graph.nodes:
        if isinstance(node.target, OpOverload) and node.kwargs.get("generator") is not None:
            line, name = line_of_node(node), node.target._schema.name.removeprefix("aten::")
            raise CaptureError(
                f"forward draws the numbers of {name} from a torch.Generator, and an ONNX model has its own generators"
                + ("" if line is None else f"\n  at: {line}"),
                hint="omit generator=; for numbers that are the same in every call, draw them in __init__ and keep "
                "them with register_buffer",
            )


def draw(original: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """``torch.randn`` and similar functions: after a seed, the numbers that torch draws, as a constant."""
    state = active(_Seed)
    generator = None if state is None else state.generator
    if state is None or generator is None or kwargs.get("generator") is not None:
        return original(*args, **kwargs)
    leaves = pytree.tree_leaves((args, kwargs))
    device = torch.device(kwargs.get("device") or "cpu")
    if device.type != "cpu" or any(isinstance(leaf, Tensor | torch.SymInt | torch.SymFloat) for leaf in leaves):
        return draw_at_run_time(original, *args, **kwargs)
    with no_dispatch(), DisableTorchFunction():
        numbers = original(*args, **{**kwargs, "device": device, "generator": generator})
    # Traced as a copy, because forward may write to it.
    return numbers.clone()


def draw_at_run_time(original: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """Random functions whose numbers are not constants. Numbers after them would be other ones than torch's."""
    state = active(_Seed)
    if state is not None and state.generator is not None and kwargs.get("generator") is None:
        state.generator = None
        warn_user(
            f"forward calls torch.manual_seed, but the numbers of {original.__name__} are not constants, because it "
            "fills a tensor, or its arguments are dynamic or on a device other than the CPU: the model draws other "
            "random numbers than torch, which differ between runs",
        )
    return original(*args, **kwargs)
