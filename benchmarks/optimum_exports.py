"""Exports of optimum-onnx through ``torch.onnx.export`` of fxonnx, and its own validation of them.

    make optimum OPTIMUM_FLAGS="--torchscript --generate"
    python -m benchmarks.optimum_exports [--models bert,llama] [--all-tasks] [--torchscript] [--json optimum.json]
    python -m benchmarks.optimum_exports --generate

optimum-onnx is used as it is: ``onnx_export_from_model`` of small models with random weights, while
``fxonnx.installed()`` serves its calls of torch.onnx.export. ``valid`` means that its validation accepts every file:
names of outputs and axes, shapes, and values in ONNX Runtime. With ``--torchscript`` the same without fxonnx, and the
ratio of the CPU seconds of all calls of torch.onnx.export. With ``--generate`` the exported directories generate, and
the tokens are compared with PyTorch's.

Each pair runs in a process of its own, forked after the imports and an export of a small model by each exporter, with a
time limit and a memory limit. Needs transformers 4.57, and therefore the environment of ``make optimum``.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import multiprocessing
import re
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import optimum.exporters.onnx.convert as convert
import torch
import transformers
from optimum.exporters.tasks import TasksManager
from optimum.onnxruntime import ORTModelForCausalLM, ORTModelForSeq2SeqLM

import fxonnx
from tests.genai.small_models import make_tokenizer

from ._optimum_models import GENERATION, MODELS
from ._output import geometric_mean, print_table, text, write_json

Job: TypeAlias = Callable[..., tuple[str, float | None]]
"""Model type, task and exporter to a result and the CPU seconds of the export."""

SECONDS = 240
MEMORY = 12 << 30
EXPORTERS = ("fxonnx", "TorchScript")
RATIO = "fxonnx/TorchScript"


def tasks_of(model_type: str, all_tasks: bool) -> list[str]:
    """The tasks of a model type: all, or those that generate with a past, or one with a head."""
    supported = list(TasksManager.get_supported_tasks_for_model_type(model_type, "onnx", library_name="transformers"))
    if all_tasks:
        return supported
    generating = [task for task in supported if task.endswith("-with-past") and not task.startswith("feature")]
    heads = [
        task for task in supported if task.startswith(("text-class", "question", "image-class", "object", "audio"))
    ]
    zero_shot = [task for task in supported if task.startswith("zero-shot")]
    return generating or [*heads[:1], *zero_shot[:1]] or supported[:1]


def plain(options: Any) -> Any:
    """A copy in dicts and lists, which configurations may change."""
    if isinstance(options, Mapping):
        return {key: plain(value) for key, value in options.items()}
    return list(map(plain, options)) if isinstance(options, list) else options


def make(model_type: str, task: str) -> torch.nn.Module:
    """A small model of a type for a task."""
    name = model_type if model_type in transformers.CONFIG_MAPPING else model_type.replace("-", "_")
    # "architectures" chooses between classes for one task: the first.
    config = transformers.CONFIG_MAPPING[name](**plain(MODELS[model_type]), architectures=[])
    if model_type == "vits":  # draws random numbers, without which its outputs can be compared
        config.noise_scale = config.noise_scale_duration = 0.0
    base = task.removesuffix("-with-past")
    found = TasksManager.get_model_class_for_task(base, model_type=model_type, library="transformers")
    torch.manual_seed(0)
    build: Callable[[Any], torch.nn.Module] = getattr(found, "from_config", None) or getattr(
        found, "_from_config", found
    )
    model = build(config).eval()
    model.config.architectures = [type(model).__name__]  # as in a saved configuration
    return model


@contextlib.contextmanager
def failures() -> Iterator[list[Exception]]:
    """The exceptions of optimum's validation, some of which its export turns into warnings."""
    found: list[Exception] = []
    original = convert.validate_models_outputs

    def validate(**arguments: Any) -> None:
        try:
            original(**arguments)
        except Exception as error:
            found.append(error)
            raise

    convert.validate_models_outputs = validate
    try:
        yield found
    finally:
        convert.validate_models_outputs = original


