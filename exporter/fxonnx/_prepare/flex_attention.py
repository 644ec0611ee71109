"""Rewrite ``flex_attention`` to plain operators: scaled dot product attention with a bias where its functions allow it.

``score_mod`` and ``mask_mod`` are graphs of 0-dim tensors: a score and its batch, head, query and key position. They
are evaluated for all positions at once by broadcasting, or with vmap if they index other tensors only in part.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fxonnx_translations._torch_compat import OpOverload, vmap_for_positions

from .._nodes import input_of
from .._provenance import copy_provenance, source_line
from ..errors import PrepareError
from .graph_utils import erase_unused, module_attribute, replace_node
from .sizes import known_size, same_size
from .tracing import TraceError, splice_trace, trace_call
from .vmap import vmap_regions

__all__ = ["drop_block_masks", "expand_flex_attention"]

aten = torch.ops.aten

_FLEX_ATTENTION = torch.ops.higher_order.flex_attention
_FLAT_APPLY = torch.ops.higher_order.flat_apply

# Functions of single elements without torch's tag for them.
_POINTWISE = frozenset(
    {"__and__", "__or__", "__xor__", "where", "floor_divide", "to", "_to_copy", "alias", "detach", "lift_fresh_copy"}
)


def drop_block_masks(graph: torch.fx.Graph) -> None:
    """Remove the tables of blocks from calls of ``flex_attention``, and the nodes that compute only them, in place.

    They select the blocks that a kernel computes; the result is determined by ``mask_mod``.
    """
    calls = graph.find_nodes(op="call_function", target=_FLEX_ATTENTION)
    for call in calls:
        *_, mask_mod = call.args[4]
        call.update_arg(4, (*[None] * (len(call.args[4]) - 1), mask_mod))
    if not calls:
        return
    regions = {region[-1]: region for region in vmap_regions(graph)}
    inside = {node for region in regions.values() for node in region}
    for node in reversed(graph.nodes):
        if node in regions:
            region = regions[node]
            if all(user in inside for member in region for user in member.users) and not _writes(region):
                for member in reversed(region):
                    graph.erase_node(member)
        elif node not in inside and not node.users and (node.target in _METADATA_CHECKS or _is_pure(node)):
            graph.erase_node(node)


_METADATA_CHECKS = frozenset({aten._assert_tensor_metadata.default})


def _is_pure(node: torch.fx.Node) -> bool:
    if node.op == "get_attr":
        return True
    target = node.target
    return node.op == "call_function" and (
        target is operator.getitem or (isinstance(target, OpOverload) and _returns_only(target))
    )


def _returns_only(target: Any) -> bool:
    return not target._schema.is_mutable and bool(target._schema.returns)


def _writes(region: Sequence[torch.fx.Node]) -> bool:
    """Whether a region writes to a tensor from outside; ``create_block_mask`` writes to one that it makes."""
    inside = set(region)
    return any(
        isinstance(node.target, OpOverload) and node.target._schema.is_mutable and node.args[0] not in inside
        for node in region
    )


@dataclass(frozen=True)
class _Function:
    """``score_mod`` or ``mask_mod``."""

    module: torch.fx.GraphModule

    @property
    def placeholders(self) -> list[torch.fx.Node]:
        """The score, only for ``score_mod``, the four positions and the captured tensors."""
        return list(self.module.graph.find_nodes(op="placeholder"))

    @property
    def result(self) -> Any:
        """The node that is returned."""
        returned: Any = self.module.graph.output_node().args[0]
        return returned[0] if isinstance(returned, (list, tuple)) else returned

    @property
    def is_elementwise(self) -> bool:
        """Whether it can be evaluated for all positions by broadcasting."""
        return all(_computes_one_element(node) for node in self.module.graph.nodes if node.op == "call_function")

    @property
    def is_always_true(self) -> bool:
        """Whether it returns a constant that is true, as torch's ``noop_mask`` does."""
        result = self.result
        return isinstance(result, torch.fx.Node) and result.target is aten.new_ones.default


def expand_flex_attention(owner: torch.fx.GraphModule) -> None:
    """Replace every ``flex_attention`` of a graph by plain operators, in place.

    Raises:
        PrepareError: If ``score_mod`` or ``mask_mod`` cannot be evaluated for symbolic sizes.
    """
    for call in owner.graph.find_nodes(op="call_function", target=_FLEX_ATTENTION):
        for item in [user for user in call.users if user.target is operator.getitem and not user.users]:
            owner.graph.erase_node(item)
        query, key, value, score_node, block_mask, scale, _options, score_buffers, mask_buffers = call.args
        score_mod = _Function(module_attribute(owner, score_node))
        mask_mod = _Function(module_attribute(owner, block_mask[-1]))
        only_output = all(user.target is operator.getitem and user.args[1] == 0 for user in call.users)
        call.args = (query, key, value, tuple(score_buffers), tuple(mask_buffers))
        call.kwargs = {}
        computation = _Attention(score_mod, mask_mod, scale, only_output)
        try:
            if computation.is_standard(query.meta["val"], key.meta["val"]):
                _replace_by_standard_attention(owner, call, computation)
            else:
                splice_trace(owner, call, _traced(call, computation.explicit, computation))
        except TraceError as error:
            raise PrepareError(
                f"the score_mod or mask_mod of flex_attention at {source_line(call)} cannot be computed for all "
                f"positions: {error}",
                hint="call torch.nn.functional.scaled_dot_product_attention with a mask",
            ) from error
        erase_unused([score_node, block_mask[-1]])


