"""Checkpoints to ONNX directories: ``fxonnx hf`` beside transformers' own OnnxExporter and optimum-onnx.

    python -m benchmarks.huggingface_exports [--models bert,llama] [--json huggingface-exports.json]

Ten checkpoints with random weights, of small but real proportions. Each export runs in a process of its own. The clock
starts after the imports of torch and transformers, whose time depends on the other packages of an environment, and ends
with the saved files; the peak memory is the whole process's. ``fxonnx`` and optimum-onnx compare their files with the
model before they end, ``fxonnx, unverified`` and OnnxExporter do not. optimum-onnx needs transformers 4.57, and
therefore the environment of ``make optimum``; without it its columns are empty.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.models.torchvision_shim import import_torchvision

from ._output import print_table, with_means, write_json

ROOT = Path(__file__).parents[1]
OPTIMUM = ROOT / ".venv-optimum" / "bin" / "python"
_SMALL = {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8}
_DECODER = {**_SMALL, "intermediate_size": 1536, "num_key_value_heads": 4, "vocab_size": 8000}
_ENCODER = {**_SMALL, "intermediate_size": 2048}

MODELS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "bert": ("Bert", "ForSequenceClassification", {**_ENCODER, "vocab_size": 8000}),
    "distilbert": (
        "DistilBert",
        "ForTokenClassification",
        {"dim": 512, "n_layers": 6, "n_heads": 8, "vocab_size": 8000},
    ),
    "roberta": ("Roberta", "ForMaskedLM", {**_ENCODER, "vocab_size": 8000}),
    "vit": ("ViT", "ForImageClassification", _ENCODER),
    "wav2vec2": ("Wav2Vec2", "ForCTC", {**_ENCODER, "num_conv_pos_embeddings": 64}),
    "gpt2": ("GPT2", "LMHeadModel", {"n_embd": 512, "n_layer": 8, "n_head": 8, "vocab_size": 8000}),
    "llama": ("Llama", "ForCausalLM", _DECODER),
    "qwen3": ("Qwen3", "ForCausalLM", {**_DECODER, "head_dim": 64}),
    "t5": ("T5", "ForConditionalGeneration", {"num_layers": 6, "vocab_size": 8000, "decoder_start_token_id": 0}),
    "whisper": ("Whisper", "ForConditionalGeneration", {}),
}
TASKS: Mapping[str, str] = {
    "bert": "text-classification",
    "distilbert": "token-classification",
    "roberta": "fill-mask",
    "vit": "image-classification",
    "wav2vec2": "automatic-speech-recognition",
    "t5": "text2text-generation-with-past",
    "whisper": "automatic-speech-recognition-with-past",
    **dict.fromkeys(("gpt2", "llama", "qwen3"), "text-generation-with-past"),
}
EXPORTERS = ("fxonnx", "fxonnx, unverified", "OnnxExporter", "optimum-onnx")


def _transformers() -> Any:
    """transformers; without its operators, torchvision cannot be imported, which the environment of optimum lacks."""
    with suppress(ModuleNotFoundError):
        import_torchvision()
    import transformers

    return transformers


def make(name: str, directory: Path) -> None:
    """Save a checkpoint with random weights, in the format of this environment's transformers."""
    transformers = _transformers()
    prefix, suffix, options = MODELS[name]
    config = getattr(transformers, f"{prefix}Config")(**options)
    getattr(transformers, f"{prefix}{suffix}")(config).save_pretrained(directory)


def export_with_transformers(name: str, directory: Path, out: Path) -> None:
    """Export with OnnxExporter, with dynamic sizes, the parts of generation for models that generate."""
    import torch

    transformers = _transformers()
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    prefix, suffix, _ = MODELS[name]
    model = getattr(transformers, f"{prefix}{suffix}").from_pretrained(directory).eval()
    inputs = {
        "vit": {"pixel_values": torch.randn(2, 3, 224, 224)},
        "wav2vec2": {"input_values": torch.randn(2, 16000)},
        "whisper": {"input_features": torch.randn(2, 80, 3000)},
    }.get(name, {"input_ids": torch.randint(5, 100, (2, 12)), "attention_mask": torch.ones(2, 12, dtype=torch.int64)})
    export = OnnxExporter().export_for_generation if model.can_generate() else OnnxExporter().export
    export(model, inputs, OnnxConfig(dynamic=True)).save_pretrained(out)


