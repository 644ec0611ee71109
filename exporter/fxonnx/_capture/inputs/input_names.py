"""Names of graph inputs and outputs, derived from pytree paths in the arguments and results of ``forward``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, OutputKind

from fxonnx_translations._torch_compat import pytree

from ..shapes.dynamic_shapes import Leaf
from .example_inputs import BoundInputs, user_input_names
from .pytree_objects import is_object

__all__ = [
    "dotted_name",
    "graph_names",
    "input_paths",
    "output_paths",
]


# Caches that a language model takes and returns: the output is renamed, as in optimum. From transformers 5.24 on, the
# field of the result is "cache", also where the model takes "past_key_values".
_CACHES = {
    "past_key_values": ("past_key_values",),
    "cache_params": ("cache_params",),
    "cache": ("past_key_values", "cache_params"),
}
_KEYS_OF_CACHE = re.compile(r"cache_\d+_key")


def input_paths(program: ExportedProgram, inputs: BoundInputs, leaves: tuple[Leaf, ...]) -> dict[str, str]:
    """Placeholder to path (``past_key_values.0.key``) for inputs in objects; other inputs keep torch's names."""
    if inputs.table.objects is None:
        return {}
    args, kwargs = inputs.table.objects
    given = {**dict(zip(inputs.names(), args, strict=True)), **kwargs}
    with_objects = {
        name for name, value in given.items() if any(map(is_object, pytree.tree_leaves(value, is_leaf=is_object)))
    }
    return {
        placeholder: _dotted(leaf.label)
        for placeholder, leaf in zip(user_input_names(program), leaves, strict=True)
        if leaf.parameter in with_objects
    }


def _dotted(label: str) -> str:
    """Convert a label to a dotted path: ``caches[0]['1.key']`` to ``caches.0.1.key``."""
    return label.replace("['", ".").replace("[", ".").replace("']", "").replace("]", "")


def output_paths(program: ExportedProgram) -> Mapping[int, str]:
    """Index of the user output to dotted path, for outputs in a dict, a dataclass or an object.

    A path of list and tuple indices only is omitted: the name of the operator is more informative.
    """
    structure = program.call_spec.out_spec
    if structure is None:
        return {}
    vals = {node.name: node.meta.get("val") for node in program.graph.nodes}
    values = [
        spec.arg.value if isinstance(spec.arg, ConstantArgument) else vals[spec.arg.name]
        for spec in program.graph_signature.output_specs
        if spec.kind == OutputKind.USER_OUTPUT
    ]
    taken = user_input_names(program)
    returned = {name for name, given in _CACHES.items() if any(_is_input(one, taken) for one in given)}
    if any(map(_KEYS_OF_CACHE.fullmatch, taken)):
        returned.add("cache")
    found: dict[int, str] = {}
    for position, names in enumerate(_leaf_paths(pytree.tree_unflatten(values, structure))):
        if not any(isinstance(name, str) for name in names):
            continue
        if names[0] in returned:
            names[0] = "present"
        found[position] = ".".join(map(str, names))
    return found


def _is_input(parameter: str, placeholders: Iterable[str]) -> bool:
    """Whether a parameter of forward, or a part of it, is an input."""
    return any(name == parameter or name.startswith(f"{parameter}_") for name in placeholders)


def _leaf_paths(tree: Any) -> Iterator[list[str | int]]:
    """Path of every leaf. pytree's own function rejects containers that are registered without keys."""
    node = pytree.SUPPORTED_NODES.get(pytree._get_node_type(tree))
    if node is None:
        yield []
        return
    if node.flatten_with_keys_fn is not None:
        parts = [(_path_step(entry), child) for entry, child in node.flatten_with_keys_fn(tree)[0]]
    else:
        children, _ = node.flatten_fn(tree)
        is_named = isinstance(tree, Mapping) and len(tree) == len(children)
        parts = list(zip(map(str, tree) if is_named else range(len(children)), children, strict=True))
    for name, child in parts:
        for path in _leaf_paths(child):
            yield [name, *path]


def _path_step(entry: Any) -> str | int:
    if isinstance(entry, pytree.SequenceKey):
        return int(entry.idx)
    return str(entry.key if isinstance(entry, pytree.MappingKey) else getattr(entry, "name", entry))


# One step of the output of pytree.keystr: the repr of a key in brackets, or an attribute.
_PATH_STEP = re.compile(r"""\[('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\]]*)\]|\.(\w+)""")


def graph_names(leaves: Sequence[Leaf]) -> list[str]:
    """Placeholder names as torch.export assigns them: ``x_a_0`` for ``x['a'][0]``, ``x_a_0_1`` if that is taken."""
    names: list[str] = []
    for leaf in leaves:
        wanted = dotted_name(leaf, "_", other="_").lower()
        name, number = wanted, 0
        while name in names:
            number += 1
            name = f"{wanted}_{number}"
        names.append(name)
    return names


def dotted_name(leaf: Leaf, separator: str = ".", other: str | None = None) -> str:
    """Join the parameter and the path of a leaf: ``x.a.0`` for ``x['a'][0]``.

    Args:
        leaf: The leaf.
        separator: Separator between the steps of the path.
        other: Replacement for characters other than letters and digits; None keeps them.
    """
    steps = [leaf.parameter]
    for key, field in _PATH_STEP.findall(leaf.path):
        steps.append(key[1:-1] if key[:1] in ("'", '"') else key or field)
    if other is not None:
        steps = [re.sub(r"[^a-zA-Z0-9]", other, step) for step in steps]
    return separator.join(steps)
