"""Tokens per second of transformers' ``generate``: eager torch, and directories of ``fxonnx hf`` in ``load``.

    python -m benchmarks.huggingface_generation [--json huggingface_generation.json]

A Llama of 6 layers with hidden size 512 and random weights, on one thread, 64 tokens after a prompt; the largest of
four runs, which alternate. Beside it the same model in onnxruntime-genai, with its own loop, and the parts that the
OnnxExporter of transformers exports, in its runner under the same ``generate``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import fxonnx.genai
import fxonnx.huggingface
from tests.genai.small_models import make_tokenizer
from tests.models.torchvision_shim import import_torchvision

from ._output import print_table, text, write_json

PROMPTS = (32, 512)
NEW = 64
_RUNS = 4
_SIZES = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 6, "vocab_size": 8000}
_FILES: Mapping[str, str] = {"fp32": "", "q8": "_quantized", "q4": "_q4"}

Generate = Callable[[torch.Tensor, int], None]
"""Generates a number of tokens after a prompt."""


def _of(model: Any) -> Generate:
    def generate(ids: torch.Tensor, count: int) -> None:
        options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
        model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)

    return generate


def _of_genai(directory: Path) -> Generate:
    import onnxruntime_genai as genai

    model = genai.Model(str(directory))

    def generate(ids: torch.Tensor, count: int) -> None:
        options = genai.GeneratorParams(model)
        options.set_search_options(max_length=ids.shape[1] + count, min_length=ids.shape[1] + count, do_sample=False)
        generator = genai.Generator(model, options)
        generator.append_tokens(ids.numpy())
        for _ in range(count):
            generator.generate_next_token()

    return generate


def _of_transformers(model: Any, directory: Path) -> Generate:
    """The parts of OnnxExporter, called by the model's own ``generate``."""
    import copy

    from transformers.exporters import ExportedModel
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    inputs = {"input_ids": torch.randint(5, 7000, (2, 12))}
    OnnxExporter().export_for_generation(model, inputs, OnnxConfig(dynamic=True)).save_pretrained(directory)
    runners = ExportedModel.from_pretrained(directory, session_options=_one_thread()).runners
    served = copy.copy(model)

    def forward(**given: Any) -> Any:
        cache, count = given.get("past_key_values"), given["input_ids"].shape[1]
        past = 0 if cache is None else cache.get_seq_length()
        part = runners["decode" if past else "prefill"]
        given["position_ids"] = torch.arange(past, past + count)[None]
        return part(**{name: value for name, value in given.items() if name in part.metadata.kwargs})

    served.forward = forward
    return _of(served)


def _one_thread() -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return options


def runners(root: Path) -> dict[str, Generate]:
    """All that generates, by name."""
    import_torchvision()
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(**_SIZES, num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=1024)
    model = LlamaForCausalLM(config).eval()
    fxonnx.huggingface.export(model, root / "hf", layout="transformers.js", dtype=",".join(_FILES), verify=False)
    found = {"eager": _of(model)}
    for name, file in _FILES.items():
        loaded = fxonnx.huggingface.load(root / "hf", file=file, session_options=_one_thread())
        found[f"load {name}"] = _of(loaded)
    for precision in ("fp32", "int4"):
        fxonnx.genai.export(model, root / precision, tokenizer=make_tokenizer(), precision=precision, verify=False)
        found[f"genai {precision}"] = _of_genai(root / precision)
    found["OnnxExporter"] = _of_transformers(model, root / "parts")
    return found


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory, torch.no_grad():
        found = runners(Path(directory))
        rows: dict[str, dict[str, Any]] = {name: {"model": name} for name in found}
        for length in PROMPTS:
            ids = torch.randint(5, 7000, (1, length))
            for _ in range(_RUNS):
                for name, generate in found.items():
                    start = time.perf_counter()
                    generate(ids, NEW)
                    column = f"tokens/s after {length}"
                    rows[name][column] = max(rows[name].get(column, 0.0), NEW / (time.perf_counter() - start))
    for row in rows.values():
        for length in PROMPTS:
            row[f"/eager {length}"] = row[f"tokens/s after {length}"] / rows["eager"][f"tokens/s after {length}"]
    header = list(rows["eager"])
    print_table("Generation", header, [[text(row[key]) for key in header] for row in rows.values()])
    write_json(given.json, {"rows": list(rows.values())})


if __name__ == "__main__":
    main()
