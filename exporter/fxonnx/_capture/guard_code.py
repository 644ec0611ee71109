"""Guards of an ExportedProgram, which torch keeps as Python expressions: ``L['x'].size()[1] <= 40``.

A program that was loaded from a file has no other record of the branches that its capture took.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fxonnx_translations._builder.size_values import SizeValues, UndefinedSizeError
from fxonnx_translations._torch_compat import Max, Min, pytree, sympy_functions

from .._warnings import warn_user
from .constraints.guard_recorder import Guard, guards_of_shape_env, line_of_node
from .evaluating_code import distinguishes_zero_or_one

__all__ = ["guards_of_program"]

_LARGEST_EXPONENT = 16
_SIZES = (2, 3, 64)
_PARTS = (sympy.Rel, sympy.Mul, sympy.Pow, Max, sympy.Symbol, sympy.Integer)
"""Strides and numbers of elements are made of these; quotients and remainders are the model's."""


class _Unknown(Exception):
    """Raised for an expression that is not understood."""


class _Layout(Exception):
    """Raised for a condition on strides and offsets of tensors, which ONNX does not have."""


def guards_of_program(program: ExportedProgram, environment: ShapeEnv | None) -> Iterator[Guard]:
    """The guards that a program still has if it was captured outside of fxonnx."""
    yield from () if environment is None else guards_of_shape_env(environment)
    if environment is None or not environment.var_to_sources:
        # Of a program that was loaded, torch has the text of the guards only.
        yield from _guards_of_code(program)
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default):
        condition = node.args[0].meta.get("val") if isinstance(node.args[0], torch.fx.Node) else None
        if isinstance(condition, torch.SymBool):
            yield Guard(condition.node.expr, line_of_node(node))


def _guards_of_code(program: ExportedProgram) -> Iterator[Guard]:
    """The guards of a program in torch's symbols; a warning names those that are not understood."""
    # A private attribute of torch, since 2.9; older versions do not keep the guards.
    texts = getattr(program, "_guards_code", None) or ()
    if not texts:
        return
    reader, layouts = _Reader(_arguments(program)), _LayoutConditions(program)
    for text in texts:
        try:
            expression = reader.read(ast.parse(text.strip(), mode="eval").body)
        except _Layout:
            continue
        except (_Unknown, SyntaxError, LookupError, AttributeError, TypeError, ValueError, ZeroDivisionError):
            warn_user(f"a guard of the ExportedProgram is not understood, and not checked: {text}")
            continue
        if not isinstance(expression, sympy.Basic) or not expression.free_symbols:
            continue
        # An equality may be the model's, even if torch asks for it as well.
        if isinstance(expression, sympy.Eq) or expression not in layouts:
            yield Guard(expression, None)


def _arguments(program: ExportedProgram) -> dict[str, Any]:
    """The values of the arguments that guards name: fake tensors and symbolic numbers."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    leaves: list[Any] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind in (InputKind.USER_INPUT, InputKind.CUSTOM_OBJ):
            is_constant = isinstance(spec.arg, ConstantArgument)
            leaves.append(spec.arg.value if is_constant else nodes[spec.arg.name].meta.get("val"))
    args, kwargs = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    signature = program.module_call_graph[0].signature
    names = [] if signature is None else list(signature.forward_arg_names or [])
    return {**dict(zip(names, args, strict=False)), **kwargs, "flat_args": leaves, "args": args, "kwargs": kwargs}


class _Reader:
    """Reader of conditions on the sizes of arguments."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = arguments

    def read(self, node: ast.expr) -> Any:
        """The sympy expression of a Python expression, or an argument that it names."""
        match node:
            case ast.Constant(value=bool() as value):
                return sympy.true if value else sympy.false
            case ast.Constant(value=int() as value):
                return sympy.Integer(value)
            case ast.Constant(value=float() as value):
                return sympy.Float(value)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.read(operand)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return sympy.Not(self.read(operand))
            case ast.BoolOp(op=op, values=values):
                join = sympy.And if isinstance(op, ast.And) else sympy.Or
                return join(*map(self.read, values))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return sympy_functions.Where(self.read(test), self.read(body), self.read(orelse))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return _BINARY[type(op)](self.read(left), self.read(right))
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                return self._comparison([left, *comparators], ops)
            case ast.Call():
                return self._call(node)
            case ast.Subscript(value=ast.Name(id="L"), slice=ast.Constant(value=str() as name)):
                return _number(self._arguments[name])
            case ast.Subscript(value=value, slice=ast.Constant(value=key)):
                return _number(self.read(value)[key])
        raise _Unknown(ast.dump(node))

    def _comparison(self, operands: list[ast.expr], operators: list[ast.cmpop]) -> Any:
        values = [self.read(operand) for operand in operands]
        if not all(type(op) in _COMPARISONS for op in operators):
            raise _Unknown(ast.dump(operators[0]))
        parts = [
            _COMPARISONS[type(op)](left, right) for left, op, right in zip(values, operators, values[1:], strict=False)
        ]
        return sympy.And(*parts)

    def _call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("stride", "storage_offset"):
            raise _Layout
        if isinstance(node.func, ast.Attribute) and node.func.attr == "size" and not node.args:
            tensor = self.read(node.func.value)
            if not isinstance(tensor, torch.Tensor):
                raise _Unknown(ast.dump(node))
            return tuple(tensor.shape)
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        function = _FUNCTIONS.get(name)
        if function is None:
            raise _Unknown(name)
        return function(*map(self.read, node.args))


