"""Time that ONNX Runtime needs for each module and operator of a model, from its profiler."""

from __future__ import annotations

import bisect
import json
import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from fxonnx_translations._builder.dtypes import to_torch_dtype

from .._lower.inlining import inlined
from .._model_files import is_sequence, origin_of
from .._program import ONNXProgram
from .._program.session import Session
from ..errors import ArgumentError

if TYPE_CHECKING:
    import onnx
    import onnxruntime

__all__ = ["RuntimeProfile", "random_inputs", "runtime_profile"]

_KERNEL = "_kernel_time"
_BLOCKED = "_nchwc"
"""Suffix of the nodes that ONNX Runtime computes in its blocked layout; before it is the name of their result."""
_CORES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Conv": ("Conv",),
        "FusedConv": ("Conv",),
        "FusedGemm": ("Gemm", "MatMul"),
        "FusedMatMul": ("MatMul",),
        "Gemm": ("Gemm", "MatMul"),
        "SkipLayerNormalization": ("LayerNormalization",),
        "SkipSimplifiedLayerNormalization": ("RMSNormalization", "Mul"),
    }
)
"""Fused operator to the operators among those which it replaces whose module it belongs to."""
_MAX_FUSED = 6
_ERRORS_ONLY = 3


@dataclass(frozen=True)
class RuntimeProfile:
    """The time of one run in ONNX Runtime, in microseconds: for each node, the median of several runs.

    Attributes:
        modules: Path of each module, "" for the model, to the time of its own nodes, without its submodules';
            in graph order.
        operators: Operator of the graph that ONNX Runtime runs, after its optimizations, to time; the slowest first.
        not_attributed: The time of nodes that ONNX Runtime inserted between modules.
        total: The time of all nodes: the sum of ``modules`` and ``not_attributed``, and of ``operators``.
        repetitions: The number of runs.
    """

    modules: Mapping[str, float]
    operators: Mapping[str, float]
    not_attributed: float
    total: float
    repetitions: int

    def time_of(self, module: str) -> float:
        """The time of a module with its submodules.

        Args:
            module: Its path, "" for the model.
        """
        inside = f"{module}." if module else ""
        return sum(time for path, time in self.modules.items() if path == module or path.startswith(inside))


@dataclass(frozen=True)
class _Kernel:
    """A node in one run, without the nodes of its subgraphs.

    Attributes:
        node: Its name in the optimized graph.
        op_type: Its operator.
        run: The number of the run, from 0 on.
        time: Microseconds.
    """

    node: str
    op_type: str
    run: int
    time: float


def runtime_profile(
    model: ONNXProgram | ir.Model, inputs: Sequence[Any] | None = None, repetitions: int = 10
) -> RuntimeProfile:
    """Run a model with ONNX Runtime's profiler.

    Fused nodes belong to the module of their main operator: a convolution with the activation after it to that of the
    convolution.

    Args:
        model: A program, or a model with the metadata of fxonnx or torch.onnx, or names like ``/features/Conv``.
        inputs: A value for each graph input; by default the example inputs of the program, or random ones.
        repetitions: The number of runs after a first one, which does not count.

    Raises:
        ArgumentError: If the inputs do not match, or cannot be made up.
        RuntimeSessionError: If ONNX Runtime cannot load or run the model.
    """
    if repetitions < 1:
        raise ArgumentError("repetitions", f"expected at least 1, got {repetitions}")
    graph_model = model.model if isinstance(model, ONNXProgram) else model
    examples = model.record.example_inputs if isinstance(model, ONNXProgram) else None
    if inputs is None and isinstance(model, ONNXProgram) and examples is not None:
        inputs = model.interface.bind(*examples)
    flat = _with_names(inlined(graph_model))
    values = random_inputs(flat) if inputs is None else inputs
    with tempfile.TemporaryDirectory(prefix="fxonnx-") as directory:
        kernels, optimized = _run(flat, values, repetitions, Path(directory))
    modules = _Modules(flat, optimized)
    by_operator: defaultdict[str, float] = defaultdict(float)
    by_module: defaultdict[str | None, float] = defaultdict(float)
    for (node, op_type), time in _medians(kernels, repetitions).items():
        by_operator[op_type] += time
        by_module[modules.of(node)] += time
    return RuntimeProfile(
        {path: by_module[path] for path in modules.paths if path in by_module},
        dict(sorted(by_operator.items(), key=lambda item: (-item[1], item[0]))),
        by_module.get(None, 0.0),
        sum(by_operator.values()),
        repetitions,
    )


