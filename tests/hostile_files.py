"""Files that try to execute code, to read other files, or to break their reader; each with the calls that read it."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper

import fxonnx

__all__ = ["CODE", "HOSTILE_MODULE", "ROWS", "Sized", "rewritten"]

CODE = "__import__('pathlib').Path('marker').touch()"
"""Leaves a file in the working directory."""
HOSTILE_MODULE = "fxonnx_test_hostile_module"
"""A module in the working directory that executes ``CODE``; no file may import it."""

Call = Sequence[str] | Callable[[], Any]
"""A command, or a function of the API."""
Row = tuple[Callable[[], list[Call]], str]
"""A function that writes a file into the working directory and returns the calls that read it, and their error.

The error is that of one of the calls at least; "" for metadata that is ignored."""


class Sized(torch.nn.Module):
    """Its archive has symbolic sizes, guards, a constant input and keyword inputs."""

    def forward(self, x: torch.Tensor, flag: str = "abc", *, d: Any = None) -> torch.Tensor:
        torch._check(x.shape[0] % 2 == 0)
        return x[: x.shape[0] // 2] * 2 + (d["q"] if d and flag else 0)


def rewritten(target: str, edit: Callable[[Any], Any] | None, *added: tuple[str, bytes]) -> None:
    """Write ``ok.pt2`` with another program."""
    with zipfile.ZipFile("ok.pt2") as source, zipfile.ZipFile(target, "w") as archive:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("models/model.json") and edit is not None:
                program = json.loads(content)
                content = json.dumps(edit(program) or program).encode()
            archive.writestr(name, content)
        for name, content in added:
            archive.writestr(f"ok/{name}", content)


def _read_pt2(file: str = "bad.pt2") -> list[Call]:
    return [("analyze", file), ("export", file, "-o", "m.onnx", "--verify")]


def _pt2(edit: Callable[[Any], Any]) -> Callable[[], list[Call]]:
    def build() -> list[Call]:
        rewritten("bad.pt2", edit)
        return _read_pt2()

    return build


def _size(text: str) -> Callable[[], list[Call]]:
    def edit(program: Any) -> None:
        program["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][0]["as_expr"]["expr_str"] = text

    return _pt2(edit)


def _node(target: str, *inputs: Any) -> Callable[[], list[Call]]:
    def edit(program: Any) -> None:
        node = program["graph_module"]["graph"]["nodes"][-1]
        node["target"] = target
        node["inputs"] = [{"name": name, "arg": value, "kind": 1} for name, value in inputs]

    return _pt2(edit)


def _argument(value: Any) -> Callable[[], list[Call]]:
    def edit(program: Any) -> None:
        program["graph_module"]["graph"]["nodes"][-1]["inputs"][0]["arg"] = value

    return _pt2(edit)


def _signature(**texts: Any) -> Callable[[], list[Call]]:
    def edit(program: Any) -> None:
        program["graph_module"]["module_call_graph"][0]["signature"].update(texts)

    return _pt2(edit)


def _keyword(program: Any) -> None:
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    signature["forward_arg_names"] = []
    hostile = json.dumps(json.dumps([f"d={CODE.replace(chr(39), '')}"]))[1:-1]
    signature["in_spec"] = signature["in_spec"].replace('[\\"d\\"]', hostile)


def _replaced(old: str, new: str) -> Callable[[], list[Call]]:
    return _pt2(lambda program: json.loads(json.dumps(program).replace(json.dumps(old), json.dumps(new))))


def _guard(program: Any) -> None:
    program["guards_code"] = [CODE]


def _range(program: Any) -> None:
    program["range_constraints"]["u99999999999"] = {"min_val": 0, "max_val": 1}


def _outputs(kind: str, context: Any) -> str:
    leaf = {"type": None, "context": None, "children_spec": []}
    return json.dumps([1, {"type": kind, "context": context, "children_spec": [leaf]}])


def _compiled() -> list[Call]:
    rewritten("bad.pt2", None, ("data/aotinductor/model/a.wrapper.so", b"\x7fELF"))
    return _read_pt2()


def _cut_archive() -> list[Call]:
    content = Path("ok.pt2").read_bytes()
    Path("bad.pt2").write_bytes(content[: len(content) // 2])
    return _read_pt2()


def _bomb(target: str, nested: bool) -> None:
    """Write an archive, or one that has it, with an entry whose size is 2 GiB for its reader, which allocates it."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ok/data/zeros", bytes(2**16))
    data = bytearray(content.getvalue())
    struct.pack_into("<I", data, data.index(b"PK\x01\x02") + 24, 2**31)
    if nested:
        rewritten(target, None, ("data/weights/weights.pt", bytes(data)))
    else:
        Path(target).write_bytes(data)


