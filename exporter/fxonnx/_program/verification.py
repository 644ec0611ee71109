"""Verification of a program: ONNX Runtime against the user's model on the same inputs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, overload

import torch

from fxonnx_translations._torch_compat import pytree

from .._capture.constraints.constraint import Constraint, SizeLimits
from .._capture.constraints.constraint_solver import Bounds
from .._capture.eager_runs import preserved_random_states
from .._capture.function_transforms import recorded_function_calls
from .._capture.inputs.example_inputs import with_lists
from .._comparison import NEGATIVE_ZERO, OutputComparison, OutputRows, ReferenceName, Tolerance, compare, format_rows
from .._extensions import add_on
from .._lower.guards import name_of_constraint
from .._progress import Counter
from .._public import public
from ..errors import ArgumentError, ExportError, RuntimeSessionError, VerificationError, did_you_mean, kind_of, one_line
from .accuracy_level import ROUNDED, always_rounds, products_in_float
from .call_binding import BoundCall, bind_call
from .file_verification import verify_file
from .random_outputs import as_runtime_outputs, reruns_of, without_random_outputs
from .references import (
    Model,
    Reference,
    VerifiableProgram,
    captured_reference,
    copies,
    dequantized,
    reference_of,
    runs_in_float,
)
from .sequence_verification import HINT, program_in_a_row
from .session import Session, session_in_float
from .value_comparison import Comparison
from .verification_inputs import auto_sizes, check_sizes, may_index_on_gpu, resize_inputs

__all__ = ["compare_with_model", "verify"]

_COMPARE = "program.compare(model=model) finds the operator, line and module"
_Sizes = Literal["auto"] | Sequence[Mapping[str, int]] | None


@overload
def verify(
    program: VerifiableProgram,
    args: tuple[Any, ...] | torch.Tensor | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    model: Model | None = None,
    sizes: _Sizes = None,
    rtol: float | None = None,
    atol: float | None = None,
    locate: bool = False,
) -> list[OutputComparison]: ...


@overload
def verify(
    program: VerifiableProgram | str | os.PathLike[str],
    model: Model,
    args: tuple[Any, ...] | torch.Tensor | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    sizes: _Sizes = None,
    rtol: float | None = None,
    atol: float | None = None,
    locate: bool = False,
) -> list[OutputComparison]: ...


@public
def verify(
    program: Any,
    *inputs: Any,
    args: tuple[Any, ...] | torch.Tensor | None = None,
    kwargs: Mapping[str, Any] | None = None,
    model: Model | None = None,
    sizes: _Sizes = None,
    rtol: float | None = None,
    atol: float | None = None,
    locate: bool = False,
) -> list[OutputComparison]:
    """Run a program in ONNX Runtime and the model in eager torch on the same inputs and compare the outputs.

    The reference is the model itself: its own ``forward`` in Python, in the training and grad mode of the export, on
    copies of the inputs. Its parameters, buffers and attributes, and the random number generators, are restored
    afterwards. For an ``ExportedProgram`` it is the module of that program. A program whose model is not known is
    compared with the captured program; ``OutputComparison.reference`` and every message say so.

    The number of outputs, dtypes, shapes and the positions of NaN and infinity must agree; integers and bools must be
    equal. Finite floating-point elements may differ by ``atol + rtol * |expected|``. By default, ``rtol`` is
    ``TOLERANCES[dtype]`` and ``atol`` is ``rtol`` times the largest absolute value among the elements that differ.
    Outputs in which two runs of the model differ from each other are skipped, and those that differ as much after a
    change of 1e-6 in the inputs or weights, because elements are tied.

    With ``export(quantize=...)``, the model computes with the dequantized weights. ONNX Runtime multiplies by
    quantized weights without rounding the activations, which ``accuracy_level`` permits otherwise: the same tolerances
    apply. Mixtures of experts with 8 bits always round; then ``atol`` is 0.05 times the largest absolute value of all
    outputs. With 8-bit activations, the model before the quantization is compared, and the quantized model must return
    the same dtypes, shapes and finite elements; ``ONNXProgram.quantization_report`` measures how much the quantization
    changes them.

    A program with ``state="io"`` is also run in calls in a row, with other values at each, from the state that it
    returned for the call before; the rows of the second call begin with "call 2: ".

    A saved file is compared with a model at given inputs, in the mode in which the model is; its quantized weights are
    the file's, which the model does not compute with.

    Args:
        program: The exported program, or the path of a saved model, which requires a model and inputs.
        *inputs: ``args`` and ``kwargs`` by position, after the model if that is given by position.
        args: Positional inputs, a bare tensor is one; if ``kwargs`` is also None, the example inputs.
        kwargs: Keyword inputs.
        model: The model to compare with, with its own weights; by default the one that was exported, with the weights
            of ``apply_weights``.
        sizes: Sizes of the dynamic dims to verify instead of the inputs': dicts of dim name to size, in which
            omitted dims keep the size of the inputs; or "auto" for the inputs' own sizes, 1, primes and large sizes
            within the constraints, and sizes outside of them, at which the model has to fail. Inputs of other sizes are
            random with a fixed seed, in the value range of the given ones.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        locate: Whether to find the first intermediate value that differs, if an output does; see
            ``ONNXProgram.compare``.

    Returns:
        One row for each graph output and size, and for each graph output of the calls in a row.

    Raises:
        ArgumentError: If inputs are missing or do not match the exported ones, ``sizes`` or the sizes of the inputs
            violate the constraints, or the model fails on the inputs.
        RuntimeSessionError: If ONNX Runtime cannot load or run the model.
        VerificationError: If an output differs; it has all rows and, with ``locate``, the ``comparison``. Or if the
            model computes outputs outside of its limits.
    """
    model, args, kwargs = _read_inputs(inputs, model, args, kwargs)
    if isinstance(program, str | os.PathLike | bytes):
        return _verify_file(program, model, args, kwargs, Tolerance(rtol, atol), other=sizes or locate)
    if not hasattr(program, "record"):
        problem = f"expected an ONNXProgram or the path of a file, got {kind_of(program)}"
        raise ArgumentError("program", problem, hint="write verify(fxonnx.export(model, args), model, args)")
    run = _Run(program, reference_of(program, model), Tolerance(rtol, atol))
    with preserved_random_states():
        call = run.bind(args, kwargs)
        trials, rows = run.trials(call, sizes), OutputRows()
        counter = Counter("sizes", len(trials))
        for trial in trials:
            counter.add()
            rows += run.rows(call, trial)
        are_equal = all(row.status != "mismatch" for row in rows)
        if are_equal:
            rows += program_in_a_row(run.reference, call, run.compare_named, other_sizes=sizes == "auto")
        if sizes == "auto":
            _verify_guards(program, call)
    if any(row.status == "mismatch" for row in rows):
        if are_equal:
            raise run.error(rows, hint=HINT)
        comparison = None
        if locate:
            comparison = compare_with_model(program, args, kwargs, model=model, sizes=sizes, rtol=rtol, atol=atol)
        raise run.error(rows, comparison)
    return rows


def _read_inputs(
    inputs: Sequence[Any], model: Model | None, args: Any, kwargs: Any
) -> tuple[Model | None, tuple[Any, ...] | None, Mapping[str, Any] | None]:
    """The model and the inputs, each given by position or by name."""
    given = list(inputs)
    named: dict[str, Any] = {"model": model, "args": args, "kwargs": kwargs}
    is_model_first = given and (callable(given[0]) or isinstance(given[0], torch.export.ExportedProgram))
    names = ["model", "args", "kwargs"] if is_model_first else ["args", "kwargs"]
    if len(given) > len(names):
        raise ArgumentError("inputs", f"expected a model, args and kwargs, got {len(given)} values by position")
    for name, value in zip(names, given, strict=False):
        if value is not None and named[name] is not None:
            raise ArgumentError(name, "argument given both by position and by name")
        named[name] = named[name] if value is None else value
    return named["model"], named["args"], named["kwargs"]


def _verify_file(
    path: Any, model: Any, args: Any, kwargs: Any, tolerance: Tolerance, *, other: Any
) -> list[OutputComparison]:
    if model is None or (args is None and kwargs is None):
        missing = "model" if model is None else "args"
        raise ArgumentError(missing, "a saved file has no model and no inputs", hint="verify(path, model, args)")
    if other:
        raise ArgumentError("sizes", "a saved file is verified at the given inputs", hint="pass inputs of other sizes")
    name: ReferenceName = "model"
    if isinstance(model, torch.export.ExportedProgram):
        name, model = "exported program", model.module()
    args = (args,) if isinstance(args, torch.Tensor) else args or ()
    return verify_file(path, model, args, kwargs or {}, tolerance, name)


def compare_with_model(
    program: VerifiableProgram,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    model: Model | None = None,
    sizes: _Sizes = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> Comparison:
    """Compare outputs with the model and, if one differs, all values with the captured program's.

    See ``ONNXProgram.compare``, with the arguments of ``verify``.
    """
    run = _Run(program, reference_of(program, model), Tolerance(rtol, atol))
    outputs: list[OutputComparison] = []
    with preserved_random_states():
        call = run.bind(args, kwargs)
        for trial in run.trials(call, sizes):
            rows = run.rows(call, trial)
            outputs += rows
            if any(row.status == "mismatch" for row in rows):
                return run.located(trial.inputs(program, call), rows, outputs)
    return Comparison(tuple(outputs))


@dataclass(frozen=True)
class _Trial:
    """Sizes to verify at, None for the inputs', and whether the model may fail at them."""

    sizes: Mapping[str, int] | None = None
    may_fail: bool = False

    @property
    def shown(self) -> tuple[tuple[str, int], ...]:
        """The sizes in rows."""
        return tuple((self.sizes or {}).items())

    def inputs(self, program: VerifiableProgram, call: BoundCall) -> BoundCall:
        """The call with inputs of these sizes."""
        if self.sizes is None:
            return call
        capture = program.record.capture
        resized = resize_inputs(program.exported_program, capture.limits, call, self.sizes)
        return bind_call(program.exported_program, *resized, program.record.forward, capture.inputs.frozen)


