"""Verification of a program: ONNX Runtime against eager torch on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import onnx_ir as ir
import torch

from fxonnx_translations._builder.sub_byte import copy_of
from fxonnx_translations._torch_compat import pytree

from .._capture import Capture
from .._capture.autograd_functions import recorded_function_calls
from .._capture.inputs.list_inputs import with_lists
from .._capture.inputs.preserve import preserve_model
from .._capture.inputs.pytree_objects import flatten_objects, unflatten_objects
from .._capture.patches import one_at_a_time
from .._comparison import Row, compare, format_rows
from .._export_context import in_mode
from .._inner_tensors import is_wrapper, rewrapped
from .._options import Options
from .._public import public
from ..errors import ArgumentError, VerificationError, did_you_mean
from .call_binding import BoundCall, bind_call
from .dequantized_weights import (
    ROUNDED,
    DequantizedWeights,
    always_rounds,
    dequantized_weights,
    multiplies_stored_weights,
    products_in_float,
    replace_tables,
    tables_of_source,
)
from .differences import Comparison, RuntimeValues, Tolerance, compare_values
from .session import SessionFactory, session_in_float
from .stateful import final_states, read_states
from .verification_inputs import auto_sizes, check_sizes, resize_inputs
from .weights import WeightMap

__all__ = ["VerifiableProgram", "compare_with_captured", "verify"]


class VerifiableProgram(Protocol):
    """The members of ``ONNXProgram`` that verification reads."""

    @property
    def model(self) -> ir.Model:
        """The ONNX model."""

    @property
    def exported_program(self) -> torch.export.ExportedProgram:
        """The captured program."""

    @property
    def capture(self) -> Capture:
        """The captured program, its example inputs and constraints."""

    @property
    def options(self) -> Options:
        """The options of the export."""

    @property
    def example_inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Positional and keyword example inputs, if they are known."""

    @property
    def forward(self) -> Callable[..., Any] | None:
        """The ``forward`` that was captured, if it is available."""

    @property
    def returns_check(self) -> bool:
        """Whether the model has the output ``assumptions_hold``."""

    @property
    def float_model(self) -> ir.Model | None:
        """With 8-bit activations, the model before the quantization; otherwise None."""

    @property
    def applied_weights(self) -> Mapping[str, torch.Tensor]:
        """Weights that replace those of the captured program."""

    @property
    def weights(self) -> WeightMap:
        """The mapping between FQNs of the state_dict and initializers."""

    @property
    def session_factory(self) -> SessionFactory | None:
        """Creates sessions; None for the default one."""

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model in ONNX Runtime."""

    def call_in_float(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model in ONNX Runtime, without the rounding of activations that quantized weights permit."""


@public
def verify(
    program: VerifiableProgram,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    sizes: Literal["auto"] | Sequence[Mapping[str, int]] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    locate: bool = False,
) -> list[Row]:
    """Run a program in ONNX Runtime and in eager torch on the same inputs and compare the outputs.

    The number of outputs, dtypes, shapes and the positions of NaN and infinity must agree; integers and bools must be
    equal. Finite floating-point elements may differ by ``atol + rtol * |expected|``. By default, ``rtol`` is
    ``TOLERANCES[dtype]`` and ``atol`` is ``rtol`` times the largest absolute value among the elements that differ.

    With ``export(quantize=...)``, eager torch computes with the dequantized weights. ONNX Runtime multiplies by
    quantized weights without rounding the activations, which ``accuracy_level`` permits otherwise: the same tolerances
    apply. Mixtures of experts with 8 bits always round; then ``atol`` is 0.05 times the largest absolute value of all
    outputs. With 8-bit activations, the model before the quantization is compared, and the quantized model must return
    the same dtypes, shapes and finite elements; ``ONNXProgram.quantization_report`` measures how much the quantization
    changes them.

    Args:
        program: The exported program.
        args: Positional inputs; if ``kwargs`` is also None, the example inputs.
        kwargs: Keyword inputs.
        sizes: Sizes of the dynamic dims to verify instead of those of the inputs: dicts of dim name to size, in which
            omitted dims keep the size of the inputs; or "auto" for the inputs' own sizes, 1, primes and large sizes
            within the constraints. Inputs of other sizes are random with a fixed seed, in the value range of the given
            ones. Eager torch then runs the original model instead of the captured program.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        locate: Whether to find the first intermediate value that differs, if an output does; see
            ``ONNXProgram.compare``.

    Returns:
        One row for each graph output and size.

    Raises:
        ArgumentError: If inputs are missing or do not match the exported ones, or ``sizes`` or the sizes of the inputs
            violate the constraints.
        RuntimeSessionError: If ONNX Runtime cannot load or run the model.
        VerificationError: If an output differs; it has all rows and, with ``locate``, the ``comparison``.
    """
    call = _bind(program, args, kwargs)
    tolerance = Tolerance(rtol, atol)
    if sizes is None:
        rows = _verify_captured_program(program, call.args, call.kwargs, tolerance)
    else:
        rows = [row for one in _trials(program, call, sizes) for row in _verify_at_sizes(program, call, one, tolerance)]
    if any(row.status == "mismatch" for row in rows):
        is_nan = program.options.numerics == "default" and any("are NaN on" in row.message for row in rows)
        hint = 'export with numerics="exact", which preserves NaN' if is_nan else None
        comparison = compare_with_captured(program, args, kwargs, sizes=sizes, rtol=rtol, atol=atol) if locate else None
        message = f"ONNX Runtime and eager torch disagree:\n{format_rows(rows)}"
        if comparison is not None:
            message += f"\n{comparison.location}"
        raise VerificationError(message, rows=rows, comparison=comparison, hint=hint)
    return rows


