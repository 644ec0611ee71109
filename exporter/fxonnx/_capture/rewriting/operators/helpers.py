"""The helpers that transformed functions call: they decide at run time how control flow is captured."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial, partialmethod
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, free_unbacked_symbols

from fxonnx_translations._torch_compat import sym_max, sym_not

from ...._context_values import activated
from ....errors import CaptureError
from ...constraints.guard_recorder import source_line_of
from ...data_dependence.concrete_values import is_open
from ...edges import (
    AskedEdges,
    absorbs,
    answer_in_branch,
    chosen,
    graphs_run_at_sides,
    is_size_branch,
    sides_of,
    without_methods,
)
from ...suspicions.eager_types import type_of
from ..transformer import Site
from .conditionals import SAME_TYPE, Branches, Fork, decided, symbolic_branch
from .growing_lists import joining
from .loops import Counter, Counting, symbolic_loop
from .sequences import (
    Elements,
    StackedList,
    as_elements,
    elements_of,
    hits_of,
    pieces,
    repeated,
    replacement_of,
    stored_key,
    truth,
)
from .state import CHANGES, State, read_value, unchanged_objects
from .values import UNBOUND, as_condition, is_dynamic_size, is_symbolic, is_undecided, observed

__all__ = ["SIZE_BRANCH", "Helpers", "Rewrite"]


_UNROLLED = 8
"""Iterations of a range that a data-dependent ``break`` may leave unrolled."""

SIZE_BRANCH = "branch on sizes"
"""The construct whose branches are both captured, each for the sizes at which it runs."""

Get = Callable[[], Sequence[Any]]
Put = Callable[[Sequence[Any]], None]


@dataclass(frozen=True)
class Rewrite:
    """Python control flow that depends on tensors and was captured as an operator.

    Attributes:
        file: The source file.
        line: Its line number.
        function: The function that contains it.
        construct: The construct, such as ``while on a tensor's value``.
    """

    file: str
    line: int
    function: str
    construct: str

    def __str__(self) -> str:
        return f"{self.place}: {self.construct}"

    @property
    def place(self) -> str:
        """``file.py:12 in forward``."""
        return f"{self.file}:{self.line} in {self.function}"


class Helpers:
    """The helpers of one transformed function.

    ``unrolled`` has the lines of loops over sizes that are unrolled, and receives those that cannot be operators;
    ``forked`` has the lines of conditions whose branches go on to the end of a function, and ``refused`` is called with
    the line of one whose branches have different types, or that contains one.
    ``refusals`` receives problem and hint of the errors for constructs, which the user's code may handle.
    """

    UNBOUND = UNBOUND
    value = staticmethod(read_value)
    counting = staticmethod(Counting)
    repeated = staticmethod(repeated)
    joining = staticmethod(joining)

    def __init__(
        self,
        file: str,
        function: str,
        sites: Sequence[Site],
        record: Callable[[Rewrite], None],
        unrolled: set[int],
        forked: Container[int],
        refusals: list[tuple[str, str]],
        refused: Callable[..., None],
    ) -> None:
        self._file, self._function, self.sites, self._record = file, function, sites, record
        self.unrolled, self._forked, self._refusals, self._refused = unrolled, forked, refusals, refused

    def branch(
        self,
        at: int,
        test: Any,
        then: Callable[[], Any],
        otherwise: Callable[[], Any],
        get: Get | None = None,
        put: Put | None = None,
    ) -> Any:
        """``if test``, and ``then if test else otherwise``: run one of two functions."""
        test = self._condition(at, truth(test))
        sides = self._sides(at, test, then, otherwise)
        if sides is None and not is_symbolic(test):
            return then() if test else otherwise()
        self.rewritten(at, "" if sides is None else SIZE_BRANCH)
        state = None if get is None or put is None else State(self.sites[at], get, put)
        is_sized = sides is not None and not free_unbacked_symbols(test)
        return self._taken(at, test, (then, otherwise), state, is_sized=is_sized)

    def _taken(self, at: int, test: Any, branches: Branches, state: State | None, *, is_sized: bool = False) -> Any:
        """Both branches of a condition as an operator; one of them where both go on to the end of a function."""
        line, capture, refuse = self.sites[at].line, partial(self._captured, at, test), self.refuse(at, is_branch=True)
        answer = decided(test, capture, refuse, is_sized=is_sized) if line in self._forked else None
        if answer is not None:
            return branches[not answer]()
        try:
            return capture(branches, state)
        except CaptureError:
            self._refused(line, is_inner=False)
            raise

    def _captured(self, at: int, test: Any, branches: Branches, state: State | None) -> Any:
        """Both branches of a condition as an operator, those of one on sizes at sizes at which they run."""
        sides = self._sides(at, test, *branches)
        choose = None if sides is None else partial(chosen, test)
        with graphs_run_at_sides():
            return symbolic_branch(test, sides or branches, state, self.refuse(at, is_branch=True), choose)

    def _sides(self, at: int, test: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """The branches of a condition on sizes of which both are captured."""
        line = self.sites[at].line
        if not is_size_branch(test, f"{self._file}:{line}") or not is_undecided(test):
            return None
        return sides_of(test, (then, otherwise), source_line_of(self._file, line, self._function))

    def _condition(self, at: int, value: Any) -> Any:
        """The truth of a size, if both branches of a condition on it are captured, and of what a branch depends on."""
        answer = answer_in_branch(value)
        if answer is not None:
            return answer
        condition = value != 0 if is_dynamic_size(value) else value
        is_captured = is_size_branch(condition, f"{self._file}:{self.sites[at].line}")
        return without_methods(condition) if is_captured else value

    returning = choose = branch

    def loop(
        self,
        at: int,
        test: Callable[[], Any],
        body: Callable[[], Any],
        flags: Callable[[], Sequence[Any]],
        get: Get,
        put: Put,
        counting: Counting | None = None,
    ) -> None:
        """``while test``: loop until the test or a flag ends it."""
        _Loop(self, at, body, flags, get, put).run_while(test, counting)

    def iterate(
        self,
        at: int,
        iterable: Any,
        body: Callable[[Any], Any],
        flags: Callable[[], Sequence[Any]],
        get: Get,
        put: Put,
    ) -> None:
        """``for item in iterable``: loop over the elements until a flag ends it."""
        _Loop(self, at, body, flags, get, put).run_for(iterable)

    @contextmanager
    def unrolled_after_failure(self, at: int) -> Iterator[None]:
        """Unroll a loop over sizes in the next attempt if it cannot be an operator."""
        try:
            yield
        except Exception:
            self.unrolled.add(self.sites[at].line)
            raise

    def comprehend(
        self, at: int, iterable: Any, element: Callable[[Any], Any], test: Callable[[Any], Any] = lambda _: True
    ) -> Any:
        """``[element for item in iterable if test]``."""

        def add(item: Any, state: State) -> None:
            def append() -> None:
                (made,) = state.values
                made.append(element(item))

            kept = truth(test(item))
            if is_symbolic(kept):
                self.rewritten(at)
                symbolic_branch(kept, (append, lambda: None), state, self.refuse(at))
            elif kept:
                append()

        elements = elements_of(iterable)
        if elements is None or self.sites[at].line in self.unrolled:
            return self._listed(at, iter(iterable), add)
        with nullcontext() if is_symbolic(elements.count) else self.unrolled_after_failure(at):
            return self._listed(at, elements, add)

    def comprehend_flat(self, at: int, iterable: Any, items: Callable[[Any], Any]) -> Any:
        """``[element for one in iterable for other in ...]``; ``items`` is the inner comprehension."""
        elements = elements_of(iterable)
        if elements is None or self.sites[at].line in self.unrolled:
            made: Any = []
            for item in iterable:
                made = made + items(item)
            return made

        def extend(item: Any, state: State) -> None:
            (made,) = state.values
            added = items(item)
            if isinstance(added, StackedList):
                self.refuse(at)(
                    "its inner loop has a dynamic length as well",
                    "stack the inner list: torch.cat([torch.stack([... for b in y]) for a in x])",
                )
            made.extend(added)

        with nullcontext() if is_symbolic(elements.count) else self.unrolled_after_failure(at):
            return self._listed(at, elements, extend)

    def _listed(self, at: int, items: Any, add: Callable[[Any, State], None]) -> Any:
        """The list to which an iteration for each item, or element, adds items."""
        made: Any = []

        def put(values: Sequence[Any]) -> None:
            nonlocal made
            (made,) = values

        site = Site(self.sites[at].line, self.sites[at].construct, ("the list",), frozenset({"the list"}))
        loop = _Loop(self, at, lambda item: add(item, loop.state(site)), tuple, lambda: (made,), put)
        if isinstance(items, Elements):
            loop.over(items, site)
        else:
            for item in items:
                loop.body(item)
        return made

    def _logical(self, is_and: bool, at: int, is_test: bool, *operands: Callable[[], Any]) -> Any:
        """``a and b`` or ``a or b``; in a test, only the truth of the value matters."""
        value = operands[0]()
        for index, operand in enumerate(operands[1:], 1):
            rest = partial(self._logical, is_and, at, is_test, *operands[index:])
            if not is_test and is_dynamic_size(value):
                ways: Any = (rest, lambda: value) if is_and else (lambda: value, rest)  # noqa: B023 - called here
                return self.branch(at, value, *ways)
            value = self._condition(at, value) if is_test else value
            sides = self._sides(at, value, rest, rest) if is_test else None
            if sides is not None:
                # Where the first one decides, Python does not ask the others.
                other = sides[0 if is_and else 1]()
                if isinstance(other, bool | torch.SymBool) and not is_symbolic(other):
                    return operator.and_(value, other) if is_and else operator.or_(value, other)
                if isinstance(other, torch.SymBool) and absorbs(other, value, is_and=is_and):
                    return other
            if is_symbolic(value):
                self.rewritten(at)
                if is_test:
                    # x.any() and x.dtype == torch.float16: what Python knows of the rest may decide. A size at an edge
                    # may have another answer, which the model asks for some values only: the proof finds these.
                    asked = AskedEdges()
                    with activated(asked), unchanged_objects(operands[index:], self.refuse(at)), observed():
                        known = truth(rest())
                        decides = not is_symbolic(known) and bool(known) is not is_and
                    if decides and not asked.count:
                        return not is_and

                def branch(has_value: bool) -> Any:
                    found = value if has_value else rest()  # noqa: B023
                    is_condition = is_test or (_is_flag(value) and _is_flag(found))  # noqa: B023
                    return as_condition(found) if is_condition else found

                take = self._captured if is_test else self._taken
                return take(at, value, (lambda: branch(not is_and), lambda: branch(is_and)), None)
            if bool(value) is not is_and:
                return value
            value = operand()
        return value

    and_ = partialmethod(_logical, True)
    or_ = partialmethod(_logical, False)

    def chain(self, at: int, left: Any, *parts: tuple[Callable[[], Any], Callable[[Any, Any], Any]]) -> Any:
        """``a < b < c``."""
        (right_of, compare), *rest = parts
        right = right_of()
        value = compare(left, right)
        if not rest:
            return value
        return self.and_(at, False, lambda: value, lambda: self.chain(at, right, *rest))

    @staticmethod
    def not_(value: Any) -> Any:
        """``not value``."""
        value = truth(value)
        if is_size_branch(value, ""):
            return sym_not(value)
        return torch.logical_not(as_condition(value)) if is_symbolic(value) else not value

    @staticmethod
    def builtin(function: Any) -> Any:
        """A function of Python that accepts tensors and symbolic numbers."""
        return replacement_of(function)

    @staticmethod
    def class_of(value: Any) -> Any:
        """``value.__class__``, as in eager torch."""
        found = value.__class__
        return type_of(value) if found is type(value) else found

    @staticmethod
    def pieces(function: Any) -> Any:
        """``x.unbind``, ``x.split`` and ``x.chunk`` that may return a list of dynamic length."""
        return pieces(function, is_iterated=False)

    @staticmethod
    def iterated(function: Any) -> Any:
        """``x.unbind`` and ``x.split`` whose result is the iterable of a loop."""
        return pieces(function, is_iterated=True)

    @staticmethod
    def contains(element: Any, container: Any) -> Any:
        """``element in container``."""
        is_unknown = isinstance(container, torch.Tensor) and is_open(container)
        return (container == element).any().item() if is_unknown else stored_key(container, element) in container

    key = staticmethod(stored_key)

    def identified(self, at: int, value: Any) -> Any:
        """The left side of ``value is True``."""
        if isinstance(value, torch.SymBool) and is_symbolic(value):
            self.refuse(at)("its value is not known during capture", "use the value itself, or compare it with ==")
        return value

    def unsupported(self, at: int) -> NoReturn:
        """A function of the variables of the scope, which the transformed function has in other scopes."""
        self.refuse(at)("it depends on the scope", "use the variables themselves, or a dict of them")

    def plain(self, at: int, value: Any) -> Any:
        """A condition of a construct that is not transformed."""
        if is_symbolic(value):
            self.refuse(at)(self.sites[at].reason, "move the statements to a function of their own")
        return value

    def plain_iterable(self, at: int, iterable: Any) -> Any:
        """An iterable of a loop that is not transformed."""
        if elements_of(iterable) is not None:
            self.refuse(at)(self.sites[at].reason, "move the statements to a function of their own")
        return iterable

    def plain_items(self, at: int, iterable: Any) -> Any:
        """An iterable of a comprehension with a filter."""
        elements = elements_of(iterable)
        if elements is not None and self.sites[at].line not in self.unrolled:
            if not is_symbolic(elements.count):
                self.unrolled.add(self.sites[at].line)
            self._refuse_filter(at)
        return iterable

    def plain_filter(self, at: int, value: Any) -> Any:
        """A condition of a comprehension."""
        if is_symbolic(value):
            self._refuse_filter(at)
        return value

    def _refuse_filter(self, at: int) -> NoReturn:
        self.refuse(at)(
            "the number of its items depends on data or on a dynamic size",
            "select the rows with a mask, x[mask], and compute all of them at once, or loop over x[mask]",
        )

    def rewritten(self, at: int, construct: str = "") -> None:
        site = self.sites[at]
        self._record(Rewrite(self._file, site.line, self._function, construct or site.construct))

    def refuse(self, at: int, *, is_branch: bool = False) -> Callable[[str, str], NoReturn]:
        site = self.sites[at]

        def refuse(problem: str, hint: str) -> NoReturn:
            message = (
                f"{site.construct} cannot be captured: {problem}\n"
                f"  at: {Path(self._file).name}:{site.line} in {self._function}"
            )
            self._refusals.append((message, hint))
            # An object that is changed may be one of a caller's call, which each branch makes again.
            if is_branch and (hint.startswith(SAME_TYPE) or problem.startswith(CHANGES)):
                self._refused(site.line, is_inner=True)
            raise CaptureError(message, hint=hint)

        return refuse


@dataclass(frozen=True)
class _Loop:
    """A loop of a transformed function, which runs in Python until its values depend on tensors.

    Functions for operators refer to the body and the flags: ``unchanged_objects`` does not follow a loop.

    Attributes:
        helpers: The helpers of the function.
        at: The index of its construct.
        body: One iteration; of a ``for`` loop, with the item.
        flags: Returns the flags that end it.
        get: Returns the values of its variables.
        put: Sets them.
    """

    helpers: Helpers
    at: int
    body: Callable[..., Any]
    flags: Callable[[], Sequence[Any]]
    get: Get
    put: Put

    @property
    def site(self) -> Site:
        """Its construct."""
        return self.helpers.sites[self.at]

    @property
    def unrolled_after_failure(self) -> AbstractContextManager[None]:
        """Unroll it in the next attempt if it cannot be an operator."""
        return self.helpers.unrolled_after_failure(self.at)

    def state(self, site: Site) -> State:
        """Its variables."""
        return State(site, self.get, self.put)

    def run_while(self, test: Callable[[], Any], counting: Counting | None) -> None:
        """``while test``."""
        is_unrolled = self.site.line in self.helpers.unrolled

        def counted(*, data_dependent: bool, static: bool = False) -> bool:
            count = None if counting is None else counting.count(data_dependent=data_dependent, static=static)
            if counting is None or count is None:
                return False
            if not (type(count) is int and count <= 0):
                self._count(counting, count)
            return True

        while True:
            ended = self.flags()
            if any(is_symbolic(flag) for flag in ended):
                # The number of items that it adds depends on data.
                if self.site.grows and counted(data_dependent=False, static=True):
                    return
                break
            if any(ended):
                return
            if not is_unrolled:
                with self.unrolled_after_failure:
                    if counted(data_dependent=False):
                        return
            test_value = test()
            if is_symbolic(test_value):
                break
            if not is_unrolled and is_undecided(test_value):
                with self.unrolled_after_failure:
                    self._while(test)
                return
            if not test_value:
                return
            self.body()
        self._while(test, lambda: counted(data_dependent=True))

    def _while(self, test: Callable[[], Any], recount: Callable[[], bool] | None = None) -> None:
        if self.site.reason:
            self.helpers.refuse(self.at)(
                self.site.reason, "assign it in the loop: while True: total = x.sum(); if total > 9: break; ..."
            )
        self._operator(test, self.body, None, self.site, recount)

    def _count(self, counting: Counting, count: Any) -> None:
        """``while i < n`` with the step ``i += 1``, as ``for i in range(i, n)``."""
        start, step, body = counting.start(), counting.step(), self.body
        counter = Counter(count)

        def iterate() -> None:
            counting.assign(start + step * counter.index())
            body()

        site = self.site
        if not (counting.is_used and site.flags):
            site = replace(site, needed=site.needed - {counting.name})
        self._operator(lambda: counter.tensor < count, iterate, counter, site)
        if not site.flags:
            counting.assign(start + step * sym_max(count, 0))

    def run_for(self, iterable: Any) -> None:
        """``for item in iterable``."""
        elements = elements_of(iterable)
        if elements is None:
            self._unroll(iterable)
            return
        hits = hits_of(iterable)
        if hits is None:
            self.over(elements, self.site)
            return
        try:
            self.over(elements, self.site)
        except GuardOnDataDependentSymNode:
            # The body asks for the value of the index, such as the name of an expert: one If for each index.
            for index in range(hits.shape[0]):
                hit = _not_ended(self.flags(), lambda: hits[index])  # noqa: B023
                self._conditional(hit, torch.tensor([index], device=hits.device))

    def over(self, elements: Elements, site: Site) -> None:
        """Loop over elements as an operator."""
        counter, body = Counter(elements.count, elements.span), self.body
        self._operator(
            lambda: counter.tensor < elements.count, lambda: body(elements.at(counter.index())), counter, site
        )

    def _unroll(self, iterable: Any) -> None:
        """Iterate in Python; once a flag depends on tensors, further iterations are conditional."""
        for index, item in enumerate(iter(iterable)):
            ended = self.flags()
            if not any(is_symbolic(flag) for flag in ended):
                if any(ended):
                    return
                self.body(item)
                continue
            elements = as_elements(iterable)
            if elements is not None and (elements.count - index > _UNROLLED or self.site.grows):
                rest = Elements(elements.count - index, lambda position: elements.at(position + index))  # noqa: B023
                self.over(rest, self.site)
                return
            self._conditional(_not_ended(ended, lambda: True), item)

    def _conditional(self, test: Any, item: Any) -> None:
        body = self.body
        self.helpers.branch(self.at, test, lambda: body(item), lambda: None, self.get, self.put)

    def _operator(
        self,
        test: Callable[[], Any],
        step: Callable[[], None],
        counter: Counter | None,
        site: Site,
        recount: Callable[[], bool] | None = None,
    ) -> None:
        self.helpers.rewritten(self.at)
        flags = self.flags
        with activated(Fork(None)):
            symbolic_loop(
                lambda: _not_ended(flags(), test),
                step,
                self.state(site),
                counter,
                self.helpers.refuse(self.at),
                recount,
            )


def _is_flag(value: Any) -> bool:
    """Whether a value is a boolean, of Python, of a size or in a tensor."""
    return isinstance(value, bool | torch.SymBool) or (isinstance(value, torch.Tensor) and value.dtype == torch.bool)


def _not_ended(flags: Sequence[Any], test: Callable[[], Any]) -> Any:
    """Whether no flag is set, and the test holds."""
    if not any(is_symbolic(flag) for flag in flags):
        return False if builtins.any(flags) else test()
    value = as_condition(test())
    for flag in flags:
        value = torch.logical_and(value, torch.logical_not(as_condition(flag)))
    return value
