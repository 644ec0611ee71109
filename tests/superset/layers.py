"""Layers with their options, in several element types, opsets and targets."""

from __future__ import annotations

from collections.abc import Iterator

from .program import Program, checksum, module, share

__all__ = ["layers"]

# Inputs, of dynamic sizes b and t, and layers or functions of them; "@" stands before arguments that are not the inputs.
_2D, _1D, _3D, _ROWS, _VECTORS = "f(b, 4, t, 10)", "f(b, 4, t)", "f(b, 4, t, 6, 6)", "f(b, t, 8)", "f(b, 8)"

_LAYERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        _2D,
        (
            *("nn.Conv2d(4, 6, 3)", "nn.Conv2d(4, 6, 3, stride=2, padding=1)", "nn.Conv2d(4, 8, (3, 1), dilation=2, padding='same')"),
            *("nn.Conv2d(4, 4, 3, groups=4, bias=False)", "nn.Conv2d(4, 6, 3, padding=1, padding_mode='reflect')"),
            *("nn.Conv2d(4, 6, 3, padding=1, padding_mode='circular')", "nn.Conv2d(4, 6, 2, padding='same')", "nn.Conv2d(4, 6, 3, padding='valid')"),
            *("nn.Conv2d(4, 6, 3, padding=(1, 2), padding_mode='replicate')", "nn.ConvTranspose2d(4, 6, 3)", "nn.Conv2d(4, 4, 1, groups=2)"),
            *("nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1)", "nn.ConvTranspose2d(4, 4, 2, groups=2, dilation=2)"),
            *("nn.ConvTranspose2d(4, 6, (3, 2), stride=(2, 1), bias=False)", "nn.MaxPool2d(2)", "nn.MaxPool2d(3, 2, 1, ceil_mode=True)"),
            *("nn.MaxPool2d(2, 1, dilation=2)", "nn.MaxPool2d(2, return_indices=True)", "nn.AvgPool2d(2)", "nn.AvgPool2d(3, 2, 1, ceil_mode=True)"),
            *("nn.AvgPool2d(3, 2, 1, count_include_pad=False)", "nn.AvgPool2d(2, divisor_override=3)", "nn.LPPool2d(2, 3)", "nn.LPPool2d(3, 2, ceil_mode=True)"),
            *("nn.AdaptiveAvgPool2d(1)", "nn.AdaptiveAvgPool2d((None, 5))", "nn.AdaptiveMaxPool2d(1)", "nn.AdaptiveMaxPool2d((None, 2))"),
            *("nn.AdaptiveAvgPool2d((4, 5))", "nn.AdaptiveMaxPool2d((3, 5))", "nn.BatchNorm2d(4)", "nn.BatchNorm2d(4, affine=False)"),
            *("nn.BatchNorm2d(4, track_running_stats=False)", "nn.InstanceNorm2d(4)", "nn.InstanceNorm2d(4, affine=True)", "nn.GroupNorm(2, 4)"),
            *("nn.InstanceNorm2d(4, track_running_stats=True)", "nn.GroupNorm(4, 4, affine=False)", "nn.LocalResponseNorm(3)"),
            *("nn.GroupNorm(1, 4, eps=1e-3)", "nn.LayerNorm(10)", "nn.LayerNorm(10, bias=False)", "nn.LayerNorm(10, elementwise_affine=False)"),
            *("nn.RMSNorm(10)", "nn.RMSNorm(10, eps=1e-5, elementwise_affine=False)", "nn.CrossMapLRN2d(3)", "nn.Dropout2d(0.3)", "nn.FeatureAlphaDropout()"),
            *("nn.ReflectionPad2d(2)", "nn.ReplicationPad2d((1, 2, 3, 0))", "nn.ZeroPad2d((1, -1, 0, 2))", "nn.ConstantPad2d(1, 3.5)", "nn.CircularPad2d(1)"),
            *("nn.PixelShuffle(2)", "nn.ChannelShuffle(2)", "nn.Upsample(scale_factor=2)", "nn.Upsample(scale_factor=1.5, mode='bilinear')"),
            *("nn.Upsample(scale_factor=2, mode='bilinear', align_corners=True)", "nn.Upsample(scale_factor=2, mode='bicubic')", "nn.Upsample(size=(8, 9))"),
            *("nn.Upsample(size=(7, 9), mode='bicubic', align_corners=True)", "nn.UpsamplingBilinear2d(scale_factor=2)", "nn.UpsamplingNearest2d(size=6)"),
            *("nn.Softmax2d()", "nn.Unfold(2)", "nn.Unfold((3, 2), dilation=2, padding=1, stride=2)", "nn.Flatten()", "nn.Flatten(2)", "nn.Unflatten(1, (2, 2))"),
            *("nn.PReLU(4)", "nn.PReLU()", "nn.Softmax(1)", "nn.LogSoftmax(dim=-1)", "nn.Softmin(2)", "nn.Hardswish()", "nn.RReLU()", "nn.SyncBatchNorm(4)"),
            *("nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU())", "nn.Sequential(nn.Conv2d(4, 4, 3, bias=False), nn.InstanceNorm2d(4), nn.SiLU())"),
            *("nn.Sequential(nn.ConvTranspose2d(4, 4, 2), nn.BatchNorm2d(4), nn.GELU())", "nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))"),
        ),
    ),
    (
        _1D,
        (
            *("nn.Conv1d(4, 6, 3)", "nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2)", "nn.Conv1d(4, 4, 3, groups=2, padding='same')"),
            *("nn.ConvTranspose1d(4, 6, 4, stride=2, padding=1)", "nn.ConvTranspose1d(4, 6, 3, stride=3, output_padding=2)", "nn.MaxPool1d(2)"),
            *("nn.Conv1d(4, 4, 2, padding=1, padding_mode='circular')", "nn.MaxPool1d(3, 2, padding=1, ceil_mode=True)", "nn.AvgPool1d(3, 1, 1)"),
            *("nn.AvgPool1d(2, ceil_mode=True, count_include_pad=False)", "nn.LPPool1d(2, 2)", "nn.AdaptiveAvgPool1d(1)", "nn.AdaptiveMaxPool1d(1)"),
            *("nn.BatchNorm1d(4)", "nn.BatchNorm1d(4, eps=1e-3, affine=False)", "nn.InstanceNorm1d(4, affine=True)", "nn.GroupNorm(2, 4)"),
            *("nn.ReflectionPad1d(2)", "nn.ReplicationPad1d((1, 3))", "nn.CircularPad1d((2, 1))", "nn.ConstantPad1d((1, 2), -1.0)", "nn.ZeroPad1d(2)"),
            *("nn.Upsample(scale_factor=2, mode='linear')", "nn.Upsample(scale_factor=3)", "nn.GLU(1)", "nn.Dropout1d()", "nn.PReLU(4)"),
            *("nn.Upsample(scale_factor=2, mode='linear', align_corners=True)", "nn.Sequential(nn.ReflectionPad1d(1), nn.Conv1d(4, 4, 3), nn.ELU())"),
        ),
    ),
    (
        _3D,
        (
            *("nn.Conv3d(4, 4, 3, padding=1)", "nn.Conv3d(4, 4, (1, 2, 3), stride=(1, 2, 1), groups=2)", "nn.ConvTranspose3d(4, 2, 2, stride=2)"),
            *("nn.MaxPool3d(2)", "nn.MaxPool3d(3, 1, 1)", "nn.AvgPool3d(2, ceil_mode=True)", "nn.AdaptiveAvgPool3d(1)", "nn.AdaptiveMaxPool3d((None, 1, 1))"),
            *("nn.BatchNorm3d(4)", "nn.InstanceNorm3d(4)", "nn.ReplicationPad3d(1)", "nn.ReflectionPad3d(1)", "nn.ConstantPad3d(1, 2.0)"),
            *("nn.Upsample(scale_factor=2)", "nn.Upsample(scale_factor=2, mode='trilinear')", "nn.LPPool3d(2, 2)", "nn.GroupNorm(4, 4)", "nn.Dropout3d()"),
        ),
    ),
    (
        _ROWS,
        (
            *("nn.Linear(8, 5)", "nn.Linear(8, 5, bias=False)", "nn.Identity()", "nn.LayerNorm(8)", "nn.RMSNorm(8)", "nn.RMSNorm(8, elementwise_affine=False)"),
            *("nn.LSTM(8, 6, batch_first=True)", "nn.LSTM(8, 6, 2, bidirectional=True, batch_first=True)", "nn.LSTM(8, 6, proj_size=3, batch_first=True)"),
            *("nn.GRU(8, 6, batch_first=True)", "nn.GRU(8, 6, 2, bias=False, batch_first=True, dropout=0.1)", "nn.RNN(8, 6, batch_first=True)", "nn.LSTM(8, 6)"),
            *("nn.RNN(8, 6, nonlinearity='relu', bidirectional=True)", "nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)", "nn.AlphaDropout()"),
            *("nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True, activation='gelu')", "nn.TransformerEncoderLayer(8, 4, 16, bias=False)"),
            *("nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)", "nn.ReLU()", "nn.ReLU6()", "nn.ELU(0.7)", "nn.SELU()"),
            *("nn.CELU(1.3)", "nn.GELU()", "nn.GELU('tanh')", "nn.SiLU()", "nn.Mish()", "nn.Softplus(2, 5)", "nn.Softsign()", "nn.Softshrink(0.3)", "nn.GLU()"),
            *("nn.Tanhshrink()", "nn.Hardshrink()", "nn.Hardtanh(-2, 0.5)", "nn.Hardsigmoid()", "nn.LeakyReLU(0.2)", "nn.LogSigmoid()", "nn.Threshold(0.1, 20)"),
            *("nn.Sigmoid()", "nn.Tanh()", "nn.Softmax(dim=-1)", "nn.LogSoftmax(1)", "nn.Softmin(dim=-1)", "nn.PReLU()", "nn.Dropout(0.5)", "nn.RReLU(0.1, 0.2)"),
            *("nn.CosineSimilarity(dim=2) @ x, x.flip(1)", "nn.PairwiseDistance() @ x, x.flip(1)", "nn.PairwiseDistance(p=1.0, keepdim=True) @ x, x.flip(1)"),
            *("nn.Flatten(0, 1)", "nn.Linear(8, 5) @ x.mT.mT", "nn.Linear(8, 3) @ x[0]"),
            *("F.normalize", "F.gelu", "functools.partial(F.normalize, p=1.0, dim=1)", "torch.std_mean"),
            *("torch.logsumexp @ x, 2", "torch.var @ x, 1", "torch.norm @ x, 2, 1", "torch.cumsum @ x, 1", "torch.cumprod @ x, 1", "torch.logcumsumexp @ x, 1", "torch.softmax @ x, 1"),
            *("torch.nansum @ x, 1", "torch.prod @ x, 1", "torch.amax @ x, (1, 2)", "torch.aminmax @ x", "torch.median @ x, 1", "torch.sort @ x, 1", "torch.argsort @ x, 1, True"),
            *("torch.topk @ x, 2, 1", "torch.diff @ x, 1, 1", "torch.flip @ x, (1,)", "torch.roll @ x, 1, 1", "torch.rot90 @ x, 1, (1, 2)", "torch.tril @ x", "torch.triu @ x, 1", "torch.mode @ x, 1"),
            *("torch.erf @ x", "torch.erfinv @ x", "torch.lgamma @ x", "torch.digamma @ x", "torch.expm1 @ x", "torch.log1p @ x", "torch.sinc @ x", "torch.special.i0 @ x", "torch.asinh @ x"),
            *("torch.round @ x", "torch.trunc @ x", "torch.frac @ x", "torch.sign @ x", "torch.signbit @ x", "torch.nan_to_num @ x", "torch.rsqrt @ x", "torch.logit @ x, 1e-3", "torch.exp2 @ x"),
            *("torch.quantile @ x, 0.3, 2", "torch.histc @ x", "torch.fft.rfft @ x", "torch.linalg.norm @ x, dim=2", "torch.linalg.vector_norm @ x, 3, 2", "torch.kthvalue @ x, 2, 2"),
            *("torch.clamp @ x, -0.5, 0.5", "torch.float_power @ x, 2", "torch.square @ x", "torch.cosh @ x", "torch.atan @ x", "torch.renorm @ x, 2, 0, 1.0", "torch.trapezoid @ x, dim=2"),
        ),
    ),
    (
        "f(b, t, 8), f(b, t, 8)",
        (
            *("nn.L1Loss()", "nn.MSELoss(reduction='none')", "nn.SmoothL1Loss(beta=0.5)", "nn.HuberLoss(reduction='sum', delta=0.4)", "nn.CosineSimilarity(1)"),
            *("nn.PairwiseDistance(p=3)", "nn.Bilinear(8, 8, 3)", "nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)", "nn.KLDivLoss(reduction='sum')"),
            *("nn.KLDivLoss(reduction='batchmean', log_target=True)", "nn.PoissonNLLLoss()", "nn.PoissonNLLLoss(log_input=False, full=False)", "torch.atan2", "torch.hypot"),
            *("nn.BCEWithLogitsLoss()", "nn.BCEWithLogitsLoss(pos_weight=torch.full((8,), 2.0), reduction='none')", "nn.SoftMarginLoss()", "F.bilinear @ x, y, torch.ones(2, 8, 8).type_as(x)"),
            *("nn.HingeEmbeddingLoss()", "torch.fmod", "torch.remainder", "torch.maximum", "torch.fmin", "torch.copysign", "torch.logaddexp", "torch.logaddexp2"),
            *("torch.cdist", "torch.cdist @ x, y, p=1.0", "torch.lerp @ x, y, 0.3", "torch.floor_divide", "torch.true_divide", "torch.nextafter", "torch.heaviside", "torch.xlogy"),
            *("F.cosine_similarity", "F.mse_loss", "F.l1_loss @ x, y, reduction='none'", "functools.partial(F.pairwise_distance, p=1)", "torch.dist", "torch.kron", "torch.ldexp"),
            *("nn.MultiheadAttention(8, 2, batch_first=True) @ x, y, y", "nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True) @ x, y, y", "torch.addcmul @ x, x, y, value=0.5"),
            *("nn.MultiheadAttention(8, 2, batch_first=True, add_zero_attn=True) @ x, y, y, need_weights=False", "nn.MultiheadAttention(8, 4, bias=False) @ x, y, y"),
            *("nn.MultiheadAttention(8, 2, batch_first=True) @ x, y, y, average_attn_weights=False", "nn.MultiheadAttention(8, 2, kdim=8, vdim=8, batch_first=True) @ x, y, y"),
            *("F.scaled_dot_product_attention @ x, y, y", "F.scaled_dot_product_attention @ x, y, y, is_causal=True", "F.scaled_dot_product_attention @ x, y, y, scale=0.5"),
            *("nn.Transformer(8, 2, 1, 1, 16, batch_first=True)", "torch.matmul @ x, y.mT", "torch.bmm @ x, y.mT", "torch.baddbmm @ x.mT @ y, x.mT, y"),
        ),
    ),
    ("f(b, 8), f(b, 8), f(b, 8)", ("nn.TripletMarginLoss()", "nn.TripletMarginLoss(p=1.0, swap=True)", "nn.TripletMarginWithDistanceLoss()", "torch.addcdiv", "torch.lerp", "torch.where @ x > 0, y, z", "nn.GaussianNLLLoss() @ x, y, z.abs() + 1", "nn.MarginRankingLoss(0.2) @ x, y, z.sign()", "nn.CosineEmbeddingLoss() @ x, y, z[:, 0].sign()")),
    (
        "f(b, 8), r(8, b)",
        (
            *("nn.CrossEntropyLoss()", "nn.CrossEntropyLoss(label_smoothing=0.1)", "nn.CrossEntropyLoss(weight=torch.linspace(1, 2, 8), ignore_index=2)"),
            *("nn.CrossEntropyLoss(reduction='none')", "nn.NLLLoss()", "nn.NLLLoss(reduction='sum', ignore_index=1)", "nn.MultiMarginLoss()", "nn.MultiMarginLoss(p=2, margin=0.5)"),
            *("nn.AdaptiveLogSoftmaxWithLoss(8, 10, [4])", "nn.CrossEntropyLoss(weight=torch.linspace(1, 2, 8), label_smoothing=0.2, reduction='sum')"),
        ),
    ),
    ("f(b, 4, t), r(4, b, t)", ("nn.CrossEntropyLoss()", "nn.CrossEntropyLoss(ignore_index=0, reduction='none')", "nn.NLLLoss()", "F.nll_loss @ x, y, reduction='none'")),
    (
        "r(9, b, t)",
        (
            *("nn.Embedding(9, 4)", "nn.Embedding(9, 4, padding_idx=0)", "nn.Embedding(9, 4, max_norm=0.5)", "nn.EmbeddingBag(9, 4)", "nn.EmbeddingBag(9, 4, mode='sum')"),
            *("nn.EmbeddingBag(9, 4, mode='max')", "nn.EmbeddingBag(9, 4, padding_idx=1)", "nn.Sequential(nn.Embedding(9, 8), nn.LayerNorm(8), nn.Linear(8, 2))"),
            *("functools.partial(F.one_hot, num_classes=9)", "nn.Sequential(nn.Embedding(9, 8), nn.LSTM(8, 4, batch_first=True))"),
        ),
    ),
    ("f(b, 16, t)", ("nn.Fold((4, 4), (2, 2)) @ x[:, :, :9]", "nn.Fold(5, 2, padding=1, stride=2) @ x[..., :9]", "nn.PixelUnshuffle(2) @ x.unflatten(1, (4, 4))[..., :2]")),
    ("f(b, 3, 8, 8)", ("nn.PixelUnshuffle(2)", "nn.MaxPool2d(2, return_indices=True)", "F.fractional_max_pool2d @ x, 2, output_size=4, _random_samples=x.new_full((x.shape[0], 3, 2), 0.5)", "nn.Upsample(scale_factor=0.5, mode='bilinear')", "nn.Upsample(size=(3, 3), mode='bilinear')", "functools.partial(F.interpolate, scale_factor=0.5, mode='bilinear', antialias=True)", "functools.partial(F.interpolate, scale_factor=0.5, mode='nearest-exact')", "functools.partial(F.interpolate, size=(5, 6), mode='area')", "functools.partial(F.interpolate, size=(13, 3), mode='bicubic')", "functools.partial(F.interpolate, scale_factor=(1.5, 2.0), recompute_scale_factor=True)", "functools.partial(F.interpolate, scale_factor=2.0, mode='bicubic', align_corners=True)", "functools.partial(F.affine_grid, size=(2, 1, 4, 4)) @ x[:2, 0, :2, :3]", "F.grid_sample @ x, x[:, :2].permute(0, 2, 3, 1).tanh(), align_corners=False", "F.grid_sample @ x, x[:, :2].permute(0, 2, 3, 1).tanh(), mode='nearest', padding_mode='border', align_corners=True", "F.grid_sample @ x, x[:, :2].permute(0, 2, 3, 1), mode='bicubic', padding_mode='zeros', align_corners=False", "F.grid_sample @ x, x[:, :2].permute(0, 2, 3, 1), padding_mode='reflection', align_corners=False")),
    ("f(b, 8), f(b, 6)", ("nn.GRUCell(8, 6)", "nn.RNNCell(8, 6)", "nn.RNNCell(8, 6, nonlinearity='relu', bias=False)", "nn.LSTMCell(8, 6) @ x, (y, y)")),
)

