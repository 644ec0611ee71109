"""Vision-language models in three parts: tokens in onnxruntime-genai equal transformers', from images."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import fxonnx.genai

from .small_models import VOCABULARY

# Older versions, for Python 3.10, do not have all of these models.
og = pytest.importorskip("onnxruntime_genai", minversion="0.18")
images = pytest.importorskip("PIL.Image")

TEXT: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SPECIAL = ("[IMG]", "[IMG_BREAK]", "[IMG_END]", "[INST]", "[/INST]")
SPECIAL += ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
SPECIAL += ("<start_of_image>", "<image_soft_token>", "<end_of_image>")
TOKENS = {token: index for index, token in enumerate(("<pad>", "<s>", "</s>", *SPECIAL))}


@cache
def make_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[*TOKENS], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["describe the image"], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", padding_side="left"
    )


def make_mistral3() -> Any:
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration

    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Mistral3Config(
        vision_config={"model_type": "pixtral", **vision, "head_dim": 8, "patch_size": 4, "image_size": 32},
        text_config={"model_type": "mistral", **TEXT, "head_dim": 8, "sliding_window": None},
        image_token_id=TOKENS["[IMG]"],
        spatial_merge_size=2,
        vision_feature_layer=-1,
        tie_word_embeddings=False,
    )
    return with_random_weights(Mistral3ForConditionalGeneration(config))


def make_pixtral() -> Any:
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlavaConfig(
        vision_config={"model_type": "pixtral", **vision, "head_dim": 8, "patch_size": 8, "image_size": 32},
        text_config={"model_type": "mistral", **TEXT, "head_dim": 8, "sliding_window": None},
        image_token_id=TOKENS["[IMG]"],
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    return with_random_weights(LlavaForConditionalGeneration(config))


def make_gemma3(**sizes: Any) -> Any:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 20, "num_hidden_layers": 2}
    config = Gemma3Config(
        vision_config={"model_type": "siglip_vision_model", **vision, "image_size": 64, "patch_size": 4},
        text_config={"model_type": "gemma3_text", **TEXT, "max_position_embeddings": 600, "head_dim": 8, **layers},
        image_token_id=TOKENS["<image_soft_token>"],
        **{"mm_tokens_per_image": 256, **sizes},
    )
    return with_random_weights(Gemma3ForConditionalGeneration(config))


def make_qwen(version: str, **sizes_of_tower: Any) -> Any:
    import transformers

    vision = {"depth": 3, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
    sizes: dict[str, Any] = {"hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 32}
    if version == "qwen2_vl":
        sizes = {"embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2}
    elif version == "qwen2_5_vl":
        # Windows of 2 x 2 image tokens, except for the second layer.
        sizes |= {"window_size": 16, "fullatt_block_indexes": [1]}
    else:
        sizes |= {"num_position_embeddings": 25}
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    text: dict[str, Any] = {"num_hidden_layers": 1}
    if version == "qwen3_vl":
        # Features of further layers of the tower are read by one layer each.
        sizes["deepstack_visual_indexes"], text["num_hidden_layers"] = [0, 1], 2
    if version == "qwen3_5":
        text = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
        text |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
        text |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
        rope["partial_rotary_factor"] = 1.0
    name = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL", "qwen3_5": "Qwen3_5"}[version]
    config = getattr(transformers, f"{name}Config")(
        vision_config={**vision, **sizes, **sizes_of_tower},
        text_config={**TEXT, "head_dim": 8, "rope_parameters": rope, **text},
        image_token_id=TOKENS["<|image_pad|>"],
        video_token_id=TOKENS["<|video_pad|>"],
        vision_start_token_id=TOKENS["<|vision_start|>"],
        vision_end_token_id=TOKENS["<|vision_end|>"],
        tie_word_embeddings=False,
    )
    return with_random_weights(getattr(transformers, f"{name}ForConditionalGeneration")(config))


def with_random_weights(model: Any) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    model.generation_config.pad_token_id = 0
    return model.eval()


MODELS = {
    "gemma3": make_gemma3,
    "mistral3": make_mistral3,
    "pixtral": make_pixtral,
    "qwen2_vl": lambda: make_qwen("qwen2_vl"),
    "qwen2_5_vl": lambda: make_qwen("qwen2_5_vl"),
    "qwen3_vl": lambda: make_qwen("qwen3_vl"),
    "qwen3_5": lambda: make_qwen("qwen3_5"),
}
PROMPTS = {"gemma3": "<start_of_image>describe the image", "mistral3": "[INST][IMG]describe the image[/INST]"}
PROMPTS["pixtral"] = PROMPTS["mistral3"]
FURTHER_INPUTS = {"gemma3": ("token_type_ids",), "mistral3": ("image_sizes",), "pixtral": ("image_sizes",)}
QWEN_PROMPT = "<|vision_start|><|image_pad|><|vision_end|>describe the image"


# The model of every change and its images; Gemma 3, whose tokens of an image see each other, has a test of its own.
EVERY_CHANGE = ("qwen2_vl", "different")


def _by_night(names: Iterable[str]) -> list[Any]:
    return [name if name in EVERY_CHANGE else pytest.param(name, marks=pytest.mark.nightly) for name in names]


@pytest.fixture(scope="module", params=_by_night(MODELS))
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, Path]:
    directory = tmp_path_factory.mktemp(request.param)
    model = MODELS[request.param]()
    model.save_pretrained(directory / "checkpoint")
    make_tokenizer().save_pretrained(directory / "checkpoint")
    settings = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.25], "max_pixels": 1024, "min_pixels": 64}
    size = {"longest_edge": 32} if request.param in ("mistral3", "pixtral") else None
    (directory / "checkpoint" / "preprocessor_config.json").write_text(json.dumps({**settings, "size": size}))
    return request.param, model, fxonnx.genai.export(directory / "checkpoint", directory / "out")


def generated(directory: Path, inputs: Any, length: int) -> list[int]:
    """The prompt of a length and the tokens that follow it."""
    loaded = og.Model(str(directory))
    parameters = og.GeneratorParams(loaded)
    parameters.set_search_options(max_length=length + 16)
    generator = og.Generator(loaded, parameters)
    generator.set_inputs(inputs)
    while not generator.is_done():
        generator.generate_next_token()
    tokens: list[int] = generator.get_sequence(0).tolist()
    return tokens


def image(height: int, width: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(height).integers(0, 255, (height, width, 3), dtype=np.uint8)
    images.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


SIZES: Mapping[str, list[tuple[int, int]]] = {
    "text": [],
    "image": [(24, 16)],
    "images": [(16, 32), (16, 32)],
    "different": [(16, 32), (32, 16)],
}
_ONE_IMAGE = "onnxruntime-genai reserves memory for the features of one image"
_ONE_SIZE = "onnxruntime-genai stacks images in the size of the last one"
LIMITS = {
    ("gemma3", "images"): _ONE_IMAGE,
    ("gemma3", "different"): _ONE_IMAGE,
    ("mistral3", "different"): _ONE_SIZE,
    ("pixtral", "different"): _ONE_SIZE,
}


@pytest.mark.parametrize("case", _by_night(SIZES))
def test_tokens_are_equal(exported: tuple[str, Any, Path], case: str, request: pytest.FixtureRequest) -> None:
    model_type, model, directory = exported
    sizes = SIZES[case]
    if (model_type, case) in LIMITS:
        limit = LIMITS[model_type, case]
        request.applymarker(pytest.mark.xfail(strict=True, raises=RuntimeError, reason=limit))
    loaded = og.Model(str(directory))
    prompt = PROMPTS.get(model_type, QWEN_PROMPT) * len(sizes) or "describe the image"
    pictures = og.Images.open_bytes(*(image(*size) for size in sizes)) if sizes else None
    inputs = loaded.create_multimodal_processor()(prompt, images=pictures)
    ids = torch.tensor(inputs["input_ids"].as_numpy()).long()
    found = generated(directory, inputs, ids.shape[1])
    names = ("pixel_values", *FURTHER_INPUTS.get(model_type, ("image_grid_thw",)))
    feeds = {name: torch.tensor(inputs[name].as_numpy()) for name in names} if sizes else {}
    if sizes and model_type.startswith("qwen"):
        feeds["mm_token_type_ids"] = (ids == TOKENS["<|image_pad|>"]).int()
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), **feeds, max_new_tokens=16, do_sample=False)
    # onnxruntime-genai leaves out the end of the sequence.
    assert [*found, 2][: expected.shape[1]] == expected[0].tolist()


@pytest.mark.parametrize("exported", ["gemma3"], indirect=True)  # other processors count the tokens of all images
@pytest.mark.parametrize("case", ["images", "different"])
def test_several_images_with_the_number_of_their_tokens(exported: tuple[str, Any, Path], case: str) -> None:
    model_type, model, directory = exported
    pictures = og.Images.open_bytes(*(image(*size) for size in SIZES[case]))
    inputs = og.Model(str(directory)).create_multimodal_processor()(PROMPTS[model_type] * 2, images=pictures)
    inputs["num_image_tokens"] = np.array([2 * 256])
    ids = torch.tensor(inputs["input_ids"].as_numpy()).long()
    names = ("pixel_values", *FURTHER_INPUTS[model_type])
    feeds = {name: torch.tensor(inputs[name].as_numpy()) for name in names}
    mask = torch.ones_like(ids)
    expected = model.generate(ids, attention_mask=mask, **feeds, max_new_tokens=16, do_sample=False)
    assert [*generated(directory, inputs, ids.shape[1]), 2][: expected.shape[1]] == expected[0].tolist()


@pytest.mark.parametrize("exported", _by_night(name for name in MODELS if name.startswith("qwen")), indirect=True)
def test_videos_are_frames(exported: tuple[str, Any, Path]) -> None:
    """The tower computes frame by frame; the decoder reads the positions of the frames."""
    model_type, model, directory = exported
    frames, height, width = 3, 8, 4
    pixels = torch.randn(frames * height * width, 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(0))
    start, end, video = (TOKENS[name] for name in ("<|vision_start|>", "<|vision_end|>", "<|video_pad|>"))
    tokens = height * width // 4
    if model_type in ("qwen3_vl", "qwen3_5"):
        # Each frame has its time before it, like an image.
        spans = [[30 + frame, start, *[video] * tokens, end] for frame in range(frames)]
    else:
        spans = [[start, *[video] * tokens * frames, end]]
    ids = torch.tensor([[20, 21, *(token for span in spans for token in span), 22, 23, 24]])
    frame_grid = np.array([[1, height, width]] * frames)
    grid, seconds = torch.tensor([[frames, height, width]]), torch.tensor([0.25])

    tensors = og.NamedTensors()
    tensors["pixel_values"], tensors["num_image_tokens"] = pixels.numpy(), np.array([tokens * frames])
    tensors["image_grid_thw"] = frame_grid
    tensors["input_ids"] = ids.int().numpy()
    tensors["video_grid_thw"] = frame_grid if model_type in ("qwen3_vl", "qwen3_5") else grid.numpy()
    if model_type == "qwen2_5_vl":
        tensors["second_per_grid_ts"] = seconds.numpy()
    found = generated(directory, tensors, ids.shape[1])

    feeds = {"pixel_values_videos": pixels, "video_grid_thw": grid, "mm_token_type_ids": 2 * (ids == video).int()}
    if model_type == "qwen2_5_vl":
        feeds["second_per_grid_ts"] = seconds
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), **feeds, max_new_tokens=16, do_sample=False)
    prompt = ids.shape[1]
    assert [*found, 2][prompt : expected.shape[1]] == expected[0, prompt:].tolist()


def test_images_are_preprocessed(exported: tuple[str, Any, Path]) -> None:
    model_type, _, directory = exported
    processor = og.Model(str(directory)).create_multimodal_processor()
    prompt = PROMPTS.get(model_type, QWEN_PROMPT)
    height, width = (64, 64) if model_type == "gemma3" else (16, 24)
    pixels = processor(prompt, images=og.Images.open_bytes(image(height, width)))["pixel_values"].as_numpy()
    content = np.random.default_rng(height).integers(0, 255, (height, width, 3), dtype=np.uint8)
    expected = (content / 255 - [0.5, 0.4, 0.3]) / [0.2, 0.3, 0.25]
    if model_type in ("gemma3", "mistral3", "pixtral"):
        np.testing.assert_allclose(pixels[0], expected.transpose(2, 0, 1), atol=1e-3)
    else:
        # The first patch, for two equal frames.
        patch = np.stack([expected[:4, :4].transpose(2, 0, 1)] * 2, axis=1)
        np.testing.assert_allclose(pixels[0], patch.flatten(), atol=1e-3)


def test_parts_share_their_weights(exported: tuple[str, Any, Path]) -> None:
    model_type, _, directory = exported
    names = {path.name for path in directory.iterdir() if path.suffix in (".onnx", ".data")}
    assert {"vision.onnx", "embedding.onnx", "decoder.onnx"} < names
    assert len(names) == 4
    search = json.loads((directory / "genai_config.json").read_text())["search"]
    shares = search["past_present_share_buffer"]
    assert shares == ("GroupQueryAttention" in operators(directory / "decoder.onnx"))
    # Tokens of an image of Gemma 3 attend in both directions.
    assert shares == (model_type != "gemma3")


def test_bfloat16_in_the_directory_of_the_checkpoint(tmp_path: Path) -> None:
    model = make_qwen("qwen3_vl")
    model.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "processor_config.json").write_text('{"image_processor": {"image_mean": [0.1, 0.2, 0.3]}}')
    # The comparison runs with an image.
    fxonnx.genai.export(tmp_path, tmp_path, precision="bf16")
    assert "image_processor" in json.loads((tmp_path / "processor_config.json").read_text())
    assert og.Model(str(tmp_path)).create_multimodal_processor() is not None
    assert "0.2" in (tmp_path / "genai_processor_config.json").read_text()


def test_int4_decoder(tmp_path: Path) -> None:
    # The comparison is with the dequantized weights.
    out = fxonnx.genai.export(make_mistral3(), tmp_path / "out", tokenizer=make_tokenizer(), precision="int4")
    kinds = {name: operators(out / f"{name}.onnx") for name in ("vision", "decoder")}
    assert "MatMulNBits" in kinds["decoder"]
    assert "MatMulNBits" not in kinds["vision"]


def operators(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path, load_external_data=False).graph.node}


def test_other_numbers_of_image_tokens_are_refused(tmp_path: Path) -> None:
    with pytest.raises(fxonnx.ArgumentError, match="Gemma 3 with 256 tokens per image, but this model has 64"):
        fxonnx.genai.export(make_gemma3(mm_tokens_per_image=64), tmp_path / "out", tokenizer=make_tokenizer())
    model = make_gemma3()
    model.config.vision_config.image_size = 32
    with pytest.raises(fxonnx.ArgumentError, match="an image has 64 patches, fewer than its 256 tokens"):
        fxonnx.genai.export(model, tmp_path / "out", tokenizer=make_tokenizer())


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("LlavaNext", "type 'llava_next' are not supported: transformers joins the tiles"),
        ("InstructBlip", "type 'instructblip' are not supported"),
    ],
)
def test_other_towers_are_refused(name: str, match: str, tmp_path: Path) -> None:
    import transformers

    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model_type = "clip_vision_model" if name == "LlavaNext" else "instructblip_vision_model"
    config = getattr(transformers, f"{name}Config")(
        vision_config={"model_type": model_type, **vision, "image_size": 8, "patch_size": 4},
        text_config={"model_type": "llama", **TEXT},
    )
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    with pytest.raises(fxonnx.ArgumentError, match=match):
        fxonnx.genai.export(model, tmp_path / "out", tokenizer=make_tokenizer())
    assert not list(tmp_path.iterdir())


def test_images_of_large_gemma4_are_refused(tmp_path: Path) -> None:
    import transformers

    text = {"model_type": "gemma4_text", **TEXT, "use_bidirectional_attention": "vision"}
    text |= {"vocab_size_per_layer_input": 4, "hidden_size_per_layer_input": 0}
    config = transformers.Gemma4Config(vision_config={"num_hidden_layers": 1}, text_config=text, audio_config=None)
    with torch.device("meta"):
        model = transformers.Gemma4ForConditionalGeneration(config)
    with pytest.raises(fxonnx.ArgumentError, match="Gemma 4 are not supported if their tokens attend to each other"):
        fxonnx.genai.export(model, tmp_path / "out", tokenizer=make_tokenizer())


@pytest.mark.nightly
def test_a_window_that_counts_padding(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="prompts of unequal lengths may have other tokens"):
        fxonnx.genai.export(make_gemma3(), tmp_path / "out", tokenizer=make_tokenizer(), verify=False)


@pytest.mark.nightly
def test_features_of_layers_that_the_tower_does_not_have(tmp_path: Path) -> None:
    # The comparison runs.
    model = make_qwen("qwen3_vl", deepstack_visual_indexes=[1, 8])
    fxonnx.genai.export(model, tmp_path / "out", tokenizer=make_tokenizer())
    config = json.loads((tmp_path / "out" / "genai_config.json").read_text())
    assert config["model"]["decoder"]["hidden_size"] == 2 * 32
