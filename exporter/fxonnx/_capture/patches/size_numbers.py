"""Numbers that Python computes of sizes stay symbolic: arithmetic, ``math``, comparisons and conversions."""

from __future__ import annotations

import builtins
import linecache
import math
import operator
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, reduce
from itertools import product
from types import MappingProxyType
from typing import Any

import sympy
import torch
from torch import SymBool
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true

from fxonnx_translations._torch_compat import (
    CeilToInt,
    IntTrueDiv,
    Max,
    Min,
    PythonMod,
    ValueRanges,
    sym_float,
    sym_int,
    sym_ite,
    sym_log2,
    sym_max,
    sym_min,
    sym_not,
    sym_sqrt,
    sympy_functions,
)

from ..._turns import one_at_a_time
from ..._user_files import is_user_code
from ..constraints.guard_recorder import truth_as_number
from ..data_dependence.concrete_values import active_values, number_of
from ..suspicions.eager_types import replaced_names, type_of
from ..suspicions.handled_errors import record_raised
from .libraries import COMPILER_PATCHES
from .patch import FunctionPatch, Patch, PatchKind, ValuePatch, is_tracing, loaded_namespaces, written
from .value_calls import extremum, of_tensor, rounding

__all__ = ["INTEGER_PATCHES", "SIZE_PATCHES", "converting_files", "symbolic_integers"]


def _range_of_remainder(has_sign_of_divisor: bool, original: Callable[..., Any], owner: Any, x: Any, y: Any) -> Any:
    """The range of ``x % y``: torch's is that of integers, whose remainder is at most the divisor minus 1."""
    dividend, divisor = ValueRanges.wrap(x), ValueRanges.wrap(y)
    if dividend.is_int and divisor.is_int:
        return original(owner, x, y)
    greatest = max(abs(divisor.lower), abs(divisor.upper))
    bound = sympy.Float(greatest) if greatest.is_finite else sympy.oo
    signed = divisor if has_sign_of_divisor else dividend
    return ValueRanges(0.0 if signed.lower >= 0 else -bound, 0.0 if signed.upper <= 0 else bound)


def _range_of_power(original: Callable[..., Any], owner: Any, a: Any, b: Any) -> Any:
    """The range of a power of floats, which is unknown for torch."""
    exponent = ValueRanges.wrap(b)
    found = _range_of_root(a, float(exponent.lower)) if exponent.is_singleton() else None
    return original(owner, a, b) if found is None else found


def _range_of_square_root(original: Callable[..., Any], x: Any) -> Any:
    """The range of a square root, which is unknown for torch if that of the number has negative ones."""
    found = _range_of_root(x, 0.5)
    return original(x) if found is None else found


def _range_of_root(base: Any, exponent: float) -> Any:
    """The range of a fractional power: Python has none for negative numbers, at which the model fails."""
    base = ValueRanges.wrap(base)
    if exponent <= 0 or exponent.is_integer() or base.upper < 0:
        return None
    ends = (max(base.lower, sympy.S.Zero), base.upper)
    return ValueRanges(*(sympy.Float(float(end) ** exponent) if end.is_finite else sympy.oo for end in ends))


def _remainder(original: Callable[..., Any], owner: Any, p: Any, q: Any) -> Any:
    """The remainder of two numbers one of which is a float; torch's function checks that the divisor is at least 1."""
    if p.is_Number and q.is_Number and (p.is_Float or q.is_Float) and not q.is_zero:
        return sympy.Float(float(p) % float(q))
    return original(owner, p, q)


def _operation_of_proxies(function: Callable[..., Any], original: Callable[..., Any], *args: Any) -> Any:
    """A function of a size as a node of the graph, in a condition that torch records there.

    torch calls the function itself, or the one of sympy, and neither takes a proxy.
    """
    proxies = [value for value in args if isinstance(value, torch.fx.Proxy)]
    if not proxies:
        return original(*args)
    # The last argument of a conversion is the dtype of its result.
    operands = tuple(value for value in args if not isinstance(value, torch.dtype))
    return proxies[0].tracer.create_proxy("call_function", function, operands, {})