@contextlib.contextmanager
def timed() -> Iterator[list[float]]:
    """The CPU seconds of each call of torch.onnx.export."""
    seconds: list[float] = []
    original = torch.onnx.export

    def export(*arguments: Any, **options: Any) -> Any:
        start = time.process_time()
        try:
            return original(*arguments, **options)
        finally:
            seconds.append(time.process_time() - start)

    torch.onnx.export = export
    try:
        yield seconds
    finally:
        torch.onnx.export = original


def export(model: Any, task: str, exporter: str, directory: Path) -> float:
    """Exports with optimum's function; returns the CPU seconds of torch.onnx.export, raises what validation raises."""
    if model.config.model_type in ("dinov2", "perceiver", "vitpose"):
        # optimum reads the size of the example from the saved image processor.
        side = getattr(model.config, "image_size", 32)
        size = {"height": side, "width": side}
        transformers.BitImageProcessor(size=size, crop_size=size).save_pretrained(directory)
        model.config.save_pretrained(directory)
        model.config._name_or_path = str(directory)
    is_pix2struct = model.config.model_type == "pix2struct"
    given = {"preprocessors": pix2struct_processors()} if is_pix2struct else {}
    serving = fxonnx.installed() if exporter == "fxonnx" else contextlib.nullcontext()
    with failures() as found, serving, timed() as seconds:
        convert.onnx_export_from_model(model, directory, task=task, device="cpu", **given)
    if found:
        raise found[0]
    return sum(seconds)


def pix2struct_processors() -> list[Any]:
    """The tokenizer and the processor of Pix2Struct, from which optimum reads the number of patches."""
    tokenizer = transformers.T5TokenizerFast(
        tokenizer_object=make_tokenizer().backend_tokenizer, extra_ids=0, pad_token="<pad>", eos_token="</s>"
    )
    images = transformers.Pix2StructImageProcessor(max_patches=24)
    return [tokenizer, transformers.Pix2StructProcessor(images, tokenizer)]


def outcome(model_type: str, task: str, exporter: str) -> tuple[str, float | None]:
    """``valid`` and the CPU seconds of the export, or what went wrong, in the first line of the error."""
    try:
        model = make(model_type, task)
    except Exception as error:  # noqa: BLE001 - a result of the table
        return f"model: {described(error)}", None
    with tempfile.TemporaryDirectory() as directory:
        try:
            return "valid", export(model, task, exporter, Path(directory))
        except Exception as error:  # noqa: BLE001 - a result of the table
            traceback.print_exc()
            kind = type(error).__name__
            invalid = kind in ("AtolError", "OutputMatchError", "ShapeError") or "during validation" in str(error)
            return f"{'invalid' if invalid else 'error'}: {described(error)}", None


def described(error: BaseException) -> str:
    """The kind and the first informative lines of an exception, or of its cause."""
    if "during validation" in str(error) or "post-processing" in str(error):
        error = error.__cause__ or error
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"[:300]


PROMPT = torch.tensor([[11, 23, 35, 47, 59, 71], [83, 95, 107, 119, 17, 29]])


def generated(model_type: str, task: str, exporter: str) -> tuple[str, float | None]:
    """``equal`` if the exported directory generates the tokens of PyTorch."""
    model: Any = make(model_type, task)
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "num_beams": 1}
    inputs = {"input_ids": PROMPT, "attention_mask": torch.ones_like(PROMPT)}
    expected = model.generate(**inputs, **options)
    loader = ORTModelForCausalLM if task.startswith("text-generation") else ORTModelForSeq2SeqLM
    with tempfile.TemporaryDirectory() as directory:
        seconds = export(model, task, exporter, Path(directory))
        found = loader.from_pretrained(directory).generate(**inputs, **options)
    words = " ".join(map(str, expected[0].tolist()[-12:]))
    equal = torch.equal(found, expected)
    return f"equal: {words}" if equal else f"differ: {words} | {found[0].tolist()[-12:]}", seconds


