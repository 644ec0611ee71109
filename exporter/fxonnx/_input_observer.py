"""``InputObserver``: inference of example inputs and dynamic shapes from calls of a model."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from functools import wraps
from types import TracebackType
from typing import Any

import torch

from fxonnx_translations._builder.sub_byte import copy_of
from fxonnx_translations._torch_compat import pytree

from ._capture.inputs.pytree_objects import flatten_objects, unflatten_objects
from ._capture.shapes.dynamic_dims import AlignedCalls, align_calls
from ._capture.shapes.dynamic_shapes import Leaf
from ._comparison import compare
from ._program import ONNXProgram
from ._public import public
from .errors import ArgumentError, ExportError, did_you_mean

__all__ = ["InputObserver"]

_NAME = "InputObserver"


@dataclass(frozen=True)
class _Observation:
    """One observed call, with copies of its inputs and output."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any
    seconds: float


@public
class InputObserver:
    """Records calls of a model and infers its example inputs and dynamic shapes for ``fxonnx.export``.

    ::

        observer = fxonnx.InputObserver()
        with observer(model):
            model.generate(input_ids)
        program = fxonnx.export(
            model, kwargs=observer.infer_arguments(), dynamic_shapes=observer.infer_dynamic_shapes()
        )
        rows = observer.check_discrepancies(program)

    Alternatively, observe until the end of a block: ``with fxonnx.InputObserver() as observer: observer(model); ...``.

    Args:
        value_if_missing: Parameter name or position to the value assumed for calls that omit the parameter, such as an
            image that only the first call passes. Used only for inference, not to run the model.
    """

    def __init__(self, value_if_missing: Mapping[str | int, Any] | None = None) -> None:
        self._if_missing = dict(value_if_missing or {})
        self._observations: list[_Observation] = []
        self._signature: inspect.Signature | None = None
        self._stack: ExitStack | None = None

    def __enter__(self) -> InputObserver:
        self._stack = ExitStack()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()

    def __call__(
        self, model: torch.nn.Module, store_n_calls: int = 3, method_name: str = "forward"
    ) -> _MethodReplacement:
        """Observe a method of the model in a ``with`` block, the returned value's or the observer's.

        Args:
            model: The model; the method is replaced on this instance only and restored afterwards.
            store_n_calls: Maximal number of recorded calls, to limit memory; later calls are not recorded.
            method_name: Name of the method.

        Raises:
            ArgumentError: If the method does not exist, or its signature differs from that observed before.
        """
        method = getattr(model, method_name, None)
        if not callable(method):
            raise ArgumentError(
                "method_name",
                f"{type(model).__name__} does not have a method {method_name!r}",
                hint=did_you_mean(method_name, dir(model), "try 'forward'"),
            )
        if isinstance(store_n_calls, bool) or not isinstance(store_n_calls, int) or store_n_calls < 1:
            raise ArgumentError("store_n_calls", f"expected a positive int, got {store_n_calls!r}")
        signature = inspect.signature(method)
        if self._signature is not None and signature != self._signature:
            raise ArgumentError(
                "model",
                f"{type(model).__name__}.{method_name}{signature} differs from the signature observed before, "
                f"{method_name}{self._signature}",
                hint="use one InputObserver for each model",
            )
        for key in self._if_missing:
            _check_key("value_if_missing", key, signature)
        self._signature = signature
        replacement = _MethodReplacement(model, method_name, self._recording(method, signature, store_n_calls))
        if self._stack is not None:
            self._stack.enter_context(replacement)
        return replacement

    def _recording(
        self, method: Callable[..., Any], signature: inspect.Signature, store_n_calls: int
    ) -> Callable[..., Any]:
        @wraps(method)
        def recording(*args: Any, **kwargs: Any) -> Any:
            if len(self._observations) >= store_n_calls:
                return method(*args, **kwargs)
            # Copy before the call: the model may mutate its inputs, and caches grow.
            args_before, kwargs_before = _copy_inputs((args, kwargs))
            start = time.perf_counter()
            output = method(*args, **kwargs)
            seconds = time.perf_counter() - start
            self._observations.append(
                _Observation(args_before, kwargs_before, _copy_inputs(flatten_objects(output)), seconds)
            )
            return output

        # Callers such as generate() inspect the signature of the method.
        recording.__signature__ = signature  # type: ignore[attr-defined]
        return recording

    def num_obs(self) -> int:
        """Return the number of recorded calls."""
        return len(self._observations)

    def infer_dynamic_shapes(self, set_batch_dimension_for: bool | Collection[str | int] | None = None) -> Any:
        """Infer the ``dynamic_shapes`` of ``fxonnx.export``: dims and ints that differ between the calls are dynamic.

        Dims that are equal to each other in every call share a name, formed from the input and axis of the first one:
        ``input_ids_dim_1``.

        Args:
            set_batch_dimension_for: Parameters, by name or position, or True for all, whose tensors have the batch as
                first axis. This axis is dynamic even if it did not change and is named ``batch``.

        Returns:
            A tuple if all inputs are positional, otherwise a dict with parameter names as keys.

        Raises:
            ArgumentError: If the calls are inconsistent; see ``infer_arguments``.
        """
        aligned = self._aligned()
        shapes = aligned.dynamic_shapes(aligned.dims(self._batch_axis_filter(set_batch_dimension_for)))
        is_tuple = not aligned.inputs.kwargs and not _has_varargs(aligned.signature)
        return tuple(shapes.values()) if is_tuple else shapes

    def infer_arguments(
        self,
        index_or_args_or_kwargs: int | tuple[Any, ...] | Mapping[str, Any] | None = None,
        flat: bool = False,
        as_args_kwargs: bool = False,
    ) -> Any:
        """Return the example inputs of one call; omitted tensors become empty tensors, whose last dynamic dim is 0.

        Args:
            index_or_args_or_kwargs: Index of a recorded call; or inputs to complete, a tuple of positional or a dict of
                keyword inputs. By default the call with the fewest dynamic dims of size 1, which tracing tends to
                specialize, and of these the one with the most tensors.
            flat: Return a list of the leaves, in the order of the graph inputs.
            as_args_kwargs: Always return a tuple and a dict.

        Returns:
            A tuple if all inputs are positional, otherwise a dict with parameter names as keys.

        Raises:
            ArgumentError: If no calls were recorded, no call has all tensors, the tensors of a parameter differ in
                number, rank or dtype, or a float, bool or string differs between calls.
        """
        aligned = self._aligned()
        which = index_or_args_or_kwargs
        if which is None:
            values = aligned.call_to_export()
        elif isinstance(which, int):
            if not -len(aligned.calls) <= which < len(aligned.calls):
                raise ArgumentError(
                    "index_or_args_or_kwargs",
                    f"call {which} was not recorded",
                    hint=f"{len(aligned.calls)} calls were recorded",
                )
            values = dict(aligned.calls[which])
        else:
            call = ((), which) if isinstance(which, Mapping) else (which, {})
            values = dict(aligned.leaves_of(*call))
        leaves, _ = aligned.complete(values, aligned.dims())
        if flat:
            return leaves
        args, kwargs = aligned.arguments(leaves)
        if as_args_kwargs:
            return args, kwargs
        if not kwargs:
            return args
        if _has_varargs(aligned.signature) and args:
            raise ArgumentError(
                "as_args_kwargs",
                "the inputs cannot be returned as one tuple or dict, because the signature has *args",
                hint="pass as_args_kwargs=True",
            )
        return {**dict(zip(aligned.inputs.names(), args, strict=True)), **kwargs}

    def check_discrepancies(
        self,
        program: ONNXProgram,
        atol: float = 1e-4,
        rtol: float = 0.1,
        skip_none: bool = True,
    ) -> list[dict[str, Any]]:
        """Run an exported program on the inputs of every recorded call and compare with the recorded outputs.

        Args:
            program: The program, exported with the inferred inputs and dynamic shapes.
            atol: Absolute tolerance.
            rtol: Relative tolerance.
            skip_none: Ignore outputs that are None; otherwise each of them is a discrepancy.

        Returns:
            One dict for each call: ``SUCCESS``; ``abs`` and ``rel``, the largest differences; ``error``, if there is
            one; ``index`` of the call; ``duration_torch`` and ``ort_duration`` in seconds; the number of inputs,
            ``n_inputs``, and of those that were omitted, ``n_none``, and that have no elements, ``n_empty``.

        Raises:
            ArgumentError: If no calls were recorded or the calls are inconsistent.
        """
        aligned = self._aligned()
        dims = aligned.dims()
        rows = []
        for index, (values, seen) in enumerate(zip(aligned.calls, self._observations, strict=True)):
            leaves, missing = aligned.complete(values, dims)
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            row: dict[str, Any] = {
                "index": index,
                "duration_torch": seen.seconds,
                "n_inputs": len(tensors),
                "n_none": missing,
                "n_empty": sum(tensor.numel() == 0 for tensor in tensors),
            }
            expected = [leaf for leaf in pytree.tree_leaves(seen.output) if not (skip_none and leaf is None)]
            args, kwargs = aligned.arguments(leaves)
            rows.append(row | _compare_call(program, args, kwargs, expected, atol, rtol))
        return rows

    def _aligned(self) -> AlignedCalls:
        if self._signature is None or not self._observations:
            raise ArgumentError(_NAME, "No inputs were captured.", hint="call the model inside 'with observer(model):'")
        calls = [(seen.args, seen.kwargs) for seen in self._observations]
        return align_calls(self._signature, calls, _NAME, self._if_missing)

    def _batch_axis_filter(self, wanted: bool | Collection[str | int] | None) -> Callable[[Leaf], bool] | None:
        if isinstance(wanted, bool) or wanted is None:
            return (lambda leaf: True) if wanted else None
        if isinstance(wanted, str) or not isinstance(wanted, Collection):
            raise ArgumentError(
                "set_batch_dimension_for", f"expected True or names and positions of parameters, got {wanted!r}"
            )
        if self._signature is None:
            return None
        parameters = list(self._signature.parameters)
        for key in wanted:
            _check_key("set_batch_dimension_for", key, self._signature)
        names = {parameters[key] if isinstance(key, int) else key for key in wanted}
        return lambda leaf: leaf.parameter in names


