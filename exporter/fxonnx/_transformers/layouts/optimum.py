"""``fxonnx.huggingface.export``: from a model of transformers to the directory that a runtime loads."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

import torch

from ... import Target
from ... import export as export_model
from ...errors import ArgumentError
from ..core import UNROUNDED, ignoring_warnings
from ..directory import check_directory, split_external_data, staged_directory
from ..extras import check_choice, import_extra
from ..families.components import components_of, computing_attentions
from ..families.cross_attention import merge_branches
from ..families.diffusion import components_of_pipeline
from ..gguf import find_gguf, load_gguf
from ..meta import has_weights
from ..parts import Component, padding_any_size
from ..pipelines import has_adapters, pipeline_of, prepared_pipeline, write_pipeline
from ..precision import Variant, importance_of, read_variants
from ..runner import load
from ..samples import Sizes
from ..source import Source, in_dtype, load_source
from ..tasks import task_by_name
from ..verify import (
    FileCheck,
    compare_component,
    compare_generation,
    compare_images,
    flatten,
    generated_tokens,
    raise_on_failure,
)
from .genai import export as export_for_genai

__all__ = ["ExportedModel", "Layout", "export"]

Layout: TypeAlias = Literal["optimum", "transformers.js", "sentence-transformers", "genai"]
_FOLDERS: Mapping[Layout, str] = MappingProxyType(
    {"optimum": "", "transformers.js": "onnx", "sentence-transformers": "onnx"}
)
_GENAI_PRECISIONS: Mapping[str, Any] = MappingProxyType({"fp32": "fp32", "fp16": "fp16", "q4": "int4"})
_COPIED = ("*.json", "*.txt", "*.model", "*.jinja", "*.spm", "*.tiktoken")
_NOT_COPIED = ("*.index.json", "adapter_config.json", "quantize_config.json", "hf_quant_config.json")


@dataclass(frozen=True)
class ExportedModel:
    """The result of ``export``.

    Attributes:
        path: The directory.
        task: The name of the task.
        files: Paths of the ONNX files.
        checks: Comparisons with the model in eager torch; empty without ``verify``.
        limits: By file, the sizes that the model does not accept.
    """

    path: Path
    task: str
    files: tuple[Path, ...]
    checks: tuple[FileCheck, ...]
    limits: Mapping[str, tuple[str, ...]]

    def __str__(self) -> str:
        """A table of files and comparisons."""
        lines = [f"{self.path}: {self.task}"]
        for file in self.files:
            path = file.relative_to(self.path)
            names = (file.name, path.as_posix())  # the latter in a pipeline
            lines.append(f"  {path}  {file.stat().st_size / 2**20:.1f} MiB")
            lines += [f"    only for {limit}" for name in dict.fromkeys(names) for limit in self.limits.get(name, ())]
            lines += [f"    {each}" for each in self.checks if each.file in names]
        lines += [f"  {each}" for each in self.checks if not each.file.endswith(".onnx")]
        return "\n".join(lines)


def export(
    model: Any,
    out: str | os.PathLike[str],
    *,
    task: str | None = None,
    layout: Layout = "optimum",
    dtype: str | Sequence[str] = "fp32",
    processor: Any = None,
    vocoder: Any = None,
    opset_version: int | None = None,
    target: Target | None = None,
    attentions: bool = False,
    verify: bool = True,
    revision: str | None = None,
    token: str | None = None,
    trust_remote_code: bool = False,
    on_stage: Callable[[str], None] | None = None,
) -> ExportedModel:
    """Export a model of transformers to a directory that optimum, transformers.js or sentence-transformers loads.

    Args:
        model: A local directory, an id of the Hub, a GGUF file, or a model object, which is left unchanged; also of a
            pipeline of Diffusers.
        out: The directory to write. It is complete or not written at all; other files in it are kept.
        task: The task, for example "text-classification"; by default the task of the model's class.
        layout: "optimum": the ONNX files beside the configuration; "transformers.js" and "sentence-transformers": in
            the subdirectory ``onnx``; "genai": the files of ``fxonnx.genai.export``, which has further options.
        dtype: Names of the files to write, "fp32", "fp16", "q8" (int8 with dynamic activations), "q4" and "q4f16"
            (weights in 4 bits), also several separated by commas.
        processor: The tokenizer, image processor or feature extractor, or a processor that holds them; by default those
            of the model's directory.
        vocoder: For SpeechT5, the model that makes sound of its spectrograms: a ``SpeechT5HifiGan``, or
            its directory or id.
        opset_version: The opset; by default the default of ``fxonnx.export``.
        target: The runtime, as for ``fxonnx.export``; "onnxruntime-web-webgpu" for transformers.js with WebGPU. By
            default a graph for any runtime.
        attentions: Return the cross attentions of each layer of the decoder as well, which ``return_token_timestamps``
            of Whisper requires.
        verify: Compare each file with the model in eager torch at two sizes, and generated tokens. Without it, a
            checkpoint in safetensors is not loaded: its weights are converted one at a time while the files are saved.
        revision: Branch, tag or commit on the Hub.
        token: Token of the Hub.
        trust_remote_code: Run code that the checkpoint contains.
        on_stage: Called with the name of each stage as it begins, and of its file: "save model.onnx (1 of 2)".

    Returns:
        The paths of the files, with the comparisons.

    Raises:
        ArgumentError: If an argument is invalid, or the model cannot be found.
        VerificationError: With ``verify``, if results differ.
        SaveError: If ``out`` cannot be written.
        ExportError: If transformers is not installed, or the export fails.
    """
    _check_choices(layout, target, vocoder=vocoder, attentions=attentions)
    if task is not None:
        task_by_name(task)
    variants = read_variants(dtype)
    out = Path(out)
    check_directory(out)
    announce = on_stage or (lambda _stage: None)
    if layout == "genai":
        precision = _genai_precision(variants)
        announce("export")
        options: dict[str, Any] = {"precision": precision, "opset_version": opset_version, "verify": verify}
        options |= {"revision": revision, "token": token, "on_stage": announce}
        export_for_genai(model, out, tokenizer=processor, **options)
        return ExportedModel(out, "text-generation", tuple(sorted(out.glob("*.onnx"))), (), {})
    announce("load")
    model, processor = _loaded_gguf(model, processor)
    pipeline = pipeline_of(model, revision, token)
    writer = _Writer(layout, opset_version, target, verify, announce)
    if pipeline is not None:
        _check_pipeline(pipeline, layout, variants, vocoder=vocoder, attentions=attentions)
        with staged_directory(out) as staging:
            checks = _export_pipeline(pipeline, staging, variants[0], writer)
            return writer.result(staging, out, "text-to-image", checks)
    source = load_source(model, task, processor, revision, token, trust_remote_code, with_weights=verify)
    source = replace(source, vocoder=vocoder, has_attentions=attentions)
    attention = computing_attentions(source.model) if attentions else nullcontext()
    with attention, staged_directory(out) as staging:
        _write_configuration(source, staging, has_own_processor=processor is not None)
        checks = _export_variants(source, staging, variants, writer)
        if layout == "transformers.js":
            _configure_transformers_js(staging, variants)
        return writer.result(staging, out, source.task.name, checks)


def _check_choices(layout: Any, target: Any, *, vocoder: Any, attentions: bool) -> None:
    """Fail before the model is loaded."""
    check_choice("layout", layout, get_args(Layout))
    check_choice("target", target, (None, *get_args(Target)))
    if layout != "genai":
        return
    if vocoder is not None:
        raise ArgumentError("vocoder", 'layout="genai" takes none', hint="only SpeechT5 does, in the other layouts")
    if attentions:
        raise ArgumentError("attentions", 'layout="genai" has none', hint="choose another layout")
    if target is not None:
        raise ArgumentError("target", 'layout="genai" has its own', hint="leave it out, or choose another layout")


def _check_pipeline(
    pipeline: Any, layout: Layout, variants: Sequence[Variant], *, vocoder: Any, attentions: bool
) -> None:
    """Reject arguments that are not for pipelines of Diffusers."""
    name = type(pipeline).__name__
    if vocoder is not None:
        raise ArgumentError("vocoder", f"{name} takes none", hint="only SpeechT5 does")
    if attentions:
        raise ArgumentError("attentions", f"{name} returns none", hint="leave it out")
    if layout != "optimum":
        raise ArgumentError("layout", f'expected "optimum" for a pipeline of Diffusers, got {layout!r}')
    if len(variants) > 1:
        raise ArgumentError("dtype", "expected one for a pipeline of Diffusers, whose files have fixed names")


def _genai_precision(variants: Sequence[Variant]) -> Any:
    """The precision of ``fxonnx.genai.export``, which has further options."""
    names = ", ".join(variant.name for variant in variants)
    if names not in _GENAI_PRECISIONS:
        expected = ", ".join(_GENAI_PRECISIONS)
        raise ArgumentError("dtype", f'with layout="genai", expected one of {expected}, got {names}')
    return _GENAI_PRECISIONS[names]


@dataclass(frozen=True)
class _Writer:
    """Exports components to the files of a layout.

    Attributes:
        limits: By file, the sizes that it does not accept.
    """

    layout: Layout
    opset_version: int | None
    target: Target | None
    verify: bool
    announce: Callable[[str], None]
    limits: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def write(
        self,
        component: Component,
        path: Path,
        place: tuple[str, int, int],
        variant: Variant,
        weights: Path | None = None,
        reference: Component | None = None,
    ) -> list[FileCheck]:
        """Write a component to a file, at a place among all files, and compare it with itself or a reference."""
        name, position, count = place
        shown = f"{name} ({position + 1} of {count})"
        self.announce(f"export {shown}")
        program = _export_component(component, variant, (self.opset_version, self.target))
        self.limits[name] = tuple(each.text for each in program.record.constraints if each.narrows)
        self.announce(f"save {shown}")
        program.save(path, weights=weights)
        if self.layout == "transformers.js":
            split_external_data(path)
        if not self.verify:
            return []
        self.announce(f"verify {shown}")
        return compare_component(reference or component, program, _session(path, variant), variant, name)

    def result(self, staging: Path, out: Path, task: str, checks: Sequence[FileCheck]) -> ExportedModel:
        """The result of an export, before its files are moved."""
        raise_on_failure(checks)
        written = tuple(out / path.relative_to(staging) for path in sorted(staging.rglob("*.onnx")))
        return ExportedModel(out, task, written, tuple(checks), self.limits)


def _export_variants(source: Source, staging: Path, variants: Sequence[Variant], writer: _Writer) -> list[FileCheck]:
    """Write the files of a model in each of the element types."""
    folder = staging / _FOLDERS[writer.layout]
    folder.mkdir(exist_ok=True)
    checks: list[FileCheck] = []
    weights = None if has_weights(source.model) else source.directory
    for number, variant in enumerate(variants):
        suffix = "" if writer.layout == "optimum" and len(variants) == 1 else variant.suffix
        served = replace(source, model=in_dtype(source.model, variant.dtype))
        variant = variant.for_inputs(importance_of(served) if variant.searches else {})
        components = components_of(served)
        generates = writer.verify and any(component.generates for component in components)
        tokens = generated_tokens(served) if generates else None
        for position, component in enumerate(components):
            path = folder / f"{component.name}{suffix}.onnx"
            place = path.name, number * len(components) + position, len(variants) * len(components)
            checks += writer.write(component, path, place, variant, weights)
        if tokens is not None:
            loaded = load(staging, file=suffix, session_options=_session_options(variant))
            checks.append(compare_generation(served, tokens, loaded, variant))
    return checks


def _export_pipeline(pipeline: Any, staging: Path, variant: Variant, writer: _Writer) -> list[FileCheck]:
    """Write the files of a pipeline of Diffusers."""
    write_pipeline(pipeline, staging)
    merged = components_of_pipeline(prepared_pipeline(pipeline, variant.dtype, merges_adapters=True))
    references = merged
    if writer.verify and has_adapters(pipeline):  # the comparison is with the pipeline's own modules
        references = components_of_pipeline(prepared_pipeline(pipeline, variant.dtype, merges_adapters=False))
    checks: list[FileCheck] = []
    for position, (component, reference) in enumerate(zip(merged, references, strict=True)):
        name = f"{component.name}/model.onnx"
        place = name, position, len(merged)
        checks += writer.write(component, staging / name, place, variant, reference=reference)
    if writer.verify:
        writer.announce("verify image")
        original = prepared_pipeline(pipeline, torch.float32, merges_adapters=False)
        loaded = load(staging, session_options=_session_options(variant))
        checks += filter(None, [compare_images(original, loaded, variant)])
    return checks


def _loaded_gguf(model: Any, processor: Any) -> tuple[Any, Any]:
    """The model and the tokenizer of a GGUF file; of anything else, the arguments."""
    path = find_gguf(Path(model)) if isinstance(model, (str, os.PathLike)) else None
    if path is None:
        return model, processor
    loaded, tokenizer = load_gguf(path)
    return loaded, tokenizer if processor is None else processor


def _export_component(component: Component, variant: Variant, runtime: tuple[int | None, Target | None]) -> Any:
    opset_version, target = runtime
    inputs = component.inputs(Sizes())
    with padding_any_size(component.model), ignoring_warnings("the model cannot be exported for all requested sizes"):
        program = export_model(
            component.model,
            kwargs=inputs,
            input_names=[name for key, value in inputs.items() for name, _ in flatten(key, value)],
            dynamic_shapes=component.dynamic_shapes,
            custom_translation_table=component.translations or None,
            opset_version=opset_version,
            target=target,
            quantize=variant.quantize if component.has_products else None,
        )
    merge_branches(program.model)
    return program


def _session(path: Path, variant: Variant) -> Any:
    onnxruntime = import_extra("onnxruntime")
    return onnxruntime.InferenceSession(str(path), _session_options(variant), providers=["CPUExecutionProvider"])


def _session_options(variant: Variant) -> Any:
    """Options of the sessions that are compared: of weights that the model itself has as integers, in float."""
    options = import_extra("onnxruntime").SessionOptions()
    options.log_severity_level = 3
    if variant.quantize is None:
        options.add_session_config_entry(*UNROUNDED)
    return options


def _write_configuration(source: Source, directory: Path, *, has_own_processor: bool) -> None:
    """Write the configurations, and the files of the processors."""
    if source.directory is not None:
        skipped = {path for pattern in _NOT_COPIED for path in source.directory.glob(pattern)}
        for pattern in _COPIED:
            for path in set(source.directory.glob(pattern)) - skipped:
                shutil.copyfile(path, directory / path.name)
        for folder in ("1_Pooling", "2_Normalize", "2_Dense"):
            if (source.directory / folder).is_dir():
                shutil.copytree(source.directory / folder, directory / folder)
        _name_class(directory / "config.json", type(source.model).__name__)
    else:
        config = copy.deepcopy(source.model.config)
        config.architectures = [type(source.model).__name__]
        config.save_pretrained(directory)
        if source.model.can_generate():
            source.model.generation_config.to_json_file(directory / "generation_config.json")
    if source.directory is None or has_own_processor:
        for processor in source.processors:
            processor.save_pretrained(directory)


def _name_class(path: Path, name: str) -> None:
    """Write the class of the exported model into a copied configuration; the task may have chosen another one.

    The files have another quantization than the checkpoint.
    """
    config = json.loads(path.read_text(encoding="utf-8"))
    is_quantized = config.pop("quantization_config", None) is not None
    if is_quantized or config.get("architectures") != [name]:
        config["architectures"] = [name]
        path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _configure_transformers_js(directory: Path, variants: Sequence[Variant]) -> None:
    """Add to config.json what transformers.js reads: the chunks of external data, and the dtype to load."""
    path = directory / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    settings: dict[str, Any] = {}
    chunks = {file.name: len([*file.parent.glob(f"{file.name}_data*")]) for file in (directory / "onnx").glob("*.onnx")}
    if any(chunks.values()):
        settings["use_external_data_format"] = {name: count for name, count in sorted(chunks.items()) if count}
    names = [variant.name for variant in variants]
    if "q8" not in names:
        settings["dtype"] = names[0]  # on WebAssembly, q8 is the default
    if settings:
        config["transformers.js_config"] = settings
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
