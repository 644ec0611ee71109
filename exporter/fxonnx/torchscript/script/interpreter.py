"""Interpreter of TorchScript graphs.

Control flow that depends on numbers known during the capture is unrolled; data-dependent control flow becomes
``while_loop`` and ``cond``. Numbers that are read from tensors (``int(y)``) remain tensors until an operator requires
a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from fxonnx_translations._torch_compat import arange, check, pytree, scalar_tensor, sym_not

from ..._capture.patches.sequences import recorded_batch_size
from ..._capture.rewriting.operators.sequences import StackedList
from ..._capture.rewriting.operators.values import NUMBER_DEVICE, as_number
from ...errors import CaptureError
from .builtins import FUNCTIONS, MKLDNN, TENSOR_KINDS, is_instance, run_mkldnn
from .effects import (
    appended_lists,
    reject_outer_effects,
    schema_of,
    script_location,
    stacked_operation,
    writes_container,
    written_names,
)

__all__ = ["run_graph"]

_NUMBERS = ("number", "Scalar", "int", "float", "bool")


def run_graph(graph: Any, args: Sequence[Any]) -> Any:
    """Run a TorchScript graph.

    Args:
        graph: A ``torch.Graph`` in which all calls are inlined.
        args: One value per graph input.

    Raises:
        CaptureError: If the graph contains an operation without an equivalent in the capture.
    """
    values = dict(zip((value.debugName() for value in graph.inputs()), args, strict=True))
    returned = _Scope(values).run(graph)
    return returned[0] if len(returned) == 1 else tuple(returned)


class _Scope:
    """The values of a graph or a block, by name; a block also sees the values of the enclosing scopes."""

    def __init__(self, values: dict[str, Any], outer: _Scope | None = None, *, in_scan: bool = False) -> None:
        self._values = values
        self._outer = outer
        self._block: Any = None
        self._in_scan: bool = in_scan or (outer is not None and outer._in_scan)

    def __getitem__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        if self._outer is None:
            raise KeyError(name)
        return self._outer[name]

    def run(self, block: Any) -> list[Any]:
        """Run the nodes of a block and return its results."""
        self._block = block
        for node in block.nodes():
            outputs = list(node.outputs())
            if node.kind() == "prim::GetAttr" and outputs[0].debugName() in self._values:
                continue
            results = self._run_node(node, [self[value.debugName()] for value in node.inputs()])
            for output, result in zip(outputs, results, strict=True):
                self._values[output.debugName()] = result
        ends = block.outputs() if hasattr(block, "outputs") else block.return_node().inputs()
        return [self[value.debugName()] for value in ends]

    def _run_node(self, node: Any, inputs: list[Any]) -> Sequence[Any]:
        kind = node.kind()
        if kind == "prim::If":
            return self._branch(node, inputs[0])
        if kind == "prim::Loop":
            return self._loop(node, *inputs)
        if kind in ("prim::ListUnpack", "prim::TupleUnpack"):
            return list(inputs[0])
        if self._in_scan and kind == "aten::select" and isinstance(inputs[2], torch.Tensor):
            # An index in a tensor, without a number that is unbacked in the body of the scan.
            source, dim, index = inputs
            return [source.index_select(dim, index.reshape(1)).squeeze(dim)]
        result = _run_plain_node(node, kind, inputs)
        return list(result) if node.outputsSize() > 1 else [result] * node.outputsSize()

    def _branch(self, node: Any, condition: Any) -> list[Any]:
        blocks = then, otherwise = list(node.blocks())
        if isinstance(condition, torch.Tensor):
            condition = condition.reshape(()).bool()
        elif not _is_data_dependent(condition):
            return _Scope({}, self).run(then if condition else otherwise)
        elif raising := [block for block in blocks if _only_raises(block)]:
            # The condition remains an assertion of the captured program.
            holds = raising[0] is otherwise
            check(condition if holds else sym_not(condition))
            return _Scope({}, self).run(then if holds else otherwise)
        reject_outer_effects(blocks)
        names, operands = self._free_tensors(blocks)
        written = sorted({names[name] for name in written_names(blocks, names)})
        _reject_written_views(node, operands, written)
        bodies = [self._body(block, names, written) for block in blocks]
        results = list(torch.ops.higher_order.cond(condition, *bodies, operands))
        count = len(results) - len(written)
        for at, final in zip(written, results[count:], strict=True):
            operands[at].copy_(final)
        return results[:count]

    def _loop(self, node: Any, count: Any, condition: Any, *carried: Any) -> list[Any]:
        (block,) = node.blocks()
        names = [value.debugName() for value in block.inputs()]
        values = list(carried)
        if _is_unbacked(count):
            count = scalar_tensor(count, dtype=torch.int64)
        elif _is_dynamic(count) and condition is True:
            lists = appended_lists(block, self._block)
            results = None if lists is None else self._scan(block, names, count, values, lists)
            if results is not None:
                return results
        if not isinstance(count, torch.Tensor) and not isinstance(condition, torch.Tensor):
            step = 0
            while step < count and condition and not isinstance(condition, torch.Tensor):
                condition, *values = _Scope(dict(zip(names, [step, *values], strict=True)), self).run(block)
                step += 1
            if not isinstance(condition, torch.Tensor) or step >= count:
                return values
            count = count - step
            return self._while(block, names, count, condition, values, step)
        return self._while(block, names, count, condition, values, 0)

    def _while(
        self, block: Any, names: Sequence[str], count: Any, condition: Any, carried: Sequence[Any], first: int
    ) -> list[Any]:
        """Emit a ``while_loop`` for a data-dependent loop; numbers in the carried state become tensors."""
        reject_outer_effects([block])
        free, operands = self._free_tensors([block])
        total = as_number(_as_tensor(count).to(torch.int64).reshape(())) + first
        state = (
            torch.tensor(first, device=NUMBER_DEVICE),
            _as_condition(condition),
            *(_as_tensor(value).clone() for value in carried),
        )

        def keep_going(step: Any, condition: Any, *rest: Any) -> Any:
            return condition & (step < rest[len(carried)])

        def body(step: Any, _condition: Any, *rest: Any) -> Any:
            values = dict(zip(names, [step, *rest[: len(carried)]], strict=True))
            values |= self._operands(free, rest[len(carried) + 1 :])
            condition, *after = _Scope(values, self).run(block)
            like = [
                torch.as_tensor(value, dtype=before.dtype, device=before.device).clone()
                for value, before in zip(after, rest, strict=False)
            ]
            return (step + 1, _as_condition(condition), *like)

        results = torch.ops.higher_order.while_loop(keep_going, body, state, (total, *operands))
        return list(results[2:])

    def _scan(
        self, block: Any, names: Sequence[str], count: Any, carried: Sequence[Any], lists: Mapping[str, str]
    ) -> list[Any] | None:
        """Emit a ``scan``, stacking the elements that are appended to lists; None if the loop has to be unrolled."""
        free, operands = self._free_tensors([block])
        # Hidden states are tuples of tensors.
        leaves, form = pytree.tree_flatten(list(carried))
        if not all(isinstance(value, torch.Tensor) for value in leaves) or written_names([block], [*free, *names]):
            return None

        def body(*args: Any) -> list[Any]:
            *state, step = args[: len(leaves) + 1]
            values = dict(zip(names, [step, *pytree.tree_unflatten(state, form)], strict=True))
            values |= self._operands(free, args[len(leaves) + 1 :])
            values |= {name: [] for name in lists}
            inner = _Scope(values, self, in_scan=True)
            _, *after = inner.run(block)
            return [value.clone() for value in (*pytree.tree_leaves(after), *(inner[name] for name in lists.values()))]

        state = [value.clone() for value in leaves]
        try:
            results = torch.ops.higher_order.scan(body, state, [arange(count)], operands)
        except Exception:  # noqa: BLE001 - the loop is unrolled instead, which reports errors of the body itself
            return None
        for name, stacked in zip(lists, results[len(leaves) :], strict=True):
            self._values[name] = StackedList([stacked])
        after: list[Any] = pytree.tree_unflatten(list(results[: len(leaves)]), form)
        return after

    def _body(self, block: Any, names: Mapping[str, int], written: Sequence[int]) -> Callable[..., Any]:
        """A branch of ``cond``: in-place ops write to clones of its operands, returned after its results."""

        def run(*operands: Any) -> Any:
            own = [operand.clone() if at in written else operand for at, operand in enumerate(operands)]
            results = _Scope(self._operands(names, own), self).run(block)
            return tuple(_as_tensor(value).clone() for value in [*results, *(own[at] for at in written)])

        return run

    def _free_tensors(self, blocks: Sequence[Any]) -> tuple[dict[str, int], tuple[torch.Tensor, ...]]:
        """The outer tensors that blocks read: the place of each name among the operands, and the operands.

        A tensor of several names, such as a parameter that both branches read, is one operand.
        """
        names = dict.fromkeys(name for block in blocks for name in _free_names(block))
        found = {name: self[name] for name in names}
        for block in blocks:
            self._read_attributes(block, found)
        tensors = {
            name: value.stacked if isinstance(value, StackedList) else value
            for name, value in found.items()
            if isinstance(value, torch.Tensor | StackedList)
        }
        operands = {id(tensor): tensor for tensor in tensors.values()}
        places = {identity: place for place, identity in enumerate(operands)}
        return {name: places[id(tensor)] for name, tensor in tensors.items()}, tuple(operands.values())

    def _operands(self, names: Mapping[str, int], operands: Sequence[torch.Tensor]) -> dict[str, Any]:
        """The outer values that a body reads, by name, from its operands; the inverse of ``_free_tensors``."""
        return {
            name: StackedList([operands[place]]) if isinstance(self._find(name), StackedList) else operands[place]
            for name, place in names.items()
        }

    def _find(self, name: str) -> Any:
        """The value of a name, or None for an attribute of a module, which has no name in this scope."""
        try:
            return self[name]
        except KeyError:
            return None

    def _read_attributes(self, block: Any, found: dict[str, Any]) -> None:
        """Add the parameters and buffers that a block reads from modules of the enclosing scopes."""
        for node in block.nodes():
            if node.kind() == "prim::GetAttr" and (owner := node.input().debugName()) in found:
                found[node.output().debugName()] = getattr(found[owner], node.s("name"))
            for inner in node.blocks():
                self._read_attributes(inner, found)


def _reject_written_views(node: Any, operands: Sequence[torch.Tensor], written: Sequence[int]) -> None:
    """Reject in-place ops on aliased operands: operands are cloned per branch, which loses writes through views."""
    storages = [tensor.untyped_storage()._cdata for tensor in operands]
    if any(storages.count(storages[at]) > 1 for at in written):
        raise CaptureError(
            f"a data-dependent branch modifies a tensor in place and uses a view of it\n  in: {script_location(node)}",
            hint="write to a clone() of the tensor and let the branch return it",
        )


def _only_raises(block: Any) -> bool:
    """Whether a block raises an exception unconditionally."""
    return any(node.kind() == "prim::RaiseException" for node in block.nodes())


def _is_dynamic(count: Any) -> bool:
    """Whether a number of iterations is a size that is not a constant."""
    return isinstance(count, torch.SymInt) and count.node.maybe_as_int() is None


def _is_unbacked(count: Any) -> bool:
    """Whether a number of iterations depends on the values of tensors (``mask.nonzero().size(0)``)."""
    return isinstance(count, torch.SymInt) and bool(free_unbacked_symbols(count))


def _is_data_dependent(condition: Any) -> bool:
    """Whether a condition on sizes depends on the values of tensors (``mask.nonzero().size(0) > 0``)."""
    return isinstance(condition, torch.SymBool) and bool(free_unbacked_symbols(condition))


def _as_tensor(value: Any) -> torch.Tensor:
    """A number of the script as a tensor; floats become float64, the precision that Python has."""
    if isinstance(value, torch.Tensor):
        return value
    return torch.as_tensor(value, dtype=torch.float64 if isinstance(value, float) else None, device=NUMBER_DEVICE)


def _as_condition(value: Any) -> torch.Tensor:
    condition = torch.as_tensor(
        value, dtype=torch.bool, device=None if isinstance(value, torch.Tensor) else NUMBER_DEVICE
    )
    return as_number(condition.reshape(())).clone()


def _free_names(block: Any) -> Iterator[str]:
    """Names that a block uses and does not define; they may repeat."""
    own = {value.debugName() for value in block.inputs()}
    for node in block.nodes():
        yield from (value.debugName() for value in node.inputs() if value.debugName() not in own)
        for inner in node.blocks():
            yield from (name for name in _free_names(inner) if name not in own)
        own.update(value.debugName() for value in node.outputs())
    yield from (value.debugName() for value in block.outputs() if value.debugName() not in own)


def _run_plain_node(node: Any, kind: str, inputs: list[Any]) -> Any:
    if kind == "prim::Constant":
        return _constant(node)
    if kind == "prim::GetAttr":
        return getattr(inputs[0], node.s("name"))
    if kind == "prim::SetAttr":
        return setattr(inputs[0], node.s("name"), inputs[1])
    if inputs and isinstance(inputs[0], StackedList):
        return stacked_operation(kind, *inputs)
    if kind.removesuffix("_") in MKLDNN:
        return run_mkldnn(node, inputs)
    if kind == "prim::isinstance":
        return any(is_instance(inputs[0], declared) for declared in node.tys("types"))
    if kind == "prim::RaiseException":
        raise RuntimeError(str(inputs[0]))
    if kind == "aten::select" and (size := _batch_size(*inputs)) is not None:
        return size
    namespace, _, name = kind.partition("::")
    schema = schema_of(node)
    of_tensors = schema is not None and any("Tensor" in str(argument.type) for argument in schema.arguments)
    function = FUNCTIONS.get(kind)
    if function is not None and (not of_tensors or kind in TENSOR_KINDS):
        return function(*inputs)
    packet = getattr(getattr(torch.ops, namespace), name, None) if schema is not None else None
    if schema is None or packet is None or writes_container(schema):
        raise CaptureError(f"TorchScript's {kind} has no equivalent in ONNX\n  in: {script_location(node)}")
    return _call_operator(packet, schema, inputs)


def _constant(node: Any) -> Any:
    value = node.output().toIValue()
    if isinstance(value, torch.ScriptObject):
        # Packed weights of quantized layers, for example.
        raise CaptureError(
            f"a script holds an object of the class {node.output().type().annotation_str} as a constant, which has no "
            "equivalent in ONNX",
            hint="export the script as it was before torch.jit.freeze",
        )
    return value


def _batch_size(source: Any, dim: Any, index: Any) -> Any:
    """The first element of the batch sizes of a packed sequence, if it is known; otherwise None."""
    is_first = isinstance(dim, int) and isinstance(index, int) and dim == 0 and index == 0
    return recorded_batch_size(source) if is_first else None


def _call_operator(packet: Any, schema: Any, inputs: Sequence[Any]) -> Any:
    declared = list(schema.arguments)
    numbers = [
        at
        for at, (argument, value) in enumerate(zip(declared, inputs, strict=False))
        if isinstance(value, torch.Tensor) and str(argument.type) in _NUMBERS
    ]
    overload = getattr(packet, schema.overload_name or "default")
    if numbers == [1] and "Tensor" in packet.overloads():
        # The number is a tensor: use the overload for two tensors.
        overload, numbers = packet.Tensor, []
        if inputs[1].is_floating_point() and not (inputs[0].is_floating_point() or inputs[0].is_complex()):
            # Type promotion: with an integer tensor, a float number has the default dtype, a tensor its own.
            inputs = [inputs[0], inputs[1].to(torch.get_default_dtype()), *inputs[2:]]
    values = [value.item() if at in numbers else value for at, value in enumerate(inputs)]
    given = dict(zip((argument.name for argument in declared), values, strict=False))
    own = [argument for argument in overload._schema.arguments if argument.name in given]
    return overload(
        *(given[argument.name] for argument in own if not argument.kwarg_only),
        **{argument.name: given[argument.name] for argument in own if argument.kwarg_only},
    )
