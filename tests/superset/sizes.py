"""Programs with values of input tensors as sizes, arguments and indices."""

from __future__ import annotations

from collections.abc import Iterator

from .program import Program, checksum, module, share

__all__ = ["sizes"]

# A is a number between 1 and 6 for x of (4, 12); results may have sizes that depend on it.
_SIZES = (
    *("torch.zeros(A)", "torch.zeros(2, A)", "torch.ones(A, 3)", "torch.full((A,), 2.0)", "torch.full((A, 2), True)"),
    *("torch.arange(A)", "torch.arange(1, A + 1)", "torch.arange(0, A, 2)", "torch.arange(A, dtype=torch.float32)"),
    *("torch.arange(12) < A", "torch.arange(A, device=x.device) * x[0, 0]", "torch.empty(A).fill_(1)", "torch.eye(A)"),
    *(
        "x[:1].expand(A, 12)",
        "x[:, :1].expand(4, A)",
        "x[:1].expand(A, -1) + 0",
        "F.pad(x, (0, A))",
        "F.pad(x, (A, 1))",
    ),
    *("F.pad(x, (0, 0, A, 0), value=1.0)", "F.pad(x, (-A, 0))", "F.pad(x[None], (A, A), mode='reflect')"),
    *("F.pad(x[None], (A, 0), mode='replicate')", "x.split([A, 12 - A], 1)", "torch.split(x, [A, 12 - A], 1)[0]"),
    *("x.roll(A, 1)", "torch.roll(x, shifts=A, dims=1)", "x.roll(-A, 0)", "torch.roll(x, (A, 1), (0, 1))"),
    *("x.unfold(1, A, 1)", "x.unfold(1, 2, A)", "torch.linspace(0, 1, A)", "torch.linspace(0, A, 5)", "x.repeat(1, A)"),
    *("x.repeat(A, 1)", "x.tile((A, 1))", "x.narrow(1, 0, A)", "x.narrow(1, A, 2)", "torch.narrow(x, 1, A, 3)"),
    *("x.select(1, A)", "torch.select(x, 1, A)", "x.new_zeros(A)", "x.new_full((A, 2), 1.5)", "x.new_ones((2, A))"),
    *("F.one_hot(torch.arange(A))", "F.interpolate(x[None], size=A)", "F.interpolate(x[None], size=A, mode='linear')"),
    *("F.adaptive_avg_pool1d(x, A)", "F.adaptive_max_pool1d(x, A)", "torch.repeat_interleave(x, A, 1)"),
    *("x.repeat_interleave(A, dim=0)", "x.topk(A, 1).values", "x.topk(A, dim=-1).indices", "torch.hann_window(A)"),
    *("x.triu(A)", "torch.tril(x, A)", "torch.triu(x, diagonal=A)", "x.diagonal(A)", "x.kthvalue(A, 1).values"),
    *("torch.ones(A, A).triu(1)", "torch.ones(A).cumsum(0)", "x * torch.ones(A).sum()", "torch.zeros(A) + x[0, 0]"),
    *(
        "torch.full((x.shape[0], A), -1.0)",
        "torch.cat([x, torch.zeros(4, A)], 1)",
        "torch.cat([x, x.new_zeros(A, 12)])",
    ),
    *("x.sum() + torch.arange(A).sum()", "torch.randn(4, 3).new_zeros(A)", "torch.tensor([1.0, 2.0]).repeat(A)"),
    *(
        "torch.meshgrid(torch.arange(A), torch.arange(3), indexing='ij')[0]",
        "torch.logspace(0, 1, A)",
        "x.flip(1)[:, :A]",
    ),
    *(
        "torch.tensor_split(x, (A,), 1)[1]",
        "x.clamp(max=A)",
        "x.pow(A)",
        "torch.full_like(x, A)",
        "x.masked_fill(x > 0, A)",
    ),
    *("torch.add(x, x, alpha=A)", "x.index_fill(1, torch.tensor([1, 2]), A)", "torch.where(x > 0, x, A)", "x.fmod(A)"),
    *(
        "torch.ones(4, 12)[:, :A] * x[:, :A]",
        "torch.zeros(x.shape[0], A, x.shape[1]) + x[:, None]",
        "x.unfold(1, A, A)",
    ),
    *("F.layer_norm(x[:, :A], (A,))", "x[:, :A].reshape(-1, A)", "x[:, :A].view(4, A, 1).transpose(0, 1)"),
    *(
        "torch.cdist(x[:A], x)",
        "torch.bincount(torch.arange(3), minlength=A)",
        "x.diag_embed(A)",
        "x.new_empty((A,)).zero_()",
    ),
    *("torch.stack([torch.arange(A)] * 2)", "torch.broadcast_to(x[:, :1], (4, A))", "x[:, :1].broadcast_to(4, A).mT"),
    *("torch.chunk(x, 3, 1)[0] * A", "x.softmax(-1) / A", "x * A ** 0.5", "x * (A // 2)", "x + A / 2", "x - (A % 3)"),
    *("x * float(A)", "x / math.sqrt(A)", "x * min(A, 3)", "x * max(A, 3)", "x * -A", "x * abs(A)", "x * round(A / 2)"),
)
_ARGUMENTS = (
    *(
        "a",
        "int(a)",
        "a.item()",
        "(a + 1)",
        "(int(a) + 1)",
        "int(a + 1)",
        "a.sum()",
        "l.max()",
        "int(l.max())",
        "l.max().item()",
    ),
    *(
        "l[0]",
        "l[0].item()",
        "l.tolist()[0]",
        "int(l[-1])",
        "(l[0] + l[1])",
        "(x.shape[0] - 1 + a) // 2",
        "a.long()",
        "a.clamp(max=5)",
    ),
)