def _large(*, nested: bool) -> Callable[[], list[Call]]:
    def build() -> list[Call]:
        _bomb("bad.pt2", nested)
        return _read_pt2()

    return build


_ENUM = json.dumps([{"__enum__": True, "fqn": f"{HOSTILE_MODULE}:X", "name": "A"}])
_FACTORY = {"default_factory_module": HOSTILE_MODULE, "default_factory_name": "X", "dict_context": ["a"]}
_FILE = ("filename", {"as_string": "marker"}), ("shared", {"as_bool": True}), ("size", {"as_int": 4})

_PT2: dict[str, Row] = {
    "pt2-size": (_size(CODE), r"sizes\[0\].as_expr.expr_str: .*: it calls the method touch"),
    "pt2-size-in-function": (_size(f"Max(Integer(1), {CODE})"), r"it calls the method touch"),
    "pt2-size-text": (_size("Symbol('s0 + print(1)')"), r"Symbol has the argument 's0 \+ print"),
    "pt2-size-attribute": (_size("Integer(1).__class__"), r"it reads the attribute __class__"),
    "pt2-size-comprehension": (_size("[s0 for s0 in (1, 2)][0]"), r"it has a Subscript"),
    "pt2-size-lambda": (_size("(lambda: 1)()"), r"it calls a result"),
    "pt2-size-line-break": (_size("s0 + \\\n 1"), r"it has characters that no expression has"),
    "pt2-size-power": (_size("9**9**9**9"), r"it has a large exponent"),
    "pt2-size-deep": (_size("(" * 5000 + "s0" + ")" * 5000), r"not an expression"),
    "pt2-size-long-sum": (_size("+".join(["s0"] * 40_000)), r"it has 119999 characters"),
    "pt2-size-number": (_size("9" * 5000), r"not an expression"),
    "pt2-guard": (_pt2(_guard), r"guards_code\[0\]: .*: it calls the method touch"),
    "pt2-symbol-number": (_pt2(_range), r"the number of the symbol is too large"),
    "pt2-name-of-input": (_replaced("x", f"x={CODE}"), r"not a name"),
    "pt2-name-of-argument": (_signature(forward_arg_names=[f"x={CODE}", "flag", "d"]), r"not a name"),
    "pt2-keyword": (_pt2(_keyword), r"is not the name of an argument"),
    "pt2-constant-input": (_replaced("abc", f"' or {CODE} or '"), r"a text with quotation marks"),
    "pt2-function": (
        _node("torch.os.system", ("", {"as_string": "touch marker"})),
        r"'torch.os.system': not an operator",
    ),
    "pt2-shared-library": (
        _node("torch.ops.load_library", ("", {"as_string": "marker.so"})),
        r"load_library': not an operator",
    ),
    "pt2-operator-as-argument": (
        _argument({"as_operator": "torch.os.system"}),
        r"as_operator: 'torch.os.system': not an operator",
    ),
    "pt2-file-operator": (
        _node("torch.ops.aten.from_file.default", *_FILE),
        r"accesses the file that its argument filename names",
    ),
    "pt2-enum": (
        _signature(out_spec=_outputs("builtins.dict", _ENUM)),
        r"X is not an enum of a module that is imported",
    ),
    "pt2-factory": (
        _signature(out_spec=_outputs("collections.defaultdict", _FACTORY)),
        r"module.X, which is not a built-in class",
    ),
    "pt2-compiled": (_compiled, r"compiled code, which would be executed"),
    "pt2-bomb": (_large(nested=False), r"bad.pt2 is refused: archive: [\d,]+ bytes that decompress to 2,147,483,648"),
    "pt2-nested-bomb": (_large(nested=True), r"refused: ok/data/weights/weights.pt: [\d,]+ bytes that decompress"),
    "pt2-cut": (_cut_archive, r"cannot be loaded as an exported program"),
}


