"""Contents and sizes of archives, checked before torch reads them: torch.export.load evaluates texts of the file."""

from __future__ import annotations

import json
import math
import operator
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from enum import EnumMeta
from pathlib import Path
from typing import IO, Any, NoReturn

import torch

from fxonnx_translations._torch_compat import HigherOrderOperator, OpOverload

from .expressions import check_guard, check_size

__all__ = ["UnsafeContentError", "check_archive_size", "read_program", "refuse_compiled_code"]

_Path = tuple[str | int, ...]


class UnsafeContentError(ValueError):
    """An entry of a file that could execute code, or that torch.export does not write.

    Args:
        entry: Path of the entry in the file.
        problem: What is wrong with it.
    """

    def __init__(self, entry: str, problem: str) -> None:
        super().__init__(f"{entry}: {problem}")


def read_program(original: Callable[..., Any], cls: Any, content: bytes) -> Any:
    """``_bytes_to_dataclass``, the reader of serialized programs, after a check of all texts.

    Raises:
        UnsafeContentError: If a text is not one that torch.export writes.
    """
    path: _Path = ()
    text = ""
    try:
        for path, text in _texts(json.loads(content)):
            _check(path, text)
    except ValueError as error:
        raise UnsafeContentError(_entry(path), f"{_shortened(text)}: {error}") from None
    return original(cls, content)


def refuse_compiled_code(original: Callable[..., Any], file: Any, model_name: str, *args: Any) -> NoReturn:
    """``_load_aoti``, which loads machine code of the file into the process.

    Raises:
        UnsafeContentError: Always.
    """
    raise UnsafeContentError(f"data/aotinductor/{model_name}", "compiled code, which would be executed")


def _entry(path: _Path) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _shortened(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:77]!r}..."


_FREE = frozenset({"custom", "metadata", "torch_version"})
"""Entries that nothing evaluates: stack traces, names of modules, versions."""


def _texts(data: Any) -> Iterator[tuple[_Path, str]]:
    """All texts and keys of JSON data with their paths, except for ``_FREE`` entries."""
    remaining: list[tuple[_Path, Any]] = [((), data)]
    while remaining:
        path, value = remaining.pop()
        if isinstance(value, str):
            yield path, value
        elif isinstance(value, list):
            remaining += ((((*path, index)), each) for index, each in enumerate(value))
        elif isinstance(value, dict):
            for key, each in value.items():
                yield (*path, "(key)"), key
                if key not in _FREE:
                    remaining.append(((*path, key), each))


_PLAIN = re.compile(r"[\w.<>+-]*")
"""Names: torch writes some into the text of a function as they are."""

_QUOTED = re.compile(r"""[^'"\\\x00-\x1f\x7f{}]*""")
"""Texts that torch writes between quotation marks into the text of a function."""

_MODULE_NAMES = frozenset(
    {"buffer_name", "custom_obj_name", "fqn", "parameter_name", "tensor_constant_name", "user_input_name"}
)
_LARGE_SYMBOL = re.compile(r"[a-z]+\d{7,}")


def _check(path: _Path, text: str) -> None:
    """Check a text."""
    names = [part for part in path if isinstance(part, str)]
    key = names[-1]
    if key == "(key)":
        _check_key(names[:-1], text)
    elif key == "expr_str":
        check_size(text)
    elif key == "guards_code":
        check_guard(text)
    elif key in ("target", "as_operator"):
        _check_operator(text)
    elif key in ("in_spec", "out_spec"):
        structure = json.loads(text)
        _check_structure(structure)
        for keyword in _keywords(structure) if key == "in_spec" else ():
            _match(_PLAIN, keyword, f"{_shortened(keyword)} is not the name of an argument")
    elif key in ("as_string", "as_strings") and "nodes" in names and "inputs" in names[names.index("nodes") :]:
        pass  # an argument of an operator, of which the code has the repr
    elif key in ("as_string", "as_strings") or key in _MODULE_NAMES:
        _match(_QUOTED, text, "a text with quotation marks, braces or control characters")
    else:
        _match(_PLAIN, text, "not a name")


def _check_key(names: list[str], text: str) -> None:
    owner = names[-1] if names else ""
    if owner == "range_constraints":
        if _LARGE_SYMBOL.search(text):  # torch counts up to the number
            raise ValueError("the number of the symbol is too large")
        check_size(text)
    elif owner == "as_string_to_argument":
        _match(_QUOTED, text, "a text with quotation marks, braces or control characters")
    else:
        _match(_PLAIN, text, "not a name")


def _match(form: re.Pattern[str], text: str, problem: str) -> None:
    if form.fullmatch(text) is None:
        raise ValueError(problem)


