"""Random statements of Python programs: blocks of lines in which each name has a type."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from .python_statements import ALIASES, COMPREHENSIONS, COUNTERS, EXPRESSIONS, NUMBERS, WRITES

__all__ = ["Blocks", "NoOperandError"]

_FIELD = re.compile(r"\{(\w+)\}")
_FLOATS = ("V", "V", "V", "R", "S")
_DEEPEST = 2

_Lines = list[str]


class NoOperandError(Exception):
    """No variable fits a template."""


@dataclass(frozen=True)
class _Variable:
    """A name in scope.

    Attributes:
        type: Its type; see ``python_statements``.
        assigned: Whether statements may assign it.
        written: Whether statements may write it in place.
    """

    type: str
    assigned: bool = True
    written: bool = True


@dataclass(frozen=True)
class _Place:
    """Where a statement is.

    Attributes:
        depth: The number of blocks around it.
        returns: The types that ``return`` returns here; empty where the function has no early returns.
        jumps: The jumps that are possible: "break" and "continue".
        functions: The number of functions around it.
    """

    depth: int = 0
    returns: tuple[str, ...] = ()
    jumps: tuple[str, ...] = ()
    functions: int = 0

    def inside(self, jumps: tuple[str, ...] | None = None) -> _Place:
        """A block at this place."""
        return _Place(self.depth + 1, self.returns, self.jumps if jumps is None else jumps, self.functions)


class Blocks:
    """Draws the functions of one program; all choices come from one random stream.

    Args:
        rng: The random stream.
        without: Features that no statement has.
    """

    def __init__(self, rng: random.Random, without: frozenset[str]) -> None:
        self.rng = rng
        self.without = without
        self.scope: dict[str, _Variable] = {}
        self.count = 0
        self.filtered: set[str] = set()

    def function(
        self, name: str, parameters: Mapping[str, str], returned: tuple[str, ...], size: int, signature: Sequence[str]
    ) -> _Lines:
        """The lines of a function without surrounding variables."""
        is_method = signature[0] == "self"
        before, self.without = (
            self.without,
            self.without | {"methods", "calls"} | (set() if is_method else {"attributes"}),
        )
        body = self.body(parameters, returned, size, functions=1)
        self.without = before
        return [f"def {name}({', '.join(signature)}):", *_indented(body)]

    def body(
        self, parameters: Mapping[str, str], returned: tuple[str, ...], size: int, *, functions: int = 0
    ) -> _Lines:
        """The lines of a function of these parameters that returns values of these types."""
        inputs = "inputs" not in self.without and "aliases" not in self.without and self.rng.random() < 0.3
        self.scope = {name: _Variable(type_, written=inputs) for name, type_ in parameters.items()}
        place = _Place(returns=returned, functions=functions)
        lines = []
        for type_ in ("V", "V", "R", "S"):
            if type_ != "R" or "R" in parameters.values():
                lines += self._new_value(type_)
        lines += self._statements(place, size)
        return [*lines, self._return(place)]

    # Blocks

    def _statements(self, place: _Place, size: int) -> _Lines:
        lines: _Lines = []
        for _ in range(size * 3):
            if size <= 0:
                break
            before = dict(self.scope)
            statement = self._drawn(place)
            try:
                lines += statement(self, place)
                size -= 1
            except NoOperandError:
                self.scope = before
        return lines or ["pass"]

    def _drawn(self, place: _Place) -> Callable[[Blocks, _Place], _Lines]:
        rows = [row for row in _STATEMENTS if row[0] not in self.without and (place.depth < _DEEPEST or not row[3])]
        rows = [row for row in rows if place.functions < 1 or row[0] not in _ONLY_IN_FORWARD]
        return self.rng.choices(rows, [row[1] for row in rows])[0][2]

    def _block(self, place: _Place, *, size: int | None = None, keeps: bool = False) -> _Lines:
        """A block; without ``keeps``, names that it defines are not visible after it."""
        before = dict(self.scope)
        lines = _indented(self._statements(place, size or self.rng.choice((1, 1, 2, 3))))
        if not keeps:
            self.scope = {name: self.scope.get(name, variable) for name, variable in before.items()}
        return lines

    def _branches(self, place: _Place, blocks: int) -> list[_Lines]:
        """Blocks of which one runs: names that all define are visible afterwards."""
        before, scopes, made = dict(self.scope), [], []
        # A variable of this type that each branch defines.
        name, type_ = self._name(), self.rng.choice(_FLOATS)
        defines = self.rng.random() < 0.5
        for _ in range(blocks):
            self.scope = dict(before)
            lines = self._block(place, keeps=True)
            if defines:
                lines += _indented(self._assignment(name, type_))
            scopes.append(self.scope)
            made.append(lines)
        common = {name for name in scopes[0] if all(scope.get(name) == scopes[0][name] for scope in scopes)}
        self.scope = {name: variable for name, variable in scopes[0].items() if name in common}
        return made

    # Values

    def _name(self) -> str:
        self.count += 1
        return f"{self.rng.choice('abcde')}{self.count}"

    def _pick(self, type_: str, *, assigned: bool = False, written: bool = False) -> str:
        names = [
            name
            for name, variable in self.scope.items()
            if variable.type == type_ and (variable.assigned or not assigned) and (variable.written or not written)
        ]
        if not names:
            raise NoOperandError
        return self.rng.choice(names[-3:] if self.rng.random() < 0.5 else names)

    def _value(self, type_: str, depth: int = 0) -> str:
        """An expression of a new value."""
        if type_ == "L":
            return f"[{', '.join(self._element() for _ in range(self.rng.randint(1, 3)))}]"
        if type_ == "D":
            return f"{{'a': {self._element()}, 'b': {self._element()}}}"
        if type_ == "T":
            return f"({self._element()}, {self._element()})"
        rows = [text for feature, text in EXPRESSIONS[type_] if feature not in self.without]
        for _ in range(60):
            with suppress(NoOperandError):
                return self._filled(self.rng.choice(rows), depth)
        raise NoOperandError

    def _element(self) -> str:
        return self._reference("V") if self.rng.random() < 0.6 else self._value("V")

    def _reference(self, type_: str) -> str:
        """An expression whose value may share storage with a variable; a copy without the feature of aliases."""
        rows = [text for feature, text in ALIASES.get(type_, ()) if feature not in self.without]
        if not rows:
            return self._value(type_)
        for _ in range(10):
            with suppress(NoOperandError):
                text = self._filled(self.rng.choice(rows), 1)
                return f"{text}.clone()" if "aliases" in self.without else text
        return self._value(type_)

    def _condition(self) -> str:
        return self._value("C")

    def _filled(self, template: str, depth: int) -> str:
        return _FIELD.sub(lambda found: self._field(found[1], depth), template)

    def _field(self, field: str, depth: int) -> str:
        if field == "num":
            return self.rng.choice(NUMBERS)
        if field == "pos":
            return self.rng.choice(("0", "1", "-1"))
        if field in ("wV", "wR"):
            return self._pick(field[1], written=True)
        if field == "new":
            return self._name()
        nested = field in EXPRESSIONS and depth < 2
        if nested and field not in ("C", "int") and (depth == 1 or self.rng.random() < 0.8):
            with suppress(NoOperandError):
                return self._pick(field)
        if not nested:
            return self._pick(field)
        text = self._value(field, depth + 1)
        return f"({text})" if " " in text else text

    # Statements

    def _assignment(self, name: str, type_: str) -> _Lines:
        is_reference = self.rng.random() < 0.25 and "aliases" not in self.without
        text = self._reference(type_) if is_reference else self._value(type_)
        self.scope[name] = _Variable(type_)
        return [f"{name} = {text}"]

    def _new_value(self, type_: str) -> _Lines:
        return self._assignment(self._name(), type_)

    def _assign(self, place: _Place) -> _Lines:
        type_ = self.rng.choice((*_FLOATS, "I", "B"))
        if self.rng.random() < 0.7:
            return self._assignment(self._pick(type_, assigned=True), type_)
        return self._new_value(type_)

    def _alias(self, place: _Place) -> _Lines:
        type_ = self.rng.choice(("V", "V", "R", "S"))
        name = self._pick(type_, assigned=True) if self.rng.random() < 0.5 else self._name()
        text = self._reference(type_)
        self.scope[name] = _Variable(type_)
        return [f"{name} = {text}"]

    def _write(self, place: _Place) -> _Lines:
        rows = [text for feature, text in WRITES if feature not in self.without]
        return [self._filled(self.rng.choice(rows), 1)]

    def _container(self, place: _Place) -> _Lines:
        types = [
            type_ for type_, feature in (("L", "lists"), ("D", "dicts"), ("T", "tuples")) if feature not in self.without
        ]
        if not types:
            raise NoOperandError
        return self._new_value(self.rng.choice(types))

    def _list_change(self, place: _Place) -> _Lines:
        name = self._pick("L")
        templates = [
            "{L}.append({e})",
            "{L}[0] = {e}",
            "{L}[-1] = {e}",
            "{L}.insert(0, {e})",
            "{L} += [{e}]",
            "{L}.reverse()",
        ]
        if not {"aliases", "writes"} & self.without:
            templates += ["{L}[0].add_(1)", "{L}[-1] *= 2", "{L}[0][1] = 0.5"]
        return [self.rng.choice(templates).replace("{L}", name).replace("{e}", self._element())]

    def _dict_change(self, place: _Place) -> _Lines:
        name = self._pick("D")
        templates = [
            "{D}['a'] = {e}",
            "{D}.update(b={e})",
            "{D}['c'] = {e}",
            "{D}['a'] = {D}.pop('b') + {D}.setdefault('b', {e})",
        ]
        if not {"aliases", "writes"} & self.without:
            templates += ["{D}['b'] += 1", "{D}['a'].mul_(0.5)", "{D}['a'][0] = 2"]
        return [self.rng.choice(templates).replace("{D}", name).replace("{e}", self._element())]

    def _unpack(self, place: _Place) -> _Lines:
        if self.rng.random() < 0.4:
            return [
                f"{self._pick('V', assigned=True)}, {self._pick('V', assigned=True)} = {self._element()}, {self._element()}"
            ]
        left, right = self._name(), self._name()
        source = self.rng.choice((self._pick("T"), f"({self._element()}, {self._element()})"))
        copied = f"(item.clone() for item in {source})" if "aliases" in self.without else source
        self.scope[left] = self.scope[right] = _Variable("V")
        return [f"{left}, {right} = {copied}"]

    def _if(self, place: _Place) -> _Lines:
        condition, draw = self._condition(), self.rng.random()
        if draw < 0.35:
            return [f"if {condition}:", *self._block(place.inside())]
        if draw < 0.85:
            first, second = self._branches(place.inside(), 2)
            return [f"if {condition}:", *first, "else:", *second]
        first, second, third = self._branches(place.inside(), 3)
        return [f"if {condition}:", *first, f"elif {self._condition()}:", *second, "else:", *third]

    def _match(self, place: _Place) -> _Lines:
        subject = self._filled("{int} % 3", 1)
        first, second = self._branches(place.inside(), 2)
        return [f"match {subject}:", *_indented(["case 0:", *first, "case _:", *second])]

    def _early_return(self, place: _Place) -> _Lines:
        if not place.returns:
            raise NoOperandError
        return [f"if {self._condition()}:", *_indented([self._return(place)])]

    def _return(self, place: _Place) -> str:
        values = [self._reference(type_) if self.rng.random() < 0.6 else self._value(type_) for type_ in place.returns]
        return f"return {', '.join(values)}"

    def _jump(self, place: _Place) -> _Lines:
        jumps = [jump for jump in place.jumps if f"{jump}s" not in self.without]
        if not jumps:
            raise NoOperandError
        return [f"if {self._condition()}:", *_indented([self.rng.choice(jumps)])]

    def _for(self, place: _Place) -> _Lines:
        before = dict(self.scope)
        views = "aliases" not in self.without
        number, row = self._name(), self._name()
        rows = self._pick("R")
        draw = self.rng.randrange(9)
        if draw <= 2:
            header = f"for {number} in range({self._value('int')}):"
            self.scope[number] = _Variable("number", assigned=False)
        elif draw == 3:
            header = f"for {number} in range({self._value('I')}):"
        elif draw <= 5:
            header = self.rng.choice((f"for {row} in {rows}:", f"for {row} in {rows}.unbind():"))
            self.scope[row] = _Variable("V", written=views)
        elif draw == 6:
            header = f"for {number}, {row} in enumerate({rows}):"
            self.scope[row] = _Variable("V", written=views)
        elif draw == 7:
            other = self._name()
            header = f"for {row}, {other} in zip({rows}, {self._pick('R')}):"
            self.scope[row] = self.scope[other] = _Variable("V", written=views)
        else:
            header = f"for {row} in {self._pick('L')}:"
            self.scope[row] = _Variable("V", written=views)
        # A list that changes during its own iteration may not end.
        hidden = {name: variable for name, variable in self.scope.items() if variable.type == "L"}
        self.scope = {name: variable for name, variable in self.scope.items() if variable.type != "L" or draw != 8}
        appended, lines = self._appended(draw, rows)
        body = self._block(place.inside(("break", "continue")))
        self.scope = {name: self.scope.get(name, hidden.get(name, variable)) for name, variable in before.items()}
        if not appended:
            return [header, *body]
        if appended in self.filtered:
            first = self._element()
            self.scope[appended] = _Variable("K")
            return [f"{appended} = [{first}]", header, *body, *lines]
        self.scope[appended] = _Variable("LR" if self.rng.random() < 0.9 else "L")
        return [f"{appended} = []", header, *body, *lines]

    def _appended(self, draw: int, rows: str) -> tuple[str, _Lines]:
        """The name of a list to which a loop over the rows appends, if it does, and the lines that append."""
        if draw not in (4, 5, 6, 7) or "lists" in self.without or self.rng.random() < 0.4:
            return "", []
        name = self._name()
        line = f"{name}.append({self._element()})"
        if "filters" in self.without or self.rng.random() < 0.7:
            return name, _indented([line])
        self.filtered.add(name)
        return name, _indented([f"if {self._condition()}:", *_indented([line])])

    def _while(self, place: _Place) -> _Lines:
        before = dict(self.scope)
        name = self._name()
        start, test, step = (self._filled(text.replace("{i}", name), 1) for text in self.rng.choice(COUNTERS))
        lines = [f"{name} = {start}"]
        if "boolean" not in self.without and self.rng.random() < 0.15:
            test = f"{test} and {self._condition()}"
        first = self.rng.random() < 0.4
        jumps = ("break", "continue") if first else ("break",)
        if "while true" not in self.without and self.rng.random() < 0.25:
            stop = [f"if not ({test}):", "    break"]
            body = self._block(place.inside(jumps))
            where = self.rng.choice(((*stop, step), (step, *stop)))
            lines += ["while True:", *_indented(where), *body] if first else ["while True:", *body, *_indented(where)]
        else:
            body = self._block(place.inside(jumps))
            lines += (
                [f"while {test}:", *_indented([step]), *body]
                if first
                else [f"while {test}:", *body, *_indented([step])]
            )
        if self.rng.random() < 0.1:
            lines += ["else:", *self._block(place.inside())]
        self.scope = {known: self.scope.get(known, variable) for known, variable in before.items()}
        return lines

    # Functions

    def _nested(self, place: _Place) -> _Lines:
        outer, before_without = dict(self.scope), self.without
        self.without = self.without | {"nested"}
        writes = "nonlocal" not in self.without and "aliases" not in self.without
        self._freeze_captured(outer)
        self.scope = {
            name: _Variable(variable.type, assigned=False, written=writes and variable.written)
            for name, variable in outer.items()
        }
        self.scope["p"] = _Variable("V", written="aliases" not in self.without)
        signature, lines = ["p"], []
        if "default arguments" not in self.without and self.rng.random() < 0.4:
            signature.append(
                self.rng.choice(("q=2", "q=0.5", f"q={self._value('V')}", f"*, q={self.rng.choice(NUMBERS)}"))
            )
        if "nonlocal" not in self.without and self.rng.random() < 0.5:
            names = [name for name, variable in outer.items() if variable.type == "V" and variable.assigned]
            if names and place.functions == 0 and place.depth >= 0:
                chosen = self.rng.choice(names)
                lines += [f"nonlocal {chosen}"]
                self.scope[chosen] = _Variable("V")
        inner = _Place(place.depth + 1, ("V",), (), place.functions + 1)
        lines += self._statements(inner, self.rng.randint(1, 2))
        result = self._return(inner)
        name = self._name()
        self.scope, self.without = outer, before_without
        takes_number = len(signature) > 1 and "*" not in signature[1]
        self.scope[name] = _Variable("G" if takes_number else "F", assigned=False)
        # Assigned in this function only: parameters of forward cannot be nonlocal otherwise.
        return [f"def {name}({', '.join(signature)}):", *_indented([*lines, result])]

    def _freeze_captured(self, outer: dict[str, _Variable]) -> None:
        """Without late binding, variables that a function may read are not changed after its definition."""
        if "late" in self.without:
            for name, variable in outer.items():
                outer[name] = _Variable(variable.type, assigned=False, written=False)

    def _lambda(self, place: _Place) -> _Lines:
        outer = dict(self.scope)
        self._freeze_captured(outer)
        self.scope["p"] = _Variable("V")
        text = self._value("V")
        if "p" not in text:
            text = f"{text} + p"
        self.scope = outer
        name = self._name()
        if self.rng.random() < 0.2 and "late" not in self.without:
            listed = self._name()
            index = self.rng.choice(("0", "-1", "1"))
            self.scope[name] = _Variable("F", assigned=False)
            return [
                f"{listed} = [lambda p: p * j + {self._pick('V')} for j in range(3)]",
                f"{name} = {listed}[{index}]",
            ]
        self.scope[name] = _Variable("F", assigned=False)
        return [f"{name} = lambda p: {text}"]

    def _call(self, place: _Place) -> _Lines:
        name = self._pick("V", assigned=True)
        template = self.rng.choice(("{F}({V})", "{G}({V}, 2)", "{G}({V})"))
        return [f"{name} = {self._filled(template, 1)}"]

    def _comprehension(self, place: _Place) -> _Lines:
        name = self._name()
        template, type_ = self.rng.choice(COMPREHENSIONS)
        text = self._filled(template, 1)
        self.scope[name] = _Variable(type_)
        return [f"{name} = {text}"]

    def _walrus(self, place: _Place) -> _Lines:
        name = self._name()
        text = self._value("S")
        self.scope[name] = _Variable("S")
        first, second = self._branches(place.inside(), 2)
        return [f"if ({name} := {text}) > {self.rng.choice(NUMBERS)}:", *first, "else:", *second]

    # Handlers and contexts

    def _try(self, place: _Place) -> _Lines:
        draw = self.rng.randrange(6)
        error = self.rng.choice(
            ("RuntimeError", "ValueError", "Exception", "(RuntimeError, TypeError)", "BaseException")
        )
        if draw == 0:
            return [f"with contextlib.suppress({error}):", *self._block(place.inside())]
        attempt = self._block(place.inside())
        if draw == 1:
            return ["try:", *attempt, "finally:", *self._block(place.inside())]
        if draw == 2:
            attempt = [*_indented([f"if {self._condition()}:", "    raise ValueError('refused')"]), *attempt]
            error = "ValueError"
        handler = self._block(place.inside())
        lines = ["try:", *attempt, f"except {error}:", *handler]
        if draw == 3:
            lines += ["else:", *self._block(place.inside())]
        if draw == 4:
            lines += ["finally:", *self._block(place.inside())]
        return lines

    def _with(self, place: _Place) -> _Lines:
        context = self.rng.choice(
            ("torch.no_grad()", "contextlib.nullcontext()", "torch.enable_grad()", "torch.set_grad_enabled(False)")
        )
        return [f"with {context}:", *self._block(place.inside(), keeps=True)]

    def _assert(self, place: _Place) -> _Lines:
        return [
            self._filled(
                self.rng.choice(
                    ("assert {R}.shape[0] > 0", "assert {S}.abs() < 10000", "assert {V}.ndim == 1, 'rank'")
                ),
                1,
            )
        ]

    def _raise(self, place: _Place) -> _Lines:
        test = self._filled(
            self.rng.choice(("{S} > 10000", "{R}.shape[0] > 100", "{S}.isnan()", "{V}.max() > 9999")), 1
        )
        return [f"if {test}:", "    raise ValueError('too large')"]

    # Objects and attributes

    def _attribute(self, place: _Place) -> _Lines:
        templates = [
            "self.h = {V} + 1",
            "self.h = self.h * 0.5 + {V}",
            "self.count += 1",
            "self.count = {int}",
            "self.last = {S}",
        ]
        if not {"aliases", "writes"} & self.without:
            templates += [
                "self.h = {V}",
                "self.h += {V}",
                "self.h[0] = {S}",
                "self.buffer.add_({V})",
                "self.buffer[1] = {S}",
            ]
        return [self._filled(self.rng.choice(templates), 1)]

    def _object(self, place: _Place) -> _Lines:
        name, value = self._name(), self._name()
        lines = [f"{name} = SimpleNamespace(a={self._element()}, n=0)"]
        inner = [f"{name}.a = {name}.a * 0.5 + {self._value('V')}", f"{name}.n += 1"]
        lines += [f"if {self._condition()}:", *_indented(inner)] if self.rng.random() < 0.6 else inner
        self.scope[value] = _Variable("V")
        return [*lines, f"{value} = {name}.a + {name}.n"]

    def _generator(self, place: _Place) -> _Lines:
        name, value = self._name(), self._name()
        rows = self._pick("R")
        lines = [f"def {name}():", f"    for row in {rows}:", f"        yield row * {self.rng.choice(NUMBERS)}"]
        self.scope[value] = _Variable("V")
        return [*lines, f"{value} = sum({name}())"]

    def _delete(self, place: _Place) -> _Lines:
        if place.depth:
            raise NoOperandError
        names = [name for name, variable in self.scope.items() if variable.assigned and variable.type in "VS"]
        if len(names) < 5:
            raise NoOperandError
        name = self.rng.choice(names[1:])
        type_ = self.scope.pop(name).type
        return [f"del {name}", *self._assignment(name, type_)]


def _indented(lines: Sequence[str]) -> _Lines:
    return [f"    {line}" for line in lines]


_ONLY_IN_FORWARD = frozenset({"attributes"})

# The feature of a statement, its weight, its method, and whether it contains blocks.
_STATEMENTS: tuple[tuple[str, float, Callable[[Blocks, _Place], _Lines], bool], ...] = (
    ("", 6, Blocks._assign, False),
    ("aliases", 2, Blocks._alias, False),
    ("writes", 5, Blocks._write, False),
    ("lists", 1, Blocks._container, False),
    ("lists", 1, Blocks._list_change, False),
    ("dicts", 1, Blocks._dict_change, False),
    ("tuples", 1, Blocks._unpack, False),
    ("branches", 5, Blocks._if, True),
    ("match", 0.3, Blocks._match, True),
    ("returns", 1, Blocks._early_return, True),
    ("breaks", 1.5, Blocks._jump, True),
    ("loops", 2.5, Blocks._for, True),
    ("loops", 2, Blocks._while, True),
    ("nested", 1.2, Blocks._nested, True),
    ("lambdas", 0.7, Blocks._lambda, False),
    ("calls", 1, Blocks._call, False),
    ("comprehensions", 1, Blocks._comprehension, False),
    ("walrus", 0.5, Blocks._walrus, True),
    ("handlers", 0.8, Blocks._try, True),
    ("with", 0.6, Blocks._with, True),
    ("assertions", 0.3, Blocks._assert, False),
    ("raise", 0.3, Blocks._raise, False),
    ("attributes", 0.8, Blocks._attribute, False),
    ("objects", 0.4, Blocks._object, False),
    ("generators", 0.2, Blocks._generator, False),
    ("delete", 0.3, Blocks._delete, False),
)
