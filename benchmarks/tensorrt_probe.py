"""Which models TensorRT refuses: its ONNX parser and its builder are asked, without a GPU.

    pip install tensorrt_rtx_cu13_bindings tensorrt_rtx_cu13_libs
    python -m benchmarks.tensorrt_probe model.onnx ...

The bindings belong to TensorRT for RTX, whose parser is TensorRT's and whose builder works ahead of time, for a
compute capability instead of the GPU at hand. For each file its answer is printed beside the findings of
``fxonnx check``. ``python -m benchmarks.target_kernels tensorrt`` writes the table of TensorRT with it: it builds the
models of one node by which onnx tests an operator, in each element type.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.defs
from onnx import TensorProto, helper, numpy_helper

from ._workers import Worker

COMPUTE_CAPABILITY = "SM86"
NEWEST_OPSET = 26
TYPES = ("float", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool")
_RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
# TensorRT has these as plugins, which TensorRT for RTX lacks, or onnx has no test that it builds. The types are from
# docs/operators.md of ONNX-TensorRT 10.15.
_DOCUMENTED = {
    **dict.fromkeys(("DeformConv", "NonMaxSuppression", "NonZero", "RoiAlign"), "float float16"),
    **dict.fromkeys((*_RANDOM, "Dropout", "GlobalLpPool"), "bfloat16 float float16"),
    "Loop": "bfloat16 bool float float16 int32 int64",
    "Range": "float int32 int64",
    # TensorRT for RTX refuses it in bfloat16.
    "ConvTranspose": "bfloat16 float float16",
    "DequantizeLinear": "float4e2m1 float8e4m3fn int4 int8",
    "QuantizeLinear": "bfloat16 float float16",
}
# These take bytes from the caller; there are none between other operators.
_TAKE_BYTES = frozenset({"Cast", "CastLike", "Identity", "Shape", "Size"})
_MODELS_PER_OPERATOR = 12
_SECONDS = 60
_WORK = ["benchmarks.tensorrt_probe", "--work"]


class Builder:
    """The parser and the builder of the installed TensorRT for RTX."""

    def __init__(self) -> None:
        libraries = importlib.util.find_spec("tensorrt_rtx_libs")
        if libraries is None or libraries.origin is None:
            raise SystemExit("install tensorrt_rtx_cu13_bindings and tensorrt_rtx_cu13_libs")
        # The parser's library depends on the other one.
        for path in sorted(Path(libraries.origin).parent.glob("lib*.so*"), reverse=True):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        self._library: Any = importlib.import_module("tensorrt_rtx_bindings")
        self._errors: list[str] = []
        self._logger = _logger(self._library, self._errors)
        self._builder = self._library.Builder(self._logger)

    @property
    def version(self) -> str:
        """The version of TensorRT for RTX."""
        return str(self._library.__version__)

    def problem(self, model: bytes, sizes: Mapping[str, Sequence[Sequence[int]]]) -> str:
        """The error of the parser or the builder; empty if there is none.

        Args:
            model: The file.
            sizes: Smallest, usual and largest shape of each input, or values of an input that others' shapes depend on;
                dims that are missing have any size from 1 to 4.
        """
        trt = self._library
        self._errors.clear()
        network = self._builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(network, self._logger)
        if not parser.parse(model):
            errors = [parser.get_error(index) for index in range(parser.num_errors)]
            return "; ".join(f"{each.node_operator()} {each.node_name()}: {each.desc()}" for each in errors) or "error"
        config = self._builder.create_builder_config()
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, COMPUTE_CAPABILITY), 0)
        profile, used = self._builder.create_optimization_profile(), False
        for value in (network.get_input(index) for index in range(network.num_inputs)):
            shape = list(value.shape)
            if value.is_shape_tensor:
                profile.set_shape_input(value.name, *sizes.get(value.name, [[1], [2], [4]]))
                used = True
            if -1 in shape:
                default = [[size if dim == -1 else dim for dim in shape] for size in (1, 2, 4)]
                profile.set_shape(value.name, *sizes.get(value.name, default))
                used = True
        if used:
            config.add_optimization_profile(profile)
        if self._builder.build_serialized_network(network, config) is not None:
            return ""
        return self._errors[0] if self._errors else "not built"


def _logger(library: Any, errors: list[str]) -> Any:
    class Logger(library.ILogger):  # type: ignore[misc]
        def log(self, severity: Any, message: str) -> None:
            if severity <= library.ILogger.Severity.ERROR:
                errors.append(message)

    return Logger()


def work() -> None:
    """A worker, which may crash: models as JSON lines in, problems as JSON lines out."""
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    builder = Builder()
    for line in sys.stdin:
        task = json.loads(line)
        model = base64.b64decode(task["model"]) if "model" in task else Path(task["path"]).read_bytes()
        answer = {"problem": builder.problem(model, task.get("sizes", {})), "version": builder.version}
        print(json.dumps(answer), file=results, flush=True)


class Probe:
    """Asks a worker process, which is started anew after a crash."""

    def __init__(self) -> None:
        self._worker = Worker(_WORK, _SECONDS)

    def problem(self, model: bytes) -> str:
        """The reason for which TensorRT refuses a model; empty if it does not."""
        answer = self._worker.do({"model": base64.b64encode(model).decode()})
        return f"crash {answer}" if isinstance(answer, int) else str(answer["problem"])

    def version(self) -> str:
        """The version of TensorRT for RTX."""
        answer = self._worker.do({"model": ""})
        if isinstance(answer, int):
            raise SystemExit("install tensorrt_rtx_cu13_bindings and tensorrt_rtx_cu13_libs")
        return str(answer["version"])

    def close(self) -> None:
        """End the process."""
        self._worker.close()


class Example:
    """A model of one node with example inputs, in any element type that the operator has."""

    def __init__(self, model: onnx.ModelProto, inputs: Sequence[Any]) -> None:
        self.node = model.graph.node[0]
        self._inputs = dict(zip((value.name for value in model.graph.input), inputs, strict=True))
        self._shapes = {value.name: value.type.tensor_type for value in model.graph.output}
        imported = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 0)
        self.opset = min(imported, NEWEST_OPSET)
        self.schema = onnx.defs.get_schema(self.node.op_type, self.opset)

    def variables(self, replaced: Mapping[str, str]) -> dict[str, str]:
        """Type variable to element type, as in the example, with some types replaced by others."""
        found: dict[str, str] = {}
        for formal, name in (*_formals(self.schema.inputs, self.node.input),):
            if name in self._inputs:
                kind = helper.np_dtype_to_tensor_dtype(self._inputs[name].dtype)
                found.setdefault(formal.type_str, _text(kind))
        for formal, name in _formals(self.schema.outputs, self.node.output):
            if name in self._shapes:
                found.setdefault(formal.type_str, _text(self._shapes[name].elem_type))
        return {variable: replaced.get(text, text) for variable, text in found.items()}

    def model(self, types: Mapping[str, str], constants: bool) -> bytes:
        """The file, with the types of some variables replaced.

        Args:
            types: Type variable to element type.
            constants: Whether all inputs but the first are initializers.
        """
        graph = onnx.GraphProto(name="probe", node=[self.node])
        if self.node.op_type == "Cast":
            graph.node[0].attribute[0].i = TensorProto.DataType.Value(types["T2"].upper())
        for index, (formal, name) in enumerate(_formals(self.schema.inputs, self.node.input)):
            if name not in self._inputs:
                continue
            array = self._inputs[name]
            kind = TensorProto.DataType.Value(types[formal.type_str].upper())
            if index and constants:
                converted = array.astype(helper.tensor_dtype_to_np_dtype(kind))
                graph.initializer.append(numpy_helper.from_array(converted, name))
            else:
                graph.input.append(helper.make_tensor_value_info(name, kind, array.shape))
        for formal, name in _formals(self.schema.outputs, self.node.output):
            if name in self._shapes:
                graph.output.append(onnx.ValueInfoProto(name=name))
                kind = TensorProto.DataType.Value(types[formal.type_str].upper())
                graph.output[-1].type.tensor_type.elem_type = kind
        opsets = [helper.make_opsetid("", self.opset)]
        return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def _formals(formals: Sequence[Any], names: Sequence[str]) -> Iterator[tuple[Any, str]]:
    """The formal parameter of each name; the last one may be variadic."""
    for index, name in enumerate(names):
        yield formals[min(index, len(formals) - 1)], name


def _text(kind: int) -> str:
    return str(TensorProto.DataType.Name(kind)).lower()


def examples() -> dict[str, list[Example]]:
    """Operator to models of one node of it, from the tests of onnx."""
    from onnx.backend.test.case.node import collect_testcases

    found: dict[str, list[Example]] = {}
    for case in collect_testcases(None):
        if case.model is None:
            continue
        nodes = case.model.graph.node
        inputs: list[Any] = [_array(value) for value in case.data_sets[0][0]] if case.data_sets else [None]
        if len(nodes) != 1 or nodes[0].domain or not all(isinstance(value, np.ndarray) for value in inputs):
            continue
        if not onnx.defs.has(nodes[0].op_type, NEWEST_OPSET):
            continue
        if all(value.type.HasField("tensor_type") for value in case.model.graph.output):
            found.setdefault(nodes[0].op_type, []).append(Example(case.model, inputs))
    for model, arrays in _additional():
        found[model.graph.node[0].op_type] = [Example(model, arrays)]
    return {
        name: sorted(each, key=lambda example: len(example.node.input))[:_MODELS_PER_OPERATOR]
        for name, each in sorted(found.items())
    }


def _additional() -> Iterator[tuple[onnx.ModelProto, list[np.ndarray[Any, Any]]]]:
    """Models of operators whose forms in the tests of onnx TensorRT does not build."""
    for op_type, shapes in (
        ("Attention", [(1, 2, 3, 16)] * 3),
        ("LayerNormalization", [(2, 3, 4), (4,), (4,)]),
    ):
        names = [f"x{index}" for index in range(len(shapes))]
        values = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in zip(names, shapes, strict=True)
        ]
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = helper.make_graph([helper.make_node(op_type, names, ["y"])], "probe", values, [y])
        opset = onnx.defs.get_schema(op_type, NEWEST_OPSET).since_version
        yield (
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]),
            [np.ones(shape, np.float32) for shape in shapes],
        )


def kernels() -> tuple[str, dict[str, dict[str, set[str]]]]:
    """The version of TensorRT for RTX, and for each operator the element types of its type variables.

    The variable ``*`` is the first input's.
    """
    probe = Probe()
    version = probe.version()
    found: dict[str, dict[str, set[str]]] = {}
    for name, tried in examples().items():
        types = types_of(probe, tried)
        if types is None:
            continue
        first = tried[-1].schema.inputs[0].type_str if tried[-1].schema.inputs else ""
        for accepted in types.values():
            accepted -= set() if name in _TAKE_BYTES else {"uint8"}
        found[name] = {("*" if variable == first else variable): texts for variable, texts in types.items()}
        print(name, {variable: " ".join(sorted(texts)) for variable, texts in found[name].items()}, flush=True)
    probe.close()
    return version, found | {name: {"*": set(text.split())} for name, text in _DOCUMENTED.items()}


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def types_of(probe: Probe, tried: Sequence[Example]) -> dict[str, set[str]] | None:
    """The element types of each variable of the inputs in which an operator is built; None if it never is."""
    forms = [(each, constants) for each in tried for constants in (True, False)]
    for base in ({}, {"float": "float16"}, {"float": "bfloat16"}):
        built = [form for form in forms if _builds(probe, form[0], form[0].variables(base), form[1])]
        if built:
            break
    else:
        return None
    schema = tried[-1].schema
    used = {formal.type_str for formal in schema.inputs} | ({"T2"} if schema.name == "Cast" else set())
    found: dict[str, set[str]] = {}
    for constraint in schema.type_constraints:
        variable = constraint.type_param_str
        allowed = [text for text in TYPES if f"tensor({text})" in constraint.allowed_type_strs]
        if variable in used and allowed:
            accepts = partial(_accepts, probe, built, base, variable)
            found[variable] = {text for text in allowed if accepts(text)}
    return found


def _accepts(
    probe: Probe, built: Sequence[tuple[Example, bool]], base: Mapping[str, str], variable: str, text: str
) -> bool:
    for example, constants in built:
        own = example.variables(base)
        if variable not in own:
            continue
        if own[variable] == text or _builds(probe, example, {**own, variable: text}, constants):
            return True
        # Some variables must have the same type, which the schema cannot express.
        allowed = {each.type_param_str: each.allowed_type_strs for each in example.schema.type_constraints}
        together = {name: text if f"tensor({text})" in allowed.get(name, ()) else one for name, one in own.items()}
        if _builds(probe, example, together, constants):
            return True
    return False


def _builds(probe: Probe, example: Example, types: Mapping[str, str], constants: bool) -> bool:
    try:
        model = example.model(types, constants)
    except (KeyError, TypeError, ValueError):  # a type that numpy or onnx lacks
        return False
    return not probe.problem(model)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Which models TensorRT refuses, beside the findings of check.")
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return
    import fxonnx

    worker = Worker(_WORK, _SECONDS)
    for path in options.files:
        answer = worker.do({"path": str(path)})
        problem = f"crash {answer}" if isinstance(answer, int) else answer["problem"]
        failing = [found for found in fxonnx.check(path, "tensorrt") if found.severity == "fails"]
        print(f"{path}: TensorRT {' '.join(problem.split())[:300] or 'builds it'}")
        for found in failing:
            print(f"    {found}")
    worker.close()


if __name__ == "__main__":
    main()
