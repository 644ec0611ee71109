"""``load`` for pipelines: those of Diffusers, with modules without weights whose computation ONNX Runtime does."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..genai._untrusted import check_checkpoint, read_settings
from ._diffusers import INDEX
from ._extra import import_extra
from ._sessions import OpenSession, Session, on_cpu, replace_forward

__all__ = ["load_pipeline"]

_FILE = "model.onnx"
_FORMS = ("output_hidden_states", "return_dict")
"""Arguments that choose the form of a result."""


def load_pipeline(root: Path, opened: OpenSession) -> Any:
    """Load an exported pipeline.

    Args:
        root: The directory.
        opened: Opens the session of a file.

    Raises:
        ArgumentError: If a file is missing.
    """
    diffusers = import_extra("diffusers", "diffusers")
    check_checkpoint(root, "directory")
    index = read_settings(root / INDEX, "directory")
    pipeline_class = getattr(diffusers, index["_class_name"])
    names = inspect.signature(pipeline_class).parameters
    return pipeline_class(**{name: _part(root, name, index[name], opened) for name in names if name in index})


def _part(root: Path, name: str, entry: Any, opened: OpenSession) -> Any:
    """A part of a pipeline, for an entry of its index: an option, or library and class."""
    if not isinstance(entry, list):
        return entry
    library, class_name = entry
    if class_name is None:
        return None
    part_class = getattr(import_extra(library, "diffusers"), class_name)
    if name == "vae":
        return _vae(root, part_class, opened)
    if not issubclass(part_class, torch.nn.Module):
        return part_class.from_pretrained(root / name, local_files_only=True)
    module = _without_weights(part_class, root / name)
    compute = _denoise if library == "diffusers" else _encode_text
    replace_forward(module, functools.partial(compute, _session(root / name, opened)))
    return module


def _session(folder: Path, opened: OpenSession) -> Session:
    if not (folder / _FILE).is_file():
        raise ArgumentError("directory", f"{folder} has no {_FILE}")
    return opened(folder / _FILE)


def _without_weights(part_class: Any, folder: Path) -> Any:
    with torch.device("meta"):
        if hasattr(part_class, "config_class"):  # of transformers
            module = part_class._from_config(part_class.config_class.from_pretrained(folder))
        else:
            module = part_class.from_config(part_class.load_config(folder))
    module.__class__ = on_cpu(part_class)
    return module.eval()


def _vae(root: Path, part_class: Any, opened: OpenSession) -> Any:
    """A VAE, whose encoder and decoder are files of their own."""
    diffusers = import_extra("diffusers", "diffusers")
    encoder, decoder = (_session(root / name, opened) for name in ("vae_encoder", "vae_decoder"))
    module = _without_weights(part_class, root / "vae_decoder")
    output_class = diffusers.models.modeling_outputs.AutoencoderKLOutput
    distribution_class = diffusers.models.autoencoders.vae.DiagonalGaussianDistribution

    def encode(images: Tensor, **_options: Any) -> Any:
        (parameters,) = encoder({"sample": images}).values()
        return output_class(latent_dist=distribution_class(parameters))

    module.encode = encode
    module.decode = lambda latents, **_options: tuple(decoder({"latent_sample": latents}).values())
    return module


def _denoise(session: Session, **given: Any) -> tuple[Tensor, ...]:
    given |= given.pop("added_cond_kwargs", None) or {}
    return tuple(session(_checked(session, given)).values())


def _encode_text(session: Session, **given: Any) -> Any:
    found: dict[str, Any] = session(_checked(session, given))
    states = [found.pop(name) for name in session.outputs if name.startswith("hidden_states.")]
    if states:  # the last one is not an output: pipelines count from the end, and read those before it
        found["hidden_states"] = (*states, found["last_hidden_state"])
    return import_extra("transformers").utils.ModelOutput(found)


def _checked(session: Session, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The inputs of a file.

    Raises:
        ArgumentError: If there is another input that has a value.
    """
    for name, value in given.items():
        is_empty = value is None or (isinstance(value, Mapping) and not value)
        if not is_empty and name not in session.inputs and name not in _FORMS:
            raise ArgumentError(name, "the exported file has no such input")
    return {name: value for name, value in given.items() if name in session.inputs}
