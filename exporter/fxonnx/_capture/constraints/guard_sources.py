"""Sources of the guards of a captured program: the record of its capture, and the operators of its graph."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv, statically_known_true

from fxonnx_translations._builder.size_values import EVALUATION_ERRORS, SizeValues, UndefinedSizeError
from fxonnx_translations._torch_compat import FakeTensor, OpOverload, pytree

from ..._nodes import input_of, schema_of, written_arguments
from ..guard_code import guards_of_program
from .guard_recorder import Guard, GuardLog, SourceLine, line_of_node

__all__ = ["SQUEEZES", "GuardedProgram", "copy_guards", "graphs_of", "guards_of", "slice_guards"]

# An assertion that holds from some size on up to this one is taken to hold for all larger sizes.
_LARGEST_SLICE = 64
SQUEEZES = (torch.ops.aten.squeeze.default, torch.ops.aten.squeeze.dim, torch.ops.aten.squeeze.dims)
_SQUEEZES_IN_PLACE = (
    torch.ops.aten.squeeze_.default,
    torch.ops.aten.squeeze_.dim,
    torch.ops.aten.squeeze_.dims,
)

_MAY_COPY = frozenset(
    {
        torch.ops.aten.contiguous.default,
        torch.ops.aten.flatten.using_ints,
        torch.ops.aten.ravel.default,
        torch.ops.aten.reshape.default,
        torch.ops.aten.reshape_as.default,
    }
)

# torch.tensor(...) is captured with detach_.
_CHANGE_NO_MEMORY = frozenset({torch.ops.aten.detach_.default, torch.ops.aten.requires_grad_.default})

_DATA_DEPENDENT_SIZE, _LARGE, _MOST_AT_ONCE = 7, 1025, 3  # no layout is special at 7


@dataclass(frozen=True)
class GuardedProgram:
    """A captured program with torch's record of its symbols, and the guards of its capture if they were recorded."""

    program: ExportedProgram
    environment: ShapeEnv | None
    log: GuardLog | None

    @property
    def example(self) -> Mapping[sympy.Symbol, Any]:
        """The example values of the symbols."""
        return {} if self.environment is None else self.environment.backed_var_to_val


@dataclass(frozen=True)
class _Source:
    """A function that finds guards, and whether a capture only assumes these: it may be right without them."""

    find: Callable[[GuardedProgram], Iterator[Guard]]
    is_assumed: bool = False


def _recorded_guards(captured: GuardedProgram) -> Iterator[Guard]:
    """The guards of a capture, or those that a program still has if it was captured outside of fxonnx."""
    if captured.log is not None:
        yield from captured.log.guards
    else:
        yield from guards_of_program(captured.program, captured.environment)


def _squeeze_guards(program: ExportedProgram, targets: Sequence[Any]) -> Iterator[Guard]:
    """Guards for ``squeeze`` of a dynamic axis, which torch keeps under the assumption that its size is not 1."""
    found = (graph.find_nodes(op="call_function", target=target) for graph in graphs_of(program) for target in targets)
    for node in itertools.chain.from_iterable(found):
        source = node.args[0]
        value = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
        if not isinstance(value, torch.Tensor):
            continue
        axes = node.args[1] if len(node.args) > 1 else range(value.dim())
        for axis in axes if isinstance(axes, Sequence) else [axes]:
            size = value.shape[axis] if value.dim() else 1
            if isinstance(size, torch.SymInt):
                yield Guard(sympy.Ne(size.node.expr, 1), line_of_node(node))


def graphs_of(program: ExportedProgram) -> Iterator[torch.fx.Graph]:
    """The graph of a program, and those of its branches and loops."""
    return (part.graph for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule))


def copy_guards(
    program: ExportedProgram, values: Mapping[sympy.Symbol, Any], layouts: Mapping[sympy.Basic, SourceLine | None]
) -> Iterator[Guard]:
    """Guards that keep copies copies and views views, for programs that can tell the difference.

    ``reshape`` and its relatives copy at some sizes and return a view at others: a transposed tensor with an axis of
    size 1, for example, is contiguous. It matters where the program later writes to one of the two tensors and reads
    the other one, and where ``as_strided`` addresses the memory.

    Args:
        program: The captured program.
        values: The example values of its symbols.
        layouts: The conditions on other sizes than 1 by which one of them became a copy or a view, with their lines.
    """
    examples, handed = _Examples(values), _written_outside(program)
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield from _copy_guards(part.graph, examples, layouts, is_handed_on=part in handed)


