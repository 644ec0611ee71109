"""Hostile and broken checkpoints: nothing that they name is executed or read, and each is one clear error."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import fxonnx
import fxonnx.genai
import fxonnx.huggingface
from fxonnx import ArgumentError
from fxonnx._cli.commands import app
from fxonnx._transformers.untrusted import check_checkpoint

from .genai.small_models import make_model, make_tokenizer
from .hostile_files import HOSTILE_MODULE, Bomb

Edit = Callable[[Path], Any]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a decoder with its tokenizer."""
    path = tmp_path_factory.mktemp("checkpoint") / "model"
    make_model("llama").save_pretrained(path)
    make_tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def checkpoint(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{HOSTILE_MODULE}.py").write_text("open('marker', 'w')\nclass X: pass\n")
    (tmp_path / "secret").write_text("secret")
    shutil.copy(original / "model.safetensors", tmp_path / "outside.safetensors")
    return Path(shutil.copytree(original, tmp_path / "model"))


def _settings(name: str, **changed: Any) -> Edit:
    """Change settings of a file; the value None removes one."""

    def edit(checkpoint: Path) -> None:
        path = checkpoint / name
        found = json.loads(path.read_text()) if path.exists() else {}
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found | changed))

    return edit


def _config(**changed: Any) -> Edit:
    return _settings("config.json", **changed)


def _text(name: str, text: str | bytes) -> Edit:
    return lambda checkpoint: (checkpoint / name).write_bytes(text.encode() if isinstance(text, str) else text)


def _link(name: str, target: str) -> Edit:
    def edit(checkpoint: Path) -> None:
        path = checkpoint / name
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(target)

    return edit


def _index(shard: str) -> Edit:
    def edit(checkpoint: Path) -> None:
        (checkpoint / "model.safetensors").unlink()
        weights = dict.fromkeys(load_file("outside.safetensors"), shard)
        (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))

    return edit


def _pickled(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))


