"""Write the kernel tables of the targets, ``exporter/fxonnx/_targets/<target>.json``.

    python -m benchmarks.target_kernels onnxruntime
    python -m benchmarks.target_kernels onnxruntime-cuda
    python -m benchmarks.target_kernels tensorrt
    python -m benchmarks.target_kernels openvino
    python -m benchmarks.target_kernels onnxruntime-web
    python -m benchmarks.target_kernels onnxruntime-web-webgpu
    python -m benchmarks.target_kernels onnxruntime-directml --file OperatorKernels.md

``onnxruntime`` and ``onnxruntime-cuda`` ask the installed ONNX Runtime for the kernels of an execution provider; the
latter needs onnxruntime-gpu and the libraries of CUDA, cuDNN and TensorRT, which it loads for this, and no GPU.
``openvino`` asks the installed OpenVINO to convert each operator in each type. Those of onnxruntime-web are asked from
the package that ``make web`` installs, in Chromium (about a minute each). ``tensorrt`` asks the installed TensorRT for
RTX to build each operator in each type, without a GPU (``tensorrt_rtx_cu13_bindings``, ``tensorrt_rtx_cu13_libs``).
``onnxruntime-directml`` reads the page that ONNX Runtime generates from its kernels, of the release that is meant.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import onnx
import onnx.defs
from onnx import TensorProto, helper

from . import kernel_probe, tensorrt_probe
from .web_kernels import web_kernels

FOLDER = Path(__file__).parent.parent / "exporter/fxonnx/_targets"
WEB_PROVIDERS = {"onnxruntime-web": "wasm", "onnxruntime-web-webgpu": "webgpu"}
EXECUTION_PROVIDERS = {"onnxruntime": "CPU", "onnxruntime-cuda": "CUDA"}
CHOICES = (*EXECUTION_PROVIDERS, "onnxruntime-directml", "tensorrt", "openvino", *WEB_PROVIDERS)
_NO_LIMIT = 2**31 - 1

Kernels: TypeAlias = "dict[str, dict[str, dict[tuple[int, int | None], dict[str, set[str]]]]]"
"""Domain, operator, range of versions, type variable, element types."""


def onnxruntime_kernels(device: str) -> tuple[str, Kernels]:
    """The kernels of an execution provider of the installed ONNX Runtime, "CPU" or "CUDA"."""
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

    kernels: Kernels = {}
    for definition in runtime.get_all_opkernel_def():
        if definition.provider != f"{device}ExecutionProvider" or is_internal(definition.domain, definition.op_name):
            continue
        since, until = definition.version_range
        versions = kernels.setdefault(definition.domain, {}).setdefault(definition.op_name, {})
        types = versions.setdefault((since, None if until == _NO_LIMIT else until), {})
        for variable, texts in definition.type_constraints.items():
            types.setdefault(variable, set()).update(tensor_types(texts))
    return f"ONNX Runtime {onnxruntime.__version__}, kernels registered by the {device} execution provider", kernels


def documented_kernels(page: str, provider: str) -> tuple[str, Kernels]:
    """The kernels of an execution provider, "Dml", by docs/OperatorKernels.md of ONNX Runtime.

    A version of an operator that has a row is computed; the pages write `13+` for each of several versions.
    """
    section = page.partition(f"## Operators implemented by {provider}ExecutionProvider")[2].partition("\n## ")[0]
    kernels: Kernels = {}
    operators: dict[str, dict[tuple[int, int | None], dict[str, set[str]]]] = {}
    name = ""
    for line in section.splitlines():
        cells = line.split("|")[1:-1]
        domain = re.search(r"Operator Domain:\*\* \*(.+)\*", line)
        if domain is not None:
            operators = kernels.setdefault(domain[1].removeprefix("ai.onnx"), {})
        elif len(cells) == 4 and re.fullmatch(r"\d+\+", cells[2]):
            name = cells[0] or name
            found = (each.partition(" = ") for each in cells[3].replace("**", "").split("<br/>"))
            types = {key.strip(): set(tensor_types(texts.split(", "))) for key, _, texts in found}
            # In the domain of ONNX, the page has an operator of another one.
            if not is_internal("", name) and (name != "GroupNorm" or "com.microsoft" in kernels):
                operators.setdefault(name, {})[int(cells[2][:-1]), None] = types
    kernels.pop("com.microsoft.dml", None)
    source = "ONNX Runtime, docs/OperatorKernels.md of the main branch in 2026"
    return f"{source}, kernels of the {provider} execution provider", kernels


def is_internal(domain: str, op_type: str) -> bool:
    """Whether files never contain such nodes, because ONNX Runtime inserts them when it loads a model."""
    return domain == "com.ms.internal.nhwc" or op_type.startswith("Memcpy")


def tensor_types(texts: Iterable[str]) -> Iterable[str]:
    """The element types of tensors; sequences, optionals and maps are left out."""
    return (text[7:-1] for text in texts if text.startswith("tensor("))


def tensorrt_kernels() -> tuple[str, Kernels]:
    """The operators that TensorRT for RTX parses and builds; its parser has one implementation for all opsets."""
    version, found = tensorrt_probe.kernels()
    operators: dict[str, dict[tuple[int, int | None], dict[str, set[str]]]] = {
        name: {(1, tensorrt_probe.NEWEST_OPSET): types} for name, types in found.items()
    }
    source = f"TensorRT for RTX {version}, operators that its ONNX parser and its builder accept"
    return f"{source}; plugins as docs/operators.md of ONNX-TensorRT 10.15 lists them", {"": operators}


def openvino_kernels() -> tuple[str, Kernels]:
    """The operators that the ONNX frontend of the installed OpenVINO converts, from opset 11 on."""
    import openvino

    core = openvino.Core()
    onnx_names = sorted({schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""})
    operators: dict[str, dict[tuple[int, int | None], dict[str, set[str]]]] = {}
    for name in onnx_names:
        forms = [(opset, schema) for opset, schema in kernel_probe.versions(name) if converts(core, name, opset)]
        for index, (opset, schema) in enumerate(forms):
            until = forms[index + 1][1].since_version - 1 if index + 1 < len(forms) else None
            types = convertible_types(core, schema, opset)
            operators.setdefault(name, {})[schema.since_version, until] = types
    contrib = json.loads((FOLDER / "onnxruntime.json").read_text())["kernels"]["com.microsoft"]
    others: dict[str, dict[tuple[int, int | None], dict[str, set[str]]]] = {
        name: {(1, None): {}} for name in contrib if converts(core, name, 1, "com.microsoft")
    }
    version = openvino.__version__.partition("-")[0]
    return f"OpenVINO {version}, operators that its ONNX frontend converts", {"": operators, "com.microsoft": others}


def converts(core: Any, name: str, opset: int, domain: str = "") -> bool:
    """Whether OpenVINO has a rule for an operator; the node itself is incomplete, which is another error."""
    # With too few inputs OpenVINO may crash.
    node = helper.make_node(name, ["x"] * 4, ["y"], domain=domain)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph([node], "probe", [x], [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", opset if domain == "" else 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    try:
        core.read_model(model.SerializeToString(), b"")
    except RuntimeError as error:
        # Operators without a rule are replaced by their function bodies, whose operators may lack one as well.
        return "No conversion rule" not in str(error)
    return True


def convertible_types(core: Any, schema: onnx.defs.OpSchema, opset: int) -> dict[str, set[str]]:
    """The types that OpenVINO converts an operator in; {} if no type can be tried or all are converted."""
    constraints = {
        constraint.type_param_str: [
            text
            for text in (*kernel_probe.TYPES, *kernel_probe.UNSIGNED)
            if f"tensor({text})" in constraint.allowed_type_strs
        ]
        for constraint in schema.type_constraints
    }
    if not all(constraints.values()):
        return {}

    def loads(types: Mapping[str, str]) -> bool:
        try:
            core.read_model(kernel_probe.model_of(schema, opset, types), b"")
        except RuntimeError:
            return False
        return True

    base = {variable: texts[0] for variable, texts in constraints.items()}
    try:
        if not loads(base):
            return {}
    except KeyError:  # a subgraph
        return {}
    found = {}
    for variable, texts in constraints.items():
        # Some variables must have the same type, which the schema cannot express.
        together = {
            text: {name: text if text in allowed else base[name] for name, allowed in constraints.items()}
            for text in texts
        }
        loaded = {text for text in texts if loads({**base, variable: text}) or loads(together[text])}
        if loaded != set(texts):
            found[variable] = loaded
    return found


def content(source: str, kernels: Kernels) -> dict[str, Any]:
    """The table as it is stored, in a fixed order."""
    return {
        "source": source,
        "kernels": {
            domain: {
                name: [
                    [since, until, {key: " ".join(sorted(texts)) for key, texts in sorted(types.items()) if texts}]
                    for (since, until), types in sorted(versions.items(), key=lambda item: item[0][0])
                ]
                for name, versions in sorted(operators.items())
            }
            for domain, operators in sorted(kernels.items())
        },
    }


def text_of(table: Mapping[str, Any]) -> str:
    """The JSON text, one operator in a line."""
    domains = []
    for domain, operators in table["kernels"].items():
        lines = ",\n".join(f"   {json.dumps(name)}: {json.dumps(versions)}" for name, versions in operators.items())
        domains.append(f"  {json.dumps(domain)}: {{\n{lines}\n  }}")
    kernels = ",\n".join(domains)
    return f'{{\n "source": {json.dumps(table["source"])},\n "kernels": {{\n{kernels}\n }}\n}}\n'


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Write the kernel table of a target.")
    parser.add_argument("target", choices=CHOICES)
    parser.add_argument("--file", type=Path, help="for onnxruntime-directml: the page")
    arguments = parser.parse_args()
    if arguments.target in EXECUTION_PROVIDERS:
        source, kernels = onnxruntime_kernels(EXECUTION_PROVIDERS[arguments.target])
    elif arguments.target == "onnxruntime-directml":
        source, kernels = documented_kernels(arguments.file.read_text(encoding="utf-8"), "Dml")
    elif arguments.target == "openvino":
        source, kernels = openvino_kernels()
    elif arguments.target in WEB_PROVIDERS:
        source, kernels = web_kernels(WEB_PROVIDERS[arguments.target])
    else:
        source, kernels = tensorrt_kernels()
    path = FOLDER / f"{arguments.target}.json"
    path.write_text(text_of(content(source, kernels)), encoding="utf-8")
    print(f"{path}: {sum(map(len, kernels.values()))} operators, {source}")


if __name__ == "__main__":
    main()
