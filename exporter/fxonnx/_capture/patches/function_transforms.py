"""``torch.func`` in forward: ``grad``, ``vjp``, ``jvp``, ``jacrev``, ``jacfwd``, ``hessian``, and ``vmap`` of them.

torch.export records operators above autograd and functorch, where the derivatives are not computed yet. The outermost
transform of a forward is traced below them instead, into a graph of plain operators, which is then called.
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
    """A derivative inside of ``vmap``: the vmap has to be traced as a whole."""


@contextmanager
def closed_transforms(*, whole_vmaps: bool) -> Iterator[None]:
    """After the body no transform is left open, even if it fails within one.

    Args:
        whole_vmaps: Whether the outermost ``vmap`` is traced below functorch as well. Otherwise torch.export records
            its calls on single samples, and a derivative inside of it raises NestedTransform.
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
    """``grad_and_value_impl`` and ``_jvp_with_argnums``, recorded as plain operators."""
    return _record(original, args, kwargs)


def vmap(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``vmap_impl``: recorded by torch.export itself, or as plain operators where there are derivatives inside."""
    return _record(original, args, kwargs) if _whole_vmaps.get() else original(*args, **kwargs)


def vector_jacobian_product(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``_vjp_with_argnums``: the function that it returns runs the forward again, and CSE shares the results."""
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
    """Runs a transform; while torch.export records, as the graph of operators that it consists of.

    Raises:
        NestedTransform: If torch.export is recording the calls of a vmap around.
    """
    mode = recording_mode()
    if mode is None:
        return transform(*args, **kwargs)
    if functorch.peek_interpreter_stack() is not None:
        raise NestedTransform
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = [at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    # Sizes that the function has from elsewhere are expressions in these.
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
