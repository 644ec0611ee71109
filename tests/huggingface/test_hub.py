"""Models on the Hub, from a server of our own, in processes that have imported nothing before."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fxonnx.huggingface
from tests.genai.small_models import generated, generated_by_transformers, make_tokenizer, prompt
from tests.genai.small_models import make_model as make_language_model

from .hub_server import Hub, Repository, serving
from .small_models import main_task, make_model

_ROOT = Path(__file__).parents[2]
_TORCHVISION = "from tests.models.torchvision_shim import import_torchvision; import_torchvision()"
_SMALL_PARTS = "from huggingface_hub import constants; constants.DOWNLOAD_CHUNK_SIZE = 256"
_CALLS = """
import json, sys
import fxonnx.genai, fxonnx.huggingface
for name, options, out in json.load(sys.stdin):
    for export in (fxonnx.huggingface.export, fxonnx.genai.export):
        try:
            export(name, out, **options)
        except fxonnx.ExportError as error:
            print(json.dumps(str(error)))
        else:
            print(json.dumps("exported"))
"""
"""Each call by both packages; the errors are printed."""


@pytest.fixture(scope="module")
def branches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A language model in parts, beside all that repositories have for other programs; another one in a branch."""
    root = tmp_path_factory.mktemp("branches")
    main, other = root / "main", root / "v2"
    make_language_model("llama").save_pretrained(main, max_shard_size="60KB")
    make_tokenizer().save_pretrained(main)
    shutil.copytree(main, other, ignore=lambda _folder, names: [name for name in names if "model" in name])
    changed = make_language_model("llama")
    with torch.no_grad():
        changed.lm_head.weight.neg_()
    changed.save_pretrained(other)
    unneeded = ("pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "consolidated.safetensors", "model.gguf")
    for name in (*unneeded, "onnx/model.onnx", "onnx/config.json", "original/a.safetensors", "code.py", "README.md"):
        for branch in (main, other):
            (branch / name).parent.mkdir(exist_ok=True)
            (branch / name).write_bytes(b"raise SystemExit('was run')")
    return {"main": main, "v2": other}


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of sentence-transformers, whose modules are in folders."""
    directory = tmp_path_factory.mktemp("embedding")
    make_model("bert", main_task("bert")).base_model.save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)
    modules = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    entries = [{"path": path, "type": f"sentence_transformers.models.{name}"} for path, name in modules]
    (directory / "modules.json").write_text(json.dumps(entries))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    (directory / "openvino").mkdir()
    (directory / "openvino" / "config.json").write_text("{}")
    return directory


@pytest.fixture
def hub(branches: dict[str, Path], embedding: Path, tmp_path: Path) -> Iterator[Hub]:
    code = tmp_path / "code"
    code.mkdir()
    settings = {"model_type": "mine", "auto_map": {"AutoConfig": "configuration_mine.MineConfig"}}
    (code / "config.json").write_text(json.dumps(settings))
    (code / "configuration_mine.py").write_text("raise SystemExit('was run')")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "model.gguf").write_bytes(b"GGUF")
    repositories = {
        "org/model": Repository(branches),
        "plain": Repository(branches),
        "org/private": Repository(branches, token="hf_mine"),
        "org/gated": Repository(branches, accepted=("hf_mine",)),
        "org/embedding": Repository({"main": embedding}),
        "org/code": Repository({"main": code}),
        "org/gguf": Repository({"main": tmp_path / "empty"}),
    }
    with serving(repositories) as found:
        yield found


def run(arguments: list[str], hub: Hub, home: Path, stdin: str = "", **environment: str) -> Any:
    """Run Python in a new process with a cache of its own."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    own |= {"HF_HOME": str(home), "HF_ENDPOINT": hub.endpoint, "NO_COLOR": "1", "COLUMNS": "500", **environment}
    command = [sys.executable, "-c", f"{_TORCHVISION}\n{arguments[0]}", *arguments[1:]]
    return subprocess.run(command, cwd=_ROOT, env=own, input=stdin, capture_output=True, text=True, check=False)


def command(name: str, *arguments: str) -> list[str]:
    return ["from fxonnx._cli.main import main; main()", name, *arguments]


def calls(rows: list[Any], hub: Hub, home: Path, **environment: str) -> list[str]:
    done = run([_CALLS], hub, home, json.dumps(rows), **environment)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


SMALL = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}


