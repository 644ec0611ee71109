"""Which element types the CPU execution provider of the installed ONNX Runtime cannot load, per operator.

    python -m benchmarks.kernel_probe [--operators Add,Max]

Each operator of ONNX is loaded as a model of one node, in each form that it has from opset 11 on and with each type
that its schema allows for each of its type variables. ``fxonnx_translations/_opsets/ort_kernels.py`` holds the output
for ONNX Runtime 1.31. Sequences, strings, complex numbers, types of less than 8 bits and 8-bit floats are left out.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx
import onnx.defs
import onnxruntime
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

OPSETS = range(11, 27)
TYPES = ("float", "int64", "bool", "double", "float16", "bfloat16", "int8", "int16", "int32")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
_REQUIRED: Mapping[tuple[str, str], Any] = {
    ("BitShift", "direction"): "LEFT",
    ("DeformConv", "kernel_shape"): [2, 2],
}


def versions(name: str) -> Iterator[tuple[int, onnx.defs.OpSchema]]:
    """Each form of an operator, with the newest opset that has it."""
    forms = {}
    for opset in OPSETS:
        try:
            schema = onnx.defs.get_schema(name, opset)
        except onnx.defs.SchemaError:
            continue
        if not schema.deprecated:
            forms[schema.since_version] = (opset, schema)
    yield from forms.values()


def model_of(schema: onnx.defs.OpSchema, opset: int, types: Mapping[str, str]) -> bytes:
    """A model of one node with the required inputs, all of unknown shape."""
    option = onnx.defs.OpSchema.FormalParameterOption
    inputs = []
    for index, formal in enumerate(schema.inputs):
        if formal.option == option.Optional:
            break
        text = types.get(formal.type_str) or formal.type_str.removeprefix("tensor(").removesuffix(")")
        inputs.append(helper.make_tensor_value_info(f"x{index}", TensorProto.DataType.Value(text.upper()), None))
    outputs = [onnx.ValueInfoProto(name=f"y{i}") for i, y in enumerate(schema.outputs) if y.option != option.Optional]
    if not outputs:
        outputs = [onnx.ValueInfoProto(name="y0")]
    attributes = {
        name: _REQUIRED.get((schema.name, name), _value(attribute))
        for name, attribute in schema.attributes.items()
        if attribute.required
    }
    names = [value.name for value in inputs], [value.name for value in outputs]
    node = helper.make_node(schema.name, *names, **attributes)
    graph = helper.make_graph([node], "probe", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return bytes(model.SerializeToString())


def _value(attribute: onnx.defs.OpSchema.Attribute) -> Any:
    kinds = onnx.defs.OpSchema.AttrType
    return {kinds.INT: 1, kinds.INTS: [2, 2], kinds.FLOAT: 1.0, kinds.STRING: ""}[attribute.type]


def loads(model: bytes, options: onnxruntime.SessionOptions) -> bool:
    """Whether ONNX Runtime has a kernel for each node of the model."""
    try:
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except (runtime.NotImplemented, runtime.InvalidGraph):
        return False
    except (runtime.Fail, runtime.RuntimeException) as error:
        # Then there is a kernel, and it asks for an attribute or a constant input.
        return "during initialization" in str(error)
    return True


def missing(schema: onnx.defs.OpSchema, opset: int, options: onnxruntime.SessionOptions) -> dict[str, list[str]] | None:
    """The types of each type variable that are not loaded, or None when nothing is."""
    known = (*TYPES, *UNSIGNED)
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    used = {formal.type_str for formal in schema.inputs if formal.option != optional}
    variables = {
        constraint.type_param_str: [text for text in known if f"tensor({text})" in constraint.allowed_type_strs]
        for constraint in schema.type_constraints
        if constraint.type_param_str in used
    }
    if not all(variables.values()):
        return None
    for first in itertools.product(*(types[:3] for types in variables.values())):
        base = dict(zip(variables, first, strict=True))
        if loads(model_of(schema, opset, base), options):
            break
    else:
        return None
    found = {}
    for variable, types in variables.items():
        refused = []
        for text in types:
            # Some kernels take a type only when all inputs have it.
            together = {name: text if text in allowed else base[name] for name, allowed in variables.items()}
            models = (model_of(schema, opset, chosen) for chosen in ({**base, variable: text}, together))
            if not any(loads(model, options) for model in models):
                refused.append(text)
        if refused:
            found[variable] = refused
    return found


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Types that ONNX Runtime's CPU execution provider cannot load.")
    parser.add_argument("--operators", default="", help="names, separated by commas; all by default")
    names: Sequence[str] = [name for name in parser.parse_args().operators.split(",") if name]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    every = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    print(f"ONNX Runtime {onnxruntime.__version__}")
    for name in sorted(names or every):
        for opset, schema in versions(name):
            try:
                found = missing(schema, opset, options)
            except KeyError:
                # A subgraph, or a type that is left out.
                continue
            version = f"{name}-{schema.since_version}"
            if found is None:
                print(f"{version:24} no kernel")
            for variable, types in (found or {}).items():
                print(f"{version:24} {variable:4} {' '.join(types)}")


if __name__ == "__main__":
    main()
