"""Write the kernel tables of the targets, ``exporter/fxonnx/_targets/<target>.json``.

    python -m benchmarks.target_kernels onnxruntime
    python -m benchmarks.target_kernels onnxruntime-cuda --document OperatorKernels.md --version 1.25
    python -m benchmarks.target_kernels tensorrt --document operators.md

``onnxruntime`` asks the installed ONNX Runtime for the kernels of its CPU execution provider. The tables of runtimes
that need a GPU are read from their documentation: ``docs/OperatorKernels.md`` of microsoft/onnxruntime and
``docs/operators.md`` of onnx/onnx-tensorrt.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

FOLDER = Path(__file__).parent.parent / "exporter/fxonnx/_targets"
_NO_LIMIT = 2**31 - 1

Kernels: TypeAlias = "dict[str, dict[str, dict[tuple[int, int | None], dict[str, set[str]]]]]"
"""Domain, operator, range of versions, type variable, element types."""


def onnxruntime_kernels() -> tuple[str, Kernels]:
    """The kernels of the CPU execution provider of the installed ONNX Runtime."""
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

    kernels: Kernels = {}
    for definition in runtime.get_all_opkernel_def():
        if definition.provider != "CPUExecutionProvider" or is_internal(definition.domain, definition.op_name):
            continue
        since, until = definition.version_range
        versions = kernels.setdefault(definition.domain, {}).setdefault(definition.op_name, {})
        types = versions.setdefault((since, None if until == _NO_LIMIT else until), {})
        for variable, texts in definition.type_constraints.items():
            types.setdefault(variable, set()).update(tensor_types(texts))
    return f"ONNX Runtime {onnxruntime.__version__}, kernels registered by the CPU execution provider", kernels


def is_internal(domain: str, op_type: str) -> bool:
    """Whether only ONNX Runtime itself creates such nodes: copies to devices, its own layouts of convolutions."""
    return domain in ("com.microsoft.nchwc", "com.ms.internal.nhwc") or op_type.startswith("Memcpy")


def tensor_types(texts: Iterable[str]) -> Iterable[str]:
    """The element types of tensors; sequences, optionals and maps are left out."""
    return (text[7:-1] for text in texts if text.startswith("tensor("))


def cuda_kernels(document: str, version: str) -> tuple[str, Kernels]:
    """The kernels of the CUDA execution provider, as ``OperatorKernels.md`` lists them."""
    kernels: Kernels = {}
    domain = name = provider = ""
    for line in document.splitlines():
        if line.startswith("## Operators implemented by "):
            provider = line.rsplit(" ", 1)[1]
        if provider != "CUDAExecutionProvider":
            continue
        if found := re.search(r"\*\*Operator Domain:\*\* \*([\w.]+)\*", line):
            domain = "" if found[1] == "ai.onnx" else found[1]
        columns = line.split("|")[1:-1]
        if len(columns) != 4 or not (found := re.fullmatch(r"\[(\d+), (\d+)\]|(\d+)(\+?)", columns[2])):
            continue
        name = columns[0] or name
        if is_internal(domain, name):
            continue
        since = int(found[1] or found[3])
        until = int(found[2]) if found[2] else None if found[4] else since
        types = kernels.setdefault(domain, {}).setdefault(name, {}).setdefault((since, until), {})
        for variable, texts in re.findall(r"\*\*(\w+)\*\* = ([^<]*)", columns[3]):
            types.setdefault(variable, set()).update(tensor_types(texts.split(", ")))
    return f"docs/OperatorKernels.md of ONNX Runtime {version}, CUDA execution provider", kernels


_TENSORRT_TYPES = {
    **{"DOUBLE": "double", "FP32": "float", "FP16": "float16", "BF16": "bfloat16", "FP8": "float8e4m3fn"},
    **{"FP4": "float4e2m1", "INT64": "int64", "INT32": "int32", "INT8": "int8", "INT4": "int4"},
    **{"UINT8": "uint8", "BOOL": "bool"},
}


def tensorrt_kernels(document: str, version: str) -> tuple[str, Kernels]:
    """The operators of TensorRT's ONNX parser and the types of their first input, as ``operators.md`` lists them."""
    header = re.search(
        r"TensorRT ([\d.]+) supports operators in the inclusive range of opset (\d+) to opset (\d+)", document
    )
    if header is None:
        raise SystemExit("operators.md does not name the opsets that TensorRT supports")
    operators: dict[str, dict[tuple[int, int | None], dict[str, set[str]]]] = {}
    for line in document.splitlines():
        columns = [column.strip() for column in line.split("|")[1:]]
        if len(columns) < 3 or columns[1] != "Y":
            continue
        texts = {_TENSORRT_TYPES[text.strip()] for text in columns[2].split(",") if text.strip()}
        operators[columns[0]] = {(1, int(header[3])): {FIRST_INPUT: texts}}
    return f"docs/operators.md of ONNX-TensorRT {version or header[1]}", {"": operators}


FIRST_INPUT = "*"
"""In place of a type variable: that of the first input, whatever its name is at an opset."""


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
    parser.add_argument("target", choices=("onnxruntime", "onnxruntime-cuda", "tensorrt"))
    parser.add_argument("--document", type=Path, help="the page of the runtime's documentation")
    parser.add_argument("--version", default="", help="the version of the runtime, if the page does not have it")
    arguments = parser.parse_args()
    if arguments.target == "onnxruntime":
        source, kernels = onnxruntime_kernels()
    elif arguments.document is None:
        parser.error(f"{arguments.target} needs --document")
    else:
        read = cuda_kernels if arguments.target == "onnxruntime-cuda" else tensorrt_kernels
        source, kernels = read(arguments.document.read_text(encoding="utf-8"), arguments.version)
    path = FOLDER / f"{arguments.target}.json"
    path.write_text(text_of(content(source, kernels)), encoding="utf-8")
    print(f"{path}: {sum(map(len, kernels.values()))} operators, {source}")


if __name__ == "__main__":
    main()
