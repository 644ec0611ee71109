"""Modules that are scripted, traced, loaded, frozen, compiled, wrapped, parametrized or changed, and constructs of their users."""

from __future__ import annotations

from collections.abc import Iterator

from .program import Program, module, share

__all__ = ["modules"]

# A module, the inputs of its example and of another call, its dynamic dims, and the name of a weight of one of its layers.
_MODULES = (
    ("nn.Linear(4, 3)", "f(2, 4)", "f(5, 4)", "({0: 'b'},)", ""),
    ("nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))", "f(2, 4)", "f(5, 4)", "({0: 'b'},)", "0"),
    (
        "nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())",
        "f(2, 3, 8, 8)",
        "f(3, 3, 9, 7)",
        "({0: 'b', 2: 'h', 3: 'w'},)",
        "0",
    ),
    (
        "nn.Sequential(nn.Conv1d(3, 4, 3, padding=1), nn.GELU(), nn.MaxPool1d(2))",
        "f(2, 3, 8)",
        "f(3, 3, 14)",
        "({0: 'b', 2: 't'},)",
        "0",
    ),
    (
        "nn.Sequential(nn.ConvTranspose2d(3, 4, 2, stride=2), nn.Sigmoid())",
        "f(2, 3, 4, 4)",
        "f(1, 3, 5, 4)",
        "({0: 'b', 2: 'h'},)",
        "0",
    ),
    ("Recurrent()", "f(2, 5, 4)", "f(3, 7, 4)", "({0: 'b', 1: 't'},)", ""),
    ("nn.GRU(4, 3, 2, bidirectional=True)", "f(5, 2, 4)", "f(5, 3, 4)", "({1: 'b'},)", ""),
    (
        "nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)",
        "f(2, 5, 8)",
        "f(3, 4, 8)",
        "({0: 'b', 1: 't'},)",
        "linear1",
    ),
    (
        "nn.Sequential(nn.Embedding(9, 4), nn.LayerNorm(4), nn.Linear(4, 2))",
        "r(9, 2, 5)",
        "r(9, 3, 4)",
        "({0: 'b', 1: 't'},)",
        "2",
    ),
    (
        "nn.Sequential(nn.LayerNorm(4), nn.Dropout(0.5), nn.Linear(4, 4), nn.Softmax(-1))",
        "f(2, 4)",
        "f(6, 4)",
        "({0: 'b'},)",
        "2",
    ),
    ("Branch()", "f(2, 4)", "f(3, 4) - 3", "({0: 'b'},)", "layer"),
    ("Attends()", "f(2, 5, 8)", "f(3, 4, 8)", "({0: 'b', 1: 't'},)", "project"),
    ("Counts()", "f(2, 4)", "f(5, 4)", "({0: 'b'},)", "layers.0"),
)

_CLASSES = {
    "Recurrent": (
        "class Recurrent(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.rnn = nn.LSTM(4, 3, batch_first=True)\n        self.cell = nn.GRU(3, 2, batch_first=True)\n\n"
        "    def forward(self, x):\n        y, _ = self.rnn(x)\n        return self.cell(y)[0]\n"
    ),
    "Branch": (
        "class Branch(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.layer = nn.Linear(4, 4)\n\n"
        "    def forward(self, x):\n        if x.sum() > 0:\n            return self.layer(x)\n        return x * 2\n"
    ),
    "Attends": (
        "class Attends(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.project = nn.Linear(8, 24)\n\n"
        "    def forward(self, x):\n        q, k, v = self.project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4).unbind(0)\n"
        "        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)\n"
    ),
    "Counts": (
        "class Counts(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])\n"
        '        self.register_buffer("steps", torch.tensor(2.0))\n        self.scale = 0.5\n\n'
        "    def forward(self, x):\n        for layer in self.layers:\n            x = layer(x).relu() * self.scale\n"
        "        return x / self.steps + x.size(0)\n"
    ),
}

