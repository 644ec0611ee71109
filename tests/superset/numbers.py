"""Programs with Python's arithmetic on sizes and on values of tensors."""

from __future__ import annotations

from collections.abc import Iterator

from .program import Program, checksum, module, share

__all__ = ["numbers"]

# h and w are sizes of x: (b, h, w); the value is positive and small.
_OF_SIZES = (
    *(
        "int(h / 2)",
        "int(h * 0.5)",
        "round(h / 2.5)",
        "round(h * 1.3)",
        "math.floor(h / 2)",
        "math.ceil(h / 2)",
        "math.trunc(h / 3)",
    ),
    *("int(math.sqrt(h))", "int(h ** 0.5)", "int((h - 1) ** 0.5)", "math.floor(math.sqrt(h))", "math.ceil(h ** 0.5)"),
    *(
        "int(math.log2(h))",
        "math.ceil(math.log(h))",
        "int(math.log(h, 2))",
        "h // 2",
        "h % 3 + 1",
        "divmod(h, 3)[0]",
        "divmod(h, 5)[1] + 1",
    ),
    *(
        "h ** 2",
        "pow(h, 2)",
        "-(-h // 2)",
        "abs(h - 40)",
        "abs(w - h) + 1",
        "min(h, w)",
        "max(h, w)",
        "sum(x.shape)",
        "min(x.shape)",
    ),
    *(
        "max(x.shape[1:])",
        "min(x.shape[-2:])",
        "x.numel() // 4",
        "x.shape.numel() // 2",
        "x.shape[1:].numel()",
        "x.shape[:2].numel()",
    ),
    *(
        "len(x)",
        "len(x[0])",
        "x.size(1)",
        "x.size()[2]",
        "x.size(-1)",
        "len(x.shape)",
        "x.dim() + h",
        "x.ndim",
        "math.prod(x.shape[1:])",
    ),
    *(
        "int(round(h * 1.5))",
        "max(1, h // 4)",
        "min(h, 5)",
        "max(h, 20)",
        "h if h > 3 else 3",
        "int(h > 8) + 1",
        "h + (w > h)",
    ),
    *(
        "(h + 1) // 2 * 2",
        "h // 2 + w // 2",
        "int(h / w * 4)",
        "int(min(h, w) / 2)",
        "round(min(h, w) / 2)",
        "h - h % 4",
        "2 * h - w // 2",
    ),
    *(
        "int(x.shape[1] / 3 + 0.5)",
        "math.ceil(h / 4) * 4 - h + 1",
        "int(h * 2 ** -1)",
        "int(float(h))",
        "int(str(h)) if False else h",
    ),
    *(
        "functools.reduce(lambda p, q: p * q, x.shape[1:])",
        "int(np.ceil(h / 2))",
        "int(np.prod(x.shape[1:]))",
        "int(np.sqrt(h))",
    ),
    *(
        "torch.Size([h, w]).numel()",
        "torch.tensor(x.shape).prod()",
        "torch.tensor(h) // 2",
        "int(torch.tensor(h * 0.5))",
    ),
    *(
        "int(torch.tensor(x.shape).max())",
        "torch.sym_max(h, w)",
        "sorted((h, w))[0]",
        "max([h, w, 3])",
        "sum([h, w]) // 2",
        "sum(x.shape[1:])",
    ),
    *(
        "(h, w).index(w) + 1",
        "list(x.shape)[1]",
        "[*x.shape][2]",
        "tuple(x.shape)[-1]",
        "x.shape[1:][0]",
        "x.flatten().shape[0]",
    ),
    *(
        "x.stride(1)",
        "x.stride()[0]",
        "x.mT.shape[1]",
        "x.nelement() // x.shape[0]",
        "x[:, :, 0].shape[1]",
        "h.__index__()",
    ),
    *(
        "int(h // 0.5)",
        "int(h // 1.5)",
        "int(h % 2.5) + 1",
        "round(h ** 0.5, 0) // 1 + 1",
        "math.isqrt(h)",
        "math.gcd(h, 4)",
        "h // (w // 3)",
    ),
    *(
        "(h * w) // (h + w)",
        "h * w // 7",
        "(h - 1) // 2 + 1",
        "max(h - 3, 1)",
        "max(min(h, 30), 2)",
        "h if h % 2 == 0 else h + 1",
    ),
    *(
        "int(h >= 2) * h",
        "bool(h) + 1",
        "int(bool(w - h)) + 1",
        "(h > 5 and w > 5) + 1",
        "not h or 2",
        "h & 1 or 2",
        "h << 1",
        "h >> 1",
        "h | 1",
    ),
    *(
        "h ^ 1",
        "~h + 2 * h + 1",
        "int(h.real)",
        "h.bit_length() if isinstance(h, int) else 4",
        "int(1e9 % h) % 5 + 1",
        "math.fmod(h, 4) // 1 + 1",
    ),
)
_USES = (
    *(
        "x[:, :E]",
        "x * (E)",
        "x + (E)",
        "x / (E)",
        "torch.full((2,), E)",
        "torch.zeros(x.shape[0], E)",
        "F.pad(x, (0, E))",
        "torch.arange(E)",
    ),
    *(
        "x[:1].repeat(E, 1, 1)",
        "x[:1].expand(E, -1, -1)",
        "torch.linspace(0, 1, E)",
        "F.interpolate(x, size=E)",
        "F.adaptive_avg_pool1d(x, E)",
    ),
    *(
        "x * 2 if E > 4 else x + 1",
        "x.softmax(-1) / (E) ** 0.5",
        "x * float(E)",
        "torch.tensor(E) * x",
        "torch.tensor([E, 1]).sum() + x",
    ),
    *(
        "x.mean() * (E)",
        "torch.ones(E, E).triu()",
        "x.sum((1, 2)) / (E)",
        "x.new_zeros(E) + 1",
        "x.roll(E, 1)",
        "x * torch.arange(E).sum()",
    ),
    *(
        "F.avg_pool1d(F.pad(x, (0, 60)), 2, stride=E)",
        "x.unsqueeze(1).expand(-1, E, -1, -1)",
        "F.one_hot(torch.zeros(2, dtype=torch.long), E)",
    ),
)

