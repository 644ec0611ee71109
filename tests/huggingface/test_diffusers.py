"""Pipelines of Diffusers: files with optimum's names, which generate the same images at other sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import fxonnx.huggingface
from fxonnx import ArgumentError
from tests.genai.small_models import make_tokenizer

from .small_pipelines import PIPELINES, XL, images, make

diffusers = pytest.importorskip("diffusers")


class Served:
    """A component of a pipeline whose file computes it."""

    def __init__(self, path: Path) -> None:
        self.session = onnxruntime.InferenceSession(path)

    def __call__(self, **given: Any) -> list[Tensor]:
        feeds = {each.name: given[each.name].numpy() for each in self.session.get_inputs()}
        return [torch.from_numpy(value) for value in self.session.run(None, feeds)]


def serve(pipeline: Any, directory: Path) -> None:
    """Let the files compute the denoising and the decoding of a pipeline."""
    unet, decoder = Served(directory / "unet" / "model.onnx"), Served(directory / "vae_decoder" / "model.onnx")

    def denoise(sample: Tensor, timestep: Tensor, encoder_hidden_states: Tensor, **more: Any) -> Any:
        more |= more.pop("added_cond_kwargs", None) or {}
        return unet(sample=sample, timestep=timestep, encoder_hidden_states=encoder_hidden_states, **more)

    pipeline.unet.forward = denoise
    pipeline.vae.decode = lambda latents, **_: decoder(latent_sample=latents)


@pytest.mark.parametrize("name", PIPELINES)
def test_images(tmp_path: Path, name: str) -> None:
    pipeline = make(name, **PIPELINES[name])
    expected = images(pipeline, name)
    exported = fxonnx.huggingface.export(pipeline, tmp_path)
    assert all(check.passed for check in exported.checks)
    components = {"text_encoder", "unet", "vae_decoder", "vae_encoder"} | (
        {"text_encoder_2"} if "XL" in name else set()
    )
    assert {file.parent.name for file in exported.files} == components
    assert all((tmp_path / component / "config.json").is_file() for component in components)
    assert json.loads((tmp_path / "model_index.json").read_text())["_class_name"] == name
    torch.testing.assert_close(images(pipeline, name), expected)  # the pipeline is as it was
    serve(pipeline, tmp_path)
    torch.testing.assert_close(images(pipeline, name), expected, atol=1e-4, rtol=1e-3)


def test_names_as_in_optimum(tmp_path: Path) -> None:
    fxonnx.huggingface.export(make("StableDiffusionXLPipeline", **XL), tmp_path, verify=False)

    def names(component: str) -> tuple[list[str], list[str]]:
        session = onnxruntime.InferenceSession(tmp_path / component / "model.onnx")
        return [each.name for each in session.get_inputs()], [each.name for each in session.get_outputs()]

    states = [f"hidden_states.{index}" for index in range(3)]
    assert names("text_encoder") == (["input_ids"], ["last_hidden_state", "pooler_output", *states])
    assert names("text_encoder_2") == (["input_ids"], ["text_embeds", "last_hidden_state", *states])
    inputs = ["sample", "timestep", "encoder_hidden_states", "text_embeds", "time_ids"]
    assert names("unet") == (inputs, ["out_sample"])
    assert names("vae_encoder") == (["sample"], ["latent_parameters"])
    assert names("vae_decoder") == (["latent_sample"], ["sample"])


def test_directories_and_half_precision(tmp_path: Path) -> None:
    pipeline = make("StableDiffusionPipeline")
    pipeline.register_modules(tokenizer=make_tokenizer())
    pipeline.save_pretrained(tmp_path / "pipeline")
    exported = fxonnx.huggingface.export(tmp_path / "pipeline", tmp_path / "out", dtype="fp16")
    assert all(check.passed for check in exported.checks)
    assert (tmp_path / "out" / "tokenizer" / "tokenizer.json").is_file()
    size = (tmp_path / "pipeline" / "unet" / "diffusion_pytorch_model.safetensors").stat().st_size
    assert (tmp_path / "out" / "unet" / "model.onnx").stat().st_size < 0.8 * size


def test_adapters_are_merged(tmp_path: Path) -> None:
    from peft import LoraConfig

    pipeline = make("StableDiffusionPipeline")
    before = images(pipeline, "StableDiffusionPipeline")
    pipeline.unet.add_adapter(LoraConfig(r=4, init_lora_weights=False, target_modules=["to_q", "to_v"]))
    expected = images(pipeline, "StableDiffusionPipeline")
    assert not torch.allclose(before, expected, atol=1e-3)
    fxonnx.huggingface.export(pipeline, tmp_path)
    torch.testing.assert_close(images(pipeline, "StableDiffusionPipeline"), expected)
    serve(pipeline, tmp_path)
    torch.testing.assert_close(images(pipeline, "StableDiffusionPipeline"), expected, atol=1e-4, rtol=1e-3)


def test_disabled_adapters_are_not_merged(tmp_path: Path) -> None:
    from peft import LoraConfig

    pipeline = make("StableDiffusionPipeline")
    expected = images(pipeline, "StableDiffusionPipeline")
    pipeline.unet.add_adapter(LoraConfig(r=4, init_lora_weights=False, target_modules=["to_q", "to_v"]))
    pipeline.unet.disable_adapters()
    fxonnx.huggingface.export(pipeline, tmp_path)
    serve(pipeline, tmp_path)
    torch.testing.assert_close(images(pipeline, "StableDiffusionPipeline"), expected, atol=1e-4, rtol=1e-3)


def test_the_vae_of_xl_stays_in_float32(tmp_path: Path) -> None:
    """The pipeline computes it in float32 too, as its values exceed the range of float16."""
    pipeline = make("StableDiffusionXLPipeline", **XL)
    fxonnx.huggingface.export(pipeline, tmp_path, dtype="fp16", verify=False)

    def types(component: str) -> set[int]:
        model = onnx.load(tmp_path / component / "model.onnx")
        return {tensor.data_type for tensor in model.graph.initializer if tensor.dims}

    half, single = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    assert half in types("unet")
    assert half not in types("vae_decoder")
    assert single in types("vae_decoder")


def test_text_encoders_without_weights(tmp_path: Path) -> None:
    """transformers would choose them at random."""
    pipeline = make("StableDiffusionPipeline")
    pipeline.register_modules(tokenizer=make_tokenizer())
    pipeline.save_pretrained(tmp_path / "pipeline")
    file = tmp_path / "pipeline" / "text_encoder" / "model.safetensors"
    weights = {name: value for name, value in load_file(file).items() if "final_layer_norm" not in name}
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ArgumentError, match=r"text_encoder has no weights for .*final_layer_norm"):
        fxonnx.huggingface.export(tmp_path / "pipeline", tmp_path / "out")


def test_mistakes(tmp_path: Path) -> None:
    pipeline = make("StableDiffusionPipeline")
    with pytest.raises(ArgumentError, match='layout: expected "optimum" for a pipeline of Diffusers, got'):
        fxonnx.huggingface.export(pipeline, tmp_path / "out", layout="transformers.js")
    with pytest.raises(ArgumentError, match="dtype: expected one for a pipeline of Diffusers"):
        fxonnx.huggingface.export(pipeline, tmp_path / "out", dtype="fp32,fp16")
    scheduler = diffusers.DDPMScheduler()
    other = diffusers.DDPMPipeline(diffusers.UNet2DModel(block_out_channels=(32, 32, 32, 32)), scheduler)
    with pytest.raises(ArgumentError, match="DDPMPipeline is not a pipeline of Stable Diffusion"):
        fxonnx.huggingface.export(other, tmp_path / "out")
    parts = {name: part for name, part in pipeline.components.items() if name != "image_encoder"}
    controlled = diffusers.StableDiffusionControlNetPipeline(
        controlnet=diffusers.ControlNetModel.from_unet(pipeline.unet), requires_safety_checker=False, **parts
    )
    with pytest.raises(ArgumentError, match="StableDiffusionControlNetPipeline is not a pipeline of Stable Diffusion"):
        fxonnx.huggingface.export(controlled, tmp_path / "out")
    pipeline.unet.register_to_config(encoder_hid_dim_type="ip_image_proj")
    with pytest.raises(ArgumentError, match="the UNet of StableDiffusionPipeline has the encoder_hid_dim_type"):
        fxonnx.huggingface.export(pipeline, tmp_path / "out")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "model_index.json").write_text("{}")
    with pytest.raises(ArgumentError, match=r"model: .*broken cannot be loaded"):
        fxonnx.huggingface.export(tmp_path / "broken", tmp_path / "out")
    assert not (tmp_path / "out").exists()