def _medians(kernels: Sequence[_Kernel], repetitions: int) -> dict[tuple[str, str], float]:
    """Name and operator of each node to the median of its time in a run: other processes slow down single runs."""
    times: dict[tuple[str, str], list[float]] = {}
    for kernel in kernels:
        times.setdefault((kernel.node, kernel.op_type), [0.0] * repetitions)[kernel.run] += kernel.time
    return {key: statistics.median(each) for key, each in times.items()}


def random_inputs(model: ir.Model) -> list[torch.Tensor]:
    """Random inputs for a model: floats, 0 and 1 for integers, and 2 for each dynamic dim.

    Raises:
        ArgumentError: If an input has an unknown dtype or rank.
    """
    generator = torch.Generator().manual_seed(0)
    values = []
    for graph_input in model.graph.inputs:
        if graph_input.name in model.graph.initializers:
            continue
        if graph_input.dtype is None or graph_input.shape is None:
            problem = "random values cannot be made up for it: its dtype or rank is not known"
            hint = "declare both in the file: onnx.helper.make_tensor_value_info(name, type, shape)"
            raise ArgumentError(str(graph_input.name), problem, hint=hint)
        sizes = [dim if isinstance(dim, int) else 2 for dim in graph_input.shape]
        if is_sequence(graph_input):
            sizes = [2, *sizes]
        dtype = to_torch_dtype(graph_input.dtype)
        number = torch.rand(sizes, generator=generator)
        values.append(number.to(dtype) if dtype.is_floating_point or dtype.is_complex else (number > 0.5).to(dtype))
    return values


def _with_names(model: ir.Model) -> ir.Model:
    """The model itself, or a copy with names for all nodes."""
    if all(node.name for node in model.graph.all_nodes()):
        return model
    copy = model.clone()
    names = {node.name for node in copy.graph.all_nodes()}
    number = 0
    for node in copy.graph.all_nodes():
        while not node.name or node.name in names - {node.name}:
            node.name = f"{node.op_type}_{number}"
            number += 1
        names.add(node.name)
    return copy


