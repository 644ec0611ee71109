"""Ways of generating: prompts of unequal lengths, beams, continued and rewound sequences, prompts beyond the window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch

from .small_models import PADDING, export_small, generated, generated_by_transformers, padded, prompt

og = pytest.importorskip("onnxruntime_genai")


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model and its directory; gpt2 has learned positions, llama rotary ones."""
    directory = tmp_path_factory.mktemp("out")
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128} if request.param == "gpt2" else {}
    return export_small(directory, request.param, sizes=sizes), directory


def test_prompts_of_unequal_lengths(exported: tuple[Any, Path]) -> None:
    model, directory = exported
    expected = generated_by_transformers(model, padded(left=True))
    assert generated(directory, padded(left=False)) == expected
    alone = [
        generated_by_transformers(model, padded(left=True)[row : row + 1, count:])[0]
        for row, count in enumerate(PADDING)
    ]
    assert alone == expected


@pytest.mark.parametrize("batch", [1, 3])
def test_beams(exported: tuple[Any, Path], batch: int) -> None:
    model, directory = exported
    # Beams that end early have other scores than in transformers, so that none may end.
    common = {"num_beams": 3, "early_stopping": True, "length_penalty": 1.0}
    ids = prompt(batch, 5)
    ours = generated(directory, ids, min_length=29, **common)
    assert ours == generated_by_transformers(model, ids, min_new_tokens=24, **common)


def test_continued_and_rewound_sequences(exported: tuple[Any, Path]) -> None:
    model, directory = exported
    loaded = og.Model(str(directory))
    parameters = og.GeneratorParams(loaded)
    parameters.set_search_options(max_length=64, min_length=64, do_sample=False)
    generator = og.Generator(loaded, parameters)

    def extend(tokens: torch.Tensor) -> list[int]:
        generator.append_tokens(tokens.to(torch.int32).numpy())
        for _ in range(8):
            generator.generate_next_token()
        return [int(token) for token in generator.get_sequence(0)]

    def expected(tokens: list[int]) -> list[int]:
        ids = torch.tensor([tokens])
        options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
        return list(model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0].tolist())

    first, second = prompt(1, 6), prompt(1, 5)
    sequence = extend(first)
    assert sequence == expected(first[0].tolist())
    # The model has not run on the last token, which therefore must be appended again.
    kept = len(sequence) - 2
    generator.rewind_to(kept)
    continued = [*sequence, *second[0].tolist()]
    assert extend(torch.tensor([continued[kept:]])) == expected(continued)
    generator.rewind_to(9)
    assert extend(second) == expected([*sequence[:9], *second[0].tolist()])
    generator.rewind_to(0)
    assert extend(second) == expected(second[0].tolist())


def test_a_prompt_longer_than_the_window(tmp_path: Path) -> None:
    model = export_small(tmp_path, "mistral", sizes={"sliding_window": 4})
    assert generated(tmp_path, prompt(2, 40)) == generated_by_transformers(model, prompt(2, 40))


@pytest.mark.parametrize("last_logits", [True, False])
def test_number_of_logits(last_logits: bool, tmp_path: Path) -> None:
    model = export_small(tmp_path, "llama", last_logits=last_logits)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert session.get_outputs()[0].shape == ["batch", 1 if last_logits else "tokens", 300]
    ids = padded(left=False)
    assert generated(tmp_path, ids) == generated_by_transformers(model, padded(left=True))
    nodes = onnx.load(tmp_path / "model.onnx").graph.node
    # 6 nodes select the last token of each row.
    assert len(nodes) == (36 if last_logits else 30)
    # No bias masks padding on the left, which onnxruntime-genai does not have.
    assert {len(node.input) for node in nodes if node.op_type == "GroupQueryAttention"} == {9}
