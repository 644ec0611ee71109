"""``export``: the journey from an nn.Module to an ONNXProgram, one line per stage."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from types import MappingProxyType
from typing import Any, Literal, get_args

import torch
from torch.onnx import OperatorExportTypes, TrainingMode

from fxonnx_translations._builtin import default_registry
from fxonnx_translations._registry import Registry
from fxonnx_translations._torch_compat import unset_fake_temporarily

from ._capture import ALIASES_KEY, Capture, capture, report_narrowed
from ._capture.patches import one_at_a_time, tracing_patches
from ._export_context import exporting
from ._lower.dispatch import is_translated
from ._lower.lowering import LoweringRequest, lower
from ._lower.metadata import MetadataLevel
from ._lower.model import IOSpec
from ._lower.passthrough import Passthrough
from ._lower.user_symbolics import CalledFunctions
from ._options import (
    Form,
    Target,
    check_choice,
    check_flags,
    check_form,
    check_names,
    check_older,
    check_passthrough,
    check_table,
    check_training,
    in_mode,
    own_examples,
)
from ._prepare import LOST_UPDATES_KEY, State, find_updates, prepare, report_updates
from ._program import ONNXProgram
from ._program.external_data import ExternalData
from ._report import dump, graph_text, reported, stage_table
from ._symbolic_registry import registered_symbolics
from ._timing import Timer

__all__ = ["export"]


def export(
    model: torch.nn.Module | torch.export.ExportedProgram,
    args: tuple[Any, ...] | torch.Tensor = (),
    f: str | os.PathLike[str] | BytesIO | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    verbose: bool | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int | None = None,
    dynamo: bool = True,
    external_data: ExternalData = None,
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None,
    custom_translation_table: Mapping[Callable[..., Any], Callable[..., Any]] | None = None,
    report: bool = False,
    optimize: bool = True,
    verify: bool | Literal["auto"] = False,
    profile: bool = False,
    dump_exported_program: bool = False,
    artifacts_dir: str | os.PathLike[str] = ".",
    export_params: bool = True,
    keep_initializers_as_inputs: bool = False,
    dynamic_axes: Mapping[str, Mapping[int, str] | Sequence[int] | None] | None = None,
    training: TrainingMode | None = None,
    operator_export_type: OperatorExportTypes | None = None,
    do_constant_folding: bool = True,
    custom_opsets: Mapping[str, int] | None = None,
    export_modules_as_functions: bool | Collection[type[torch.nn.Module]] = False,
    autograd_inlining: bool = True,
    more_inputs: Sequence[tuple[tuple[Any, ...] | torch.Tensor, Mapping[str, Any] | None]] | None = None,
    dynamic_scalars: Collection[str] = (),
    strict_shapes: bool = False,
    state: State = "warn",
    metadata: MetadataLevel = "full",
    compat: Literal["torchscript"] | None = None,
    ir_version: int | None = None,
    target: Target | None = None,
    patterns: Mapping[str, bool] = MappingProxyType({}),
    on_stage: Callable[[str], None] | None = None,
    **older: Any,
) -> ONNXProgram:
    """Exports a model to ONNX.

    Args:
        model: An ``nn.Module``, left as it is, or an ``ExportedProgram``, used as it is.
        args: Positional example inputs; a bare tensor is one argument.
        f: Where to save the model, if anywhere.
        kwargs: Keyword example inputs.
        verbose: Whether to print the graph, with types, modules and lines of source.
        input_names: Names of the graph inputs, or of the first of them; further ones name parameters.
        output_names: Names of the graph outputs, or of the first of them.
        opset_version: Target opset, 7 to 28; by default 20. ONNX Runtime 1.31 runs those up to 26.
        dynamo: True and False select this exporter; False stands for ``compat="torchscript"``.
        external_data: Whether the weights go into a second file beside ``f``; by default only above 1.5 GiB. Further
            forms as for ``ONNXProgram.save``.
        dynamic_shapes: As for ``torch.export.export``, with plain strings as names of dynamic dims, and names of graph
            inputs or patterns for them (``past_key_values.*``) as keys, too.
        custom_translation_table: Translations of the user's that come before the built-in ones: operator overload to
            ``function(op, ...)``, ``function(g, ...)``, a function of ``onnxscript.opsetN`` operators, a script
            function, or a list of these; those with an attribute ``complex = True`` are for complex tensors.
        report: Whether to write a page in Markdown about the export, or its failure, to ``artifacts_dir``.
        optimize: Whether equal computations are shared, operators that are written out recognized, and batch norms
            folded into the layer before them.
        verify: Compare ONNX Runtime with eager torch on all example inputs; ``"auto"``: at several sizes, too.
        profile: Whether to print the seconds of each stage.
        dump_exported_program: Whether to save the captured program to ``artifacts_dir``.
        artifacts_dir: Where the report and the captured program go.
        export_params: Whether the file ``f`` holds the weights; if not, they are graph inputs in it.
        keep_initializers_as_inputs: Whether initializers are graph inputs in the file ``f``, too.
        dynamic_axes: Instead of ``dynamic_shapes``, by names of graph inputs and outputs: ``{name: {axis: dim}}`` or
            ``{name: [axis]}``. A name of neither is a warning, or with ``strict_shapes`` an error.
        training: EVAL or TRAINING to put the model into that mode for the export; PRESERVE to leave it in its own, as
            by default, but without a warning if that is training mode. With ``dynamo=False`` the default is EVAL. With
            TRAINING no batch norm is folded.
        operator_export_type: ONNX_FALLTHROUGH or ONNX_ATEN_FALLBACK: operators that can not be translated become nodes
            of their own domain; ONNX_ATEN: all operators of ATen do.
        do_constant_folding: Whether what the model computes of weights alone is computed when it is saved.
        custom_opsets: Domain to version; operators of these domains become nodes of them.
        export_modules_as_functions: Refused unless False.
        autograd_inlining: Refused unless True.
        more_inputs: Further examples, ``(args, kwargs)`` each; what is not of one size in all of them is dynamic.
        dynamic_scalars: The ints, floats and bools that are inputs, by parameter or path; others are part of the model.
        strict_shapes: Raise, not only warn, if the model can not be exported for all sizes that were asked for.
        state: What becomes of writes to parameters, buffers and inputs, whose updates ONNX does not keep: "warn" of
            them; "io" for a graph input ``<name>.in``, the content at export by default, and an output ``<name>.out``
            behind the others; "outputs" for the output alone; "error" to refuse.
        metadata: What nodes say of where they come from: "full" for modules, operators, FX nodes and stack traces with
            relative paths, "names" without the last two, "none" for nothing.
        compat: "torchscript" for the names that torch.onnx's first exporter gave to nodes and to values between them:
            ``/features/features.0/Conv_output_0``.
        ir_version: IR version of the model; by default 10 from opset 20 on, or a newer one that the opset needs, and
            for older opsets what they need.
        target: "onnxruntime" for the graph that ONNX Runtime runs fastest, with opset 23 unless ``opset_version`` says
            otherwise; by default one that is good for every runtime.
        patterns: Names of rules about operators that are written out, as in ``program.patterns``, to whether they are
            applied.
        on_stage: Called with the name of each stage as it begins.
        **older: Parameters of older versions of torch.onnx.export: ``use_external_data_format`` is ``external_data``,
            ``example_outputs`` and the like are not needed any more.

    Returns:
        The program, which holds the ``onnx_ir.Model``.

    Raises:
        ArgumentError: If an argument is wrong.
        CaptureError: If torch.export cannot capture the model, or with ``strict_shapes`` not for all sizes.
        UnsupportedOperatorError: If operators have neither a translation nor a decomposition.
        VerificationError: With ``verify=True``, if the results differ.
        SaveError: If ``f`` or the report can not be written.
        StateError: With ``state="error"``, if forward writes to what outlives the call.
    """
    check_flags(dynamo, export_modules_as_functions, autograd_inlining)
    args, kwargs, dynamic_shapes, input_names, output_names = own_examples(
        model, args, kwargs, dynamic_shapes, input_names, output_names
    )
    external_data = check_older(older, external_data)
    form = check_form(opset_version, ir_version, target, patterns if optimize else None)
    how = _Translating(
        form,
        check_table(default_registry().extended(registered_symbolics(form.opset)), custom_translation_table),
        check_names(input_names, output_names),
        check_passthrough(operator_export_type, custom_opsets),
        optimize=optimize,
        fold_weights=do_constant_folding,
        state=state,
        metadata=metadata,
        compat=compat if dynamo else "torchscript",
        strict_shapes=strict_shapes,
    )
    mode, timer = check_training(training, dynamo=dynamo), Timer(on_stage)
    with reported(artifacts_dir, timer.seconds, wanted=report) as page, exporting():
        with one_at_a_time(), timer.stage("capture"), in_mode(model, mode):
            captured = capture(
                model,
                args,
                kwargs,
                dynamic_shapes,
                dynamic_axes=dynamic_axes,
                more_inputs=more_inputs,
                input_names=how.names[0],
                output_names=how.names[1],
                dynamic_scalars=dynamic_scalars,
                strict_shapes=strict_shapes,
                may_train=mode is not None,
            )
        dump(captured.exported_program, artifacts_dir if dump_exported_program else None)
        program = page.program = _program(model, captured, how, timer, mode)
        _verify(program, captured, timer, verify)
        _save(program, timer, f, export_params, keep_initializers_as_inputs, external_data)
    return _printed(program, graph=bool(verbose), stages=profile)


@dataclass(frozen=True)
class _Translating:
    """How the captured program is to be translated."""

    form: Form
    registry: Registry
    names: tuple[Sequence[str], Sequence[str]]
    passthrough: Passthrough
    optimize: bool
    fold_weights: bool
    state: State
    metadata: MetadataLevel
    compat: str | None
    strict_shapes: bool

    def __post_init__(self) -> None:
        """Raises an ArgumentError for words that mean nothing."""
        check_choice("state", self.state, get_args(State))
        check_choice("metadata", self.metadata, get_args(MetadataLevel))
        check_choice("compat", self.compat, (None, "torchscript"))

    def is_translated(self, node: torch.fx.Node) -> bool:
        """Whether a node needs no decomposition."""
        return self.passthrough.keeps(node.target) or is_translated(node, self.registry, self.form.opset)


def _program(
    model: torch.nn.Module | torch.export.ExportedProgram,
    captured: Capture,
    how: _Translating,
    timer: Timer,
    mode: TrainingMode | None,
) -> ONNXProgram:
    if captured.functions:
        called = CalledFunctions(captured.functions)
        how = replace(how, registry=how.registry.extended({torch.ops.fxonnx_functions.apply.default: called}))
    # Constants have values, even if the model is exported where new tensors have none.
    with tracing_patches(), unset_fake_temporarily(), timer.stage("prepare"):
        prepared = prepare(
            captured.exported_program,
            how.is_translated,
            optimize=how.optimize,
            fold_weights=how.fold_weights,
            fold_norms=mode != TrainingMode.TRAINING,
            rules=how.form.rules,
        )
    updates = find_updates(prepared, captured.input_paths)
    lost = report_updates(updates, how.state)
    returned = [] if how.state == "warn" else [update for update in updates if not update.is_returned]
    paths = captured.input_paths, captured.output_paths
    io_spec = IOSpec(*how.names, *paths, returned, how.state == "io", captured.output_dims)
    with unset_fake_temporarily(), timer.stage("lower"):
        names = captured.dim_names
        legacy = how.compat is not None
        form = how.form
        ones = captured.limits.ones()
        request = LoweringRequest(
            form.opset, how.registry, names, io_spec, how.passthrough, how.metadata, legacy, form.ir_version, ones
        )
        result = lower(prepared, request)
    lowered, limits = result.model, captured.limits.requiring(result.requirements)
    added = limits.constraints[len(captured.limits.constraints) :]
    report_narrowed(added, strict=how.strict_shapes, stacklevel=4)
    if lost:
        lowered.metadata_props[LOST_UPDATES_KEY] = json.dumps(lost)
    lowered.metadata_props.update(limits.metadata())
    if captured.dim_aliases:
        lowered.metadata_props[ALIASES_KEY] = json.dumps(captured.dim_aliases)
    return ONNXProgram(
        lowered,
        captured.exported_program,
        timings=timer.seconds,
        limits=limits,
        source=model if isinstance(model, torch.nn.Module) else None,
        mode=mode,
        objects=captured.objects,
        frozen_arguments=captured.frozen_arguments,
        scalars=captured.scalars,
        functions=captured.functions,
        counted=captured.counted,
        patterns=prepared.patterns,
    )


def _save(
    program: ONNXProgram, timer: Timer, f: Any, export_params: bool, keep_as_inputs: bool, external_data: ExternalData
) -> None:
    if f is not None:
        with timer.stage("save"):
            program.save(
                f,
                include_initializers=export_params,
                keep_initializers_as_inputs=keep_as_inputs,
                external_data=external_data,
            )


def _printed(program: ONNXProgram, *, graph: bool, stages: bool) -> ONNXProgram:
    if graph:
        sys.stdout.write(f"{graph_text(program.model)}\n")
    if stages:
        sys.stdout.write(f"{stage_table(program.timings)}\n")
    return program


def _verify(program: ONNXProgram, captured: Capture, timer: Timer, wanted: bool | Literal["auto"]) -> None:
    if not wanted:
        return
    with timer.stage("verify"):
        program.verify(sizes="auto" if wanted == "auto" else None)
        for args, kwargs in captured.more_inputs:
            program.verify(args, kwargs)