def test_hf(hub: Hub, branches: dict[str, Path], tmp_path: Path) -> None:
    """Of a branch with one file of weights, by a token, through a connection that breaks."""
    hub.cut.add("model.safetensors")
    options = ["--revision", "v2", "--token", "hf_mine", "--json", "--no-verify"]
    done = run(command("hf", "org/gated", "-o", str(tmp_path / "out"), *options), hub, tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["task"] == "text-generation"
    ids = prompt(5)
    changed = make_language_model("llama")
    with torch.no_grad():
        changed.lm_head.weight.neg_()
        expected = changed(ids).logits
    found = fxonnx.huggingface.load(tmp_path / "out")(input_ids=ids).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    weights = [name for name in hub.fetched if name.endswith(".safetensors")]
    assert weights == ["model.safetensors"] * 2
    assert {*hub.fetched} == SMALL | {"model.safetensors"}


@pytest.mark.nightly
def test_genai_without_a_connection_afterwards(hub: Hub, branches: dict[str, Path], tmp_path: Path) -> None:
    """A download that fails is continued by the next call; after it, the cache is enough."""
    shards = sorted(path.name for path in branches["main"].glob("model-*.safetensors"))
    assert len(shards) > 1
    hub.failing.add(shards[-1])
    arguments = command("genai", "org/model", "-o", str(tmp_path / "out"), "--no-chat-template", "--no-verify")
    done = run(arguments, hub, tmp_path)
    assert done.returncode == 2
    assert re.search(r"model: the download of org/model has failed: .*503.*\n.*hint: run it again: files", done.stderr)
    offline = run(arguments, hub, tmp_path, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set\nhint: on a machine with network access, run: hf download org/model" in offline.stderr
    hub.failing.clear()
    done = run(arguments, hub, tmp_path)
    assert done.returncode == 0, done.stderr
    index = "model.safetensors.index.json"
    assert sorted(hub.fetched) == sorted([*SMALL, index, *shards])
    assert generated(tmp_path / "out", prompt(3)) == generated_by_transformers(make_language_model("llama"), prompt(3))
    hub.requests.clear()
    shutil.rmtree(tmp_path / "out")
    done = run(arguments, hub, tmp_path, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert not hub.requests
    assert (tmp_path / "out" / "model.onnx").is_file()


@pytest.mark.nightly
def test_modules_in_folders(hub: Hub, embedding: Path, tmp_path: Path) -> None:
    hub.cut.add("model.safetensors")
    code, *arguments = command("genai", "org/embedding", "-o", str(tmp_path / "out"))
    done = run([f"{_SMALL_PARTS}\n{code}", *arguments], hub, tmp_path)
    assert done.returncode == 0, done.stderr
    parts = [each for method, path, each in hub.requests if method == "GET" and path.endswith("model.safetensors")]
    assert re.fullmatch(r"bytes=[1-9]\d*-.*", parts[-1])  # the second one continues
    assert {"1_Pooling/config.json", "modules.json", "model.safetensors"} <= {*hub.fetched}
    assert "openvino/config.json" not in hub.fetched


def test_failures(hub: Hub, tmp_path: Path) -> None:
    """Each has one error, the same in both packages."""
    missing = r"is neither a directory nor a model on the Hub that is public or yours"
    commit = "0" * 40
    rows: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("org/gated", {}, "model: access to org/gated on the Hub is restricted\nhint: accept its conditions on http"),
        ("org/gated", {"token": "hf_other"}, "access to org/gated on the Hub is restricted"),
        ("org/private", {}, f"model: org/private {missing}\nhint: check the name; for a private model, run: hf auth"),
        ("org/private", {"token": "hf_unknown"}, "token: the Hub does not know it\nhint: run: hf auth login"),
        ("org/missing", {"token": "hf_mine"}, f"model: org/missing {missing}"),
        ("plain", {"revision": "v3"}, "revision: plain on the Hub has no branch, tag or commit 'v3'\nhint: leave it"),
        ("org/model", {"revision": commit}, f"revision: org/model on the Hub has no branch, tag or commit '{commit}'"),
        ("org/gguf", {}, "model: org/gguf on the Hub has no config.json: it is not a model of transformers\nhint:"),
        ("org/code", {}, "cannot be loaded: "),
    )
    found = calls([[name, options, str(tmp_path / "out")] for name, options, _ in rows], hub, tmp_path)
    for position, (name, _, expected) in enumerate(rows):
        for text in found[2 * position : 2 * position + 2]:
            assert expected in text or (name == "org/code" and "code of its own, which is not run" in text), text
    assert not [name for name in hub.fetched if name.endswith((".py", ".safetensors", ".bin"))]
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
def test_the_next_steps(hub: Hub, tmp_path: Path) -> None:
    """Each hint of a refusal, and the call that follows it."""
    mine = {"token": "hf_mine"}
    rows: tuple[tuple[str, dict[str, Any], str, str, dict[str, Any]], ...] = (
        ("org/gguf", {}, "pass the id of the model in the format of transformers", "org/model", {}),
        ("org/gated", {}, "accept its conditions on http", "org/gated", mine),
        ("plain", {"revision": "v3"}, "leave it out for the branch main", "plain", {}),
        ("org/private", {"token": "hf_unknown"}, "run: hf auth login", "org/private", mine),
        ("org/private", {}, "check the name; for a private model, run: hf auth login", "org/private", mine),
    )
    found = calls([[name, options, str(tmp_path / "out")] for name, options, *_ in rows], hub, tmp_path)
    for position, (_, _, hint, _, _) in enumerate(rows):
        assert all(f"hint: {hint}" in text for text in found[2 * position : 2 * position + 2])
    again = [
        [name, {**options, "verify": False}, str(tmp_path / str(index))]
        for index, (*_, name, options) in enumerate(rows)
    ]
    assert {*calls(again, hub, tmp_path)} == {"exported"}


@pytest.mark.nightly
def test_without_a_connection(hub: Hub, tmp_path: Path) -> None:
    rows = [["org/model", {}, str(tmp_path / "out")]]
    expected = (
        "org/model is neither a directory nor complete in the cache of huggingface_hub, and it cannot be downloaded"
    )
    refused = calls(rows, hub, tmp_path, HF_ENDPOINT="http://127.0.0.1:9")
    offline = calls(rows, hub, tmp_path, HF_HUB_OFFLINE="1")
    assert [text for text in (*refused, *offline) if expected not in text] == []
    assert [text for text in offline if "HF_HUB_OFFLINE is set\nhint: on a machine with network" not in text] == []
    assert not hub.requests