def _copy_guards(
    graph: torch.fx.Graph,
    examples: _Examples,
    layouts: Mapping[sympy.Basic, SourceLine | None],
    *,
    is_handed_on: bool,
) -> Iterator[Guard]:
    nodes = [node for node in graph.nodes if node.op in ("call_function", "output")]
    writes = _writes(graph)
    views = [node for node in nodes if node.target is torch.ops.aten.as_strided.default and not _has_own_strides(node)]
    copies = [node for node in nodes if node.target in _MAY_COPY] if writes or views or is_handed_on else []
    if not copies:
        return
    memory = _Memory(nodes)
    addressed = {source: view for view in reversed(views) for source in _producers(view)}
    outer = graph.find_nodes(op="placeholder") if is_handed_on else []

    def first_seen(some: list[Node]) -> Node | None:
        seen = memory.first_difference(writes, some) or memory.first_separation(writes, some)
        return seen or memory.first_result(outer, some)

    if first_seen(copies) is None and addressed.keys().isdisjoint(copies):
        return
    for layout, line in layouts.items():
        yield Guard(layout, line)
    flipping: dict[sympy.Expr, list[Node]] = defaultdict(list)
    for node in copies:
        for condition in _deciding_conditions(node, examples):
            flipping[condition].append(node)
    for condition, deciding in flipping.items():
        seen = first_seen(deciding) or next(filter(addressed.get, deciding), None)
        if seen is not None:
            yield Guard(condition, line_of_node(seen))
    for node in copies:
        seen = first_seen([node]) or (node if node in addressed else None)
        known = [*layouts, *(condition for condition, deciding in flipping.items() if node in deciding)]
        if seen is not None:
            line = line_of_node(seen)
            yield from (Guard(condition, line) for condition in _joint_conditions(node, examples, known))


def _writes(graph: torch.fx.Graph) -> list[Node]:
    """The nodes that write to the memory of a tensor."""
    nodes = (node for node in graph.nodes if isinstance(node.target, OpOverload))
    return [node for node in nodes if node.target._schema.is_mutable and node.target not in _CHANGE_NO_MEMORY]


def _written_outside(program: ExportedProgram) -> set[torch.nn.Module]:
    """The branches and loops of which the graph around them writes to arguments or results."""
    found: set[torch.nn.Module] = set()
    for part in program.graph_module.modules():
        graph = part.graph if isinstance(part, torch.fx.GraphModule) else torch.fx.Graph()
        writes = _writes(graph)
        for subgraph in graph.find_nodes(op="get_attr") if writes else ():
            module = getattr(part, str(subgraph.target), None)
            if isinstance(module, torch.fx.GraphModule):
                around = {*subgraph.users, *(near for user in subgraph.users for near in (*user.users, *user.args))}
                memory = _Memory(list(graph.nodes))
                keys = {key for node in _nodes_in(around) for key in memory.keys(node)}
                if not keys.isdisjoint(key for write in writes for key in memory.written(write)):
                    found.add(module)
    return found


def _nodes_in(arguments: Iterable[Any]) -> Iterator[Node]:
    return (leaf for leaf in pytree.tree_leaves(list(arguments)) if isinstance(leaf, Node))


def _has_own_strides(view: Node) -> bool:
    """Whether ``as_strided`` has strides that the model derived from the tensor's.

    They are right in any layout. Such models, Longformer for example, split or merge inner strides only.
    """
    strides = input_of(view).meta["val"].stride()
    steps: Any = torch.fx.map_arg(view.args[2], lambda argument: argument.meta["val"])
    return not strides or any(statically_known_true(step == strides[0]) for step in steps)


def _producers(node: Node) -> Iterator[Node]:
    """The nodes that a node is computed from, up to copies in contiguous memory; pointwise operators keep a layout."""
    seen: set[Node] = set()
    pending = list(node.all_input_nodes)
    while pending:
        source = pending.pop()
        if source not in seen and source.kwargs.get("memory_format") is not torch.contiguous_format:
            seen.add(source)
            pending += source.all_input_nodes
            yield source