def _replace_by_standard_attention(owner: torch.fx.GraphModule, call: torch.fx.Node, computation: _Attention) -> None:
    """Replace a call by ``scaled_dot_product_attention`` with a mask that is computed before it."""
    query, key, value = (input_of(call, position) for position in range(3))
    (item,) = call.users
    with owner.graph.inserting_before(call):
        bias = None
        if computation.has_mask:
            bias = owner.graph.call_function(operator.getitem, (call, 0))
        options: dict[str, Any] = {"scale": computation.scale}
        if not same_size(query.meta["val"].shape[1], key.meta["val"].shape[1]):
            options["enable_gqa"] = True
        attention = owner.graph.call_function(
            aten.scaled_dot_product_attention.default, (query, key, value, bias), options
        )
    replace_node(item, attention, [attention])
    owner.graph.erase_node(item)
    if bias is None:
        owner.graph.erase_node(call)
        return
    call.append(bias)
    bias.append(attention)
    copy_provenance(bias, attention)
    splice_trace(owner, call, _traced(call, computation.mask, computation))


def _traced(call: torch.fx.Node, function: Callable[..., Any], computation: _Attention) -> torch.fx.GraphModule:
    # functorch cannot trace composite operators.
    plain = computation.score_mod.is_elementwise and computation.mask_mod.is_elementwise
    return trace_call(call, function, check=False, pre_dispatch=plain)