_MOST_DIVISORS = 16
"""Each divisor is one remainder of the graph."""


_LN_2 = math.log(2)


def _is_size(value: object) -> bool:
    return isinstance(value, torch.SymInt)


def _is_number(value: object) -> bool:
    return isinstance(value, torch.SymInt | torch.SymFloat)


def _of_number(symbolic: Callable[[Any], Any], original: Callable[[Any], Any], x: Any, /) -> Any:
    """A function of ``math`` of a symbolic number, also of one in a tensor."""
    x = number_of(x) if is_tracing() else x
    return symbolic(x) if _is_number(x) else original(x)


def _integer_root(original: Callable[[Any], Any], n: Any, /) -> Any:
    """``math.isqrt`` of a size: below 2^52, the square root in float64 is not rounded up to an integer."""
    return sym_int(sym_sqrt(n)) if _is_size(n) else original(n)


def _decimal_logarithm(x: Any) -> Any:
    """``math.log10`` of a size, whose last bit may differ: torch has the binary logarithm of symbolic numbers only."""
    return sym_log2(x) * math.log10(2)


def _logarithm(original: Callable[..., Any], x: Any, /, *base: Any) -> Any:
    """``math.log`` of a size, whose last bit may differ as well."""
    numbers = [number_of(one) if is_tracing() else one for one in (x, *base)]
    if not any(map(_is_number, numbers)):
        return original(x, *base)
    logarithms = [sym_log2(one) * _LN_2 if _is_number(one) else original(one) for one in numbers]
    return logarithms[0] / logarithms[1] if base else logarithms[0]


def _bit_length(original: Callable[[Any], Any], self: Any) -> Any:
    """``size.bit_length()``: that of 0 is 0."""
    del original
    return math.ceil(sym_log2(abs(self) + 1))


class _IsBinaryLogarithm(type):
    """Class of the type whose only instance is torch's function of sizes."""

    def __instancecheck__(cls, instance: object) -> bool:
        return instance is sym_log2


class _BinaryLogarithm(metaclass=_IsBinaryLogarithm):
    """The type of torch's binary logarithm of sizes: torch allows functions in captured graphs by type."""


def _allowed_in_graphs(original: Callable[[Any], tuple[type, ...]], self: Any) -> tuple[type, ...]:
    """The types of functions that a captured graph may call."""
    return (*original(self), _BinaryLogarithm)


def _greatest_common_divisor(original: Callable[..., Any], *integers: Any) -> Any:
    """``math.gcd`` of a size and a number: the sum of Euler's totients of the divisors that they share."""
    sizes, numbers = [one for one in integers if _is_size(one)], [one for one in integers if not _is_size(one)]
    number = original(*numbers)
    if len(sizes) != 1 or not number:
        return original(*integers)
    divisors = [divisor for divisor in range(1, number + 1) if number % divisor == 0]
    if len(divisors) > _MOST_DIVISORS:
        return original(*integers)
    return sum(_totient(divisor) * (1 - sym_min(1, sizes[0] % divisor)) for divisor in divisors)


def _totient(number: int) -> int:
    return sum(math.gcd(number, other) == 1 for other in range(1, number + 1))