# Lines that change m, a module, for an example e. LAYER is one of its layers.
_CHANGES = (
    *(
        "m = torch.jit.script(m.eval())",
        "m = torch.jit.trace(m.eval(), e)",
        "m = loaded(torch.jit.script(m.eval()))",
        "m = loaded(torch.jit.trace(m.eval(), e))",
    ),
    *(
        "m = torch.jit.freeze(torch.jit.script(m.eval()))",
        "m = torch.jit.freeze(torch.jit.trace(m.eval(), e))",
        "m = torch.jit.script(m).eval()",
    ),
    *(
        "m = loaded(torch.jit.freeze(torch.jit.script(m.eval())))",
        "m = torch.jit.optimize_for_inference(torch.jit.script(m.eval()))",
        "m = loaded(torch.jit.script(m)).eval()",
    ),
    *(
        "m = nn.Sequential(torch.jit.script(m.eval()), nn.Identity())",
        "m = nn.Sequential(torch.jit.trace(m.eval(), e), nn.Identity())",
    ),
    *(
        "m = torch.compile(m, backend='eager')",
        "m.compile(backend='eager')",
        "m.forward = torch.compile(m.forward, backend='eager')",
        "m = nn.DataParallel(m)",
    ),
    *(
        "m = torch.fx.symbolic_trace(m)",
        "m = copy.deepcopy(m)",
        "m = copy.copy(m)",
        "m = m.double().float()",
        "m = m.requires_grad_(False)",
        "m.train()",
    ),
    *(
        "m = torch.optim.swa_utils.AveragedModel(m)",
        "m = m.to(memory_format=torch.channels_last) if e.dim() == 4 else m",
        "m.share_memory()",
    ),
    *(
        "nn.utils.parametrizations.weight_norm(LAYER)",
        "nn.utils.parametrizations.spectral_norm(LAYER)",
        "nn.utils.parametrizations.orthogonal(LAYER)",
    ),
    *(
        "nn.utils.weight_norm(LAYER)",
        "nn.utils.spectral_norm(LAYER)",
        "nn.utils.prune.l1_unstructured(LAYER, 'weight', amount=0.3)",
    ),
    *(
        "nn.utils.prune.random_structured(LAYER, 'weight', amount=0.5, dim=0)",
        "nn.utils.parametrize.register_parametrization(LAYER, 'weight', nn.Tanh())",
    ),
    *(
        "nn.utils.prune.l1_unstructured(LAYER, 'weight', amount=0.3); nn.utils.prune.remove(LAYER, 'weight')",
        "nn.utils.prune.identity(LAYER, 'bias')",
    ),
    *(
        "nn.utils.parametrizations.weight_norm(LAYER); nn.utils.parametrize.remove_parametrizations(LAYER, 'weight')",
        "LAYER.weight.tag = 'head'",
    ),
    *(
        "LAYER.weight.requires_grad_(False)",
        "LAYER.weight.data = LAYER.weight.data.half().float()",
        "LAYER.weight = nn.Parameter(LAYER.weight.flip(0).contiguous())",
    ),
    *(
        "LAYER.weight = nn.Parameter(LAYER.weight.detach().mT.contiguous().mT)",
        "LAYER.weight.data.mul_(2)",
        "LAYER.weight._is_hf_initialized = True",
    ),
    *(
        "LAYER.register_forward_hook(lambda _, inputs, out: out * 2)",
        "LAYER.register_forward_pre_hook(lambda _, inputs: (inputs[0] + 1,))",
    ),
    *(
        "m.register_forward_hook(lambda *_: None)",
        "m.register_forward_pre_hook(lambda _, inputs: inputs)",
        "LAYER.register_forward_hook(lambda _, i, out: out.clamp(min=0))",
    ),
    *(
        "m.register_forward_hook(lambda _, args, kwargs, out: out, with_kwargs=True)",
        "m.register_full_backward_hook(lambda *_: None)",
    ),
    *(
        "m.note = {'a': 1}",
        "m.anything = torch.ones(3)",
        "m.register_buffer('unused', torch.ones(2))",
        "m.register_parameter('empty', None)",
    ),
    *(
        "m.forward = functools.partial(type(m).forward, m)",
        "m.forward = m.forward",
        "m.old = m.forward; m.forward = lambda x: m.old(x)",
    ),
    *("m.__class__ = type('Other', (type(m),), {})", "m = nn.Sequential(m)", "m = nn.ModuleDict({'a': m})['a']"),
    *(
        "m.load_state_dict({k: v * 0.5 if v.is_floating_point() else v for k, v in m.state_dict().items()})",
        "m.zero_grad()",
        "m.apply(lambda _: None)",
    ),
    *(
        "m = saved(m)",
        "m.load_state_dict(m.state_dict(), assign=True)",
        "m = torch.nn.utils.stateless and m",
        "m.float().eval().cpu()",
    ),
    *(
        "LAYER.weight = nn.Parameter(inferred(LAYER.weight.detach()), requires_grad=False)",
        "m = m.to_empty(device='cpu').apply(ones)",
    ),
    *(
        "m = torch.ao.quantization.QuantWrapper(m) if False else m",
        "m.extra = lambda x: x",
        "torch.nn.init.ones_(LAYER.weight)",
        "m.weights = list(m.parameters())",
    ),
)

