"""Sparse attention over latent vectors: keys of an indexer select the tokens, in zeros that the cache has anyway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .small_models import export_small, generated, generated_by_transformers, padded, prompt

pytest.importorskip("onnxruntime_genai")

# The score of a token is 0 where all heads are negative, and of equal scores others may be selected: many heads.
SIZES: dict[str, Any] = {
    **{"num_key_value_heads": 4, "head_dim": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16},
    **{"q_lora_rank": 16, "index_n_heads": 16, "index_head_dim": 16, "index_topk": 6, "num_hidden_layers": 1},
}


@pytest.mark.parametrize(("name", "rank", "size"), [("deepseek_v32", 32, 32), ("glm_moe_dsa", 16, 24)])
def test_tokens_beyond_the_selected_number(name: str, rank: int, size: int, tmp_path: Path) -> None:
    model = export_small(tmp_path, name, sizes={**SIZES, "kv_lora_rank": rank})
    config = json.loads((tmp_path / "genai_config.json").read_text())["model"]["decoder"]
    # The rotated part of the key and the indexer's key have 24 elements.
    assert (config["head_size"], config["num_key_value_heads"]) == (size, 1)
    assert generated(tmp_path, prompt(1, 3)) == generated_by_transformers(model, prompt(1, 3))
    assert generated(tmp_path, padded(left=False)) == generated_by_transformers(model, padded(left=True))
