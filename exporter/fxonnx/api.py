"""``export``: the journey from an nn.Module to an ONNXProgram, one line per stage."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from io import BytesIO
from typing import Any, Literal

import torch

from fxonnx_translations.registry import Registry
from fxonnx_translations.translations import default_registry

from .arguments import check_names, check_opset, check_table
from .capture import ALIASES_KEY, CONSTRAINTS_KEY, Capture, capture
from .lower.dispatch import is_translated
from .lower.lowering import Request, lower
from .lower.model import Ends
from .prepare import prepare, warn_of_lost_updates
from .program import ONNXProgram
from .timing import Timer

__all__ = ["DEFAULT_OPSET", "export"]

DEFAULT_OPSET = 20


def export(
    model: torch.nn.Module | torch.export.ExportedProgram,
    args: tuple[Any, ...] | torch.Tensor = (),
    f: str | os.PathLike[str] | BytesIO | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None,
    dynamic_axes: Mapping[str, Mapping[int, str] | Sequence[int] | None] | None = None,
    more_inputs: Sequence[tuple[tuple[Any, ...] | torch.Tensor, Mapping[str, Any] | None]] | None = None,
    dynamic_scalars: Collection[str] = (),
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int | None = None,
    custom_translation_table: Mapping[Callable[..., Any], Callable[..., Any]] | None = None,
    export_params: bool = True,
    keep_initializers_as_inputs: bool = False,
    external_data: bool | None = None,
    verify: bool | Literal["auto"] = False,
    strict_shapes: bool = False,
    on_stage: Callable[[str], None] | None = None,
) -> ONNXProgram:
    """Exports a model to ONNX.

    Args:
        model: An ``nn.Module``, left as it is, or an ``ExportedProgram``, used as it is.
        args: Positional example inputs; a bare tensor is one argument.
        f: Where to save the model, if anywhere.
        kwargs: Keyword example inputs.
        dynamic_shapes: As for ``torch.export.export``, with plain strings as names of dynamic dims, and names of graph
            inputs or patterns for them (``past_key_values.*``) as keys, too.
        dynamic_axes: Instead of it, ``{name: {axis: dim}}`` or ``{name: [axis]}`` by names of graph inputs and outputs.
        more_inputs: Further examples, ``(args, kwargs)`` each; what is not of one size in all of them is dynamic.
        dynamic_scalars: The ints, floats and bools that are inputs, by parameter or path; others are part of the model.
        input_names: Names of the graph inputs, or of the first of them.
        output_names: Names of the graph outputs, or of the first of them.
        opset_version: Target opset, 11 to 26; by default 20.
        custom_translation_table: Translations of the user's that come before the built-in ones.
        export_params: Whether the file ``f`` holds the weights.
        keep_initializers_as_inputs: Whether initializers are graph inputs in the file ``f``, too.
        external_data: Whether the weights go into a second file beside ``f``; by default only above 1.5 GiB.
        verify: Compare ONNX Runtime with eager torch on all example inputs; ``"auto"``: at several sizes, too.
        strict_shapes: Raise, not only warn, if the model can not be exported for all sizes that were asked for.
        on_stage: Called with the name of each stage as it begins.

    Returns:
        The program, which holds the ``onnx_ir.Model``.

    Raises:
        ArgumentError: If an argument is wrong.
        CaptureError: If torch.export can not capture the model, or with ``strict_shapes`` not for all sizes.
        UnsupportedOperatorError: If operators have neither a translation nor a decomposition.
        VerificationError: With ``verify=True``, if the results differ.
        SaveError: If ``f`` can not be written.
    """
    opset = check_opset(opset_version, DEFAULT_OPSET)
    names = check_names(input_names, output_names)
    registry = check_table(default_registry(), custom_translation_table)
    timer = Timer(on_stage)
    with timer.stage("capture"):
        captured = capture(
            model,
            args,
            kwargs,
            dynamic_shapes,
            dynamic_axes=dynamic_axes,
            more_inputs=more_inputs,
            input_names=names[0],
            output_names=names[1],
            dynamic_scalars=dynamic_scalars,
            strict_shapes=strict_shapes,
        )
    program = _program(model, captured, opset, registry, names, timer)
    if verify:
        _verify(program, captured, timer, "auto" if verify == "auto" else None)
    if f is not None:
        with timer.stage("save"):
            program.save(
                f,
                include_initializers=export_params,
                keep_initializers_as_inputs=keep_initializers_as_inputs,
                external_data=external_data,
            )
    return program


def _program(
    model: torch.nn.Module | torch.export.ExportedProgram,
    captured: Capture,
    opset: int,
    registry: Registry,
    names: tuple[Sequence[str], Sequence[str]],
    timer: Timer,
) -> ONNXProgram:
    with timer.stage("prepare"):
        prepared = prepare(captured.exported_program, partial(is_translated, registry=registry, opset=opset))
    warn_of_lost_updates(prepared)
    ends = Ends(*names, captured.input_paths, captured.output_paths)
    with timer.stage("lower"):
        lowered = lower(prepared, Request(opset, registry, captured.dim_names, ends))
    if captured.limits.constraints:
        lowered.metadata_props[CONSTRAINTS_KEY] = captured.limits.metadata()
    if captured.dim_aliases:
        lowered.metadata_props[ALIASES_KEY] = json.dumps(captured.dim_aliases)
    return ONNXProgram(
        lowered,
        captured.exported_program,
        timings=timer.seconds,
        limits=captured.limits,
        source=model if isinstance(model, torch.nn.Module) else None,
        objects=captured.objects,
        frozen_arguments=captured.frozen_arguments,
        scalars=captured.scalars,
    )


def _verify(program: ONNXProgram, captured: Capture, timer: Timer, sizes: Literal["auto"] | None) -> None:
    with timer.stage("verify"):
        program.verify(sizes=sizes)
        for args, kwargs in captured.more_inputs:
            program.verify(args, kwargs)
