"""The user's names of dims: of torch's symbols, and of several dims, which are one if their sizes always agree.

Dims whose sizes depend on data, such as the number of detected objects, have names as well.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import (
    free_unbacked_symbols,
    guarding_hint_or_throw,
    has_guarding_hint,
    statically_known_true,
)

from fxonnx_translations._torch_compat import pytree

from ..._own_operators import define_operator
from ..._provenance import source_line
from ..._warnings import warn_user
from ..constraints.guard_recorder import GuardLog
from ..constraints.specialized_dims import specialized_dims_error
from .dynamic_shapes import DimHint, DimSpec, DynamicShapes, Leaf, SharedDim, dim_label, is_auto, name_of_spec
from .spec_keys import AxisNames

__all__ = [
    "add_equality_guards",
    "data_dependent_lines",
    "differing_dims",
    "dynamic_axes_of_results",
    "keep_results",
    "name_detections",
    "name_dims",
    "shared_dims",
    "squeeze_results",
    "warn_about_squeezed_dims",
]


def name_dims(
    program: ExportedProgram, shapes: DynamicShapes, log: GuardLog | None = None
) -> tuple[dict[sympy.Symbol, str], dict[str, tuple[str, ...]]]:
    """Assign the user's names to the symbols of their dims.

    If a symbol has several names, the first one in the order of the inputs is used and the others are its aliases. If
    several symbols have the same name, they keep it if the examples agree; otherwise they become ``n`` and ``n_1``.

    Returns:
        Symbol to unique name, and name to aliases.

    Raises:
        CaptureError: If a dynamic dim is specialized to one size.
    """
    if shapes.is_static:
        return {}, {}
    given: dict[sympy.Symbol, list[str]] = {}
    specialized: list[tuple[Leaf, int | None, int]] = []
    symbols: dict[tuple[int, int | None], sympy.Symbol] = {}
    for index, (leaf, value) in enumerate(zip(shapes.leaves, _input_values(program), strict=True)):
        for axis, spec in leaf.dims.items():
            size = value if axis is None else value.shape[axis]
            constant = _constant(size, program)
            if constant is not None:
                if not is_auto(spec):
                    specialized.append((leaf, axis, constant))
                continue
            named = _named_symbol(spec, size.node.expr)
            if named is not None:
                symbol, name = named
                symbols[index, axis] = symbol
                known = given.setdefault(symbol, [])
                if name not in known:
                    known.append(name)
    if specialized:
        raise specialized_dims_error(specialized, log)
    firsts = _merge_shared(shapes.shared, symbols, given)
    names, aliases = _unique_names({symbol: found for symbol, found in given.items() if symbol not in firsts})
    return {symbol: names[firsts.get(symbol, symbol)] for symbol in given}, aliases


def _input_values(program: ExportedProgram) -> list[Any]:
    placeholders = program.graph.find_nodes(op="placeholder")
    specs = program.graph_signature.input_specs
    return [
        node.meta.get("val")
        for spec, node in zip(specs, placeholders, strict=True)
        if spec.kind == InputKind.USER_INPUT
    ]


def _constant(size: Any, program: ExportedProgram) -> int | None:
    if not isinstance(size, torch.SymInt):
        return int(size)
    expression = size.node.expr
    if expression.is_number:
        return int(expression)
    # A specialized size may keep its symbol, with a range of one value.
    bounds = program.range_constraints.get(expression)
    return int(bounds.lower) if bounds is not None and bounds.is_singleton() else None


def _named_symbol(spec: DimSpec, expression: sympy.Expr) -> tuple[sympy.Symbol, str] | None:
    """The symbol and the name that a spec assigns to it; None if the spec is a hint or names an expression."""
    if isinstance(spec, DimHint) or len(expression.free_symbols) != 1:
        return None
    (symbol,) = expression.free_symbols
    if isinstance(spec, str):
        return (symbol, spec) if expression == symbol else None
    root = getattr(spec, "root", None)
    if root is None:
        return (symbol, spec.__name__) if expression == symbol else None
    return (symbol, root.__name__) if sympy.expand(spec.fn(symbol) - expression) == 0 else None


def _merge_shared(
    shared: Sequence[SharedDim],
    symbols: Mapping[tuple[int, int | None], sympy.Symbol],
    given: Mapping[sympy.Symbol, list[str]],
) -> dict[sympy.Symbol, sympy.Symbol]:
    """Symbol to the first symbol with the same name. The names of merged symbols are added to ``given``."""
    firsts: dict[sympy.Symbol, sympy.Symbol] = {}

    def first_of(symbol: sympy.Symbol) -> sympy.Symbol:
        return first_of(firsts[symbol]) if symbol in firsts else symbol

    order = list(given)
    for group in shared:
        roots = {first_of(symbols[place]) for place in group.places if place in symbols}
        first, *others = sorted(roots, key=order.index) or [None]
        for other in others:
            firsts[other] = first
            given[first].extend(name for name in given[other] if name not in given[first])
    return {symbol: first_of(symbol) for symbol in firsts}


def _unique_names(
    given: Mapping[sympy.Symbol, Sequence[str]],
) -> tuple[dict[sympy.Symbol, str], dict[str, tuple[str, ...]]]:
    reserved = {name for names in given.values() for name in names}
    names: dict[sympy.Symbol, str] = {}
    aliases: dict[str, tuple[str, ...]] = {}
    used: set[str] = set()
    for symbol, candidates in given.items():
        name = candidates[0]
        number = 0
        while name in used or (number and name in reserved):
            number += 1
            name = f"{candidates[0]}_{number}"
        used.add(name)
        names[symbol] = name
        if len(candidates) > 1:
            aliases[name] = tuple(candidates[1:])
    return names, aliases


def shared_dims(leaves: Sequence[Leaf], others: Sequence[Any] = ()) -> tuple[SharedDim, ...]:
    """Group the dims by name and by their sizes in the examples; groups of one dim are omitted.

    Args:
        leaves: The leaves of the inputs, with the first example.
        others: Additional examples, as pytrees with the same leaves.
    """
    return tuple(group for group in _groups(leaves, others) if len(group.places) > 1)


def differing_dims(leaves: Sequence[Leaf], others: Sequence[Any] = ()) -> tuple[str, ...]:
    """Names shared by dims whose sizes differ in an example, with these sizes, for a warning."""
    by_name: dict[str, list[SharedDim]] = defaultdict(list)
    for group in _groups(leaves, others):
        by_name[group.name].append(group)
    texts = []
    for name, groups in by_name.items():
        if len(groups) > 1:
            firsts = [(leaves[index], axis, group) for group in groups for index, axis in group.places[:1]]
            sizes = ", ".join(
                f"{dim_label(leaf.label, axis)} is {_sizes_text(group.sizes)}" for leaf, axis, group in firsts
            )
            texts.append(f"{name!r}: {sizes}")
    return tuple(texts)


def add_equality_guards(shared: Sequence[SharedDim], arguments: Any) -> None:
    """Add guards that dims with the same name are equal, so that torch replaces their symbols by one."""
    if not shared:
        return
    leaves = pytree.tree_leaves(arguments)
    for group in shared:
        first, *rest = [_size(leaves[index], axis) for index, axis in group.places]
        for other in rest:
            if isinstance(first, torch.SymInt) and isinstance(other, torch.SymInt):
                bool(first == other)


def _groups(leaves: Sequence[Leaf], others: Sequence[Any]) -> list[SharedDim]:
    examples = [[leaf.value for leaf in leaves], *(pytree.tree_leaves(other) for other in others)]
    places: dict[tuple[str, tuple[int, ...]], list[tuple[int, int | None]]] = defaultdict(list)
    for index, leaf in enumerate(leaves):
        for axis, spec in leaf.dims.items():
            name = name_of_spec(spec)
            sizes = [_size_hint(_size(example[index], axis)) for example in examples]
            if name is not None and None not in sizes:
                places[name, tuple(size for size in sizes if size is not None)].append((index, axis))
    return [SharedDim(name, sizes, tuple(found)) for (name, sizes), found in places.items()]


def _size(value: Any, axis: int | None) -> Any:
    if axis is None:
        return value
    return value.shape[axis] if isinstance(value, torch.Tensor) and axis < value.dim() else None


def _size_hint(size: Any) -> int | None:
    """The size in an example, or the hint of a symbolic size in an ExportedProgram."""
    if isinstance(size, torch.SymInt):
        return int(guarding_hint_or_throw(size)) if has_guarding_hint(size) else None
    return size if isinstance(size, int) else None


def _sizes_text(sizes: Sequence[int]) -> str:
    return " and ".join(map(str, dict.fromkeys(sizes)))


_DETECTION = frozenset({"boxes", "scores"})
"""The outputs that a detector has for each image, as in torchvision and transformers."""
_PER_OBJECT = frozenset({*_DETECTION, "labels", "masks", "keypoints", "keypoints_scores"})


def name_detections(
    program: ExportedProgram, paths: Mapping[int, str], dim_names: Mapping[sympy.Symbol, str]
) -> dict[int, AxisNames]:
    """Name the first dims of the outputs of a detector ``num_detections``, and ``num_detections_1`` for the next image.

    Args:
        program: The captured program.
        paths: Index of the user output to its path, ``0.boxes``.
        dim_names: The names of other dims, and of those that have the user's names.

    Returns:
        Index of the user output to axis to name.
    """
    groups: dict[str, dict[str, int]] = {}
    for position, path in paths.items():
        group, _, name = path.rpartition(".")
        groups.setdefault(group, {})[name] = position
    values = _outputs(program)
    unused = (name for name in _numbered() if name not in dim_names.values())
    names: dict[sympy.Expr, str] = {}
    found: dict[int, AxisNames] = {}
    for members in groups.values():
        if not members.keys() >= _DETECTION:
            continue
        for name, position in members.items():
            value = values[position]
            size = value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else None
            if name in _PER_OBJECT and isinstance(size, torch.SymInt) and free_unbacked_symbols(size):
                expression = size.node.expr
                if expression not in dim_names:
                    names[expression] = names.get(expression) or next(unused)
                    found[position] = {0: names[expression]}
    return found


def _numbered() -> Iterator[str]:
    yield "num_detections"
    yield from (f"num_detections_{number}" for number in itertools.count(1))


def _outputs(program: ExportedProgram) -> list[object]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    return [
        None if isinstance(spec.arg, ConstantArgument) else values[spec.arg.name]
        for spec in program.graph_signature.output_specs
        if spec.kind == OutputKind.USER_OUTPUT
    ]


def data_dependent_lines(program: ExportedProgram) -> dict[str, str]:
    """Name of each data-dependent dim to the operator and line that determine it: ``aten.nonzero at model.py:12``."""
    found = {}
    for node in program.graph.nodes:
        for symbol in node.meta.get("unbacked_bindings") or ():
            found[str(symbol)] = f"{str(node.target).removesuffix('.default')} at {source_line(node)}"
    return found


def warn_about_squeezed_dims(program: ExportedProgram) -> None:
    """Warn about squeezes of data-dependent dims: torch.export assumes that their size is not 1, and keeps them."""
    lines = {
        f"  {size.node.expr} at {source_line(node)}": None
        for part in program.graph_module.modules()
        for node in (part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ())
        if getattr(node.target, "overloadpacket", None) is torch.ops.aten.squeeze
        for size in _squeezed(node)
        if isinstance(size, torch.SymInt) and free_unbacked_symbols(size) and not statically_known_true(size != 1)
    }
    if lines:
        warn_user(
            "the model squeezes dims whose sizes depend on values, and is exported for sizes other than 1:\n"
            + "\n".join(lines)
            + "\nhint: name the axis to remove, such as nonzero().squeeze(1)"
        )


def _squeezed(node: torch.fx.Node) -> list[int | torch.SymInt]:
    """The sizes of the axes that a squeeze removes if they are 1."""
    shape = list(node.args[0].meta["val"].shape)  # type: ignore[union-attr]
    axes: Any = node.args[1] if len(node.args) > 1 else range(len(shape))
    return [shape[axis] for axis in ([axes] if isinstance(axes, int) else axes)] if shape else []


def _squeezed_result(x: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    # An operator of our own must not return a view.
    return x.squeeze(list(axes)).clone()


def _fake_squeezed(x: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    return x.new_empty(x.shape)


_OPERATOR = define_operator("fxonnx::squeeze_result(Tensor x, int[] axes) -> Tensor", _squeezed_result, _fake_squeezed)


def squeeze_results(program: ExportedProgram, axes: Mapping[int, Collection[int]]) -> list[Node]:
    """Remove dynamic axes of one element from results of a program.

    Args:
        program: The captured program.
        axes: The axes of results, by their numbers.

    Returns:
        The new nodes, which the proof confirms.
    """
    output = program.graph.output_node()
    results, added = list(output.args[0]), []
    specs = program.graph_signature.output_specs
    positions = [position for position, spec in enumerate(specs) if spec.kind == OutputKind.USER_OUTPUT]
    for number, removed in axes.items():
        position = positions[number]
        result = results[position]
        with program.graph.inserting_before(output):
            node = program.graph.create_node(
                "call_function",
                torch.ops.fxonnx.squeeze_result.default,
                (result, sorted(removed)),
                name=f"{result.name}_squeezed_result",
            )
        # With memory of its own, unlike views.
        node.meta.update(result.meta, val=result.meta["val"].clone())
        results[position] = node
        specs[position].arg = TensorArgument(name=node.name)
        added.append(node)
    output.args = (tuple(results),)
    program.graph_module.recompile()
    return added


def dynamic_axes_of_results(program: ExportedProgram) -> dict[int, list[int]]:
    """The dynamic axes of the real tensors that a program returns, by the number of the result."""
    specs = zip(program.graph_signature.output_specs, program.graph.output_node().args[0], strict=True)
    results = [result for spec, result in specs if spec.kind == OutputKind.USER_OUTPUT]
    values = [result.meta.get("val") if isinstance(result, Node) else None for result in results]
    return {
        number: [axis for axis, size in enumerate(value.shape) if not isinstance(size, int)]
        for number, value in enumerate(values)
        if isinstance(value, torch.Tensor) and not value.is_complex()
    }


def keep_results(program: ExportedProgram, added: Iterable[Node]) -> None:
    """Undo ``squeeze_results``."""
    for node in added:
        (source,) = node.all_input_nodes
        for spec in program.graph_signature.output_specs:
            if spec.arg.name == node.name:
                spec.arg = TensorArgument(name=source.name)
        node.replace_all_uses_with(source)
        program.graph.erase_node(node)
    program.graph_module.recompile()
