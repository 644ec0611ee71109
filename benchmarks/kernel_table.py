"""Which types the CPU execution provider of the installed ONNX Runtime has no kernel for, per operator.

    python -m benchmarks.kernel_table [--opset 20]

``fxonnx_translations/kernels.py`` holds what this printed for ONNX Runtime 1.31.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import onnx.defs
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

_PROVIDER = "CPUExecutionProvider"


def missing_types(opset: int) -> dict[str, list[str]]:
    """The element types that an operator's schema allows for its first type variable, and no kernel takes."""
    kernels = defaultdict(list)
    for kernel in runtime.get_all_opkernel_def():
        if kernel.provider == _PROVIDER and kernel.domain in ("", "ai.onnx"):
            kernels[kernel.op_name].append(kernel)
    found = {}
    for name, versions in sorted(kernels.items()):
        if not onnx.defs.has(name):
            continue
        try:
            schema = onnx.defs.get_schema(name, opset)
        except onnx.defs.SchemaError:
            continue
        fitting = [kernel for kernel in versions if kernel.version_range[0] <= opset <= kernel.version_range[1]]
        for constraint in schema.type_constraints[:1]:
            taken = {text for kernel in fitting for text in kernel.type_constraints.get(constraint.type_param_str, ())}
            missing = [
                text.removeprefix("tensor(").removesuffix(")")
                for text in constraint.allowed_type_strs
                if text.startswith("tensor(") and text not in taken
            ]
            if taken and missing:
                found[name] = sorted(missing)
    return found


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Types without a kernel in ONNX Runtime's CPU execution provider.")
    parser.add_argument("--opset", type=int, default=20)
    for name, types in missing_types(parser.parse_args().opset).items():
        print(f"{name:24} {', '.join(types)}")


if __name__ == "__main__":
    main()