# Of values: s is a float tensor, a an int tensor, both of one element; the value is a number.
_OF_TENSORS = (
    *(
        "int(a)",
        "float(a)",
        "a.item()",
        "int(a * 2)",
        "int(s * 3.7)",
        "float(s)",
        "s.item()",
        "float(s) ** 2",
        "float(s) / 2",
        "int(s)",
    ),
    *(
        "round(float(s))",
        "math.floor(s)",
        "math.ceil(s)",
        "math.sqrt(a)",
        "math.sqrt(s)",
        "math.log(a)",
        "math.exp(s)",
        "math.floor(float(s))",
    ),
    *(
        "int(a) // 2",
        "int(a) % 3",
        "divmod(int(a), 3)[0]",
        "a // 2",
        "a % 3",
        "a ** 2",
        "2 ** a",
        "s ** 0.5",
        "min(a, 3)",
        "max(a, 3)",
    ),
    *(
        "min(a, s)",
        "max(int(a), 3)",
        "abs(a - 3)",
        "abs(float(s))",
        "-a",
        "+a",
        "bool(a > 2) + 1",
        "int(bool(a)) + 1",
        "float(a > 2)",
    ),
    *(
        "sum([a, a])",
        "a * 1.5",
        "1 / a",
        "1 / float(a)",
        "1.0 / s",
        "int(a) * float(s)",
        "a + s",
        "int(a) ** 2",
        "int(a) ** 0.5",
        "round(s.item(), 1)",
    ),
    *(
        "a.numel()",
        "len(a.shape)",
        "a.float().mean()",
        "int(a.sum())",
        "int(x.argmax())",
        "int((x > 0).sum())",
        "float(x.max())",
        "x.max().item()",
    ),
    *(
        "x.abs().max().item()",
        "x.numel()",
        "float(x.mean())",
        "int(x.shape[1] * s)",
        "x.shape[1] * a",
        "int(a) + x.shape[1]",
        "x.shape[1] // a",
    ),
    *(
        "x.shape[1] - int(a)",
        "max(x.shape[1], int(a))",
        "min(x.shape[1], a)",
        "int(np.int64(3)) * a",
        "np.float32(0.5) * a",
        "np.float64(2.0) * s",
        "a.tolist()",
    ),
    *(
        "float(a.item())",
        "int(float(s) * 10)",
        "complex(float(s), 0).real",
        "a.__int__()",
        "s.__float__()",
        "a.__index__()",
        "operator_index(a)",
    ),
    *(
        "True if a > 2 else False",
        "a if a > 2 else 2",
        "a > 2 and s",
        "not a",
        "(a > 1) & (s > 0)",
        "a == 3",
        "a != 3",
        "3 < a",
        "1 < a < 5",
    ),
)
_TENSOR_USES = (
    *(
        "x * E",
        "x + E",
        "x / (E + 1)",
        "torch.full((2, 3), E)",
        "x.clamp(max=E)",
        "torch.full_like(x, E)",
        "x.masked_fill(x > 0, E)",
    ),
    *(
        "x * 2 if E else x + 1",
        "torch.where(x > 0, x, E)",
        "F.leaky_relu(x, E)",
        "x.softmax(-1) * E",
        "torch.tensor(E) + x",
        "(x - E).relu()",
    ),
    *(
        "x > E",
        "torch.add(x, x, alpha=E)",
        "x.pow(E)",
        "torch.zeros(3) + E",
        "x.new_full((2,), E)",
        "F.elu(x, alpha=E)",
        "x.sub(x, alpha=E)",
    ),
    *(
        "F.threshold(x, E, 0.5)",
        "F.hardtanh(x, -1.0, E)",
        "x.clamp(-E, E)",
        "F.softplus(x, beta=E)",
        "torch.lerp(x, x * 2, E)",
        "x.eq(E)",
    ),
)
_FORMS = ("class", "lambda", "class", "helper", "type", "class")