def compare_with_captured(
    program: VerifiableProgram,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    sizes: Literal["auto"] | Sequence[Mapping[str, int]] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> Comparison:
    """Compare outputs and, if one differs, all values with those of the captured program.

    See ``ONNXProgram.compare``; the arguments are those of ``verify``.
    """
    call = _bind(program, args, kwargs)
    tolerance = Tolerance(rtol, atol)
    outputs: list[Row] = []
    for trial in [None] if sizes is None else _trials(program, call, sizes):
        one = (call.args, call.kwargs)
        if trial is not None:
            one = resize_inputs(program.exported_program, program.capture.limits, call, trial.sizes)
        try:
            rows = _verify_captured_program(program, *one, tolerance)
        except RuntimeError as error:
            if trial is None or not trial.may_fail:
                raise
            rows = [_skipped(trial, error)]
        shown = {} if trial is None else dict(trial.sizes)
        rows = [replace(row, sizes=tuple(shown.items())) for row in rows]
        outputs += rows
        wrong = {row.name: row.index for row in rows if row.status == "mismatch"}
        if wrong:
            inputs = bind_call(program.exported_program, *one, program.forward, program.capture.frozen_tensors).inputs
            with products_in_float(program.model), recorded_function_calls(program.capture.functions):
                factory = session_in_float if _runs_in_float(program) else None
                model = program.model if program.float_model is None else program.float_model
                runtime = RuntimeValues(model, _copy_tensors(inputs), program.session_factory or factory)
                weights = {**program.applied_weights, **_dequantized(program).products}
                located = compare_values(runtime, program.exported_program, one, weights, tolerance, wrong)
            return Comparison(tuple(outputs), located.values, located.paths, shown)
    return Comparison(tuple(outputs))


def _bind(program: VerifiableProgram, args: tuple[Any, ...] | None, kwargs: Mapping[str, Any] | None) -> BoundCall:
    """Bind arguments, by default those of the example, and check that they are of the exported structure."""
    if args is None and kwargs is None:
        if program.example_inputs is None:
            raise ArgumentError("args", "the exported program has no example inputs", hint="pass args or kwargs")
        args, kwargs = program.example_inputs
    capture = program.capture
    return bind_call(
        program.exported_program,
        args or (),
        kwargs or {},
        program.forward,
        capture.frozen_tensors,
        capture.input_lists,
    )


def _verify_captured_program(program: VerifiableProgram, args: Any, kwargs: Any, tolerance: Tolerance) -> list[Row]:
    # Each run gets copies of the inputs: the model may mutate them.
    actual = _run_program(program, args, kwargs)
    return _compare_outputs(program, _run_captured_program(program, args, kwargs), actual, tolerance)


@dataclass(frozen=True)
class _Trial:
    """Sizes to verify at, and whether a failure of eager torch at these sizes is allowed."""

    sizes: Mapping[str, int]
    may_fail: bool


def _trials(program: VerifiableProgram, call: BoundCall, sizes: Any) -> list[_Trial]:
    limits = program.capture.limits
    given = limits.sizes(call.inputs)
    if sizes == "auto":
        return [_Trial(one, one != given) for one in auto_sizes(limits, call.inputs)]
    if isinstance(sizes, str | Mapping) or not all(isinstance(one, Mapping) for one in sizes):
        hint = did_you_mean(sizes, ("auto",), 'for example [{"n": 3}]')
        raise ArgumentError("sizes", f"expected 'auto' or a list of dicts, got {sizes!r}", hint=hint)
    trials = []
    for one in sizes:
        complete = {**given, **one}
        check_sizes(limits, complete)
        trials.append(_Trial(complete, may_fail=False))
    return trials


def _verify_at_sizes(program: VerifiableProgram, call: BoundCall, trial: _Trial, tolerance: Tolerance) -> list[Row]:
    args, kwargs = resize_inputs(program.exported_program, program.capture.limits, call, trial.sizes)
    sizes = tuple(trial.sizes.items())
    shown = ", ".join(f"{name} = {size}" for name, size in sizes)
    try:
        expected = _run_source_model(program, args, kwargs)
    except Exception as error:  # a model may raise anything
        skipped = _skipped(trial, error)
        if trial.may_fail:
            return [skipped]
        raise ArgumentError("sizes", f"{skipped.message}\n  at sizes: {shown}") from error
    actual = _run_program(program, args, kwargs)
    return [replace(row, sizes=sizes) for row in _compare_outputs(program, expected, actual, tolerance)]


def _skipped(trial: _Trial, error: Exception) -> Row:
    reason = f"eager torch failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return Row("-", -1, "skipped", "-", (), message=reason, sizes=tuple(trial.sizes.items()))


def _runs_in_float(program: VerifiableProgram) -> bool:
    """Whether ONNX Runtime would round activations before it multiplies them by quantized weights."""
    return program.options.quantize is not None or multiplies_stored_weights(program.model)


def _run_program(program: VerifiableProgram, args: Any, kwargs: Any) -> tuple[Any, ...]:
    run = program.call_in_float if _runs_in_float(program) else program
    args, kwargs = with_lists((args, kwargs), program.capture.input_lists)
    outputs = run(*_copy_tensors(args), **_copy_tensors(kwargs))
    if program.float_model is not None:
        _check_quantized(program, outputs, program(*_copy_tensors(args), **_copy_tensors(kwargs)))
    return outputs


def _check_quantized(program: VerifiableProgram, expected: Sequence[Any], actual: Sequence[Any]) -> None:
    """Check that a quantized model differs from the model before the quantization only in the values of elements.

    Raises:
        VerificationError: If it does not.
    """
    names = [str(value.name) for value in program.model.graph.outputs]
    pairs = [
        (index, before, after)
        for index, (one, other) in enumerate(zip(expected, actual, strict=True))
        for before, after in zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True)
    ]
    rows = []
    for index, before, after in pairs:
        name, message = names[index], ""
        if (before.dtype, before.shape) != (after.dtype, after.shape):
            message = f"quantized: {after.dtype} of shape {list(after.shape)}"
        elif before.is_floating_point() and bool(before.isfinite().all()) and not bool(after.isfinite().all()):
            # NaN is not compared: integers cannot represent it, and a dynamic scale distributes it.
            message = "quantized: finite elements became infinite or NaN"
        if message:
            dtype = str(before.dtype).removeprefix("torch.")
            rows.append(Row(name, index, "mismatch", dtype, tuple(before.shape), message=message))
    if rows:
        raise VerificationError(f"the quantization is wrong:\n{format_rows(rows)}", rows=rows)


