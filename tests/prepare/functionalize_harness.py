"""Harness for functionalization: run a captured graph with mutations and its functional form, and compare them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.export import Dim
from torch.export.graph_signature import InputKind
from torch.fx import Graph, GraphModule, Interpreter, Node

from fxonnx._prepare.functionalize import Mutation, functionalize


class Model(nn.Module):
    """A module with a buffer of shape (3, 4) whose forward is a function of (module, x, ...)."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("state", torch.arange(12.0).reshape(3, 4))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def export(function: Callable[..., Any], *args: Any, dynamic: bool = False, strict: bool = False) -> Any:
    shapes = None
    if dynamic:
        shapes = (tuple(dict.fromkeys(range(arg.dim()), Dim.DYNAMIC) for arg in args),)
    return torch.export.export(Model(function).eval(), args, dynamic_shapes=shapes, strict=strict)


def targets(module: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


X = torch.linspace(-2, 2, 24).reshape(4, 6)
Y = torch.linspace(3, -1, 24).reshape(4, 6)


def copied(program: torch.export.ExportedProgram) -> GraphModule:
    """A graph module over a copy of the program's graph."""
    graph = Graph()
    graph.output(graph.graph_copy(program.graph, {}))
    return GraphModule(program.graph_module, graph)


def functional(program: torch.export.ExportedProgram) -> tuple[GraphModule, list[Mutation]]:
    """The functional form of a program, checked to be well-formed and without mutations."""
    before = str(program.graph)
    module = copied(program)
    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    mutations = functionalize(module.graph)
    module.graph.lint()
    assert str(program.graph) == before
    assert [node.name for node in module.graph.nodes if node.op == "placeholder"] == names
    nodes = set(module.graph.nodes)
    for node in nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            assert not node.target._schema.is_mutable, node.format_node()
            assert "val" in node.meta or not node.target._schema.returns
        assert set(node.all_input_nodes) <= nodes
    for mutation in mutations:
        assert mutation.value in nodes
        placeholder = next(node for node in nodes if node.name == mutation.target)
        assert mutation.value.meta["val"].shape == placeholder.meta["val"].shape
        assert mutation.value.meta["val"].dtype == placeholder.meta["val"].dtype
    return module, mutations


def inputs(program: torch.export.ExportedProgram, args: Sequence[Any]) -> list[Any]:
    """A value for each placeholder, none shared with the program or the caller."""
    users = iter(torch.utils._pytree.tree_leaves(args))
    values = []
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            values.append(next(users))
        else:
            values.append(program.state_dict.get(spec.target, program.constants.get(spec.target)))
    return copy.deepcopy([value.detach() if isinstance(value, torch.Tensor) else value for value in values])


class _Fetching(Interpreter):
    """An interpreter that keeps the values of some nodes, and compares shapes and dtypes with ``meta["val"]``."""

    def __init__(self, module: GraphModule, kept: Sequence[Node]) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.kept = kept

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        val = n.meta.get("val")
        if isinstance(val, torch.Tensor):
            assert val.dtype == result.dtype, n.format_node()
            assert val.dim() == result.dim(), n.format_node()
            assert all(
                claimed == size for claimed, size in zip(val.shape, result.shape, strict=True) if type(claimed) is int
            ), n.format_node()
        return result


def run(module: GraphModule, values: Sequence[Any], kept: Sequence[Node] = ()) -> tuple[Any, list[torch.Tensor]]:
    """Outputs of a graph, and the values of some of its nodes."""
    interpreter = _Fetching(module, kept)
    with torch.no_grad():
        outputs = interpreter.run(*values)
    return outputs, [interpreter.env[node] for node in kept]


def same(left: Any, right: Any) -> None:
    """Check that two tensors, or two other values, are bitwise equal."""
    if not isinstance(left, torch.Tensor):
        assert left == right
        return
    torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


def check(program: torch.export.ExportedProgram, args: Sequence[Any]) -> tuple[GraphModule, list[Mutation]]:
    """Compare the captured program with its functional form: outputs and final contents of the placeholders."""
    module, mutations = functional(program)
    written = inputs(program, args)
    untouched = copy.deepcopy(written)
    torch.manual_seed(0)
    wanted, _ = run(copied(program), written)
    given = copy.deepcopy(untouched)
    torch.manual_seed(0)
    found, finals = run(module, untouched, [mutation.value for mutation in mutations])
    assert len(wanted) == len(found)
    for left, right in zip(found, wanted, strict=True):
        same(left, right)
    ends = {mutation.target: final for mutation, final in zip(mutations, finals, strict=True)}
    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    for name, start, left, end in zip(names, given, untouched, written, strict=True):
        same(left, start)
        same(ends.get(name, start), end)
    return module, mutations
