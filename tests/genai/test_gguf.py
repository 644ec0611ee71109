"""Models in GGUF files: the logits of the file's own integers, and one error for files that cannot be read."""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import fxonnx.genai
import fxonnx.huggingface
from fxonnx import ArgumentError

from .gguf_files import header, setting, tensor, text, write_model
from .small_models import make_tokenizer

pytest.importorskip("onnxruntime_genai")
pytest.importorskip("gguf")

TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
MIXED = {"v_proj": "Q6_K", "k_proj": "Q5_0", "embed_tokens": "Q6_K", "lm_head": "Q8_0", "": "Q4_K"}
"""Types that the graph joins in one product; the embedding is not tied."""
NO_TYPES: Mapping[str, str] = {}


def logits(path: Path, ids: torch.Tensor) -> torch.Tensor:
    """The logits of a file, whose products do not round activations."""
    model = onnx.load(path)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 1
    session = onnxruntime.InferenceSession(model.SerializeToString())
    feeds: dict[str, Any] = {"input_ids": ids.numpy(), "attention_mask": np.ones(ids.shape, np.int64)}
    for value in session.get_inputs():
        if value.name.startswith("past"):
            feeds[value.name] = np.zeros((len(ids), value.shape[1], 0, value.shape[3]), np.float32)
        elif value.name == "position_ids":
            feeds[value.name] = np.arange(ids.shape[1])[None].repeat(len(ids), 0)
    return torch.from_numpy(session.run(["logits"], feeds)[0])


def check(path: Path, out: Path, model: Any, **options: Any) -> onnx.ModelProto:
    """Export a file, and compare the logits at two sizes with the model's that it represents."""
    fxonnx.genai.export(path, out, last_logits=False, **{"verify": False, **options})
    for batch, length in ((1, 7), (2, 3)):
        ids = torch.randint(3, 290, (batch, length), generator=torch.Generator().manual_seed(length))
        with torch.no_grad():
            expected = model(input_ids=ids).logits
        torch.testing.assert_close(logits(out / "model.onnx", ids), expected, rtol=1e-3, atol=2e-4)
    return onnx.load(out / "model.onnx")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", TYPES)