class _Memory:
    """The tensors of a graph by the memory they share, as views; results of ``_MAY_COPY`` as in the example."""

    def __init__(self, nodes: list[Node]) -> None:
        self.position = {node: index for index, node in enumerate(nodes)}
        self.parents: dict[Any, Any] = {}
        self.created: dict[Any, int] = {}
        self.last_read: dict[Any, int] = {}
        for node in nodes:
            if isinstance(node.target, OpOverload) and node.target not in _MAY_COPY:
                self._share_as_declared(node)
        for node in nodes:
            for source in node.all_input_nodes:
                self.position.setdefault(source, -1)
                for key in self.keys(source):
                    self.created.setdefault(key, self.position[source])
                    self.last_read[key] = self.position[node]

    def _share_as_declared(self, node: Node) -> None:
        """Join results with the argument they alias; programs that were saved and loaded have separate storages."""
        schema = schema_of(node)
        if node.args and isinstance(node.args[0], Node) and any(result.alias_info for result in schema.returns):
            for source in self.keys(node.args[0]):
                for result in self.keys(node):
                    self.parents[result] = source

    def keys(self, node: Node) -> list[Any]:
        """The keys of the memory of a node's tensors."""
        value = node.meta.get("val")
        tensors = value if isinstance(value, (list, tuple)) else [value]
        return [
            self._root(tensor.untyped_storage()._cdata)
            for tensor in tensors
            # The tensors of vmap have no storage.
            if isinstance(tensor, FakeTensor) and tensor.layout is torch.strided
        ]

    def _root(self, key: Any, parents: dict[Any, Any] | None = None) -> Any:
        known = self.parents if parents is None else parents
        while known.get(key, key) != key:
            key = known[key]
        return key

    def first_difference(self, writes: list[Node], copies: list[Node]) -> Node | None:
        """The first of some copies without which a later read of its source, or of the copy, sees a write."""
        joined = self._joined(copies)
        members: dict[Any, list[Any]] = defaultdict(list)
        for key in self.created:
            members[self._root(key, joined)].append(key)
        for write in writes:
            position = self.position[write]
            for key in self.written(write):
                for other in members[self._root(key, joined)]:
                    if other != key and self.created[other] < position < self.last_read.get(other, -1):
                        return next(copy for copy in copies if {key, other} & {*self.keys(copy)})
        return None

    def first_separation(self, writes: list[Node], views: list[Node]) -> Node | None:
        """The first of some views that, as a copy, would keep a write from a later read of the source, or inversely."""
        for view in views:
            shared = {*self.keys(view)} & {*self.keys(view.all_input_nodes[0])}
            if not shared:
                continue
            aliases = [node for node in self.position if not shared.isdisjoint(self.keys(node))]
            derived = {view}
            for node in aliases:
                if not derived.isdisjoint(node.all_input_nodes):
                    derived.add(node)
            sources = {*aliases, *view.all_input_nodes} - derived
            for write in writes:
                position = self.position[write]
                for value in _mutated(write):
                    others = sources if value in derived else derived if value in sources else ()
                    users = (user for other in others for user in other.users)
                    if any(self.position.get(user, -1) > position and _reads_elements(user) for user in users):
                        return view
        return None

    def first_result(self, placeholders: list[Node], copies: list[Node]) -> Node | None:
        """The first of some copies without which a result of a subgraph has the memory of a placeholder, or has not."""
        results = [*_nodes_in(node.args for node in self.position if node.op == "output")]
        for copy in copies if placeholders else ():
            joined = self._joined([copy])
            outer = {self._root(key, joined) for node in placeholders for key in self.keys(node)}
            if any(self._root(key, joined) in outer for node in results for key in self.keys(node)):
                return copy
        return None

    def _joined(self, copies: Iterable[Node]) -> dict[Any, Any]:
        """The memory of results of copies to that of their sources."""
        joined: dict[Any, Any] = {}
        for copy in copies:
            for source, result in zip(self.keys(copy.all_input_nodes[0]), self.keys(copy), strict=False):
                joined[self._root(result, joined)] = self._root(source, joined)
        return joined

    def written(self, write: Node) -> Iterator[Any]:
        """The keys of the memory that a node writes to."""
        for value in _mutated(write):
            yield from self.keys(value)