def _quotient_and_remainder(original: Callable[[Any, Any], Any], x: Any, y: Any, /) -> Any:
    """``divmod``, which torch does not define for sizes."""
    is_symbolic = isinstance(x, torch.SymInt | torch.SymFloat) or isinstance(y, torch.SymInt | torch.SymFloat)
    return (x // y, x % y) if is_symbolic else original(x, y)


def _floor_divide(is_reversed: bool, original: Callable[[Any, Any], Any], self: Any, other: Any) -> Any:
    """``size // 0.1`` and ``0.1 // size``, from the exact remainder like Python.

    The floor of the rounded quotient may be one too large.
    """
    if not isinstance(self, torch.SymFloat) and not isinstance(other, float | torch.SymFloat):
        return original(self, other)
    left, right = map(sym_float, (other, self) if is_reversed else (self, other))
    quotient = sym_float(round((left - left % right) / right))
    is_positive = not is_reversed and isinstance(other, float) and other > 0
    # The range of the quotient, from the ranges of the dividend and the remainder, has negative numbers.
    return sym_max(quotient, 0.0) if is_positive and statically_known_true(self >= 0) else quotient


def _hash_of_size(original: Callable[..., int], self: torch.SymInt) -> int:
    """``SymInt.__hash__`` of a tensor's value in the user's code (``set(lengths)``): the value is a guard.

    torch refuses to hash sizes. Its own code relies on the error, and so does code that handles it: einops caches what
    it computes by shape, and computes it anew for shapes that cannot be hashed.
    """
    # The caller of the function that the patch defines.
    frame = sys._getframe(2)
    is_guard = is_user_code(frame.f_code, frame.f_globals) and "TypeError" not in frame.f_code.co_names
    return hash(int(self)) if is_guard and free_unbacked_symbols(self) else record_raised(original, self)


def _as_number(value: Any) -> Any:
    """A truth value of sizes as 1 or 0; other values as they are."""
    return sym_ite(value, 1, 0) if isinstance(value, SymBool) else value


def _compared(relation: Callable[[Any, Any], Any], original: Callable[..., Any], self: SymBool, other: Any) -> Any:
    """A relation of a truth value, which is 0 or 1, to a number, as a truth value."""
    if isinstance(other, SymBool):
        # A relation of two truth values holds for some of their values.
        terms = (
            (self if one else sym_not(self)) & (other if two else sym_not(other))
            for one, two in product((False, True), repeat=2)
            if relation(one, two)
        )
        return reduce(operator.or_, terms)
    if _is_number(other):
        return relation(_as_number(self), other)
    if not isinstance(other, bool | int | float):
        return original(self, other)
    at_false, at_true = relation(False, other), relation(True, other)
    return at_false if at_false == at_true else self if at_true else sym_not(self)


_SPECIALIZED = "it converts a size to a number, which specializes it"
_VALUE_RANGES = "torch.utils._sympy.value_ranges:SymPyValueRangeAnalysis"
_REFERENCE = "torch.utils._sympy.reference:PythonReferenceAnalysis"


def _reducing(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A function of two numbers for any number of them."""
    return lambda *sizes: reduce(function, sizes)


_REDUCTIONS: Mapping[Any, Callable[[Any, Any], Any]] = MappingProxyType(
    {Max: sym_max, Min: sym_min, sympy.Mul: operator.mul, sympy.And: operator.and_, sympy.Or: operator.or_}
)
_OF_TWO: Mapping[Callable[..., Any], Callable[[Any, Any], Any]] = MappingProxyType(
    {_reducing(function): function for function in _REDUCTIONS.values()}
)
_FUNCTIONS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        **dict(zip(_REDUCTIONS, _OF_TWO, strict=True)),
        **{PythonMod: operator.mod, IntTrueDiv: operator.truediv},
        **{sympy_functions.ToFloat: sym_float, CeilToInt: math.ceil, sympy_functions.FloorToInt: math.floor},
        **{
            sympy_functions.RoundToInt: round,
            sympy_functions.TruncToInt: sym_int,
            sympy_functions.FloatTrueDiv: operator.truediv,
        },
        **{sympy_functions.OpaqueUnaryFn_sqrt: sym_sqrt, sympy_functions.OpaqueUnaryFn_log2: sym_log2},
    }
)


def _functions_of_expressions(original: Callable[..., Any]) -> Any:
    """``_sympy_handlers``, the functions of numbers by which a graph computes a size that it has no node for."""
    return {**original(), **_FUNCTIONS}


def _register(original: Callable[..., None], tracer: Any, func: Any, args: tuple[Any, ...], out: Any) -> None:
    """``_sym_register``, which makes the node of a size; ``sym_max`` and ``mul`` take two."""
    if func is torch.sym_sum and isinstance(out, torch.SymFloat):
        func, args = operator.add, (func(*args[:-1]), args[-1])
    if func in _OF_TWO:
        func, args = _OF_TWO[func], (func(*args[:-1]), args[-1])
    original(tracer, func, args, out)


class _AddedPatch(Patch):
    """A method that a class of torch lacks."""

    def parameters(self) -> str:
        """ "", since the method is not there."""
        return ""

    def replaced(self) -> Any:
        """The method."""
        return self.replacement


_OF_TENSORS = (
    *("exp", "expm1", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
    *("asinh", "acosh", "atanh", "erf", "erfc"),
)
_FUNCTIONS_OF_MATH: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "sqrt": partial(_of_number, sym_sqrt),
        "isqrt": _integer_root,
        "gcd": _greatest_common_divisor,
        "log2": partial(_of_number, sym_log2),
        "log10": partial(_of_number, _decimal_logarithm),
        **{name: partial(_of_number, of_tensor(name)) for name in _OF_TENSORS},
    }
)

SIZE_PATCHES: tuple[Patch, ...] = (
    *(Patch(f"math:{name}", function, _SPECIALIZED, strict=False) for name, function in _FUNCTIONS_OF_MATH.items()),
    # A module of sympy that is imported during an export takes it by name.
    FunctionPatch("math:log", _logarithm, _SPECIALIZED, strict=False),
    _AddedPatch("torch:SymInt.__invert__", lambda size: -1 - size, "symbolic sizes do not have it", strict=False),
    *(
        _AddedPatch(f"torch:Tensor.__{each.__name__}__", rounding(each), _SPECIALIZED, strict=False)
        for each in (math.floor, math.ceil)
    ),
    Patch("torch:SymInt.bit_length", _bit_length, _SPECIALIZED, strict=False),
    Patch(
        "torch._export.verifier:Verifier.allowed_op_types",
        _allowed_in_graphs,
        "captured graphs may have the square root of sizes, but not the binary logarithm",
    ),
    *(
        Patch(
            f"torch.fx.experimental.proxy_tensor:{name}",
            replacement,
            "sizes that were computed outside of a graph cannot be computed in it",
        )
        for name, replacement in (("_sympy_handlers", _functions_of_expressions), ("_sym_register", _register))
    ),
    Patch(
        "torch._export.non_strict_utils:_tensor_min_max",
        extremum,
        "it asks whether a size is larger than the number in a tensor",
        strict=False,
    ),
    Patch("builtins:divmod", _quotient_and_remainder, "symbolic sizes do not have it", strict=False),
    *(
        Patch(
            f"{_VALUE_RANGES}.{name}",
            partial(_range_of_remainder, has_sign_of_divisor),
            "the ranges of remainders of floats are too narrow, or raise an error",
            PatchKind.SOUND,
        )
        for name, has_sign_of_divisor in (("mod", False), ("python_mod", True))
    ),
    *(
        Patch(
            f"{_VALUE_RANGES}.{name}",
            replacement,
            "the ranges of roots are unknown, so that the size of a tensor may be negative",
        )
        for name, replacement in (("pow", _range_of_power), ("sqrt", _range_of_square_root))
    ),
    Patch("torch.utils._sympy.functions:Mod.eval", _remainder, "it raises an AssertionError for divisors below 1"),
    *(
        Patch(
            f"{_REFERENCE}.{name}",
            partial(_operation_of_proxies, function),
            "it raises a TypeError where torch records a condition in the graph",
        )
        for name, function in (
            ("round_to_int", round),
            ("round_decimal", round),
            ("trunc_to_int", math.trunc),
            ("floor_to_int", math.floor),
            ("ceil_to_int", math.ceil),
        )
    ),
    Patch(
        f"{_REFERENCE}.int_truediv",
        lambda _, first, second: first / second,
        "torch does not implement it, but the size of a scaled image requires it",
    ),
    *(
        Patch(
            f"torch:{kind}.__{'r' * is_reversed}floordiv__",
            partial(_floor_divide, is_reversed),
            "the floor of the rounded quotient of a size and a float is not always Python's quotient",
            PatchKind.SOUND,
            strict=False,
        )
        for kind in ("SymInt", "SymFloat")
        for is_reversed in (False, True)
    ),
    Patch("torch:SymInt.__hash__", _hash_of_size, "it raises a TypeError for sets of lengths", strict=False),
    *(
        Patch(
            f"torch:SymBool.__{relation.__name__}__",
            partial(_compared, relation),
            "a truth value equals no number, and has no order",
            strict=False,
        )
        for relation in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
    ),
    Patch("torch:SymBool.__int__", truth_as_number, "torch does not record the file that makes a condition a number"),
)
"""Applied during captures."""

_WHY = "the number of elements of a torch.Size is a number, which specializes the sizes"


class Shape(tuple[Any, ...]):
    """A shape, and its slices and sums. ``torch.Size`` has no subclasses, and its methods cannot be replaced."""

    __slots__ = ()

    def numel(self) -> Any:
        """The product of the sizes."""
        return math.prod(self)

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return type(self)(found) if isinstance(index, slice) else found

    def __add__(self, other: Any) -> Any:
        return type(self)(super().__add__(tuple(other)))


_SIZE = torch.Size


class _SizeType(type):
    """Class of ``torch.Size`` in user code, which makes shapes, and of which they are instances."""

    kind: type[Shape]

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is _SIZE

    def __hash__(cls) -> int:
        return hash(_SIZE)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _SIZE | Shape)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _SIZE | Shape)

    def __call__(cls, *args: Any) -> Any:
        return _as_kind(cls.kind, _SIZE(*args), 1)


def _as_kind(kind: type[Shape], found: Any, depth: int) -> Any:
    """A shape for user code, whose frame is the one after this many other frames."""
    if not (is_tracing() and isinstance(found, _SIZE)):
        return found
    frame = sys._getframe(depth + 1)
    return kind(found) if is_user_code(frame.f_code, frame.f_globals) else found


def _shape_of_tensor(kind: type[Shape], original: Any) -> property:
    """``Tensor.shape``."""
    return property(lambda tensor: _as_kind(kind, original.__get__(tensor), 1))


def _size_of_tensor(
    kind: type[Shape], original: Callable[..., Any], self: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    """``Tensor.size``; the frame of the patch is between this one and the caller's."""
    return _as_kind(kind, original(self, *args, **kwargs), 2)


def shape_patches(kind: type[Shape]) -> tuple[Patch, ...]:
    """Patches by which user code gets shapes of a class."""
    return (
        ValuePatch("torch:Tensor.shape", partial(_shape_of_tensor, kind), _WHY, strict=False),
        Patch("torch:Tensor.size", partial(_size_of_tensor, kind), _WHY, strict=False),
        ValuePatch("torch:Size", lambda _: _SizeType("Size", (tuple,), {"kind": kind}), _WHY, strict=False),
    )


SHAPE_PATCHES = shape_patches(Shape)
"""Applied where ``numel`` specializes a dynamic dim."""


_CONVERSION = re.compile(r"\b(int|float|len|numel)\(")
_PLACE = re.compile(r"(.*?):\d+ in ")


def _arithmetic(original: Callable[..., Any], self: Any, other: Any) -> Any:
    """A sum, difference or product one of whose terms may be a truth value."""
    return original(_as_number(self), _as_number(other))


_ARITHMETIC_PATCHES: tuple[Patch, ...] = tuple(
    Patch(f"torch:{kind}.__{name}__", _arithmetic, "a term that is a truth value becomes a number")
    for kind in ("SymInt", "SymBool")
    for name in ("add", "radd", "sub", "rsub", "mul", "rmul")
)


INTEGER_PATCHES: tuple[Patch, ...] = (*SHAPE_PATCHES, *_ARITHMETIC_PATCHES, *COMPILER_PATCHES)
"""Applied where conversions of sizes limit the inputs."""


class _NumberType(type):
    """Class of ``int`` and ``float`` in user code, of which symbolic numbers are instances."""

    builtin: type
    symbolic: type
    convert: Callable[[Any], Any]

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.builtin

    def __hash__(cls) -> int:
        return hash(cls.builtin)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (cls.builtin, cls.symbolic))

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.builtin)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if is_tracing() and len(args) == 1:
            values = active_values()
            number = args[0].item() if values is not None and values.is_of_sizes(args[0]) else args[0]
            if isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
                return cls.convert(_as_number(number))
        return cls.builtin(*args, **kwargs)