def _run(
    model: ir.Model, values: Sequence[Any], repetitions: int, directory: Path
) -> tuple[list[_Kernel], onnx.GraphProto]:
    """Run a model; returns the runs of its nodes after the first run, and the optimized graph."""
    import onnx
    import onnxruntime

    created: list[onnxruntime.InferenceSession] = []
    path = directory / "optimized.onnx"

    def create(source: str | bytes) -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ERRORS_ONLY
        options.enable_profiling = True
        options.profile_file_prefix = os.fspath(directory / "profile")
        # The graph without its weights: it tells from which nodes ONNX Runtime made its own.
        options.optimized_model_filepath = os.fspath(path)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights")
        created.append(onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"]))
        return created[-1]

    session = Session(model, create)
    try:
        for _ in range(1 + repetitions):
            session.run(values)
        events = json.loads(Path(created[0].end_profiling()).read_text(encoding="utf-8"))
    finally:
        session.close()
    return list(_kernels(events)), onnx.load(path, load_external_data=False).graph


def _kernels(events: Sequence[Mapping[str, Any]]) -> Iterator[_Kernel]:
    """The kernels of all runs but the first, with their own time: of a loop, without its body."""
    runs = sorted(event["ts"] for event in events if event["name"] == "model_run")
    nodes = [event for event in events if event.get("cat") == "Node" and event["name"].endswith(_KERNEL)]
    nodes = sorted((event for event in nodes if event["ts"] >= runs[1]), key=lambda event: (event["ts"], -event["dur"]))
    own = [float(event["dur"]) for event in nodes]
    open_nodes: list[int] = []
    for index, event in enumerate(nodes):
        while open_nodes and nodes[open_nodes[-1]]["ts"] + nodes[open_nodes[-1]]["dur"] <= event["ts"]:
            open_nodes.pop()
        # Only these have subgraphs; the times of other nodes are rounded and may overlap by a microsecond.
        if open_nodes:
            own[open_nodes[-1]] -= event["dur"]
        if event["args"].get("op_name") in ("If", "Loop", "Scan"):
            open_nodes.append(index)
    for event, time in zip(nodes, own, strict=True):
        name, op_type = event["name"].removesuffix(_KERNEL), event["args"].get("op_name", "")
        yield _Kernel(name, op_type, bisect.bisect(runs, event["ts"]) - 2, max(time, 0.0))


class _Modules:
    """The modules of the nodes that ONNX Runtime runs.

    Args:
        model: The model, all of whose nodes have names.
        optimized: The graph that ONNX Runtime runs.

    Attributes:
        paths: The modules of the model, in graph order.
    """

    def __init__(self, model: ir.Model, optimized: onnx.GraphProto) -> None:
        nodes = list(model.graph.all_nodes())
        self._nodes = {str(node.name): node for node in nodes}
        self._producers = {str(value.name): node for node in nodes for value in node.outputs}
        self._optimized = {node.name: node for node in _all_nodes(optimized)}
        self._makers = {name: node.name for node in self._optimized.values() for name in node.output}
        self._users: dict[str, list[str]] = {}
        for node in self._optimized.values():
            for name in node.input:
                self._users.setdefault(name, []).append(node.name)
        self._known: dict[str, str | None] = {}
        self.paths = list(dict.fromkeys(_module_of(node) for node in nodes))

    def of(self, name: str) -> str | None:
        """The module of an optimized node; None if it stands between modules."""
        if name not in self._known:
            origin = self._origin(name)
            self._known[name] = self._between(name) if origin is None else _module_of(origin)
        return self._known[name]

    def _origin(self, name: str) -> ir.Node | None:
        """The node of the model that an optimized node stands for."""
        optimized = self._optimized.get(name)
        prefix = name
        while prefix and prefix not in self._nodes:
            prefix = prefix.rpartition("/")[0]
        results = [name.removesuffix(_BLOCKED)] if name.endswith(_BLOCKED) else []
        results += [] if optimized is None else optimized.output
        found = self._nodes.get(prefix) or next(
            (self._producers[result] for result in results if result in self._producers), None
        )
        cores = () if optimized is None else _CORES.get(optimized.op_type, ())
        return found if found is None or not cores else _core(found, cores)

    def _between(self, name: str) -> str | None:
        """The module of a node that ONNX Runtime inserted, if the nodes that use it, or else its input, have one."""
        optimized = self._optimized.get(name)
        if optimized is None:
            return None
        users = [self._origin(user) for result in optimized.output for user in self._users.get(result, ())]
        makers = [self._origin(self._makers[source]) for source in optimized.input[:1] if source in self._makers]
        for neighbours in (users, makers):
            modules = {None if node is None else _module_of(node) for node in neighbours}
            if len(modules) == 1:
                return modules.pop()
        return None


def _core(node: ir.Node, op_types: Sequence[str]) -> ir.Node:
    """The nearest node of one of the types that a node depends on, through nodes that can be fused with it."""
    pending = [node]
    for _ in range(_MAX_FUSED):
        found = next((each for each in pending if each.op_type in op_types), None)
        if found is not None:
            return found
        inputs = [value for each in pending for value in each.inputs if value is not None]
        pending = [producer for value in inputs if (producer := value.producer()) is not None]
    return node


def _module_of(node: ir.Node) -> str:
    return origin_of(node)[0]


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _all_nodes(attribute.g)