def _reads_elements(node: Node) -> bool:
    """Whether a node reads more of a tensor than a size."""
    return not isinstance(node.meta.get("val"), (torch.SymInt, int))


def _mutated(write: Node) -> Iterator[Node]:
    """The arguments that a node mutates."""
    return (value for value in written_arguments(schema_of(write), write.args, write.kwargs) if isinstance(value, Node))


class _Sizes(SizeValues):
    """The sizes of tensors at one choice of the symbols.

    Args:
        values: The values of the symbols; a data-dependent symbol is a size at which no layout is special.
    """

    def __init__(self, values: Mapping[sympy.Symbol, Any]) -> None:
        super().__init__(values, _DATA_DEPENDENT_SIZE)

    def is_one(self, expression: sympy.Expr) -> bool | None:
        """Whether a size is 1; None if the model fails at these sizes before it has one."""
        try:
            return self.size(expression) == 1
        except UndefinedSizeError:
            return None


class _Examples:
    """The example's sizes, and those at other values of one symbol.

    Args:
        values: The example values of the symbols.
    """

    def __init__(self, values: Mapping[sympy.Symbol, Any]) -> None:
        self.symbols = values.keys()
        self.sizes = _Sizes(values)
        self._values = values
        self._changed: dict[tuple[sympy.Symbol, int], _Sizes] = {}

    def changed(self, symbol: sympy.Symbol) -> Iterator[_Sizes]:
        """The sizes at other values of a symbol; from 1 to 3 most expressions are 1 and then another number."""
        for number in range(1, max(int(self._values[symbol]), 3) + 1):
            key = symbol, number
            if key not in self._changed:
                self._changed[key] = _Sizes({**self._values, symbol: sympy.Integer(number)})
            yield self._changed[key]

    def at(self, values: Mapping[sympy.Symbol, int]) -> _Sizes:
        """The sizes at other values of some symbols."""
        return _Sizes({**self._values, **values})

    def may_hold(self, relation: sympy.Basic, values: Mapping[sympy.Symbol, int]) -> bool:
        """Whether a relation is not false at other values of some symbols."""
        with suppress(*EVALUATION_ERRORS):  # the model fails at these values before
            return relation.subs({**self._values, **values}) is not sympy.false
        return False

    def several(self, symbols: Sequence[sympy.Symbol]) -> Iterator[dict[sympy.Symbol, int]]:
        """Small and large values of up to so many of some symbols at once, the others as in the example."""
        probes = [{1, 2, 3, 2 * int(self._values[one]) + 1, _LARGE} - {int(self._values[one])} for one in symbols]
        for count in range(1, _MOST_AT_ONCE + 1):
            for chosen in itertools.combinations(zip(symbols, map(sorted, probes), strict=True), count):
                for values in itertools.product(*(numbers for _, numbers in chosen)):
                    yield {symbol: value for (symbol, _), value in zip(chosen, values, strict=True)}

    def boundary(
        self,
        symbol: sympy.Symbol,
        values: Mapping[sympy.Symbol, int],
        is_flipped: Callable[[Mapping[sympy.Symbol, int]], bool],
    ) -> sympy.Basic:
        """The values of a symbol on the example's side of the last one that flips, with the others of some values."""
        inside, outside = int(self._values[symbol]), values[symbol]
        while abs(inside - outside) > 1:
            middle = (inside + outside) // 2
            inside, outside = (inside, middle) if is_flipped({**values, symbol: middle}) else (middle, outside)
        return symbol >= inside if inside > outside else symbol <= inside

    def without_ones(self, sizes: Iterable[sympy.Expr]) -> _Sizes:
        """The sizes at other values of all symbols of some sizes."""
        symbols = {symbol for size in sizes for symbol in size.free_symbols}
        return _Sizes({**self._values, **{symbol: self._values[symbol] + 2 for symbol in symbols}})


