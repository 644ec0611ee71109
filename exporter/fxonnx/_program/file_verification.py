"""Verification of a saved model against the user's model, without the program that it was saved from."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fxonnx_translations._torch_compat import pytree

from .._capture.eager_runs import copies_of_inputs, preserved_random_states, preserved_state
from .._capture.inputs.pytree_objects import flatten_objects
from .._comparison import REFERENCE_TEXTS, OutputComparison, OutputRows, ReferenceName, Tolerance, compare, format_rows
from .._model_files import check_external_data, is_sequence, load_model
from ..errors import ArgumentError, ExportError, VerificationError, one_line
from .proof.variations import changed_inputs
from .random_outputs import reruns_of, without_random_outputs
from .sequence_verification import HINT, rows_in_a_row
from .session import Session
from .stateful import Calls, final_states, has_state_inputs, read_states, run_in_a_row, session_outputs

__all__ = ["verify_file"]


def verify_file(
    path: str | os.PathLike[str],
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tolerance: Tolerance,
    reference: ReferenceName,
) -> list[OutputComparison]:
    """Compare a saved model with the user's model; see ``fxonnx.verify``.

    Args:
        path: The file.
        model: The model, in the mode in which it runs.
        args: Positional inputs.
        kwargs: Keyword inputs.
        tolerance: The tolerances.
        reference: The kind of the model, for messages.
    """
    loaded = load_model(path)
    check_external_data(loaded)
    names = [str(value.name) for value in loaded.graph.outputs]
    inputs = _graph_inputs(loaded, model, args, kwargs)
    session = Session(loaded, file=os.fspath(path))

    def run(args: Sequence[Any], kwargs: Mapping[str, Any], _: Any = None) -> list[Any]:
        return _run_model(loaded, model, [(args, kwargs)])[0]

    def compared_named(names: Sequence[str], expected: Sequence[Any], actual: Sequence[Any]) -> list[OutputComparison]:
        return compare(names, expected, actual, rtol=tolerance.rtol, atol=tolerance.atol, reference=reference)

    hint = "export the model again; program.compare(model=model) finds the operator, line and module"
    with preserved_random_states():
        expected = _first_run(partial(run, args, kwargs), reference)
        reruns = reruns_of(run, args, kwargs, {}, reference)
        compared = partial(compared_named, names)
        rows = without_random_outputs(compared(expected, session.run(inputs)), expected, reruns, compared)
        if all(row.status != "mismatch" for row in rows) and has_state_inputs(loaded):
            hint = HINT
            rows += rows_in_a_row(
                lambda calls, _: _run_model(loaded, model, calls),
                lambda calls: session_outputs(loaded, session, [_graph_inputs(loaded, model, *one) for one in calls]),
                compared_named,
                reference,
                _sequences(loaded, model, args, kwargs),
                names,
            )
    if any(row.status == "mismatch" for row in rows):
        raise VerificationError(
            f"ONNX Runtime and {REFERENCE_TEXTS[reference]} disagree:\n{format_rows(rows)}", rows=rows, hint=hint
        )
    return OutputRows(rows)


def _sequences(loaded: ir.Model, model: Any, args: Any, kwargs: Any) -> Iterator[Calls]:
    """Calls in a row, with other values of the inputs of the file; then the same call repeatedly."""
    given = {id(value) for value in _graph_inputs(loaded, model, args, kwargs)}
    changes = ("negated", "with noise")
    yield [(args, kwargs), *(changed_inputs(label, args, kwargs, lambda leaf: id(leaf) in given) for label in changes)]
    yield [(args, kwargs)] * 3


def _first_run(run: Callable[[], list[Any]], reference: ReferenceName) -> list[Any]:
    """Run the model."""
    try:
        return run()
    except ExportError:
        raise
    except Exception as error:  # a model may raise anything
        problem = f"{REFERENCE_TEXTS[reference]} failed: {one_line(error)}"
        raise ArgumentError("args", problem, hint="call the model with these inputs") from error


def _run_model(loaded: ir.Model, model: Any, calls: Calls) -> list[list[Any]]:
    """The outputs and states of calls in a row, up to one that fails."""
    states = read_states(loaded)

    def call(args: Any, kwargs: Any) -> list[Any]:
        args, kwargs = copies_of_inputs((tuple(args), dict(kwargs)))
        result = flatten_objects(model(*args, **kwargs))
        if any(map(is_sequence, loaded.graph.outputs)):
            leaves = list(result) if isinstance(result, tuple) else [result]
        else:
            leaves = [leaf for leaf in pytree.tree_leaves(result) if not isinstance(leaf, str | None)]
        if states:
            values = {}
            if isinstance(model, torch.nn.Module):
                values = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            leaves += final_states(loaded, model, values, _graph_inputs(loaded, model, args, kwargs))
        copies: list[Any] = copies_of_inputs(leaves)
        return copies

    with preserved_state(model, None, {pair.name for pair in states}):
        return run_in_a_row(calls, call)


def _graph_inputs(loaded: ir.Model, model: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> list[Any]:
    """Assign the arguments to the graph inputs: by the names of parameters, or in order."""
    graph = loaded.graph
    wanted = [value for value in graph.inputs if value.name not in graph.initializers]
    named = _by_parameter(model, args, kwargs)
    if all(value.name in named for value in wanted):
        return [named[str(value.name)] for value in wanted]
    leaves = pytree.tree_leaves(flatten_objects((tuple(args), dict(kwargs))))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor | np.ndarray)]
    for given in (tensors, [leaf for leaf in leaves if not isinstance(leaf, str | None)]):
        if len(given) == len(wanted):
            return given
    expected = ", ".join(str(value.name) for value in wanted)
    raise ArgumentError(
        "args",
        f"the file has the inputs {expected}, and the call has {len(tensors)} tensors",
        hint="pass the tensors of the export; by the names of the graph inputs, constants are omitted",
    )


def _by_parameter(model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by the names of the parameters; only those passed by name if the signature is not known."""
    try:
        signature = inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model)
        bound = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        # Scripted models have no signature, and a call that does not match fails in the model itself.
        return dict(kwargs)
    return {**bound, **kwargs}
