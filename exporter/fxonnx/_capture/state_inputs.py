"""State that becomes graph inputs: parameters and buffers whose values, before a call, are those that the last one left.

Their values at the export are not known to the capture: what Python reads from them is read in each call. Which ones
forward writes is known after a capture only; another one follows if it may have computed with a value of theirs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import ExportedProgram

from .._export_signature import read_signature
from .._written_parameters import written_placeholders
from .plan import CapturePlan
from .result import Capture

__all__ = ["capture_with_states"]


def capture_with_states(
    run: Callable[[CapturePlan], tuple[Capture, CapturePlan]], plan: CapturePlan, model: torch.nn.Module
) -> tuple[Capture, CapturePlan]:
    """Capture a model until it computes with no value at the export of a tensor that it writes.

    Tensors that the captured program does not write keep their values, so that these may be known: no program that
    follows from them writes the tensors either.

    Args:
        run: Captures the model with a plan, and returns the plan of the last attempt.
        plan: The first plan.
        model: The model.
    """
    while True:
        traced, last = run(plan)
        states = plan.states | _written(traced.exported_program, model)
        if states == plan.states or not (last.has_concrete_values or traced.assumptions):
            return traced, last
        plan = replace(plan, states=states)


def _written(program: ExportedProgram, model: torch.nn.Module) -> frozenset[str]:
    """FQNs of the tensors of a model that a program may write, and of those that share memory with them."""
    placeholders = written_placeholders(program.graph)
    if not placeholders:
        return frozenset()
    names = [str(one.target) for one in read_signature(program).inputs if one.name in placeholders and one.target]
    tensors = dict(tensors_of(model, names))
    memory = {key for key in map(_memory, tensors.values()) if key}
    return frozenset(tensors) | {name for name, tensor in _weights(model).items() if _memory(tensor) in memory}


def tensors_of(model: torch.nn.Module, names: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters, buffers and tensor attributes of a model with some FQNs."""
    for name in names:
        try:
            value = operator.attrgetter(name)(model)
        except AttributeError:
            # A tensor that forward creates.
            continue
        if isinstance(value, torch.Tensor):
            yield name, value


def _weights(model: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    """The parameters and buffers by FQN, also the further names of one tensor."""
    return dict([*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)])


def _memory(tensor: torch.Tensor) -> int:
    """An id of the memory of a tensor; 0 for tensors without memory of their own, such as sparse ones."""
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else 0
