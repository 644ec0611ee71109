"""Command line: ``export``, ``analyze``, ``hf``, ``genai``, ``check``, ``verify``, ``diff``, ``report`` and ``demo``.

Modules that import torch are imported inside the commands, so that ``fxonnx --help`` is fast.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from .choices import choice
from .messages import print_answer, print_error, print_json, print_text, progress, readable_messages, size_text

__all__ = ["app"]

app = typer.Typer(help="Export PyTorch models to ONNX.", no_args_is_help=True, pretty_exceptions_enable=False)

_CALIBRATION_HELP = (
    "With --quantize int8, also quantize activations, by their ranges for these inputs: a .pt file with a list of "
    "batches, or a .npz file with one array per argument, whose first axis separates the batches."
)
_GENAI_STAGES = ("load", "capture", "prepare", "lower", "save", "verify")
_SOURCE_HELP = (
    "A .pt2 file; or package.module:NAME or file.py:NAME, whose code is run: a class of models, which is made without "
    "arguments, seeded and in eval mode, or a function returning a model or (model, args[, kwargs[, dynamic_shapes]])."
)
_INPUT_HELP = (
    "An example input of a model that comes without: 1,3,224,224:float32; or name=2,7:int64. Once for each input. "
    "Floating-point numbers are drawn from 0 to 1, integers are 0 or 1."
)
Source = Annotated[str, typer.Argument(metavar="SOURCE", help=_SOURCE_HELP)]
Inputs = Annotated[list[str] | None, typer.Option("--input", metavar="[NAME=]SHAPE[:DTYPE]", help=_INPUT_HELP)]
Dynamic = Annotated[
    list[str] | None,
    typer.Option("--dynamic", metavar="INPUT:AXIS=NAME", help="A dynamic dim, such as x:0=batch; may be repeated."),
]
Destination = Annotated[Path | None, typer.Argument(metavar="FILE", help="The ONNX file to write, as --output.")]
FileToWrite = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="The ONNX file to write.")]
Force = Annotated[bool, typer.Option("--force", help="Write into a directory that has files, and replace them.")]
Opset = Annotated[int | None, choice("opset", "The ONNX opset, 7 to 28.")]
Target = Annotated[str | None, choice("target", "The runtime: {}.")]
Metadata = Annotated[
    str, choice("metadata", "Provenance of nodes: full, names (modules, without stack traces) or none.")
]
Numerics = Annotated[
    str, choice("numerics", "Results for NaN and signed zeros: default (the runtime's) or exact (torch's).")
]
Functions = Annotated[
    str, choice("functions", "ONNX functions: none, regions (the marked ones) or repeated (modules as well).")
]
Quantize = Annotated[str | None, choice("quantize", "Store the weights of linear layers as integers: {}.")]
Frozen = Annotated[
    str | None,
    typer.Option(metavar="NAME,...", help="Comma-separated names or patterns of inputs that become constants."),
]
InputNames = Annotated[str | None, typer.Option(metavar="NAME,...", help="Comma-separated names of the graph inputs.")]
OutputNames = Annotated[
    str | None, typer.Option(metavar="NAME,...", help="Comma-separated names of the graph outputs.")
]
AllSizes = Annotated[bool, typer.Option("--all-sizes", help="Also compare at several sizes of the dynamic dims.")]
Report = Annotated[Path | None, typer.Option(metavar="DIR", help="Directory for an HTML report, also on a failure.")]
DynamicActivations = Annotated[
    bool, typer.Option("--dynamic-activations", help="With int8, also quantize activations, in every call.")
]
DataDependent = Annotated[
    str, choice("data_dependent", "Branches on the values of inputs: error, or example to follow the example's.")
]
Checkpoint = Annotated[
    str, typer.Argument(help="A model of transformers, or for hf a pipeline: directory, id of the Hub or GGUF file.")
]
OutputDirectory = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The directory to write.")]
VerifyDirectory = Annotated[
    bool, typer.Option("--verify/--no-verify", help="Compare the files and generated tokens with the model.")
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit on the Hub.")]
Token = Annotated[str | None, typer.Option(help="Token of the Hub.")]
ChatTemplate = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A file with a chat template in place of the tokenizer's.")
]
BlockSize = Annotated[
    int | None, typer.Option(metavar="N", help="With int4 or int8, the number of weights that share a scale.")
]
Embeddings = Annotated[str | None, choice("embeddings", "With int4 or int8, the element type of embedding tables: {}.")]
Head = Annotated[
    str | None, choice("lm_head", "With int4 or int8, the element type of the layer that computes logits: {}.")
]
AccuracyLevel = Annotated[
    int | None,
    typer.Option(help="Of quantized weights: 4 rounds activations to 8 bits, the default; 1 computes in float32."),
]
Adapters = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=DIR", help="A LoRA adapter of PEFT, and its directory; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of errors.")]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="With --version, the libraries', and patches that do not apply.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --version, print one JSON object.")] = False,
) -> None:
    """Export PyTorch models to ONNX."""
    if show_version:
        lines, record = [f"fxonnx {version('fxonnx')}"], {"fxonnx": version("fxonnx")}
        if verbose:
            from .installation import find_installation  # imports torch

            found = find_installation()
            lines, record = [*lines, str(found)], record | asdict(found)
        print_answer(as_json, record, "\n".join(lines))
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@app.command("export")
def export_command(
    source: Source,
    destination: Destination = None,
    output: FileToWrite = None,
    inputs: Inputs = None,
    dynamic: Dynamic = None,
    opset: Opset = None,
    target: Target = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare with the model in eager torch.")] = False,
    all_sizes: AllSizes = False,
    strict_shapes: Annotated[
        bool, typer.Option("--strict-shapes", help="Fail if the model cannot be exported for all requested sizes.")
    ] = False,
    numerics: Numerics = "default",
    functions: Functions = "regions",
    quantize: Quantize = None,
    calibration: Annotated[Path | None, typer.Option(metavar="FILE", help=_CALIBRATION_HELP)] = None,
    dynamic_activations: DynamicActivations = False,
    frozen: Frozen = None,
    data_dependent: DataDependent = "error",
    metadata: Metadata = "full",
    profile: Annotated[bool, typer.Option("--profile", help="Show the time of each stage.")] = False,
    report: Report = None,
    input_names: InputNames = None,
    output_names: OutputNames = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Export a model to an ONNX file.

    Example: fxonnx export package.module:function -o model.onnx --verify

    Example: fxonnx export model.py:Net model.onnx --input 1,3,224,224:float32 --dynamic x:0=batch

    Exit code 0 if the file is written, 1 after an error, 2 for a wrong argument.
    """
    path = _file_to_write(destination, output)
    with readable_messages(debug, as_json=as_json), progress() as on_stage:
        from .exported import Exported, check_destinations  # imports torch

        check_destinations(path, report)
        on_stage("load")
        from .loading import load_model  # imports torch

        loaded = load_model(source, inputs or (), dynamic or ())
        from .._comparison import NOT_VERIFIED  # imports torch
        from .._diagnostics import Diagnostics  # imports torch
        from .._export import export  # imports torch
        from .._request import ExportOptions  # imports torch
        from .._warnings import collecting_warnings, warn_user
        from .inputs import named_as_options
        from .loading import read_quantization  # imports torch

        # export checks these strings.
        choices: dict[str, Any] = {"target": target, "data_dependent": data_dependent}
        rare: dict[str, Any] = {"numerics": numerics, "functions": functions, "metadata": metadata}
        with collecting_warnings() as caught, named_as_options(inputs or (), dynamic or ()):
            program = export(
                loaded.model,
                loaded.args,
                path,
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
        for text in caught:
            warn_user(text)
        skipped = any(text.startswith(NOT_VERIFIED) for text in caught)
        exported = Exported(path, program, is_verified=(verify or all_sizes) and not skipped)
    if as_json:
        print_json(exported.record())
        return
    if profile:
        Console().print(exported.stages())
    if calibration is not None or dynamic_activations:
        print_text(str(program.quantization.report()))
    print_text(str(exported))


def _file_to_write(argument: Path | None, option: Path | None) -> Path:
    """The file, which is given once."""
    path = option if argument is None else argument
    if path is None or None not in (argument, option):
        problem = "specify the ONNX file to write" if path is None else "the ONNX file to write is given twice"
        raise typer.BadParameter(problem, param_hint="--output")
    return path


@app.command("hf")
def hf_command(
    model: Checkpoint,
    output: OutputDirectory,
    task: Annotated[str | None, choice("task", "The task; by default the task of the model's class.")] = None,
    layout: Annotated[str, choice("layout", "The library that loads the directory: {}.")] = "optimum",
    dtype: Annotated[str, choice("dtype", "Comma-separated: {}.", several=True)] = "fp32",
    vocoder: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Of SpeechT5: the model that makes sound, a directory or id of the Hub."),
    ] = None,
    attentions: Annotated[
        bool, typer.Option("--attentions", help="Return cross attentions, for return_token_timestamps of Whisper.")
    ] = False,
    opset: Opset = None,
    target: Target = None,
    revision: Revision = None,
    token: Token = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that the checkpoint contains.")
    ] = False,
    verify: VerifyDirectory = True,
    force: Force = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Export a model of transformers for optimum, transformers.js or sentence-transformers.

    Example: fxonnx hf checkpoint -o model --layout transformers.js --dtype fp32,q8

    Exit code 0 if the directory is written, 1 after an error, 2 for a wrong argument.
    """
    with readable_messages(debug, as_json=as_json), progress() as on_stage:
        from .exported import check_directory  # imports torch

        check_directory(output, force=force)
        from ..huggingface import export as export_for_huggingface  # imports torch

        choices: dict[str, Any] = {"layout": layout, "target": target}
        exported = export_for_huggingface(
            model,
            output,
            task=task,
            dtype=dtype,
            vocoder=vocoder,
            attentions=attentions,
            opset_version=opset,
            verify=verify,
            revision=revision,
            token=token,
            trust_remote_code=trust_remote_code,
            on_stage=on_stage,
            **choices,
        )
    record = asdict(exported)
    print_answer(as_json, {"output": record.pop("path")} | record, str(exported))


@app.command("genai")
def genai_command(
    model: Checkpoint,
    output: OutputDirectory,
    chat_template: ChatTemplate = None,
    no_chat_template: Annotated[
        bool, typer.Option("--no-chat-template", help="Write no chat template: the model does not chat.")
    ] = False,
    precision: Annotated[str, choice("precision", "fp32, fp16, bf16, or for the weights only int4 or int8.")] = "fp32",
    recipe: Annotated[str | None, choice("recipe", "In place of --precision and its details: {}.")] = None,
    block_size: BlockSize = None,
    embeddings: Embeddings = None,
    lm_head: Head = None,
    accuracy_level: AccuracyLevel = None,
    cache: Annotated[str, choice("cache", "Element type of the keys and values of earlier tokens: {}.")] = "float",
    target: Annotated[str, choice("device", "The device: {}.")] = "cpu",
    last_logits: Annotated[
        bool, typer.Option("--last-logits/--all-logits", help="Compute the logits of the last position only.")
    ] = True,
    adapter: Adapters = None,
    pooling: Annotated[str | None, choice("pooling", "Export an embedding model with this pooling: {}.")] = None,
    normalize: Annotated[
        bool | None, typer.Option("--normalize/--no-normalize", help="Normalize the embeddings.")
    ] = None,
    text_only: Annotated[
        bool, typer.Option("--text-only", help="Export a model that also takes images or audio as one of text.")
    ] = False,
    hidden_states: Annotated[
        bool, typer.Option("--hidden-states", help="Return the hidden states of the last layer as well.")
    ] = False,
    inputs_embeds: Annotated[
        bool, typer.Option("--inputs-embeds", help="Take embeddings in place of tokens, for ONNX Runtime.")
    ] = False,
    mtp: Annotated[
        bool, typer.Option("--mtp", help="Write the heads for multi-token prediction as well, for ONNX Runtime.")
    ] = False,
    revision: Revision = None,
    token: Token = None,
    verify: VerifyDirectory = True,
    force: Force = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Export a language model for onnxruntime-genai.

    Example: fxonnx genai checkpoint -o model --precision int4

    Exit code 0 if the directory is written, 1 after an error, 2 for a wrong argument.
    """
    adapters = dict(_name_and_path(each) for each in adapter or ())
    if chat_template and no_chat_template:
        raise typer.BadParameter("it excludes --chat-template", param_hint="--no-chat-template")
    with readable_messages(debug, as_json=as_json), progress(_GENAI_STAGES) as on_stage:
        from .exported import WrittenDirectory, check_directory  # imports torch

        check_directory(output, force=force, model=Path(model))
        from ..genai import export as export_for_genai  # imports torch
        from .loading import read_weight_quantization

        found: list[Any] = []
        choices: dict[str, Any] = {"precision": precision, "recipe": recipe, "target": target, "pooling": pooling}
        choices["cache"] = cache
        export_for_genai(
            model,
            output,
            chat_template=False if no_chat_template else chat_template,
            last_logits=last_logits,
            normalize=normalize,
            text_only=text_only,
            hidden_states=hidden_states,
            accuracy_level=accuracy_level,
            inputs_embeds=inputs_embeds,
            mtp=mtp,
            adapters=adapters,
            quantize=read_weight_quantization(
                recipe or precision, {"block_size": block_size, "embeddings": embeddings, "lm_head": lm_head}
            ),
            verify=verify,
            revision=revision,
            token=token,
            on_stage=on_stage,
            on_quality=found.append,
            **choices,
        )
    written = WrittenDirectory(output, is_verified=verify, quality=found[-1] if found else None)
    print_answer(as_json, written.record(), str(written))


