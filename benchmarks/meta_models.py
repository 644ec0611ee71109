"""Exports of the largest language models, whose weights exist on the meta device only.

    python -m benchmarks.meta_models [--models "Llama 7B;Llama 70B"] [--json meta_models.json]

The models have their published sizes and no weights; each is exported in a process of its own with dynamic
batch and length, on one thread, and saved without its weights. Seconds are the CPU's after the imports and an export of
a small model; memory is the peak of the process, of which ``before`` is there before the export; ``graph MiB`` is the
size of the file.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ._output import print_table, text, write_json
from .large_models import MIB, Peak


def _llama(**config: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**config))


def _deepseek() -> Any:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    return DeepseekV3ForCausalLM(DeepseekV3Config())


_LLAMA_70B = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
MODELS: Mapping[str, tuple[Callable[[], Any], Mapping[str, str]]] = MappingProxyType(
    {
        "Llama 7B": (_llama, {}),
        "Llama 70B": (lambda: _llama(**_LLAMA_70B), {}),
        "DeepSeek-V3 671B": (_deepseek, {}),
        "DeepSeek-V3 671B, onnxruntime-genai": (_deepseek, {"target": "onnxruntime-genai"}),
    }
)
"""Name to the model, and the options of the export."""


def measure(name: str) -> dict[str, Any]:
    """Exports and saves a model in this process."""
    import psutil
    import torch

    import fxonnx
    from tests.models.torchvision_shim import import_torchvision

    from ._exporters import ours
    from ._zoo import llama_stack

    import_torchvision()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    make, options = MODELS[name]
    ours(llama_stack(1))
    with tempfile.TemporaryDirectory() as folder, Peak() as peak:
        with torch.device("meta"):
            model = make().eval()
        before = psutil.Process().memory_info().rss / MIB
        began = time.process_time()
        program = fxonnx.export(
            model,
            kwargs={"input_ids": torch.zeros(1, 8, dtype=torch.int64), "use_cache": False},
            dynamic_shapes={"input_ids": {0: "batch", 1: "tokens"}},
            **options,
        )
        exporting = time.process_time() - began
        program.apply_weights({key: torch.zeros(buffer.shape) for key, buffer in model.named_buffers()})
        began = time.process_time()
        program.save(Path(folder) / "model.onnx", include_initializers=False)
        saving = time.process_time() - began
        size = (Path(folder) / "model.onnx").stat().st_size
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()) / 1e9,
        "layers": model.config.num_hidden_layers,
        "export": exporting,
        "a layer": exporting / model.config.num_hidden_layers,
        "save": saving,
        "peak MiB": peak.mib,
        "before MiB": before,
        "nodes": len(program.model.graph),
        "graph MiB": size / MIB,
        "input": str(program.model.graph.inputs[0].shape),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the table and writes the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="some of the models, separated by semicolons")
    parser.add_argument("--json")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child is not None:
        print(json.dumps(measure(options.child)))
        return
    rows = []
    for name in options.models.split(";") if options.models else MODELS:
        command = [sys.executable, "-m", "benchmarks.meta_models", "--child", name]
        output = subprocess.check_output(command, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        rows.append({"model": name, **json.loads(output.splitlines()[-1])})
        print(rows[-1], file=sys.stderr)
    print_table("Models without weights", list(rows[0]), [[text(value) for value in row.values()] for row in rows])
    write_json(options.json, {"rows": rows})


if __name__ == "__main__":
    main()
