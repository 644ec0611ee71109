"""The table of all causal language models: docs/reference/language-model-types.md."""

from __future__ import annotations

import json

import pytest

from benchmarks._language_model_configs import all_types
from benchmarks.language_model_types import PAGE, RESULTS, page, result_of

pytest.importorskip("onnxruntime_genai", minversion="0.18")
transformers = pytest.importorskip("transformers")
ROWS = json.loads(RESULTS.read_text(encoding="utf-8"))


def test_the_page_has_the_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(ROWS)


def test_no_type_is_wrong() -> None:
    assert {row["result"] for row in ROWS.values()} <= {
        *("right", "one prompt at a time", "error", "not a model of its own"),
    }
    assert sum(row["result"] == "right" for row in ROWS.values()) >= 150


@pytest.mark.skipif(not transformers.__version__.startswith("5.23."), reason="other types")
def test_all_types_have_a_row() -> None:
    assert [*ROWS] == all_types()


@pytest.mark.skipif(not transformers.__version__.startswith("5.23."), reason="other models")
@pytest.mark.parametrize("model_type", ["deepseek_v3", "llama4_text", "gpt_neo", "xlstm", "whisper", "cpmant"])
def test_a_row_is_the_result_of_a_new_export(model_type: str) -> None:
    found, row = result_of(model_type), ROWS[model_type]
    assert (found["result"], found.get("reason")) == (row["result"], row.get("reason"))
    assert found.get("distinct", 99) > 20  # the tokens depend on the prompt
