"""Expressions in ``.pt2`` files: sizes, which torch gives to sympy, and guards, which torch compiles."""

from __future__ import annotations

import ast
import builtins
import math
import re
from collections.abc import Iterator

__all__ = ["check_guard", "check_size"]

_TORCH_FUNCTIONS = frozenset(
    {
        *("CeilDiv", "CeilToInt", "CleanDiv", "FloatPow", "FloatTrueDiv", "FloorDiv", "FloorToInt"),
        *("Identity", "IntTrueDiv", "IsNonOverlappingAndDenseIndicator", "LShift", "Max", "Min", "Mod"),
        *("ModularIndexing", "PowByNatural", "PythonMod", "RShift", "RoundDecimal", "RoundToInt", "ToFloat"),
        *("TruncToFloat", "TruncToInt", "Where"),
    }
)
_SYMPY_FUNCTIONS = frozenset(
    {
        *("Abs", "Add", "And", "Eq", "Equality", "ExprCondPair", "Float", "Ge", "GreaterThan", "Gt"),
        *("Integer", "Le", "LessThan", "Lt", "Mul", "Ne", "Not", "Or", "Piecewise", "Pow", "Rational"),
        *("StrictGreaterThan", "StrictLessThan", "Symbol", "Unequality", "Xor", "ceiling", "cos", "exp"),
        *("floor", "log", "sin", "sqrt", "tan"),
    }
)
_OPAQUE_FUNCTION = re.compile(r"(?:OpaqueUnaryFn|BitwiseFn)_[a-z_0-9]+")
_PYTHON_FUNCTIONS = frozenset(
    {
        *("IsNonOverlappingAndDenseIndicator", "abs", "bool", "cast_symbool_to_symint_guardless", "float"),
        *("int", "max", "min", "pow", "round"),
    }
)
_TENSOR_METHODS = frozenset({"size", "stride", "storage_offset"})
_POWERS = frozenset({"FloatPow", "LShift", "Pow", "PowByNatural", "pow"})
_OPERATORS: tuple[type[ast.AST], ...] = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Load, ast.And, ast.Or),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.BitAnd, ast.BitOr, ast.LShift),
    *(ast.RShift, ast.USub, ast.UAdd, ast.Not, ast.Invert, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
)
# sympy removes line breaks before it evaluates, and torch writes guards into the text of a function.
_FORBIDDEN = frozenset('"\\\n\r\f#{};`')
_MAX_LENGTH = 100_000
_MAX_EXPONENT = 64
"""Larger powers of numbers would take all memory."""

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,4})?|[-+]?inf|nan", re.ASCII)


def check_size(text: object) -> None:
    """Check an expression of sizes, in the form of ``str`` or ``sympy.srepr``.

    Args:
        text: The expression.

    Raises:
        ValueError: If it has anything but names, numbers, arithmetic, comparisons and the functions that torch writes.
    """
    checked: set[int] = set()
    for node in _nodes(text):
        if isinstance(node, ast.Call):
            name = _function_name(node)
            if not (name in _TORCH_FUNCTIONS or name in _SYMPY_FUNCTIONS or _OPAQUE_FUNCTION.fullmatch(name)):
                raise ValueError(f"it calls {name}")
            checked.update(map(id, _texts(name, node)))
        elif isinstance(node, ast.keyword):
            if not isinstance(node.value, ast.Constant) or isinstance(node.value.value, str):
                raise ValueError(f"{node.arg}= is not a constant")
        elif isinstance(node, ast.Constant):
            if node.value is not None and id(node) not in checked:
                _check_constant(node)
        else:
            _check_node(node)


def check_guard(text: object) -> None:
    """Check a guard on the inputs, an expression such as ``L['x'].size()[0] % 2 == 0``.

    Args:
        text: The expression.

    Raises:
        ValueError: If it has anything but sizes of inputs, numbers, arithmetic, comparisons and functions of numbers.
    """
    for node in _nodes(text):
        if isinstance(node, ast.Call):
            name = _function_name(node)
            if "." not in name and name not in _PYTHON_FUNCTIONS and not _OPAQUE_FUNCTION.fullmatch(name):
                raise ValueError(f"it calls {name}")
            if node.keywords:
                raise ValueError(f"it calls {name} with keywords")
        elif isinstance(node, ast.Subscript):
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                continue
        elif isinstance(node, ast.Constant):
            # Keys of inputs are texts; _nodes refuses those with a quotation mark.
            if not isinstance(node.value, str):
                _check_constant(node)
        elif not isinstance(node, ast.Attribute):
            _check_node(node)


def _nodes(text: object) -> Iterator[ast.AST]:
    """Parse an expression and return its nodes, without those that only name a function."""
    if not isinstance(text, str):
        raise ValueError(f"expected a text, got {type(text).__name__}")
    if len(text) > _MAX_LENGTH:
        raise ValueError(f"it has {len(text)} characters")
    if not _FORBIDDEN.isdisjoint(text) or not text.isascii():
        raise ValueError("it has characters that no expression has")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"not an expression ({type(error).__name__})") from None
    nodes = list(ast.walk(tree))
    functions = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and id(node) not in functions:
            raise ValueError(f"it reads the attribute {node.attr}")
        _check_power(node)
    return (node for node in nodes if id(node) not in functions)


def _function_name(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id
    if isinstance(function, ast.Attribute):
        if isinstance(function.value, ast.Name) and function.value.id == "math" and function.attr in vars(math):
            return f"math.{function.attr}"
        if function.attr in _TENSOR_METHODS:
            return f".{function.attr}"
        raise ValueError(f"it calls the method {function.attr}")
    raise ValueError("it calls a result")


def _texts(name: str, call: ast.Call) -> Iterator[ast.Constant]:
    """The checked arguments that are texts, as in ``Symbol('s0')`` and ``Float('0.5')``."""
    form = {"Symbol": _IDENTIFIER, "Float": _NUMBER}.get(name)
    for argument in call.args:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            if form is None or form.fullmatch(argument.value) is None:
                raise ValueError(f"{name} has the argument {argument.value!r}")
            yield argument


def _check_constant(node: ast.Constant) -> None:
    if not isinstance(node.value, (int, float)):
        raise ValueError(f"it has the constant {node.value!r}")


def _check_node(node: ast.AST) -> None:
    if isinstance(node, ast.Name):
        if hasattr(builtins, node.id) or node.id.startswith("__"):
            raise ValueError(f"it has the name {node.id}")
    elif not isinstance(node, _OPERATORS):
        raise ValueError(f"it has a {type(node).__name__}")


def _check_power(node: ast.AST) -> None:
    """Check that the exponent of a number is small."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Pow, ast.LShift)):
        exponent = node.right
    elif isinstance(node, ast.Call) and _name(node.func) in _POWERS and len(node.args) > 1:
        exponent = node.args[1]
    else:
        return
    inner = list(ast.walk(exponent))
    functions = {id(each.func) for each in inner if isinstance(each, ast.Call)}
    constants = [each.value for each in inner if isinstance(each, ast.Constant)]
    if any(isinstance(each, ast.Name) and id(each) not in functions for each in inner):
        return
    if any(isinstance(value, str) for value in constants):  # the name of a symbol
        return
    numbers = [value for value in constants if isinstance(value, (int, float))]
    if len(numbers) > 2 or any(abs(number) > _MAX_EXPONENT for number in numbers):
        raise ValueError("it has a large exponent")


def _name(function: ast.expr) -> str | None:
    return function.id if isinstance(function, ast.Name) else None
