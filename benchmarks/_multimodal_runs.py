"""Tokens of exported models that read images, audio or a source text, compared with ``generate`` of transformers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from tests.genai.small_models import prompt

__all__ = ["NEW", "Problems", "are_equally_good", "compare_images", "compare_sources", "compare_whisper"]

NEW = 24
"""Number of generated tokens."""
_TOLERANCE = 1e-4
"""Tokens whose logits differ by less than this part of the range of all logits are equally good."""
Problems: TypeAlias = tuple[list[str], int]
"""The cases with other tokens or errors, and the number of distinct tokens that are expected."""
Tensors: TypeAlias = Mapping[str, torch.Tensor]
_Compared: TypeAlias = Iterator[tuple[str, Callable[[], list[list[int]]], list[list[int]], list[Tensors]]]
"""Name of a case, the function that generates its tokens, the expected ones, and the inputs of each row."""

_SOURCES: Mapping[str, Sequence[int]] = {
    "one source": (6,),
    "batch": (6, 6, 6),
    "unequal lengths": (5, 9, 3),
    "long source": (70,),
    "long sources of unequal lengths": (41, 21, 33),
}
"""Name of a case to the lengths of its source texts."""


def are_equally_good(model: Any, inputs: Tensors, name: str, found: Sequence[int], expected: Sequence[int]) -> bool:
    """Whether two rows are equal, or part where two tokens are equally good.

    Args:
        model: The model of transformers.
        inputs: Its inputs, with one row.
        name: The input that the tokens continue.
        found: The tokens of the exported model.
        expected: The tokens of transformers.
    """
    if found == expected:
        return True
    first = next(index for index, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1])
    ids = torch.cat([inputs[name], torch.tensor([expected[:first]], dtype=torch.int64)], dim=1)
    kinds = {"mm_token_type_ids": 0, "token_type_ids": 0, **({"attention_mask": 1} if name == "input_ids" else {})}
    longer = {key: _extended(inputs[key], first, value) for key, value in kinds.items() if key in inputs}
    with torch.no_grad():
        logits = model(**{**inputs, **longer, name: ids}).logits[0, -1]
    gap = float((logits[found[first]] - logits[expected[first]]).abs())
    return gap <= _TOLERANCE * float(logits.max() - logits.min())


def _extended(values: torch.Tensor, count: int, value: int) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, count), value=value)


def _problems(model: Any, name: str, cases: _Compared) -> Problems:
    problems: list[str] = []
    seen: set[int] = set()
    for case, run, expected, inputs in cases:
        seen |= {token for row in expected for token in row}
        try:
            found = run()
        except Exception as error:  # noqa: BLE001 - a result of the table
            problems.append(f"{case} does not run: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            continue
        rows = zip(inputs, found, expected, strict=True)
        if not all(are_equally_good(model, row, name, *tokens) for row, *tokens in rows):
            problems.append(f"{case}: other tokens")
    return problems, len(seen)


def _generate(model: Any, prompt_length: int, **inputs: Any) -> list[int]:
    from transformers import GenerationMixin

    # generate() of Whisper would choose the prompt, and suppress tokens.
    tokens = GenerationMixin.generate(
        model,
        **inputs,
        **{"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "num_beams": 1},
        **{"suppress_tokens": None, "begin_suppress_tokens": None},
    )
    return [int(token) for token in tokens[0, prompt_length:]]


def compare_sources(model: Any, directory: Path) -> Problems:
    """Compare a greedy loop over encoder.onnx and decoder.onnx.

    Args:
        model: The model of transformers.
        directory: The exported directory.
    """
    import onnxruntime

    encoder, decoder = (onnxruntime.InferenceSession(directory / f"{name}.onnx") for name in ("encoder", "decoder"))

    if _start(model) is None:
        model.generation_config.decoder_start_token_id = 0  # T5 without a configured one

    def cases() -> _Compared:
        text = model.main_input_name == "input_ids"
        for name, rows in _texts() if text else _signals(model):
            keys = ("input_ids", "attention_mask") if text else (model.main_input_name,)
            sources = [dict(zip(keys, (row[None], torch.ones_like(row[None])), strict=False)) for row in rows]
            expected = [_generate(model, 1, **source) for source in sources]
            start = torch.tensor([[_start(model)]])
            inputs = [{**source, "decoder_input_ids": start} for source in sources]
            padded = torch.nn.utils.rnn.pad_sequence([*rows], batch_first=True)  # on the right, with 0
            masks = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
            feeds = {key: each.numpy() for key, each in zip(keys, (padded, masks), strict=False)}
            yield name, lambda feeds=feeds: _loop(encoder, decoder, feeds, _start(model)), expected, inputs

    return _problems(model, "decoder_input_ids", cases())


def _texts() -> Iterator[tuple[str, list[torch.Tensor]]]:
    for name, lengths in _SOURCES.items():
        ids = prompt(len(lengths), max(lengths))
        yield name, [ids[row, :length] for row, length in enumerate(lengths)]


def _signals(model: Any) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Audio of two lengths and images, of one size in a batch."""
    config, name = model.config, model.main_input_name
    if name == "pixel_values":
        shapes = [(config.encoder.num_channels, config.encoder.image_size, config.encoder.image_size)]
    elif name == "input_values":
        shapes = [(8000,), (20800,)]
    else:
        bins = getattr(config, "input_feat_per_channel", 0) or config.encoder_config.num_mel_bins
        shapes = [(61, bins), (200, bins)]
    for shape in shapes:
        for count in (1, 3):
            values = torch.randn(count, *shape, generator=torch.Generator().manual_seed(shape[0]))
            yield f"{'one source' if count == 1 else 'batch'} of {shape[0]}", [*values]