@dataclass(frozen=True)
class _Run:
    """The comparison of a program with a reference."""

    program: VerifiableProgram
    reference: Reference
    tolerance: Tolerance

    def bind(self, args: tuple[Any, ...] | None, kwargs: Mapping[str, Any] | None) -> BoundCall:
        """Bind arguments, by default the example's, and check that they are of the exported structure."""
        program, capture = self.program, self.program.record.capture
        if args is None and kwargs is None:
            if program.record.example_inputs is None:
                raise ArgumentError("args", "the exported program has no example inputs", hint="pass args or kwargs")
            args, kwargs = program.record.example_inputs
        args = (args,) if isinstance(args, torch.Tensor) else args
        for name, value, kind, example in (
            ("args", args, tuple | list, "(x,)"),
            ("kwargs", kwargs, Mapping, '{"x": x}'),
        ):
            if value is not None and not isinstance(value, kind):
                raise ArgumentError(name, f"expected the inputs, got {kind_of(value)}", hint=f"write {name}={example}")
        frozen, lists = capture.inputs.frozen, capture.inputs.lists
        return bind_call(program.exported_program, args or (), kwargs or {}, program.record.forward, frozen, lists)

    def trials(self, call: BoundCall, sizes: Any) -> list[_Trial]:
        """The sizes to verify at."""
        if sizes is None:
            return [_Trial()]
        limits = self.program.record.capture.limits
        given = limits.sizes(call.inputs)
        if sizes == "auto":
            return [_Trial(one, one != given) for one in auto_sizes(limits, call.inputs)]
        if not isinstance(sizes, list | tuple) or not all(isinstance(one, Mapping) for one in sizes):
            hint = did_you_mean(sizes, ("auto",), 'for example [{"n": 3}]')
            raise ArgumentError("sizes", f"expected 'auto' or a list of dicts, got {sizes!r}", hint=hint)
        trials = []
        for one in sizes:
            complete = {**given, **one}
            check_sizes(limits, complete)
            trials.append(_Trial(complete))
        return trials

    def rows(self, call: BoundCall, trial: _Trial) -> list[OutputComparison]:
        """Compare the outputs at given sizes: one row for each, or one that says why they are skipped."""
        obstacle = self.reference.obstacle(call)
        if obstacle:
            return [self._skipped(trial, obstacle)]
        call = trial.inputs(self.program, call)
        if trial.sizes is None:
            self._check(call)
        try:
            expected = self.reference.run(call.args, call.kwargs)
        except ExportError:
            raise
        except Exception as error:  # a model may raise anything
            skipped = self._skipped(trial, f"{self.reference.text} failed: {one_line(error)}")
            if trial.may_fail:
                return [skipped]
            if trial.sizes is None:
                raise ArgumentError("args", skipped.message, hint="call the model with these inputs") from error
            shown = ", ".join(f"{name} = {size}" for name, size in trial.shown)
            raise ArgumentError("sizes", f"{skipped.message}\n  at sizes: {shown}") from error
        rows = self.compare(expected, _run_program(self.program, call))
        reruns = reruns_of(self.reference.run, call.args, call.kwargs, self.reference.weights, self.reference.name)
        rows = without_random_outputs(rows, expected, reruns, self.compare)
        return [replace(row, sizes=trial.shown) for row in rows]

    def _check(self, call: BoundCall) -> None:
        """Check the constraints on the sizes, before the model runs."""
        args, kwargs = with_lists((call.args, call.kwargs), self.program.record.capture.inputs.lists)
        self.program.interface.bind(args, kwargs)

    def _skipped(self, trial: _Trial, reason: str) -> OutputComparison:
        return OutputComparison(
            "-", -1, "skipped", "-", (), message=reason, sizes=trial.shown, reference=self.reference.name
        )

    def compare(self, expected: Sequence[Any], actual: Sequence[Any]) -> list[OutputComparison]:
        """Compare outputs with the reference's."""
        return self.compare_named([str(value.name) for value in self.program.model.graph.outputs], expected, actual)

    def compare_named(
        self, names: Sequence[str], expected: Sequence[Any], actual: Sequence[Any]
    ) -> list[OutputComparison]:
        """Compare outputs, of one call or of several, with the reference's."""
        rtol, atol = self.tolerance.rtol, self.tolerance.atol
        if atol is None and self.program.record.options.quantize is not None and always_rounds(self.program.model):
            values = pytree.tree_leaves(list(expected))
            largest = [value.double().abs().max().item() for value in values if value.is_floating_point()]
            atol = ROUNDED * max(largest, default=0.0)
        return compare(names, expected, actual, rtol=rtol, atol=atol, reference=self.reference.name)

    def error(
        self, rows: Sequence[OutputComparison], comparison: Comparison | None = None, hint: str = _COMPARE
    ) -> VerificationError:
        """The error for outputs that differ."""
        hints = []
        if self.program.record.options.numerics == "default":
            if any("are NaN on" in row.message for row in rows):
                hints.append('export with numerics="exact", which preserves NaN')
            if any(NEGATIVE_ZERO in row.message for row in rows):
                hints.append('export with numerics="exact", which preserves the signs of zeros')
        message = f"ONNX Runtime and {self.reference.text} disagree:\n{format_rows(rows)}"
        changed = self.reference.changed_weights()
        if changed:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            message += f"\nthe model has other weights than the program: {changed[0]!r}{more}"
            hints.append("pass the model that was exported, or export this one")
        if comparison is not None:
            message += f"\n{comparison.location}"
        else:
            hints.append(hint)
        return VerificationError(message, rows=rows, comparison=comparison, hint="; ".join(hints) or None)

    def located(
        self, call: BoundCall, rows: Sequence[OutputComparison], outputs: Sequence[OutputComparison]
    ) -> Comparison:
        """Find where a difference begins: in the capture, or at a value of the captured program."""
        wrong = {row.name: row.index for row in rows if row.status == "mismatch"}
        sizes = dict(rows[0].sizes)
        in_capture: tuple[OutputComparison, ...] = ()
        if self.reference.model is not None:
            in_capture, wrong = self._differences_of_capture(call, wrong)
        if not wrong:
            return Comparison(tuple(outputs), sizes=sizes, capture=in_capture)
        program, one = self.program, (call.args, call.kwargs)
        with products_in_float(program.model), recorded_function_calls(program.record.capture.functions):
            factory = session_in_float if runs_in_float(program) else None
            model = program.model if program.quantization.float_model is None else program.quantization.float_model
            quantized = dequantized(program)
            weights = {**program.interface.applied_weights, **(quantized.products if quantized is not None else {})}
            diagnostics, chosen = add_on("diagnostics"), program.interface.session_factory or factory
            runtime = diagnostics.RuntimeValues(model, copies(call.inputs), chosen)
            located = diagnostics.compare_values(runtime, program.exported_program, one, weights, self.tolerance, wrong)
        return Comparison(tuple(outputs), located.values, located.paths, sizes, in_capture)

    def _differences_of_capture(
        self, call: BoundCall, wrong: Mapping[str, int]
    ) -> tuple[tuple[OutputComparison, ...], dict[str, int]]:
        """The rows in which the captured program differs from the model, and the outputs that translations change."""
        captured = captured_reference(self.program)
        expected = self.reference.run(call.args, call.kwargs)
        values = captured.run(call.args, call.kwargs)
        differing = [row for row in self.compare(expected, as_runtime_outputs(values, expected)) if row.name in wrong]
        rows = _Run(self.program, captured, self.tolerance).compare(values, _run_program(self.program, call))
        translated = {row.name for row in rows if row.status == "mismatch"}
        remaining = {name: position for name, position in wrong.items() if name in translated}
        return tuple(row for row in differing if row.status == "mismatch"), remaining


