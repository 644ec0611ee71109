"""Recognize ``(codes - zero_points) * scales``, computed from weights only, and replace it by its operands.

The codes may be unpacked from integers by shifts and masks, as GPTQ, AWQ, HQQ and compressed-tensors do, looked up in a
table, as in MXFP4, or rounded from a floating-point weight by a quantizer. How they are computed does not matter:
interval analysis proves their range, and they are computed while the model is saved. Everything else is left as it is.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from fxonnx_translations._builder.initializers import has_content
from fxonnx_translations._torch_compat import OpOverload

from ..._extensions import PassContext
from ..._nodes import function_of, input_of
from ..._prepare.graph_utils import store_attribute, uncomputed
from ..._prepare.sizes import element_count, is_known, same_size
from ..._prepare.weight_folding import CODES_KEY
from ..._provenance import copy_provenance
from ..applies import UNPACKING
from .activations import replace_activation_quantizers, values_of_blocks
from .ranges import CONVERSIONS, MOVEMENTS, Layout, Path, Ranges, block_of, positions_of, replayed

__all__ = ["least_opset", "store_codes"]

aten = torch.ops.aten

_MUL, _SUB, _DIV = aten.mul.Tensor, aten.sub.Tensor, aten.div.Tensor
_WRITE = aten.slice_scatter.default
_CREATIONS = frozenset({aten.empty.memory_format, aten.zeros.default})
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_CODE_DTYPES = (torch.int8, torch.uint8)
_STORED_WEIGHTS_OPSET = 21
_LEAST_ELEMENTS = 64
"""Smaller weights are stored as floating-point numbers."""


@dataclass(frozen=True)
class _Product:
    """The operands of a weight.

    Attributes:
        codes: The codes, as the difference or the product has them.
        scale: The scales, as the product has them.
        is_divided: Whether the codes are divided by the scales.
        zero_point: The zero points, as the difference has them, or None.
        difference: ``codes - zero_point``, or None.
        product: The product.
        inner: The operators from the difference, or from the codes, to the product.
        outer: The operators from the product to the weight.
        range: The range of the codes.
        table: The node of the table in which the codes are looked up, or None.
    """

    codes: Node
    scale: Node
    is_divided: bool
    zero_point: Node | None
    difference: Node | None
    product: Node
    inner: Path
    outer: Path
    range: tuple[int, int]
    table: Node | None = None


def store_codes(context: PassContext) -> None:
    """Replace weights that are computed from codes and scales by ``fxonnx::dequantize`` of these, in place."""
    gm, weights, constants, lifted = context.module, context.weights, context.constants, context.lifted
    static = _static_nodes(gm.graph, weights)
    has_codes = _has_codes(static, weights)
    has_rounding = bool(gm.graph.find_nodes(op="call_function", target=aten.round.default))
    if not has_codes and not has_rounding:
        return
    literals = {node: lifted[node.name] for node in weights if node.name in lifted}
    literals |= {
        node: constants[str(node.target)]
        for node in gm.graph.find_nodes(op="get_attr")
        if str(node.target) in constants
    }
    recognizer = _Recognizer(gm, static, set(weights) - set(literals), literals, constants, context.value_of)
    for node in static if has_codes else ():
        if any(user not in static for user in node.users) and _is_candidate(node):
            recognizer.replace(node)
    if has_rounding:
        recognizer.replace_activation_quantizers()


def least_opset(graph: Graph, weights: Collection[Node]) -> int:
    """The first opset with 4-bit integers and blocks if a captured graph unpacks integers by shifts and masks, or 0.

    Args:
        graph: The captured graph.
        weights: The placeholders of parameters and buffers.
    """
    unpacking = [node for node in graph.nodes if getattr(node.target, "_opname", "") in UNPACKING]
    if not unpacking:
        return 0
    static = _static_nodes(graph, weights)
    unpacks = any(
        node in static and not node.meta["val"].dtype.is_floating_point and _is_large(node.meta["val"])
        for node in unpacking
        if node.meta["val"].dtype != torch.bool
    )
    return _STORED_WEIGHTS_OPSET if unpacks else 0


def _has_codes(static: Collection[Node], weights: Collection[Node]) -> bool:
    """Whether anything static has the origin of codes: a weight of 8 bits, an unpacking of integers, or a rounding."""
    return any(
        node.target is aten.round.default
        or getattr(node.target, "_opname", "") in UNPACKING
        or any(source in weights and source.meta["val"].dtype in _CODE_DTYPES for source in node.all_input_nodes)
        for node in static
    )


def _static_nodes(graph: Graph, weights: Collection[Node]) -> dict[Node, None]:
    """Return the calls whose results depend on weights and constants only."""
    static: dict[Node, None] = {}
    for node in graph.nodes:
        if node.op != "call_function" or not _is_deterministic(node.target):
            continue
        inputs = node.all_input_nodes
        if not inputs and node.target not in _CREATIONS:
            continue
        val = node.meta.get("val")
        results = val if isinstance(val, (list, tuple)) else (val,)
        if not all(isinstance(one, torch.Tensor) and all(type(size) is int for size in one.shape) for one in results):
            continue
        if all(source in weights or source in static or source.op == "get_attr" for source in inputs):
            static[node] = None
    return static


def _is_deterministic(target: Any) -> bool:
    if target is operator.getitem:
        return True
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return False
    return torch.Tag.nondeterministic_seeded not in target.tags


def _is_candidate(node: Node) -> bool:
    val = node.meta["val"]
    if not isinstance(val, torch.Tensor):
        return False
    if any(user.target is aten.embedding.default for user in node.users):
        # Runtimes would dequantize the whole table in every call.
        return False
    return val.dtype in _FLOATS and val.dim() >= 2 and _is_large(val)


def _is_large(val: torch.Tensor) -> bool:
    return is_known(val.numel() >= _LEAST_ELEMENTS)


class _Recognizer:
    """Recognition of the weights of one graph.

    Args:
        gm: The graph module.
        static: The calls computed from weights and constants only.
        weights: The placeholders of parameters and buffers.
        literals: The tensors of constant nodes.
        constants: Tensors of ``get_attr`` nodes, to which new ones are added.
        value_of: Returns the tensor of a placeholder.
    """

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        static: Mapping[Node, None],
        weights: Collection[Node],
        literals: Mapping[Node, torch.Tensor],
        constants: dict[str, torch.Tensor],
        value_of: Callable[[Node], torch.Tensor | None],
    ) -> None:
        self._gm, self._static, self._weights, self._literals = gm, static, weights, literals
        self._constants, self._value_of = constants, value_of
        self._ranges = Ranges(literals, self._number)
        self._numbers: dict[Node, torch.Tensor | None] = {}
        self._contents: dict[Node, torch.Tensor | None] = {}
        self._layouts: dict[Any, Layout | None] = {}

    def replace(self, weight: Node) -> None:
        """Replace a weight, if it is recognized."""
        outer, product = _walk(weight, self._static)
        if product.target not in (_MUL, _DIV) or product not in self._static or product.kwargs:
            return
        found = self._product(product, outer)
        if found is None:
            return
        arrangement = self._arrangement(found, weight)
        if arrangement is not None:
            self._emit(weight, found, *arrangement)

    def replace_activation_quantizers(self) -> None:
        """Replace the quantizers of activations."""
        replace_activation_quantizers(
            self._gm.graph, self._static, self._literals, self._ranges, self._number, self._constant
        )

    # ---- operands

    def _product(self, product: Node, outer: Path) -> _Product | None:
        left, right = product.args
        pairs = [(left, right)] if product.target is _DIV else [(left, right), (right, left)]
        for codes, scale in pairs:
            if not isinstance(codes, Node) or not isinstance(scale, Node) or not _is_scale(scale):
                continue
            inner, start = _walk(codes, self._static, casts=True)
            found = self._codes(start)
            if found is None or not self._keeps_values(start, inner) or not _rounds_once(outer):
                continue
            first, zero_point, limits, table = found
            if self._has_weight(scale) or self._is_rounded(first) or self._is_unpacked(first):
                difference = None if zero_point is None else start
                is_divided = product.target is _DIV
                return _Product(first, scale, is_divided, zero_point, difference, product, inner, outer, limits, table)
        return None

    def _keeps_values(self, start: Node, path: Path) -> bool:
        """Whether the conversions of a path keep the integers of the node before it."""
        limits = self._ranges.of(start)
        return all(
            step.meta["val"].is_floating_point() or (limits is not None and self._ranges.of(step) == limits)
            for step in path
            if step.target in CONVERSIONS
        )

    def _codes(self, node: Node) -> tuple[Node, Node | None, tuple[int, int], Node | None] | None:
        """Return codes, zero points, the range of the codes, and their table."""
        if node.target is _SUB and not node.kwargs and node in self._static:
            codes, zero_point = node.args
            is_integer = not node.meta["val"].is_floating_point()
            if isinstance(codes, Node) and isinstance(zero_point, Node) and not _has_one_element(zero_point):
                limits = self._code_range(codes)
                # A difference in the limits of its dtype does not wrap around.
                if limits is not None and not (is_integer and self._may_wrap(node)):
                    return codes, zero_point, limits, None
        limits = self._code_range(node)
        if limits is not None:
            return node, None, limits, None
        return self._looked_up(node)

    def _code_range(self, node: Node) -> tuple[int, int] | None:
        known = self._ranges.of(node)
        if known is None or math.isinf(known[0]) or math.isinf(known[1]):
            return None
        low, high = int(known[0]), int(known[1])
        fits = any(least <= low and high <= most for least, most in ((-128, 127), (0, 255)))
        return (low, high) if fits and self._is_packed(node) else None

    def _may_wrap(self, difference: Node) -> bool:
        one, two = (self._ranges.of(argument) for argument in difference.args[:2])
        if one is None or two is None:
            return True
        limits = torch.iinfo(difference.meta["val"].dtype)
        return one[0] - two[1] < limits.min or one[1] - two[0] > limits.max

    def _is_packed(self, node: Node) -> bool:
        """Whether codes are unpacked from a weight, rounded from one, or a weight of 8 bits."""
        return any(
            found in self._weights and found.meta["val"].dtype in _CODE_DTYPES for found in self._cone(node)
        ) or self._is_unpacked(node)

    def _is_unpacked(self, node: Node) -> bool:
        cone = self._cone(node)
        names = {getattr(found.target, "_opname", "") for found in cone}
        has_weight = any(found in self._weights for found in cone)
        return has_weight and (bool(names & UNPACKING) or self._is_rounded(node))

    def _is_rounded(self, node: Node) -> bool:
        cone = self._cone(node)
        return aten.round.default in {found.target for found in cone} and any(found in self._weights for found in cone)

    def _has_weight(self, node: Node) -> bool:
        return any(found in self._weights for found in self._cone(node))

    def _cone(self, node: Node) -> dict[Node, None]:
        """Return the node and everything that it is computed from."""
        found: dict[Node, None] = {}
        pending = [node]
        while pending:
            current = pending.pop()
            if current not in found:
                found[current] = None
                pending.extend(current.all_input_nodes)
        return found

    # ---- tables

    def _looked_up(self, node: Node) -> tuple[Node, Node | None, tuple[int, int], Node | None] | None:
        """Return the codes of values that are selected from one table of at most 256 numbers."""
        tables = self._tables_of(node)
        if len(tables) != 1:
            return None
        (table,) = tables
        size = self._literals[table].numel()
        codes = self._without_table(node, table)
        limits = self._ranges.of(codes)
        if limits is None or limits[0] < 0 or limits[1] >= size or size > 256 or not self._is_packed(codes):
            return None
        return codes, None, (0, size - 1), table

    def _tables_of(self, node: Node) -> dict[Node, None]:
        """Return the tables that all elements of a tensor are selected from; none if some have another source."""
        tables: dict[Node, None] = {}
        for part in uncomputed(node, (), _arranged):
            if _is_lookup(part) and part.args[0] in self._literals:
                tables[input_of(part)] = None
            elif part.target not in (aten.empty.memory_format, _WRITE):
                return {}
        return tables

    def _without_table(self, node: Node, table: Node) -> Node:
        """Copy the nodes that arrange the values read from a table, for their indices."""
        graph = node.graph
        copies: dict[Node, Node] = {}
        for part in uncomputed(node, (), _arranged):
            with graph.inserting_before(part):
                if _is_lookup(part):
                    index = next(source for source in part.all_input_nodes if source is not table)
                    made = graph.call_function(aten.to.dtype, (index, torch.uint8))
                else:
                    made = graph.node_copy(part, copies.__getitem__)
            if part.target in _CREATIONS:
                made.kwargs = {**made.kwargs, "dtype": torch.uint8}
            made.meta["val"] = part.meta["val"].to(torch.uint8)
            copy_provenance(made, part)
            copies[part] = made
        return copies[node]

    # ---- layouts

    def _arrangement(self, found: _Product, weight: Node) -> tuple[Layout, Layout | None, list[int]] | None:
        """Return how scales and zero points are laid out over the weight, and the sizes of the blocks."""
        full = found.product.meta["val"].shape
        if not same_size(found.codes.meta["val"].numel(), full.numel()):
            return None
        scale = self._layout(found.scale, ((full, found.outer),))
        zero_point = None
        if found.zero_point is not None and found.difference is not None:
            inside = found.difference.meta["val"].shape
            if not same_size(inside.numel(), full.numel()):
                return None
            zero_point = self._layout(found.zero_point, ((inside, found.inner), (full, found.outer)))
            if zero_point is None:
                return None
        if scale is None:
            return None
        shape = weight.meta["val"].shape
        block = [
            math.gcd(one, two)
            for one, two in zip(scale.block, scale.block if zero_point is None else zero_point.block, strict=True)
        ]
        blocked = math.prod(-(-size // count) for size, count in zip(shape, block, strict=True))
        # One scale per element, or nearly, is not a quantized weight.
        return (scale, zero_point, block) if is_known(blocked * 8 <= shape.numel()) else None

    def _layout(self, node: Node, steps: tuple[tuple[torch.Size, Path], ...]) -> Layout | None:
        """Return the layout of a parameter over the weight, or None if it is not blockwise."""
        # Integers are converted exactly; rounded scales are stored as they are after the conversion.
        path, base = _walk(node, self._static, casts=self._ranges.of(node) is not None)
        indices = [index for step in path for index in _index_nodes(step)]
        known = {index: content for index in indices if (content := self._content(index)) is not None}
        if len(known) < len(set(indices)):
            return None
        positions = positions_of(base.meta["val"].shape, ((None, path), *steps), known, self._layouts)
        if positions is None:
            return None
        checked = [index for index in indices if index not in self._literals]
        return Layout(base, positions[0], positions[1], tuple((index, known[index]) for index in checked))

    def _content(self, node: Node) -> torch.Tensor | None:
        """Compute a small index tensor from the weights at the export; None if they have no values."""
        if node not in self._contents:
            for source in uncomputed(node, self._contents, self._sources_of_content):
                self._contents[source] = self._computed_content(source)
        return self._contents[node]

    def _sources_of_content(self, node: Node) -> list[Node]:
        is_computed = node in self._static and node not in self._literals and node.target in (*CONVERSIONS, *MOVEMENTS)
        return node.all_input_nodes if is_computed else []

    def _computed_content(self, node: Node) -> torch.Tensor | None:
        if node in self._literals:
            return self._literals[node]
        if node in self._weights:
            content = self._value_of(node)
            return content if content is not None and has_content(content) else None
        inputs = {source: self._content(source) for source in self._sources_of_content(node)}
        if not inputs or any(content is None for content in inputs.values()):
            return None
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), inputs.__getitem__)
        result: Any = function_of(node)(*args, **kwargs)
        return result if isinstance(result, torch.Tensor) else None

    def _number(self, node: Node) -> torch.Tensor | None:
        """Evaluate a scalar that depends only on weights; None if it has other sources."""
        if node not in self._numbers:
            for source in uncomputed(node, self._numbers, self._sources_of_number):
                self._numbers[source] = self._computed_number(source)
        return self._numbers[node]

    def _sources_of_number(self, node: Node) -> list[Node]:
        """The nodes that a number is computed from; none for those that are no numbers."""
        is_computed = node in self._static and node not in self._literals and _has_one_element(node)
        return node.all_input_nodes if is_computed else []

    def _computed_number(self, node: Node) -> torch.Tensor | None:
        if node in self._literals:
            return self._literals[node]
        if not _has_one_element(node):
            return None
        if node in self._weights:
            content = self._value_of(node)
            return content if content is not None and has_content(content) else None
        inputs = {source: self._number(source) for source in self._sources_of_number(node)}
        if not inputs or any(content is None for content in inputs.values()):
            return None
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), inputs.__getitem__)
        with torch.no_grad():
            result: Any = function_of(node)(*args, **kwargs)
        return result if isinstance(result, torch.Tensor) else None

    # ---- replacement

    def _emit(self, weight: Node, found: _Product, scale: Layout, zero_point: Layout | None, block: list[int]) -> None:
        graph = weight.graph
        with graph.inserting_before(weight):
            codes = replayed(found.codes, (*found.inner, *found.outer))
            dtype = found.product.meta["val"].dtype
            scales = self._parameter(scale, block, weight, dtype, is_divisor=found.is_divided)
            points = None if zero_point is None else self._parameter(zero_point, block, weight)
            shape = weight.meta["val"].shape
            sizes = [size // count for size, count in zip(shape, scales.meta["val"].shape, strict=True)]
            made = graph.call_function(
                torch.ops.fxonnx.dequantize.default, (codes, scales, points, found.table, *found.range, sizes)
            )
            made.meta["val"] = weight.meta["val"].to(dtype)
            copy_provenance(made, weight)
            result = made if dtype == weight.meta["val"].dtype else _call(aten.to.dtype, made, weight.meta["val"].dtype)
        weight.replace_all_uses_with(result, delete_user_cb=lambda user: user not in self._static)
        for operand in (codes, scales, points):
            for node in () if operand is None else self._cone(operand):
                node.meta[CODES_KEY] = True

    def _parameter(
        self,
        layout: Layout,
        block: list[int],
        origin: Node,
        dtype: torch.dtype | None = None,
        *,
        is_divisor: bool = False,
    ) -> Node:
        """Insert the node that has one scale or zero point for each block."""
        shape = origin.meta["val"].shape
        counts = [size // step for size, step in zip(shape, block, strict=True)]
        positions = block_of(layout, counts)
        literal = self._literals.get(layout.base)
        if literal is not None and not layout.checked:
            content = values_of_blocks(literal.detach(), positions)
            content = content.reciprocal() if is_divisor else content
            return self._constant(content if dtype is None else content.to(dtype), origin)
        checked = [part for pair in layout.checked for part in (pair[0], self._constant(pair[1].clone(), origin))]
        node = origin.graph.call_function(values_of_blocks, (layout.base, self._constant(positions, origin), *checked))
        node.meta["val"] = layout.base.meta["val"].new_empty(positions.shape)
        copy_provenance(node, origin)
        if is_divisor:
            node = _call(aten.reciprocal.default, node)
        return node if dtype in (None, node.meta["val"].dtype) else _call(aten.to.dtype, node, dtype)

    def _constant(self, tensor: torch.Tensor, origin: Node) -> Node:
        name = store_attribute(self._gm, "positions_of_blocks", tensor)
        self._constants[name] = tensor
        node = origin.graph.get_attr(name)
        node.meta["val"] = tensor
        return node


def _call(target: Any, source: Node, *arguments: Any) -> Node:
    node = source.graph.call_function(target, (source, *arguments))
    node.meta["val"] = target(source.meta["val"], *arguments)
    copy_provenance(node, source)
    return node


def _walk(node: Node, static: Collection[Node], *, casts: bool = True) -> tuple[Path, Node]:
    """Return the operators that move or convert the elements of a static node, and the node before them."""
    path: list[Node] = []
    while node in static and (node.target in MOVEMENTS or (casts and node.target in CONVERSIONS)):
        source = node.args[0]
        if not isinstance(source, Node):
            break
        if node.target is aten.index.Tensor and node.meta["val"].dim() != source.meta["val"].dim():
            break
        path.append(node)
        node = source
    return tuple(reversed(path)), node


def _rounds_once(path: Path) -> bool:
    """Whether a path converts to one other dtype at most."""
    dtypes = [step.meta["val"].dtype for step in path if step.target in CONVERSIONS]
    return len(set(dtypes)) <= 1 and all(dtype.is_floating_point for dtype in dtypes)


def _index_nodes(step: Node) -> list[Node]:
    return [source for source in step.all_input_nodes if source is not step.args[0]]


def _arranged(node: Node) -> list[Node]:
    """The tensors that a node joins: one is written to a slice of the other."""
    return [part for part in node.args[:2] if isinstance(part, Node)] if node.target is _WRITE else []


def _is_lookup(node: Node) -> bool:
    if node.target is not aten.index.Tensor:
        return False
    table, indices = node.args[:2]
    is_vector = isinstance(table, Node) and table.meta["val"].dim() == 1
    return is_vector and isinstance(indices, (list, tuple)) and len(indices) == 1 and indices[0] is not table


def _has_one_element(node: Node) -> bool:
    val = node.meta.get("val")
    return isinstance(val, torch.Tensor) and element_count(val) == 1


def _is_scale(node: Node) -> bool:
    return bool(node.meta["val"].is_floating_point())
