"""The backend of ``transformers.exporters``: the calls of its documentation, at the sizes of the example and at others."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import fxonnx
import fxonnx.huggingface
from benchmarks._optimum_models import MODELS
from fxonnx import ExportError
from fxonnx._transformers import runner
from fxonnx._transformers.families.image_text import example_inputs
from fxonnx._transformers.families.sound import codebooks_of
from fxonnx._transformers.samples import Sizes, input_names, sample_inputs

from .small_models import TYPES, main_task, make_model

RANDOM = {"vit_mae": "it hides random patches", "vits": "it draws the lengths of the sounds"}
COMPARED = [name for name in TYPES if name in MODELS]
OTHER = Sizes(batch=3, tokens=6, seed=1)


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    pytest.importorskip("transformers.exporters", reason="transformers 5 has the exporters")
    from transformers.exporters.auto import EXPORT_BACKENDS

    known = set(pytree.SUPPORTED_NODES)
    assert fxonnx.huggingface.register() is fxonnx.huggingface.register()
    yield
    EXPORT_BACKENDS.pop("fxonnx")
    for kind in set(pytree.SUPPORTED_NODES) - known:
        pytree._deregister_pytree_node(kind)


def exporter() -> Any:
    from transformers.exporters import AutoHfExporter

    return AutoHfExporter.from_config({"export_format": "fxonnx"})


def saved(exported: Any, directory: Path) -> Any:
    from transformers.exporters import ExportedModel

    exported.save_pretrained(directory)
    return ExportedModel.from_pretrained(directory)


def inputs_of(model: Any, sizes: Sizes, past: int) -> dict[str, Any]:
    """The inputs of a call of the model; a decoder has ``past`` tokens in a cache of transformers."""
    from transformers import DynamicCache

    if model.config.is_encoder_decoder and model.can_generate():
        given = sample_inputs(model, input_names(model, []), sizes)
        return {**given, "decoder_input_ids": torch.randint(5, 10, (sizes.batch * codebooks_of(model), past))}
    if not model.can_generate() or "input_ids" not in input_names(model, []):
        return example_inputs(model, input_names(model, []), sizes)
    ids = sample_inputs(model, ["input_ids"], sizes)["input_ids"]
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    with torch.no_grad():
        model(input_ids=torch.randint(0, 10, (len(ids), past)), past_key_values=cache, use_cache=True)
    mask = torch.ones(len(ids), past + ids.shape[1], dtype=torch.int64)
    return {"input_ids": ids, "attention_mask": mask, "past_key_values": cache}


def assert_same(found: Any, expected: Any) -> None:
    """Compare the outputs of two calls, which have the same class and the same parts."""
    assert type(found) is type(expected)
    given, wanted = pytree.tree_leaves(found), pytree.tree_leaves(expected)
    assert len(given) == len(wanted)
    for one, other in zip(given, wanted, strict=True):
        if isinstance(other, Tensor):
            scale = float(other.float().abs().max()) if other.numel() else 1.0
            torch.testing.assert_close(one, other, atol=2e-3 * max(scale, 1e-3), rtol=1e-3)


def call(model: Any, inputs: dict[str, Any]) -> Any:
    with torch.no_grad():
        return model(**copy.deepcopy(inputs))


PARTS = ("llama", "gemma2", "mistral", "qwen3_moe", "t5", "bart", "whisper")
"""Types whose parts for generation are tested."""


EVERY_CHANGE = ("bert", "vit")
"""An encoder and a model of images; whole models that decode have their cache as an input, and run by night."""


@pytest.mark.parametrize(
    "model_type",
    [
        name if name in EVERY_CHANGE else pytest.param(name, marks=pytest.mark.nightly)
        for name in COMPARED
        if name not in RANDOM
    ],
)
def test_types(tmp_path: Path, model_type: str) -> None:
    model = make_model(model_type, main_task(model_type))
    exported = exporter().export(model, inputs_of(model, Sizes(), 5), {"export_format": "fxonnx", "dynamic": True})
    loaded = saved(exported, tmp_path)
    for sizes, past in ((Sizes(), 5), (OTHER, 7)):
        inputs = inputs_of(model, sizes, past)
        assert_same(loaded(**copy.deepcopy(inputs)), call(model, inputs))


def test_the_page_has_the_numbers() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "hugging-face.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"Of (\d+) types of the \[table\]\(../reference/huggingface-types.md\),\s+(\d+) give", page)
    assert [*map(int, found)] == [len(COMPARED), len(COMPARED) - len(RANDOM)]


@pytest.mark.parametrize("model_type", PARTS)
def test_generation_by_parts(tmp_path: Path, model_type: str) -> None:
    """Six tokens: the first part, and five steps of the second one with the cache that the step before returned."""
    model = make_model(model_type, main_task(model_type))
    if model.config.is_encoder_decoder:
        inputs: dict[str, Any] = sample_inputs(model, input_names(model, []), Sizes())
    else:
        inputs = {"input_ids": torch.randint(5, 50, (2, 6))}
    loaded = saved(exporter().export_for_generation(model, inputs, exporter().config_class(dynamic=True)), tmp_path)
    assert list(loaded.components) == ["prefill", "decode"]
    assert (tmp_path / "decode.onnx.data").stat().st_size < (tmp_path / "prefill.onnx.data").stat().st_size / 10

    class Recorded(type(model)):  # type: ignore[misc]
        """Calls the parts in place of the model."""

        def forward(self, **given: Any) -> Any:
            part = loaded.runners["decode" if given["past_key_values"].get_seq_length() else "prefill"]
            inner = {name: value for name, value in given.items() if name in part.metadata.kwargs}
            return part(**inner)

    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    expected = model.generate(**inputs, **options)
    model.__class__ = Recorded
    assert torch.equal(model.generate(**inputs, **options), expected)


@pytest.mark.nightly  # test_image_text.py has the same parts, and test_generation_by_parts this way to make them
def test_parts_of_a_model_of_images_and_text(tmp_path: Path) -> None:
    """All parts that compute the logits, the encoder of images among them; each weight is stored once."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = LlamaConfig(vocab_size=64, **sizes)
    vision = CLIPVisionConfig(image_size=30, patch_size=10, **sizes)
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_id=63, pad_token_id=0)
    model = LlavaForConditionalGeneration(config).eval()

    def inputs(images: int) -> dict[str, Tensor]:
        ids = torch.randint(1, 60, (images, 14))
        ids[:, 2:11] = 63
        pixels = torch.randn(images, 3, 30, 30)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}

    exported = exporter().export_for_generation(model, inputs(2), exporter().config_class(dynamic=True))
    runners = saved(exported, tmp_path).runners
    given = inputs(3)
    pixels = {"pixel_values": given["pixel_values"]}
    options = exported.components["image_encoder"].metadata.in_constants
    hidden = runners["image_encoder"](**pixels, **options).hidden_states[config.vision_feature_layer][:, 1:]
    features = runners["multi_modal_projector"](image_features=hidden)
    embeddings = runners["embed_tokens"](input=given["input_ids"])
    embeddings[given["input_ids"] == 63] = features.reshape(-1, 32)
    positions = torch.arange(14)[None].expand(3, -1)
    states = runners["language_model"](inputs_embeds=embeddings, position_ids=positions)
    logits = runners["lm_head"](input=states.last_hidden_state)
    torch.testing.assert_close(logits, call(model, given).logits, atol=1e-4, rtol=1e-3)
    stored = sum(file.stat().st_size for file in tmp_path.glob("*.data"))
    assert stored < sum(parameter.nbytes for parameter in model.parameters())