def _run_program(program: VerifiableProgram, call: BoundCall) -> tuple[Any, ...]:
    run = program.quantization.call_in_float if runs_in_float(program) else program
    args, kwargs = with_lists((call.args, call.kwargs), program.record.capture.inputs.lists)
    # Each run gets copies of the inputs: the session may share their memory.
    outputs = run(*copies(args), **copies(kwargs))
    if program.quantization.float_model is not None:
        _check_quantized(program, outputs, program(*copies(args), **copies(kwargs)))
    return outputs


def _check_quantized(program: VerifiableProgram, expected: Sequence[Any], actual: Sequence[Any]) -> None:
    """Check that a quantized model differs from the model before the quantization only in the values of elements."""
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
            rows.append(OutputComparison(name, index, "mismatch", dtype, tuple(before.shape), message=message))
    if rows:
        raise VerificationError(f"the quantization is wrong:\n{format_rows(rows)}", rows=rows)


# ---- sizes outside of the limits


_MAX_DISTANCE = 64


def _verify_guards(program: VerifiableProgram, call: BoundCall) -> None:
    """Run a model at sizes that each of its limits excludes."""
    capture = program.record.capture
    limits = capture.limits
    outside = list(_sizes_outside(limits, program.record.guards, call.inputs))
    if not outside or may_index_on_gpu(call.inputs):
        return
    session = Session(program.model, program.interface.session_factory)
    try:
        for constraint, sizes in outside:
            resized = resize_inputs(program.exported_program, limits, call, sizes)
            bound = bind_call(program.exported_program, *resized, program.record.forward, capture.inputs.frozen)
            try:
                session.run(bound.inputs)
            except (RuntimeSessionError, ArgumentError):
                continue
            shown = ", ".join(f"{name} = {sizes[name]}" for name in constraint.dims)
            raise VerificationError(
                f"the model requires {constraint}, but it computes outputs for {shown}",
                hint="the file has to fail outside of its limits: please report this",
            )
    finally:
        session.close()


def _sizes_outside(
    limits: SizeLimits, guards: Sequence[str], inputs: Sequence[Any]
) -> Iterator[tuple[Constraint, Mapping[str, int]]]:
    """The nearest sizes to the inputs' that violate each guarded constraint, if some are near."""
    given = limits.sizes(inputs)
    for constraint in limits.constraints:
        if name_of_constraint(constraint) in guards and all(name in given for name in constraint.dims):
            near = (sizes for sizes in _near(limits, constraint, given) if not constraint.holds(sizes))
            found = next(near, None)
            if found is not None:
                yield constraint, found


def _near(limits: SizeLimits, constraint: Constraint, given: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
    """Sizes that differ from the given ones in one dim of a constraint, the nearest first."""
    for distance in range(1, _MAX_DISTANCE):
        for name in constraint.dims:
            bounds = limits.user_bounds.get(name, Bounds())
            for size in (given[name] + distance, given[name] - distance):
                if size >= max(bounds.low or 1, 1) and (bounds.high is None or size <= bounds.high):
                    equal = {other: size for other, first in limits.shared_names.items() if first == name}
                    yield {**given, **equal, name: size}
