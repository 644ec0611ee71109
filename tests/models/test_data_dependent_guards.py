"""Models of libraries whose Python code asks tensors for their values, at inputs of other values and sizes.

Small configurations with random weights. The tables are grouped by what the export needs: nothing, frozen inputs, or the
example's answers.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxonnx

from .torchvision_shim import import_torchvision

Inputs = dict[str, Any]
Built = tuple[nn.Module, Callable[[int], Inputs]]
"""A model, and a function that creates its inputs of a size: 0 for the example's sizes, then larger ones."""

SMALL: Mapping[str, Any] = MappingProxyType(
    {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
)
TEXT = {0: "batch", 1: "time"}
AUDIO: Mapping[str, Any] = MappingProxyType(
    {"hidden_size": 16, "num_filters": 2, "upsampling_ratios": [2, 2], "sampling_rate": 800}
)
PARTS = ("encoder", "decoder")
LAYERS: Mapping[str, Any] = MappingProxyType(
    {f"{part}_layers": 1 for part in PARTS} | {f"{part}_ffn_dim": 32 for part in PARTS}
)


@pytest.fixture(autouse=True)
def transformers() -> Any:
    import_torchvision()
    return pytest.importorskip("transformers")


def model_of(kind: str, *, model: str | None = None, **options: Any) -> nn.Module:
    """A model of transformers: ``kind`` names the config without its suffix, ``model`` the class if it differs."""
    transformers = importlib.import_module("transformers")
    return getattr(transformers, model or f"{kind}Model")(getattr(transformers, f"{kind}Config")(**options))


def text(batch: int, length: int, *, padding: int | None = None) -> Inputs:
    """Tokens, and a mask that hides the end of the last sequence."""
    tokens, mask = torch.randint(3, 50, (batch, length)), torch.ones(batch, length, dtype=torch.int64)
    mask[-1, -2:] = 0
    if padding is not None:
        tokens[mask == 0] = padding
    return {"input_ids": tokens, "attention_mask": mask}


def translated(batch: int, length: int, target: int, **options: Any) -> Inputs:
    return {**text(batch, length, **options), "decoder_input_ids": torch.randint(3, 50, (batch, target))}


# ---- models that need no option


def series(kind: str, **options: Any) -> Built:
    """Autoformer and Informer: an encoder that shortens or decomposes series, so that full masks do not fit."""
    shared = {"lags_sequence": [1, 2, 3], "num_time_features": 2, "num_static_categorical_features": 1}
    layers = {"cardinality": [5], "embedding_dimension": [2], "d_model": 16, "decoder_layers": 1, "use_cache": False}
    model = model_of(kind, prediction_length=6, context_length=12, **shared, **layers, **options)

    def inputs(size: int) -> Inputs:
        batch = 2 + size
        return {
            "past_values": torch.randn(batch, 15),
            "past_time_features": torch.randn(batch, 15, 2),
            "past_observed_mask": torch.ones(batch, 15),
            "static_categorical_features": torch.zeros(batch, 1, dtype=torch.int64),
            "future_values": torch.randn(batch, 6),
            "future_time_features": torch.randn(batch, 6, 2),
        }

    return model, inputs


def encodec() -> Built:
    layers = {"num_lstm_layers": 1, "codebook_size": 16, "codebook_dim": 16, "target_bandwidths": [24.0]}
    return model_of("Encodec", **AUDIO, **layers), lambda size: {
        "input_values": torch.randn(2 + size, 1, 63 + 7 * size)
    }


def mimi_encoder() -> Built:
    layers = {"num_hidden_layers": 1, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    sizes = {"vector_quantization_hidden_dimension": 8, "codebook_dim": 8, "upsample_groups": 16, "sliding_window": 8}
    model = model_of("MimiEncoder", **AUDIO, **layers, **sizes)
    return model, lambda size: {"input_values": torch.randn(2 + size, 1, 63 + 7 * size)}


def fsmt() -> Built:
    """The decoder has the mask of the padding, of which there may be none."""
    heads = {f"{part}_attention_heads": 2 for part in PARTS}
    options = {"src_vocab_size": 50, "tgt_vocab_size": 50, "d_model": 16, "max_position_embeddings": 64}
    model = model_of("FSMT", langs=["en", "de"], **LAYERS, **heads, **options, use_cache=False)

    def inputs(size: int) -> Inputs:
        target = text(2 + size, 5 + size, padding=1 if size == 1 else None)
        return {**text(2 + size, 7 + size, padding=1), "decoder_input_ids": target["input_ids"]}

    return model, inputs


def longformer() -> Built:
    # Its capture takes some seconds for each layer, and all layers are alike.
    small = {**SMALL, "num_hidden_layers": 1}
    model = model_of("Longformer", **small, vocab_size=50, attention_window=4, max_position_embeddings=64)
    return model, lambda size: text(2 + size, 8 + 4 * size)


def led() -> Built:
    heads = {f"{part}_attention_heads": 2 for part in PARTS} | {f"max_{p}_position_embeddings": 64 for p in PARTS}
    model = model_of("LED", **LAYERS, **heads, vocab_size=50, d_model=16, attention_window=4, use_cache=False)
    return model, lambda size: translated(2 + size, 8 + 4 * size, 5 + size)


def with_global_attention(function: Callable[[], Built]) -> Built:
    """Two tokens with global attention in the example, none at the next size, and then up to three."""
    model, local = function()

    def inputs(size: int) -> Inputs:
        given = local(size)
        chosen = torch.zeros_like(given["attention_mask"])
        chosen[: 2 - size, :2] = 1
        if size == 2:
            chosen[1, 2], chosen[2, 3:6] = 1, 1
        return {**given, "global_attention_mask": chosen}

    return model, inputs


def udop() -> Built:
    sizes = {"image_size": 16, "patch_size": 4, "max_2d_position_embeddings": 64, "d_model": 16, "d_kv": 8, "d_ff": 32}
    model = model_of("Udop", **sizes, vocab_size=50, num_layers=1, num_heads=2, use_cache=False)

    def inputs(size: int) -> Inputs:
        batch, length = 2 + size, 6 + size
        corner = torch.rand(batch, length, 2) * 0.5
        boxes = torch.cat([corner, corner + torch.rand(batch, length, 2) * 0.5], -1)
        boxes[0, 0], boxes[0, -1] = 0, 1
        images = {"bbox": boxes, "pixel_values": torch.randn(batch, 3, 16, 16)}
        return {**translated(batch, length, 4 + size), **images}

    return model, inputs


def vilt() -> Built:
    options = {"vocab_size": 50, "max_position_embeddings": 16, "image_size": 16, "patch_size": 4}
    model = model_of("Vilt", model="ViltForQuestionAnswering", **SMALL, **options)

    def inputs(size: int) -> Inputs:
        mask = torch.ones(2, 16, 16, dtype=torch.int64)
        return {**text(2, 7), "pixel_values": torch.randn(2, 3, 16, 16), "pixel_mask": mask}

    return model, inputs


def vilt_of_small_images() -> Built:
    """Images of different sizes; at the last size none is as large as the largest one."""

    def inputs(size: int) -> Inputs:
        mask = torch.zeros(2 + size, 16, 16, dtype=torch.int64)
        mask[:, :12, :8], mask[1, :8, : 16 - 4 * size] = 1, 1
        images = {"pixel_values": torch.randn(2 + size, 3, 16, 16), "pixel_mask": mask}
        return {**text(2 + size, 7 + size), **images}

    return vilt()[0], inputs


def mobilenet() -> Built:
    model = model_of("MobileNetV2", image_size=32, depth_multiplier=0.25, expand_ratio=2.0)
    return model, lambda size: {"pixel_values": torch.randn(2, 3, 32 + 32 * size, 64)}


def seeded_reformer() -> Built:
    """Sequences that are longer than the chunks of attention, so that tokens are hashed."""
    model, _ = reformer(hash_seed=0, num_hashes=2, lsh_attn_chunk_length=4, local_attn_chunk_length=4)
    return model, lambda size: {"input_ids": torch.randint(3, 50, (2 + size, 32))}


LENGTHS: Mapping[str, Any] = MappingProxyType({"input_ids": TEXT, "attention_mask": TEXT})
TRANSLATED: Mapping[str, Any] = MappingProxyType({**LENGTHS, "decoder_input_ids": {0: "batch", 1: "target"}})
BATCH = {0: "batch"}

PLAIN: Mapping[str, tuple[Callable[[], Built], Any]] = MappingProxyType(
    {
        "autoformer": (lambda: series("Autoformer", label_length=5, moving_average=5), {"*": {0: "batch"}}),
        "encodec": (encodec, {"input_values": {0: "batch", 2: "length"}}),
        "fsmt": (fsmt, TRANSLATED),
        "informer": (lambda: series("Informer"), {"*": {0: "batch"}}),
        "led": (lambda: with_global_attention(led), {**TRANSLATED, "global_attention_mask": TEXT}),
        "longformer": (lambda: with_global_attention(longformer), {**LENGTHS, "global_attention_mask": TEXT}),
        "mimi_encoder": (mimi_encoder, {"input_values": {0: "batch", 2: "length"}}),
        "mobilenet": (mobilenet, {"pixel_values": {2: "height"}}),
        "reformer": (seeded_reformer, {"input_ids": BATCH}),
        "udop": (udop, {**TRANSLATED, "bbox": TEXT, "pixel_values": BATCH}),
        "vilt": (vilt_of_small_images, {**LENGTHS, "pixel_values": BATCH, "pixel_mask": BATCH}),
    }
)


# ---- models that split by the values of an input


def tower(module: str, kind: str, model: str | None = None, *, grid: Any = None, **options: Any) -> Built:
    """A vision tower, which splits the patches of its images by their grids."""
    options = {"depth": 2, "hidden_size": 32, "num_heads": 2, "patch_size": 4, **options}
    package = f"transformers.models.{module}"
    config = getattr(importlib.import_module(f"{package}.configuration_{module}"), f"{kind}VisionConfig")
    found = importlib.import_module(f"{package}.modeling_{module}")
    grids = torch.tensor(grid or [[1, 4, 4], [2, 4, 8]])
    built = getattr(found, model or f"{kind}VisionModel")(config(intermediate_size=32, out_hidden_size=16, **options))

    def inputs(size: int) -> Inputs:
        return {"hidden_states": torch.randn(int(grids.prod(1).sum()), 3 * 4**2 * 2), "grid_thw": grids.clone()}

    return built, inputs


def lumina() -> Built:
    diffusers = pytest.importorskip("diffusers")
    heads = {"num_attention_heads": 3, "num_kv_heads": 1, "multiple_of": 8, "cap_feat_dim": 8}
    positions = {"axes_dim_rope": (4, 2, 2), "axes_lens": (32, 16, 16)}
    sizes = {"sample_size": 8, "in_channels": 4, "hidden_size": 24, "num_layers": 1, "num_refiner_layers": 1}
    model = diffusers.Lumina2Transformer2DModel(**heads, **positions, **sizes)

    def inputs(size: int) -> Inputs:
        return {
            "hidden_states": torch.randn(2, 4, 8, 8),
            "timestep": torch.rand(2),
            "encoder_hidden_states": torch.randn(2, 6, 8),
            "encoder_attention_mask": torch.ones(2, 6, dtype=torch.bool),
            "return_dict": False,
        }

    return model, inputs


WINDOWED: Mapping[str, Any] = MappingProxyType({"window_size": 16, "fullatt_block_indexes": [1]})
IMAGES: Mapping[str, Any] = MappingProxyType({"grid": [[1, 4, 4], [1, 4, 8]], "image_size": 16})

FROZEN: Mapping[str, tuple[Callable[[], Built], str]] = MappingProxyType(
    {
        "cohere_compass": (
            lambda: tower("cohere_compass", "CohereCompass", num_position_embeddings=16, deepstack_visual_indexes=[0]),
            "grid_thw",
        ),
        "glm4v": (lambda: tower("glm4v", "Glm4v", **IMAGES), "grid_thw"),
        "lumina": (lumina, "encoder_attention_mask"),
        "qwen2_5_vl": (
            lambda: tower("qwen2_5_vl", "Qwen2_5_VL", "Qwen2_5_VisionTransformerPretrainedModel", **WINDOWED),
            "grid_thw",
        ),
        "qwen3_vl": (
            lambda: tower("qwen3_vl", "Qwen3VL", num_position_embeddings=16, deepstack_visual_indexes=[0]),
            "grid_thw",
        ),
        "vilt": (vilt, "pixel_mask"),
    }
)


FREE_GRIDS: Mapping[str, tuple[Callable[[], Built], Any]] = MappingProxyType(
    {
        "glm4v": (lambda: tower("glm4v", "Glm4v", grid=[[1, 4, 4], [1, 4, 8]], image_size=32), [[1, 2, 2], [1, 6, 8]]),
        "qwen2_5_vl": (FROZEN["qwen2_5_vl"][0], [[2, 14, 10], [1, 8, 16]]),
        "qwen3_vl": (FROZEN["qwen3_vl"][0], [[3, 12, 4], [1, 2, 2]]),
    }
)
"""Vision towers, and other grids of as many images."""


# ---- models that branch on the values of an input


def reformer(**options: Any) -> Built:
    axes = {"axial_pos_shape": [4, 8], "axial_pos_embds_dim": [8, 8], "max_position_embeddings": 32}
    heads = {"attention_head_size": 8, "num_attention_heads": 2, "num_buckets": 2, "attn_layers": ["local", "lsh"]}
    model = model_of(
        "Reformer", **axes, **heads, hidden_size=16, feed_forward_size=16, vocab_size=50, use_cache=False, **options
    )
    return model, lambda size: text(2 + size, 32)


FOLLOWED: Mapping[str, tuple[Callable[[], Built], Any]] = MappingProxyType(
    {
        "longformer": (longformer, LENGTHS),
        "lumina": (lumina, None),
        "reformer": (reformer, None),
    }
)


# ---- tests


def built(function: Callable[[], Built]) -> Built:
    """A model in eval mode with weights that are large enough for errors to show."""
    torch.manual_seed(0)
    model, inputs = function()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.add_(torch.randn_like(weight) * 0.05)
    return model.eval(), inputs


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of a result, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from tensors(part)


def check(program: fxonnx.ONNXProgram, model: nn.Module, inputs: Callable[[int], Inputs], *sizes: int) -> None:
    for seed, size in enumerate(sizes):
        torch.manual_seed(seed + 1)
        given = inputs(size)
        with torch.no_grad():
            expected = list(tensors(model(**copy.deepcopy(given))))
        for found, wanted in zip(program(**given), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


# The slowest models are nightly; longformer is in FOLLOWED as well.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name in ("led", "longformer") else name for name in PLAIN]
)
@pytest.mark.filterwarnings("ignore:the model cannot be exported for all requested sizes")
def test_without_options(name: str) -> None:
    function, shapes = PLAIN[name]
    model, inputs = built(function)
    program = fxonnx.export(model, kwargs=inputs(0), dynamic_shapes=shapes)
    check(program, model, inputs, 0, 0, *((1, 2) if shapes else ()))


@pytest.mark.parametrize("name", FROZEN)
def test_with_frozen_inputs(name: str) -> None:
    function, frozen = FROZEN[name]
    model, inputs = built(function)
    program = fxonnx.export(model, kwargs=inputs(0), frozen=[frozen])
    assert frozen in program.record.frozen_arguments
    check(program, model, inputs, 0, 0, 0)


# lumina is in FROZEN as well, with the same branch.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name == "lumina" else name for name in FOLLOWED]
)
@pytest.mark.filterwarnings("ignore:the model branches on the values of its inputs")
def test_following_the_example(name: str) -> None:
    function, shapes = FOLLOWED[name]
    model, inputs = built(function)
    program = fxonnx.export(model, kwargs=inputs(0), dynamic_shapes=shapes, data_dependent="example")
    check(program, model, inputs, 0, 0, *((1, 2) if shapes else ()))


@pytest.mark.parametrize("name", FREE_GRIDS)
@pytest.mark.filterwarnings("ignore:the model cannot be exported for all requested sizes")
def test_grids_that_are_inputs(name: str) -> None:
    function, other = FREE_GRIDS[name]
    model, inputs = built(function)
    implementations = [each.config._attn_implementation for each in model.modules() if hasattr(each, "config")]
    program = fxonnx.export(model, kwargs=inputs(0), dynamic_shapes={"hidden_states": {0: "patches"}, "grid_thw": None})
    assert not program.record.frozen_arguments
    assert implementations == [each.config._attn_implementation for each in model.modules() if hasattr(each, "config")]
    grids = torch.tensor(other)

    def others(size: int) -> Inputs:
        hidden = torch.randn(int(grids.prod(1).sum()), 3 * 4**2 * 2)
        return {"hidden_states": hidden, "grid_thw": grids.clone()}

    check(program, model, inputs, 0)
    check(program, model, others, 0, 0)
