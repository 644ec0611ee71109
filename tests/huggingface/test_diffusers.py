"""Pipelines of Diffusers: files with optimum's names, which generate the same images at other sizes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
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
from fxonnx._transformers.pipelines import pipeline_of

from .small_pipelines import PIPELINES, XL, images, make

diffusers = pytest.importorskip("diffusers")


@dataclass
class Exported:
    """A pipeline, its images before the export, the export, and the stages of it."""

    pipeline: Any
    images: Tensor
    result: fxonnx.huggingface.ExportedModel
    stages: list[str]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    """Exports by the name of the pipeline, each made once."""

    @cache
    def made(name: str) -> Exported:
        pipeline, stages = make(name, **PIPELINES[name]), list[str]()
        expected = images(pipeline, name)
        result = fxonnx.huggingface.export(pipeline, tmp_path_factory.mktemp(name), on_stage=stages.append)
        return Exported(pipeline, expected, result, stages)

    return made


# The pipeline that every change exports, once for all tests; it has the parts of Stable Diffusion, and more.
SHARED = "StableDiffusionXLPipeline"


def _by_night(names: Iterable[str]) -> list[Any]:
    """The pipelines, all but one of which are exported by night only."""
    return [name if name == SHARED else pytest.param(name, marks=pytest.mark.nightly) for name in names]


@pytest.mark.parametrize("name", _by_night(PIPELINES))
def test_images(exported: Callable[[str], Exported], name: str) -> None:
    """Images of two texts, all modules of which are files."""
    found = exported(name)
    path, pipeline = found.result.path, found.pipeline
    checks, files = found.result.checks, found.result.files
    assert all(check.passed for check in checks)
    assert checks[-1].file == "image"
    # Each file is compared at two sizes.
    assert len(checks) == 2 * len(files) + 1
    modules = [each for each, part in pipeline.components.items() if isinstance(part, torch.nn.Module)]
    components = {*modules, "vae_encoder", "vae_decoder"} - {"vae"}
    assert {file.parent.name for file in files} == components
    assert all((path / component / "config.json").is_file() for component in components)
    assert json.loads((path / "model_index.json").read_text())["_class_name"] == name
    torch.testing.assert_close(images(pipeline, name), found.images)  # the pipeline is as it was
    loaded = fxonnx.huggingface.load(path)
    torch.testing.assert_close(images(loaded, name), found.images, atol=1e-4, rtol=1e-3)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("StableDiffusionInpaintPipeline", {}, marks=pytest.mark.nightly),
        ("StableDiffusion3Img2ImgPipeline", {}),
        pytest.param("FluxImg2ImgPipeline", {"guidance_embeds": True}, marks=pytest.mark.nightly),
        pytest.param("FluxInpaintPipeline", {"guidance_embeds": True}, marks=pytest.mark.nightly),
        pytest.param("PixArtSigmaPipeline", {"use_additional_conditions": False}, marks=pytest.mark.nightly),
    ],
)
def test_other_pipelines(tmp_path: Path, name: str, options: Mapping[str, Any]) -> None:
    exported = fxonnx.huggingface.export(make(name, **options), tmp_path)
    assert all(check.passed for check in exported.checks)
    assert exported.checks[-1].file == "image"
    assert type(fxonnx.huggingface.load(tmp_path)).__name__ == name


_STATES = ["hidden_states.0", "hidden_states.1", "hidden_states.2"]
_TRANSFORMER = ["hidden_states", "encoder_hidden_states"]
_NAMES: Mapping[str, Mapping[str, tuple[list[str], list[str]]]] = {
    "StableDiffusionXLPipeline": {
        "text_encoder": (["input_ids"], ["last_hidden_state", "pooler_output", *_STATES]),
        "text_encoder_2": (["input_ids"], ["text_embeds", "last_hidden_state", *_STATES]),
        "unet": (["sample", "timestep", "encoder_hidden_states", "text_embeds", "time_ids"], ["out_sample"]),
        "vae_encoder": (["sample"], ["latent_parameters"]),
        "vae_decoder": (["latent_sample"], ["sample"]),
    },
    "StableDiffusion3Pipeline": {
        "text_encoder_3": (["input_ids"], ["last_hidden_state"]),
        "transformer": ([*_TRANSFORMER, "pooled_projections", "timestep"], ["out_hidden_states"]),
    },
    "FluxPipeline": {
        "text_encoder_2": (["input_ids"], ["last_hidden_state"]),
        "transformer": (
            [*_TRANSFORMER, "pooled_projections", "timestep", "img_ids", "txt_ids", "guidance"],
            ["out_hidden_states"],
        ),
    },
    "PixArtAlphaPipeline": {
        "text_encoder": (["input_ids", "attention_mask"], ["last_hidden_state"]),
        "transformer": ([*_TRANSFORMER, "timestep", "encoder_attention_mask"], ["out_hidden_states"]),
    },
}


@pytest.mark.parametrize("name", _by_night(_NAMES))
def test_names_as_in_optimum(exported: Callable[[str], Exported], name: str) -> None:
    for component, expected in _NAMES[name].items():
        session = onnxruntime.InferenceSession(exported(name).result.path / component / "model.onnx")
        inputs, outputs = session.get_inputs(), session.get_outputs()
        assert ([each.name for each in inputs], [each.name for each in outputs]) == expected


@pytest.mark.parametrize("sizes", [(7, 10), (8, 5), (6, 6), (9, 13)], ids=str)
def test_a_unet_takes_images_of_any_size(exported: Callable[[str], Exported], sizes: tuple[int, int]) -> None:
    """Also of latents with odd sides, for which the sizes of the halves are not doubled exactly."""
    found = exported(SHARED)
    session = onnxruntime.InferenceSession(found.result.path / "unet" / "model.onnx")
    unet, batch = found.pipeline.unet, 3
    inputs = {
        "sample": torch.randn(batch, unet.config.in_channels, *sizes),
        "timestep": torch.tensor(5),
        "encoder_hidden_states": torch.randn(batch, 9, unet.config.cross_attention_dim),
        "text_embeds": torch.randn(batch, session.get_inputs()[3].shape[1]),
        "time_ids": torch.randint(0, 64, (batch, 6)).float(),
    }
    with torch.no_grad():
        conditions = {name: inputs[name] for name in ("text_embeds", "time_ids")}
        args = (inputs["sample"], inputs["timestep"], inputs["encoder_hidden_states"])
        (expected,) = unet(*args, added_cond_kwargs=conditions, return_dict=False)
    types = {"tensor(int64)": torch.int64, "tensor(float)": torch.float32}
    feeds = {each.name: inputs[each.name].to(types[each.type]) for each in session.get_inputs()}
    (result,) = session.run(None, {name: value.numpy() for name, value in feeds.items()})
    torch.testing.assert_close(torch.from_numpy(result), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.nightly
def test_directories_and_half_precision(tmp_path: Path) -> None:
    pipeline = make("StableDiffusionPipeline")
    pipeline.save_pretrained(tmp_path / "pipeline")
    exported = fxonnx.huggingface.export(tmp_path / "pipeline", tmp_path / "out", dtype="fp16")
    assert all(check.passed for check in exported.checks)
    assert (tmp_path / "out" / "tokenizer" / "tokenizer.json").is_file()
    size = (tmp_path / "pipeline" / "unet" / "diffusion_pytorch_model.safetensors").stat().st_size
    assert (tmp_path / "out" / "unet" / "model.onnx").stat().st_size < 0.8 * size


@pytest.mark.nightly
def test_adapters_are_merged(tmp_path: Path) -> None:
    from peft import LoraConfig

    pipeline = make("StableDiffusionPipeline")
    before = images(pipeline, "StableDiffusionPipeline")
    pipeline.unet.add_adapter(LoraConfig(r=4, init_lora_weights=False, target_modules=["to_q", "to_v"]))
    expected = images(pipeline, "StableDiffusionPipeline")
    assert not torch.allclose(before, expected, atol=1e-3)
    fxonnx.huggingface.export(pipeline, tmp_path)
    torch.testing.assert_close(images(pipeline, "StableDiffusionPipeline"), expected)
    loaded = fxonnx.huggingface.load(tmp_path)
    torch.testing.assert_close(images(loaded, "StableDiffusionPipeline"), expected, atol=1e-4, rtol=1e-3)


@pytest.mark.nightly
def test_disabled_adapters_are_not_merged(tmp_path: Path) -> None:
    from peft import LoraConfig

    pipeline = make("StableDiffusionPipeline")
    expected = images(pipeline, "StableDiffusionPipeline")
    pipeline.unet.add_adapter(LoraConfig(r=4, init_lora_weights=False, target_modules=["to_q", "to_v"]))
    pipeline.unet.disable_adapters()
    fxonnx.huggingface.export(pipeline, tmp_path)
    loaded = fxonnx.huggingface.load(tmp_path)
    torch.testing.assert_close(images(loaded, "StableDiffusionPipeline"), expected, atol=1e-4, rtol=1e-3)


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_layers_of_t5_stay_in_float32(tmp_path: Path) -> None:
    """The values of those that transformers keeps in float32 exceed the range of float16."""
    exported = fxonnx.huggingface.export(make("FluxPipeline"), tmp_path, dtype="fp16")
    assert all(check.passed for check in exported.checks)
    model = onnx.load(tmp_path / "text_encoder_2" / "model.onnx")
    kept = [tensor for tensor in model.graph.initializer if ".wo." in tensor.name]
    assert {tensor.data_type for tensor in kept} == {onnx.TensorProto.FLOAT}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", [pytest.param("PixArtAlphaPipeline", marks=pytest.mark.nightly), "FluxPipeline", "StableDiffusion3Pipeline"]
)
def test_any_height_and_width(exported: Callable[[str], Exported], name: str) -> None:
    """The positions of other sizes follow from a formula or are a part of the stored ones."""
    loaded = fxonnx.huggingface.load(exported(name).result.path)
    for height, width in ((32, 32), (64, 16)):
        sizes = {"height": height, "width": width, "prompt": "one"}
        expected = images(exported(name).pipeline, name, **sizes)
        torch.testing.assert_close(images(loaded, name, **sizes), expected, atol=1e-4, rtol=1e-3)


def test_ids_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline in the cache of huggingface_hub, without a network."""
    snapshot = tmp_path / "models--org--pipeline" / "snapshots" / ("0" * 40)
    make("StableDiffusionPipeline").save_pretrained(snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert type(pipeline_of("org/pipeline")).__name__ == "StableDiffusionPipeline"
    assert pipeline_of("org/other") is None

    def refused(*_args: Any, **_options: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(diffusers.DiffusionPipeline, "download", refused)
    with pytest.raises(ArgumentError, match=r"(?s)pipeline org/pipeline cannot be downloaded: no space.*hf download"):
        fxonnx.huggingface.export("org/pipeline", tmp_path / "out")


def test_the_stages_of_files(exported: Callable[[str], Exported]) -> None:
    stages = exported(SHARED).stages
    first = [f"{stage} text_encoder/model.onnx (1 of 5)" for stage in ("export", "save", "verify")]
    assert stages[:4] == ["load", *first]
    assert stages[-2:] == ["verify vae_decoder/model.onnx (5 of 5)", "verify image"]


def test_the_display_names_files(exported: Callable[[str], Exported]) -> None:
    lines = str(exported(SHARED).result).splitlines()
    position = next(index for index, line in enumerate(lines) if "vae_encoder/model.onnx" in line)
    assert lines[position + 1].strip() == "only for sample_height >= 2"
    assert lines[position + 3].strip().startswith("sample 2x3x16x18: difference")
    assert lines[-1].strip().startswith("image, 3 steps, 32x48: difference")


@pytest.mark.nightly
def test_inputs_without_a_file(exported: Callable[[str], Exported]) -> None:
    """Layers that a pipeline skips are a part of the file."""
    name = "StableDiffusion3Pipeline"
    loaded = fxonnx.huggingface.load(exported(name).result.path)
    with pytest.raises(ArgumentError, match="skip_layers: the exported file has no such input"):
        images(loaded, name, skip_guidance_layers=[0], skip_layer_guidance_stop=1.0)


def test_files_that_cannot_be_loaded(exported: Callable[[str], Exported], tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="file: expected None for a pipeline of Diffusers"):
        fxonnx.huggingface.load(exported(SHARED).result.path, file="_fp16")
    shutil.copytree(exported(SHARED).result.path, tmp_path / "copy")
    (tmp_path / "copy" / "text_encoder_2" / "model.onnx").unlink()
    with pytest.raises(ArgumentError, match=r"directory: .*text_encoder_2 has no model\.onnx"):
        fxonnx.huggingface.load(tmp_path / "copy")


def test_text_encoders_without_weights(tmp_path: Path) -> None:
    """transformers would choose them at random."""
    pipeline = make("StableDiffusionPipeline")
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
    with pytest.raises(ArgumentError, match="vocoder: StableDiffusionPipeline takes none"):
        fxonnx.huggingface.export(pipeline, tmp_path / "out", vocoder="vocoder")
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