def _torch_pickled(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    torch.save({"w": Bomb()}, checkpoint / "pytorch_model.bin")


_NAMED = r"names '{}' as {}: code or another repository, which is not loaded"
_REPOSITORY = "someone/repository"
_CODE: dict[str, tuple[Edit, str]] = {
    "attention": (_config(attn_implementation=_REPOSITORY), _NAMED.format(_REPOSITORY, "attn_implementation")),
    "attention-version": (_config(_attn_implementation="a/b@c:d"), _NAMED.format("a/b@c:d", "_attn_implementation")),
    "attention-internal": (
        _config(_attn_implementation_internal=_REPOSITORY),
        _NAMED.format(_REPOSITORY, "_attn_implementation_internal"),
    ),
    "attention-paged": (_config(attn_implementation="paged|a/b"), _NAMED.format(r"paged\|a/b", "attn_implementation")),
    "attention-parts": (_config(attn_implementation={"": "sdpa", "text_config": "a/b"}), r"names 'a/b' as attn_"),
    "attention-nested": (_config(text_config={"attn_implementation": "a/b"}), r"names 'a/b' as attn_implementation"),
    "attention-deep": (_config(x=[{"y": {"_attn_implementation": "a/b"}}]), r"names 'a/b' as _attn_implementation"),
    "attention-type": (_config(attn_implementation=["a/b"]), r"as attn_implementation"),
    "experts": (_config(experts_implementation="sonicmoe"), _NAMED.format("sonicmoe", "experts_implementation")),
    "experts-repository": (_config(_experts_implementation="a/b"), r"names 'a/b' as _experts_implementation"),
    "kernels": (_config(kernel_config={"kernel_mapping": {"RMSNorm": "a/b:c"}}), r"as kernel_config: code"),
    "backbone": (_config(backbone_config={"backbone": "a/b"}), _NAMED.format("a/b", "backbone")),
    "embedded-adapter": (
        _settings("adapter_config.json", peft_type="LORA", megatron_config={"a": 1}, megatron_core=HOSTILE_MODULE),
        r"as megatron_config: code",
    ),
    "own-class": (
        _config(model_type="own", auto_map={"AutoConfig": "a.B", "AutoModelForCausalLM": "a.C"}),
        r"(code of its own, which is not run|code in a checkpoint is run only with trust_remote_code=True)",
    ),
    "class-of-repository": (
        _config(model_type="own", auto_map={"AutoConfig": "a/b--c.D"}),
        r"(code of its own, which is not run|code in a checkpoint is run only with trust_remote_code=True)",
    ),
}
"""Settings that would execute code or load another repository."""

_OUTSIDE: dict[str, tuple[Edit, str]] = {
    "index": (_index("../outside.safetensors"), r"index.json names a file outside of its directory"),
    "index-absolute": (_index(os.path.abspath("/etc/passwd")), r"index.json names a file outside of its directory"),
    "index-null-byte": (_index("a\0b"), r"index.json names a file outside of its directory"),
    "weights": (_link("model.safetensors", "../outside.safetensors"), r"model.safetensors is a link out of the check"),
    "vocabulary": (_link("vocab.txt", "/etc/passwd"), r"vocab.txt is a link out of the checkpoint, to /etc/passwd"),
    "template": (_link("chat_template.jinja", "../secret"), r"chat_template.jinja is a link out of the checkpoint"),
    "configuration": (_link("config.json", "../model/../secret"), r"config.json is a link out of the checkpoint"),
    "directory": (_link("1_Pooling", ".."), r"1_Pooling is a link out of the checkpoint"),
    "in-subdirectory": (_link("sub/a.json", "../../secret"), r"a.json is a link out of the checkpoint"),
    "dangling": (_link("a.txt", "/nowhere/at/all"), r"a.txt is a link out of the checkpoint, to /nowhere/at/all"),
    "blobs-of-others": (_link("a.txt", "../blobs/x"), r"a.txt is a link out of the checkpoint"),
    "modules": (
        _text("modules.json", '[{"type": "a.Transformer", "path": ".."}]'),
        r"modules.json names a file outside of its directory",
    ),
    "tokenizer": (
        _settings("tokenizer_config.json", fast_tokenizer_files=["../tokenizer.1.0.json"]),
        r"tokenizer_config.json names a file outside of its directory",
    ),
}
"""Files outside of the checkpoint."""

_ANY = r"cannot be loaded: \w"
_BROKEN: dict[str, tuple[Edit, str]] = {
    "no-heads": (_config(num_attention_heads=0), _ANY),
    "no-key-heads": (_config(num_key_value_heads=0), _ANY),
    "negative-heads": (_config(num_attention_heads=-4, head_dim=None), _ANY),
    "negative-size": (_config(hidden_size=-64), _ANY),
    "negative-layers": (_config(num_hidden_layers=-1), r"config.json has num_hidden_layers = -1"),
    "list": (_config(hidden_size=[64]), _ANY),
    "text": (_config(hidden_size="64"), _ANY),
    "null": (_config(hidden_size=None), _ANY),
    "fraction": (_config(num_attention_heads=2.5), _ANY),
    "activation": (_config(hidden_act="__import__"), _ANY),
    "dtype": (_config(dtype="os.system"), r"."),
    "architectures": (_config(architectures=3), r"has architectures = 3, which is not a list of names"),
    "architectures-list": (_config(architectures=[{"a": 1}]), r"which is not a list of names"),
    "model-type": (_config(model_type=["llama"]), r"."),
    "rope": (_config(rope_parameters="a"), _ANY),
    "quantization": (_config(quantization_config=3), r"."),
    "quantization-method": (_config(quantization_config={"quant_method": "a"}), r"."),
    "deep": (_text("config.json", "[" * 100_000), r"is not a JSON file: it is nested too deeply"),
    "deep-tokenizer": (_text("tokenizer_config.json", "[" * 100_000), r"is not a JSON file: it is nested too deeply"),
    "deep-index": (_text("model.safetensors.index.json", "[" * 100_000), r"is not a JSON file: it is nested too deep"),
    "tokenizer-json": (_text("tokenizer.json", "{"), r"."),
    "tokenizer-deep": (_text("tokenizer.json", "[" * 100_000), r"."),
    "generation": (_text("generation_config.json", "[" * 100_000), r"."),
    "digits": (_text("config.json", '{"a": ' + "9" * 10_000 + "}"), r"is not a JSON file: Exceeds the limit"),
    "array": (_text("config.json", "[]"), r"config.json is not a JSON object of settings"),
    "no-json": (_text("config.json", b"\xff\xfe\0"), r"is not a JSON file"),
    "layers": (_config(num_hidden_layers=10**6), r"has num_hidden_layers = 1000000, which is more than 2048"),
    "layers-of-a-part": (_config(vision_config={"depths": [2, 10**6]}), r"has depths = 1000000, which is more than"),
    "experts": (_config(num_local_experts=10**6), r"has num_local_experts = 1000000, which is more than 4096"),
    "labels": (_config(num_labels=2**40), r"has num_labels = 1099511627776, which is more than 1048576"),
    "positions": (_config(max_position_embeddings=2**40), r"has max_position_embeddings = 1099511627776"),
    "vocabulary": (_config(vocab_size=2**40), r"describes a model of [\d,]+ parameters, and the files with its wei"),
    "width": (_config(intermediate_size=2**34), r"describes a model of [\d,]+ parameters, and the files with its wei"),
    "overflow": (_config(hidden_size=2**62), _ANY),
    "pickle": (_pickled, r"its weights are pickled with objects that could execute code"),
    "torch-pickle": (_torch_pickled, r"its weights are pickled with objects that could execute code"),
    "no-weights": (_text("model.safetensors", b""), r"."),
    "cut-weights": (_text("model.safetensors", b"\x10" + bytes(20)), r"."),
}
"""Configurations that describe no model, or one that is too large."""


def _commands(checkpoint: Path, verify: bool) -> dict[str, list[str]]:
    option = "--verify" if verify else "--no-verify"
    return {name: [name, str(checkpoint), "-o", f"out-{name}", option] for name in ("hf", "genai")}


@pytest.mark.parametrize("name", [*_CODE, *_OUTSIDE, *(f"broken-{name}" for name in _BROKEN)])
def test_hostile_checkpoints(name: str, checkpoint: Path) -> None:
    edit, expected = {**_CODE, **_OUTSIDE, **{f"broken-{key}": row for key, row in _BROKEN.items()}}[name]
    edit(checkpoint)
    for verify in (False, True):
        for command in _commands(checkpoint, verify).values():
            result = CliRunner().invoke(app, command)
            assert "--debug shows the traceback" not in result.output, result.output
            assert result.exit_code in ((1, 2) if expected != "." else (0, 1, 2))
            if result.exit_code:
                assert re.search(rf"error\[FX\d+\]: .*{expected}", result.output, re.DOTALL), result.output
                assert not Path(command[3]).exists()
            shutil.rmtree(command[3], ignore_errors=True)
    assert not Path("marker").exists()


ADAPTERS: dict[str, tuple[Edit, str]] = {
    "module": (_settings("adapter_config.json", megatron_config={"a": 1}, megatron_core=HOSTILE_MODULE), r"megatron_"),
    "link": (_link("adapter_model.safetensors", "../outside.safetensors"), r"is a link out of the checkpoint"),
    "rank": (_settings("adapter_config.json", r=2**40), r"has r = 1099511627776, which is more than 16384"),
    "type": (_settings("adapter_config.json", peft_type="a"), _ANY),
    "no-rank": (_settings("adapter_config.json", r=[1]), _ANY),
    "deep": (_text("adapter_config.json", "[" * 100_000), r"is not a JSON file: it is nested too deeply"),
    "pickle": (lambda path: (path / "adapter_model.bin").write_bytes(pickle.dumps(Bomb())), _ANY),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_hostile_adapters(name: str, checkpoint: Path) -> None:
    adapter = Path("adapter")
    adapter.mkdir()
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    (adapter / "adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": _REPOSITORY}))
    edit, expected = ADAPTERS[name]
    edit(adapter)
    with pytest.raises(ArgumentError, match=rf"adapters: .*{expected}"):
        fxonnx.genai.export(checkpoint, "out", adapters={"a": adapter}, verify=False)
    assert not Path("marker").exists()
    assert not Path("out").exists()