def _start(model: Any) -> Any:
    ids = (model.generation_config.decoder_start_token_id, model.generation_config.bos_token_id)
    return next((each for each in ids if each is not None), None)


def _loop(encoder: Any, decoder: Any, source: Mapping[str, Any], start: int) -> list[list[int]]:
    mask = source.get("attention_mask")
    encoded = _run(encoder, source)
    count = len(next(iter(source.values())))
    cross = {name.replace("present", "past"): value for name, value in encoded.items() if "cross" in name}
    shapes = {each.name: each.shape for each in decoder.get_inputs() if "self" in each.name}
    past = {name: np.zeros((count, shape[1], 0, shape[3]), np.float32) for name, shape in shapes.items()}
    tokens = np.full((count, 1), start, np.int64)
    for _ in range(NEW):
        feeds = {"input_ids": tokens[:, -1:], "encoder_attention_mask": mask, **past, **cross}
        outputs = _run(decoder, feeds)
        past = {name.replace("present", "past"): value for name, value in outputs.items() if name != "logits"}
        outputs["logits"][:, :, 2] = -np.inf  # the end of the sequence
        tokens = np.concatenate([tokens, outputs["logits"][:, -1].argmax(-1, keepdims=True)], axis=1)
    return [[int(token) for token in row[1:]] for row in tokens]


def _run(session: Any, feeds: Mapping[str, Any]) -> dict[str, Any]:
    names = {each.name for each in session.get_inputs()}
    outputs = [each.name for each in session.get_outputs()]
    given = {name: value for name, value in feeds.items() if name in names}
    return dict(zip(outputs, session.run(None, given), strict=True))


def compare_whisper(model: Any, directory: Path) -> Problems:
    """Compare the tokens of onnxruntime-genai from features of audio, for one and for several.

    Args:
        model: The model of transformers.
        directory: The exported directory.
    """

    def cases() -> _Compared:
        for name, count in (("one prompt", 1), ("batch", 3)):
            shape = (count, model.config.num_mel_bins, 3000)
            features = torch.randn(*shape, generator=torch.Generator().manual_seed(count))
            ids = torch.tensor([[1, 5, 7 + row] for row in range(count)])
            inputs = [
                {"input_features": features[row : row + 1], "decoder_input_ids": ids[row : row + 1]}
                for row in range(count)
            ]
            expected = [_generate(model, ids.shape[1], **row) for row in inputs]
            feeds = {"audio_features": features}
            yield name, lambda ids=ids, feeds=feeds: _in_genai(directory, ids, feeds), expected, inputs

    return _problems(model, "decoder_input_ids", cases())


