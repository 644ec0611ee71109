"""Models of images and text with one decoder: the parts that compute its embeddings, and example inputs."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...errors import ArgumentError
from ..meta import has_weights, runnable
from ..samples import Sizes, axes_of, cast, sample_inputs

__all__ = [
    "check_image_text",
    "example_inputs",
    "has_3d_positions",
    "has_grids",
    "image_axes",
    "image_features",
    "image_inputs",
    "image_text_inputs",
    "image_token",
    "merged_embeddings",
    "module_of_features",
]


def image_inputs(model: Any, sizes: Sizes) -> dict[str, Tensor]:
    """Example images, one for each text.

    Returns:
        FLOAT (images, channels, height, width); of models with a mask of pixels, FLOAT (batch, 1, channels, height,
        width) and BOOL (batch, 1, height, width); of models with grids, FLOAT (patches, size) and INT64 (images, 3).
    """
    if has_grids(model):
        return _patches(model.config.vision_config, sizes)
    pixels = sample_inputs(model, ["pixel_values"], sizes)["pixel_values"]
    if "pixel_attention_mask" not in inspect.signature(model.get_image_features).parameters:
        return {"pixel_values": pixels}
    mask = torch.ones(len(pixels), 1, *pixels.shape[2:], dtype=torch.bool)
    return {"pixel_values": pixels[:, None], "pixel_attention_mask": mask}


def has_grids(model: Any) -> bool:
    """Whether images are patches in a row, with a grid of each image."""
    return "image_grid_thw" in inspect.signature(model.get_image_features).parameters


def has_3d_positions(model: Any) -> bool:
    """Whether tokens have a position in each of time, height and width."""
    return hasattr(model.base_model, "get_rope_index")


def _patches(config: Any, sizes: Sizes) -> dict[str, Tensor]:
    """The patches of images of one size, and their grids."""
    merge = getattr(config, "spatial_merge_size", 1)
    grid = torch.tensor([[1, int(2 * sizes.scale) * merge, int(3 * sizes.scale) * merge]]).repeat(sizes.batch, 1)
    channels = next((getattr(config, name) for name in _CHANNELS if getattr(config, name, None)), 3)
    size = channels * getattr(config, "temporal_patch_size", 1) * config.patch_size**2
    generator = torch.Generator().manual_seed(sizes.seed)
    return {"pixel_values": torch.randn(int(grid.prod(1).sum()), size, generator=generator), "image_grid_thw": grid}


_CHANNELS = ("in_channels", "in_chans", "num_channels")


def example_inputs(model: Any, names: Collection[str], sizes: Sizes) -> dict[str, Tensor]:
    """Example inputs of a model; texts with images have the tokens of their images."""
    if {"input_ids", "pixel_values"} <= {*names} and image_token(model.base_model.config) >= 0:
        return image_text_inputs(model.base_model, sizes)
    return sample_inputs(model, names, sizes)


def image_token(config: Any) -> int:
    """The token that stands for a feature of an image in a text; -1 if a configuration has none."""
    for name in ("image_token_id", "image_token_index"):
        found: int | None = getattr(config, name, None)
        if found is not None:
            return found
    return -1


def check_image_text(model: Any) -> None:
    """Reject models whose images are not features in place of tokens."""
    name = type(model).__name__
    hint = "fxonnx.genai.export exports further vision-language models, fxonnx.export any model with example inputs"
    if image_token(model.config) < 0 or not hasattr(model, "get_image_features"):
        raise ArgumentError("model", f"{name} does not put features of images in place of tokens", hint=hint)
    try:
        sample = image_inputs(model, Sizes())
        with torch.no_grad():
            found = model.get_image_features(**cast(sample, model.dtype))
            image_features(model, module_of_features(model), **sample)
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ArgumentError(
            "model", f"{name} does not compute features of pixels alone: {reason}", hint=hint
        ) from error
    if getattr(found, "deepstack_features", None) is not None:
        raise ArgumentError("model", f"layers of {name} read further features of images", hint=hint)


class _Together:
    """The features of all images, which are not separated by the operations that separate a tensor.

    Args:
        features: FLOAT (..., hidden size).
    """

    def __init__(self, features: Tensor) -> None:
        self._features = features

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self._features,))

    def split(self, *_args: Any, **_kwargs: Any) -> tuple[Tensor]:
        """All features as the only part."""
        return (self._features,)

    def squeeze(self, *_args: Any) -> _Together:
        """The features themselves: they have any number of leading axes."""
        return self

    @classmethod
    def __torch_function__(cls, function: Any, _types: Any, args: Any = (), _kwargs: Any = None) -> Any:
        return args[0].split() if function is torch.split else NotImplemented


class _Unseparated(TorchFunctionMode):
    """A mode in which tensors have no lists of numbers, which only say how many features an image has."""

    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # In a capture, a list is made of the elements.
        is_list = getattr(function, "__name__", "") in ("tolist", "unbind")
        return [] if is_list else function(*args, **(kwargs or {}))


def image_features(model: Any, module: Any = None, **images: Tensor) -> Tensor:
    """The features of images, in the order of their tokens.

    Returns:
        FLOAT (..., hidden size).
    """
    given = cast(images, model.dtype)
    if module is None:
        return _joined(model.get_image_features(**given))

    with ExitStack() as until_returned:

        def keep_together(_module: Any, _args: Any, output: Any) -> Any:
            until_returned.enter_context(_Unseparated())
            if isinstance(output, Tensor):
                return _Together(output)
            output.pooler_output = _Together(output.pooler_output)
            return output

        until_returned.callback(module.register_forward_hook(keep_together).remove)
        (features,) = model.get_image_features(**given).pooler_output
    return torch.as_tensor(features)


def _joined(found: Any) -> Tensor:
    features = getattr(found, "pooler_output", found)
    return features if isinstance(features, Tensor) else torch.cat(list(features))


def module_of_features(model: Any) -> Any:
    """The module whose output are the features of images, if the model returns them image by image.

    The separation by numbers of tensors cannot be exported; the file returns the features of all images together.

    Returns:
        The module; None if the model returns one tensor, or has no weights to find the module by.
    """
    if not has_weights(model) or has_grids(model):
        return None
    outputs: dict[Any, Tensor] = {}
    handles = [
        module.register_forward_hook(lambda module, _, output: outputs.update({module: _tensor_of(output)}))
        for module in model.modules()
    ]
    images = image_inputs(model, Sizes())
    try:
        with torch.no_grad():
            features = image_features(model, **images)
            is_separated = not isinstance(model.get_image_features(**cast(images, model.dtype)).pooler_output, Tensor)
    finally:
        for handle in handles:
            handle.remove()
    rows = features.reshape(-1, features.shape[-1])
    same = [
        module
        for module, output in outputs.items()
        if isinstance(output, Tensor)
        and output.numel() == rows.numel()
        and torch.equal(output.reshape(rows.shape), rows)
    ]
    return same[-1] if is_separated and same else None


def _tensor_of(output: Any) -> Any:
    return getattr(output, "pooler_output", output)


def image_text_inputs(model: Any, sizes: Sizes) -> dict[str, Tensor]:
    """Texts of one image each, the last one with padding on the left."""
    pixels, called = image_inputs(model, sizes), runnable(model)
    with torch.no_grad():
        features = image_features(called, **{name: value.to(called.device) for name, value in pixels.items()})
    count = features.numel() // features.shape[-1] // sizes.batch
    text = sample_inputs(model, ["input_ids"], sizes)["input_ids"]
    token = image_token(model.config)
    text[text == token] = 1
    images = torch.full((sizes.batch, count), token)
    ids = torch.cat([text[:, :3], images, text[:, 3:]], 1)
    mask = torch.ones_like(ids)
    mask[-1, :2] = 0
    has_kinds = "mm_token_type_ids" in inspect.signature(model.forward).parameters
    kinds = {"mm_token_type_ids": ids.eq(token).int()} if has_kinds else {}
    return {"input_ids": ids, "attention_mask": mask, **pixels, **kinds}


def merged_embeddings(config: Any, ids: Tensor, embeddings: Tensor, features: Tensor) -> Tensor:
    """Embeddings of a text with the features of images in place of their tokens.

    Args:
        config: The configuration.
        ids: INT64 (batch, length), the tokens.
        embeddings: FLOAT (batch, length, hidden size) of the tokens.
        features: FLOAT (..., hidden size), the features of the images.
    """
    places = ids.eq(image_token(config))
    features = features.reshape(-1, features.shape[-1])
    if int(places.sum()) != len(features):
        problem = f"{int(places.sum())} tokens of images, but {len(features)} features of images"
        raise ArgumentError("input_ids", problem, hint="the processor of the model inserts the tokens")
    merged = embeddings.clone()
    merged[places] = features.to(embeddings.dtype)
    return merged


def image_axes(model: Any) -> dict[str, dict[int, str]]:
    """Dynamic axes of the inputs of images."""
    images = image_inputs(model, Sizes())
    if has_grids(model):
        return {"pixel_values": {0: "patches"}}
    if "pixel_attention_mask" not in images:
        return {name: axes_of(name, value, model) for name, value in images.items()}
    lead = {0: "batch_size", 1: "num_images"}
    mask = {**lead, 2: "height", 3: "width"}
    return {"pixel_values": {**lead, 3: "height", 4: "width"}, "pixel_attention_mask": mask}