def _pipeline(**entries: Any) -> Edit:
    return _settings("model_index.json", _class_name="StableDiffusionPipeline", **entries)


PIPELINES: dict[str, tuple[Edit, str]] = {
    "module": (_pipeline(unet=[HOSTILE_MODULE, "X"]), rf"names '{HOSTILE_MODULE}' as unet"),
    "own-pipeline": (
        _settings("model_index.json", _class_name=["pipeline", "Own"]),
        r"names 'pipeline' as _class_name",
    ),
    "attention": (
        _settings("text_encoder/config.json", attn_implementation=_REPOSITORY),
        r"names 'someone/repository' as attn_implementation",
    ),
    "link": (_link("unet/config.json", "../../secret"), r"config.json is a link out of the checkpoint"),
    "deep": (_text("model_index.json", "[" * 100_000), r"is not a JSON file: it is nested too deeply"),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_hostile_pipelines(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path(f"{HOSTILE_MODULE}.py").write_text("open('marker', 'w')\nclass X: pass\n")
    Path("secret").write_text("{}")
    pipeline = Path("pipeline")
    pipeline.mkdir()
    _pipeline()(pipeline)
    edit, expected = PIPELINES[name]
    edit(pipeline)
    for call in (lambda: fxonnx.huggingface.export(pipeline, "out"), lambda: fxonnx.huggingface.load(pipeline)):
        with pytest.raises(ArgumentError, match=expected):
            call()
    assert not Path("marker").exists()


def test_exported_directories_and_vocoders(checkpoint: Path) -> None:
    _config(attn_implementation=_REPOSITORY)(checkpoint)
    with pytest.raises(ArgumentError, match=r"directory: .*names 'someone/repository' as attn_implementation"):
        fxonnx.huggingface.load(checkpoint)
    from fxonnx._transformers.families.sound import load_vocoder

    with pytest.raises(ArgumentError, match=r"vocoder: .*names 'someone/repository' as attn_implementation"):
        load_vocoder(checkpoint)


@pytest.mark.parametrize("name", ["index", "weights", "vocabulary"])
def test_weights_for_meta_models(name: str, checkpoint: Path) -> None:
    _OUTSIDE[name][0](checkpoint)
    program = fxonnx.export(torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),))
    places = [checkpoint, *checkpoint.glob("*.index.json")]
    for weights in places:
        with pytest.raises(ArgumentError, match=rf"weights: .*{_OUTSIDE[name][1]}"):
            program.save("m.onnx", weights=weights)


