"""Mixtures of experts in onnxruntime-genai on one thread, over a dense model of their active size.

    python -m benchmarks.experts [--models deepseek_v3,glm4_moe] [--precisions fp32,int4] [--json experts.json]

Random weights, 4 layers, hidden size 512, 64 experts of 256 hidden units of which each token has 6, one shared expert
where the architecture has any. The dense model is a Llama whose layers have as many hidden units as are active. A time
is the CPU time of a token, the mean of 48 after a prompt of 16, in the fastest of several runs. ``bits`` is the size of
the file over the number of weights, without the embedding, which stays in float32.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fxonnx import genai
from tests.genai.small_models import make_tokenizer
from tests.models.torchvision_shim import import_torchvision

from ._exporters import silenced
from ._output import print_table, text, with_means, write_json

EXPERTS, ACTIVE, UNITS = 64, 6, 256
SIZES: dict[str, Any] = {
    **{"vocab_size": 4096, "hidden_size": 512, "num_hidden_layers": 4, "head_dim": 64, "num_attention_heads": 8},
    **{"num_key_value_heads": 8, "max_position_embeddings": 512, "tie_word_embeddings": False},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
ROUTING: dict[str, Any] = {
    **{"num_experts": EXPERTS, "n_routed_experts": EXPERTS, "num_local_experts": EXPERTS, "moe_num_experts": EXPERTS},
    **{"num_experts_per_tok": ACTIVE, "moe_k": ACTIVE, "moe_topk": ACTIVE, "n_group": 8, "topk_group": 4},
    **{"moe_intermediate_size": UNITS, "first_k_dense_replace": 0, "moe_layer_start_index": 0},
    **{"n_shared_experts": 1, "num_shared_experts": 1, "moe_num_shared_experts": 1},
    **{"qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 64, "q_lora_rank": 128, "kv_lora_rank": 64},
}
SHARED = frozenset({"deepseek_v2", "deepseek_v3", "glm4_moe", "dots1", "ernie4_5_moe", "hunyuan_v1_moe"})
"""Architectures with a shared expert."""
MODELS = (
    *("deepseek_v2", "deepseek_v3", "glm4_moe", "dots1", "ernie4_5_moe", "minimax_m2", "hunyuan_v1_moe", "granitemoe"),
    *("qwen3_moe", "mixtral", "olmoe", "gpt_oss", "phimoe"),
)
_TOKENS, _RUNS = 48, 5


def build(name: str) -> Any:
    """A language model with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    sizes = {**SIZES, **ROUTING, "intermediate_size": UNITS}
    if name.startswith("llama"):
        sizes = {**SIZES, "intermediate_size": UNITS * int(name.removeprefix("llama-"))}
        name = "llama"
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **sizes)).eval()


def export(model: Any, folder: Path, precision: str) -> dict[str, Any]:
    """Export for one thread; returns what is known of the file."""
    import onnx

    embedded = SIZES["vocab_size"] * SIZES["hidden_size"]
    parameters = sum(parameter.numel() for parameter in model.parameters()) - embedded
    with silenced():
        genai.export(model, folder, tokenizer=make_tokenizer(), precision=precision, verify=False)  # type: ignore[arg-type]
    path = folder / "genai_config.json"
    config = json.loads(path.read_text())
    config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = 1
    path.write_text(json.dumps(config))
    kinds = Counter(node.op_type for node in onnx.load(folder / "model.onnx", load_external_data=False).graph.node)
    size = sum(file.stat().st_size for file in folder.glob("model.onnx*"))
    experts = kinds["MoE"] + kinds["QMoE"]
    return {
        "parameters": parameters,
        "bits": 8 * (size - 4 * embedded) / parameters,
        "fused": experts,
        "Loop": kinds["Loop"],
    }


def milliseconds(folder: Path) -> float:
    """The least CPU time of a token."""
    import onnxruntime_genai

    model = onnxruntime_genai.Model(str(folder))
    least = float("inf")
    for _ in range(_RUNS):
        parameters = onnxruntime_genai.GeneratorParams(model)
        parameters.set_search_options(max_length=128, min_length=128)
        generator = onnxruntime_genai.Generator(model, parameters)
        generator.append_tokens([*range(3, 19)])
        generator.generate_next_token()  # of the logits that the prompt gave
        start = time.process_time()
        for _ in range(_TOKENS):
            generator.generate_next_token()
        least = min(least, (time.process_time() - start) / _TOKENS)
    return least * 1000


def main(arguments: Sequence[str] | None = None) -> None:
    """Export, measure, print the table and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--precisions", default="fp32,int4")
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    import_torchvision()
    dense: dict[int, dict[str, float]] = {ACTIVE: {}, ACTIVE + 1: {}}
    rows: list[dict[str, Any]] = []
    for name in (f"llama-{ACTIVE}", f"llama-{ACTIVE + 1}", *options.models.split(",")):
        model = build(name)
        for precision in options.precisions.split(","):
            with tempfile.TemporaryDirectory() as folder:
                row = {"model": f"{name} {precision}", **export(model, Path(folder), precision)}
                row["ms"] = milliseconds(Path(folder))
            if name.startswith("llama"):
                dense[int(name.removeprefix("llama-"))][precision] = row["ms"]
            else:
                row["/dense"] = row["ms"] / dense[ACTIVE + (name in SHARED)][precision]
            rows.append(row)
            print(row, file=sys.stderr)
    header = [*rows[-1]]
    complete = with_means(rows, ("/dense",))
    print_table("Mixtures of experts", header, [[text(row.get(key)) for key in header] for row in complete])
    write_json(options.json, {"rows": complete})


if __name__ == "__main__":
    main()
