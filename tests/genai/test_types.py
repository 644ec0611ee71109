"""The tables of all types that generate text: docs/reference/language-model-types.md."""

from __future__ import annotations

import json

import pytest

from benchmarks.language_model_types import CAUSAL, CLASSES, PAGE, RESULTS, page, result_of, types_of

pytest.importorskip("onnxruntime_genai", minversion="0.18")
transformers = pytest.importorskip("transformers")
TABLES = json.loads(RESULTS.read_text(encoding="utf-8"))
IMAGES, SPEECH, TEXT = CLASSES
SAMPLED = (
    *((CAUSAL, name) for name in ("deepseek_v3", "llama4_text", "gpt_neo", "xlstm", "whisper", "cpmant")),
    *(
        (IMAGES, name)
        for name in ("lfm2_vl", "shieldgemma2", "vision-encoder-decoder", "qwen2_5_omni", "gemma4", "glmasr")
    ),
    *((SPEECH, name) for name in ("moonshine", "canary", "speech_to_text", "pop2piano", "dia")),
    *((TEXT, name) for name in ("nllb-moe", "seamless_m4t", "led", "encoder-decoder", "t5")),
)
OTHERS = [(each, name) for each in CLASSES for name in TABLES[each] if (each, name) not in SAMPLED]


def test_the_page_has_the_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(TABLES)


@pytest.mark.parametrize(("auto_class", "least"), [(CAUSAL, 150), (IMAGES, 34), (SPEECH, 10), (TEXT, 26)])
def test_no_type_is_wrong(auto_class: str, least: int) -> None:
    rows = TABLES[auto_class].values()
    assert {row["result"] for row in rows} <= {"right", "one prompt at a time", "error", "not a model of its own"}
    assert sum(row["result"] == "right" for row in rows) >= least


@pytest.mark.skipif(not transformers.__version__.startswith("5.23."), reason="other types")
@pytest.mark.parametrize("auto_class", [CAUSAL, *CLASSES])
def test_all_types_have_a_row(auto_class: str) -> None:
    assert [*TABLES[auto_class]] == types_of(auto_class)


def test_the_tables_have_all_types_of_image_text_to_text() -> None:
    from transformers.models.auto import modeling_auto

    assert {*modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES} <= {*types_of(IMAGES)}


@pytest.mark.skipif(not transformers.__version__.startswith("5.23."), reason="other models")
@pytest.mark.parametrize(
    ("auto_class", "model_type"),
    [*SAMPLED, *(pytest.param(*each, marks=pytest.mark.nightly) for each in OTHERS)],
)
def test_a_row_is_the_result_of_a_new_export(auto_class: str, model_type: str) -> None:
    found, row = result_of(model_type, auto_class), TABLES[auto_class][model_type]
    assert (found["result"], found.get("reason")) == (row["result"], row.get("reason"))
    if auto_class == CAUSAL:
        assert found.get("distinct", 99) > 20  # the tokens depend on the prompt