class _MethodReplacement:
    """Context manager that replaces a method on one instance."""

    def __init__(self, model: torch.nn.Module, name: str, function: Callable[..., Any]) -> None:
        self._model, self._name, self._function = model, name, function
        self._before: list[Any] | None = None

    def __enter__(self) -> None:
        if self._before is None:
            self._before = [vars(self._model)[self._name]] if self._name in vars(self._model) else []
            setattr(self._model, self._name, self._function)

    def __exit__(self, *_: object) -> None:
        before, self._before = self._before, None
        if before:
            setattr(self._model, self._name, before[0])
        elif before is not None:
            delattr(self._model, self._name)


def _check_key(argument: str, key: Any, signature: inspect.Signature) -> None:
    parameters = signature.parameters
    if isinstance(key, int) and not isinstance(key, bool) and 0 <= key < len(parameters):
        return
    takes_any = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values())
    if isinstance(key, str) and (key in parameters or takes_any):
        return
    raise ArgumentError(
        argument,
        f"{key!r} is neither a name nor a position of a parameter",
        hint=did_you_mean(key, parameters, f"the parameters are: {', '.join(parameters)}"),
    )


def _has_varargs(signature: inspect.Signature) -> bool:
    return any(parameter.kind == parameter.VAR_POSITIONAL for parameter in signature.parameters.values())