@dataclass(frozen=True)
class _Attention:
    """The computation of one call, by functions of its tensors."""

    score_mod: _Function
    mask_mod: _Function
    scale: float
    only_output: bool

    def is_standard(self, query: torch.Tensor, key: torch.Tensor) -> bool:
        """Whether it is standard attention with a bias and a mask."""
        if not self.only_output or type(key.shape[0]) is not type(query.shape[0]) or not self.adds_bias:
            return False
        if not isinstance(key.shape[0], torch.SymInt) and not same_size(key.shape[0], query.shape[0]):
            return False
        # torch adds the bias in single precision.
        return self.has_no_bias or query.dtype in (torch.float32, torch.float64)

    @property
    def has_no_bias(self) -> bool:
        """Whether ``score_mod`` returns the score."""
        return self.score_mod.result is self.score_mod.placeholders[0]

    @property
    def has_mask(self) -> bool:
        """Whether standard attention needs a mask, of bools or with a bias."""
        return not (self.has_no_bias and self.mask_mod.is_always_true)

    @property
    def adds_bias(self) -> bool:
        """Whether ``score_mod`` only adds terms to the score and subtracts terms from it."""
        node, result = self.score_mod.placeholders[0], self.score_mod.result
        while node is not result:
            if len(node.users) != 1:
                return False
            (user,) = node.users
            places = [position for position, argument in enumerate(user.args) if argument is node]
            limit = 2 if user.target is aten.add.Tensor else 1 if user.target is aten.sub.Tensor else 0
            if user.kwargs or len(places) != 1 or places[0] >= limit:
                return False
            node = user
        return True

    def mask(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        score_buffers: Sequence[torch.Tensor],
        mask_buffers: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        """The mask of standard attention: of bools, or the bias with -inf where ``mask_mod`` is false."""
        positions = _positions(query, key)
        visible = None if self.mask_mod.is_always_true else _evaluate(self.mask_mod, positions, mask_buffers)
        if self.has_no_bias and visible is not None:
            return [visible]
        nothing = torch.zeros((1, 1, 1, 1), dtype=query.dtype, device=query.device)
        bias = _evaluate(self.score_mod, [nothing, *positions], score_buffers).to(query.dtype)
        return [bias if visible is None else torch.where(visible, bias, -math.inf)]

    def explicit(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        score_buffers: Sequence[torch.Tensor],
        mask_buffers: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        """Attention as torch's own implementation writes it: output, logsumexp and maximum in base 2."""
        batch: Any = query.shape[0]
        if known_size(key.shape[0]) == 1 and not same_size(batch, 1):
            key, value = (x.expand(query.shape[0], *x.shape[1:]) for x in (key, value))
        positions = _positions(query, key)
        groups = query.shape[1] // key.shape[1]
        if groups != 1:
            key, value = (torch.repeat_interleave(x, groups, dim=1) for x in (key, value))
        dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        # A clone, which is dropped later: with transposed strides torch would guard on sizes of 1.
        transposed = key.to(dtype).transpose(-2, -1).clone(memory_format=torch.contiguous_format)
        scores = (query.to(dtype) @ transposed) * self.scale
        if not self.has_no_bias:
            scores = _evaluate(self.score_mod, [scores, *positions], score_buffers).to(dtype)
        if not self.mask_mod.is_always_true:
            scores = torch.where(_evaluate(self.mask_mod, positions, mask_buffers), scores, -math.inf)
        hidden = torch.all(scores == -math.inf, dim=-1, keepdim=True)
        weights = torch.where(hidden, 0.0, torch.softmax(scores, dim=-1)).to(query.dtype)
        out = weights @ value
        if self.only_output:
            return [out]
        total = torch.where(hidden.squeeze(-1), -math.inf, scores.logsumexp(dim=-1))
        return [out, total / math.log(2), torch.amax(scores, dim=-1) / math.log(2)]


def _positions(query: torch.Tensor, key: torch.Tensor) -> list[torch.Tensor]:
    """The index along each axis of the scores, with rank 4: broadcast against each other they enumerate the scores."""
    found = []
    for axis, size in enumerate((query.shape[0], query.shape[1], query.shape[2], key.shape[2])):
        shape: list[Any] = [1, 1, 1, 1]
        shape[axis] = size
        indices: torch.Tensor = torch.arange(size, device=query.device)
        found.append(indices.reshape(shape))
    return found


def _evaluate(function: _Function, scalars: Sequence[torch.Tensor], buffers: Sequence[torch.Tensor]) -> torch.Tensor:
    """Evaluate a function of 0-dim tensors for all positions."""
    result = function.result
    if function.is_elementwise:
        # All 0-dim tensors get rank 4, so that their dtypes are promoted as for 0-dim tensors.
        given = [*scalars, *map(_of_rank_4, buffers)]
        return _run(function.module, dict(zip(function.placeholders, given, strict=True)), result, _of_rank_4)

    def one_position(*given: torch.Tensor) -> torch.Tensor:
        return _run(function.module, dict(zip(function.placeholders, given, strict=True)), result, lambda value: value)

    score = scalars[: len(scalars) - 4]
    indices = [index.reshape(-1) for index in scalars[len(score) :]]
    sizes = [index.shape[0] for index in indices]
    mapped = vmap_for_positions(one_position, prefix=(0,) * len(score), suffix=(None,) * len(buffers))
    values: torch.Tensor = mapped(*(tensor.expand(sizes) for tensor in score), *indices, *buffers)
    return values


def _computes_one_element(node: torch.fx.Node) -> bool:
    """Whether a call computes a 0-dim tensor from such tensors by itself, or reads one element of another tensor."""
    target, val = node.target, node.meta.get("val")
    if target is aten.new_ones.default and node.args[1] == []:
        return True
    if not isinstance(val, torch.Tensor) or val.dim():
        return False
    read = _as_index(node)
    if read is not None:
        return read[0].meta["val"].dim() == len(read[1]) and all(map(_is_scalar, read[1]))
    if not isinstance(target, OpOverload):
        return False
    if torch.Tag.pointwise not in target.tags and target._opname not in _POINTWISE:
        return False
    return all(map(_is_scalar, node.all_input_nodes))


def _is_scalar(argument: Any) -> bool:
    val = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else None
    return not isinstance(val, torch.Tensor) or val.dim() == 0


def _as_index(node: torch.fx.Node) -> tuple[Any, Sequence[Any]] | None:
    """The tensor and the indices of ``tensor[index, ...]``, which TorchDynamo captures as a function of its own."""
    arguments: Any = node.args
    if node.target is _FLAT_APPLY and str(arguments[2]).endswith(".ModIndex"):
        return arguments[3], arguments[4:]
    if node.target is aten.index.Tensor:
        return arguments[0], arguments[1]
    return None


def _of_rank_4(value: torch.Tensor) -> torch.Tensor:
    return value.reshape(1, 1, 1, 1) if value.dim() == 0 else value


def _run(
    module: torch.fx.GraphModule,
    env: dict[torch.fx.Node, Any],
    result: torch.fx.Node,
    constant: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Run the nodes of a graph up to ``result``."""
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = module_attribute(module, node)
            env[node] = constant(value) if isinstance(value, torch.Tensor) else value
        elif node.op == "call_function":
            read = _as_index(node)
            target, args = (node.target, node.args) if read is None else (aten.index.Tensor, (read[0], list(read[1])))
            args, kwargs = torch.fx.map_arg((args, node.kwargs), env.__getitem__)
            env[node] = target(*args, **kwargs)
        if node is result:
            break
    found: torch.Tensor = env[result]
    return found
