"""Evaluation of captured graphs node by node in PyTorch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import onnx_ir as ir
import torch
from torch.export.graph_signature import InputKind

from fxonnx_translations._torch_compat import pytree

from ..._comparison import Tolerance
from ..._export_signature import read_signature
from ..._lower.metadata import FX_VALUE_KEY, class_scopes_of, target_name
from ..._program.session import Session, SessionFactory, as_graph_input
from ..._program.value_comparison import ValueDifference, source_text, statistics_of
from ..._provenance import VALUE_KEY, source_line
from ..._written_parameters import written_placeholders

__all__ = [
    "Evaluation",
    "OnValue",
    "RuntimeValues",
    "difference_of",
    "in_same_layout",
    "placeholder_values",
    "replacement_of",
    "values_by_fx_name",
]

OnValue: TypeAlias = "Callable[[torch.fx.Node, str, torch.Tensor], torch.Tensor | None]"
"""Takes a node, the name of its value and the value; returns the value to continue with, None for the same one."""

_HALF = (torch.float16, torch.bfloat16)


class Evaluation(torch.fx.Interpreter):
    """An evaluation of a graph, which keeps only the tensors that are still needed.

    Args:
        module: The module that has the graph; see ``runnable_program``.
        on_value: Called for each value of the captured program.
        on_call: Called with a node and its evaluated arguments, before its operator is called.
        in_float: Whether half precision is replaced by float32.
        weights: Tensors whose memory must not be written to.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        on_value: OnValue,
        *,
        on_call: Callable[[torch.fx.Node, Sequence[Any]], None] | None = None,
        in_float: bool = False,
        weights: Sequence[torch.Tensor] = (),
    ) -> None:
        super().__init__(module, graph=module.graph)
        self._on_value = on_value
        self._on_call = on_call
        self._in_float = in_float
        self._protected = {tensor.untyped_storage().data_ptr() for tensor in weights}

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one node and report its value."""
        if self._on_call is not None and n.op == "call_function":
            self._on_call(n, self.fetch_args_kwargs_from_env(n)[0])
        result = super().run_node(n)
        if n.op != "call_function":
            return _widened(result) if self._in_float else result
        name = n.meta.get(VALUE_KEY)
        if name is not None and isinstance(result, torch.Tensor):
            other = self._on_value(n, name, result)
            if other is not None:
                return self._write(result, other)
        return result

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call an operator."""
        if self._in_float:
            args, kwargs = pytree.tree_map(_widened, (args, kwargs))
        return super().call_function(target, args, kwargs)

    def _write(self, result: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Give a result other values, in its own memory: later nodes may write to it, or to its base."""
        is_expanded = any(size > 1 and stride == 0 for size, stride in zip(result.shape, result.stride(), strict=True))
        if is_expanded or result.untyped_storage().data_ptr() in self._protected:
            return other.to(result.dtype)
        return result.copy_(other)


def _widened(value: Any) -> Any:
    """Replace half precision by float32."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in _HALF else value
    return torch.float32 if isinstance(value, torch.dtype) and value in _HALF else value


def placeholder_values(
    exported_program: torch.export.ExportedProgram,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    weights: Mapping[str, torch.Tensor],
) -> list[Any]:
    """The values for the placeholders of the captured graph: copies of those that it may mutate.

    Args:
        exported_program: The captured program.
        args: Positional arguments, bound.
        kwargs: Keyword arguments, bound.
        weights: FQN to weights that replace the program's.
    """
    written = written_placeholders(exported_program.graph)
    leaves = iter(pytree.tree_leaves((tuple(args), dict(kwargs))))
    values: list[Any] = []
    for record in read_signature(exported_program).inputs:
        if record.kind in (InputKind.USER_INPUT, InputKind.CUSTOM_OBJ):
            value = next(leaves)
        else:
            target = str(record.target)
            value = weights.get(target, exported_program.state_dict.get(target))
            value = exported_program.constants.get(target) if value is None else value
        if isinstance(value, torch.Tensor):
            is_copied = record.kind != InputKind.PARAMETER or record.name in written
            value = value.detach().clone() if is_copied else value.detach()
        values.append(value)
    return values


def values_by_fx_name(nodes: Iterable[ir.Node], fx_names: Collection[str]) -> dict[str, ir.Value]:
    """Map the names of captured values to the ONNX values that stand for them.

    Args:
        nodes: Nodes of the main graph, or of the body of a loop or branch.
        fx_names: Names of the captured values.
    """
    found: dict[str, ir.Value] = {}
    for node in nodes:
        for value in node.outputs:
            name = str(value.metadata_props.get(FX_VALUE_KEY) or value.meta.get(FX_VALUE_KEY))
            if value.name and name in fx_names:
                found.setdefault(name, value)
    return found


class RuntimeValues:
    """Evaluation of values of the main graph of a model for given inputs.

    Args:
        model: The model.
        inputs: A value for each graph input.
        session_factory: Creates sessions.
    """

    def __init__(self, model: ir.Model, inputs: Sequence[Any], session_factory: SessionFactory | None) -> None:
        self.model = model
        self._inputs = inputs
        self._session_factory = session_factory

    def compute(self, values: Iterable[ir.Value]) -> dict[ir.Value, Any]:
        """Compute values in one run, in which the outputs of the model stay outputs.

        Args:
            values: Results of nodes, graph inputs or initializers.
        """
        graph = self.model.graph
        outputs = list(graph.outputs)
        requested = list(dict.fromkeys(values))
        pairs = zip(graph.inputs, self._inputs, strict=False)
        given = {value: as_graph_input(tensor, value) for value, tensor in pairs}
        wanted = [value for value in requested if value not in given]
        known = set(outputs)
        try:
            graph.outputs.extend(value for value in wanted if value not in known)
            session = Session(self.model, self._session_factory)
            try:
                computed = dict(zip(graph.outputs, session.run(self._inputs), strict=True))
            finally:
                session.close()
        finally:
            graph.outputs[:] = outputs
        return {value: given[value] if value in given else computed[value] for value in requested}


def difference_of(
    node: torch.fx.Node,
    name: str,
    value: ir.Value,
    expected: torch.Tensor,
    actual: torch.Tensor,
    tolerance: Tolerance,
    *,
    error: float | None = None,
) -> ValueDifference:
    """Compare the result of an operator, applied to the ONNX values of its inputs, with the ONNX value of its result.

    Args:
        node: The FX node.
        name: Name of the captured value.
        value: The ONNX value.
        expected: PyTorch's result.
        actual: The ONNX result.
        tolerance: The tolerances.
        error: The difference to the captured program's own value.
    """
    found = _described(node, name, str(value.name), expected, error)
    real, same = in_same_layout(expected, actual.to(expected.device))
    if same is None:
        return found
    own_error, message = tolerance.difference(real, same)
    found = replace(found, own_error=own_error)
    if not message:
        return found
    return replace(found, is_wrong=True, message=message, expected=statistics_of(real), actual=statistics_of(same))


def in_same_layout(expected: torch.Tensor, actual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return both tensors as real ones of PyTorch's shape; None for an ONNX value with another layout.

    Flattened tokens, ``[batch * length, width]``, are brought into the shape ``[batch, length, width]``.
    """
    real = torch.view_as_real(expected.detach().resolve_conj()) if expected.is_complex() else expected.detach()
    if actual.shape == real.shape:
        return real, actual
    if actual.dim() and real.dim() and actual.numel() == real.numel() and actual.shape[-1] == real.shape[-1]:
        return real, actual.reshape(real.shape)
    return real, None


def replacement_of(expected: torch.Tensor, actual: torch.Tensor) -> torch.Tensor | None:
    """The ONNX value in the form of PyTorch's, to continue with; None if it is equal or has another layout."""
    real, same = in_same_layout(expected, actual.to(expected.device))
    if same is None or (same.dtype == real.dtype and torch.equal(same, real)):
        return None
    same = same.to(real.dtype)
    return torch.view_as_complex(same.contiguous()) if expected.is_complex() else same


def _described(
    node: torch.fx.Node, name: str, value: str, tensor: torch.Tensor, error: float | None
) -> ValueDifference:
    """A value with its operator, module and source line."""
    call: Any = node.args[0] if node.target is operator.getitem else node
    scopes = class_scopes_of(node) or class_scopes_of(call)
    path, class_name = scopes[-1] if scopes else ("", "")
    line = source_line(node if node.meta.get("stack_trace") else call)
    return ValueDifference(
        name,
        value,
        target_name(call),
        path.split("@")[0],
        class_name.rpartition(".")[2],
        line,
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        source_text(line),
        error,
    )
