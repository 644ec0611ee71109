"""``export``: the stages from an nn.Module to an ONNXProgram, one line each."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from io import BytesIO
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch.onnx import TrainingMode

from fxonnx_translations._builder.default_device import cpu_by_default
from fxonnx_translations._torch_compat import unset_fake_temporarily

from ._capture import ALIASES_KEY, AssumptionKind, Capture, capture, report_narrowed
from ._capture.constraints.constraint import Constraint
from ._capture.inputs.tensor_memory import normal_weights
from ._capture.patches import PatchKind, missing_targets, tracing_patches
from ._capture.patches.tracing_state import model_prints
from ._capture.plan import AttemptLog
from ._capture.rewriting import SIZE_BRANCH
from ._capture.state_inputs import with_number_states
from ._comparison import OutputComparison, report_skipped
from ._diagnostics import Diagnostics, Report, read_diagnostics
from ._export_context import exporting, in_mode
from ._extensions import add_on
from ._interrupts import deferred_interrupts
from ._keywords import called_by_users
from ._lower.dispatch import is_translated
from ._lower.lowering import lower
from ._options import read, with_own_examples
from ._prepare import (
    LOST_UPDATES_KEY,
    find_updates,
    has_operators,
    least_opset_of_program,
    pattern_context,
    prepare,
    report_changes,
    report_updates,
    unwrap_subclasses,
)
from ._program import ONNXProgram
from ._program.call_binding import bind_call
from ._program.external_data import ExternalData
from ._program.proof import (
    confirm_assumed_limits,
    confirm_data_edges,
    confirmed_limits,
    fails_outside,
    prove,
    unproved_for_untested,
)
from ._program.record import ExportRecord
from ._program.saving import check_file
from ._program.weights import reads_metadata
from ._progress import Timer
from ._public import public
from ._quantize_config import QuantizeConfig, WeightDtype
from ._request import DataDependent, ExportOptions, Request, State
from ._targets import Target
from ._turns import one_at_a_time, rare_collections
from .errors import ArgumentError, ConversionError, RuntimeSessionError

__all__ = ["export"]


@public
@called_by_users
def export(
    model: torch.nn.Module | torch.export.ExportedProgram,
    args: tuple[Any, ...] | torch.Tensor = (),
    f: str | os.PathLike[str] | BytesIO | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int | None = None,
    external_data: ExternalData = None,
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None,
    more_inputs: Sequence[tuple[tuple[Any, ...] | torch.Tensor, Mapping[str, Any] | None]] | None = None,
    dynamic_scalars: Collection[str] = (),
    strict_shapes: bool = False,
    frozen: Collection[str] = (),
    data_dependent: DataDependent = "error",
    state: State = "warn",
    adapters: str | Collection[str] = (),
    target: Target | None = None,
    quantize: QuantizeConfig | WeightDtype | None = None,
    custom_translation_table: Mapping[Callable[..., Any], Callable[..., Any]] | None = None,
    optimize: bool = True,
    verify: bool | Literal["auto"] = False,
    diagnostics: Diagnostics | bool = False,
    options: ExportOptions | None = None,
) -> ONNXProgram:
    """Export a model to ONNX.

    Args:
        model: An ``nn.Module``, left unchanged, or an ``ExportedProgram``, used as it is: example inputs and dims
            beside it must be its own.
        args: Positional example inputs; a bare tensor is one argument. By default, and without ``kwargs``, those of an
            ``ExportableModule``.
        f: Path or binary file to save the model to, if any.
        kwargs: Keyword example inputs.
        input_names: Names of the first graph inputs; further names rename parameters. A keyword input whose own name is
            among them comes at the place of its name.
        output_names: Names of the first graph outputs.
        opset_version: Target opset, 7 to 28; 20 by default, or 21 for weights that are tensor subclasses, as in
            torchao. ONNX Runtime 1.31 runs opsets up to 26.
        external_data: Store the weights of ``f`` in a second file; by default only above 1.5 GiB. See
            ``ONNXProgram.save`` for further values.
        dynamic_shapes: Dynamic dims as for ``torch.export.export``. Plain strings name dims; keys may also be names of
            graph inputs or glob patterns for them (``past_key_values.*``). ``TensorList`` stands for a list of tensors.
        more_inputs: Further example inputs as ``(args, kwargs)``; dims whose sizes differ are dynamic.
        dynamic_scalars: Parameters or paths of ints, floats and bools that become graph inputs; other numbers are
            constants of the model.
        strict_shapes: Raise instead of warn if the model cannot be exported for all requested sizes.
        frozen: Names of tensor inputs, or glob patterns for them, whose example values become constants of the model
            (``["image_grid_thw"]``); calls with other values are refused.
        data_dependent: What to do where the model branches on the values of its inputs. "error": raise; "example":
            follow the branch of the example, with a warning; calls whose inputs take another branch are rejected.
        state: Export of mutations of parameters, buffers and inputs. "warn": drop the updates with a warning; "io": add
            a graph input ``<name>.in``, initialized with the value at export, and an output ``<name>.out`` after the
            others; "outputs": add only the output; "error": raise.
        adapters: Names of parameters, or a glob pattern or several for them, that become graph inputs whose default
            values are the exported ones (``"*.lora_*"``); ``program.save_adapter`` writes other values for them.
        target: The runtime, "onnxruntime" (on the CPU), "onnxruntime-cuda", "onnxruntime-genai",
            "onnxruntime-genai-cuda", "onnxruntime-genai-webgpu", "onnxruntime-genai-directml",
            "onnxruntime-genai-tensorrt-rtx", "onnxruntime-web" (WebAssembly), "onnxruntime-web-webgpu", "tensorrt" or
            "openvino", whose profile selects the opset unless ``opset_version`` is given, patterns and Casts; by
            default a graph for any runtime.
        quantize: Store the weights of linear layers as integers, "int4" or "int8", rounded to nearest; see
            ``QuantizeConfig`` for block sizes, layers and embeddings. The default opset is then 21 at least. With
            ``calibration`` or ``activations="dynamic"``, activations are integers as well.
        custom_translation_table: User translations, tried before the built-in ones: operator overload to
            ``function(op, ...)``, ``function(g, ...)``, a function of ``onnxscript.opsetN`` operators, an onnxscript
            function, or a list of these. Functions with an attribute ``complex = True`` translate complex tensors.
        optimize: Run common subexpression elimination, fusion patterns and batch norm folding.
        verify: Compare ONNX Runtime with the model in eager torch on all example inputs; ``"auto"``: also at other
            sizes. See ``fxonnx.verify``; outputs that cannot be compared are a warning.
        diagnostics: Reports, times and dumps of the export; True: a report.
        options: Rarely needed options.

    Returns:
        The program; ``program.model`` is the ``onnx_ir.Model``.

    Raises:
        ArgumentError: If an argument is invalid.
        CaptureError: If torch.export cannot capture the model, or, with ``strict_shapes``, not for all sizes.
        UnsupportedOperatorError: If operators have neither a translation nor a decomposition.
        VerificationError: With ``verify``, if the results differ.
        SaveError: If ``f`` or the report cannot be written.
        StateError: With ``state="error"``, if forward mutates state that outlives the call.
    """
    given = locals()
    check_file(f, "f")
    given = with_own_examples(given)
    request, shown = read(given), read_diagnostics(diagnostics)
    timer, page = Timer(shown.on_stage), Report(request, profile_runtime=shown.profile_runtime)
    attempts = AttemptLog(page.attempts, shows_torch_log=shown.verbose)
    with (
        deferred_interrupts(),
        _reporting(page, shown, timer),
        exporting(),
        rare_collections(),
        normal_weights(request.model),
    ):
        captured = _capture(request, timer, attempts)
        while request.state == "io" and any(not change.is_random for change in captured.attribute_changes):
            request = replace(request, model=with_number_states(request.model, captured.attribute_changes))
            captured = _capture(request, timer, attempts)
        if opset_version is None:
            captured = _with_opset_of_program(captured, given)
        _keep_captured(captured, page, shown)
        try:
            program = _convert(captured, timer, prints=shown.verbose)
        except ConversionError:
            if not _has_size_branches(captured):
                raise
            # The branch that the example does not take may have no ONNX form: it limits the sizes.
            captured = _capture(captured.request, timer, attempts, has_size_branches=False)
            _keep_captured(captured, page, shown)
            program = _convert(captured, timer, prints=shown.verbose)
        page.program = program
        page.rows = _verify(program, timer, locate=shown.writes_report)
        if f is not None:
            with timer.stage("save"):
                program.save(
                    f,
                    include_initializers=request.include_initializers,
                    keep_initializers_as_inputs=request.keep_initializers_as_inputs,
                    external_data=external_data,
                )
    return _printed(program, shown)


def _reporting(page: Report, shown: Diagnostics, timer: Timer) -> AbstractContextManager[None]:
    """Context that writes a report on request, also if the export fails."""
    if not shown.writes_report:
        return nullcontext()
    report: AbstractContextManager[None] = add_on("diagnostics").reporting(page, shown.artifacts_dir, timer.seconds)
    return report


def _keep_captured(captured: Capture, page: Report, shown: Diagnostics) -> None:
    """Show a captured program in the report, and save it on request."""
    page.exported_program = captured.exported_program
    if shown.dump_exported_program:
        add_on("diagnostics").save_exported_program(captured.exported_program, shown.artifacts_dir)


def _with_opset_of_program(captured: Capture, given: Mapping[str, Any]) -> Capture:
    """The capture with another default opset, if its program requires one.

    It is newer if the weights cannot be stored as they are otherwise, and older if the target has kernels for the
    program's operators only there.
    """
    program, request = captured.exported_program, captured.request
    least = least_opset_of_program(program)
    is_older = has_operators(program, request.profile.older_operators)
    if not is_older and least <= request.opset:
        return captured
    return replace(captured, request=replace(read(given, least, is_older=is_older), model=request.model))


def _has_size_branches(captured: Capture) -> bool:
    return any(one.construct == SIZE_BRANCH for one in captured.rewrites)


def _capture(request: Request, timer: Timer, attempts: AttemptLog, *, has_size_branches: bool = True) -> Capture:
    """Capture a model, without assumed limits that the model itself refutes, or without both branches on sizes."""
    model = request.model

    def confirmed(captured: Capture) -> frozenset[Constraint] | None:
        if _has_size_branches(captured) and not has_size_branches:
            return None
        with unset_fake_temporarily():
            return confirmed_limits(captured, model)

    def fails(captured: Capture, limits: Sequence[Constraint]) -> bool:
        with unset_fake_temporarily():
            return not has_size_branches or fails_outside(captured, model, limits)

    in_this_mode, prints = in_mode(model, request.training), model_prints(shown=attempts.shows_torch_log)
    with one_at_a_time(), timer.stage("capture"), in_this_mode, prints:
        captured = capture(request, confirmed, attempts, fails)
        with unset_fake_temporarily():
            captured = replace(captured, exported_program=unwrap_subclasses(captured.exported_program))
            captured = confirm_assumed_limits(captured, model, strict=request.strict_shapes)
            return confirm_data_edges(captured, model)


def _convert(captured: Capture, timer: Timer, *, prints: bool) -> ONNXProgram:
    """Prepare, lower and prove the captured program."""
    request = captured.request
    if captured.functions:
        called = add_on("torchscript").CalledFunctions(captured.functions)
        registry = request.registry.extended({torch.ops.fxonnx_functions.apply.default: called})
        request = replace(request, registry=registry)

    def translated(node: torch.fx.Node) -> bool:
        return request.passthrough.keeps(node.target) or is_translated(node, request.registry, request.opset)

    # Constants have values, even if the model is exported in a fake tensor mode.
    with cpu_by_default(), tracing_patches(), unset_fake_temporarily(), timer.stage("prepare"):
        prepared = prepare(
            captured.exported_program,
            translated,
            optimize=request.optimize,
            fold_weights=request.fold_weights,
            fold_norms=request.training != TrainingMode.TRAINING,
            patterns=request.enabled_patterns,
            adapters=request.adapters,
            weight_reads=captured.weight_reads,
            pattern_context=partial(pattern_context, request.model, request.profile),
            checked=request.guards and any(one.kind is AssumptionKind.EXAMPLE for one in captured.assumptions),
        )
    updates = find_updates(prepared, captured.inputs.paths)
    lost = report_updates(updates, captured.reassigned, request.state) + report_changes(
        captured.attribute_changes, request.state
    )
    returned = [] if request.state == "warn" else [update for update in updates if not update.is_returned]
    with cpu_by_default(), unset_fake_temporarily(), timer.stage("lower"):
        lowered = lower(prepared, replace(captured, request=request), returned)
    if not lowered.model.graph.outputs:
        raise ArgumentError("model", "forward returns no tensor", hint="return the results: a graph has outputs")
    if request.quantize is not None and request.quantize.calibration is not None:
        # The program does not keep the batches.
        request = replace(request, quantize=replace(request.quantize, activations="static", calibration=None))
    limits = lowered.limits
    added = limits.constraints[len(captured.limits.constraints) :]
    report_narrowed(added, strict=request.strict_shapes)
    metadata = lowered.model.metadata_props
    if lost:
        metadata[LOST_UPDATES_KEY] = json.dumps(lost)
    metadata.update(limits.metadata())
    metadata.update(reads_metadata(captured.weight_reads))
    if captured.dim_aliases:
        metadata[ALIASES_KEY] = json.dumps(captured.dim_aliases)
    captured = replace(captured, request=request, limits=limits)
    with unset_fake_temporarily(), timer.stage("prove"), model_prints(shown=prints):
        proof = prove(captured, request.model, is_stateful=request.state == "io" and not lost)
    metadata.update(proof.metadata())
    untested = unproved_for_untested(missing_targets(), limits)
    record = ExportRecord(
        replace(captured, assumptions=(*captured.assumptions, *proof.unexercised, *untested)),
        MappingProxyType(timer.seconds),
        prepared.fusions,
        proof,
        lowered.quantization,
        tuple(lowered.guards.nodes),
    )
    if added and record.example_inputs is not None:
        # Where an intermediate tensor of the example is empty, a call with it would be refused.
        known = captured.inputs.frozen, captured.inputs.lists
        example = bind_call(captured.exported_program, *record.example_inputs, record.forward, *known)
        limits.check_example(example.inputs)
    return ONNXProgram(lowered.model, record)


def _printed(program: ONNXProgram, shown: Diagnostics) -> ONNXProgram:
    """The program, after printing its graph and the times of its stages on request."""
    if shown.verbose:
        sys.stdout.write(f"{add_on('diagnostics').graph_text(program.model)}\n")
    if shown.profile:
        sys.stdout.write(f"{add_on('diagnostics').timing_table(program.record.timings)}\n")
    return program


def _verify(program: ONNXProgram, timer: Timer, *, locate: bool) -> tuple[OutputComparison, ...]:
    """Verify a program on request, without patches for soundness, or if torch could not run the captured program."""
    wanted = program.record.options.verify
    if not wanted and not any(target.kind is PatchKind.SOUND for target in missing_targets()):
        if program.record.proof.is_left_to_file:
            # Kernels that ONNX Runtime lacks are no fault of the file.
            with timer.stage("prove"), suppress(RuntimeSessionError):
                program.verify()
        return ()
    with timer.stage("verify"):
        rows = program.verify(sizes="auto" if wanted == "auto" else None, locate=locate)
        for args, kwargs in program.record.capture.more_inputs:
            rows += program.verify(args, kwargs, locate=locate)
    report_skipped(rows)
    return tuple(rows)
