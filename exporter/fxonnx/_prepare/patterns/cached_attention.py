"""Match attention over the keys and values of a cache, fused or decomposed."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

import sympy
import torch

from .cached_masks import CausalMask, causal_mask, size_expression
from .formula import Formula
from .grouped_attention import repeated_source
from .matching import CASTS, FLOATS, as_call, dims_of, dtype_of, known_number, value_of
from .terms import Match, Number, Tensor, Term, Value, either, op, transposed, view_of

__all__ = ["CachedAttention", "match_attention"]

aten = torch.ops.aten

_LAST = either(-1, 3)


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


def _fused(query: Tensor, key: Tensor, value: Tensor, mask: Value, scale: Value) -> Term:
    return op.scaled_dot_product_attention(query, key, value, mask, 0.0, False, scale=scale).loose()


def _decomposed(
    query: Tensor, key: Tensor, value: Tensor, mask: Value, sinks: Tensor,
    scale: Number, divisor: Number, softcap: Number,
) -> Term:  # fmt: skip
    product = query @ either(transposed(key, 2, 3), op.mT(key)).when(lambda node: len(dims_of(node) or ()) == 4)
    scaled = either(product * scale, product / divisor, product)
    scores = either(op.tanh(scaled / softcap) * softcap, scaled) + mask
    wide = view_of(sinks).named("wide sinks")
    joined = op.cat([scores.named("scores"), either(op.expand(wide).loose(), wide)], _LAST)
    maximum = either(op(operator.getitem)(op.max(joined).loose(), 0), op.amax(joined).loose())
    with_sinks = op.softmax(either(joined, joined - maximum), _LAST).loose()
    return either(op.softmax(scores, _LAST).loose(), op.slice(with_sinks, _LAST, 0, -1)) @ value


def _is_float_cast(node: torch.fx.Node) -> bool:
    """Whether a node is a cast between floating-point dtypes, of which attention weights have several."""
    cast = as_call(node, *CASTS)
    return cast is not None and dtype_of(cast) in FLOATS and dtype_of(cast.args[0]) in FLOATS


def _is_scaled(match: Match) -> bool:
    return match.value("scale") != 0 and match.value("divisor") != 0 and (match.value("softcap") or 1) > 0


def _have_heads(match: Match) -> bool:
    """Whether the sinks, if there are any, are a number for each head."""
    if match.value("sinks") is None:
        return True
    heads = str(value_of(match.node("scores")).shape[1])
    shapes = [list(map(str, value_of(match.node(name)).shape)) for name in ("sinks", "wide sinks")]
    return shapes == [[heads], ["1", heads, "1", "1"]]


_FUSED = Formula(_fused)
_DECOMPOSED = Formula(_decomposed, _is_scaled, _have_heads, passes=_is_float_cast)


def match_attention(node: torch.fx.Node) -> CachedAttention | None:
    """Match an attention by its last node; None if it has no cache or its mask is not proved."""
    is_fused = node.target is aten.scaled_dot_product_attention.default
    if not is_fused and node.target not in (aten.matmul.default, aten.bmm.default):
        return None
    match = (_FUSED if is_fused else _DECOMPOSED).at(node)
    scale = None if match is None else _scale(match)
    if match is None or scale is None:
        return None
    query, sinks = match.node("query"), None if is_fused else match.value("sinks")
    presents = [repeated_source(match.node(name), query) or match.node(name) for name in ("key", "value")]
    parts = [_with_past(present) for present in presents]
    if parts[0] is None or parts[1] is None:
        return None
    (past_key, key), (past_value, value) = parts[0], parts[1]
    past = size_expression(value_of(past_key).shape[2])
    if past is None or not past.free_symbols or past != size_expression(value_of(past_value).shape[2]):
        return None
    mask = causal_mask(match.value("mask"), past)
    if mask is None:
        return None
    found = CachedAttention(
        node,
        query,
        key,
        value,
        presents=(presents[0], presents[1]),
        pasts=(past_key, past_value),
        past_size=past,
        mask=mask,
        scale=scale,
        softcap=0.0 if is_fused else float(match.value("softcap") or 0.0),
        sinks=sinks,
    )
    return found if _fits(found) else None


def _scale(match: Match) -> float | None:
    """The factor of the scores; None if the default one is not known."""
    if match.end.target is not aten.scaled_dot_product_attention.default:
        divisor = match.value("divisor")
        return 1 / divisor if divisor is not None else float(match.value("scale") or 1.0)
    dims = dims_of(match.node("query")) or ()
    if len(dims) != 4 or not isinstance(dims[3], int):
        return None
    return known_number(match.value("scale") or 1 / math.sqrt(dims[3]))


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


def _with_past(node: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node] | None:
    """Match new keys or values with an input of the graph concatenated before them; returns the input and them."""
    match = _JOINED.at(node)
    return None if match is None else (match.node("past"), match.node("new"))


def _joined(past: Tensor, new: Tensor) -> Term:
    return op.cat([past, new], either(2, -2))


_JOINED = Formula(
    _joined,
    lambda match: match.node("past").op == "placeholder",
    lambda match: all(len(dims_of(match.node(name)) or ()) == 4 for name in ("past", "new")),
)