def _name_and_path(text: str) -> tuple[str, str]:
    name, separator, path = text.partition("=")
    if not separator or not path:
        raise typer.BadParameter(f"{text!r} is not NAME=DIR", param_hint="--adapter")
    return name, path


@app.command("check")
def check_command(
    model: Annotated[Path, typer.Argument(metavar="FILE", help="The ONNX file, of any exporter.")],
    target: Annotated[str, choice("target", "The runtime: {}.")] = "onnxruntime",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Find the nodes that a runtime cannot run, or runs slowly.

    Example: fxonnx check model.onnx --target tensorrt

    Exit code 0 if there are none, 1 if there are some, 2 for a wrong argument.
    """
    with readable_messages(debug, as_json=as_json, exit_code=2):
        from .checking import run_check  # imports torch

        result = run_check(model, target)
    print_answer(as_json, result.record, result.text)
    raise typer.Exit(int(bool(result.record["findings"])))


@app.command("verify")
def verify_command(
    model: Annotated[Path, typer.Argument(metavar="FILE", help="The ONNX file.")],
    source: Source,
    inputs: Inputs = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare an ONNX file with the PyTorch model, at its example and at the inputs of the recorded proof.

    Example: fxonnx verify model.onnx package.module:function

    Exit code 0 if all outputs agree, 1 if one differs or after an error, 2 for a wrong argument.
    """
    with readable_messages(debug, as_json=as_json), progress() as on_stage:
        on_stage("load")
        from .loading import load_model  # imports torch

        loaded = load_model(source, inputs or ())
        on_stage("verify")
        from .verifying import run_verification  # imports torch

        result = run_verification(model, loaded)
        if result.error is not None and not as_json:
            raise result.error
    if result.error is not None:
        print_error(result.error)
    print_answer(as_json, {"model": model, "source": source} | result.record(), str(result))
    raise typer.Exit(int(result.error is not None))


@app.command("analyze")
def analyze_command(
    source: Source,
    inputs: Inputs = None,
    dynamic: Dynamic = None,
    opset: Opset = None,
    target: Target = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Find out whether a model exports, and everything that prevents it; nothing is written.

    Example: fxonnx analyze package.module:function

    Exit code 0 if the model exports, 1 if it does not, 2 for a wrong argument.
    """
    with readable_messages(debug, as_json=as_json, exit_code=2), progress() as on_stage:
        on_stage("load")
        from .loading import load_model  # imports torch

        loaded = load_model(source, inputs or (), dynamic or ())
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
    print_answer(as_json, {"exports": found.exports} | asdict(found), str(found))
    has_wrong_argument = any(issue.is_error and issue.kind == "argument" for issue in found.issues)
    raise typer.Exit(2 if has_wrong_argument else int(not found.exports))


@app.command("diff")
def diff_command(
    first: Annotated[Path, typer.Argument(metavar="FIRST", help="An ONNX file, of any exporter.")],
    second: Annotated[Path, typer.Argument(metavar="SECOND", help="The ONNX file to compare it with.")],
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare two models: inputs, outputs, opsets, operators by module, weights, size.

    Example: fxonnx diff before.onnx after.onnx

    Exit code 0 if they are the same, 1 if they differ, 2 for a wrong argument.
    """
    with readable_messages(debug, as_json=as_json, exit_code=2):
        from ..diagnostics.diff import diff  # imports onnx_ir

        found = diff(first, second)
    print_answer(as_json, {"same": not found} | asdict(found), str(found))
    raise typer.Exit(int(bool(found)))


@app.command("report")
def report_command(
    model: Annotated[Path, typer.Argument(metavar="FILE", help="The ONNX file, of any exporter.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Path of the page; the model's with .html by default."),
    ] = None,
    profile_runtime: Annotated[
        bool, typer.Option("--profile-runtime", help="Run the model in ONNX Runtime's profiler, with random inputs.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write an HTML page about a model: inputs and outputs, operators, and the graph by module.

    Example: fxonnx report model.onnx -o model.html

    Exit code 0 if the page is written, 1 after an error, 2 for a wrong argument.
    """
    with readable_messages(debug, as_json=as_json):
        from ..diagnostics.reporting import report  # imports torch

        path = report(model, output or model.with_suffix(".html"), profile_runtime=profile_runtime)
    print_answer(as_json, {"output": path}, f"wrote {path}")


@app.command("demo")
def demo_command(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Path to keep the ONNX file at.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Export AlexNet, check the file, and run it in ONNX Runtime.

    Example: fxonnx demo -o alexnet.onnx

    Exit code 0 if all of it succeeds, 1 after an error, 2 for a wrong argument.
    """
    start = time.perf_counter()
    with (
        readable_messages(debug, as_json=as_json),
        progress() as on_stage,
        tempfile.TemporaryDirectory(prefix="fxonnx-") as directory,
    ):
        if output is not None:
            from .._program.saving import check_destination  # imports torch

            check_destination(output)
        on_stage("load")
        from .demo import run_demo  # imports torch

        path = Path(directory, "alexnet.onnx") if output is None else output
        result = run_demo(path, on_stage)
    total = time.perf_counter() - start
    if as_json:
        print_json({"output": output, **asdict(result)})
        return
    table = Table("AlexNet", "", title="fxonnx demo")
    for stage, seconds in result.seconds.items():
        table.add_row(f"{stage}, seconds", f"{seconds:.2f}")
    table.add_row("total with imports, seconds", f"{total:.2f}")
    table.add_row("nodes", str(result.nodes))
    table.add_row("initializers", str(result.initializers))
    table.add_row("file size", size_text(result.file_size))
    for batch, error in result.max_error.items():
        table.add_row(f"max error, batch {batch}", f"{error:.1e}")
    table.add_row("compared with PyTorch in", f"ONNX Runtime {version('onnxruntime')}, CPU")
    table.add_row("kernel tables list every node for", ", ".join(result.targets))
    Console().print(table)
    if output is not None:
        print_text(f"wrote {output}")


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]