class Bomb:
    """An object that executes ``CODE`` when it is unpickled."""

    def __reduce__(self) -> Any:
        return eval, (CODE,)


def _model(
    nodes: Sequence[Any] = (), initializers: Sequence[Any] = (), metadata: dict[str, str] | None = None
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes or [helper.make_node("Relu", ["x"], ["y"], name="relu")],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        list(initializers),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    helper.set_model_props(model, metadata or {})
    return model


def _read_onnx() -> list[Call]:
    plain = _model()
    Path("plain.onnx").write_bytes(plain.SerializeToString())
    return [
        ("diff", "bad.onnx", "plain.onnx"),
        ("check", "bad.onnx"),
        ("report", "bad.onnx", "-o", "bad.html"),
        ("report", "bad.onnx", "-o", "bad.html", "--profile-runtime"),
        ("verify", "bad.onnx", "hostile_test_source:relu"),
        lambda: fxonnx.diff("bad.onnx", "plain.onnx"),
        lambda: fxonnx.check("bad.onnx", "onnxruntime"),
        lambda: fxonnx.report("bad.onnx", "bad.html"),
        lambda: fxonnx.verify("bad.onnx", torch.nn.ReLU(), (torch.ones(2, 4),)),
    ]


def _onnx(*arguments: Any, **options: Any) -> Callable[[], list[Call]]:
    def build() -> list[Call]:
        made = [argument() if callable(argument) else argument for argument in arguments]
        Path("bad.onnx").write_bytes(_model(*made, **options).SerializeToString())
        return _read_onnx()

    return build


def _with_weight(**fields: Any) -> Callable[[], list[Call]]:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=np.ones(4, np.float32).tobytes())
    for name, value in fields.items():
        if isinstance(value, list):
            del getattr(tensor, name)[:]
            getattr(tensor, name).extend(value)
        else:
            setattr(tensor, name, value)
    return _onnx([helper.make_node("Add", ["x", "w"], ["y"])], [tensor])


def _external(*, target: bool = False, **entries: str) -> Callable[[], list[Call]]:
    def build() -> list[Call]:
        outside = Path("../outside.data")
        outside.write_bytes(bytes(64))
        Path("inside.data").write_bytes(bytes(16))
        Path("folder").mkdir()
        if target:
            Path("link.data").symlink_to(outside.resolve())
        tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
        for key, value in entries.items():
            text = value.replace("OUTSIDE", os.path.realpath(outside))
            tensor.external_data.add(key=key, value=text)
        Path("bad.onnx").write_bytes(_model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor]).SerializeToString())
        return _read_onnx()

    return build


def _nested_branches() -> list[Any]:
    node = helper.make_node("Relu", ["x"], ["y"])
    for _ in range(20):
        graph = helper.make_graph([node], "branch", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
        node = helper.make_node("If", ["x"], ["y"], then_branch=graph)
    return [node]


def _deeper_than_protobuf() -> list[Call]:
    """Protobuf neither writes nor reads these bytes, branches in branches."""
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [], []).SerializeToString()
    for _ in range(2000):
        attribute = _field(1, b"then_branch") + _field(6, graph) + b"\xa0\x01\x05"
        graph = _field(1, _field(1, b"x") + _field(2, b"y") + _field(4, b"If") + _field(5, attribute)) + _field(2, b"g")
    Path("bad.onnx").write_bytes(b"\x08\x0a" + _field(7, graph) + _field(8, _field(1, b"") + b"\x10\x14"))
    return _read_onnx()


def _field(number: int, content: bytes) -> bytes:
    length, size = b"", len(content)
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def _cut_model() -> list[Call]:
    Path("bad.onnx").write_bytes(_model().SerializeToString()[:-20])
    return _read_onnx()


def _branch_of_a_number() -> list[Any]:
    return [helper.make_node("If", ["x"], ["y"], then_branch=1, else_branch=2)]


def _cycle() -> list[Any]:
    return [helper.make_node("Relu", ["z"], ["y"]), helper.make_node("Relu", ["y"], ["z"])]


