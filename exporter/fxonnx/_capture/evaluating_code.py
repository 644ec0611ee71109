"""The code that evaluates a condition on sizes: a model's, or torch's, which often only selects a shortcut."""

from __future__ import annotations

import ast
import linecache
import re
import textwrap
from collections.abc import Collection
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fxonnx_translations._torch_compat import Max

from .._extensions import active_extensions
from .._user_files import OWN, SYMPY, TORCH, is_user_file, is_user_frame
from .user_code import function_source

__all__ = [
    "DYNAMO_CHECKS",
    "DYNAMO_VARIABLES",
    "SPLITS",
    "Asking",
    "compares_strides",
    "distinguishes_zero_or_one",
    "evaluating_frame",
    "is_library_frame",
    "is_shortcut",
    "queries_layout",
    "relaxed",
]

# Code that implements symbolic numbers; the first frame outside of it is the one that evaluates a condition.
_RECORDER = OWN + "_capture/constraints/guard_recorder.py"
_PATCHES = tuple(OWN + "_capture/" + name for name in ("patches/patch.py", "edges.py"))
_DATA_DEPENDENCE = (OWN + "_capture/data_dependence/", OWN + "_capture/suspicions/handled_errors.py")
# They evaluate the conditions of rewritten functions.
_HELPERS = OWN + "_capture/rewriting/operators/helpers.py"
_MACHINERY = (
    *(TORCH + name for name in ("fx/experimental/", "__init__.py", "_dynamo/")),
    *(SYMPY, _RECORDER, __file__, *_PATCHES, *_DATA_DEPENDENCE, _HELPERS),
)
# They evaluate a condition that the model passes as an argument, and comparisons with the keys of its dictionaries.
_FOR_USERS = frozenset(
    {
        (OWN + "_capture/patches/functional.py", "_scaled_dot_product_attention"),
        *(
            (OWN + "_capture/rewriting/operators/sequences.py", name)
            for name in ("_is_same_key", "stored_key", "__eq__")
        ),
    }
)
# Interpreter of user code: of the functions of torch.cond, and of all code in strict mode.
_DYNAMO = TORCH + "_dynamo/symbolic_convert.py"
# It evaluates the conditions of interpreted code.
DYNAMO_VARIABLES = TORCH + "_dynamo/variables/"
# After it has traced a function, Dynamo evaluates the guards of its own symbols again, for the sizes of the caller.
DYNAMO_CHECKS = TORCH + "_utils_internal.py"
# Functions of torch that query memory layouts: the memory format of a convolution's result, whether a view is
# contiguous, whether a Fourier transform resizes its result. Layouts do not matter to ONNX.
_LAYOUT = frozenset(
    {
        (TORCH + "_subclasses/fake_impls.py", "conv"),
        (TORCH + "_subclasses/fake_impls.py", "convert"),
        (TORCH + "_subclasses/fake_impls.py", "_compute_stride"),
        (TORCH + "_subclasses/fake_impls.py", "_is_contiguous_with_hinted_checks"),
        (TORCH + "_subclasses/fake_impls.py", "_hinted_eq"),
        (TORCH + "_meta_registrations.py", "_exec_fft"),
    }
)
# Functions of torch whose number of results depends on a size: a size of 0 changes what they return.
SPLITS = frozenset({"split", "chunk", "unsafe_split", "unsafe_chunk", "unsafe_chunk_py_impl"})
# Their C++ code compares strides, to return a view where it can.
_RESHAPES = (torch.ops.aten.flatten.using_ints, torch.ops.aten.ravel.default, torch.ops.aten.reshape.default)
_PATCH_OF_CONTIGUOUS = (OWN + "_capture/patches/shape_kernels.py", "_contiguous")
_CONTIGUOUS = torch.ops.aten.contiguous.default
_CALLS = frozenset({"__call__", "decompose"})
# Code of transformers that branches on sizes of 0 and 1 with equal results: whether to repeat a mask or positions,
# which of two equivalent kernels to call, and whether a cache is empty.
_BROADCASTING = re.compile(r"/transformers/(masking_utils\.py|cache_utils\.py|integrations/\w+\.py)$")

# Code of torch that returns other values for sizes of 0 and 1, as a model does.
_VALUES = TORCH + "signal/windows/"
_QUERIES = frozenset({"numel", "size", "dim", "is_contiguous"})
_FUNCTIONS = frozenset({"len", "max", "min", "pow"})
"""Methods and functions of a condition that compute with sizes."""
_MASKS = re.compile(r"/transformers/masking_utils\.py$")