_TYPES = ("float32", "float16", "bfloat16", "float64")
_OPTIONS: tuple[dict[str, object], ...] = (
    *({"opset_version": opset} for opset in range(17, 27)),
    *({"target": target} for target in ("onnxruntime", "openvino", "tensorrt", "onnxruntime-web")),
    {},
)

_TIES = ("median", "sort", "topk", "torch.mode", "kthvalue", "indices", "histc", "round", "nextafter")
"""Parts of the names of functions whose results are determined by chance for equal values, of which halves have many."""


def layers() -> Iterator[Program]:
    """All programs of the family."""
    for inputs, texts in _LAYERS:
        for text in texts:
            for dtype in _TYPES:
                for options in _OPTIONS:
                    if dtype.endswith("float16") and any(word in text for word in _TIES):
                        continue
                    if share(14 if dtype != "float32" else 10, text, inputs, dtype, str(options)):
                        yield _program(inputs, text, dtype, options)


def _program(inputs: str, text: str, dtype: str, options: dict[str, object]) -> Program:
    layer, _, arguments = text.partition(" @ ")
    names = ["x", "y", "z"][: 1 + inputs.count("), ")]
    arguments = arguments or ", ".join(names)
    init, call = [f"self.m = {layer}"], f"self.m({arguments})"
    if layer.startswith(("torch.", "F.", "functools")):
        init, call = [], f"{layer}({arguments})"
    body = [f"return {call}"]
    kind = f", dtype={dtype}"
    if dtype == "bfloat16":  # NumPy has no arrays of this type
        floats = [name for name, part in zip(names, inputs.split("), "), strict=True) if part.startswith("f")]
        body = [*(f"{name} = {name}.bfloat16()" for name in floats), f"o = {call}"]
        body.append("return [v.float() if v.is_floating_point() else v for v in torch.utils._pytree.tree_leaves(o)]")
        kind = ""
    source = module(", ".join(names), body, init=init)
    if dtype != "float32":
        source = source.replace("return Model()", f"return Model().to(torch.{dtype})")
    dynamic, sizes = _dynamic(inputs, checksum(text, dtype, str(options)) % 3)
    calls = []
    for b, t in sizes:
        parts = [part.strip() + ")" for part in inputs.rstrip(")").split("), ")]
        concrete = [part.replace("b,", f"{b},").replace("b)", f"{b})").replace(" t,", f" {t},").replace(" t)", f" {t})") for part in parts]
        calls.append("(" + ", ".join(part[:-1] + kind + ")" if part.startswith("f") else part for part in concrete) + ",)")
    return Program("layers", source, tuple(calls), dynamic, dict(options))


def _dynamic(inputs: str, number: int) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The dynamic dims of some of b and t, and the sizes of the calls."""
    sizes = (((2, 9), (2, 9), (2, 9)), ((2, 9), (3, 9), (1, 9)), ((2, 9), (3, 14), (1, 11)))[number]
    if number == 0:
        return "None", sizes
    dims = []
    for part in inputs.rstrip(")").split("), "):
        axes = [piece.strip() for piece in part.partition("(")[2].split(",")]
        axes = axes[1:] if part.startswith("r") else axes
        named = [(axis, name) for axis, name in enumerate(axes) if name == "b" or (name == "t" and number == 2)]
        dims.append("{" + ", ".join(f"{axis}: '{name}'" for axis, name in named) + "}")
    return f"({', '.join(dims)},)", sizes