class _Int(int, metaclass=_NumberType):
    """The builtin ``int``, except that a symbolic size stays symbolic."""

    builtin, symbolic, convert = builtins.int, torch.SymInt, sym_int


class _Float(float, metaclass=_NumberType):
    """The builtin ``float``, except that a symbolic size becomes a symbolic float."""

    builtin, symbolic, convert = builtins.float, torch.SymFloat, sym_float


for _kind in (_Int, _Float):
    _kind.__name__ = _kind.__qualname__ = _kind.builtin.__name__


def _length(value: Any) -> Any:
    """``len``, except that the symbolic size of a tensor, or of a list of dynamic length, stays symbolic."""
    if is_tracing() and isinstance(value, torch.Tensor) and value.dim():
        return value.shape[0]
    if is_tracing() and hasattr(type(value), "symbolic_length"):
        return value.symbolic_length
    return len(value)


def _type(*args: Any, **kwargs: Any) -> Any:
    """``type``, such that ``type(n) is int`` holds for the ``int`` of user code."""
    found = type_of(*args, **kwargs)
    return _Int if found is builtins.int else _Float if found is builtins.float else found


_REPLACEMENTS = {"int": _Int, "float": _Float, "len": _length, "type": _type}


@contextmanager
def symbolic_integers(files: Collection[str], model: torch.nn.Module) -> Iterator[None]:
    """Keep the sizes symbolic that ``int``, ``float``, ``len`` and ``numel`` convert in files of user code."""
    has_shapes = any(
        file.startswith("<") or any("numel()" in line for line in linecache.getlines(file)) for file in files
    )
    with (
        one_at_a_time(),
        replaced_names(_namespaces(files, model), _REPLACEMENTS),
        written(SHAPE_PATCHES if has_shapes else ()),
        written((*_ARITHMETIC_PATCHES, *COMPILER_PATCHES) if files else ()),
    ):
        yield


def converting_files(lines: Iterable[str]) -> set[str]:
    """Files of user code with the lines, ``file.py:12 in forward: code``, that convert sizes to numbers.

    Code that ``exec`` has compiled, ``<string>:12 in forward``, may do so.
    """
    places = [_PLACE.match(line) for line in lines if line.startswith("<") or _CONVERSION.search(line)]
    return {place.group(1) for place in places if place is not None}


def _namespaces(files: Collection[str], model: torch.nn.Module) -> list[dict[str, Any]]:
    """Globals of the code in these files: of imported modules, and of the classes of the model's modules."""
    if not files:
        return []
    namespaces = {id(loaded): loaded for loaded in loaded_namespaces() if loaded.get("__file__") in files}
    for kind in {base for module in model.modules() for base in type(module).__mro__}:
        for function in vars(kind).values():
            code = getattr(function, "__code__", None)
            if code is not None and code.co_filename in files:
                namespaces[id(function.__globals__)] = function.__globals__
    return list(namespaces.values())