def test_types(kind: str, tied: bool, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.gguf", {"": kind}, tie_word_embeddings=tied)
    exported = check(tmp_path / "model.gguf", tmp_path / "out", model)
    counts = {op: sum(node.op_type == op for node in exported.graph.node) for op in ("MatMulNBits", "MatMul")}
    has_offsets = kind.endswith(("_1", "4_K", "5_K"))
    assert counts == {"MatMulNBits": 6, "MatMul": 6 if has_offsets else 0}


def test_types_in_one_product(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.gguf", MIXED, tie_word_embeddings=False)
    check(tmp_path / "model.gguf", tmp_path / "out", model)


def test_other_weights_stay_floating_point(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.gguf", {"mlp.down_proj": "Q4_0"})
    exported = check(tmp_path / "model.gguf", tmp_path / "out", model)
    assert sum(node.op_type == "MatMulNBits" for node in exported.graph.node) == 1


def rotary(base: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": base}


ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    "llama": {"rope_parameters": rotary(5e5), "rms_norm_eps": 0.1},
    "qwen2": {"rope_parameters": rotary(1e6), "rms_norm_eps": 0.1},
    "qwen3": {"rope_parameters": rotary(2e6), "head_dim": 32},
    "phi3": {"rope_parameters": rotary(2e4), "sliding_window": 4},
    "gemma2": {"sliding_window": 4, "query_pre_attn_scalar": 64, "final_logit_softcapping": 2.0},
    "gemma3": {
        **{"sliding_window": 4, "query_pre_attn_scalar": 64},
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 2e6, "factor": 8.0},
            "sliding_attention": rotary(1e4),
        },
    },
}
SCALED = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
FURTHER: Mapping[str, Mapping[str, Any]] = {"gemma2": {"final_logit_softcapping": 2.0}, "gemma3": SCALED}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_architectures(architecture: str, tmp_path: Path) -> None:
    model = write_model(
        tmp_path / "model.gguf",
        {"": "Q4_0"},
        architecture=architecture,
        settings=FURTHER.get(architecture, {}),
        **{"num_hidden_layers": 6 if architecture == "gemma3" else 2, **ARCHITECTURES[architecture]},
    )
    check(tmp_path / "model.gguf", tmp_path / "out", model)


def test_frequencies_are_divided_by_factors(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 32, dtype=np.float32)
    model = write_model(tmp_path / "model.gguf", {"": "Q8_0"}, factors=factors)
    check(tmp_path / "model.gguf", tmp_path / "out", model)


def test_positions_are_scaled_linearly(tmp_path: Path) -> None:
    scaled = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    settings = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    model = write_model(tmp_path / "model.gguf", {"": "Q8_0"}, settings=settings, rope_parameters=scaled)
    check(tmp_path / "model.gguf", tmp_path / "out", model)


def test_verified_from_a_directory_with_the_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    write_model(tmp_path / "model" / "any.gguf", {"embed_tokens": "Q6_K", "": "Q4_1"})
    fxonnx.genai.export(tmp_path / "model", tmp_path / "out")
    import onnxruntime_genai
    from transformers import AutoTokenizer

    expected = make_tokenizer()
    found = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = onnxruntime_genai.Tokenizer(onnxruntime_genai.Model(str(tmp_path / "out")))
    words = "the quick brown fox, 12 dogs"
    assert found(words).input_ids == expected(words).input_ids == [*model.encode(words)]
    chat = [{"role": "user", "content": "a language"}]
    assert found.apply_chat_template(chat, tokenize=False) == "<s>a language</s>"


def test_other_quantizations_round_the_weights(tmp_path: Path) -> None:
    write_model(tmp_path / "model.gguf", {"": "Q4_1"})
    for verify in (True, False):
        fxonnx.genai.export(tmp_path / "model.gguf", tmp_path / "out", quantize="int8", verify=verify)
        exported = onnx.load(tmp_path / "out" / "model.onnx")
        bits = {a.i for node in exported.graph.node for a in node.attribute if a.name == "bits"}
        assert bits == {8}


HOSTILE: Mapping[str, tuple[bytes, str]] = {
    "empty": (b"", "cannot mmap an empty file"),
    "magic": (b"GGML" + bytes(40), "does not begin with the letters GGUF"),
    "truncated": (header()[:10], "ends before"),
    "version": (header(version=1), "version 1, 2 and 3"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "tensors": (header(tensors=2**40), "1099511627776 tensors"),
    "settings": (header(count=2**63), "9223372036854775808 settings"),
    "key": (header(text("k", 2**20)), "a name of 1048576 bytes"),
    "string": (header(text("k") + struct.pack("<I", 8) + text("v", 2**62)), "ends before"),
    "array": (header(text("k") + struct.pack("<IIQ", 9, 4, 2**62)), "ends before"),
    "strings": (header(text("k") + struct.pack("<IIQ", 9, 8, 2**60)), "ends before"),
    "nested": (header(text("k") + struct.pack("<IIQ", 9, 9, 1)), "array of the unknown type 9"),
    "type of value": (header(text("k") + struct.pack("<I", 77)), "unknown type 77"),
    "text": (header(struct.pack("<Q", 1) + b"\xff"), "codec can't decode"),
    "twice": (header(setting("a", 1), setting("a", 2)), "has a twice"),
    "alignment": (header(setting("general.alignment", 3)), "alignment is 3"),
    "axes": (header(tensor("t", (1,) * 5), tensors=1, count=0), "t has 5 axes"),
    "outside": (header(tensor("t", (64,), 0, 2**50), tensors=1, count=0) + bytes(999), "outside of the file"),
    "large": (header(tensor("t", (2**40, 2**40)), tensors=1, count=0), "outside of the file"),
    "zero": (header(tensor("t", (0, 4)), tensors=1, count=0), r"shape \[4, 0\]"),
    "blocks": (header(tensor("t", (33,), 2), tensors=1, count=0) + bytes(999), r"shape \[33\], in blocks of 32"),
    "IQ2_XXS": (header(tensor("t", (256,), 16), tensors=1, count=0), "type IQ2_XXS, which is not supported"),
    "TQ1_0": (header(tensor("t", (256,), 34), tensors=1, count=0), "type TQ1_0, which is not supported"),
    "type": (header(tensor("t", (256,), 99), tensors=1, count=0), "type number 99, which is not supported"),
    "tensor twice": (header(*[tensor("t", (1,))] * 2, tensors=2, count=0) + bytes(99), "tensor t twice"),
    "architecture": (header(setting("general.architecture", "mamba9")), "of the architecture 'mamba9'"),
    "no architecture": (header(), "of the architecture None"),
    "no embedding": (header(setting("general.architecture", "llama")), "no matrix token_embd.weight"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_files_that_cannot_be_read(case: str, tmp_path: Path) -> None:
    content, message = HOSTILE[case]
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(ArgumentError, match=message):
        fxonnx.genai.export(tmp_path / "model.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_parts_of_a_model(tmp_path: Path) -> None:
    content = header(setting("general.architecture", "llama"), setting("split.count", 3))
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(ArgumentError, match="one of 3 parts"):
        fxonnx.genai.export(tmp_path / "model.gguf", tmp_path / "out")
    (tmp_path / "other.gguf").write_bytes(content)
    with pytest.raises(ArgumentError, match="several GGUF files: model"):
        fxonnx.genai.export(tmp_path, tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"settings": {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}}, "scales positions in the way 'yarn'"),
        ({"factors": np.ones(7, np.float32)}, "factors for the frequencies of another model"),
    ],
)
def test_models_that_transformers_does_not_read(options: Any, message: str, tmp_path: Path) -> None:
    if "factors" in options:
        import tests.genai.gguf_files as files

        write_broken(tmp_path / "model.gguf", files)
    else:
        write_model(tmp_path / "model.gguf", {"": "Q8_0"}, **options)
    with pytest.raises(ArgumentError, match=message):
        fxonnx.genai.export(tmp_path / "model.gguf", tmp_path / "out", verify=False)


def write_broken(path: Path, files: Any) -> None:
    """A file whose factors have another length."""
    factors = np.ones(32, np.float32)
    files.write_model(path, {"": "Q8_0"}, factors=factors)
    content = path.read_bytes()
    entry = files.text("rope_freqs.weight") + struct.pack("<IQ", 1, 32)
    assert content.count(entry) == 1
    path.write_bytes(content.replace(entry, files.text("rope_freqs.weight") + struct.pack("<IQ", 1, 7)))


def test_tensors_and_settings_of_other_models(tmp_path: Path) -> None:
    write_model(tmp_path / "model.gguf", {"": "Q8_0"}, settings={"expert_weights_scale": 2.0})
    with pytest.warns(UserWarning, match="settings that transformers does not read: llama.expert_weights_scale"):
        fxonnx.genai.export(tmp_path / "model.gguf", tmp_path / "out", verify=False)
    content = (tmp_path / "model.gguf").read_bytes()
    (tmp_path / "model.gguf").write_bytes(content.replace(b"blk.0.ffn_down.weight", b"blk.0.ffn_dawn.weight"))
    with pytest.raises(ArgumentError, match=r"tensors that transformers does not use: blk\.0\.ffn_dawn\.weight"):
        fxonnx.genai.export(tmp_path / "model.gguf", tmp_path / "out")
    (tmp_path / "model.gguf").write_bytes(content.replace(b"blk.0.ffn_down.weight", b"blk.0.ffn_gate.weigh2"))
    with pytest.raises(ArgumentError, match="tensors that transformers does not use"):
        fxonnx.genai.export(tmp_path / "model.gguf", tmp_path / "out")


def test_scales_that_are_not_finite(tmp_path: Path) -> None:
    write_model(tmp_path / "model.gguf", {"": "Q8_0"})
    content = bytearray((tmp_path / "model.gguf").read_bytes())
    content[-34 * 8 * 256 :] = bytes([0, 0x7C]) * (34 * 4 * 256)
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(fxonnx.ExportError, match="not finite"):
        fxonnx.genai.export(tmp_path / "model.gguf", tmp_path / "out", verify=False)


def test_heads_of_other_sizes(tmp_path: Path) -> None:
    write_model(tmp_path / "model.gguf", {"": "Q8_0"})
    content = (tmp_path / "model.gguf").read_bytes()
    entry = text("llama.rope.dimension_count") + struct.pack("<I", 4)
    assert content.count(entry) == 1
    (tmp_path / "model.gguf").write_bytes(content.replace(entry + struct.pack("<I", 64), entry + struct.pack("<I", 48)))
    with pytest.raises(ArgumentError, match="dimension_count 48, but heads of 64"):
        fxonnx.genai.export(tmp_path / "model.gguf", tmp_path / "out")
    entry = text("llama.rope.freq_base") + struct.pack("<I", 6)
    assert content.count(entry) == 1


def test_no_base_of_the_frequencies(tmp_path: Path) -> None:
    write_model(tmp_path / "model.gguf", {"": "Q8_0"}, architecture="gemma3")
    content = (tmp_path / "model.gguf").read_bytes()
    (tmp_path / "model.gguf").write_bytes(content.replace(b"rope.freq_base", b"rope.freq_bass"))
    with pytest.raises(ArgumentError, match=r"has no gemma3\.rope\.freq_base"):
        fxonnx.genai.export(tmp_path / "model.gguf", tmp_path / "out")


def test_accuracy_level(tmp_path: Path) -> None:
    write_model(tmp_path / "model.gguf", {"v_proj": "Q8_0", "": "Q4_1"})
    fxonnx.genai.export(tmp_path / "model.gguf", tmp_path / "out", accuracy_level=1, verify=False)
    exported = onnx.load(tmp_path / "out" / "model.onnx")
    levels = {
        (values["bits"], values["accuracy_level"])
        for node in exported.graph.node
        if node.op_type == "MatMulNBits"
        for values in [{a.name: a.i for a in node.attribute}]
    }
    assert levels == {(8, 4), (4, 1)}
    for options, message in (
        ({"precision": "int4", "accuracy_level": 7}, "expected a number from 0 to 4, got 7"),
        ({"precision": "fp16", "quantize": None, "accuracy_level": 1}, "the weights of the model are not quantized"),
    ):
        model = write_model(tmp_path / "other.gguf")
        with pytest.raises(ArgumentError, match=message):
            fxonnx.genai.export(model, tmp_path / "no", tokenizer=make_tokenizer(), verify=False, **options)


def test_transformers_layout(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 32, dtype=np.float32)
    model = write_model(tmp_path / "model.gguf", {"": "Q4_K"}, factors=factors)
    fxonnx.huggingface.export(tmp_path / "model.gguf", tmp_path / "out", verify=False)
    ids = torch.arange(3, 10)[None]
    with torch.no_grad():
        expected = model(input_ids=ids).logits
    torch.testing.assert_close(logits(tmp_path / "out" / "model.onnx", ids), expected, rtol=1e-3, atol=2e-4)
    assert {"tokenizer.json", "config.json"} <= {path.name for path in (tmp_path / "out").iterdir()}
    fxonnx.huggingface.export(str(tmp_path / "model.gguf"), tmp_path / "genai", layout="genai", verify=False)
    assert (tmp_path / "genai" / "genai_config.json").is_file()


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").write_bytes(header())
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(fxonnx.ExportError, match=r"module gguf is not installed\nhint: .*fxonnx\[gguf\]"):
        fxonnx.genai.export(tmp_path / "model.gguf", tmp_path / "out")
