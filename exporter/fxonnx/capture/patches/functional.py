"""Functions of torch in a form that holds for every size, where their own form holds for the example's.

Arguments that C++ takes as plain integers make numbers of dynamic sizes; Python code that compares the values of
tensors cannot be traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["GLOBAL_POOLING", "causality", "gaussian_nll_loss", "linspace"]

_arange: Callable[..., Any] = torch.arange  # not for symbolic sizes, by torch's types
_larger: Callable[..., Any] = torch.sym_max  # without types in torch


def linspace(original: Callable[..., Any], start: Any, end: Any, steps: Any, **options: Any) -> Tensor:
    """``torch.linspace`` with a dynamic number of steps: symmetric, as torch computes it."""
    dtype = options.get("dtype") or torch.get_default_dtype()
    if not isinstance(steps, torch.SymInt) or not dtype.is_floating_point or options.get("out") is not None:
        return original(start, end, steps, **options)  # type: ignore[no-any-return]
    computed = torch.float64 if dtype == torch.float64 else torch.float32
    index: Tensor = _arange(steps, dtype=computed, device=options.get("device"))
    share = index / _larger(steps - 1, 1)
    # The larger part is computed from the end, so that both ends are exact; a single step is the start.
    from_start = index < _larger(steps // 2, 2 - steps)
    result = torch.where(from_start, start + (end - start) * share, end - (end - start) * share.flip(0))
    return result.to(dtype)


def _global_pooling(pooled: Callable[..., Tensor], rank: int) -> Callable[..., Any]:
    """The replacement of a function that pools over windows, for windows as large as the input.

    Args:
        pooled: Pools everything into one element per channel: ``adaptive_avg_pool2d`` ...
        rank: How many axes are pooled over.
    """

    def replacement(original: Callable[..., Any], input: Tensor, kernel_size: Any, *args: Any, **options: Any) -> Any:
        default = not args and all(value in (None, False, 0, True) for value in options.values())
        plain = default and not options.keys() & {"return_indices", "divisor_override", "stride", "padding"}
        if plain and _covers(kernel_size, input.shape[-rank:]):
            return pooled(input, 1)
        return original(input, kernel_size, *args, **options)

    return replacement


def _covers(kernel_size: Any, sizes: Sequence[int | torch.SymInt]) -> bool:
    """Whether a kernel with a dynamic size is as large as the input at every size, which asks for no guard."""
    kernel = tuple(kernel_size) if isinstance(kernel_size, Sequence) else (kernel_size,) * len(sizes)
    if len(kernel) != len(sizes) or not any(isinstance(size, torch.SymInt) for size in kernel):
        return False
    return all(_expression(one) == _expression(other) for one, other in zip(kernel, sizes, strict=True))


def _expression(size: int | torch.SymInt) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


GLOBAL_POOLING = tuple(
    (f"{kind}_pool{rank}d", _global_pooling(getattr(F, f"adaptive_{kind}_pool{rank}d"), rank))
    for kind in ("avg", "max")
    for rank in (1, 2, 3)
)
"""Name in ``torch.nn.functional`` to its replacement."""


def causality(
    original: Callable[..., bool], mask: Tensor | None, is_causal: bool | None = None, size: int | None = None
) -> bool:
    """Whether a mask counts as causal in ``nn.TransformerEncoder`` and ``nn.TransformerDecoder``.

    torch compares its values with those of a causal mask to choose a kernel, and the mask is applied either way.
    """
    return is_causal is True


def gaussian_nll_loss(
    original: Callable[..., Tensor],
    input: Tensor,
    target: Tensor,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """``F.gaussian_nll_loss`` without the question whether a variance is negative."""
    if not isinstance(var, Tensor) or reduction not in ("none", "mean", "sum"):
        return original(input, target, var, full=full, eps=eps, reduction=reduction)
    if var.dim() == input.dim() - 1:
        var = var.unsqueeze(-1)
    var = var.clamp(min=eps)
    loss: Tensor = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()