def isolated(job: Job, arguments: Sequence[str], log: str | None) -> tuple[str, float | None]:
    """The result of a job in a process of its own."""

    def run(connection: Connection) -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        gc.collect()  # copies the memory of all objects into this process, which is not the time of an export
        stream = open(log, "a") if log else open("/dev/null", "w")  # noqa: SIM115
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            print(f"==== {' '.join(arguments)}", file=stream)
            try:
                connection.send(job(*arguments))
            except Exception as error:  # noqa: BLE001 - a result of the table
                traceback.print_exc()
                connection.send((f"error: {described(error)}", None))
        stream.close()

    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=run, args=(sender,))
    process.start()
    sender.close()
    try:
        result = receiver.recv() if receiver.poll(SECONDS) else (f"error: more than {SECONDS} seconds", None)
    except EOFError:
        process.join()
        result = f"error: the process ended with {process.exitcode}", None
    process.join(5)  # the log is closed
    process.kill()
    process.join()
    return result


def measured(
    job: Job, pairs: Sequence[tuple[str, str]], exporters: Sequence[str], log: str | None
) -> list[dict[str, Any]]:
    """One row for each pair."""
    rows = []
    for model_type, task in pairs:
        row: dict[str, Any] = {"type": model_type, "task": task}
        for exporter in exporters:
            found, seconds = isolated(job, (model_type, task, exporter), log)
            row |= {exporter: re.sub(r"/tmp/\S+/", "", found), f"{exporter} s": seconds}
            print(f"{model_type} {task} {exporter} {text(seconds)} s: {row[exporter]}", file=sys.stderr, flush=True)
        times = [row[f"{exporter} s"] for exporter in exporters]
        if len(times) == len(EXPORTERS) and None not in times:
            row[RATIO] = times[0] / times[1]
        rows.append(row)
    return rows


def warm_up(exporters: Sequence[str]) -> None:
    """Exports a small model, with which everything is imported."""
    for exporter in exporters:
        serving = fxonnx.installed() if exporter == "fxonnx" else contextlib.nullcontext()
        with serving, tempfile.TemporaryDirectory() as directory:
            options = {"dynamic_axes": {"input": {0: "batch"}}, "input_names": ["input"], "dynamo": False}
            torch.onnx.export(torch.nn.Linear(2, 2), (torch.ones(2, 2),), f"{directory}/model.onnx", **options)


def main(arguments: Sequence[str] | None = None) -> None:
    """Exports, prints the tables and the totals, and writes the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--tasks", help="only these, separated by commas")
    parser.add_argument("--all-tasks", action="store_true", help="every task of every type, some 500 pairs")
    parser.add_argument("--torchscript", action="store_true", help="the same exports by torch's TorchScript exporter")
    parser.add_argument("--only-torchscript", action="store_true", help="those alone")
    parser.add_argument("--generate", action="store_true", help="only compare generated tokens")
    parser.add_argument("--log", help="output and tracebacks of the exports")
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    models = options.models.split(",")
    exporters = EXPORTERS[1:] if options.only_torchscript else EXPORTERS[: 1 + options.torchscript]
    if options.generate:
        pairs = [(name, task) for task, names in GENERATION.items() for name in names if name in models]
        job = generated
    else:
        chosen = options.tasks.split(",") if options.tasks else None
        pairs = [(name, task) for name in models for task in tasks_of(name, options.all_tasks or bool(chosen))]
        pairs = [(name, task) for name, task in pairs if not chosen or task in chosen]
        job = outcome
    warm_up(exporters)
    rows = measured(job, pairs, exporters, options.log)
    keys = ["type", "task", *exporters, *(f"{exporter} s" for exporter in exporters), RATIO]
    print_table("optimum-onnx", keys, [[text(row.get(key)) for key in keys] for row in rows])
    if ratios := [row[RATIO] for row in rows if RATIO in row]:
        print(f"{RATIO}: {geometric_mean(ratios):.2f} in geometric mean, at most {max(ratios):.2f}")
    counted = {exporter: Counter(row[exporter].split(":")[0] for row in rows) for exporter in exporters}
    for exporter, counts in counted.items():
        print(f"{exporter}: {len(rows)} pairs, {', '.join(f'{count} {what}' for what, count in counts.most_common())}")
    write_json(options.json, {"rows": rows, "counted": counted})


if __name__ == "__main__":
    main()