@dataclass(frozen=True)
class Asking:
    """The instruction of a frame that evaluates a condition, without the frame."""

    f_code: CodeType
    f_lasti: int
    f_lineno: int


def is_library_frame(evaluating: FrameType) -> bool:
    """Whether a frame is in torch, or in code of transformers that computes the same values for sizes of 0 and 1."""
    name = evaluating.f_code.co_filename
    is_of_torch = name.startswith((TORCH, OWN)) and not name.startswith(_VALUES)
    return is_of_torch or _BROADCASTING.search(name) is not None


def evaluating_frame(frame: FrameType | None) -> FrameType | None:
    """The frame that evaluates a condition; None for user code that is interpreted instead of run."""
    interpreters = [one.interpreters for one in active_extensions()]
    while frame is not None:
        name = frame.f_code.co_filename
        if any(name in files for files in interpreters):
            return None
        if name == _DYNAMO:
            code = getattr(frame.f_locals.get("self"), "f_code", None)
            return None if code is None or is_user_file(code.co_filename) else frame
        is_passed_on = name.startswith(_MACHINERY) or (name, frame.f_code.co_name) in _FOR_USERS
        if is_user_frame(frame) if name.startswith("<") else not is_passed_on:
            return frame
        frame = frame.f_back
    return None


def relaxed(guard: sympy.Basic, evaluating: FrameType | None) -> sympy.Basic:
    """Relax a guard to the sizes for which the captured branch is correct.

    transformers slices a mask if it is longer than the keys, and models truncate tensors; slicing to equal length is
    the identity.
    """
    if evaluating is None or not isinstance(guard, sympy.Gt | sympy.Lt):
        return guard
    file = evaluating.f_code.co_filename
    if _MASKS.search(file) or (is_user_file(file) and _truncates_at(evaluating)):
        return (sympy.Ge if isinstance(guard, sympy.Gt) else sympy.Le)(*guard.args)
    return guard


def is_shortcut(guard: sympy.Basic, evaluating: FrameType) -> bool:
    """Whether a guard only selects a shortcut or a memory layout, in torch, the masks of transformers, or a model."""
    name = evaluating.f_code.co_filename
    if _BROADCASTING.search(name) is not None:
        return distinguishes_zero_or_one(guard)
    if not name.startswith((TORCH, OWN)) or name.startswith(_VALUES):
        return is_user_file(name) and _makes_contiguous_at(evaluating)
    # Operators are called from __torch_function__; other conditions in torch.export are about the program.
    if name.startswith((TORCH + "export/", TORCH + "_export/")) and not _is_operator_call(evaluating):
        return False
    if isinstance(guard, sympy.Eq) and _counts_results(evaluating):
        return False
    return queries_layout(evaluating) or distinguishes_zero_or_one(guard) or compares_strides(evaluating)


def _counts_results(evaluating: FrameType) -> bool:
    """Whether a frame computes the number of results of an operator from a size."""
    local, name = evaluating.f_locals, evaluating.f_code.co_name
    if name in ("__torch_function__", "__call__"):
        name = getattr(local.get("func", local.get("self")), "__name__", "").partition(".")[0]
    return name in SPLITS


def queries_layout(evaluating: FrameType) -> bool:
    if _is_operator_call(evaluating):
        # contiguous() returns the same values, whether it copies or not.
        return evaluating.f_locals.get("func") is torch.Tensor.contiguous
    return (evaluating.f_code.co_filename, evaluating.f_code.co_name) in _LAYOUT


def compares_strides(evaluating: FrameType) -> bool:
    """Whether a frame calls ``contiguous``, or ``reshape`` or ``flatten`` for the number of elements at all sizes.

    Then their conditions only decide whether the result is a view or a copy.
    """
    local, code = evaluating.f_locals, evaluating.f_code
    operator, args = local.get("self"), local.get("args", ())
    if (code.co_filename, code.co_name) == _PATCH_OF_CONTIGUOUS:
        return True
    if code.co_name in _CALLS and operator is _CONTIGUOUS:
        return True
    if code.co_name != "__call__" or operator not in _RESHAPES:
        return False
    if operator is not torch.ops.aten.reshape.default:
        return True
    elements, known, inferred = args[0].numel(), 1, False
    for size in args[1]:
        if type(size) is int and size == -1:
            inferred = True
        else:
            known *= size
    return statically_known_true(elements % known == 0 if inferred else elements == known)


