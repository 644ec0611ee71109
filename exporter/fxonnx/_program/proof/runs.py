"""Runs of a model and of the program captured from it on the same inputs, in torch."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import OutputKind

from fxonnx_translations._builder.sub_byte import as_codes, copy_of
from fxonnx_translations._torch_compat import OpOverload, disable_current_modes, pytree

from ..._callers_autocast import in_autocast
from ..._capture import Capture
from ..._capture.data_dependence.concrete_values import UNINITIALIZED
from ..._capture.eager_runs import (
    call_with_weights,
    copies_of_inputs,
    has_same_bits,
    is_plain,
    preserved_random_states,
    preserved_state,
    run_uncompiled,
)
from ..._capture.function_transforms import GRADIENTS, recorded_function_calls, unwound_transforms
from ..._capture.inputs.pytree_objects import flatten_objects
from ..._export_context import exporting, outside_of_export
from ..._interrupts import interruptible, interruption_point
from ..._written_parameters import written_parameters, written_placeholders
from ..assumption_checks import check_assumptions, placeholder_values
from ..call_binding import bind_call
from ..stateful import Calls, run_in_a_row

__all__ = ["CapturedRunner", "ModelRunner", "Outcome", "ProgramInterpreter", "TooManyCalls"]

_SEED = 0
_aten = torch.ops.aten
_ASSERTIONS = frozenset(
    {
        *(_aten._assert_scalar.default, _aten._assert_async.msg, _aten._assert_tensor_metadata.default),
        *(_aten.sym_constrain_range.default, _aten.sym_constrain_range_for_size.default),
    }
)


@dataclass(frozen=True)
class Outcome:
    """The results of one call or of several in a row, and the tensors that they write.

    Attributes:
        values: The outputs, then the tensors that are written, by description: ``output 0``, ``buffer h``, ``input 1``;
            those of the second call ``call 2: output 0``.
        ends: The number of values at the end of each call.
    """

    values: Mapping[str, Any]
    ends: tuple[int, ...]

    def first(self, calls: int) -> Outcome:
        """The results of the first calls."""
        if calls >= len(self.ends):
            return self
        return Outcome(dict(islice(self.values.items(), self.ends[calls - 1])), self.ends[:calls])


def _in_a_row(calls: Calls, run: Callable[[Any, Any], Mapping[str, Any]]) -> Outcome:
    """The results of calls in a row, up to one that fails."""
    values: dict[str, Any] = {}
    ends: list[int] = []
    for number, found in enumerate(run_in_a_row(calls, run), 1):
        values |= found if number == 1 else {f"call {number}: {name}": value for name, value in found.items()}
        ends.append(len(values))
    return Outcome(values, tuple(ends))


class TooManyCalls(BaseException):
    """Ends a run whose loops may not end; no model handles it."""


class _Limited(torch.overrides.TorchFunctionMode):
    """Ends a run after a number of calls of torch's functions.

    Args:
        limit: The number of calls.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._left = limit

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._left -= 1
        if self._left < 0:
            raise TooManyCalls("its loops do not end")
        return func(*args, **(kwargs or {}))