def _dequantized(program: VerifiableProgram) -> DequantizedWeights:
    if program.options.quantize is None or program.float_model is not None:
        return DequantizedWeights({}, {})
    return dequantized_weights(program.model, program.weights)


def _run_captured_program(program: VerifiableProgram, args: Any, kwargs: Any) -> list[Any]:
    module = _isolated_module(program.exported_program)
    quantized = _dequantized(program)
    replace_tables(module, quantized.tables)
    weights = {name: copy_of(buffer) for name, buffer in module.named_buffers()}
    weights |= {**program.applied_weights, **quantized.products}
    args, kwargs = tuple(_copy_tensors(args)), dict(_copy_tensors(kwargs))
    with torch.no_grad(), recorded_function_calls(program.capture.functions):
        result = torch.func.functional_call(module, weights, args, kwargs, tie_weights=False)
        return _with_check(program, _output_leaves(program, result)) + _final_states(
            program, module, weights, args, kwargs
        )


def _run_source_model(program: VerifiableProgram, args: Any, kwargs: Any) -> list[Any]:
    """Run the original model without modifying it, or the captured program if the model is not available."""
    source = program.capture.source
    if source is None:
        return _run_captured_program(program, args, kwargs)
    quantized = _dequantized(program)
    weights = {
        name: buffer.detach() if is_wrapper(buffer) else copy_of(buffer) for name, buffer in source.named_buffers()
    } | {
        **rewrapped(source, program.applied_weights),
        **quantized.products,
        **tables_of_source(source, quantized.tables),
    }
    args, kwargs = _copy_tensors(args), _copy_tensors(kwargs)
    # Capture in another thread may replace the weights of the same model temporarily.
    with one_at_a_time(), torch.no_grad(), in_mode(source, program.options.training), preserve_model(source, ()):
        given = _with_python_scalars((args, kwargs), program.capture.scalars)
        given = with_lists(given, program.capture.input_lists)
        if program.capture.objects is not None:
            given = unflatten_objects(program.capture.objects, given)
        # Weights of scripted modules cannot be replaced; without applied weights this is not needed.
        is_scripted = any(isinstance(module, torch.jit.ScriptModule) for module in source.modules())
        result = flatten_objects(
            source(*given[0], **given[1])
            if is_scripted and not program.applied_weights
            else torch.func.functional_call(source, weights, *given, tie_weights=False)
        )
        return _with_check(program, _output_leaves(program, result)) + _final_states(
            program, source, weights, args, kwargs
        )


