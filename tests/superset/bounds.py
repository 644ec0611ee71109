"""Programs with values of input tensors as bounds of slices."""

from __future__ import annotations

from collections.abc import Iterator

from .program import Program, checksum, module, share

__all__ = ["bounds"]

# Bounds in a, or in a and b, or in l, which has an element per row.
_ONE = (
    *("a:", ":a", "-a:", ":-a", "a:a + 2", "a - 1:a + 2", "a::2", "a // 2:", "a * 2:", ":a + 1", "1:a", "a:-1"),
    *(
        ":max(a, 2)",
        "int(a):",
        ":a.item()",
        ":int(a) + 1",
        "a:a + x.shape[0]",
        "x.shape[DIM] - a:",
        ":a % 5",
        "a.long():",
    ),
)
_TWO = (
    "a:b",
    "a:b:2",
    "a + 1:b",
    ":a + b",
    ":b - a",
    "a:b - 1",
    "min(a, b):",
    ":max(a, b)",
    "int(a):int(b)",
    "a:a + b",
)
_ROWS = (
    ":l.max()",
    "l.min():",
    "l[0]:l[1]",
    ":l[0]",
    "l[-1]:",
    ":l.sum() // 4",
    "int(l.max()):",
    ":l.max().item()",
    ":l.amax()",
)

_READS = (
    *("x[S] * 1", "x[S].sum(DIM)", "x[S].relu()", "torch.cat([x[S], x], DIM)", "x[S].mT @ x[S]", "x[S].softmax(DIM)"),
    *(
        "F.pad(x[S], (1, 1))",
        "x[S].flatten()",
        "x[S].mT.contiguous()",
        "x * x[S].shape[DIM]",
        "torch.zeros_like(x[S]) + 1",
    ),
    *(
        "x[S].cumsum(DIM)",
        "x[S].unsqueeze(0)",
        "(x * 2)[S] + x[S]",
        "torch.where(x[S] > 0, x[S], 0.5)",
        "x[S].mean() + x",
    ),
)
_WRITES = (
    *(("y[S] = 0",), ("y[S] = -1.5",), ("y[S] += 1",), ("y[S] *= 2",), ("y[S] -= x[S] * 0.5",), ("y[S].zero_()",)),
    *(("y[S].fill_(3)",), ("y[S].copy_(x[S] * 2)",), ("y[S].masked_fill_(x[S] > 0, 5.0)",), ("y[S].add_(1)",)),
    *(("y[S].mul_(2)",), ("y[S].clamp_(min=0)",), ("y[S].neg_()",), ("y[S] = x[S] * 2",), ("y[S] = y.sum()",)),
    *(("y[S] = torch.zeros_like(y[S])",), ("y[S] = torch.where(x[S] > 0, x[S], 0.5)",), ("v = y[S]", "v += 1")),
    *(("v = y[S]", "v.zero_()"), ("y[S][x[S] > 0] = 2.0",), ("y[S] /= 2",), ("y[S] = 1", "y[S] += x[S]")),
    *(("y[S] = y[S].exp()",), ("y[S] = x.mean()", "y = y * 2"), ("torch.relu_(y[S])",), ("y[S].fill_(x.max())",)),
    *(("m = torch.zeros(x.shape, dtype=torch.bool)", "m[S] = True", "y = x.masked_fill(m, 0.0)"),),
    *(("m = torch.ones_like(x)", "m[S] = 0", "y = x * m"), ("m = torch.ones(x.shape)", "m[S].zero_()", "y = y * m")),
)
_TARGETS = ((":, S", 1), ("S", 0), ("..., S", 1), ("1:3, S", 1))

# Values of a and b: for a width of 12.
_VALUES = {
    "inside": ((6, 9), (3, 10), (2, 5)),
    "edges": ((6, 9), (12, 12), (1, 12)),
    "empty": ((5, 8), (4, 4), (12, 12)),
    "beyond": ((5, 8), (13, 20), (2, 15)),
    "negative": ((4, 8), (-3, -1), (-8, 11)),
}
_TYPES = (("", ""), ("[]", ""), ("", ", dtype=int32"), ("[]", ", dtype=int32"))
_FORMS = ("class", "class", "class", "class", "helper", "lambda", "type", "class")