_HELPERS = """\
import torch.nn.utils.prune


def loaded(module):
    data = io.BytesIO()
    torch.jit.save(module, data)
    data.seek(0)
    return torch.jit.load(data)


def saved(module):
    data = io.BytesIO()
    torch.save(module, data)
    data.seek(0)
    return torch.load(data, weights_only=False)


def inferred(value):
    with torch.inference_mode():
        return value.clone()


def ones(module):
    for value in module.parameters(recurse=False):
        nn.init.constant_(value, 0.25)
    for value in module.buffers(recurse=False):
        value.fill_(1)


"""


def modules() -> Iterator[Program]:
    """All programs of both families."""
    for text, example, other, dynamic, layer in _MODULES:
        for change in _CHANGES:
            if "LAYER" in change and not layer:
                continue
            place = f"m.get_submodule({layer!r})" if layer else "m"
            lines = [*(part.strip() for part in change.replace("LAYER", place).split(";"))]
            start = _CLASSES.get(text.removesuffix("()"), "")
            start = f"{start}\n\n" if start else ""
            call = example.replace("f(", "torch.randn(").replace("r(9, 2, 5)", "torch.randint(0, 9, (2, 5))")
            body = "\n".join(f"    {line}" for line in (f"m = {text}", f"e = {call}", *lines, "return m"))
            calls = tuple(f"({inputs},)" for inputs in (example, other))
            for dims in (dynamic, "None"):
                if dims == "None" and not share(4, text, change):
                    continue
                some = calls if dims != "None" else (calls[0], calls[0])
                yield Program("modules", f"{_HELPERS}{start}def build():\n{body}\n", some, dims)
    for number, (parameters, body, init, calls, dynamic) in enumerate(_CONSTRUCTS):
        for form in ("class", "helper", "type", "lambda"):
            for has_source in (True, False):
                if (form, has_source) == ("class", True) or share(9, str(number), form, str(has_source)):
                    source = module(parameters, body, init=init, form=form)
                    yield Program("constructs", _SHARED + source, calls, dynamic, has_source=has_source)


_SHARED = """\
from functools import lru_cache

import torch.nn.functional as TF
from torch import cat, zeros
from torch.nn.functional import interpolate, pad, scaled_dot_product_attention, softmax


@lru_cache
def positions(count):
    return torch.arange(count).float()


@functools.lru_cache(maxsize=None)
def mask(count, dtype=torch.float32):
    return torch.triu(torch.full((count, count), -1.0, dtype=dtype), 1)


@functools.cache
def half_of(count):
    return count // 2


def inferred(value):
    with torch.inference_mode():
        return value.clone()


"""

_X, _DIMS = ("(f(2, 5, 4),)", "(f(3, 7, 4),)", "(f(1, 2, 4),)"), "({0: 'b', 1: 't'},)"
_XY, _DIMS2 = ("(f(2, 5), f(2, 5))", "(f(3, 7), f(3, 7))", "(f(4, 3), f(4, 3))"), "({0: 'b', 1: 't'}, {0: 'b', 1: 't'})"

