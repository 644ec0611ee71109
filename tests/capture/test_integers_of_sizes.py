"""``int(size)``, ``float(size)``, ``len(tensor)`` and tensors that hold sizes keep dynamic dims dynamic."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from torch import Tensor, nn
from transformers.utils import torch_float, torch_int

import fxonnx

from ..functions import Function
from ..saved import run_from_file


def _causal(length: int) -> Tensor:
    return torch.log(torch.tril(torch.ones(length, length)))


class LanguageModel(nn.Module):
    """The word language model of the PyTorch examples, which stores the mask of the last length."""

    def __init__(self) -> None:
        super().__init__()
        self.src_mask: Tensor | None = None
        self.embedding = nn.Embedding(20, 8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False)

    def forward(self, x: Tensor, has_mask: bool = True) -> Tensor:
        if has_mask:
            if self.src_mask is None or self.src_mask.size(0) != len(x):
                self.src_mask = _causal(len(x))
        else:
            self.src_mask = None
        return self.encoder(self.embedding(x.clamp(0, 19).long()), mask=self.src_mask)


def _checked(x: Tensor) -> Tensor:
    size = int(x.shape[0])
    if not isinstance(size, int) or not issubclass(bool, int):
        raise TypeError("a size is an integer")
    return x * size + int("2") + len([1, 2])


def _checked_float(x: Tensor) -> Tensor:
    scale = float(x.shape[0]) / 2
    if not isinstance(scale, float) or type(scale) is not float or isinstance(scale, int):
        raise TypeError("a scale is a float")
    return x * scale + float("2.5") + float(torch.finfo(torch.float32).eps)


def _half_of_padded(x: Tensor) -> Tensor:
    """The reshape relates the sizes; the conversion of a size to a number is another line."""
    padded = F.pad(x[None, None], (1, 1, 1, 1), mode="reflect")
    padded = padded.reshape(-1, 1, padded.size(-2), padded.size(-1))
    return F.interpolate(padded, size=[int(float(x.shape[0]) / 2), int(float(x.shape[1]) / 2)])


def _classes_of_values(x: Tensor) -> Tensor:
    """A one-hot encoding of more classes than rows, cut to the number of rows."""
    classes = x.argmax(0)
    count = max(classes.max() + 2, x.shape[0])
    first, last = F.one_hot(classes, count), F.one_hot(classes.flip(0), max(x.shape[0], classes.min() + 9))
    return first[..., : x.shape[0]] * count - last[..., : x.shape[0]]


def _branches_on_a_product(x: Tensor) -> Tensor:
    count = int(x.shape[0] * x.shape[1])
    return x * 2 if count > 13 else x + 1


def _same_padding(x: Tensor) -> Tensor:
    """TensorFlow's padding for a stride of 1."""
    height, width = int(x.shape[0]), int(x.shape[1])
    return F.max_pool2d(F.pad(x, (0, width // width, 0, height // height))[None], 2, stride=1)[0]


CASES: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {
        "int of a size": lambda: Function(lambda x: x + torch.ones(int(x.shape[0]), 1)),
        "len of a tensor": lambda: Function(lambda x: torch.cat([x, torch.arange(len(x))[:, None]], 1)),
        "len of a result": lambda: Function(lambda x: torch.zeros(len(x[1:]), 2)),
        "float of a size": lambda: Function(lambda x: x / float(x.shape[0])),
        "float of a size in a tensor": lambda: Function(lambda x: x * torch.tensor([float(x.shape[0] - 1) / 2])),
        "int of a float": lambda: Function(lambda x: torch.zeros(int(float(x.shape[0]) // 2.0), 2) + x.sum()),
        "float as a type": lambda: Function(_checked_float),
        "int as a type": lambda: Function(_checked),
        "in a function": lambda: Function(_same_padding),
        "condition as a term": lambda: Function(lambda x: x.new_zeros(x.shape[0] + (x.shape[1] > 3), 2)),
        "condition before a term": lambda: Function(lambda x: x / ((x.shape[1] >= x.shape[0]) + x.shape[0])),
        "condition as a factor": lambda: Function(lambda x: x * (5 - 2 * (x.shape[0] > x.shape[1]))),
        "conditions alone": lambda: Function(lambda x: x * ((x.shape[0] > 6) - (x.shape[1] > 3))),
        "int of a condition": lambda: Function(lambda x: torch.cat([x] * 2)[: x.shape[0] + int(x.shape[1] < 4)]),
        "float of a condition": lambda: Function(lambda x: x + float(x.shape[0] > 2 * x.shape[1])),
        "math.ceil": lambda: Function(lambda x: x[: math.ceil(x.shape[0] / 2)]),
        "int of a tensor": lambda: Function(lambda x: x * int(torch.tensor(x.shape[0] * 0.5))),
        "int of a tensor as a length": lambda: Function(
            lambda x: x.sum() * torch.ones(int(torch.tensor(x.shape[0] / 2)))
        ),
        "int of a tensor of an integer": lambda: Function(lambda x: x[: int(torch.tensor(x.shape[0])) - 1]),
        "float of a tensor": lambda: Function(lambda x: x * float(torch.tensor(x.shape[0] * 1.25 + x.shape[1]))),
        "int of a quotient of tensors": lambda: Function(lambda x: x * int(torch.tensor(x.shape[0]) / 4 + 1)),
        "int of float64": lambda: Function(lambda x: x * int(torch.tensor(x.shape[0] * 0.7, dtype=torch.float64))),
        "np.ceil": lambda: Function(lambda x: x.new_ones(int(np.ceil(x.shape[0] / 4)), x.shape[1])),
        "numel of a size that is made": lambda: Function(
            lambda x: x * torch.Size([x.shape[0], 2]).numel() + isinstance(x.shape, torch.Size)
        ),
        "int of a product in a condition": lambda: Function(_branches_on_a_product),
        "max of a value and a size": lambda: Function(_classes_of_values),
        "min of a size and a value": lambda: Function(lambda x: x[: min(x.shape[0], x.argmax())] * 2),
        "language model": LanguageModel,
    }
)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_dims_stay_dynamic(name: str) -> None:
    torch.manual_seed(0)
    model = CASES[name]().eval()
    program = fxonnx.export(model, (torch.randn(5, 4),), dynamic_shapes=({0: "n", 1: "m"},), strict_shapes=True)
    for size in ((5, 4), (7, 3), (2, 6)):
        x = torch.randn(size) * 5
        torch.testing.assert_close(program(x)[0], model(x), atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:the model cannot be exported for all requested sizes")
@pytest.mark.parametrize("factor", [0.7, 2.3, 1 / 3])
def test_an_integer_of_a_tensor_that_rounds(factor: float) -> None:
    """``int(90 * 0.7)`` is 62, and of the number in float32 63: a file that does not round fails at other sizes."""
    model = Function(lambda x: x * int(torch.tensor(x.shape[0] * factor))).eval()
    program = fxonnx.export(model, (torch.ones(9, 2),), dynamic_shapes=({0: "n"},))
    run_from_file(program)
    for size in (9, 50, 90, 170):
        x = torch.ones(size, 2)
        with pytest.raises(fxonnx.ArgumentError) if size != 9 else nullcontext():
            torch.testing.assert_close(program(x)[0], model(x))


@pytest.mark.filterwarnings("ignore:the model cannot be exported for all requested sizes")  # reflected are two elements
def test_a_conversion_after_a_reshape_that_relates_the_sizes() -> None:
    model = Function(_half_of_padded).eval()
    program = fxonnx.export(model, (torch.rand(8, 12),), dynamic_shapes=({0: "n", 1: "m"},))
    for size in ((8, 12), (5, 9), (11, 4)):
        x = torch.rand(size)
        torch.testing.assert_close(program(x)[0], model(x))


EXPRESSIONS: Mapping[str, Callable[[int], float]] = MappingProxyType(
    {
        "float(n) / 3": lambda n: float(n) / 3,
        "int(float(n) / 0.1)": lambda n: int(float(n) / 0.1),
        "float(n // 2) ** 0.5": lambda n: float(n // 2) ** 0.5,
        "int(n / 2)": lambda n: int(n / 2),
        "int(n * 0.29)": lambda n: int(n * 0.29),
        "int(n / 0.1)": lambda n: int(n / 0.1),
        "int(n ** 0.5)": lambda n: int(n**0.5),
        "int((n - 1) ** 0.5)": lambda n: int((n - 1) ** 0.5),
        "int(n // 0.1)": lambda n: int(n // 0.1),
        "int(n % 0.3 * 10)": lambda n: int(n % 0.3 * 10),
        "int(-n % 0.3 * 10)": lambda n: int(-n % 0.3 * 10),
        "round(n * 0.3)": lambda n: round(n * 0.3),
        "round(min(n, 50) / 32) * 16": lambda n: round(min(n, 50) / 32) * 16,
        "int(round(n / 16) * 16)": lambda n: int(round(n / 16) * 16),
        "int(n * n / (n / 8 / 8))": lambda n: int(n * n / (n / 8 / 8)),
        "int(n * 7 / 7)": lambda n: int(n * 7 / 7),
        "int(n / 49 * 49)": lambda n: int(n / 49 * 49),
        "int(round(n / 1.1))": lambda n: int(round(n / 1.1)),  # noqa: RUF046 - as people write it
        "int(np.ceil(n / 2))": lambda n: int(np.ceil(n / 2)),
        "math.sqrt(n)": lambda n: math.sqrt(n),
        "int(math.sqrt(n * 3))": lambda n: int(math.sqrt(n * 3)),
        "math.isqrt(n)": lambda n: math.isqrt(n),
        "math.gcd(n, 12)": lambda n: math.gcd(n, 12),
        "math.gcd(8, n, 12)": lambda n: math.gcd(8, n, 12),
        "divmod(n, 7)": lambda n: 10 * divmod(n, 7)[0] + divmod(n, 7)[1],
        "divmod(100, n)": lambda n: 10 * divmod(100, n)[0] + divmod(100, n)[1],
        "math.ceil(n / 2)": lambda n: math.ceil(n / 2),
        "math.ceil(n * 0.3)": lambda n: math.ceil(n * 0.3),
        "n // 0.1": lambda n: n // 0.1,
        "n // -0.3": lambda n: n // -0.3,
        "7.7 // n": lambda n: 7.7 // n,
        "n * 0.5 // 0.1": lambda n: n * 0.5 // 0.1,
        "n % 0.3": lambda n: n % 0.3,
        "n % -0.3": lambda n: n % -0.3,
        "-n % 0.3": lambda n: -n % 0.3,
        "abs(9 - n)": lambda n: abs(9 - n),
        "n & -n": lambda n: n & -n,
        "(n + 7) & ~7": lambda n: (n + 7) & ~7,
        "n | 1": lambda n: n | 1,
        "~n + 9": lambda n: ~n + 9,
        "math.ceil(math.log2(n))": lambda n: math.ceil(math.log2(n)),
        "2 ** math.ceil(math.log2(n))": lambda n: 2 ** math.ceil(math.log2(n)),
        "int(math.log2(n / 3) * 2.5)": lambda n: int(math.log2(n / 3) * 2.5),
        "1 << (n - 1).bit_length()": lambda n: 1 << (n - 1).bit_length(),
        "(3 - n).bit_length()": lambda n: (3 - n).bit_length(),
    }
)
LOGARITHMS: Mapping[str, Callable[[int], float]] = MappingProxyType(
    {
        "math.log(n) / math.log(512)": lambda n: math.log(n) / math.log(512),
        "math.log(n, 3)": lambda n: math.log(n, 3),
        "math.log(100, n + 1)": lambda n: math.log(100, n + 1),
        "math.log10(n)": lambda n: math.log10(n),
        "math.log2(n) ** 2": lambda n: math.log2(n) ** 2,
    }
)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_numbers_of_sizes_are_exact(name: str) -> None:
    compute = EXPRESSIONS[name]
    model = Function(lambda x: x.new_zeros(()).double() + compute(x.shape[0])).eval()
    program = fxonnx.export(model, (torch.zeros(7, 2),), dynamic_shapes=({0: "n"},), strict_shapes=True)
    for size in (7, 1, 3, 31, 64, 100):
        assert program(torch.zeros(size, 2))[0].item() == compute(size)


@pytest.mark.parametrize("name", LOGARITHMS)
def test_logarithms_of_sizes(name: str) -> None:
    compute = LOGARITHMS[name]
    model = Function(lambda x: x.new_zeros(()).double() + compute(x.shape[0])).eval()
    program = fxonnx.export(model, (torch.zeros(7, 2),), dynamic_shapes=({0: "n"},), strict_shapes=True)
    run_from_file(program)
    for size in (7, 1, 3, 64, 1000):
        assert program(torch.zeros(size, 2))[0].item() == pytest.approx(compute(size), rel=1e-15)


@pytest.mark.parametrize("opset", [11, 20])
def test_rounded_binary_logarithms_are_exact_at_powers_of_two(opset: int) -> None:
    def rounded(x: Tensor) -> Tensor:
        n = x.shape[0]
        return torch.tensor([math.ceil(math.log2(n)), math.floor(math.log2(n)), (n - 1).bit_length()]) + x.long().sum()

    model = Function(rounded).eval()
    program = fxonnx.export(model, (torch.zeros(7, 0),), dynamic_shapes=({0: "n"},), opset_version=opset)
    run_from_file(program)
    for power in (*range(1, 12), 29, 31, 40):
        for size in (2**power - 1, 2**power, 2**power + 1):
            torch.testing.assert_close(program(torch.zeros(size, 0))[0], rounded(torch.zeros(size, 0)))


def test_a_limit_on_a_logarithm_is_checked_by_the_file(tmp_path: Path) -> None:
    def summed(x: Tensor) -> Tensor:
        return x * sum(2**bit for bit in range(math.ceil(math.log2(x.shape[0]))))

    with pytest.warns(UserWarning, match=r"only for:\n  ceil\(log2\(n\)\) == 3"):
        program = fxonnx.export(Function(summed).eval(), (torch.ones(7, 2),), dynamic_shapes=({0: "n"},))
    program.save(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    for size in (7, 5, 8):
        x = np.ones((size, 2), np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], summed(torch.from_numpy(x)))
    for size in (4, 9):
        with pytest.raises(Fail, match=r"requires ceil\(log2\(n\)\) == 3"):
            session.run(None, {"x": np.ones((size, 2), np.float32)})


def test_rows_padded_to_a_power_of_two() -> None:
    def halves(x: Tensor) -> Tensor:
        size = 2 ** math.ceil(math.log2(x.shape[0]))
        return F.pad(x, (0, 0, 0, size - x.shape[0])).view(2, -1).flip(0)

    model = Function(halves).eval()
    program = fxonnx.export(model, (torch.randn(7, 2),), dynamic_shapes=({0: "n"},), strict_shapes=True)
    run_from_file(program)
    for size in (7, 2, 3, 8, 9, 33):
        x = torch.randn(size, 2)
        torch.testing.assert_close(program(x)[0], model(x))


@pytest.mark.parametrize(
    "compute",
    [lambda n: math.ceil(math.log(n, 2)), lambda n: int(math.log10(n)), lambda n: int(math.log2(n) / math.log2(n + 1))],
    ids=["base 2", "log10", "quotient"],
)
def test_rounded_logarithms_that_are_exact_in_python_only(compute: Callable[[int], int]) -> None:
    model = Function(lambda x: x + compute(x.shape[0])).eval()
    with pytest.raises(
        fxonnx.TranslationError, match=r"rounds a logarithm that is exact in Python only; math\.log2 of"
    ):
        fxonnx.export(model, (torch.zeros(7, 2),), dynamic_shapes=({0: "n"},))


def test_a_size_as_a_key_stays_static_with_a_warning() -> None:
    tables = {4: torch.ones(4), 3: torch.zeros(3)}

    def looked_up(x: Tensor) -> Tensor:
        return x + tables[int(x.shape[1])]

    x = torch.rand(2, 4)
    with pytest.warns(UserWarning, match=r"only for:\n  m == 4\n    at: .*tables\[int"):
        program = fxonnx.export(Function(looked_up).eval(), (x,), dynamic_shapes=({0: "n", 1: "m"},))
    torch.testing.assert_close(program(torch.cat([x, x]))[0], torch.cat([x, x]) + 1)


def test_builtins_are_restored_and_other_threads_see_numbers() -> None:
    types: set[type] = set()
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            types.update((type(int(torch.ones(3).shape[0])), type(len(torch.ones(3)))))

    thread = threading.Thread(target=count)
    thread.start()
    try:
        fxonnx.export(CASES["int of a size"]().eval(), (torch.rand(5, 4),), dynamic_shapes=({0: "n"},))
    finally:
        stop.set()
        thread.join()
    assert types == {int}
    assert not {"int", "len"} & set(globals())


class CountsRows(nn.Module):
    """Converts the number of rows to a Python integer, and accepts three columns only."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != 3:
            raise ValueError("three columns are expected")
        return x + torch.zeros(len(x), 1)


def test_an_axis_that_the_model_fixes_does_not_fix_another_one() -> None:
    model, auto = CountsRows().eval(), torch.export.Dim.AUTO
    program = fxonnx.export(model, (torch.rand(2, 3),), dynamic_shapes=({0: auto, 1: auto},))
    x = torch.rand(5, 3)
    torch.testing.assert_close(program(x)[0], model(x))


class MissingModule(ModuleType):
    """A module that is imported with its first attribute, as in libraries with optional dependencies."""

    def __getattribute__(self, name: str) -> Any:
        raise ImportError(f"optional dependency of {name}")


def test_other_modules_are_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way to find the source of user code: replaced names, and a rewritten condition."""

    def forward(x: Tensor) -> Tensor:
        half = x[: int(len(x) // 2)]
        if half.sum() > 0:
            half = half * 2
        return half

    monkeypatch.setitem(sys.modules, "missing_module", MissingModule("missing_module"))
    monkeypatch.setitem(sys.modules, "no_module", object())
    model = Function(forward).eval()
    program = fxonnx.export(model, (torch.rand(8),), dynamic_shapes=({0: "n"},))
    for x in (torch.rand(5), -torch.rand(6)):
        torch.testing.assert_close(program(x)[0], model(x))


def test_integers_of_transformers_stay_symbolic_in_the_first_attempt() -> None:
    """Models of images convert quotients of sizes with ``torch_int``, whose module no other line of theirs is in."""

    def split(x: Tensor) -> Tensor:
        height, scale = torch_int(x.shape[1] / 2), torch_float(x.shape[1])
        return x[:, :height] * scale + torch_int(2.5) + torch_int(torch.tensor(3)) + torch_float(1)

    program = fxonnx.export(Function(split), (torch.rand(2, 6),), dynamic_shapes=({0: "n", 1: "m"},))
    assert len(program.record.capture.attempts) == 1
    for shape in ((3, 9), (1, 4)):
        x = torch.rand(*shape)
        torch.testing.assert_close(program(x)[0], split(x))


def _windows_and_back(x: Tensor) -> Tensor:
    """Softmax in windows of 4 times 4 elements, as in networks for image restoration."""
    count, height, width, channels = x.shape
    windows = x.view(count, height // 4, 4, width // 4, 4, channels).transpose(2, 3).reshape(-1, 16, channels)
    windows = windows.softmax(1)
    batch = int(windows.shape[0] / (height * width / 4 / 4))
    return windows.view(batch, height // 4, width // 4, 4, 4, -1).transpose(2, 3).reshape(batch, height, width, -1)


def _padded_if_needed(x: Tensor) -> Tensor:
    below, right = (4 - x.shape[1] % 4) % 4, (4 - x.shape[2] % 4) % 4
    return F.pad(x, (0, 0, 0, right, 0, below)) if below or right else x


def _mirrored(x: Tensor) -> Tensor:
    height, width = (x.shape[1] // 4 + 1) * 4, (x.shape[2] // 4 + 1) * 4
    x = torch.cat([x, x.flip(1)], 1)[:, :height]
    return torch.cat([x, x.flip(2)], 2)[:, :, :width]


@pytest.mark.parametrize(
    ("prepare", "shapes"),
    [
        (_padded_if_needed, ((3, 8, 16, 2), (2, 4, 4, 2), (2, 5, 4, 2), (1, 7, 9, 2))),
        (_mirrored, ((3, 8, 16, 2), (2, 9, 7, 2), (1, 13, 12, 2))),
    ],
    ids=["padded", "mirrored"],
)
def test_quotients_of_sizes_that_have_to_be_multiples_are_exact(
    prepare: Callable[[Tensor], Tensor], shapes: tuple[tuple[int, ...], ...]
) -> None:
    model = Function(lambda x: _windows_and_back(prepare(x))).eval()
    warned = (
        nullcontext()
        if prepare is _padded_if_needed
        else pytest.warns(UserWarning, match=r"h != 1\n  w >= 3\n  w != 4\n")
    )
    with warned:
        program = fxonnx.export(model, (torch.rand(1, 8, 12, 2),), dynamic_shapes=({0: "b", 1: "h", 2: "w"},))
    assert not any("int(" in str(one.text) for one in program.record.constraints)
    run_from_file(program)
    for shape in shapes:
        x = torch.rand(*shape)
        torch.testing.assert_close(program(x)[0], model(x))


# Tensors of one element that hold expressions of sizes: branches on them are constraints, and they can be sizes.


class Padding(nn.Module):
    """A function of a module with the geometry of a convolution in buffers, as audio codecs have it."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("kernel", torch.tensor(7))
        self.register_buffer("stride", torch.tensor(4))
        self.register_buffer("padding", torch.tensor(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)  # type: ignore[no-any-return]


def _extra_padding(self: Any, x: Tensor) -> Tensor:
    length = x.shape[-1]
    frames = torch.ceil((length - self.kernel + self.padding) / self.stride + 1).to(torch.int64) - 1
    extra = frames * self.stride + self.kernel - self.padding - length
    return nn.functional.pad(x, (0, extra.item())) if extra >= 0 else x


def _half(self: Any, x: Tensor) -> Tensor:
    half = torch.tensor(x.shape[-1]) // 2
    return x[:, :half] if half > 2 else x


def _rounded(self: Any, x: Tensor) -> Tensor:
    parts = torch.div(torch.tensor(x.shape[-1]), 3, rounding_mode="floor")
    parts = torch.maximum(parts, torch.tensor(1))
    return x[:, : parts.item()] if parts != 4 else x + 1


def _fraction(self: Any, x: Tensor) -> Tensor:
    share = torch.tensor(x.shape[-1]) / 4
    return x[:, : torch.floor(share).to(torch.int64).item()] if share >= 1.0 else x * 2


def _negative(self: Any, x: Tensor) -> Tensor:
    below = -torch.tensor(x.shape[-1]) * 2 + 9
    return x + 1 if below.clone() < 0 else x - 1


ROWS = {
    "extra padding": (_extra_padding, {13, 8, 6, 4, 16, 29}),
    "half": (_half, {13, 6, 8, 16, 29}),
    "rounded": (_rounded, {2, 4, 6, 8, 11, 16, 29}),
    "fraction": (_fraction, {13, 4, 6, 8, 16, 29}),
    "negative": (_negative, {13, 6, 8, 16, 29}),
}


@pytest.mark.parametrize(("function", "valid"), ROWS.values(), ids=ROWS)
def test_results_are_right_or_refused(function: Any, valid: set[int]) -> None:
    model = Padding(function).eval()
    size = 13 if 13 in valid else 11
    program = fxonnx.export(model, (torch.rand(2, size),), dynamic_shapes={"x": {1: "n"}}, verify=True)
    for size in (1, 2, 3, 4, 6, 8, 11, 12, 13, 16, 29):
        x = torch.rand(2, size)
        try:
            (result,) = program(x)
        except fxonnx.ArgumentError:
            assert size not in valid
        else:
            torch.testing.assert_close(result, model(x))


def _half_or_sum(self: Any, x: Tensor) -> Tensor:
    """No graph has both results: they have different numbers of axes."""
    half = torch.tensor(x.shape[-1]) // 2
    return x[:, :half] if half > 2 else x.sum(1)


def test_a_branch_is_a_constraint() -> None:
    with pytest.warns(UserWarning, match=r"(?s)n >= 6.*x\[:, :half\] if half > 2"):
        program = fxonnx.export(Padding(_half_or_sum).eval(), (torch.rand(2, 13),), dynamic_shapes={"x": {1: "n"}})
    with pytest.raises(fxonnx.ArgumentError, match=r"the model was exported for n >= 6, got n = 5"):
        program(torch.rand(2, 5))


def test_written_scalars_are_unknown() -> None:
    def written(self: Any, x: Tensor) -> Tensor:
        length = torch.tensor(x.shape[-1])
        length[()] = x.sum().to(torch.int64)
        return x + 1 if length > 2 else x

    model = Padding(written).eval()
    program = fxonnx.export(model, (torch.rand(2, 13),), dynamic_shapes={"x": {1: "n"}})
    for x in (torch.ones(2, 13), torch.zeros(2, 13), torch.ones(2, 1)):
        torch.testing.assert_close(program(x)[0], model(x))


@pytest.mark.parametrize("digits", [1, 3, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_to_digits_is_exact(dtype: torch.dtype, digits: int) -> None:
    class Rounded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 0 + round(x.sum().item(), digits)

    generator = torch.Generator().manual_seed(0)
    integers = torch.randint(-(10**4), 10**4, (60,), generator=generator, dtype=dtype)
    halves = (integers[:30] + 0.5) / 10**digits
    numbers = torch.cat([halves, halves.nextafter(halves * 2), integers / 1000, torch.tensor([0, 2.675, 5e15, -1e30])])
    model = Rounded()
    program = fxonnx.export(model, (torch.ones(1, dtype=dtype),))
    for number in numbers.to(dtype):
        assert torch.equal(program(number[None])[0], model(number[None])), number.item()


def _equal_to_zero(flag: Any, x: Tensor) -> Any:
    return flag == 0


def _not_true(flag: Any, x: Tensor) -> Any:
    return flag != True  # noqa: E712


RELATIONS: dict[str, Any] = {
    "== 0": _equal_to_zero,
    "!= True": _not_true,
    "== 2": lambda flag, x: flag == 2,
    "== 1.0": lambda flag, x: flag == 1.0,
    "0 ==": lambda flag, x: 0 == flag,  # noqa: SIM300
    "< 1": lambda flag, x: flag < 1,
    ">= 0.5": lambda flag, x: flag >= 0.5,
    "!= flag": lambda flag, x: flag != (x.max() > 1).item(),
    "<= flag": lambda flag, x: flag <= (x.max() > 1).item(),
}


class Flag(nn.Module):
    """Branches on a relation of the truth value of a tensor."""

    def __init__(self, relation: Any) -> None:
        super().__init__()
        self.relation = relation

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if self.relation((x.sum() > 0).item(), x) else x + 1


@pytest.mark.parametrize("relation", RELATIONS.values(), ids=RELATIONS)
def test_relations_of_truth_values(relation: Any) -> None:
    model = Flag(relation)
    program = fxonnx.export(model, (torch.tensor([1.0, 2.0]),))
    for values in ([1.0, 2.0], [0.1, 0.2], [-3.0, 2.0], [-1.0, 0.5]):
        x = torch.tensor(values)
        torch.testing.assert_close(program(x)[0], model(x))
