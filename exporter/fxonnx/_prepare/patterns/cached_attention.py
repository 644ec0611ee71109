"""Match attention over the keys and values of a cache, fused or decomposed."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from .cached_masks import CausalMask, causal_mask, size_expression
from .grouped_attention import repeated_source
from .matching import CASTS, VIEWS, as_call, dims_of, dtype_of, known_number

__all__ = ["CachedAttention", "match_attention"]

aten = torch.ops.aten

_MATMULS = (aten.matmul.default, aten.bmm.default)


@dataclass(frozen=True)
class CachedAttention:
    """Causal attention over cached keys and values.

    Attributes:
        end: Its result, [batch, heads, length, size].
        query: Queries, [batch, heads, length, size].
        key: New keys, [batch, groups, length, size].
        value: New values.
        presents: The keys and values with the cache before them, as the graph returns them.
        pasts: The cached keys and values, inputs of the graph.
        past_size: The number of cached keys.
        mask: The proved mask.
        scale: Factor of the scores.
        softcap: Limit of the scores' absolute value; 0.0 if there is none.
        sinks: A logit for each head that takes part in the softmax and attends to nothing; None without.
    """

    end: torch.fx.Node
    query: torch.fx.Node
    key: torch.fx.Node
    value: torch.fx.Node
    presents: tuple[torch.fx.Node, torch.fx.Node]
    pasts: tuple[torch.fx.Node, torch.fx.Node]
    past_size: sympy.Expr
    mask: CausalMask
    scale: float
    softcap: float = 0.0
    sinks: torch.fx.Node | None = None


@dataclass(frozen=True)
class _Scores:
    query: torch.fx.Node
    key: torch.fx.Node
    mask: Any
    scale: float
    softcap: float = 0.0
    sinks: torch.fx.Node | None = None


def match_attention(node: torch.fx.Node) -> CachedAttention | None:
    """Match an attention by its last node; None if it has no cache or its mask is not proved."""
    if node.target is aten.scaled_dot_product_attention.default:
        scores, value = _fused_scores(node), node.args[2]
    elif node.target in _MATMULS:
        scores, value = _scores_of(node.args[0]), node.args[1]
    else:
        return None
    if scores is None:
        return None
    joined: list[Any] = [repeated_source(operand, scores.query) or operand for operand in (scores.key, value)]
    parts = [_with_past(operand) for operand in joined]
    if parts[0] is None or parts[1] is None:
        return None
    (past_key, key), (past_value, value) = parts[0], parts[1]
    past = size_expression(past_key.meta["val"].shape[2])
    if past is None or not past.free_symbols or past != size_expression(past_value.meta["val"].shape[2]):
        return None
    mask = causal_mask(scores.mask, past)
    if mask is None:
        return None
    found = CachedAttention(
        node,
        scores.query,
        key,
        value,
        presents=(joined[0], joined[1]),
        pasts=(past_key, past_value),
        past_size=past,
        mask=mask,
        scale=scores.scale,
        softcap=scores.softcap,
        sinks=scores.sinks,
    )
    return found if _fits(found) else None


def _fits(found: CachedAttention) -> bool:
    """Whether the operands have 4 axes, static heads and sizes that the kernels accept, and one dtype."""
    query, key, value = (dims_of(operand) for operand in (found.query, found.key, found.value))
    if query is None or key is None or value is None or {len(query), len(key), len(value)} != {4}:
        return False
    static = [query[1], query[3], key[1], key[3]]
    if not all(isinstance(size, int) for size in static) or list(map(str, key)) != list(map(str, value)):
        return False
    if query[1] % key[1] or query[3] != key[3] or query[3] % 8:
        return False
    padding = dims_of(found.mask.padding)
    same = [str(query[0]), str(query[2])] == [str(key[0]), str(key[2])]
    operands = (found.query, found.key, found.value, *found.pasts)
    one_dtype = {dtype_of(operand) for operand in operands} == {dtype_of(found.end)}
    return same and one_dtype and padding is not None and str(padding[0]) == str(query[0])


def _fused_scores(node: torch.fx.Node) -> _Scores | None:
    names = ("attn_mask", "dropout_p", "is_causal")
    options: dict[str, Any] = {**dict(zip(names, node.args[3:], strict=False)), **node.kwargs}
    if options.get("dropout_p") or options.get("is_causal"):
        return None
    query: Any = node.args[0]
    dims = dims_of(query)
    if dims is None or len(dims) != 4 or not isinstance(dims[3], int):
        return None
    scale = known_number(options.get("scale") or 1 / math.sqrt(dims[3]))
    return None if scale is None else _Scores(query, node.args[1], options.get("attn_mask"), scale)  # type: ignore[arg-type]


def _scores_of(weights: Any) -> _Scores | None:
    """Match decomposed attention weights, with a softcap and sinks."""
    node = _without_casts(weights)
    cut = as_call(node, aten.slice.Tensor)
    if cut is not None:
        if cut.args[1] not in (3, -1) or list(cut.args[2:4]) != [0, -1] or (*cut.args[4:], 1)[0] != 1:
            return None
        node = _without_casts(cut.args[0])
    softmax = as_call(node, aten.softmax.int)
    if softmax is None or softmax.args[1] not in (-1, 3):
        return None
    scores, sinks = _without_casts(softmax.args[0]), None
    if cut is not None:
        parts = _with_sinks(scores)
        if parts is None:
            return None
        scores, sinks = parts
    total = as_call(scores, aten.add.Tensor)
    if total is None or total.kwargs:
        return None
    for inner, mask in (total.args, total.args[::-1]):
        found = _products(inner)
        if found is not None:
            return _Scores(found[0], found[1], mask, found[2], found[3], sinks)
    return None


def _with_sinks(scores: Any) -> tuple[Any, torch.fx.Node] | None:
    """Match ``cat([scores, sinks], -1)``, also minus its maximum; returns the scores and the sinks of the heads."""
    shifted = as_call(scores, aten.sub.Tensor)
    joined = as_call(scores if shifted is None else shifted.args[0], aten.cat.default)
    if joined is None or (*joined.args[1:], 0)[0] not in (-1, 3):
        return None
    if shifted is not None and not _is_maximum(shifted.args[1], joined):
        return None
    pieces: Any = joined.args[0]
    if len(pieces) != 2:
        return None
    wide = _without_casts(pieces[1])
    expanded = as_call(wide, aten.expand.default)
    view = as_call(wide if expanded is None else expanded.args[0], *VIEWS)
    source: Any = None if view is None else view.args[0]
    heads = dims_of(pieces[0])
    if view is None or heads is None or dims_of(source) != (heads[1],):
        return None
    return (pieces[0], source) if list(map(str, dims_of(view) or ())) == ["1", str(heads[1]), "1", "1"] else None


def _is_maximum(node: Any, of: torch.fx.Node) -> bool:
    item = as_call(node, operator.getitem)
    found = as_call(node if item is None else item.args[0], aten.max.dim, aten.amax.default)
    return found is not None and found.args[0] is of and (item is None or item.args[1] in (0,))


def _products(node: Any) -> tuple[torch.fx.Node, torch.fx.Node, float, float] | None:
    """Match scaled scores within a softcap; returns query, key, scale and softcap."""
    softcap, scale = 0.0, 1.0
    capped = as_call(node, aten.mul.Tensor)
    bounded = None if capped is None else as_call(capped.args[0], aten.tanh.default)
    if capped is not None and bounded is not None:
        divided = as_call(bounded.args[0], aten.div.Tensor)
        limit = known_number(capped.args[1])
        if divided is None or limit is None or limit <= 0 or known_number(divided.args[1]) != limit:
            return None
        softcap, node = limit, divided.args[0]
    scaled = as_call(node, aten.mul.Tensor, aten.div.Tensor)
    if scaled is not None:
        factor = known_number(scaled.args[1])
        if not factor:
            return None
        scale, node = factor if scaled.target is aten.mul.Tensor else 1 / factor, scaled.args[0]
    product = as_call(node, *_MATMULS)
    turned = None if product is None else as_call(product.args[1], aten.transpose.int, aten.mT.default)
    if product is None or turned is None or len(dims_of(turned) or ()) != 4:
        return None
    if turned.target is aten.transpose.int and {axis % 4 for axis in turned.args[1:]} != {2, 3}:  # type: ignore[operator]
        return None
    return product.args[0], turned.args[0], scale, softcap  # type: ignore[return-value]


def _without_casts(node: Any) -> Any:
    """The source of casts between floating-point dtypes, of which attention weights have several."""
    while (cast := as_call(node, *CASTS)) is not None and dtype_of(cast) is not None:
        source = dtype_of(cast.args[0])
        if source is None or not source.is_floating_point or not dtype_of(cast).is_floating_point:  # type: ignore[union-attr]
            break
        node = cast.args[0]
    return node


def _with_past(node: Any) -> tuple[torch.fx.Node, torch.fx.Node] | None:
    """Match new keys or values with an input of the graph concatenated before them; returns the input and them."""
    joined = as_call(node, aten.cat.default)
    pieces: Any = () if joined is None else joined.args[0]
    if joined is None or len(pieces) != 2 or (*joined.args[1:], 0)[0] not in (2, -2):
        return None
    past, new = pieces
    dims = dims_of(past)
    is_cache = past.op == "placeholder" and dims is not None and len(dims) == 4 and len(dims_of(new) or ()) == 4
    return (past, new) if is_cache else None