def _is_operator_call(evaluating: FrameType) -> bool:
    """Whether a frame is torch's dispatch of an operator that is implemented in C++."""
    return evaluating.f_code.co_name == "__torch_function__"


def distinguishes_zero_or_one(guard: sympy.Basic) -> bool:
    """Whether a guard only distinguishes sizes of 0 or 1 from other sizes."""
    if not isinstance(guard, sympy.Rel):
        return False
    if guard.has(Max):
        # The strides of contiguous tensors have factors of at least 1.
        guard = guard.replace(
            lambda part: isinstance(part, Max) and len(part.args) == 2 and 1 in part.args, _without_one
        )
        if not isinstance(guard, sympy.Rel):
            return True
    if isinstance(guard, sympy.Eq | sympy.Ne):
        return any(side in (0, 1) for side in guard.args) or any(
            _is_product(one / other, 1) for one, other in (guard.args, guard.args[::-1]) if other != 0
        )
    if (guard.lts.is_number and guard.lts in (0, 1, 2)) or (guard.gts.is_number and guard.gts in (0, 1)):
        return True
    return isinstance(guard, sympy.Lt | sympy.Gt) and guard.lts != 0 and _is_product(guard.gts / guard.lts, None)


def _without_one(extreme: sympy.Expr) -> sympy.Expr:
    """``n`` from ``max(1, n)``."""
    return next(one for one in extreme.args if one != 1)


def _is_product(ratio: sympy.Expr, factor: int | None) -> bool:
    """Whether a ratio, for example of two strides, is a product of sizes and ``factor`` (None: any number)."""
    number, rest = ratio.as_coeff_Mul()
    if not number.is_Integer or (factor is not None and number != factor):
        return False
    return number > 0 and not rest.is_number and sympy.fraction(rest)[1] == 1 and not isinstance(rest, sympy.Add)


def _truncates_at(frame: FrameType) -> bool:
    """Whether a frame is at an ``if`` that truncates a tensor to a smaller size: the identity for equal sizes.

    Such as ``if mask.shape[-1] < audio.shape[-1]: audio = audio[..., : mask.shape[-1]]``.
    """
    statement = _branch_at(frame, (".shape[", "<"))
    return statement is not None and _truncates(statement) and function_source(frame.f_code) is not None


def _makes_contiguous_at(frame: FrameType) -> bool:
    """Whether a frame is at an ``if`` that only makes tensors contiguous which are so at all sizes: it does nothing.

    Such as ``if x.shape[0] >= 64: x = x.contiguous()``. Of another tensor, a copy has other strides, other memory for
    the operators in place after it, and another identity.
    """
    following = linecache.getline(frame.f_code.co_filename, frame.f_lineno + 1)
    statement = _branch_at(frame, ()) if ".contiguous(" in following else None
    if statement is None or statement.orelse or not all(map(_is_of_sizes, ast.walk(statement.test))):
        return False
    for assignment in statement.body:
        match assignment:
            case ast.Assign([ast.Name(target)], ast.Call(ast.Attribute(ast.Name(source), "contiguous"), [], [])):
                if target != source or not _is_contiguous(frame.f_locals.get(source)):
                    return False
            case _:
                return False
    return function_source(frame.f_code) is not None


def _is_contiguous(value: object) -> bool:
    """Whether a value is a tensor whose elements lie in their order for all sizes."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    elements: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if not statically_known_true(stride == elements):
            return False
        elements = elements * size
    return True


def _is_of_sizes(node: ast.AST) -> bool:
    """Whether a part of a condition computes with sizes and numbers only."""
    match node:
        case ast.Call(ast.Attribute(_, name), _, []):
            return name in _QUERIES
        case ast.Call(ast.Name(name), _, []):
            return name in _FUNCTIONS
        case ast.Call() | ast.NamedExpr() | ast.Await() | ast.Yield() | ast.YieldFrom():
            return False
    return True


def _branch_at(frame: FrameType, parts: Collection[str]) -> ast.If | None:
    """The ``if`` statement at whose first line a frame is, if that contains some parts."""
    file, line = frame.f_code.co_filename, frame.f_lineno
    header = linecache.getline(file, line)
    if not (header.lstrip().startswith("if ") and all(part in header for part in parts)):
        return None
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
        return None
    return statement if isinstance(statement, ast.If) else None


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
