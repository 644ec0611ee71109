"""Command line: ``export``, ``analyze``, ``hf``, ``genai``, ``check``, ``verify``, ``diff``, ``report`` and ``demo``.

Modules that import torch are imported inside the commands, so that ``fxonnx --help`` is fast.
"""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.table import Table

from .progress import showing_progress

if TYPE_CHECKING:
    from .._program import ONNXProgram

__all__ = ["app"]

app = typer.Typer(help="Export PyTorch models to ONNX.", no_args_is_help=True, pretty_exceptions_enable=False)

_TARGETS = (
    "onnxruntime, onnxruntime-cuda, onnxruntime-genai, onnxruntime-genai-cuda, onnxruntime-web, "
    "onnxruntime-web-webgpu, tensorrt or openvino"
)
_CALIBRATION_HELP = (
    "With --quantize int8, also quantize activations, by their ranges for these inputs: a .pt file with a list of "
    "batches, or a .npz file with one array per argument, whose first axis separates the batches."
)
_SOURCE_HELP = "A .pt2 file, or package.module:function returning (model, args[, kwargs[, dynamic_shapes]])."
_GENAI_STAGES = ("load", "capture", "prepare", "lower", "save", "verify")
Metadata = Annotated[
    str, typer.Option(help="Provenance of nodes: full, names (modules, without stack traces) or none.")
]
Numerics = Annotated[
    str, typer.Option(help="Results for NaN and signed zeros: default (the runtime's) or exact (torch's).")
]
Functions = Annotated[str, typer.Option(help="ONNX functions for marked regions, repeated modules as well, or none.")]
Quantize = Annotated[str | None, typer.Option(help="Store the weights of linear layers as integers: int4 or int8.")]
Frozen = Annotated[str | None, typer.Option(help="Comma-separated names or patterns of inputs that become constants.")]
DataDependent = Annotated[
    str, typer.Option(help="Branches on the values of inputs: error, or example to follow the example's.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of errors.")]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="With --version, the libraries', and patches that do not apply.")
    ] = False,
) -> None:
    """Export PyTorch models to ONNX."""
    if show_version:
        typer.echo(f"fxonnx {version('fxonnx')}")
        if verbose:
            from .installation import installation_text  # imports torch

            typer.echo(installation_text())
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@app.command("export")
def export_command(
    source: Annotated[
        str,
        typer.Argument(help=_SOURCE_HELP),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The ONNX file to write.")],
    opset: Annotated[int | None, typer.Option(help="The ONNX opset, 7 to 28.")] = None,
    target: Annotated[str | None, typer.Option(help=f"The runtime: {_TARGETS}.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare with the model in eager torch.")] = False,
    all_sizes: Annotated[
        bool, typer.Option("--all-sizes", help="Also compare at several sizes of the dynamic dims.")
    ] = False,
    strict_shapes: Annotated[
        bool, typer.Option("--strict-shapes", help="Fail if the model cannot be exported for all requested sizes.")
    ] = False,
    numerics: Numerics = "default",
    functions: Functions = "regions",
    quantize: Quantize = None,
    calibration: Annotated[Path | None, typer.Option(help=_CALIBRATION_HELP)] = None,
    dynamic_activations: Annotated[
        bool, typer.Option("--dynamic-activations", help="With int8, also quantize activations, in every call.")
    ] = False,
    frozen: Frozen = None,
    data_dependent: DataDependent = "error",
    metadata: Metadata = "full",
    profile: Annotated[bool, typer.Option("--profile", help="Show the time of each stage.")] = False,
    report: Annotated[Path | None, typer.Option(help="Directory for an HTML report, also on a failure.")] = None,
    input_names: Annotated[str | None, typer.Option(help="Comma-separated names of the graph inputs.")] = None,
    output_names: Annotated[str | None, typer.Option(help="Comma-separated names of the graph outputs.")] = None,
    debug: Debug = False,
) -> None:
    """Export a model to an ONNX file.

    Example: fxonnx export package.module:function -o model.onnx --verify

    Exit code 0 if the file is written, 1 after an error, 2 for a wrong argument.
    """
    with _readable_messages(debug), _progress() as on_stage:
        # Fail before the export, not after it, if the file cannot be written.
        from .._program.saving import check_destination  # imports torch

        check_destination(output)
        on_stage("load")
        from .loading import load_model  # imports torch

        loaded = load_model(source)
        from .._diagnostics import Diagnostics  # imports torch
        from .._export import export  # imports torch
        from .._options import ExportOptions  # imports torch
        from .loading import read_quantization  # imports torch

        # export checks these strings.
        choices: dict[str, Any] = {"target": target, "data_dependent": data_dependent}
        rare: dict[str, Any] = {"numerics": numerics, "functions": functions, "metadata": metadata}
        program = export(
            loaded.model,
            loaded.args,
            output,
            kwargs=loaded.kwargs or None,
            dynamic_shapes=loaded.dynamic_shapes,
            input_names=_names(input_names),
            output_names=_names(output_names),
            opset_version=opset,
            verify="auto" if all_sizes else verify,
            strict_shapes=strict_shapes,
            quantize=read_quantization(quantize, calibration, dynamic_activations=dynamic_activations),
            frozen=_names(frozen) or (),
            diagnostics=Diagnostics(report=report is not None, artifacts_dir=report or ".", on_stage=on_stage),
            options=ExportOptions(**rare),
            **choices,
        )
    if profile:
        Console().print(_stages(program.record.timings))
    if calibration is not None or dynamic_activations:
        typer.echo(program.quantization.report())
    typer.echo(f"wrote {output}: {_size(output.stat().st_size)}, {_summary(program, verify or all_sizes)}")


def _summary(program: ONNXProgram, verified: bool) -> str:
    calls = f"{len(program.model.functions)} functions, " if program.model.functions else ""
    checked = ""
    if verified:
        from .._program.references import reference_of  # imports torch

        name = reference_of(program).name
        checked = ", verified" if name == "model" else f", verified against the {name}"
    return f"{len(program.model.graph)} nodes, {calls}opset {program.model.opset_imports.get('')}{checked}"


@app.command("hf")
def hf_command(
    model: Annotated[str, typer.Argument(help="A directory with a model of transformers, or an id of the Hub.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The directory to write.")],
    task: Annotated[str | None, typer.Option(help="The task; by default the task of the model's class.")] = None,
    layout: Annotated[str, typer.Option(help="optimum, transformers.js, sentence-transformers or genai.")] = "optimum",
    dtype: Annotated[str, typer.Option(help="Comma-separated: fp32, fp16, q8, q4, q4f16.")] = "fp32",
    opset: Annotated[int | None, typer.Option(help="The ONNX opset.")] = None,
    target: Annotated[str | None, typer.Option(help="The runtime, as for export.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the Hub.")] = None,
    token: Annotated[str | None, typer.Option(help="Token of the Hub.")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that the checkpoint contains.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Compare the files with the model in eager torch.")
    ] = True,
    debug: Debug = False,
) -> None:
    """Export a model of transformers for optimum, transformers.js or sentence-transformers.

    Example: fxonnx hf checkpoint -o model --layout transformers.js --dtype fp32,q8

    Exit code 0 if the directory is written, 1 after an error, 2 for a wrong argument.
    """
    with _readable_messages(debug), _progress() as on_stage:
        from ..huggingface import export as export_for_huggingface  # imports torch

        choices: dict[str, Any] = {"layout": layout, "target": target}
        exported = export_for_huggingface(
            model,
            output,
            task=task,
            dtype=dtype,
            opset_version=opset,
            verify=verify,
            revision=revision,
            token=token,
            trust_remote_code=trust_remote_code,
            on_stage=on_stage,
            **choices,
        )
    typer.echo(str(exported))


@app.command("genai")
def genai_command(
    directory: Annotated[Path, typer.Argument(help="The model of transformers: config.json, weights and tokenizer.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The directory to write.")],
    chat_template: Annotated[
        Path | None, typer.Option(help="A file with a chat template in place of the tokenizer's.")
    ] = None,
    no_chat_template: Annotated[
        bool, typer.Option("--no-chat-template", help="Write no chat template: the model does not chat.")
    ] = False,
    precision: Annotated[str, typer.Option(help="fp32, fp16, bf16 or int4 (weights only).")] = "fp32",
    target: Annotated[str, typer.Option(help="The device: cpu or cuda.")] = "cpu",
    last_logits: Annotated[
        bool, typer.Option("--last-logits/--all-logits", help="Compute the logits of the last position only.")
    ] = True,
    adapter: Annotated[
        list[str] | None, typer.Option(help="NAME=DIRECTORY of a LoRA adapter of PEFT; may be repeated.")
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(
            help="Export an embedding model with this pooling: cls, last, max, mean, mean_sqrt_len or weighted_mean."
        ),
    ] = None,
    normalize: Annotated[
        bool | None, typer.Option("--normalize/--no-normalize", help="Normalize the embeddings.")
    ] = None,
    text_only: Annotated[
        bool, typer.Option("--text-only", help="Export a model that also takes images or audio as one of text.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Compare generated tokens with transformers'.")
    ] = True,
    debug: Debug = False,
) -> None:
    """Export a language model for onnxruntime-genai.

    Example: fxonnx genai checkpoint -o model --precision int4

    Exit code 0 if the directory is written, 1 after an error, 2 for a wrong argument.
    """
    adapters = dict(_name_and_path(each) for each in adapter or ())
    if chat_template and no_chat_template:
        raise typer.BadParameter("it excludes --chat-template", param_hint="--no-chat-template")
    with _readable_messages(debug), _progress(_GENAI_STAGES) as on_stage:
        from ..genai import export as export_for_genai  # imports torch

        choices: dict[str, Any] = {"precision": precision, "target": target, "pooling": pooling}
        export_for_genai(
            directory,
            output,
            chat_template=False if no_chat_template else chat_template,
            last_logits=last_logits,
            normalize=normalize,
            text_only=text_only,
            adapters=adapters,
            verify=verify,
            on_stage=on_stage,
            **choices,
        )
    size = sum(path.stat().st_size for path in output.iterdir())
    typer.echo(f"wrote {output}: {_size(size)}{', verified' if verify else ''}")


def _name_and_path(text: str) -> tuple[str, str]:
    name, separator, path = text.partition("=")
    if not separator or not path:
        raise typer.BadParameter(f"{text!r} is not NAME=DIRECTORY", param_hint="--adapter")
    return name, path


@app.command("check")
def check_command(
    model: Annotated[Path, typer.Argument(help="The ONNX file, of any exporter.")],
    target: Annotated[str, typer.Option(help=f"The runtime: {_TARGETS}.")] = "onnxruntime",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Debug = False,
) -> None:
    """Find the nodes that a runtime cannot run, or runs slowly.

    Example: fxonnx check model.onnx --target tensorrt

    Exit code 0 if there are none, 1 if there are some, 2 for a wrong argument.
    """
    with _readable_messages(debug, exit_code=2):
        from .checking import run_check  # imports torch

        result = run_check(model, target)
    typer.echo(result.json if as_json else result.text)
    raise typer.Exit(int(result.found))


@app.command("verify")
def verify_command(
    model: Annotated[Path, typer.Argument(help="The ONNX file.")],
    source: Annotated[str, typer.Argument(help=_SOURCE_HELP)],
    debug: Debug = False,
) -> None:
    """Compare an ONNX file with the PyTorch model, at its example and at the inputs of the recorded proof.

    Example: fxonnx verify model.onnx package.module:function

    Exit code 0 if all outputs agree, 1 if one differs or after an error, 2 for a wrong argument.
    """
    with _readable_messages(debug), _progress() as on_stage:
        on_stage("load")
        from .loading import load_model  # imports torch

        loaded = load_model(source)
        on_stage("verify")
        from .verifying import run_verification  # imports torch

        text = run_verification(model, loaded)
    typer.echo(text)


@app.command("analyze")
def analyze_command(
    source: Annotated[str, typer.Argument(help=_SOURCE_HELP)],
    opset: Annotated[int | None, typer.Option(help="The ONNX opset, 7 to 28.")] = None,
    target: Annotated[str | None, typer.Option(help=f"The runtime: {_TARGETS}.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Debug = False,
) -> None:
    """Find out whether a model exports, and everything that prevents it; nothing is written.

    Example: fxonnx analyze package.module:function

    Exit code 0 if the model exports, 1 if it does not, 2 for a wrong argument.
    """
    with _readable_messages(debug, exit_code=2), _progress() as on_stage:
        on_stage("load")
        from .loading import load_model  # imports torch

        loaded = load_model(source)
        from .._analysis import analyze  # imports torch
        from .._diagnostics import Diagnostics  # imports torch

        found = analyze(
            loaded.model,
            loaded.args,
            loaded.kwargs or None,
            dynamic_shapes=loaded.dynamic_shapes,
            opset_version=opset,
            target=target,
            diagnostics=Diagnostics(on_stage=on_stage),
        )
    typer.echo(json.dumps(asdict(found), indent=1, default=str) if as_json else str(found))
    raise typer.Exit(int(not found.exports))


@app.command("diff")
def diff_command(
    first: Annotated[Path, typer.Argument(help="An ONNX file, of any exporter.")],
    second: Annotated[Path, typer.Argument(help="The ONNX file to compare it with.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Debug = False,
) -> None:
    """Compare two models: inputs, outputs, opsets, operators by module, weights, size.

    Example: fxonnx diff before.onnx after.onnx

    Exit code 0 if they are the same, 1 if they differ, 2 for a wrong argument.
    """
    with _readable_messages(debug, exit_code=2):
        from ..diagnostics.diff import diff  # imports onnx_ir

        found = diff(first, second)
    typer.echo(json.dumps([asdict(change) for change in found.changes], indent=1) if as_json else str(found))
    raise typer.Exit(int(bool(found)))


@app.command("report")
def report_command(
    model: Annotated[Path, typer.Argument(help="The ONNX file, of any exporter.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Path of the page; the model's with .html by default.")
    ] = None,
    profile_runtime: Annotated[
        bool, typer.Option("--profile-runtime", help="Run the model in ONNX Runtime's profiler, with random inputs.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Write an HTML page about a model: inputs and outputs, operators, and the graph by module.

    Example: fxonnx report model.onnx -o model.html

    Exit code 0 if the page is written, 1 after an error, 2 for a wrong argument.
    """
    with _readable_messages(debug):
        from ..diagnostics.report import report  # imports torch

        path = report(model, output or model.with_suffix(".html"), profile_runtime=profile_runtime)
    typer.echo(f"wrote {path}")


@app.command("demo")
def demo_command(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Path to keep the ONNX file at.")] = None,
    debug: Debug = False,
) -> None:
    """Export AlexNet, check the file, and run it in ONNX Runtime.

    Example: fxonnx demo -o alexnet.onnx

    Exit code 0 if all of it succeeds, 1 after an error, 2 for a wrong argument.
    """
    start = time.perf_counter()
    with _readable_messages(debug), _progress() as on_stage, tempfile.TemporaryDirectory(prefix="fxonnx-") as directory:
        if output is not None:
            from .._program.saving import check_destination  # imports torch

            check_destination(output)
        on_stage("load")
        from .demo import run_demo  # imports torch

        path = Path(directory, "alexnet.onnx") if output is None else output
        result = run_demo(path, on_stage)
    total = time.perf_counter() - start
    table = Table("AlexNet", "", title="fxonnx demo")
    for stage, seconds in result.seconds.items():
        table.add_row(f"{stage}, seconds", f"{seconds:.2f}")
    table.add_row("total with imports, seconds", f"{total:.2f}")
    table.add_row("nodes", str(result.nodes))
    table.add_row("initializers", str(result.initializers))
    table.add_row("file size", _size(result.file_size))
    for batch, error in result.max_error.items():
        table.add_row(f"max error, batch {batch}", f"{error:.1e}")
    table.add_row("runs completely on", ", ".join(result.targets))
    Console().print(table)
    if output is not None:
        typer.echo(f"wrote {output}")


@contextmanager
def _readable_messages(debug: bool, exit_code: int = 1) -> Iterator[None]:
    """Print errors and warnings as one message on stderr, and exit after an error, unless ``debug`` is set.

    The exit code is 2 if an argument is wrong, in every command.
    """
    try:
        with warnings.catch_warnings():
            if not debug:
                warnings.showwarning = _print_warning
            yield
    except Exception as error:
        if debug:
            raise
        from ..errors import ArgumentError, ExportError  # imports torch

        if isinstance(error, ExportError):
            typer.echo(str(error), err=True)
        else:
            typer.echo(f"error: {type(error).__name__}: {error}\nhint: --debug shows the traceback", err=True)
        raise typer.Exit(2 if isinstance(error, ArgumentError) else exit_code) from error


def _print_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning without its location, which is a line of this package or of typer."""
    typer.echo(f"warning: {message}", err=True)


@contextmanager
def _progress(stages: Sequence[str] = ()) -> Iterator[Callable[[str], None]]:
    """Show the current stage on stderr if it is a terminal: a spinner, or a bar for known stages."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda stage: None
        return
    with showing_progress(console, stages) as on_stage:
        yield on_stage


def _stages(timings: Mapping[str, float]) -> Table:
    table = Table("stage", "seconds")
    for stage, seconds in timings.items():
        table.add_row(stage, f"{seconds:.3f}")
    table.add_row("total", f"{sum(timings.values()):.3f}")
    return table


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"
