"""Conditions of user code that are also valid for equal sizes: truncation to the smaller of two sizes."""

from __future__ import annotations

import ast
import linecache
import textwrap
from types import FrameType

from ..user_code import function_source

__all__ = ["truncates_at"]


def truncates_at(frame: FrameType) -> bool:
    """Whether a frame is at an ``if`` that truncates a tensor to a smaller size: the identity for equal sizes.

    Such as ``if mask.shape[-1] < audio.shape[-1]: audio = audio[..., : mask.shape[-1]]``.
    """
    file, line = frame.f_code.co_filename, frame.f_lineno
    header = linecache.getline(file, line)
    if not (header.lstrip().startswith("if ") and ".shape[" in header and "<" in header):
        return False
    indent = len(header) - len(header.lstrip())
    block = [header]
    for text in linecache.getlines(file)[line:]:
        depth = len(text) - len(text.lstrip())
        if text.strip() and depth <= indent and not (depth == indent and text.lstrip().startswith(("else", "elif"))):
            break
        block.append(text)
    try:
        (statement,) = ast.parse(textwrap.dedent("".join(block))).body
    except SyntaxError:
        return False
    return isinstance(statement, ast.If) and _truncates(statement) and function_source(frame.f_code) is not None


def _truncates(node: ast.If) -> bool:
    *others, test = [node.test]
    if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And):
        *others, test = node.test.values
    if not all(_compares_identity(other) for other in others):
        return False
    match test, node.body, node.orelse:
        case (
            ast.Compare(smaller, [ast.Lt()], [ast.Subscript(ast.Attribute(ast.Name(name), "shape"), axis)]),
            [ast.Assign([ast.Name(target)], ast.Subscript(ast.Name(source), index))],
            [],
        ):
            return name == target == source and _is_size(smaller) and _is_prefix(index, smaller, _constant(axis))
    return False


def _compares_identity(node: ast.expr) -> bool:
    """Whether a condition, such as ``x is not None``, does not depend on sizes."""
    return isinstance(node, ast.Compare) and all(isinstance(item, ast.Is | ast.IsNot) for item in node.ops)


def _is_size(node: ast.expr) -> bool:
    """Whether an expression is a variable or ``x.shape[0]``, whose evaluation asks for no other condition."""
    match node:
        case ast.Name():
            return True
        case ast.Subscript(ast.Attribute(ast.Name(), "shape"), axis):
            return isinstance(_constant(axis), int)
    return False


def _is_prefix(index: ast.expr, stop: ast.expr, axis: object) -> bool:
    """Whether an index selects the first items along an axis: ``..., :stop`` or ``:, :stop``."""
    *before, last = index.elts if isinstance(index, ast.Tuple) else [index]
    if not (isinstance(last, ast.Slice) and last.lower is None and last.step is None and last.upper is not None):
        return False
    if ast.dump(last.upper) != ast.dump(stop):
        return False
    if axis == -1:
        return len(before) == 1 and isinstance(before[0], ast.Constant) and before[0].value is ...
    return axis == len(before) and all(
        isinstance(item, ast.Slice) and item.lower is item.upper is item.step is None for item in before
    )


def _constant(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