class ModelRunner:
    """Runs the model that the user passed, without a lasting effect on it.

    Args:
        model: A module, or a scripted function.
        capture: The program that was captured from it.
    """

    def __init__(self, model: Any, capture: Capture) -> None:
        self.model, self._capture = model, capture
        self._written = written_parameters(capture.exported_program)
        written = written_placeholders(capture.exported_program.graph)
        specs = capture.exported_program.graph_signature.input_specs
        used = {node.name for node in capture.exported_program.graph.find_nodes(op="placeholder") if node.users}
        self._targets = {str(spec.target) for spec in specs if spec.target is not None and spec.arg.name in used}
        self._updated = {str(spec.target) for spec in specs if spec.target is not None and spec.arg.name in written}
        self._computes_gradients = any(one.detail == GRADIENTS for one in capture.departures)

    def _add_gradients(self) -> None:
        """Give the parameters gradients of a call before, to which ``backward`` in forward adds."""
        if self._computes_gradients and isinstance(self.model, torch.nn.Module):
            for parameter in self.model.parameters():
                parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None

    def run(
        self,
        calls: Calls,
        *,
        is_seeded: bool = True,
        is_export: bool = False,
        limit: int | None = None,
        weights: Mapping[str, torch.Tensor] | None = None,
    ) -> Outcome:
        """Call the model on copies of the inputs, in the training and grad mode of the export.

        Raises:
            TooManyCalls: If the run ends.
        """
        replaced = dict(weights or {})
        return run_uncompiled(
            partial(self._run, calls, is_seeded=is_seeded, is_export=is_export, limit=limit, replaced=replaced)
        )

    def _run(
        self,
        calls: Calls,
        *,
        is_seeded: bool,
        is_export: bool,
        limit: int | None,
        replaced: dict[str, torch.Tensor],
    ) -> Outcome:
        capture, model = self._capture, self.model
        with (
            exporting() if is_export else outside_of_export(),
            torch.set_grad_enabled(torch.is_grad_enabled() if capture.grad_mode is None else capture.grad_mode),
            in_autocast(capture.autocast),
            preserved_state(model, capture.training, self._written | replaced.keys()),
            unwound_transforms(),
        ):
            keeps = len(calls) > 1
            run = partial(self._call, is_seeded=is_seeded, limit=limit, replaced=replaced, keeps_state=keeps)
            return _in_a_row(calls, run)

    def _call(
        self,
        args: Any,
        kwargs: Any,
        *,
        is_seeded: bool,
        limit: int | None,
        replaced: dict[str, torch.Tensor],
        keeps_state: bool,
    ) -> Mapping[str, Any]:
        capture, model = self._capture, self.model
        copies = copies_of_inputs((args, kwargs))
        given = capture.inputs.for_model(copies)
        state = self._state()
        before = {name: copy_of(tensor) for name, tensor in state.items()}
        with _random_numbers(is_seeded), nullcontext() if limit is None else _Limited(limit):
            self._add_gradients()
            with interruptible():
                result = flatten_objects(call_with_weights(model, replaced, given))
            after = self._state()
            buffers = model.named_buffers(remove_duplicate=False) if keeps_state else ()
            kept = self._updated | {name for name, _ in buffers}
            after = {name: one for name, one in after.items() if self._is_update(name, one, state.get(name), kept)}
            return _results(capture, result, copies, (args, kwargs), after, before)

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The parameters by name."""
        if not isinstance(self.model, torch.nn.Module):
            return {}
        named = dict(self.model.named_parameters(remove_duplicate=False))
        return {name: one for name, one in named.items() if type(one) is torch.nn.Parameter}

    def _is_update(self, name: str, after: torch.Tensor, before: torch.Tensor | None, kept: Collection[str]) -> bool:
        """Whether a captured program changes a tensor too: not if it is a new attribute, or has a new dtype."""
        is_new = after is not before and name in self._capture.exported_program.constants and name not in kept
        if before is None or is_new:
            return False
        return after.dtype == before.dtype

    def _state(self) -> dict[str, torch.Tensor]:
        """The buffers, the tensors that are plain attributes, and the parameters that forward writes."""
        if not isinstance(self.model, torch.nn.Module):
            return {}
        # Each of torch's iterators visits all modules.
        parameters = self.model.named_parameters(remove_duplicate=False) if self._written else ()
        named: dict[str, Any] = {name: one for name, one in parameters if name in self._written}
        buffers = dict(self.model.named_buffers(remove_duplicate=False))
        named |= self._used_buffers(buffers)
        # Tensors in containers, or those that forward creates; the others are plain attributes.
        constants = {name: one for name, one in self._capture.exported_program.constants.items() if name not in buffers}
        named |= constants
        for name in constants:
            with suppress(AttributeError):
                named[name] = operator.attrgetter(name)(self.model)
        return {name: one for name, one in named.items() if isinstance(one, torch.Tensor) and is_plain(one)}

    def _used_buffers(self, buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The buffers, those with several names by the names that the captured program uses."""
        first: dict[int, str] = {}
        for name, one in buffers.items():
            first.setdefault(id(one), name)
        used = {name: one for name, one in buffers.items() if name in self._targets}
        known = set(map(id, used.values()))
        return {name: buffers[name] for key, name in first.items() if name in used or key not in known} | used