def _in_cache(original: Path, folder: Path) -> Path:
    """The checkpoint as a snapshot in the cache of the Hub, whose files are links to blobs."""
    snapshot, blobs = folder / "models--a--b" / "snapshots" / "0123", folder / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(original.iterdir())):
        shutil.copy(path, blobs / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    return snapshot


def test_ordinary_checkpoints(original: Path, tmp_path: Path) -> None:
    """Links in the cache of the Hub and in the directory, shards, and settings with the names of known classes."""
    snapshot = _in_cache(original, tmp_path)
    (snapshot / "again.json").symlink_to("config.json")
    (snapshot / "README.md").symlink_to("../../blobs/nothing")
    settings = json.loads((original / "config.json").read_text())
    settings |= {"attn_implementation": "eager", "auto_map": {"AutoModelForCausalLM": "a.B"}, "_name_or_path": "a/b"}
    tensors = load_file(original / "model.safetensors")
    (snapshot / "model.safetensors").unlink()
    shards: dict[str, dict[str, torch.Tensor]] = {"one.safetensors": {}, "two.safetensors": {}}
    for number, (name, tensor) in enumerate(tensors.items()):
        shards[[*shards][number % 2]][name] = tensor
    for shard, part in shards.items():
        save_file(part, snapshot / shard, {"format": "pt"})
    weights: Mapping[str, str] = {name: shard for shard, part in shards.items() for name in part}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").write_text(json.dumps(settings))
    check_checkpoint(snapshot)
    exported = fxonnx.huggingface.export(snapshot, tmp_path / "hf")
    assert exported.checks
    fxonnx.genai.export(snapshot, tmp_path / "genai", verify=False)
    program = fxonnx.export(make_model("llama").eval(), kwargs={"input_ids": torch.ones(1, 4, dtype=torch.int64)})
    program.save(tmp_path / "m.onnx", weights=snapshot / "model.safetensors.index.json")
    program.save(tmp_path / "m.onnx", weights=snapshot)


def test_trusted_configurations(checkpoint: Path) -> None:
    _config(attn_implementation=_REPOSITORY)(checkpoint)
    check_checkpoint(checkpoint, trust_remote_code=True)
    _link("vocab.txt", "/etc/passwd")(checkpoint)
    with pytest.raises(ArgumentError, match=r"is a link out of the checkpoint"):
        check_checkpoint(checkpoint, trust_remote_code=True)