def _deciding_conditions(node: Node, examples: _Examples) -> Iterator[sympy.Expr]:
    """The conditions of the example, a size is 1 or is not, without which an operator copies instead, or vice versa."""
    source = node.args[0]
    tensor = source.meta.get("val") if isinstance(source, Node) else None
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return
    shape: tuple[Any, ...] = tuple(tensor.shape)
    sizes = {size.node.expr for size in shape if isinstance(size, torch.SymInt)}
    sizes = {size for size in sizes if size.free_symbols <= examples.symbols}
    if not sizes:
        return
    usual = _returns_view(node, examples.sizes)
    for size in sorted(sizes, key=str):
        is_one = examples.sizes.is_one(size)
        changed = itertools.chain.from_iterable(map(examples.changed, sorted(size.free_symbols, key=str)))
        other = next((each for each in changed if each.is_one(size) is (not is_one)), None)
        if other is not None and _returns_view(node, other) is (not usual):
            yield (sympy.Eq if is_one else sympy.Ne)(size, 1)
            sizes.discard(size)
    ones = [size for size in sorted(sizes, key=str) if examples.sizes.is_one(size)]
    found: list[set[sympy.Expr]] = []
    for several in itertools.chain.from_iterable(itertools.combinations(ones, n) for n in range(2, len(ones) + 1)):
        is_known = any(known <= {*several} for known in found)
        if not is_known and _returns_view(node, examples.without_ones(several)) is (not usual):
            found.append({*several})
            yield sympy.Or(*(sympy.Eq(size, 1) for size in several))


def _joint_conditions(node: Node, examples: _Examples, known: list[sympy.Basic]) -> Iterator[sympy.Basic]:
    """Conditions of the example that no size of 1 alone decides: ``x[:8].t().contiguous()`` is ``x`` at (7, 1)."""
    tensor = input_of(node).meta.get("val")
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return
    numbers = [one.node.expr for one in (*tensor.shape, *tensor.stride()) if isinstance(one, torch.SymInt)]
    symbols = sorted({symbol for one in numbers for symbol in one.free_symbols} & examples.symbols, key=str)
    usual, found = _returns_view(node, examples.sizes), list(known)

    def is_flipped(values: Mapping[sympy.Symbol, int]) -> bool:
        return _returns_view(node, examples.at(values)) is (not usual)

    for values in () if usual is None else examples.several(symbols):
        if not all(examples.may_hold(one, values) for one in found) or not is_flipped(values):
            continue
        for symbol in list(values):
            fewer = {one: number for one, number in values.items() if one != symbol}
            values = fewer if is_flipped(fewer) else values
        found.append(sympy.Or(*(examples.boundary(one, values, is_flipped) for one in values)))
        yield found[-1]


def _returns_view(node: Node, sizes: _Sizes) -> bool | None:
    """Whether an operator returns a view at some sizes; None if it does not support them, or has an empty tensor."""

    def number(value: Any) -> Any:
        return sizes.size(value.node.expr) if isinstance(value, torch.SymInt) else value

    def concrete(argument: Node) -> Any:
        value = argument.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return number(value)
        shape, strides = ([number(item) for item in items] for items in (value.shape, value.stride()))
        return torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")

    operator: Any = node.target
    try:
        args: Any = torch.fx.map_arg(node.args, concrete)
        kwargs: Any = torch.fx.map_arg(dict(node.kwargs), concrete)
        result = operator(*args, **kwargs)
    except (RuntimeError, UndefinedSizeError):  # such as a size that is not divisible, or a negative one
        return None
    is_same = bool(result.untyped_storage()._cdata == args[0].untyped_storage()._cdata)
    return is_same if args[0].numel() else None


@dataclass(frozen=True)
class _Slice:
    """A slice by its node, the size of its axis, and its bounds and step as expressions of sizes."""

    node: Node
    size: Any
    start: Any
    stop: Any
    step: Any

    @property
    def symbols(self) -> set[sympy.Symbol]:
        """The symbols that the length depends on."""
        parts = (self.size, self.start, self.stop, self.step)
        return {symbol for part in parts if isinstance(part, sympy.Basic) for symbol in part.free_symbols}

    def length(self, values: SizeValues) -> int:
        """The length for values of the symbols."""

        def number(part: Any) -> Any:
            return values.size(part) if isinstance(part, sympy.Basic) else part

        return len(range(number(self.size))[number(self.start) : number(self.stop) : number(self.step)])


