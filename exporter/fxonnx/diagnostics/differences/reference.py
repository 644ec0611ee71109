"""Evaluation of captured graphs node by node in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.export.graph_signature import InputKind

from fxonnx_translations._torch_compat import pytree

from ..._export_signature import read_signature
from ..._provenance import VALUE_KEY
from ..._written_parameters import written_placeholders

__all__ = ["Evaluation", "OnValue", "placeholder_values"]

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
