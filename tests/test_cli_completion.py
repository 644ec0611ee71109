"""Command line: completion of commands, options and values by shells, and their help."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, get_args, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

import fxonnx
from fxonnx._cli.choices import CHOICES
from fxonnx._cli.commands import app
from fxonnx._lower.metadata import MetadataLevel
from fxonnx._lower.versions import NEWEST_OPSET, OLDEST_OPSET
from fxonnx._quantize_config import WeightDtype, _Choice, _Table
from fxonnx._request import DataDependent, Functions, Numerics

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]

DEVICES = ("cuda", "webgpu", "directml", "tensorrt-rtx")
COMPLETIONS = [
    ("an", ["analyze"]),
    ("check --tar", ["--target"]),
    ("check m.onnx --target onnxruntime-w", ["onnxruntime-web", "onnxruntime-web-webgpu"]),
    ("export m:f --target ten", ["tensorrt"]),
    ("export m:f --numerics ", ["default", "exact"]),
    ("export m:f --functions re", ["regions", "repeated"]),
    ("export m:f --metadata n", ["names", "none"]),
    ("export m:f --data-dependent e", ["error", "example"]),
    ("export m:f --quantize int", ["int4", "int8"]),
    ("export m:f --opset 1", [str(opset) for opset in range(10, 20)]),
    ("analyze m:f --opset 7", ["7"]),
    ("analyze m:f --target open", ["openvino"]),
    ("hf d --task text-", ["text-classification", "text-generation", "text-to-audio"]),
    ("hf d --layout s", ["sentence-transformers"]),
    ("hf d --dtype q4", ["q4", "q4f16"]),
    ("hf d --dtype fp32,q", ["fp32,q8", "fp32,q4", "fp32,q4f16"]),
    ("hf d --target onnxruntime-g", ["onnxruntime-genai", *(f"onnxruntime-genai-{each}" for each in DEVICES)]),
    ("genai d --precision b", ["bf16"]),
    ("genai d --precision int", ["int4", "int8"]),
    ("genai d --target ", ["cpu", *DEVICES]),
    ("genai d --recipe ", ["exact", "balanced", "fast", "prefill"]),
    ("genai d --pooling mean", ["mean", "mean_sqrt_len"]),
    ("verify m.onnx m:f --", ["--input", "--json", "--debug", "--help"]),
]


def completed(words: str) -> list[str]:
    """The proposals of the function that shells call."""
    environment = {"_FXONNX_COMPLETE": "complete_bash", "COMP_WORDS": f"fxonnx {words}"}
    environment["COMP_CWORD"] = str(len(words.split(" ")))
    done = CliRunner().invoke(app, [], prog_name="fxonnx", env=environment)
    assert done.exit_code == 0, done.output
    return done.stdout.split()


@pytest.mark.parametrize(("words", "proposals"), COMPLETIONS)
def test_values_are_completed(words: str, proposals: list[str]) -> None:
    assert completed(words) == proposals


def test_a_shell_completes_without_torch() -> None:
    """Otherwise the user would wait for seconds."""
    code = (
        "import sys, atexit; atexit.register(lambda: sys.stderr.write(f'torch: {\"torch\" in sys.modules}'));"
        "sys.argv = ['fxonnx']; from fxonnx._cli.main import main; main()"
    )
    variables = {"_FXONNX_COMPLETE": "complete_bash", "COMP_WORDS": "fxonnx hf d --layout o", "COMP_CWORD": "4"}
    environment = os.environ | variables
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (["optimum"], "torch: False")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_printed(shell: str) -> None:
    done = CliRunner().invoke(app, [], prog_name="fxonnx", env={"_FXONNX_COMPLETE": f"source_{shell}"})
    assert done.exit_code == 0
    assert f"_FXONNX_COMPLETE=complete_{shell}" in done.stdout


def values_of(kind: str) -> tuple[Any, ...]:
    """The values that the functions accept which the commands call."""
    from fxonnx._transformers.precision import VARIANTS
    from fxonnx._transformers.tasks import TASKS
    from fxonnx.genai import export as export_for_genai
    from fxonnx.huggingface import export as export_for_huggingface

    genai, huggingface = get_type_hints(export_for_genai), get_type_hints(export_for_huggingface)
    found = {
        "target": get_args(fxonnx.Target),
        "device": get_args(genai["target"]),
        "numerics": get_args(Numerics),
        "functions": get_args(Functions),
        "metadata": get_args(MetadataLevel),
        "data_dependent": get_args(DataDependent),
        "quantize": get_args(WeightDtype),
        "opset": tuple(map(str, range(OLDEST_OPSET, NEWEST_OPSET + 1))),
        "layout": get_args(huggingface["layout"]),
        "dtype": tuple(VARIANTS),
        "precision": get_args(genai["precision"]),
        "recipe": get_args(get_args(genai["recipe"])[0]),
        "embeddings": get_args(_Table),
        "lm_head": get_args(_Choice),
        "cache": get_args(genai["cache"]),
        "pooling": get_args(get_args(genai["pooling"])[0]),
        "task": tuple(TASKS),
    }
    return found[kind]


@pytest.mark.parametrize("kind", CHOICES)
def test_the_values_are_those_that_are_accepted(kind: str) -> None:
    assert CHOICES[kind] == values_of(kind)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_names_all_values(command: str) -> None:
    for parameter in COMMANDS[command].params:
        kind = "device" if (command, parameter.name) == ("genai", "target") else parameter.name
        if kind in CHOICES and kind not in ("task", "opset"):
            assert [value for value in CHOICES[kind] if value not in parameter.help] == []
            assert completed(f"{command} {parameter.opts[0]} ") == list(CHOICES[kind])


def test_defaults_are_values() -> None:
    for command in COMMANDS.values():
        for parameter in command.params:
            if isinstance(parameter.default, str) and parameter.name in CHOICES:
                kind = "device" if parameter.default == "cpu" else parameter.name
                assert parameter.default in CHOICES[kind]