def _twice() -> list[Any]:
    return [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Sqrt", ["x"], ["y"])]


def _recursive() -> list[Call]:
    body = [helper.make_node("f", ["a"], ["b"], domain="own")]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    model = _model([helper.make_node("f", ["x"], ["y"], domain="own")])
    model.functions.append(helper.make_function("own", "f", ["a"], ["b"], body, opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))
    Path("bad.onnx").write_bytes(model.SerializeToString())
    return _read_onnx()


def _node_metadata(**texts: str) -> Callable[[], list[Call]]:
    def build() -> list[Call]:
        model = _model()
        for key, text in texts.items():
            model.graph.node[0].metadata_props.add(key=f"pkg.torch.onnx.{key}", value=text)
        Path("bad.onnx").write_bytes(model.SerializeToString())
        return _read_onnx()

    return build


_DEEP = "[" * 100_000
_PROOF, _STATES = "pkg.fxonnx.proof", "pkg.fxonnx.state"
_WRONG_PROOF = json.dumps({"departures": [{"kind": 1, "detail": [], "line": {}}], "runs": 3, "unexercised": "x"})


def _proof(**changed: Any) -> str:
    run = {"inputs": "example", "status": "equal", "difference": "0.0"} | changed
    departure = {"kind": "rewritten control flow", "detail": "if", "line": ""}
    return json.dumps({"departures": [departure], "runs": [run], "unexercised": []})


_ONNX: dict[str, Row] = {
    "onnx-cut": (_cut_model, r"cannot be loaded as an ONNX model"),
    "onnx-large-dims": (_with_weight(dims=[2**40, 2**40]), r"cannot reshape array of size 4"),
    "onnx-negative-dims": (_with_weight(dims=[-4]), r"the tensor 'w' has the dims \[-4\]"),
    "onnx-few-bytes": (_with_weight(raw_data=b"\0"), r"the weight 'w' cannot be read"),
    "onnx-unknown-dtype": (_with_weight(data_type=99), r"99 is not a valid DataType"),
    "onnx-text-dtype": (_with_weight(data_type=TensorProto.STRING), r"the weight 'w' cannot be read"),
    "onnx-branch-of-a-number": (_onnx(_branch_of_a_number), r"Mismatched attribute type"),
    "onnx-cycle": (_onnx(_cycle), r"nodes depend on each other in a cycle"),
    "onnx-undefined": (
        _onnx(lambda: [helper.make_node("Add", ["x", "nothing"], ["y"])]),
        r"'Add' reads 'nothing', which nothing computes",
    ),
    "onnx-two-definitions": (_onnx(_twice), r"'y' is redeclared"),
    "onnx-recursive-function": (_recursive, r"ONNX Runtime cannot load the model"),
    "onnx-deep": (_onnx(_nested_branches), r"ONNX Runtime cannot load the model"),
    "onnx-deeper-than-protobuf": (_deeper_than_protobuf, r"cannot be loaded as an ONNX model"),
    "external-outside": (
        _external(location="../outside.data"),
        r"is outside of the model's directory: ../outside.data",
    ),
    "external-absolute": (_external(location="OUTSIDE"), r"is outside of the model's directory: /"),
    "external-link": (_external(location="link.data", target=True), r"is outside of the model's directory: link.data"),
    "external-folder": (_external(location="folder"), r"is not a file: folder"),
    "external-missing": (_external(location="nothing.data"), r"the weight 'w' cannot be read: .*No such file"),
    "external-null-byte": (_external(location="a\0b"), r"has the location 'a"),
    "external-no-location": (_external(offset="0"), r"has the location ''"),
    "external-offset": (_external(location="inside.data", offset="4096"), r"ends after its file: inside.data"),
    "external-offset-text": (_external(location="inside.data", offset=CODE), r"invalid literal for int"),
    "external-negative-offset": (_external(location="inside.data", offset="-16"), r"must be non-negative, got -16"),
    "external-negative-length": (_external(location="inside.data", length="-16"), r"must be non-negative, got -16"),
    "external-large-length": (
        _external(location="inside.data", length=str(2**60)),
        r"its dtype and dims require 16 bytes",
    ),
    "metadata-proof": (_onnx(metadata={_PROOF: CODE}), r"is not a record of fxonnx"),
    "metadata-proof-types": (_onnx(metadata={_PROOF: _WRONG_PROOF}), r"1 is not a valid DepartureKind"),
    "metadata-proof-status": (_onnx(metadata={_PROOF: _proof(difference=None)}), r"'equal' and the difference None"),
    "metadata-proof-inputs": (_onnx(metadata={_PROOF: _proof(inputs=CODE)}), r"which are no sizes"),
    "metadata-proof-sizes": (_onnx(metadata={_PROOF: _proof(inputs="n = 99999999999999")}), r"which are no sizes"),
    "metadata-proof-list": (_onnx(metadata={_PROOF: "[1]"}), r"is not a record of fxonnx"),
    "metadata-proof-deep": (_onnx(metadata={_PROOF: _DEEP}), r"it is nested too deeply"),
    "metadata-proof-number": (_onnx(metadata={_PROOF: "9" * 10_000}), r"Exceeds the limit"),
    "metadata-states": (_onnx(metadata={_STATES: CODE}), r"pkg.fxonnx.state is not a record of fxonnx"),
    "metadata-states-types": (_onnx(metadata={_STATES: '[{"name": 1}, 2]'}), r"is not a record of fxonnx"),
    "metadata-states-list": (_onnx(metadata={_STATES: '{"name": "x"}'}), r"is not a record of fxonnx"),
    "metadata-scopes": (_node_metadata(name_scopes=CODE, class_hierarchy=CODE), ""),
    "metadata-scopes-types": (_node_metadata(name_scopes="{1: [2]}", class_hierarchy="[1, {}]"), ""),
    "metadata-scopes-nested": (_node_metadata(name_scopes="[[], {}, 3]", class_hierarchy="[1, 2, 3]"), ""),
    "metadata-scopes-path": (
        _node_metadata(name_scopes=f"['', '{'a.' * 5000}a', 'y']", class_hierarchy="['M', 'A', 'y']"),
        "",
    ),
    "metadata-scopes-deep": (_node_metadata(name_scopes=_DEEP, class_hierarchy=_DEEP), ""),
    "metadata-scopes-unhashable": (_node_metadata(name_scopes="{[]: 1}", class_hierarchy="{[]: 1}"), ""),
    "metadata-stack-trace": (_node_metadata(stack_trace="File , , \nFile \nFile x"), ""),
}


class Linear(torch.nn.Module):
    """A model with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.w


def _weights(name: str, content: bytes) -> Callable[[], list[Call]]:
    def build() -> list[Call]:
        Path("weights").mkdir()
        Path("weights", name).write_bytes(content)
        program = fxonnx.export(Linear().eval(), (torch.ones(2, 4),))
        return [
            lambda: program.save("m.onnx", weights=f"weights/{name}"),
            lambda: program.save("m.onnx", weights="weights"),
        ]

    return build


def _safetensors(header: Any, data: bytes = bytes(16), length: int | None = None) -> Callable[[], list[Call]]:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return _weights("w.safetensors", struct.pack("<Q", len(text) if length is None else length) + text + data)


def _entry(**changed: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]} | changed


_SAFETENSORS: dict[str, Row] = {
    "safetensors-header-length": (_safetensors({"w": _entry()}, length=2**63), r"its header is longer than the file"),
    "safetensors-empty": (_weights("w.safetensors", b""), r"is not a safetensors file"),
    "safetensors-list": (_safetensors([1]), r"is not a safetensors file"),
    "safetensors-deep": (_safetensors(_DEEP.encode()), r"it is nested too deeply"),
    "safetensors-dtype": (_safetensors({"w": _entry(dtype="OBJECT")}), r"'w' has the unknown dtype OBJECT"),
    "safetensors-dtype-type": (_safetensors({"w": _entry(dtype=["F32"])}), r"unhashable type"),
    "safetensors-offsets": (_safetensors({"w": _entry(data_offsets=[8, 24])}), r"the offsets of 'w' do not match"),
    "safetensors-overlap": (
        _safetensors({"w": _entry(), "v": _entry(data_offsets=[8, 24])}, bytes(24)),
        r"invalid offset for tensor `v`",
    ),
    "safetensors-negative-shape": (_safetensors({"w": _entry(shape=[-2, -2])}), r"'w' has the shape \[-2, -2\]"),
    "safetensors-metadata": (_safetensors({"__metadata__": [1], "w": _entry()}), r"is not a safetensors file"),
    "safetensors-torchao": (
        _safetensors({"__metadata__": {"tensor_names": "[1]"}, "w": _entry()}),
        r"is not a safetensors file",
    ),
    "safetensors-torchao-code": (
        _safetensors({"__metadata__": {"tensor_names": CODE}, "w": _entry()}),
        r"is not a safetensors file",
    ),
    "index-code": (_weights("model.safetensors.index.json", CODE.encode()), r"is not an index of safetensors files"),
    "index-types": (
        _weights("model.safetensors.index.json", b'{"weight_map": {"w": 1}}'),
        r"is not an index of safetensors files",
    ),
    "index-null-byte": (
        _weights("model.safetensors.index.json", b'{"weight_map": {"w": "a\\u0000"}}'),
        r"names a file outside of its directory: weights/a\\x00",
    ),
    "index-deep": (_weights("model.safetensors.index.json", _DEEP.encode()), r"is not an index of safetensors files"),
    "index-outside": (
        _weights("model.safetensors.index.json", b'{"weight_map": {"w": "../../outside.safetensors"}}'),
        r"names a file outside of its directory",
    ),
    "packed-config": (_weights("config.json", _DEEP.encode()), r"is not an index of safetensors files"),
}


def _calibration(name: str, write: Callable[[Path], Any]) -> Callable[[], list[Call]]:
    def build() -> list[Call]:
        write(Path(name))
        options = ("--quantize", "int8", "--calibration", name)
        return [("export", "hostile_test_source:make", "-o", "m.onnx", *options)]

    return build


def _pickled_array(path: Path) -> None:
    np.savez(path, x=np.array([Bomb()], dtype=object), allow_pickle=True)


def _zipped_pickle(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", pickle.dumps(Bomb()))


def _torch_pickle(path: Path) -> None:
    buffer = io.BytesIO()
    torch.save([Bomb()], buffer)
    path.write_bytes(buffer.getvalue())


_CALIBRATION: dict[str, Row] = {
    "calibration-bomb": (
        _calibration("c.npz", lambda path: _bomb(str(path), nested=False)),
        r"c.npz cannot be loaded: archive: [\d,]+ bytes that decompress to 2,147,483,648",
    ),
    "calibration-object": (_calibration("c.pt", _torch_pickle), r"c.pt cannot be loaded"),
    "calibration-pickle": (
        _calibration("c.pt", lambda path: path.write_bytes(pickle.dumps(Bomb()))),
        r"c.pt cannot be loaded",
    ),
    "calibration-text": (_calibration("c.pt", lambda path: path.write_text(CODE)), r"c.pt cannot be loaded"),
    "calibration-numbers": (
        _calibration("c.pt", lambda path: torch.save([1, 2], path)),
        r"batch 0 does not fit the model",
    ),
    "calibration-dict": (
        _calibration("c.pt", lambda path: torch.save({"x": 1}, path)),
        r"contains a dict, not a list of batches",
    ),
    "calibration-array-of-objects": (_calibration("c.npz", _pickled_array), r"Object arrays cannot be loaded"),
    "calibration-pickle-in-archive": (_calibration("c.npz", _zipped_pickle), r"c.npz cannot be loaded"),
    "calibration-not-an-archive": (
        _calibration("c.npz", lambda path: path.write_text(CODE)),
        r"c.npz cannot be loaded",
    ),
    "calibration-text-array": (
        _calibration("c.npz", lambda path: np.savez(path, x=np.array(["a"]))),
        r"c.npz cannot be loaded",
    ),
    "calibration-scalar": (
        _calibration("c.npz", lambda path: np.savez(path, x=np.array(1.0))),
        r"c.npz cannot be loaded",
    ),
}

ROWS = _PT2 | _ONNX | _SAFETENSORS | _CALIBRATION
"""Name of a file to its row."""