def test_a_static_export_accepts_its_sizes_only() -> None:
    model = make_model("bert", main_task("bert"))
    inputs = inputs_of(model, Sizes(), 0)
    exported = exporter().export(model, inputs, {"export_format": "fxonnx", "opset_version": 18, "verify": True})
    assert exported.program.opset_imports[""] == 18
    assert_same(exported(**inputs), call(model, inputs))
    with pytest.raises(Exception, match="Got invalid dimensions for input"):
        exported(**inputs_of(model, OTHER, 0))


def test_the_modes_of_the_modules_are_restored() -> None:
    model = make_model("bert", main_task("bert"))
    model.bert.encoder.train()
    before = [module.training for module in model.modules()]
    exporter().export(model, inputs_of(model, Sizes(), 0), {"export_format": "fxonnx"})
    assert [module.training for module in model.modules()] == before


def test_quantizers_of_transformers() -> None:
    from transformers.exporters.quantizers import OnnxRuntimeQuantizer, PT2EQuantizer

    with pytest.raises(ValueError, match=r"quantizer: PT2EQuantizer quantizes graphs of torch\.export"):
        exporter().config_class(quantizer=PT2EQuantizer.__new__(PT2EQuantizer))
    model = make_model("bert", main_task("bert"))
    inputs = inputs_of(model, Sizes(), 0)
    config = exporter().config_class(quantizer=OnnxRuntimeQuantizer())
    exported = exporter().export(model, inputs, config)
    assert any("Integer" in node.op_type or "Quantize" in node.op_type for node in exported.program.graph)


def test_onnx_exporter_of_transformers_on_an_installed_fxonnx() -> None:
    """Its passes insert nodes without values: every mixture of experts."""
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    model = make_model("qwen3_moe", main_task("qwen3_moe"))
    inputs = {"input_ids": torch.randint(0, 50, (2, 6))}
    with fxonnx.installed():
        exported = OnnxExporter().export(model, dict(inputs), OnnxConfig(dynamic=True))
    given = {"input_ids": torch.randint(0, 50, (3, 7))}
    torch.testing.assert_close(exported(**given).logits, call(model, given).logits, atol=1e-3, rtol=1e-3)


def test_transformers_without_exporters(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(runner, "import_module", missing)
    with pytest.raises(ExportError, match=r"has no transformers\.exporters\nhint: pip install -U transformers"):
        fxonnx.huggingface.register()
    monkeypatch.undo()
    fxonnx.huggingface.register()
