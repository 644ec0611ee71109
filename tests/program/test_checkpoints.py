"""Weights from checkpoints: models without values, safetensors files, external references."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import fxonnx
from fxonnx import REFERENCE, ArgumentError, SaveError


class Network(nn.Module):
    """Weights used directly, transposed, folded and tied, and a buffer that no checkpoint has."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 16)
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm1d(16)
        self.inner = nn.Linear(16, 16)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("positions", torch.linspace(0, 1, 128)[:, None] * torch.ones(16), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = torch.tensor([1.0, 2.0]).repeat(8)
        x = self.table(ids) + self.positions[: ids.shape[1]] * mask
        x = self.norm(self.conv(x.transpose(1, 2))).transpose(1, 2)
        return self.head(self.inner(x))


IDS = torch.randint(0, 40, (2, 6))
SHAPES = ({0: "batch", 1: "length"},)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    network = Network().eval()
    for part in (network.norm.running_mean, network.norm.running_var):
        part.copy_(torch.rand(16) + 0.5)
    return network


@pytest.fixture(scope="module")
def program() -> fxonnx.ONNXProgram:
    with torch.device("meta"):
        network = Network().eval()
    return fxonnx.export(network, (IDS,), dynamic_shapes=SHAPES)


@pytest.fixture
def checkpoint(model: nn.Module, tmp_path: Path) -> Path:
    """A directory with two shards and their index; the tied weight is stored once, under one of its FQNs."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items() if name != "head.weight"}
    names = sorted(state)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for shard, inside in shards.items():
        save_file({name: state[name] for name in inside}, tmp_path / shard)
    index = {"weight_map": {name: shard for shard, inside in shards.items() for name in inside}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def computed(path: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    onnx.checker.check_model(str(path), full_check=True)
    return torch.from_numpy(onnxruntime.InferenceSession(path).run(None, {"ids": ids.numpy()})[0])


def expect(model: nn.Module, path: Path) -> None:
    for ids in (IDS, torch.randint(0, 40, (3, 5))):
        torch.testing.assert_close(computed(path, ids), model(ids).detach(), rtol=1e-4, atol=1e-5)


def locations(path: Path) -> dict[str, str]:
    graph = onnx.load(path, load_external_data=False).graph
    return {
        tensor.name: next(entry.value for entry in tensor.external_data if entry.key == "location")
        for tensor in graph.initializer
        if tensor.external_data
    }


def test_saving_weights_without_values_fails(program: fxonnx.ONNXProgram, model: nn.Module) -> None:
    text = r"\d+ weights have no values \(first: '.*'\): the model was exported on the meta device or with fake tensors"
    with pytest.raises(SaveError, match=text):
        program.save(io.BytesIO())
    with pytest.raises(SaveError, match=text):
        program(IDS)
    with pytest.raises(SaveError, match=text):
        _ = program.model_proto
    with pytest.raises(SaveError, match=r"1 weight has no values \(first: 'positions'\)"):
        program.save(io.BytesIO(), include_initializers=False)
    assert program.weights.stored["head.weight"] == program.weights.stored["table.weight"]
    with torch.device("meta"):
        other = fxonnx.export(Network().eval(), (IDS,))
    other.apply_weights({**model.state_dict(), "positions": model.positions})
    torch.testing.assert_close(other(IDS)[0], model(IDS).detach(), rtol=1e-4, atol=1e-5)


def test_graph_on_the_meta_device_equals_that_with_values(program: fxonnx.ONNXProgram, model: nn.Module) -> None:
    expected = fxonnx.export(model, (IDS,), dynamic_shapes=SHAPES)
    assert [node.op_type for node in program.model.graph] == [node.op_type for node in expected.model.graph]
    assert list(program.model.graph.initializers) == list(expected.model.graph.initializers)


def test_fake_mode(model: nn.Module, tmp_path: Path) -> None:
    with fxonnx.enable_fake_mode():
        fake, ids = Network().eval(), torch.zeros(2, 6, dtype=torch.long)
        inside = fxonnx.export(fake, (ids,), dynamic_shapes=SHAPES)
        real = fxonnx.export(model, (ids,), dynamic_shapes=SHAPES)
        real.save(tmp_path / "real.onnx")
    expect(model, tmp_path / "real.onnx")
    outside = fxonnx.export(fake, (IDS,), dynamic_shapes=SHAPES)
    for program in (inside, outside):
        with pytest.raises(SaveError, match="weights have no values"):
            program.save(tmp_path / "none.onnx")
        program.save(tmp_path / "m.onnx", weights={**model.state_dict(), "positions": model.positions})
        expect(model, tmp_path / "m.onnx")
    assert not (tmp_path / "none.onnx").exists()


@pytest.mark.parametrize("external_data", [None, True, "safetensors", REFERENCE])
@pytest.mark.parametrize("what", ["shards", "index", "directory", "state_dict"])
def test_saving_with_weights_from_checkpoints(
    program: fxonnx.ONNXProgram, model: nn.Module, checkpoint: Path, what: str, external_data: Any
) -> None:
    sources: Mapping[str, Any] = {
        "shards": sorted(checkpoint.glob("*.safetensors")),
        "index": [checkpoint / "model.safetensors.index.json"],
        "directory": [str(checkpoint)],
        "state_dict": [model.state_dict()],
    }
    weights = [*sources[what], {"positions": model.positions}]
    path = checkpoint / "model.onnx"
    if what == "state_dict" and external_data == REFERENCE:
        with pytest.raises(
            ArgumentError, match="external_data: REFERENCE requires weights in safetensors files, but no weight"
        ):
            program.save(path, weights=weights, external_data=external_data)
        return
    before = dict.fromkeys(checkpoint.iterdir())
    program.save(path, weights=weights, external_data=external_data)
    expect(model, path)
    new = {file.name for file in checkpoint.iterdir() if file not in before}
    assert new == {"model.onnx"} | {
        True: {"model.onnx.data"},
        "safetensors": {"model.onnx.safetensors"},
        REFERENCE: {"model.onnx.data"},
    }.get(external_data, set())
    with pytest.raises(SaveError, match="have no values"):
        program.save(io.BytesIO())


def test_external_references_and_derived_weights(
    program: fxonnx.ONNXProgram, model: nn.Module, checkpoint: Path
) -> None:
    path = checkpoint / "model.onnx"
    for _ in range(2):
        program.save(path, weights=[checkpoint, {"positions": model.positions}], external_data=REFERENCE)
        places = locations(path)
        assert places["head.weight"].endswith("-of-00002.safetensors")
        assert places["inner.weight"].endswith("-of-00002.safetensors")
        assert places["conv.weight::folded"] == places["positions"] == "model.onnx.data"
        expect(model, path)
    (checkpoint / "below").mkdir()
    with pytest.raises(
        SaveError, match=r"is not in .*below; external data must be in the directory of the model or below"
    ):
        program.save(
            checkpoint / "below" / "model.onnx",
            weights=[checkpoint, {"positions": model.positions}],
            external_data=REFERENCE,
        )
    assert list((checkpoint / "below").iterdir()) == []


def test_referenced_files_are_never_removed(program: fxonnx.ONNXProgram, model: nn.Module, tmp_path: Path) -> None:
    path, own = tmp_path / "m.onnx", tmp_path / "m.onnx.safetensors"
    program.save(path, weights={**model.state_dict(), "positions": model.positions}, external_data="safetensors")
    save_file({name: part for name, part in model.state_dict().items() if name != "head.weight"}, own)
    program.save(path, weights=[own, {"positions": model.positions}], external_data=REFERENCE)
    assert own.exists()
    expect(model, path)


def test_external_data_as_safetensors(model: nn.Module, tmp_path: Path) -> None:
    program = fxonnx.export(
        model, (IDS,), tmp_path / "m.onnx", dynamic_shapes=SHAPES, external_data="safetensors", verify=True
    )
    expect(model, tmp_path / "m.onnx")
    with safe_open(tmp_path / "m.onnx.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("head.weight"), model.table.weight)
        assert set(file.keys()) == set(locations(tmp_path / "m.onnx"))
    program.save(tmp_path / "m.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.bool, torch.complex64]
)
def test_dtypes_of_safetensors(dtype: torch.dtype, tmp_path: Path) -> None:
    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            values = torch.randn(20, 20) * 3
            self.register_buffer("odd", (values[:, :15] > 0).to(torch.uint8))
            self.register_buffer("held", values.to(dtype))

        def forward(self, x: torch.Tensor) -> Any:
            return self.held[x], self.odd[x]

    model, rows = Held(), torch.tensor([3, 1])
    save_file(model.state_dict(), tmp_path / "c.safetensors")
    with torch.device("meta"):
        program = fxonnx.export(Held().eval(), (torch.tensor([0, 1], device="cpu"),))
    for external_data in ("safetensors", REFERENCE):
        program.save(tmp_path / "m.onnx", weights=tmp_path / "c.safetensors", external_data=external_data)
        loaded = fxonnx.export(model.eval(), (rows,))
        loaded.model = _read(tmp_path / "m.onnx")
        expected = torch.view_as_real(model.held) if dtype.is_complex else model.held
        torch.testing.assert_close(loaded(rows), (expected[rows], model.odd[rows]))


def _read(path: Path) -> Any:
    import onnx_ir as ir

    return ir.load(path)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("missing.safetensors", "weights: file .*missing.safetensors does not exist"),
        ("empty", "weights: .*empty has no .safetensors files"),
        (
            "broken.safetensors",
            r"weights: .*broken\.safetensors is not a safetensors file: .*\nhint: load other formats",
        ),
        ("short.safetensors", "its header is longer than the file"),
        ("offsets.safetensors", "the offsets of 'a' do not match its shape and dtype"),
        ("dtype.safetensors", "'a' has the unknown dtype F3"),
        ("index.json", "is not an index of safetensors files: it has no weight_map"),
        (3, "weights: expected paths of safetensors files or state_dicts, got an int"),
        ({"table.weight": torch.zeros(2)}, r"weights: 'table\.weight' is torch\.float32 of shape \[2\], expected"),
        (
            {"tabel.weight": torch.zeros(2)},
            r"missing .*\nhint: 'tabel\.weight' is not a weight of the model, did you mean 'table\.weight'",
        ),
        (
            {},
            r"weights: missing .*, \.\.\. \(\d+ of \d+ weights\), and the model was exported without values",
        ),
    ],
)
def test_invalid_weights(program: fxonnx.ONNXProgram, tmp_path: Path, weights: Any, message: str) -> None:
    def header(entry: Mapping[str, Any]) -> bytes:
        text = json.dumps({"a": entry}).encode()
        return len(text).to_bytes(8, "little") + text

    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.safetensors").write_bytes(b"\5\0\0\0\0\0\0\0nojson")
    (tmp_path / "short.safetensors").write_bytes((1 << 40).to_bytes(8, "little") + b"{}")
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    (tmp_path / "offsets.safetensors").write_bytes(header(entry))
    (tmp_path / "dtype.safetensors").write_bytes(header({**entry, "dtype": "F3"}))
    (tmp_path / "index.json").write_text("[]")
    source = tmp_path / weights if isinstance(weights, str) else weights
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ArgumentError, match=message):
        program.save(tmp_path / "m.onnx", weights=source)
    assert sorted(tmp_path.iterdir()) == before


def test_shape_mismatch_in_a_file(program: fxonnx.ONNXProgram, tmp_path: Path) -> None:
    save_file({"table.weight": torch.zeros(3, 2)}, tmp_path / "c.safetensors")
    with pytest.raises(ArgumentError, match=r"'table\.weight' in .*c\.safetensors is torch\.float32 of shape \[3, 2\]"):
        program.save(tmp_path / "m.onnx", weights=tmp_path / "c.safetensors")


def test_tied_weights_with_different_values(program: fxonnx.ONNXProgram, model: nn.Module, tmp_path: Path) -> None:
    state = {**model.state_dict(), "positions": model.positions, "table.weight": model.table.weight + 1}
    text = "weights: 'table.weight' and 'head.weight' are tied weights in the model, but have different values here"
    with pytest.raises(ArgumentError, match=text):
        program.save(tmp_path / "m.onnx", weights=state)
    save_file({"head.weight": model.head.weight.detach().clone()}, tmp_path / "c.safetensors")
    with pytest.raises(ArgumentError, match=text):
        program.save(tmp_path / "m.onnx", weights=[state, tmp_path / "c.safetensors"])


def test_invalid_external_data(program: fxonnx.ONNXProgram, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="external_data: expected True, False, None"):
        program.save(tmp_path / "m.onnx", external_data="gguf")  # type: ignore[arg-type]


def test_save_all_stores_shared_weights_once(model: nn.Module, tmp_path: Path) -> None:
    programs = {
        "first": fxonnx.export(model, (IDS,), dynamic_shapes=SHAPES),
        "second": fxonnx.export(model, (IDS[:1],), dynamic_shapes=({1: "length"},), opset_version=17),
    }
    alone = sum(tensor.nbytes for tensor in map(_tensor, programs["first"].model.graph.initializers.values()))
    for _ in range(2):
        paths = fxonnx.save_all(programs, tmp_path)
        assert [path.name for path in paths[:2]] == ["first.onnx", "second.onnx"]
        assert sorted(tmp_path.iterdir()) == sorted(paths)
    assert paths[2].stat().st_size < alone + 4096 * 8
    with torch.no_grad():
        model.inner.weight += 1
    again = fxonnx.save_all(programs, tmp_path)
    assert again[2] != paths[2]
    # External data that only the replaced models referenced was removed.
    assert sorted(tmp_path.iterdir()) == sorted(again)
    paths = again
    expect(model, paths[0])
    torch.testing.assert_close(computed(paths[1], IDS[:1]), model(IDS[:1]).detach(), rtol=1e-4, atol=1e-5)
    for wrong, message in (
        ({}, "programs: expected at least one program"),
        ({"a/b": programs["first"]}, "is not a file name"),
    ):
        with pytest.raises(ArgumentError, match=message):
            fxonnx.save_all(wrong, tmp_path)
    with pytest.raises(SaveError, match=r"directory .* does not exist"):
        fxonnx.save_all(programs, tmp_path / "nowhere")


def _tensor(value: Any) -> Any:
    return value.const_value


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_floats_of_another_type_are_converted(dtype: torch.dtype, tmp_path: Path) -> None:
    """A checkpoint in half precision for a model in float32; other types must be the model's."""
    model, x = nn.Linear(4, 3).eval(), torch.rand(2, 4)
    stored = {name: value.to(dtype) for name, value in model.state_dict().items()}
    save_file(stored, tmp_path / "half.safetensors")
    with torch.device("meta"):
        empty = nn.Linear(4, 3).eval()
    fxonnx.export(empty, (x,)).save(tmp_path / "m.onnx", weights=tmp_path / "half.safetensors")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    expected = nn.functional.linear(x, stored["weight"].float(), stored["bias"].float())
    torch.testing.assert_close(torch.from_numpy(session.run(None, {"input": x.numpy()})[0]), expected)
    save_file({name: value.to(torch.int32) for name, value in stored.items()}, tmp_path / "int.safetensors")
    with pytest.raises(ArgumentError, match=r"'weight' in .* is torch.int32 of shape \[3, 4\], expected torch.float32"):
        fxonnx.export(empty, (x,)).save(tmp_path / "m.onnx", weights=tmp_path / "int.safetensors")