def numbers() -> Iterator[Program]:
    """All programs of both families."""
    for expression in _OF_SIZES:
        for use in _USES:
            for dynamic in ("({1: 'h'},)", "({1: 'h', 2: 'w'},)", "({0: 'b', 1: 'h', 2: 'w'},)"):
                if share(11, expression, use, dynamic):
                    yield _of_size(expression, use, dynamic)
    for expression in _OF_TENSORS:
        for use in _TENSOR_USES:
            for brackets in ("", "[]"):
                for dynamic in ("None", "({1: 'n'}, None, None)"):
                    if share(16, expression, use, brackets, dynamic):
                        yield _of_tensor(expression, use, brackets, dynamic)


def _of_size(expression: str, use: str, dynamic: str) -> Program:
    number = checksum(expression, use, dynamic)
    shapes = ((2, 9, 12), (2, 16, 12), (2, 5, 12))
    if "'w'" in dynamic:
        shapes = ((2, 9, 12), (2, 16, 10), (2, 25, 30))
    if "'b'" in dynamic:
        shapes = ((2, 9, 12), (3, 16, 10), (1, 6, 7))
    body = ["b, h, w = x.shape", f"return {use.replace('E', f'({expression})' if '(E)' not in use else expression)}"]
    if number % 3 == 0:
        body = ["h, w = x.shape[1], x.shape[2]", f"n = {expression}", f"return {use.replace('E', 'n')}"]
    if number % 7 == 0:
        body = ["h, w = x.size(1), x.size(2)", f"n = {expression}", f"y = {use.replace('E', 'n')}", "return y * 1"]
    source = module("x", body, form=_FORMS[number % len(_FORMS)])
    return Program(
        "numbers", source, tuple(f"(f{shape},)" for shape in shapes), dynamic, has_source=number // 10 % 6 > 0
    )


def _of_tensor(expression: str, use: str, brackets: str, dynamic: str) -> Program:
    expression = expression.replace("operator_index(a)", "range(9)[a]")
    number = checksum(expression, use, brackets, dynamic)
    widths = (5, 5, 5) if dynamic == "None" else (5, 3, 8)
    # The condition of a branch must differ, or a branch that is frozen is right by chance.
    values = ((3, 1.25), (0, 0.0) if " if E" in use else (1, 0.75), (4, 2.75))
    calls = tuple(
        f"(f(2, {w}) * 4, n([{a}]), n([{s}], float32))" if brackets else f"(f(2, {w}) * 4, n({a}), n({s}, float32))"
        for w, (a, s) in zip(widths, values, strict=True)
    )
    body = [f"return {use.replace('E', f'({expression})')}"]
    if number % 3 == 0:
        body = [f"k = {expression}", f"return {use.replace('E', 'k')}"]
    source = module("x, a, s", body, form=_FORMS[number % len(_FORMS)])
    return Program("values", source, calls, dynamic, has_source=number // 10 % 6 > 0)