def _copy_inputs(tree: Any) -> Any:
    """Copy a pytree with its tensors and the objects that contain tensors."""

    def copy(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return copy_of(leaf)
        # Also objects without tensors: an empty cache has tensors after the call.
        return leaf if callable(leaf) else deepcopy(leaf)

    return unflatten_objects(tree, pytree.tree_map(copy, flatten_objects(tree)))


def _compare_call(
    program: ONNXProgram,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    expected: list[Any],
    atol: float,
    rtol: float,
) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        actual = program(*_copy_inputs(args), **_copy_inputs(kwargs))
        seconds = time.perf_counter() - start
        names = [str(value.name) for value in program.model.graph.outputs]
        rows = compare(names, expected, actual, rtol=rtol, atol=atol)
    except ExportError as error:
        return {"SUCCESS": False, "error": str(error), "ort_duration": time.perf_counter() - start}
    wrong = [f"{row.name}: {row.message}" for row in rows if row.status != "ok"]
    result: dict[str, Any] = {
        "SUCCESS": not wrong,
        "abs": max((row.max_abs for row in rows if row.max_abs is not None), default=0.0),
        "rel": max((row.max_rel for row in rows if row.max_rel is not None), default=0.0),
        "ort_duration": seconds,
    }
    return result | ({"error": "; ".join(wrong)} if wrong else {})