_INDICES = (
    *(
        "x[a]",
        "x[:, a]",
        "x[a, 1]",
        "x[0, a]",
        "x[..., a]",
        "x[-a]",
        "x[a - 1]",
        "x[a, a]",
        "x[int(a)]",
        "x[:, int(a)]",
    ),
    *("x.unbind(0)[a]", "[x, x * 2, x * 3, x * 4][a]", "(x, x + 1, x + 2, x + 3)[int(a)]", "x.index_select(1, a)"),
    *("x.index_select(0, a.reshape(1))", "x.index_fill(1, a, 2.0)", "x.index_add(0, a.reshape(1), x[:1])", "x.T[a]"),
    *(
        "torch.take(x, a)",
        "x[None, a]",
        "x[a, None]",
        "x[a][..., 0]",
        "x[a:a + 1, a]",
        "x[a, :a]",
        "x[a, -a:]",
        "x[:a, a]",
    ),
    *(
        "x[[0, 1], a]",
        "x[torch.arange(4), a]",
        "x.chunk(4)[a]",
        "x.gather(1, a.reshape(1, 1).long())",
        "x[a][a]",
        "x[a % 2]",
    ),
    *(
        "x[x.shape[0] - a]",
        "x[:, x.shape[1] - a - 1]",
        "x[a == 2]",
        "x[a > 1]",
        "x.select(0, a)",
        "x.select(0, int(a))",
    ),
    *(
        "F.embedding(a, x)",
        "x.index_copy(0, a.reshape(1).long(), x[:1])",
        "x[a, ::2]",
        "x[a // 2, 1:]",
        "x[a.item()]",
        "x[a.min()]",
    ),
)
_INDEX_WRITES = (
    *(
        "y[a] = 0",
        "y[:, a] = 1",
        "y[a] += 1",
        "y[:, a].zero_()",
        "y[a].fill_(2)",
        "y[a, a] = 3",
        "y[a, 1] *= 2",
        "y[-a] = 0",
    ),
    *(
        "y[a - 1] = x[0]",
        "y[:, a] = x[:, 0]",
        "y[..., a] -= 1",
        "y[a].copy_(x[1])",
        "y[a, 1:3] = 7",
        "y[a, :a] = 5",
        "y[:a, a] = 4",
    ),
    *(
        "y[a] = x[a] * 2",
        "y[int(a)] = 0",
        "y[a.item(), 2] = 9",
        "y.select(0, int(a)).zero_()",
        "y[a][0] = 5",
        "y[:, a].add_(x[:, a])",
    ),
    *(
        "y.index_fill_(0, a.reshape(1).long(), 0)",
        "y.select(1, a).mul_(2)",
        "y[a == 2] = 0",
        "y.T[a] = 1",
        "y[1:][a - 1] = 3",
    ),
)
_TYPES = (("", ""), ("[]", ""), ("", ", dtype=int32"), ("[]", ", dtype=int32"))
_FORMS = ("class", "lambda", "class", "helper", "type", "class", "class")


def sizes() -> Iterator[Program]:
    """All programs of both families."""
    for size in _SIZES:
        for argument in _ARGUMENTS:
            for brackets, dtype in _TYPES:
                if "l" in argument.replace("item", "").replace("clamp", "").replace("long", "") and brackets:
                    continue
                if share(9, size, argument, brackets, dtype):
                    yield _sized(size, argument, brackets, dtype)
    for body in (
        *([f"return {read}"] for read in _INDICES),
        *(["y = x.clone()", write, "return y"] for write in _INDEX_WRITES),
    ):
        for brackets, dtype in _TYPES:
            for dynamic in ("None", "({1: 'n'}, None)"):
                if share(2, *body, brackets, dtype, dynamic):
                    yield _indexed(body, brackets, dtype, dynamic)


def _sized(size: str, argument: str, brackets: str, dtype: str) -> Program:
    expression = size.replace("A", argument)
    number = checksum(expression, brackets, dtype)
    uses_rows = "l" in argument.replace("item", "").replace("clamp", "").replace("long", "")
    values = ((3, 2), (2, 1), (4, 1))
    texts = [f"[{a}, {b}]" if uses_rows else f"[{a}]" if brackets else str(a) for a, b in values]
    calls = tuple(f"(f(4, 12), n({text}{dtype}))" for text in texts)
    body = [f"return {expression}"]
    if number % 4 == 3:
        body = [f"k = {argument}", f"return {size.replace('A', 'k')}"]
    source = module("x, l" if uses_rows else "x, a", body, form=_FORMS[number % len(_FORMS)])
    return Program("sizes", source, calls, has_source=number // 10 % 6 > 0)


def _indexed(body: list[str], brackets: str, dtype: str, dynamic: str) -> Program:
    number = checksum(*body, brackets, dtype, dynamic)
    widths = (12, 12, 12) if dynamic == "None" else (12, 9, 15)
    texts = [f"[{a}]" if brackets else str(a) for a in (2, 1, 3)]
    calls = tuple(f"(f(4, {w}), n({text}{dtype}))" for w, text in zip(widths, texts, strict=True))
    source = module("x, a", body, form=_FORMS[number % len(_FORMS)])
    return Program("indices", source, calls, dynamic, has_source=number // 10 % 6 > 0)
