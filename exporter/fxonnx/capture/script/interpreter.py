"""An interpreter of TorchScript graphs.

Loops and branches that depend on numbers known during the capture are unrolled; those that depend on the content of
tensors become while_loop and cond. Numbers that are read from tensors (``int(y)``) stay tensors until an operator needs
a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ...errors import CaptureError
from .builtins import FUNCTIONS, OF_TENSORS

__all__ = ["run_graph"]

_NUMBERS = ("number", "Scalar", "int", "float", "bool")
def run_graph(graph: Any, args: Sequence[Any]) -> Any:
    """Runs a TorchScript graph.

    Args:
        graph: A ``torch.Graph`` in which all calls are inlined.
        args: A value for each of its inputs.

    Raises:
        CaptureError: If it uses something that has no counterpart.
    """
    values = dict(zip((value.debugName() for value in graph.inputs()), args, strict=True))
    returned = _Frame(values).run(graph)
    return returned[0] if len(returned) == 1 else tuple(returned)


class _Frame:
    """The values of a graph or a block; blocks see those around them."""

    def __init__(self, values: dict[str, Any], outer: _Frame | None = None) -> None:
        self._values = values
        self._outer = outer

    def __getitem__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        if self._outer is None:
            raise KeyError(name)
        return self._outer[name]

    def run(self, block: Any) -> list[Any]:
        for node in block.nodes():
            outputs = list(node.outputs())
            if node.kind() == "prim::GetAttr" and outputs[0].debugName() in self._values:
                continue
            results = self._results(node, [self[value.debugName()] for value in node.inputs()])
            for output, result in zip(outputs, results, strict=True):
                self._values[output.debugName()] = result
        ends = block.outputs() if hasattr(block, "outputs") else block.return_node().inputs()
        return [self[value.debugName()] for value in ends]

    def _results(self, node: Any, inputs: list[Any]) -> Sequence[Any]:
        kind = node.kind()
        if kind == "prim::If":
            return self._branch(node, inputs[0])
        if kind == "prim::Loop":
            return self._loop(node, *inputs)
        if kind in ("prim::ListUnpack", "prim::TupleUnpack"):
            return list(inputs[0])
        result = _call(node, kind, inputs)
        return [result] * node.outputsSize()

    def _branch(self, node: Any, condition: Any) -> list[Any]:
        then, otherwise = node.blocks()
        if isinstance(condition, torch.Tensor):
            _refuse_effects([then, otherwise])
            names, operands = self._free_tensors([then, otherwise])
            bodies = [self._body(block, names) for block in (then, otherwise)]
            return list(torch.ops.higher_order.cond(condition.reshape(()).bool(), *bodies, operands))
        return _Frame({}, self).run(then if condition else otherwise)

    def _loop(self, node: Any, count: Any, condition: Any, *carried: Any) -> list[Any]:
        (block,) = node.blocks()
        names = [value.debugName() for value in block.inputs()]
        values = list(carried)
        if not isinstance(count, torch.Tensor) and not isinstance(condition, torch.Tensor):
            step = 0
            while step < count and condition and not isinstance(condition, torch.Tensor):
                condition, *values = _Frame(dict(zip(names, [step, *values], strict=True)), self).run(block)
                step += 1
            if not isinstance(condition, torch.Tensor) or step >= count:
                return values
            count = count - step
            return self._while(block, names, count, condition, values, step)
        return self._while(block, names, count, condition, values, 0)

    def _while(
        self, block: Any, names: Sequence[str], count: Any, condition: Any, carried: Sequence[Any], first: int
    ) -> list[Any]:
        """A loop that ends at run time: its state is tensors, also where the script has numbers."""
        _refuse_effects([block])
        free, operands = self._free_tensors([block])
        total = torch.as_tensor(count, dtype=torch.int64).reshape(()) + first
        state = (
            torch.tensor(first),
            torch.as_tensor(condition, dtype=torch.bool).reshape(()).clone(),
            *(_as_tensor(value).clone() for value in carried),
        )

        def goes_on(step: Any, condition: Any, *rest: Any) -> Any:
            return condition & (step < rest[len(carried)])

        def body(step: Any, _condition: Any, *rest: Any) -> Any:
            values = dict(zip(names, [step, *rest[: len(carried)]], strict=True))
            values |= dict(zip(free, rest[len(carried) + 1 :], strict=True))
            condition, *after = _Frame(values, self).run(block)
            like = [
                torch.as_tensor(value, dtype=before.dtype).clone() for value, before in zip(after, rest, strict=False)
            ]
            return (step + 1, torch.as_tensor(condition, dtype=torch.bool).reshape(()).clone(), *like)

        results = torch.ops.higher_order.while_loop(goes_on, body, state, (total, *operands))
        return list(results[2:])

    def _body(self, block: Any, names: Sequence[str]) -> Callable[..., Any]:
        def run(*operands: Any) -> Any:
            values = dict(zip(names, operands, strict=True))
            return tuple(_as_tensor(value).clone() for value in _Frame(values, self).run(block))

        return run

    def _free_tensors(self, blocks: Sequence[Any]) -> tuple[list[str], tuple[torch.Tensor, ...]]:
        """The tensors from around that blocks read: higher-order operators take them as operands."""
        names = dict.fromkeys(name for block in blocks for name in _free(block))
        found = {name: self[name] for name in names}
        for block in blocks:
            self._read_attributes(block, found)
        tensors = {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}
        return list(tensors), tuple(tensors.values())

    def _read_attributes(self, block: Any, found: dict[str, Any]) -> None:
        """Adds the parameters that a block reads from modules around it."""
        for node in block.nodes():
            if node.kind() == "prim::GetAttr" and (owner := node.input().debugName()) in found:
                found[node.output().debugName()] = _attribute(found[owner], node.s("name"))
            for inner in node.blocks():
                self._read_attributes(inner, found)


def _as_tensor(value: Any) -> torch.Tensor:
    """A number of a script as a tensor: floats have all the digits that they have in Python."""
    return torch.as_tensor(value, dtype=torch.float64 if isinstance(value, float) else None)


def _refuse_effects(blocks: Sequence[Any], around: frozenset[str] = frozenset()) -> None:
    """Both branches are traced, and a loop's body once: what they did to lists from around would be done wrongly.

    Raises:
        CaptureError: If a block changes a list, a dict or an attribute that is not its own.
    """
    for block in blocks:
        own = around.union(output.debugName() for node in block.nodes() for output in node.outputs())
        for node in block.nodes():
            if _has_effect(node) and next(node.inputs()).debugName() not in own:
                raise CaptureError(
                    f"{node.kind()} changes something from outside of a branch or loop that depends on data"
                    f"\n  in: {_place(node)}",
                    hint="let the branch or loop return it",
                )
            _refuse_effects(list(node.blocks()), own)


def _has_effect(node: Any) -> bool:
    """Whether a node changes its first operand in place: an attribute of a module, or a list or dict."""
    if node.kind() == "prim::SetAttr":
        return True
    schema = _schema(node)
    return schema is not None and _writes_container(schema)


def _schema(node: Any) -> Any:
    """The parsed schema of a node, or None where it has none."""
    return torch._C.parse_schema(node.schema()) if node.schema() != "(no schema)" else None


def _writes_container(schema: Any) -> bool:
    """Whether an operator changes a list or dict in place; operators of torch would change a copy of it."""
    first = schema.arguments[0] if schema.arguments else None
    if first is None or first.alias_info is None or not first.alias_info.is_write:
        return False
    return first.type.kind() in ("ListType", "DictType")


def _place(node: Any) -> str:
    lines = str(node.sourceRange()).strip().splitlines()
    return lines[0] if lines else "?"


def _free(block: Any) -> Iterator[str]:
    own = {value.debugName() for value in block.inputs()}
    for node in block.nodes():
        yield from (value.debugName() for value in node.inputs() if value.debugName() not in own)
        for inner in node.blocks():
            yield from (name for name in _free(inner) if name not in own)
        own.update(value.debugName() for value in node.outputs())
    yield from (value.debugName() for value in block.outputs() if value.debugName() not in own)


def _call(node: Any, kind: str, inputs: list[Any]) -> Any:
    if kind == "prim::Constant":
        return node.output().toIValue()
    if kind == "prim::GetAttr":
        return _attribute(inputs[0], node.s("name"))
    if kind == "prim::SetAttr":
        return setattr(inputs[0], node.s("name"), inputs[1])
    if kind == "prim::RaiseException":
        raise RuntimeError(str(inputs[0]))
    namespace, _, name = kind.partition("::")
    schema = _schema(node)
    of_tensors = schema is not None and any("Tensor" in str(argument.type) for argument in schema.arguments)
    function = FUNCTIONS.get(kind)
    if function is not None and (not of_tensors or kind in OF_TENSORS):
        return function(*inputs)
    packet = getattr(getattr(torch.ops, namespace), name, None) if schema is not None else None
    if schema is None or packet is None or _writes_container(schema):
        raise CaptureError(f"TorchScript's {kind} has no counterpart in ONNX\n  in: {_place(node)}")
    return _operator(packet, schema, inputs)


def _attribute(owner: Any, name: str) -> Any:
    return getattr(owner, name)


def _operator(packet: Any, schema: Any, inputs: Sequence[Any]) -> Any:
    declared = list(schema.arguments)
    numbers = [
        at
        for at, (argument, value) in enumerate(zip(declared, inputs, strict=False))
        if isinstance(value, torch.Tensor) and str(argument.type) in _NUMBERS
    ]
    overload = getattr(packet, schema.overload_name or "default")
    if numbers == [1] and "Tensor" in packet.overloads():
        # A number that is a tensor: there is an overload for these.
        overload, numbers = packet.Tensor, []
        if inputs[1].is_floating_point() and not (inputs[0].is_floating_point() or inputs[0].is_complex()):
            # Beside integers a number is of the default type, a tensor of its own.
            inputs = [inputs[0], inputs[1].to(torch.get_default_dtype()), *inputs[2:]]
    values = [value.item() if at in numbers else value for at, value in enumerate(inputs)]
    given = dict(zip((argument.name for argument in declared), values, strict=False))
    own = [argument for argument in overload._schema.arguments if argument.name in given]
    return overload(
        *(given[argument.name] for argument in own if not argument.kwarg_only),
        **{argument.name: given[argument.name] for argument in own if argument.kwarg_only},
    )
