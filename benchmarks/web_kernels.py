"""The operators and element types that the installed onnxruntime-web has kernels for.

Each operator is loaded in headless Chromium as a model of one node, in each of its forms and with each type that its
schema allows, on WebAssembly or WebGPU (an adapter in software). On WebGPU the log names the nodes without a kernel,
which the CPU runs. ``benchmarks.target_kernels`` writes the tables.
"""

from __future__ import annotations

import base64
import itertools
import json
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import onnx
import onnx.defs
from onnx import TensorProto, helper

from tests.web.browser import MODULES, serve

from .kernel_probe import TYPES, UNSIGNED

__all__ = ["web_kernels"]

Provider: TypeAlias = str
"""``wasm`` or ``webgpu``."""

_OPSETS = range(7, 27)
_ORDER = (*TYPES, *UNSIGNED)
_BASES = 48
"""Combinations of types that are tried until one loads."""
_BATCH = 1500
"""Models for one page: the memory of sessions that fail is not returned."""
_ATTRIBUTES: Mapping[tuple[str, str], Any] = {
    ("BitShift", "direction"): "LEFT",
    ("DeformConv", "kernel_shape"): [2, 2],
    ("Einsum", "equation"): "ij->ij",
    ("GridSample", "mode"): "bilinear",
}
_SUBGRAPHS: Mapping[str, str] = {
    "If": "(bool c, float[2] x) => (float[2] y) {y = If (c) <then_branch = a () => (float[2] p) {p = Neg(x)}, "
    "else_branch = b () => (float[2] q) {q = Abs(x)}>}",
    "Loop": "(int64 n, bool c, float[2] x) => (float[2] y) {y = Loop (n, c, x) <body = b (int64 i, bool k, float[2] s) "
    "=> (bool m, float[2] t) {m = Identity(k) t = Neg(s)}>}",
    "Scan": "(float[2] s, float[3, 2] x) => (float[2] y, float[3, 2] z) {y, z = Scan <num_scan_inputs = 1, body = b "
    "(float[2] i, float[2] j) => (float[2] k, float[2] l) {k = Add(i, j) l = Neg(j)}> (s, x)}",
}


@dataclass(frozen=True, eq=False)
class _Form:
    """One version of an operator.

    Attributes:
        until: The last opset with this version; None for the newest one.
        opset: An opset that has it.
        inputs: For each input its type variable, or its only type, and whether it is optional.
        outputs: The number of outputs, and the variable of the first one.
        attributes: The required attributes.
        types: Type variable to allowed types.
    """

    domain: str
    name: str
    since: int
    until: int | None
    opset: int
    inputs: tuple[tuple[str, bool], ...]
    outputs: tuple[int, str]
    attributes: Mapping[str, Any]
    types: Mapping[str, tuple[str, ...]]

    def variables(self, required: bool) -> list[str]:
        """The type variables with a choice of element types."""
        used = {text for text, optional in self.inputs if not (optional and required)} | {self.outputs[1]}
        return [variable for variable in self.types if variable in used]

    def model(self, types: Mapping[str, str]) -> bytes:
        """A model of one node, with the optional inputs whose type variable no other input has."""
        needed = {text for text, optional in self.inputs if not optional}
        present = [not optional or (text in types and text not in needed) for text, optional in self.inputs]
        last = max((index for index, each in enumerate(present) if each), default=-1)
        names = [f"x{index}" if present[index] else "" for index in range(last + 1)]
        inputs = [
            _value_info(name, types.get(text, text))
            for name, (text, _) in zip(names, self.inputs, strict=False)
            if name
        ]
        count, variable = self.outputs
        outputs = [onnx.ValueInfoProto(name=f"y{index}") for index in range(count)]
        attributes = dict(self.attributes)
        of_output = types.get(variable, "float")
        if variable not in needed and of_output.upper() in TensorProto.DataType.keys():  # noqa: SIM118
            code = TensorProto.DataType.Value(of_output.upper())
            if "to" in attributes or self.name.startswith(("Random", "EyeLike", "Bernoulli", "Multinomial")):
                attributes["to" if "to" in attributes else "dtype"] = code
            if self.name == "ConstantOfShape":
                attributes["value"] = onnx.TensorProto(dims=[1], data_type=code, raw_data=bytes(8))
        node = helper.make_node(
            self.name, names, [each.name for each in outputs], name="probe", domain=self.domain, **attributes
        )
        return self._serialized(helper.make_graph([node], "probe", inputs, outputs))

    def _serialized(self, graph: onnx.GraphProto) -> bytes:
        domain = [] if self.domain == "" else [helper.make_opsetid(self.domain, self.opset)]
        opsets = [helper.make_opsetid("", self.opset if self.domain == "" else 20), *domain]
        return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def web_kernels(provider: Provider, names: Collection[str] | None = None) -> tuple[str, dict[str, Any]]:
    """Ask the installed onnxruntime-web for its kernels.

    Args:
        provider: ``wasm`` or ``webgpu``.
        names: The operators; by default all.

    Returns:
        The source, and the table: domain, operator, range of versions, type variable, element types.
    """
    forms = [form for form in _forms() if names is None or form.name in names]
    candidates = [(form, types) for form in forms for types in _bases(form)]
    answers = _ask(provider, [form.model(types) for form, types in candidates])
    bases: dict[_Form, Mapping[str, str]] = {}
    for (form, types), loads in zip(candidates, answers, strict=True):
        if loads:
            bases.setdefault(form, types)
    questions = [(form, *variant) for form, base in bases.items() for variant in _variants(form, base)]
    answers = _ask(provider, [form.model(types) for form, _, _, types in questions])
    found: dict[_Form, dict[str, set[str]]] = {form: {} for form in bases}
    for (form, variable, text, _), loads in zip(questions, answers, strict=True):
        known = found[form].setdefault(variable, set())
        if loads:
            known.add(text)
    kernels: dict[str, Any] = {}
    for form, types in found.items():
        texts = {variable: sorted(each) for variable, each in types.items() if each}
        kernels.setdefault(form.domain, {}).setdefault(form.name, {})[form.since, form.until] = texts
    for name, since, until in () if names is not None else _with_subgraphs(provider):
        kernels[""].setdefault(name, {})[since, until] = {}
    version = json.loads((MODULES / "onnxruntime-web" / "package.json").read_text())["version"]
    words = {"wasm": "WebAssembly", "webgpu": "WebGPU"}[provider]
    return f"onnxruntime-web {version}, one-node models loaded on {words} in Chromium", {
        domain: {name: _merged(versions) for name, versions in operators.items()}
        for domain, operators in kernels.items()
    }


