"""The seam between the core and its add-ons: the record of an add-on, and how it is found.

The core is the journey of one export, and imports no add-on. An add-on that takes part in exports is a package with two
modules: ``applies`` decides from a model or a graph whether there is anything to do, and imports little; ``extension``
has the record, and is imported for the first model to which the add-on applies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from ._context_values import activated, active

__all__ = [
    "ADD_ONS",
    "Extension",
    "PassContext",
    "active_extensions",
    "add_on",
    "all_extensions",
    "extended",
    "extensions_of_graph",
    "run_graph_passes",
    "stand_in",
    "tracing",
    "translations_of_extensions",
]

ADD_ONS = ("fxonnx.torchscript", "fxonnx.quantization")
"""The packages of the add-ons that take part in exports, in the order in which they are asked."""


@dataclass(frozen=True)
class PassContext:
    """The graph that a pass of an add-on rewrites, with its tensors.

    Attributes:
        module: The functional graph module, which the pass changes in place.
        weights: The placeholders of parameters and buffers.
        constants: Tensors of the graph's ``get_attr`` nodes; the pass adds new ones.
        lifted: Tensors of the placeholders of constants, by name.
        value_of: Returns the tensor of the placeholder of a parameter or buffer.
    """

    module: GraphModule
    weights: Collection[Node]
    constants: dict[str, Tensor]
    lifted: Mapping[str, Tensor]
    value_of: Callable[[Node], Tensor | None]


@dataclass(frozen=True, kw_only=True)
class Extension:
    """The additions of an add-on to the exports to which it applies.

    Attributes:
        stand_in: Context in which another module is captured in the place of the model.
        tracing: Context in which torch.export runs.
        interpreters: Files that interpret code of the user: conditions in them count as conditions in that code.
        patches: Rows of the type ``Patch``, applied while torch.export runs.
        check_outputs: Raises for results of ``forward`` that cannot be exported.
        graph_pass: A pass of the stage prepare, between the folding of batch norms and of weights.
        least_opset: The lowest default opset of a captured graph, given its placeholders of parameters and buffers.
        translations: The translations of an opset that take the place of the built-in ones, by operator overload.
    """

    stand_in: Callable[[Any], AbstractContextManager[nn.Module]] | None = None
    tracing: Callable[[nn.Module], AbstractContextManager[None]] | None = None
    interpreters: frozenset[str] = frozenset()
    patches: tuple[Any, ...] = ()
    check_outputs: Callable[[Any], None] | None = None
    graph_pass: Callable[[PassContext], None] | None = None
    least_opset: Callable[[Graph, Collection[Node]], int] | None = None
    translations: Callable[[int], Mapping[Callable[..., Any], Any]] | None = None


class _Applying(tuple[Extension, ...]):
    """The extensions that apply to the model."""


def active_extensions() -> tuple[Extension, ...]:
    """The extensions that apply to the model whose capture is in progress."""
    return active(_Applying) or ()


def all_extensions() -> tuple[Extension, ...]:
    """The extensions of all add-ons."""
    return tuple(map(_extension, ADD_ONS))


@contextmanager
def extended(model: Any) -> Iterator[None]:
    """Context in which the add-ons that apply to a model are active.

    Args:
        model: The module or scripted function that is captured.
    """
    with activated(_Applying(_extension(name) for name in ADD_ONS if _condition(name, "applies_to_model")(model))):
        yield


def extensions_of_graph(graph: Graph, weights: Collection[Node]) -> tuple[Extension, ...]:
    """The extensions that apply to a graph.

    Args:
        graph: The graph.
        weights: The placeholders of parameters and buffers.
    """
    return tuple(_extension(name) for name in ADD_ONS if _condition(name, "applies_to_graph")(graph, weights))


def translations_of_extensions(opset: int) -> dict[Callable[..., Any], Any]:
    """The translations of all add-ons that have any for an opset, by operator overload."""
    extensions = [_extension(name) for name in ADD_ONS if _condition(name, "has_translations")()]
    return {key: value for one in extensions if one.translations for key, value in one.translations(opset).items()}


def run_graph_passes(context: PassContext) -> None:
    """Run the passes of the add-ons that apply to a graph."""
    for one in extensions_of_graph(context.module.graph, context.weights):
        if one.graph_pass is not None:
            one.graph_pass(context)


@contextmanager
def stand_in(model: Any) -> Iterator[nn.Module]:
    """The module that is captured in the place of a model: the model, or one of an add-on."""
    with ExitStack() as stack:
        for one in active_extensions():
            if one.stand_in is not None:
                model = stack.enter_context(one.stand_in(model))
        yield model


@contextmanager
def tracing(model: nn.Module) -> Iterator[None]:
    """Context in which torch.export runs, as the add-ons require it."""
    with ExitStack() as stack:
        for one in active_extensions():
            if one.tracing is not None:
                stack.enter_context(one.tracing(model))
        yield


def add_on(name: str) -> Any:
    """The module ``extension`` of an add-on, with the functions that an option or a request of the user needs.

    Args:
        name: Name of its package in fxonnx.
    """
    return import_module(f"fxonnx.{name}.extension")


def _extension(name: str) -> Extension:
    found: Extension = import_module(f"{name}.extension").EXTENSION
    return found


def _condition(name: str, function: str) -> Callable[..., bool]:
    return getattr(import_module(f"{name}.applies"), function, _never)


def _never(*_: Any) -> bool:
    return False