def _in_genai(directory: Path, ids: torch.Tensor, feeds: Tensors) -> list[list[int]]:
    import onnxruntime_genai as og

    tensors = og.NamedTensors()
    tensors["input_ids"] = ids.int().numpy()
    for name, value in feeds.items():
        tensors[name] = value.numpy()
    loaded = og.Model(str(directory))
    parameters = og.GeneratorParams(loaded)
    length = ids.shape[1] + NEW
    parameters.set_search_options(do_sample=False, batch_size=len(ids), min_length=length, max_length=length)
    generator = og.Generator(loaded, parameters)
    generator.set_inputs(tensors)
    while not generator.is_done():
        generator.generate_next_token()
    return [[int(token) for token in generator.get_sequence(row)[ids.shape[1] :]] for row in range(len(ids))]


def compare_images(model: Any, directory: Path) -> Problems:
    """Compare the tokens of onnxruntime-genai from prompts without images, with one image and with two.

    Args:
        model: The model of transformers.
        directory: The exported directory.
    """
    return _problems(model, "input_ids", _image_cases(model, directory))


def _image_cases(model: Any, directory: Path) -> _Compared:
    for name, count in (("no image", 0), ("one image", 1), ("two images", 2)):
        images = _images(model, count) if count else {}
        tokens = _image_tokens(model, images) if count else [0]
        configs = (model.config, getattr(model.config, "vision_config", None))
        token = next(getattr(each, name) for each in configs for name in _TOKENS if hasattr(each, name))
        start, end = (_mark(model.config, end) for end in ("start", "end"))
        pictures = [each for number in tokens for each in [start, *[token] * number, end]] if count else []
        ids = torch.tensor([[20, 21, *pictures, 23, 24, 25, 26]])
        kinds = {"mm_token_type_ids": (ids == token).int(), "token_type_ids": torch.zeros_like(ids)}
        if "gemma3" in model.config.model_type or model.config.model_type == "shieldgemma2":
            kinds["token_type_ids"] = (ids == token).long()
        accepted = inspect.signature(model.forward).parameters
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **images}
        inputs |= {key: value for key, value in kinds.items() if key in accepted and (count or key[0] == "t")}
        expected = [_generate(model, ids.shape[1], **inputs)]
        feeds = {**images, "num_image_tokens": torch.tensor([sum(tokens)])}
        if model.config.model_type == "paddleocr_vl" and count:
            feeds["pixel_values"] = images["pixel_values"].flatten(1)
        yield name, lambda ids=ids, feeds=feeds: _in_genai(directory, ids, feeds), expected, [inputs]


def _mark(config: Any, end: str) -> int:
    """The token at the start or the end of an image, or any other one."""
    names = (f"vision_{end}_token_id", f"image_{end}_token_id")
    return next((getattr(config, name) for name in names if hasattr(config, name)), 21 + (end == "end"))


