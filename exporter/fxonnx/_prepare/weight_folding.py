"""Weight folding: batch norms folded into the preceding layer, and other tensors computed from weights only.

Such nodes are replaced by a :class:`DerivedWeight` with a recipe, which runs when the model is saved or new weights are
applied. Nothing is computed here, and no weight is copied.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from fxonnx_translations._builder.sub_byte import FLOAT4_PAIRS, PER_BYTE, contiguous
from fxonnx_translations._torch_compat import DataDependentOutputException, OpOverload

from .._nodes import function_of, input_of, operator_of
from .._provenance import VALUE_KEY
from .graph_utils import STORAGE_DTYPES, fake_mode_of

__all__ = ["CODES_KEY", "STORED_KEY", "DerivedWeight", "find_derived_weights", "fold_batch_norm", "recipe"]

aten = torch.ops.aten

MAX_GROWN_ELEMENTS = 2**17
"""Maximum number of elements of a derived weight that is larger than its sources, as position tables are."""

STORED_KEY = "stored"
"""Metadata of nodes that become derived weights whatever their size."""

CODES_KEY = "codes"
"""Metadata of the nodes that codes, scales and zero points of a low-precision weight are computed by."""

MAX_WIDENED_ELEMENTS = 2**14
"""Maximum number of elements of a half-precision weight stored in a wider dtype, as rotary frequencies are."""

_CONVOLUTIONS = frozenset(
    {
        aten.conv1d.default,
        aten.conv2d.default,
        aten.conv3d.default,
        aten.conv1d.padding,
        aten.conv2d.padding,
        aten.conv3d.padding,
    }
)
_TRANSPOSED = frozenset({aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input})
_HALF_DTYPES = frozenset({torch.float16, torch.bfloat16})
_STORAGE_DTYPES = STORAGE_DTYPES | _HALF_DTYPES
_FAKE_QUANTIZATIONS = frozenset(
    {
        aten.fake_quantize_per_tensor_affine.default,
        aten.fake_quantize_per_tensor_affine.tensor_qparams,
        aten.fake_quantize_per_channel_affine.default,
    }
)
_SELECTIONS = frozenset({aten.index.Tensor, aten.index_select.default, aten.gather.default, aten.take.default})
_RESHAPES = frozenset({aten.view.default, aten.reshape.default, aten.flatten.using_ints, aten.unsqueeze.default})
_STRIDED_RESHAPES = frozenset({aten.view.default, aten._unsafe_view.default})
"""Operators that fail for some layouts, for which reshape copies."""
_STRIDED_VIEWS = frozenset({aten.view.dtype, aten.view_as_complex.default})
"""Operators that fail for some layouts, for which the tensor is copied first."""
_QUANTIZED_DTYPES = frozenset({torch.float32, *_HALF_DTYPES})


RECIPE_NAME = "recipe_name"
_Function = TypeVar("_Function", bound=Callable[..., torch.Tensor])


def recipe(name: str) -> Callable[[_Function], _Function]:
    """Decorator of functions that compute weights from weights, as targets of nodes.

    Args:
        name: The suffix of the initializer's name.
    """

    def named(function: _Function) -> _Function:
        setattr(function, RECIPE_NAME, name)
        return function

    return named


@dataclass(frozen=True)
class DerivedWeight:
    """A derived weight: a tensor computed from weights only.

    Attributes:
        sources: The placeholders it is computed from, in the recipe's argument order.
        recipe: Computes it from the source tensors.
        suffix: The operation, as suffix of the initializer's name: ``weight::t``.
        dtype: dtype of the result.
        shape: Static shape of the result.
        indices: The sources that only select elements of others, such as the buffer of relative positions.
    """

    sources: tuple[torch.fx.Node, ...]
    recipe: Callable[..., torch.Tensor]
    suffix: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    indices: frozenset[torch.fx.Node] = frozenset()


@recipe("folded")
def folded_weight(
    weight: torch.Tensor, gamma: torch.Tensor | None, variance: torch.Tensor, eps: float, channel_axis: int, groups: int
) -> torch.Tensor:
    """The layer's weight times the batch norm's scale, per output channel.

    Args:
        weight: Convolution or linear weight; output channels on ``channel_axis``.
        gamma: Batch norm weight, shape (channels,), or None.
        variance: Running variance, shape (channels,).
        eps: Batch norm epsilon.
        channel_axis: 0, or 1 for transposed convolutions, whose output channels are split over the groups.
        groups: Groups of a transposed convolution, else 1.
    """
    scale = torch.rsqrt(variance.double() + eps)
    if gamma is not None:
        scale = scale * gamma.double()
    # Only the scale is computed in double: the weight may be the largest tensor of the model.
    scale = scale.to(weight.dtype)
    if channel_axis == 0:
        return weight * scale.reshape(-1, *[1] * (weight.dim() - 1))
    # Weight (in, out/groups, ...): the input channels of one group share that group's scales.
    grouped = weight.reshape(groups, -1, *weight.shape[1:])
    shaped = scale.reshape(groups, 1, -1, *[1] * (weight.dim() - 2))
    return (grouped * shaped).reshape(weight.shape)


@recipe("folded")
def folded_bias(
    bias: torch.Tensor | None,
    gamma: torch.Tensor | None,
    beta: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """The bias of the layer followed by the batch norm, shape (channels,)."""
    scale = torch.rsqrt(variance.double() + eps)
    if gamma is not None:
        scale = scale * gamma.double()
    shifted = -mean.double() if bias is None else bias.double() - mean.double()
    result = shifted * scale
    if beta is not None:
        result = result + beta.double()
    return result.to(mean.dtype)


def fold_batch_norm(graph: torch.fx.Graph, weights: Collection[torch.fx.Node]) -> None:
    """Fold every eval-mode batch norm that is the only user of a convolution or linear layer into that layer.

    Args:
        graph: A functional graph; changed in place.
        weights: The placeholders of parameters and buffers.
    """
    for node in list(graph.nodes):
        if node.target is not aten.batch_norm.default or node.op != "call_function":
            continue
        layer, gamma, beta, mean, variance, training, _momentum, eps = node.args[:8]
        statistics = [mean, variance, *(value for value in (gamma, beta) if value is not None)]
        if training or not isinstance(layer, torch.fx.Node) or len(layer.users) != 1:
            continue
        if any(value not in weights for value in statistics) or not _foldable(layer, weights):
            continue
        # Statistics of another dtype, as in mixed precision, would give a bias of another dtype than the weight.
        if any(value.meta["val"].dtype != layer.meta["val"].dtype for value in statistics):
            continue
        _fold(graph, node, layer, (gamma, beta, mean, variance, eps))


def _foldable(layer: torch.fx.Node, weights: Collection[torch.fx.Node]) -> bool:
    if layer.op != "call_function" or len(layer.args) < 2 or layer.kwargs:
        return False
    is_linear = layer.target is aten.linear.default and layer.meta["val"].dim() == 2
    if not is_linear and layer.target not in _CONVOLUTIONS and layer.target not in _TRANSPOSED:
        return False
    weight = layer.args[1]
    bias = layer.args[2] if len(layer.args) > 2 else None
    # Without a batch axis, the layer's channel axis is not the batch norm's.
    if not is_linear and isinstance(weight, torch.fx.Node) and weight.meta["val"].dim() != layer.meta["val"].dim():
        return False
    # A weight with other uses would have to be stored twice.
    if not isinstance(weight, torch.fx.Node) or weight not in weights or len(weight.users) != 1:
        return False
    return bias is None or bias in weights


def _fold(graph: torch.fx.Graph, node: torch.fx.Node, layer: torch.fx.Node, parameters: Sequence[Any]) -> None:
    gamma, beta, mean, variance, eps = parameters
    weight = layer.args[1]
    bias = layer.args[2] if len(layer.args) > 2 else None
    transposed = layer.target in _TRANSPOSED
    groups = layer.args[6] if transposed and len(layer.args) > 6 else 1
    with graph.inserting_before(layer):
        new_weight = graph.call_function(folded_weight, (weight, gamma, variance, eps, int(transposed), groups))
        new_bias = graph.call_function(folded_bias, (bias, gamma, beta, mean, variance, eps))
    new_weight.meta["val"] = input_of(layer, 1).meta["val"]
    new_bias.meta["val"] = mean.meta["val"]
    layer.args = (layer.args[0], new_weight, new_bias, *layer.args[3:])
    node.replace_all_uses_with(layer)
    if VALUE_KEY in node.meta:
        layer.meta[VALUE_KEY] = node.meta[VALUE_KEY]
    graph.erase_node(node)


def find_derived_weights(
    graph: torch.fx.Graph, weights: Collection[torch.fx.Node], constants: Mapping[str, torch.Tensor]
) -> dict[torch.fx.Node, DerivedWeight]:
    """Find the nodes computed from weights only.

    Args:
        graph: The graph; not changed.
        weights: The placeholders of parameters and buffers.
        constants: Tensors of the graph's ``get_attr`` nodes.

    Returns:
        A record for each derived weight with a user that is not one itself. A derived weight is deterministic. It
        widens no storage dtype and is not larger than its sources, unless it is small.
    """
    derivable: dict[torch.fx.Node, None] = {}
    for node in graph.nodes:
        if node.op == "call_function" and _is_derivable(node, weights, derivable):
            derivable[node] = None
    records: dict[torch.fx.Node, DerivedWeight] = {}
    while True:
        found = {
            node: records.get(node) or _record(node, weights, constants)
            for node in derivable
            if isinstance(node.meta["val"], torch.Tensor) and any(user not in derivable for user in node.users)
        }
        failing = [node for node, record in found.items() if node not in records and _fails(record)]
        if not failing:
            return found
        # Computed by the graph instead; the weights that it is computed from may be derived.
        for node in failing:
            del derivable[node]
        records = {node: record for node, record in found.items() if node in derivable}


def _is_derivable(
    node: torch.fx.Node, weights: Collection[torch.fx.Node], derivable: Mapping[torch.fx.Node, None]
) -> bool:
    inputs = node.all_input_nodes
    is_marked = CODES_KEY in node.meta
    if not (inputs or is_marked) or not all(
        source in weights or source in derivable or source.op == "get_attr" for source in inputs
    ):
        return False
    if all(source.op == "get_attr" for source in inputs) and not is_marked:
        return False
    target = node.target
    if isinstance(target, OpOverload):
        if torch.Tag.nondeterministic_seeded in target.tags or target.namespace != "aten":
            return False
        if _is_weight_quantizer(node):
            return False
    elif target is not operator.getitem and not hasattr(target, RECIPE_NAME):
        return False
    val = node.meta.get("val")
    if isinstance(val, (list, tuple)):
        return all(isinstance(item, torch.Tensor) for item in val)
    if not isinstance(val, torch.Tensor) or not all(type(dim) is int for dim in val.shape):
        return False
    if target is operator.getitem or is_marked:
        return True
    operands = [source.meta["val"] for source in inputs if isinstance(source.meta.get("val"), torch.Tensor)]
    widened = [operand.dtype for operand in operands if operand.dtype in _STORAGE_DTYPES and operand.dtype != val.dtype]
    # The bytes stay the same ones, but a sub-byte integer would no longer be packed.
    is_view = (
        target is aten.view.dtype
        and operands[0].element_size() == val.element_size()
        and (operands[0].dtype not in PER_BYTE or operands[0].dtype == FLOAT4_PAIRS)
    )
    if widened and not is_view and (val.numel() > MAX_WIDENED_ELEMENTS or not _HALF_DTYPES.issuperset(widened)):
        return False
    is_small = val.numel() <= max(MAX_GROWN_ELEMENTS, sum(operand.numel() for operand in operands))
    return is_small or not operands or STORED_KEY in node.meta


def _is_weight_quantizer(node: torch.fx.Node) -> bool:
    """Whether a call is a fake quantization that becomes integers with a scale, which are stored instead."""
    if node.target not in _FAKE_QUANTIZATIONS or node.meta["val"].dtype not in _QUANTIZED_DTYPES:
        return False
    if any(user.target is aten.embedding.default for user in node.users):
        # Runtimes would dequantize the whole table in every call.
        return False
    limits: Any = node.args[-2:]
    if not any(low <= limits[0] and limits[1] <= high for low, high in ((-128, 127), (0, 255))):
        return False
    return not any(
        isinstance(argument, torch.fx.Node) and argument.meta["val"].is_floating_point() for argument in node.args[2:]
    )


def _record(
    node: torch.fx.Node, weights: Collection[torch.fx.Node], constants: Mapping[str, torch.Tensor]
) -> DerivedWeight:
    order: list[torch.fx.Node] = []
    sources: dict[torch.fx.Node, None] = {}
    pending = [(node, False)]
    while pending:
        current, ready = pending.pop()
        if current.op == "placeholder":
            sources.setdefault(current)
        elif ready:
            order.append(current)
        elif current.op != "get_attr" and current not in order:
            pending.append((current, True))
            pending.extend((source, False) for source in reversed(current.all_input_nodes))
    steps = tuple(dict.fromkeys(order))
    val = node.meta["val"]
    suffix = getattr(node.target, RECIPE_NAME, None) or getattr(node.target, "_opname", node.name)
    return DerivedWeight(
        tuple(sources),
        _Recipe(steps, tuple(sources), constants),
        str(suffix),
        val.dtype,
        tuple(int(d) for d in val.shape),
        frozenset(source for source in sources if _is_index(source, frozenset(steps))),
    )


def _fails(record: DerivedWeight) -> bool:
    """Whether a recipe raises: it could not be written. One step is a call of the captured program."""
    recipe = record.recipe
    return isinstance(recipe, _Recipe) and recipe.step_count > 1 and recipe.fails_on_fake_tensors()


def _is_index(value: torch.fx.Node, steps: Collection[torch.fx.Node]) -> bool:
    """Whether all uses of a value among the steps of a recipe are as index, possibly in another shape."""
    return all(
        (user.target in _SELECTIONS and value is not user.args[0])
        or (user.target in _RESHAPES and _is_index(user, steps))
        for user in value.users
        if user in steps
    )


def _step_of(node: torch.fx.Node) -> Callable[..., Any]:
    """The function of a step, for any layout: copies that only change the layout are no longer in the graph."""
    if node.target in _STRIDED_RESHAPES:
        return aten.reshape.default
    if node.target not in _STRIDED_VIEWS:
        return function_of(node)
    view = operator_of(node)
    return lambda tensor, *args: view(contiguous(tensor), *args)


class _Recipe:
    """A callable that runs a sequence of FX nodes on real tensors."""

    def __init__(
        self, steps: Sequence[torch.fx.Node], sources: Sequence[torch.fx.Node], constants: Mapping[str, torch.Tensor]
    ) -> None:
        self._steps = tuple((step, _step_of(step), step.args, step.kwargs) for step in steps)
        self._sources = tuple(sources)
        self._constants = constants

    @property
    def step_count(self) -> int:
        """The number of operators."""
        return len(self._steps)

    def fails_on_fake_tensors(self) -> bool:
        """Whether an operator raises for the dtypes, shapes and layouts of the sources."""
        fakes = [source.meta["val"] for source in self._sources]
        mode = fake_mode_of(fakes)
        if mode is None:
            return False
        constants = {
            name: mode.from_tensor(self._constants[name], static_shapes=True)
            for name in {str(node.target) for step, *_ in self._steps for node in step.all_input_nodes}
            if name in self._constants
        }
        try:
            with torch.no_grad(), mode:
                self._run(fakes, constants)
        except (NotImplementedError, DataDependentOutputException):
            # Fake tensors do not have this operator, or a value that it needs.
            return False
        except (RuntimeError, TypeError, ValueError, IndexError):
            return True
        return False

    def __call__(self, *tensors: torch.Tensor) -> Any:
        return self._run(tensors, self._constants)

    def _run(self, tensors: Sequence[torch.Tensor], constants: Mapping[str, torch.Tensor]) -> Any:
        values: dict[torch.fx.Node, Any] = dict(zip(self._sources, tensors, strict=True))

        def real(argument: torch.fx.Node) -> Any:
            return constants[str(argument.target)] if argument.op == "get_attr" else values[argument]

        result: Any = None
        for step, function, args, kwargs in self._steps:
            result = function(*torch.fx.map_arg(args, real), **torch.fx.map_arg(kwargs, real))
            values[step] = result
        return result