def bounds() -> Iterator[Program]:
    """All programs of the family."""
    for bound in (*_ONE, *_TWO, *_ROWS):
        for use in (
            *((f"return {read}",) for read in _READS),
            *(("y = x.clone()", *write, "return y") for write in _WRITES),
        ):
            for target, dim in _TARGETS:
                body = [
                    line.replace("S]", f"{target}]").replace("S]", f"{bound}]").replace("DIM", str(dim)) for line in use
                ]
                yield from _of_values("slices", bound, body, dim)
    yield from _loops()
    yield from _windows()
    yield from _ranges()


def _of_values(family: str, bound: str, body: list[str], dim: int) -> Iterator[Program]:
    names = "l" if bound in _ROWS else "a, b" if bound in _TWO else "a"
    for values, triples in _VALUES.items():
        for brackets, dtype in _TYPES:
            if names == "l" and (brackets or values in ("negative", "beyond")):
                continue
            if not share(45 if values == "inside" else 180, bound, *body, values, brackets, dtype):
                continue
            yield _program(family, names, body, triples, (brackets, dtype), dim)


def _program(
    family: str, names: str, body: list[str], triples: tuple[tuple[int, int], ...], kind: tuple[str, str], dim: int
) -> Program:
    number = checksum(*body, names, *kind)
    shapes, dynamic = [((4, 12) if dim else (12, 4))] * 3, "None"
    if number % 3 == 1:  # the other axis is dynamic
        shapes = [(4, 12), (7, 12), (3, 12)] if dim else [(12, 4), (12, 7), (12, 3)]
        dynamic = f"({{{1 - dim}: 'n'}}{', None' * len(names.split(','))})"
    calls = []
    for shape, (a, b) in zip(shapes, triples, strict=True):
        if names == "l":
            rows = (a, min(12, b), max(0, a - 1), max(1, b - 3))
            calls.append(f"f{shape}, n({list(rows)}{kind[1]})")
        else:
            texts = [f"n([{v}]{kind[1]})" if kind[0] else f"n({v}{kind[1]})" for v in (a, b)[: len(names.split(","))]]
            calls.append(f"f{shape}, {', '.join(texts)}")
    form = _FORMS[number // 3 % len(_FORMS)]
    source = module(f"x, {names}", body, form=form)
    return Program(family, source, tuple(f"({call})" for call in calls), dynamic, has_source=number // 100 % 6 > 0)


_LOOPS = (
    ("m = torch.ones(x.shape)", "for i, n in enumerate(l):", "    m[i, n:] = 0", "return x * m"),
    ("m = torch.zeros(x.shape)", "for i, n in enumerate(l):", "    m[i, :n] = 1", "return x * m"),
    ("m = torch.zeros(x.shape)", "for i in range(len(l)):", "    m[i, :l[i]] = 1", "return x * m"),
    ("m = torch.zeros_like(x)", "for i in range(x.shape[0]):", "    m[i, :l[i]] += 1", "return x + m"),
    ("m = torch.ones_like(x)", "for row, n in zip(m, l):", "    row[n:] = 0", "return x * m"),
    ("m = torch.ones(x.shape)", "for i, n in enumerate(l.tolist()):", "    m[i, n:] = 0", "return x * m"),
    ("m = torch.ones(x.shape)", "for i, n in enumerate(l):", "    m[i, int(n):].zero_()", "return x * m"),
    ("y = x.clone()", "for i in range(x.size(0)):", "    y[i, l[i] - 1:] *= 2", "return y"),
    ("out = []", "for i, n in enumerate(l):", "    out.append(x[i, :n].sum())", "return torch.stack(out)"),
    ("out = []", "for i, n in enumerate(l.tolist()):", "    out.append(x[i, :n].sum())", "return torch.stack(out)"),
    ("out = []", "for i in range(x.shape[0]):", "    out.append(x[i, :l[i]])", "return torch.cat(out)"),
    ("return torch.stack([x[i, :n].mean() for i, n in enumerate(l)])",),
    ("return torch.stack([row[:n].max() for row, n in zip(x, l)])",),
    ("return torch.cat([row[:n] for row, n in zip(x, l.tolist())])",),
    (
        "m = torch.zeros(x.shape, dtype=torch.bool)",
        "for i, n in enumerate(l):",
        "    m[i, n:] = True",
        "return x.masked_fill(m, -1.0)",
    ),
    ("y = x.clone()", "for i, n in enumerate(l):", "    y[i, :n] = x[i, :n].flip(0)", "return y"),
    ("y = x.clone()", "for i, n in enumerate(l):", "    y[i, n - 1] = 9.0", "return y"),
    ("y = x.clone()", "for i in range(4):", "    y[i, l[i]:l[i] + 2] = 7", "return y"),
    ("m = torch.full(x.shape, -1e4)", "for i, n in enumerate(l):", "    m[i, :n] = 0", "return (x + m).softmax(-1)"),
    ("y = torch.zeros(x.shape[0], l.max())", "for i, n in enumerate(l):", "    y[i, :n] = x[i, :n]", "return y"),
    ("y = x.clone()", "s = 0", "for n in l:", "    y[:, s:s + n // 4] += 1", "    s = s + n // 4", "return y"),
    ("k = 0", "for n in l:", "    k = k + n", "return x * k"),
    ("y = x", "for n in l:", "    y = y * n + 1", "return y"),
    ("return torch.stack([x[:, n - 1] for n in l])",),
)


def _loops() -> Iterator[Program]:
    for body in _LOOPS:
        for dynamic in ("None", "({0: 'n'}, {0: 'n'})"):
            if dynamic != "None" and "range(4)" in "".join(body):
                continue
            for dtype in ("", ", dtype=int32"):
                counts = (4, 4, 4) if dynamic == "None" else (4, 2, 6)
                values = ([3, 12, 7, 1, 5, 2], [10, 1, 2, 5, 11, 4], [5, 5, 1, 10, 2, 12])
                calls = tuple(f"(f({n}, 12), n({v[:n]}{dtype}))" for n, v in zip(counts, values, strict=True))
                for form in ("class", "helper", "type"):
                    for has_source in (True, False):
                        if (form, has_source) == ("class", True) or share(
                            5, *body, dynamic, dtype, form, str(has_source)
                        ):
                            yield Program(
                                "loops", module("x, l", body, form=form), calls, dynamic, has_source=has_source
                            )


_WINDOWS = (
    ("c = c.clone()", "c[:, p:p + t] = x", "return c"),
    ("c = c.clone()", "c[:, p:p + x.shape[1]] = x", "return c"),
    ("c = c.clone()", "c[:, p:p + x.size(1)] += x", "return c"),
    ("c = c.clone()", "c[:, p:p + x.shape[1]].copy_(x)", "return c"),
    ("c = c.clone()", "c[:, p:p + x.shape[1]].mul_(2)", "return c"),
    ("c = c.clone()", "c.narrow(1, p, x.shape[1]).copy_(x)", "return c"),
    ("c = c.clone()", "c.narrow(1, int(p), x.shape[1]).copy_(x)", "return c"),
    ("return torch.cat([c[:, :p], x, c[:, p + x.shape[1]:]], 1)",),
    ("return c[:, p:p + x.shape[1]] + x",),
    ("return c[:, p:p + 2] * 1",),
    ("return c.narrow(1, p, x.shape[1]) + x",),
    ("return torch.slice_scatter(c, x, 1, int(p), int(p) + x.shape[1])",),
    ("i = torch.arange(x.shape[1]) + p", "return c.index_copy(1, i, x)"),
    ("i = torch.arange(p, p + x.shape[1])", "c = c.clone()", "c[:, i] = x", "return c"),
    ("i = torch.arange(x.shape[1]) + p", "c = c.clone()", "c[:, i] = x", "return c"),
    ("c = c.clone()", "c[:, p] = x[:, 0]", "return c"),
    ("c = c.clone()", "c[:, p:p + 1] = x[:, :1]", "return c"),
    ("c = c.clone()", "c[:, -x.shape[1] - p:c.shape[1] - p] = x", "return c"),
    ("m = torch.arange(c.shape[1]) < p", "return c * m[:, None] + x.sum()"),
    ("m = torch.tril(torch.ones(x.shape[1], c.shape[1]), diagonal=int(p))", "return m @ c"),
    ("k = torch.cat([c[:, :p], x], 1)", "return F.scaled_dot_product_attention(x, k, k)"),
    ("k = torch.cat([c[:, :p], x], 1)", "return k[:, -3:] * 1"),
    ("e = torch.arange(12.)[p:p + x.shape[1]]", "return x * e[:, None] + c.sum()"),
    ("w = c[:, p:][:, :x.shape[1]]", "return w + x"),
)


def _windows() -> Iterator[Program]:
    for body in _WINDOWS:
        lines = [line.replace("p + t", "p + x.shape[1]") for line in body]
        if lines != list(body):
            lines.insert(0, "b, t, d = x.shape")
            lines = [line.replace("p + x.shape[1]", "p + t") for line in lines]
        for dynamic in (
            "None",
            "({1: 't'}, None, None)",
            "({0: 'b', 1: 't'}, {0: 'b'}, None)",
            "({1: 't'}, {1: 's'}, None)",
        ):
            for brackets, dtype in _TYPES:
                sizes = ((1, 2, 9, 3), (1, 2, 9, 5), (1, 2, 9, 0))
                if dynamic != "None":
                    sizes = ((2, 2, 9, 3), (2, 4, 9, 5), (2, 3, 9, 0))
                if "'b'" in dynamic:
                    sizes = ((2, 2, 9, 3), (3, 4, 9, 5), (1, 1, 9, 2))
                if "'s'" in dynamic:
                    sizes = ((2, 2, 9, 3), (2, 4, 11, 5), (2, 1, 7, 2))
                calls = tuple(
                    f"(f({b}, {t}, 4), f({b}, {s}, 4), n({f'[{p}]' if brackets else p}{dtype}))" for b, t, s, p in sizes
                )
                number = checksum(*lines, dynamic, brackets, dtype)
                if share(2, *lines, dynamic, brackets, dtype):
                    source = module("x, c, p", lines, form=_FORMS[number % len(_FORMS)])
                    yield Program("windows", source, calls, dynamic, has_source=number % 5 > 0)


_RANGES = (
    ("y = x", "for i in range(a):", "    y = y * 2 + 1", "return y"),
    ("y = x", "for i in range(int(a)):", "    y = y * 2 + 1", "return y"),
    ("y = x", "for i in range(a.item()):", "    y = y + i", "return y"),
    ("y = x.clone()", "for i in range(a):", "    y[:, i] = 0", "return y"),
    ("y = x.clone()", "for i in range(1, a):", "    y[:, i] += y[:, i - 1]", "return y"),
    ("y = x.clone()", "for i in range(0, a, 2):", "    y[i] = i", "return y"),
    ("i = 0", "y = x", "while i < a:", "    y = y + i", "    i += 1", "return y"),
    ("y = x * 0", "while y[0, 0] < a:", "    y = y + 1", "return y"),
    ("s = x.sum()", "for i in range(a):", "    s = s + x[i].max()", "return s"),
    ("out = torch.zeros(12)", "for i in range(int(a)):", "    out = out + x[i]", "return out"),
    ("return sum(x[i] for i in range(a))",),
    ("if a > 3:", "    return x * 2", "return x + 1"),
    ("if int(a) > 3:", "    x = x * 2", "return x + 1"),
    ("return x * 2 if a > 3 else x - 1",),
    ("return x * 2 if bool(a > 3) else x - 1",),
    ("y = x.clone()", "if a % 2 == 0:", "    y[:, 0] = 0", "return y"),
    ("if x.sum() > 0:", "    return x * a", "else:", "    return x - a"),
    ("assert a > 0", "return x * a"),
    ("if a < 0:", "    raise ValueError('a')", "return x + a"),
    ("y = x", "for i in range(8):", "    if i >= a:", "        break", "    y = y + i", "return y"),
)


def _ranges() -> Iterator[Program]:
    for body in _RANGES:
        for brackets, dtype in _TYPES:
            for dynamic in ("None", "({0: 'n'}, None)"):
                rows = (8, 8, 8) if dynamic == "None" else (8, 9, 10)
                texts = [f"[{v}]" if brackets else str(v) for v in (4, 2, 7)]
                calls = tuple(f"(f({n}, 12), n({v}{dtype}))" for n, v in zip(rows, texts, strict=True))
                number = checksum(*body, brackets, dtype, dynamic)
                for form in ("class", _FORMS[number % len(_FORMS)]):
                    yield Program("ranges", module("x, a", body, form=form), calls, dynamic, has_source=number % 4 > 0)