def _images(model: Any, count: int) -> dict[str, torch.Tensor]:
    """The tensors that a processor of transformers returns for some images."""
    generator = torch.Generator().manual_seed(count)
    if "input_features" in inspect.signature(model.forward).parameters and not hasattr(model.config, "vision_config"):
        return _clips(model, count, generator)
    vision = model.config.vision_config
    if "image_position_ids" in inspect.signature(model.forward).parameters:
        sizes = [(4, 2), (2, 6)][:count]
        places = torch.full((count, 12, 2), -1)
        for row, (height, width) in enumerate(sizes):
            places[row, : height * width] = torch.cartesian_prod(torch.arange(height), torch.arange(width)).flip(1)
        pixels = torch.randn(count, 12, 3 * vision.patch_size**2, generator=generator)
        return {"pixel_values": pixels, "image_position_ids": places}
    if "image_grid_thw" in inspect.signature(model.forward).parameters:
        merge = vision.spatial_merge_size
        grid = torch.tensor([[1, 3 * merge, 2 * merge], [1, 2 * merge, 4 * merge]][:count])
        channels = getattr(vision, "in_channels", None) or getattr(vision, "in_chans", 3)
        shape = (channels * getattr(vision, "temporal_patch_size", 1) * vision.patch_size**2,)
        if vision.model_type == "paddleocr_vl_vision":
            shape = (channels, vision.patch_size, vision.patch_size)
        return {
            "pixel_values": torch.randn(int(grid.prod(1).sum()), *shape, generator=generator),
            "image_grid_thw": grid,
        }
    if "spatial_shapes" in inspect.signature(model.forward).parameters:
        sizes = torch.tensor([(6, 4), (2, 8)][:count])
        mask = (torch.arange(28) < sizes.prod(1, keepdim=True)).int()
        pixels = torch.randn(count, 28, 3 * vision.patch_size**2, generator=generator)
        return {"pixel_values": pixels, "spatial_shapes": sizes, "pixel_attention_mask": mask}
    if "image_attention_mask" in inspect.signature(model.forward).parameters:
        sizes = torch.tensor([(2, 1), (1, 2)][:count])
        mask = torch.ones(count, 3, 4, 4)
        mask[0, 2, 2:] = 0
        pixels = torch.randn(count, 3, 3, 16, 16, generator=generator)
        return {"image_pixel_values": pixels, "image_sizes": 16 * sizes, "image_attention_mask": mask}
    if "target_sizes" in inspect.signature(model.forward).parameters:
        sizes = torch.tensor([(8, 4), (4, 12)][:count], dtype=torch.int32)
        side = vision.patch_size
        return {
            "pixel_values": torch.randn(1, 3, side, int(sizes.prod(1).sum()) * side, generator=generator),
            "target_sizes": sizes,
        }
    size = getattr(vision, "image_size", (160, 160))
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    pixels = torch.randn(count, getattr(vision, "num_channels", 3), height, width, generator=generator)
    accepted = inspect.signature(model.forward).parameters
    if "pixel_attention_mask" in accepted:
        mask = torch.ones(1, count, height, width, dtype=torch.int64)
        mask[:, -1:, width // 2 :] = 0
        return {"pixel_values": pixels[None], "pixel_attention_mask": mask}
    if "image_sizes" in accepted and vision.model_type == "pixtral":
        return {"pixel_values": pixels, "image_sizes": torch.tensor([[height, width]] * count)}
    return {"pixel_values": pixels}


_TOKENS = ("image_token_id", "audio_token_id", "audio_token_index")


def _clips(model: Any, count: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """The tensors that a processor of transformers returns for some clips of audio."""
    config = getattr(model.config, "audio_config", None) or model.config.encoder_config
    length = 2 * getattr(config, "max_source_positions", 50) * (5 if hasattr(config, "n_window") else 1)
    if hasattr(config, "input_dim"):
        return {"input_features": torch.randn(count, length, config.input_dim, generator=generator)}
    features = torch.randn(count, config.num_mel_bins, length, generator=generator)
    if "input_features_mask" not in inspect.signature(model.forward).parameters:
        return {"input_features": features}
    mask = torch.ones(count, length, dtype=torch.int64)
    mask[-1, 64:] = 0
    return {"input_features": features, "input_features_mask": mask}


def _image_tokens(model: Any, images: Tensors) -> list[int]:
    """The number of tokens of each image, or of all clips of audio."""
    if "image_pixel_values" in images:  # Phi-4: rows with their ends, a separator, and the whole image
        return [3 * 3 + 1 + 6, 2 * 5 + 1 + 6][: len(images["image_sizes"])]
    kind = "audio" if "input_features" in images else "image"
    with torch.no_grad():
        found = getattr(model.base_model, f"get_{kind}_features")(**images, return_dict=True)
    features = found.last_hidden_state if found.pooler_output is None else found.pooler_output
    if kind == "audio":
        return [features.shape[:-1].numel()]
    return [each.shape[:-1].numel() for each in features]