class CapturedRunner:
    """Runs the captured program in torch, and counts the calls of its branches and loop bodies.

    Args:
        capture: The captured program.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._written = written_parameters(capture.exported_program)
        self.calls: dict[str, int] = {}
        """Number of calls of each subgraph in the last run, by its path."""

    def run(self, calls: Calls, limit: int | None = None, *, is_seeded: bool = True) -> Outcome:
        """Run the program on copies of the inputs, and of what it writes.

        Raises:
            TooManyCalls: If the run ends.
        """
        program = self._capture.exported_program
        stored = {**program.constants, **program.state_dict}
        before = {name: tensor for name, tensor in stored.items() if self._is_written(name, tensor)}
        weights = {name: copy_of(tensor) for name, tensor in before.items()}
        self.calls = {}

        def call(args: Any, kwargs: Any) -> Mapping[str, Any]:
            nonlocal before
            found = self._call(args, kwargs, weights, before, limit, is_seeded=is_seeded)
            if len(calls) > 1:
                before = {name: copy_of(tensor) for name, tensor in weights.items()}
            return found

        return _in_a_row(calls, call)

    def _call(
        self,
        args: Any,
        kwargs: Any,
        weights: Mapping[str, torch.Tensor],
        before: Mapping[str, Any],
        limit: int | None,
        *,
        is_seeded: bool,
    ) -> Mapping[str, Any]:
        program = self._capture.exported_program
        copies = copies_of_inputs((args, kwargs))
        call = bind_call(program, copies[0], copies[1], None, self._capture.inputs.frozen)
        self._capture.limits.check(call.inputs)
        # The answers of the example may depend on the state.
        check_assumptions(self._capture, call.inputs, weights)
        # The interpreter needs no code of the graph, whose generation takes most of the time of a small model.
        interpreter = ProgramInterpreter(program.graph_module, self.calls, limit, filler=0 if is_seeded else 1)
        functions = recorded_function_calls(self._capture.functions)
        # A failure inside of vmap must not leave the level of vmap to the caller.
        with torch.no_grad(), _random_numbers(is_seeded), functions, unwound_transforms():
            outputs = interpreter.run(*placeholder_values(program, call.inputs, weights), enable_io_processing=False)
        results = [
            value
            for value, spec in zip(outputs, program.graph_signature.output_specs, strict=True)
            if spec.kind == OutputKind.USER_OUTPUT
        ]
        result = program.call_spec.out_spec.unflatten(results)
        return _results(self._capture, result, (call.args, call.kwargs), (args, kwargs), weights, before)

    def _is_written(self, name: str, tensor: Any) -> bool:
        if isinstance(tensor, torch.nn.Parameter):
            return name in self._written
        return isinstance(tensor, torch.Tensor) and is_plain(tensor)


class ProgramInterpreter(torch.fx.Interpreter):
    """Runs a graph and its subgraphs without assertions, which the ONNX model does not have either.

    Args:
        module: The graph.
        calls: Receives the number of calls of each subgraph.
        limit: The number of calls after which TooManyCalls is raised.
        filler: The content of uninitialized memory.
        path: The path of the graph, with a dot at the end unless it is the outermost.
    """

    def __init__(
        self, module: torch.fx.GraphModule, calls: dict[str, int], limit: int | None, path: str = "", *, filler: int
    ) -> None:
        super().__init__(module)
        self._calls, self._limit, self._path, self._filler = calls, limit, path, filler

    def fetch_attr(self, target: str) -> Any:
        """Return an attribute; a subgraph as a function that runs it in the same way."""
        value = super().fetch_attr(target)
        if not isinstance(value, torch.fx.GraphModule):
            return value
        path = f"{self._path}{target}"

        def run(*args: Any) -> Any:
            self._calls[path] = self._calls.get(path, 0) + 1
            if self._limit is not None and self._calls[path] > self._limit:
                raise TooManyCalls(f"a loop has more than {self._limit} iterations")
            interpreter = ProgramInterpreter(value, self._calls, self._limit, f"{path}.", filler=self._filler)
            return interpreter.run(*args, enable_io_processing=False)

        return run

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call a function unless it is an assertion."""
        if target in _ASSERTIONS:
            return None
        result = super().call_function(target, args, kwargs)
        if target in UNINITIALIZED and is_plain(result):
            result.fill_(self._filler)
        return result

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run a node unless nothing uses its result: an operator whose error the model handles remains in the graph."""
        interruption_point()
        is_dead = not n.users and isinstance(n.target, OpOverload) and not n.is_impure()
        return None if is_dead else super().run_node(n)


def _results(
    capture: Capture, result: Any, copies: Any, given: Any, weights: Mapping[str, Any], before: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The outputs of a call, and the buffers and inputs whose values it has changed."""
    structure = capture.exported_program.call_spec.out_spec
    leaves = structure.flatten_up_to(result) if capture.output_lists else pytree.tree_leaves(result)
    # Results may be buffers, whose values are restored.
    values = {f"output {index}": _copied(leaf) for index, leaf in enumerate(leaves) if not isinstance(leaf, str | None)}
    for name, tensor in weights.items():
        if _differs(tensor, before[name]):
            values[f"buffer {name}"] = copy_of(tensor)
    pairs = zip(pytree.tree_leaves(copies), pytree.tree_leaves(given), strict=True)
    for index, (copied, original) in enumerate(pairs):
        if isinstance(copied, torch.Tensor) and is_plain(original) and _differs(copied, original):
            values[f"input {index}"] = copied
    return values


def _copied(leaf: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, copy_of, leaf)


def _differs(tensor: torch.Tensor, original: torch.Tensor) -> bool:
    if tensor.shape != original.shape or tensor.dtype != original.dtype:
        return True
    with disable_current_modes():  # which record the operators of the model
        return not has_same_bits(as_codes(tensor), as_codes(original))


@contextmanager
def _random_numbers(is_seeded: bool) -> Iterator[None]:
    """Restore the generators on exit; inside, they begin with one fixed seed or another one."""
    seed = _SEED if is_seeded else _SEED + 1
    # torch.manual_seed formats a stack for each kind of device that the machine lacks.
    seed_torch = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed
    with preserved_random_states():
        seed_torch(seed)
        random.seed(seed)
        np.random.seed(seed)
        yield