def export(exporter: str, name: str, directory: Path, out: Path) -> None:
    """Export a checkpoint in this process, and print wall seconds, CPU seconds and peak memory in MiB as JSON."""
    getattr(_transformers(), "".join(MODELS[name][:2]))  # imports the model's module
    wall, cpu = time.perf_counter(), time.process_time()
    if exporter == "OnnxExporter":
        export_with_transformers(name, directory, out)
    elif exporter == "optimum-onnx":
        from optimum.exporters.onnx import main_export

        main_export(str(directory), str(out), task=TASKS[name])
    else:
        import fxonnx.huggingface

        fxonnx.huggingface.export(directory, out, verify=exporter == "fxonnx")
    used = {"s": time.perf_counter() - wall, "CPU s": time.process_time() - cpu}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(used | {"MiB": memory}))


def measured(python: str, exporter: str, name: str, *directories: Path) -> Mapping[str, float]:
    """The figures of an export in a process of its own; none if it fails."""
    arguments = [python, "-W", "ignore", "-m", "benchmarks.huggingface_exports", "--export", exporter, name]
    done = subprocess.run([*arguments, *map(str, directories)], cwd=ROOT, capture_output=True, text=True, check=False)
    found: Mapping[str, float] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
    return found


def row(name: str) -> Mapping[str, Any]:
    """The measurements of one checkpoint."""
    found: dict[str, Any] = {"model": name}
    with tempfile.TemporaryDirectory() as directory:
        for exporter in EXPORTERS:
            python = str(OPTIMUM) if exporter == "optimum-onnx" else sys.executable
            if not Path(python).exists():
                continue
            checkpoint = Path(directory, Path(python).parents[1].name)
            if not checkpoint.exists():
                making = [python, "-m", "benchmarks.huggingface_exports", "--make", name, str(checkpoint)]
                subprocess.run(making, cwd=ROOT, check=True, capture_output=True)
            result = measured(python, exporter, name, checkpoint, Path(directory, exporter.replace(" ", "")))
            found |= {f"{exporter} {key}": value for key, value in result.items()}
    for other in ("OnnxExporter", "optimum-onnx"):
        ours = "fxonnx" if other == "optimum-onnx" else "fxonnx, unverified"
        if f"{other} CPU s" in found:
            found[f"{other}/fxonnx"] = found[f"{other} CPU s"] / found[f"{ours} CPU s"]
    return found


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--json")
    parser.add_argument("--make", nargs=2, metavar=("MODEL", "DIR"))
    parser.add_argument("--export", nargs=4, metavar=("EXPORTER", "MODEL", "DIR", "OUT"))
    given = parser.parse_args()
    if given.make:
        make(given.make[0], Path(given.make[1]))
    elif given.export:
        export(*given.export[:2], *map(Path, given.export[2:]))
    else:
        rows = with_means(
            [row(name) for name in given.models.split(",")], ["OnnxExporter/fxonnx", "optimum-onnx/fxonnx"]
        )
        columns = [f"{exporter} {key}" for exporter in EXPORTERS for key in ("s", "CPU s", "MiB")]
        header = ["model", *columns, "OnnxExporter/fxonnx", "optimum-onnx/fxonnx"]
        cells = [
            [f"{each[key]:.1f}" if isinstance(each.get(key), float) else str(each.get(key, "")) for key in header]
            for each in rows
        ]
        print_table("Checkpoints to ONNX directories", header, cells)
        if given.json:
            write_json(given.json, {"rows": rows})


if __name__ == "__main__":
    main()