_FUNCTIONS = frozenset(
    {
        *("torch._C._set_grad_enabled", "torch.amp.autocast_mode._enter_autocast"),
        *("torch.amp.autocast_mode._exit_autocast", "torch.autograd.grad_mode.set_grad_enabled"),
        *("torch.fx.experimental.symbolic_shapes.cast_symbool_to_symint_guardless", "torch.sym_float"),
        *("torch.sym_int", "torch.sym_ite", "torch.sym_max", "torch.sym_min", "torch.sym_not"),
        *("torch.sym_sqrt", "torch.sym_sum"),
    }
)
_PURE_OPERATORS = frozenset(
    {
        *("abs", "add", "and_", "contains", "eq", "floordiv", "ge", "getitem", "gt", "index", "inv"),
        *("invert", "is_", "is_not", "le", "lshift", "lt", "matmul", "mod", "mul", "ne", "neg", "not_"),
        *("or_", "pos", "pow", "rshift", "sub", "truediv", "truth", "xor"),
    }
)
_PREDISPATCH = re.compile(r"torch\._functorch\.predispatch\.\w+")
_FILE_ARGUMENT = re.compile("file|path")


def _check_operator(name: str) -> None:
    """Check what torch finds under a name: an operator, or a function of numbers.

    Names that torch does not find stay texts and are its error: an operator that is not registered.
    """
    if name in _FUNCTIONS or _PREDISPATCH.fullmatch(name) or name.startswith("#"):
        return
    path = name.partition(".")[2]
    modules = (("_operator", operator), ("torch", torch), ("math", math))
    found: Any = next((module for start, module in modules if name.startswith(start)), None)
    if (found is math and path in vars(math)) or (found is operator and path in _PURE_OPERATORS):
        return
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is None:
        return
    if not isinstance(found, (OpOverload, HigherOrderOperator)):
        raise ValueError("not an operator")
    if isinstance(found, OpOverload):
        for argument in found._schema.arguments:
            if "str" in str(argument.type) and _FILE_ARGUMENT.search(argument.name):
                raise ValueError(f"the operator accesses the file that its argument {argument.name} names")


_FACTORY_MODULES = frozenset({"builtins", "collections"})


def _check_structure(data: Any) -> None:
    """Check the structure of the inputs or outputs: names of keywords, factories and enums of Python."""
    remaining = [data]
    while remaining:
        value = remaining.pop()
        if isinstance(value, list):
            remaining += value
        elif isinstance(value, dict):
            _check_classes(value)
            context = value.get("context")
            if isinstance(context, str) and value.get("type") is not None:
                remaining.append(_context(context))
            remaining += (each for key, each in value.items() if key != "context" or not isinstance(each, str))
            remaining += value
        elif isinstance(value, str):
            _match(_QUOTED, value, f"{_shortened(value)} has quotation marks, braces or control characters")


def _keywords(data: Any) -> list[str]:
    """The names of the keyword arguments, with which torch compiles a function."""
    try:
        (_, structure) = data
        names = _context(structure["children_spec"][1]["context"])
    except (IndexError, KeyError, TypeError, ValueError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def _context(text: str) -> Any:
    """The context of a container: JSON, or a name of its class."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _check_classes(value: dict[str, Any]) -> None:
    """Check that nothing is imported, and nothing but classes is looked up, by the names in a context."""
    if "default_factory_module" in value:
        module, name = value["default_factory_module"], str(value.get("default_factory_name"))
        if module not in _FACTORY_MODULES or not isinstance(vars(sys.modules[module]).get(name), type):
            raise ValueError(f"a defaultdict of {module}.{name}, which is not a built-in class")
    if "__enum__" in value:
        owner, _, path = str(value.get("fqn")).partition(":")
        found: Any = sys.modules.get(owner)
        for name in path.split("."):
            found = getattr(found, "__dict__", {}).get(name)
        if not isinstance(found, EnumMeta):
            raise ValueError(f"{value.get('fqn')} is not an enum of a module that is imported")


_BYTES = 2**30
_RATIO = 8
"""torch stores entries without compression; compressed again, weights become a little smaller."""
_ZIP = b"PK\x03\x04"


def check_archive_size(path: Path) -> None:
    """Check that a file does not decompress to more than 1 GiB and 8 times its size; others than archives may be any.

    Args:
        path: The file.

    Raises:
        UnsafeContentError: If it does, or an archive in it does.
    """
    try:
        with path.open("rb") as file:
            _check_entries(file, path.stat().st_size, "archive", may_nest=True)
    except (OSError, RuntimeError, NotImplementedError, zipfile.BadZipFile):
        return  # which its reader reports


def _check_entries(file: IO[bytes], size: int, name: str, *, may_nest: bool) -> None:
    """Check an archive, and those in it, of which torch writes one for weights that are no plain tensors."""
    is_archive = file.read(len(_ZIP)) == _ZIP
    file.seek(0)
    if not is_archive:
        return
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        total, limit = sum(entry.file_size for entry in entries), max(_BYTES, _RATIO * size)
        if total > limit:
            problem = f"{size:,} bytes that decompress to {total:,}, which is more than {limit:,}"
            raise UnsafeContentError(name, problem)
        for entry in entries if may_nest else ():
            with archive.open(entry) as content:
                _check_entries(content, entry.file_size, entry.filename, may_nest=False)