_EXPRESSIONS = (
    *(
        "x + positions(x.shape[1])[:, None]",
        "x.mT @ (mask(x.shape[1]) @ x)",
        "x[:, :half_of(x.shape[1])]",
        "x * half_of(x.size(1))",
    ),
    *(
        "torch.vmap(lambda row: row * 2 + row.sum())(x)",
        "torch.vmap(lambda row: row[0])(x)",
        "torch.vmap(lambda row: row[torch.tensor([0, 1])])(x)",
    ),
    *(
        "torch.vmap(torch.vmap(lambda v: v @ v))(x)",
        "torch.vmap(lambda a, b: a @ b.mT, in_dims=(0, None))(x, x[0])",
        "torch.func.vmap(F.softmax, (0, None))(x, -1)",
    ),
    *(
        "torch.vmap(lambda row, i: row[i])(x, torch.zeros(x.shape[0], dtype=torch.long))",
        "torch.vmap(lambda row: row.cumsum(0).flip(0))(x)",
    ),
    *(
        "x + torch.from_numpy(np.arange(x.shape[1]))[:, None]",
        "x * torch.from_numpy(np.ones(x.shape[-1], dtype=np.float32))",
        "x + np.float32(2)",
    ),
    *(
        "x * float(np.sqrt(x.shape[-1]))",
        "x / np.sqrt(x.shape[1])",
        "x.reshape(int(np.prod(x.shape[:2])), 4)",
        "x + torch.as_tensor(np.linspace(0, 1, 4), dtype=x.dtype)",
    ),
    *(
        "x * np.array(2.0)",
        "x[:, np.array([0, 1])]",
        "x[:, [0, 1]]",
        "x[np.int64(0)]",
        "x.view(np.int64(-1), 4)",
        "x + torch.tensor(np.arange(4.0)).to(x)",
    ),
    *(
        "torch.add(x, x, out=torch.empty(0))",
        "torch.cat([x, x], 1, out=torch.empty(0))",
        "torch.matmul(x, x.mT, out=torch.empty(0))",
        "torch.abs(x, out=torch.empty_like(x))",
    ),
    *(
        "torch.stack([x, x], out=x.new_empty(0))",
        "torch.mul(x, 2, out=x.new_empty(x.shape))",
        "torch.sum(x, 1, out=torch.empty(0))",
        "torch.relu(x.clone(), )",
    ),
    *(
        "scaled_dot_product_attention(x, x, x, is_causal=x.shape[1] > 1)",
        "F.scaled_dot_product_attention(x, x, x, is_causal=x.size(1) > 1)",
    ),
    *(
        "softmax(x, dim=-1)",
        "TF.softmax(x, dim=x.dim() - 1)",
        "pad(x, (0, x.shape[1]))",
        "interpolate(x, size=x.shape[1])",
        "cat([x, zeros(x.shape)], 1)",
    ),
    *(
        "torch.einsum('btc,bsc->bts', x, x)",
        "torch.einsum('...c,...c->...', x, x)",
        "torch.einsum('btc->bct', x)",
        "torch.tensordot(x, x[0], ([1, 2], [0, 1]))",
    ),
    *(
        "x.squeeze(0)",
        "torch.squeeze(x)",
        "x.squeeze().unsqueeze(0)",
        "x if x.shape[0] != 1 else x + 1",
        "x if x.is_contiguous() else -x",
        "x.data * 2",
        "x.detach() + 1",
    ),
    *(
        "x.new_tensor([1.0, 2.0, 3.0, 4.0]) + x",
        "x.type(torch.float64)",
        "x.to('cpu')",
        "x.to(x.device, torch.int64)",
        "x.cpu().float()",
        "x.type_as(x) + 0",
        "x.contiguous()",
    ),
    *(
        "torch.ones_like(x).tril()",
        "torch.rand(3).shape[0] * x",
        "x.unfold(1, 2, 1).mean(-1)",
        "x.as_strided((2, 2), (4, 1))",
        "torch.broadcast_tensors(x, x[:1])[1]",
    ),
    *(
        "x[..., None, :] - x[:, None]",
        "x[:, ::2] + x[:, ::2]",
        "x[:, -1]",
        "x[:, -3:-1]",
        "x[x > 0]",
        "x[x[..., 0] > 0]",
        "x.nonzero()",
        "torch.where(x > 0)[0]",
        "x.unique()",
    ),
    *(
        "torch.masked_select(x, x > 0)",
        "(x > 0).sum() * x",
        "x.argmax(-1)",
        "x.max(1)[0]",
        "x.max(dim=1, keepdim=True).values",
        "x.std(1, unbiased=False)",
        "x.var((1, 2))",
    ),
    *(
        "{'a': x, 'b': [x + 1, (x * 2,)]}",
        "(x, None, x + 1)",
        "[x, [x * 2]]",
        "x, x",
        "x.shape[0] * x, x.size(1) + x",
        "x.mean(), x.shape[1]",
        "dict(zip('ab', (x, x + 1)))",
    ),
    *(
        "torch.linalg.inv(x.mT @ x + 5 * torch.eye(4))",
        "torch.linalg.det(x.mT @ x + torch.eye(4))",
        "torch.linalg.solve(x.mT @ x + 5 * torch.eye(4), x.mT)",
    ),
    *(
        "torch.fft.rfft(x).abs()",
        "torch.fft.fft(x, dim=1).real",
        "torch.view_as_real(torch.fft.rfft2(x))",
        "torch.fft.irfft(torch.fft.rfft(x), 4)",
        "torch.view_as_complex(x[..., :2].contiguous()).abs()",
    ),
    *(
        "torch.utils.checkpoint.checkpoint(lambda v: v * 2, x, use_reentrant=False)",
        "torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, (x,))",
    ),
    *(
        "torch.jit.annotate(torch.Tensor, x) + 1",
        "x + (1 if torch.jit.is_scripting() else 2)",
        "x * (2 if torch.onnx.is_in_onnx_export() else 2)",
        "x + (x is x)",
        "x + int(isinstance(x, torch.Tensor))",
    ),
    *(
        "torch.cartesian_prod(x[0, 0], x[0, 1])",
        "torch.block_diag(x[0], x[0])",
        "torch.combinations(x[0, 0])",
        "torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0]))",
        "torch.searchsorted(torch.tensor([-1.0, 0.0, 1.0]), x)",
    ),
    *(
        "x.scatter(1, torch.zeros_like(x[:, :1], dtype=torch.long), 5.0)",
        "x.scatter_add(1, torch.zeros_like(x, dtype=torch.long), x)",
        "x.scatter_reduce(1, torch.zeros_like(x, dtype=torch.long), x, 'amax')",
    ),
)
_STATEMENTS = (
    *(
        ("y = x", "y += 1", "return y"),
        ("x = x.clone()", "x[:, 0] = 0", "return x"),
        ("y = x.clone().view(-1)", "y[::2] = 0", "return y"),
        ("x = x * 1", "x.add_(1).mul_(2)", "return x"),
    ),
    *(
        ("with torch.no_grad():", "    y = x * 2", "return y"),
        ("with torch.inference_mode():", "    y = x * 2", "return y"),
        ("with torch.autocast('cpu', enabled=False):", "    y = x @ x.mT", "return y"),
    ),
    *(
        ("y = torch.empty(x.shape)", "y[:] = x", "return y"),
        ("y = torch.zeros_like(x)", "for i in range(x.shape[0]):", "    y[i] = x[i] * i", "return y"),
        ("o = torch.empty(0)", "torch.add(x, 1, out=o)", "return o * 2"),
    ),
    *(
        ("out = []", "for row in x:", "    out.append(row.sum())", "return torch.stack(out)"),
        ("out = [row * i for i, row in enumerate(x)]", "return torch.stack(out)"),
        ("s = 0", "for i in range(x.size(1)):", "    s = s + x[:, i] * i", "return s"),
    ),
    *(
        (
            "h = x.new_zeros(x.shape[0], 4)",
            "for t in range(x.shape[1]):",
            "    h = torch.tanh(h + x[:, t])",
            "return h",
        ),
        ("b, *rest = x.shape", "return x.reshape(b, -1) + len(rest)"),
        ("y = x.chunk(2, -1)", "return y[0] * y[1].sigmoid()"),
    ),
    *(
        ("a, b = x.split(2, -1)", "return torch.cat((-b, a), -1)"),
        ("if x.shape[1] > 1:", "    return x[:, 1:] - x[:, :-1]", "return x"),
        ("if not x.shape[0]:", "    return x", "return x + 1"),
        ("assert x.shape[-1] == 4, 'width'", "return x * 2"),
    ),
    *(
        ("n = x.shape[1]", "p = (4 - n % 4) % 4", "return F.pad(x, (0, 0, 0, p)).unflatten(1, (-1, 4))"),
        ("n = x.shape[1] // 2 * 2", "return x[:, :n].unflatten(1, (-1, 2)).mean(2)"),
        ("i = torch.arange(x.shape[1])", "return (i[:, None] >= i) * (x @ x.mT)"),
    ),
    *(
        (
            "m = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()",
            "return (x @ x.mT).masked_fill(~m, float('-inf')).softmax(-1) @ x",
        ),
        ("try:", "    return x.view(-1, 2, 2)", "except RuntimeError:", "    return x"),
    ),
    *(
        ("x.tag = 'seen'", "return x + 1"),
        ("y = inferred(x)", "return y + 1"),
        ("w = torch.ones(4, 4)", "w.tag = 1", "return x @ w"),
        ("def inner(v):", "    return v * 2", "return inner(x)"),
        ("y = x", "del x", "return y * 2"),
        ("global_x = [x]", "return global_x.pop() + 1"),
    ),
    *(
        ("import math as m", "return x * m.sqrt(x.shape[-1])"),
        ("n = torch.tensor(x.shape[1])", "return x / n"),
        ("k = {n: x[:, i] for i, n in enumerate('ab')}", "return k['a'] + k['b']"),
        ("n = min(3, x.shape[1])", "return x.topk(n, 1).values"),
    ),
)
_PAIRS = (
    *(
        "x + y",
        "x if x is y else x - y",
        "x * (2 if x is y else 3)",
        "x @ y.mT",
        "torch.cat([x, y], -1)",
        "torch.cdist(x, y)",
        "torch.add(x, y, out=torch.empty(0))",
        "x * y.shape[1] / x.shape[0]",
    ),
    *(
        "torch.vmap(torch.dot)(x, y)",
        "torch.vmap(lambda a, b: a[0] * b)(x, y)",
        "torch.outer(x[0], y[0])",
        "(x == y).float()",
        "torch.equal(x, x) * y",
        "x.copy_(y) + 1 if False else x * 2 + y",
        "torch.allclose(x, x) + y",
    ),
    *(
        "torch.where(x > y, x, y).sum()",
        "torch.stack([x, y]).max(0).values",
        "x.expand_as(y) * 2",
        "x.view_as(y) + y",
        "x.new_zeros(y.shape) + y",
        "torch.maximum(x, y) if x.shape == y.shape else x",
        "x[:, :y.shape[1]] + y[:, :x.shape[1]]",
    ),
)


def _constructs() -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...], str]]:
    for expression in _EXPRESSIONS:
        yield "x", (f"return {expression}",), (), _X, _DIMS
        yield "x", (f"return {expression}",), (), (_X[0], _X[0]), "None"
    for lines in _STATEMENTS:
        yield "x", lines, (), _X, _DIMS
        yield "x", lines, (), (_X[0], _X[0]), "None"
    for expression in _PAIRS:
        yield "x, y", (f"return {expression}",), (), _XY, _DIMS2
        same = tuple(f"(lambda v: (v, v))({call.split('), ')[0].strip('(')}))" for call in _XY)
        yield "x, y", (f"return {expression}",), (), same, _DIMS2
        yield "x, y", (f"return {expression}",), (), same[:1] * 2, "None"


_CONSTRUCTS = tuple(_constructs())