def slice_guards(program: ExportedProgram, values: Mapping[sympy.Symbol, Any]) -> Iterator[Guard]:
    """Guards that imply the assertions about the lengths of slices ``x[:, -(n - 1):]``, where these depend on one size.

    torch captures the length of such a slice as an unbacked symbol and asserts what the model needs, for example that
    it equals another size where the two are broadcast. It is known at every size, and so is what the assertion means.
    """
    slices = dict(_slices_of_unknown_length(program, values))
    if not slices:
        return
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default):
        condition = node.args[0].meta.get("val") if isinstance(node.args[0], Node) else None
        if not isinstance(condition, torch.SymBool):
            continue
        expression = condition.node.expr
        lengths = {symbol: slices[symbol] for symbol in expression.free_symbols if symbol in slices}
        symbols = expression.free_symbols - lengths.keys()
        for found in lengths.values():
            symbols |= found.symbols
        if lengths and len(symbols) == 1 and symbols <= values.keys():
            (symbol,) = symbols
            guard = _limit_of_slices(expression, lengths, symbol, int(values[symbol]))
            if guard is not None:
                yield Guard(guard, line_of_node(next(iter(lengths.values())).node))


def _limit_of_slices(
    expression: sympy.Basic, lengths: Mapping[sympy.Symbol, _Slice], symbol: sympy.Symbol, example: int
) -> sympy.Basic | None:
    """A bound on a symbol that implies an assertion and that the example satisfies; None if it holds at every size."""

    def holds(number: int) -> bool:
        values = {symbol: number}
        try:
            known = {each: found.length(SizeValues(values)) for each, found in lengths.items()}
            return SizeValues({**values, **known}).value(expression) is True
        except UndefinedSizeError:
            return False

    numbers = range(1, max(_LARGEST_SLICE, 2 * example) + 1)
    failing = [number for number in numbers if not holds(number)]
    if not failing:
        return None
    if failing[-1] < example:
        return sympy.Ge(symbol, failing[-1] + 1)
    return sympy.Le(symbol, failing[0] - 1) if failing[0] > example else sympy.Eq(symbol, example)


def _slices_of_unknown_length(
    program: ExportedProgram, values: Mapping[sympy.Symbol, Any]
) -> Iterator[tuple[sympy.Symbol, _Slice]]:
    """The slices of unbacked length, by the symbol of the length."""

    def expression(argument: Any) -> Any:
        value = argument.meta.get("val") if isinstance(argument, Node) else argument
        return value.node.expr if isinstance(value, torch.SymInt) else value

    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.slice.Tensor):
        arguments: Any = (*node.args, *(0, None, None, 1)[len(node.args) - 1 :])
        source, axis, start, stop, step = arguments
        result, before = node.meta.get("val"), source.meta.get("val") if isinstance(source, Node) else None
        if not isinstance(result, torch.Tensor) or not isinstance(before, torch.Tensor) or not isinstance(axis, int):
            continue
        length = result.shape[axis]
        symbol = length.node.expr if isinstance(length, torch.SymInt) else None
        if isinstance(symbol, sympy.Symbol) and symbol not in values:
            size = before.shape[axis]
            size = size.node.expr if isinstance(size, torch.SymInt) else size
            yield symbol, _Slice(node, size, expression(start), expression(stop), expression(step))


def _edges(captured: GuardedProgram) -> Iterator[Guard]:
    """The conditions that are answered as for all sizes but one."""
    edges = {} if captured.log is None else captured.log.edges
    return (Guard(expression, line) for expression, line in edges.items())


def _copies(captured: GuardedProgram) -> Iterator[Guard]:
    return copy_guards(captured.program, captured.example, {} if captured.log is None else captured.log.layouts)


_SOURCES = (
    _Source(_recorded_guards),
    _Source(lambda captured: _squeeze_guards(captured.program, _SQUEEZES_IN_PLACE)),
    _Source(_copies),
    _Source(lambda captured: slice_guards(captured.program, captured.example)),
    _Source(lambda captured: _squeeze_guards(captured.program, SQUEEZES), is_assumed=True),
    _Source(_edges, is_assumed=True),
)


def guards_of(captured: GuardedProgram, *, is_assumed: bool) -> list[Guard]:
    """The guards of a program: those that it requires, or those that its capture only assumes."""
    return [guard for source in _SOURCES if source.is_assumed is is_assumed for guard in source.find(captured)]