def _merged(versions: Mapping[tuple[int, int | None], Any]) -> dict[tuple[int, int | None], Any]:
    """Adjacent versions with the same types as one range; the newest version stays by itself."""
    merged: dict[tuple[int, int | None], Any] = {}
    for (since, until), types in sorted(versions.items(), key=lambda item: item[0][0]):
        last = next(reversed(merged), None)
        if last is not None and until is not None and last[1] == since - 1 and merged[last] == types:
            since = last[0]
            del merged[last]
        merged[since, until] = types
    return merged


def _forms() -> Iterator[_Form]:
    """Each version of the operators of ONNX and of ONNX Runtime that a model without subgraphs can have."""
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

    for name in sorted({schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""} - {"Constant"}):
        versions = _versions(name)
        for index, (opset, schema) in enumerate(versions):
            until = versions[index + 1][1].since_version - 1 if index + 1 < len(versions) else None
            inputs = [(each.type_str, each.option.name == "Optional") for each in schema.inputs]
            outputs = [(each.type_str, each.option.name == "Optional") for each in schema.outputs]
            yield from _form(schema, ("", name, schema.since_version, until, opset), inputs, outputs)
    for schema in sorted(runtime.get_all_operator_schema(), key=lambda each: each.name):
        if schema.domain != "com.microsoft":
            continue
        inputs = [(each.typeStr, each.option.name == "Optional") for each in schema.inputs]
        outputs = [(each.typeStr, each.option.name == "Optional") for each in schema.outputs]
        identity = (schema.domain, schema.name, schema.since_version, None, schema.since_version)
        yield from _form(schema, identity, inputs, outputs)


def _versions(name: str) -> list[tuple[int, onnx.defs.OpSchema]]:
    found = {}
    for opset in _OPSETS:
        try:
            schema = onnx.defs.get_schema(name, opset)
        except onnx.defs.SchemaError:
            continue
        if not schema.deprecated:
            found[schema.since_version] = (opset, schema)
    return list(found.values())