def _output_leaves(program: VerifiableProgram, result: Any) -> list[Any]:
    structure = program.exported_program.call_spec.out_spec
    # The captured program returns the stacked tensor of a list of dynamic length.
    leaves = structure.flatten_up_to(result) if program.capture.output_lists else pytree.tree_leaves(result)
    return [leaf for leaf in leaves if not isinstance(leaf, str | None)]


def _with_check(program: VerifiableProgram, outputs: list[Any]) -> list[Any]:
    """The outputs with the value of ``assumptions_hold``, which is true for inputs that a call accepts."""
    return [*outputs, torch.tensor(True)] if program.returns_check else outputs


def _final_states(
    program: VerifiableProgram, module: torch.nn.Module, weights: Any, args: Any, kwargs: Any
) -> list[Any]:
    if not read_states(program.model):
        return []
    call = bind_call(program.exported_program, args, kwargs, program.forward, program.capture.frozen_tensors)
    return _copy_tensors(final_states(program.model, module, weights, call.inputs))  # type: ignore[no-any-return]


def _with_python_scalars(given: Any, positions: Collection[int]) -> Any:
    """Replace the tensors at the given leaf positions by Python numbers, as the original model expects them."""
    if not positions:
        return given
    leaves, structure = pytree.tree_flatten(given)
    numbers = [leaf.item() if index in positions else leaf for index, leaf in enumerate(leaves)]
    return pytree.tree_unflatten(numbers, structure)


def _compare_outputs(
    program: VerifiableProgram,
    expected: Sequence[Any],
    actual: Sequence[Any],
    tolerance: Tolerance,
) -> list[Row]:
    names = [str(value.name) for value in program.model.graph.outputs]
    atol = tolerance.atol
    if atol is None and program.options.quantize is not None and always_rounds(program.model):
        values = pytree.tree_leaves(list(expected))
        largest = [value.double().abs().max().item() for value in values if value.is_floating_point()]
        atol = ROUNDED * max(largest, default=0.0)
    return compare(names, expected, actual, rtol=tolerance.rtol, atol=atol)


def _copy_tensors(tree: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, copy_of, tree)


def _isolated_module(exported_program: torch.export.ExportedProgram) -> torch.nn.Module:
    """Create a module of the program with copies of its buffers, which ``module()`` shares with the user's model."""
    module = exported_program.module()
    for owner in module.modules():
        for name, buffer in owner.named_buffers(recurse=False):
            setattr(owner, name, copy_of(buffer))
        for name, value in list(vars(owner).items()):
            if isinstance(value, torch.Tensor):
                setattr(owner, name, copy_of(value))
    return module