def _number(value: Any) -> Any:
    """A symbolic number as its expression; other arguments as they are."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.expr
    return sympy.Integer(value) if type(value) is int else value


def _quotient(left: Any, right: Any) -> Any:
    is_integer = left.is_integer and right.is_integer
    return (sympy_functions.IntTrueDiv if is_integer else sympy_functions.FloatTrueDiv)(left, right)


def _remainder(left: Any, right: Any) -> Any:
    return (sympy_functions.Mod if left.is_nonnegative else sympy_functions.PythonMod)(left, right)


def _power(left: Any, right: Any) -> Any:
    if right.is_Integer and 0 <= int(right) <= _LARGEST_EXPONENT:
        return sympy_functions.PowByNatural(left, right)
    if left.is_number and right.is_number:
        raise _Unknown("power of numbers")
    return sympy_functions.FloatPow(left, right)


_BINARY: Mapping[type, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        ast.Add: lambda left, right: left + right,
        ast.Sub: lambda left, right: left - right,
        ast.Mult: lambda left, right: left * right,
        ast.FloorDiv: lambda left, right: sympy_functions.FloorDiv(left, right),
        ast.Div: _quotient,
        ast.Mod: _remainder,
        ast.Pow: _power,
    }
)
_COMPARISONS: Mapping[type, Callable[[Any, Any], Any]] = MappingProxyType(
    {ast.Eq: sympy.Eq, ast.NotEq: sympy.Ne, ast.Lt: sympy.Lt, ast.LtE: sympy.Le, ast.Gt: sympy.Gt, ast.GtE: sympy.Ge}
)
_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "max": Max,
        "min": Min,
        "abs": sympy.Abs,
        "round": lambda value, *digits: (
            sympy_functions.RoundDecimal(value, *digits) if digits else sympy_functions.RoundToInt(value)
        ),
        "sym_float": lambda value: sympy_functions.ToFloat(value),
        "floor": lambda value: sympy_functions.FloorToInt(value),
        "ceil": lambda value: sympy_functions.CeilToInt(value),
        "trunc": lambda value: sympy_functions.TruncToInt(value),
        "sqrt": lambda value: sympy_functions.OpaqueUnaryFn_sqrt(value),
        "log2": lambda value: sympy_functions.OpaqueUnaryFn_log2(value),
        "_sym_log2": lambda value: sympy_functions.OpaqueUnaryFn_log2(value),
        "_sym_sqrt": lambda value: sympy_functions.OpaqueUnaryFn_sqrt(value),
    }
)


class _LayoutConditions:
    """The conditions on sizes by which torch's own code chose the memory layouts of a program without a record.

    Both of their branches compute the same values. They hold whenever the sizes of the tensors are neither 0 nor 1, and
    are written in these sizes as they are in the graph: ``(h - 1) // 2 + 1 != 1`` for the result of a convolution.
    Conditions of the model have other forms, such as ``h % 2 != 1``; one on whether the size of a result is 1 is taken
    for torch's.
    """

    def __init__(self, program: ExportedProgram) -> None:
        values = [value for node in program.graph.nodes for value in _tensors(node.meta.get("val"))]
        shapes: list[tuple[Any, ...]] = [tuple(value.shape) for value in values]
        sizes = {size.node.expr for shape in shapes for size in shape if isinstance(size, torch.SymInt)}
        # A size may be a part of another one.
        self._sizes = sorted(sizes, key=lambda size: (-size.count_ops(), str(size)))

    def __contains__(self, condition: sympy.Basic) -> bool:
        """Whether a condition is written in sizes of tensors, and holds for all sizes from 2 on."""
        names: list[sympy.Symbol] = []
        for size in self._sizes:
            name = sympy.Symbol(f"size {len(names)}", integer=True, positive=True)
            replaced = condition.xreplace({size: name})
            if replaced != condition:
                names.append(name)
                condition = replaced
        parts = sympy.preorder_traversal(condition)
        if condition.free_symbols - set(names) or not all(isinstance(part, _PARTS) for part in parts):
            return False
        found = sorted(condition.free_symbols, key=str)
        choices = itertools.product(_SIZES, repeat=len(found))
        return distinguishes_zero_or_one(condition) and all(
            _holds(condition, SizeValues(dict(zip(found, sizes, strict=True)))) for sizes in choices
        )


def _tensors(value: object) -> list[torch.Tensor]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [one for one in values if isinstance(one, torch.Tensor)]


def _holds(condition: sympy.Basic, sizes: SizeValues) -> bool:
    try:
        return bool(sizes.value(condition))
    except UndefinedSizeError:
        return False