def _form(
    schema: Any, identity: tuple[Any, ...], inputs: list[tuple[str, bool]], outputs: list[tuple[str, bool]]
) -> Iterator[_Form]:
    """The form of a schema; nothing if an attribute is a graph."""
    attributes = {}
    for name, attribute in schema.attributes.items():
        if attribute.required:
            values = {"INT": 1, "INTS": [2, 2], "FLOAT": 1.0, "FLOATS": [1.0, 1.0], "STRING": "", "STRINGS": [""]}
            value = _ATTRIBUTES.get((schema.name, name), values.get(attribute.type.name))
            if value is None:
                return
            attributes[name] = value
    types = {
        constraint.type_param_str: tuple(sorted(map(_short, constraint.allowed_type_strs), key=_rank))
        for constraint in schema.type_constraints
    }
    formals = tuple((text if text in types else _short(text), optional) for text, optional in inputs)
    count = sum(not optional for _, optional in outputs) or 1
    yield _Form(*identity, formals, (count, outputs[0][0] if outputs else ""), attributes, types)


def _short(text: str) -> str:
    """``float`` for ``tensor(float)``; other types are unchanged."""
    return text[7:-1] if text.startswith("tensor(") else text


def _rank(text: str) -> tuple[int, str]:
    return (_ORDER.index(text) if text in _ORDER else len(_ORDER), text)


def _bases(form: _Form) -> Iterator[dict[str, str]]:
    """Combinations of types of the required inputs, the most usual first."""
    variables = form.variables(required=True)
    choices = [form.types[variable][:4] for variable in variables]
    for texts in itertools.islice(itertools.product(*choices), _BASES):
        yield dict(zip(variables, texts, strict=True))


def _variants(form: _Form, base: Mapping[str, str]) -> Iterator[tuple[str, str, dict[str, str]]]:
    """A type variable, a type of it, and combinations of types that have it."""
    for variable in form.variables(required=False):
        for text in form.types[variable]:
            if "(" in text or text.startswith("complex"):
                continue
            yield variable, text, {**base, variable: text}
            # Some kernels support a type only if all inputs have it.
            together = {name: text if text in form.types[name] else one for name, one in base.items()}
            if together | {variable: text} != base | {variable: text}:
                yield variable, text, together | {variable: text}


def _value_info(name: str, text: str) -> onnx.ValueInfoProto:
    value = onnx.ValueInfoProto(name=name)
    value.type.CopyFrom(_type(text))
    return value


def _type(text: str) -> onnx.TypeProto:
    """The type that a schema writes as ``float``, ``seq(tensor(float))`` or ``optional(tensor(float))``."""
    for start, make in (("seq(", helper.make_sequence_type_proto), ("optional(", helper.make_optional_type_proto)):
        if text.startswith(start):
            return make(_type(text[len(start) : -1]))
    code = _short(text).upper()
    known = TensorProto.DataType.keys()
    return helper.make_tensor_type_proto(TensorProto.DataType.Value(code if code in known else "FLOAT"), None)


def _with_subgraphs(provider: Provider) -> list[tuple[str, int, int | None]]:
    """The versions of If, Loop and Scan with a kernel."""
    asked, models = [], []
    for name, text in _SUBGRAPHS.items():
        versions = _versions(name)
        for index, (opset, schema) in enumerate(versions):
            until = versions[index + 1][1].since_version - 1 if index + 1 < len(versions) else None
            model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> probe {text}')
            model.graph.node[0].name = "probe"
            asked.append((name, schema.since_version, until))
            models.append(bytes(model.SerializeToString()))
    return [each for each, loads in zip(asked, _ask(provider, models, subgraphs=True), strict=True) if loads]


def _ask(provider: Provider, models: Sequence[bytes], subgraphs: bool = False) -> list[bool]:
    """For each model, whether the provider has a kernel for its node.

    Raises:
        RuntimeError: If the page cannot load a model at all.
    """
    answers: list[bool] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serve({"/probe/": folder, "/": Path(__file__).parent}) as site:
            while len(answers) < len(models):
                batch = models[len(answers) : len(answers) + _BATCH]
                texts = [base64.b64encode(model).decode() for model in batch]
                (folder / "models.json").write_text(
                    json.dumps({"provider": provider, "models": texts, "subgraphs": subgraphs})
                )
                page = site.open("web_kernels.html", webgpu=provider == "webgpu", seconds=600)
                if not page["answers"]:
                    raise RuntimeError(f"onnxruntime-web loads no model: {page['stopped']}")
                answers += map(bool, page["answers"])
                print(f"{provider}: {len(answers)} of {len(models)} models {page['stopped']}")
    return answers
