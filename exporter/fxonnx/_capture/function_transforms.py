"""Capture of ``torch.func`` transforms: ``grad``, ``vjp``, ``jvp``, ``jacrev``, ``jacfwd``, ``hessian``, ``vmap``.

torch.export records operators above autograd and functorch, where derivatives are not computed yet. The outermost
transform in forward is therefore traced below them with make_fx, and the resulting graph of plain operators is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    make_fx,
)

from fxonnx_translations._torch_compat import exit_dual_level, functorch, pytree, recording_mode, recording_mode_off

__all__ = ["NestedTransform", "closed_transforms", "derivative", "vector_jacobian_product", "vmap"]

_whole_vmaps: ContextVar[bool] = ContextVar("fxonnx_whole_vmaps", default=False)


class NestedTransform(Exception):
    """Signal that a ``vmap`` contains a derivative and must be traced as a whole."""


@contextmanager
def closed_transforms(*, whole_vmaps: bool) -> Iterator[None]:
    """Unwind functorch's stack of transforms on exit, including exit by an exception.

    Args:
        whole_vmaps: Trace the outermost ``vmap`` below functorch as well. Otherwise torch.export records its calls on
            single samples, and a derivative inside of it raises NestedTransform.
    """
    depth, level = len(functorch.get_interpreter_stack() or ()), forward_ad._current_level
    token = _whole_vmaps.set(whole_vmaps)
    try:
        yield
    finally:
        _whole_vmaps.reset(token)
        functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        while forward_ad._current_level > level:
            exit_dual_level(level=forward_ad._current_level)
            forward_ad._current_level -= 1


def derivative(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Replacement of ``grad_and_value_impl`` and ``_jvp_with_argnums``: record plain operators."""
    return _record(original, args, kwargs)


def vmap(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Replacement of ``vmap_impl``: leave it to torch.export, or record plain operators with ``whole_vmaps``."""
    return _record(original, args, kwargs) if _whole_vmaps.get() else original(*args, **kwargs)


def vector_jacobian_product(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Replacement of ``_vjp_with_argnums``; the returned function runs the forward again, which CSE removes."""
    if recording_mode() is None:
        return original(*args, **kwargs)

    def results(*args: Any, **kwargs: Any) -> Any:
        value, _, *auxiliary = original(*args, **kwargs)
        return value, *auxiliary

    def pulled_back(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        def pull(cotangents: Any, *args: Any) -> Any:
            return original(*args, **kwargs)[1](cotangents, create_graph=create_graph)

        return _record(pull, (cotangents, *args), {})

    value, *auxiliary = _record(results, args, kwargs)
    return value, pulled_back, *auxiliary


def _record(transform: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a transform; during an export, trace it to a graph of plain operators and call that.

    Raises:
        NestedTransform: If the transform is inside of a vmap that torch.export records.
    """
    mode = recording_mode()
    if mode is None:
        return transform(*args, **kwargs)
    if functorch.peek_interpreter_stack() is not None:
        raise NestedTransform
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = [at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    # Sizes that the function closes over are expressions in these symbols.
    symbols = [known.value for expr, known in mode.tracer.sympy_expr_tracker.items() if expr.is_Symbol]
    returned: list[Any] = []

    def flat(values: list[torch.Tensor], _symbols: list[torch.SymInt]) -> list[Any]:
        given = list(leaves)
        for at, value in zip(tensors, values, strict=True):
            given[at] = value
        args, kwargs = pytree.tree_unflatten(given, spec)
        results, results_spec = pytree.tree_flatten(transform(*args, **kwargs))
        returned.append(results_spec)
        return results

    inputs = [leaves[at] for at in tensors]
    with recording_mode_off(), disable_proxy_modes_tracing():
        graph = make_fx(flat, _disable_torch_fn_metadata_mode=True)(inputs, symbols)
    return pytree.tree_unflatten(graph(inputs, symbols), returned[-1])
