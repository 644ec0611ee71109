"""Each hint of the later stages about code of the model, followed; and every hint outside of the capture is in a table."""

from __future__ import annotations

import ast
import errno
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

import fxonnx
from fxonnx import InputObserver
from fxonnx.errors import FACTORIZATION_HINT
from fxonnx_translations._optional_names import find_name

from .capture.test_refusals import Appended, Viewed
from .capture.test_tensor_subclasses import NoStorage, Pair, frozen
from .functions import Function, VariadicFunction
from .genai.test_followed_hints import FOLLOWED as OF_TRANSFORMERS
from .hints import other_hints
from .huggingface.test_followed_hints import FOLLOWED as OF_OTHER_MODELS
from .messages import check_message
from .program.test_adapters import Model as WithAdapters
from .program.test_adapters import X as TOKENS
from .program.test_adapters import save_peft
from .test_first_hour import FOLLOWED as OF_THE_FIRST_HOUR
from .test_followed_hints_of_calls import FOLLOWED as OF_CALLS
from .test_followed_hints_of_commands import STEPS as OF_COMMANDS
from .test_mistakes_by_topic import LINEAR, linear, of

ROOT = Path(__file__).parent.parent
X = torch.rand(2, 3)
_Call = Callable[[], Any]


class Scripted(nn.Module):
    """The branches of Viewed and Appended, which write to a clone and return the new value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        row = x[0].clone()
        if bool(x.sum() > 0):
            row = (row + 1) * 2
        return row


class WithoutInit(nn.Module):
    def __init__(self) -> None:
        pass


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class OfAnyNumber(nn.Module):
    def forward(self, *inputs: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.stack(inputs).sum(0) * scale


class Scratch(nn.Module):
    """A model whose results are written to a buffer, or to a tensor of forward."""

    def __init__(self, is_buffer: bool) -> None:
        super().__init__()
        self.is_buffer = is_buffer
        self.register_buffer("result", torch.empty(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.result if self.is_buffer else torch.empty(0)
        torch.add(x, x, out=result)
        return result * 2


class Negated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return -x


class NegatedWithSymbolic(Negated):
    @staticmethod
    def symbolic(g: Any, x: Any) -> Any:
        return g.op("Neg", x)


def scripted(kind: type[nn.Module]) -> _Call:
    return lambda: fxonnx.export(torch.jit.script(kind().eval()), (torch.rand(4, 3),))


def frozen_script(*, is_frozen: bool) -> Any:
    script = torch.jit.script(
        torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 3)).eval(), {nn.Linear})
    )
    return fxonnx.export(torch.jit.freeze(script) if is_frozen else script, (torch.rand(2, 4),))


def weighted(weight: torch.Tensor) -> _Call:
    def export() -> Any:
        model = nn.Sequential(nn.Linear(3, 2)).eval()
        model[0].weight = frozen(weight)
        return fxonnx.export(model, (X,))

    return export


def of_pair(outputs: Callable[[Any], Any]) -> _Call:
    def export() -> Any:
        model = Function(lambda x: x).eval()
        model.pair = frozen(Pair(torch.randn(3), torch.randn(3)))
        model.forward = lambda x: outputs(x * model.pair)
        return fxonnx.export(model, (X,))

    return export


def attention(function: Callable[..., Any]) -> _Call:
    x = torch.rand(1, 2, 16, 8)
    return lambda: fxonnx.export(VariadicFunction(function).eval(), (x, x, x))


def scored(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    def score(s: torch.Tensor, b: Any, h: Any, i: Any, j: Any) -> torch.Tensor:
        return s + torch.nonzero(torch.stack([s, s])).sum()

    return flex_attention(q, k, v, score_mod=score)


def quantized(x: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)


def with_packed_numbers(x: torch.Tensor) -> _Call:
    return lambda: fxonnx.export(Function(lambda x: x.reshape(-1)).eval(), (x,))


def total(x: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(x).sum(0)


def items(dtype: torch.dtype, *, is_list: bool = True) -> _Call:
    given = [torch.ones(2, dtype=dtype)] * 2
    if not is_list:
        return lambda: fxonnx.export(Function(lambda x: x.sum(0)).eval(), (torch.stack(given),))
    return lambda: fxonnx.export(Function(total).eval(), (given,), dynamic_shapes=(fxonnx.TensorList("n"),))


def rows(dtype: torch.dtype) -> _Call:
    """A list of results whose length depends on a size."""

    def function(x: torch.Tensor) -> Any:
        return [row * 2 for row in x.to(dtype)]

    return of(function, dynamic_shapes=({0: "n"},))


def observed() -> InputObserver:
    observer, model = InputObserver(), OfAnyNumber()
    with observer(model):
        model(X, X, scale=X)
    return observer


def quantization_aware(*, observers: bool) -> Any:
    import torch.ao.quantization as tq

    model = nn.Sequential(tq.QuantStub(), nn.Linear(4, 3), tq.DeQuantStub()).train()
    model.qconfig = tq.get_default_qat_qconfig("x86")
    tq.prepare_qat(model, inplace=True)
    model(torch.randn(8, 4))
    model.eval()
    if not observers:
        model.apply(tq.disable_observer)
    return fxonnx.export(torch.export.export(model, (torch.randn(2, 4),)))


def adapter(model: WithAdapters, **given: Any) -> None:
    args = {"args": (TOKENS,), "adapters": "*.lora_*"}
    fxonnx.export(model.eval(), args["args"], adapters=args["adapters"]).save_adapter("a.onnx_adapter", **given)


def larger_rank() -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in WithAdapters(default=6).state_dict().items() if "lora_" in name}


def with_further_layers(exported: str) -> None:
    model = WithAdapters()
    model.layers[1].lora_A["default"] = model.layers[1].lora_B["default"] = nn.Identity()
    model.activate(exported)
    adapter(model, adapter="german")


def of_a_program(*, as_weights: bool) -> None:
    model = WithAdapters().eval()
    program = fxonnx.export(torch.export.export(model, (TOKENS,)), adapters="*.lora_*")
    german = {name: model.state_dict()[name] for name in larger_rank()}
    program.save_adapter("a.onnx_adapter", **({"weights": german} if as_weights else {"adapter": "german"}))


def other_branch(*, is_exported: bool) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        return {True: x * 2, False: x.sin() + 1}[bool(x.sum() > 0)]

    given = -X if is_exported else X
    return fxonnx.export(Function(function).eval(), (given,), data_dependent="example")(-X)


def verified(model: Any) -> Any:
    """The comparison of a quantized program with its own model, or with another one."""
    exported = nn.Linear(64, 64).eval()
    return fxonnx.export(exported, (WIDE,), quantize="int8").verify(model=model or exported)


WIDE = torch.rand(2, 64)
N: dict[str, Any] = {"dynamic_shapes": ({0: "n"},)}


def wide() -> Any:
    """A program with weights of 16 KiB."""
    return fxonnx.export(nn.Linear(64, 64).eval(), (WIDE,))


class Gained(nn.Module):
    """Its weight is computed, and quantized afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.gain = nn.Parameter(torch.randn(64, 64)), nn.Parameter(torch.rand(64, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight * self.gain)


class Scans(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")


class UnderAutocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.layer(x)
        return torch.cond(x.sum() > 0, lambda value: value + 1, lambda value: value * 2, (y,))


def autocast(*, strict: bool) -> _Call:
    return lambda: fxonnx.export(torch.export.export(UnderAutocast().eval(), (X,), strict=strict))


def of_overlapping(x: torch.Tensor, *, is_clone: bool = False) -> Any:
    def writes(x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return row * 2

    return fxonnx.export(VariadicFunction(writes).eval(), (x, x[0].clone() if is_clone else x[0]))


def sum_of(dtype: torch.dtype) -> _Call:
    model = Function(lambda x: torch.stack(x).sum(0).to(dtype)).eval()
    return lambda: fxonnx.export(model, ([X, X],), dynamic_shapes=(fxonnx.TensorList("n"),))([X, X, X])


def without_example() -> Any:
    program = torch.export.export(LINEAR, (X,))
    program._example_inputs = None
    return fxonnx.export(program)


def exported_weights(model: WithAdapters) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if ".default." in name}


def saved_adapter(*, is_scaled: bool = True, **config: Any) -> None:
    """Write the adapter in a directory of PEFT for a model that has the scaling of its own or has none."""
    model = WithAdapters()
    german = save_peft(Path("scaled" if is_scaled else "other"), model, "german", lora_alpha=1, **config)
    program = fxonnx.export(model.eval(), (TOKENS,), adapters="*.lora_*")
    if not is_scaled:
        for layer in model.layers:
            layer.scaling = {"german": 1.0}
    program.save_adapter("a.onnx_adapter", german)


def full(function: str, call: _Call) -> _Call:
    """A call on a device without space: a function of the system fails."""
    failing = mock.patch(f"os.{function}", side_effect=OSError(errno.ENOSPC, "No space left on device"))

    def refused() -> Any:
        with failing:
            return call()

    return refused


def beyond(module: str, call: _Call) -> _Call:
    """A call with a limit of 12,000 bytes for what a protobuf message holds."""

    def limited() -> Any:
        with mock.patch(f"fxonnx._program.{module}.PROTOBUF_LIMIT", 12_000):
            return call()

    return limited


def without_name(call: _Call) -> Any:
    with mock.patch("fxonnx._capture.patches.functional.scan", find_name("torch._C:no_such_name")):
        return call()


FOLLOWED: dict[str, tuple[_Call, _Call]] = {
    "call super().__init__() in its first line": (
        lambda: fxonnx.export(WithoutInit(), (X,)),
        lambda: fxonnx.export(Doubled(), (X,)),
    ),
    "pass as_args_kwargs=True": (
        lambda: observed().infer_arguments(),
        lambda: observed().infer_arguments(as_args_kwargs=True),
    ),
    "use a dtype that ONNX has for such tensors, uint8 for packed numbers, inside and outside the model": (
        with_packed_numbers(torch.zeros(2, 2, dtype=torch.uint8).view(torch.bits8)),
        with_packed_numbers(torch.zeros(2, 2, dtype=torch.uint8)),
    ),
    "create the tensor in forward, or give it the shape of its content before the export": (
        lambda: fxonnx.export(Scratch(True).eval(), (X,), state="io"),
        lambda: fxonnx.export(Scratch(False).eval(), (X,), state="io"),
    ),
    "pass a stacked tensor": (items(torch.bfloat16), items(torch.bfloat16, is_list=False)),
    "{}, or convert its items to float32 or int32": (rows(torch.bfloat16), rows(torch.float32)),
    "call torch.nn.functional.scaled_dot_product_attention with a mask": (
        attention(scored),
        attention(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(16, 16).tril() > 0)),
    ),
    "write the model with an operator that returns its result, or decompose it before export": (
        of(lambda x: (x * 2 + 1).polygamma_(1)),
        of(lambda x: torch.polygamma(1, x * 2 + 1)),
    ),
    "implement __tensor_flatten__ and __tensor_unflatten__ for the tensor subclass, or replace the weights by plain "
    "tensors before the export": (weighted(NoStorage(torch.randn(2, 3))), weighted(torch.randn(2, 3))),
    "pass its inner tensors, and create it in forward": (
        lambda: fxonnx.export(Function(lambda x: x.low + x.high).eval(), (Pair(torch.ones(3), torch.ones(3)),)),
        lambda: fxonnx.export(
            VariadicFunction(lambda low, high: (lambda x: x.low + x.high)(Pair(low, high))), (torch.ones(3),) * 2
        ),
    ),
    "return plain tensors": (of_pair(lambda x: x), of_pair(lambda x: x.low + x.high)),
    "before the capture, disable the observers: model.apply(torch.ao.quantization.disable_observer)": (
        lambda: quantization_aware(observers=True),
        lambda: quantization_aware(observers=False),
    ),
    "dequantize before the call, or quantize the float model with PT2E instead: prepare_pt2e and convert_pt2e of "
    "torchao.quantization.pt2e": (
        of(lambda x: torch.softmax(quantized(x), 1).dequantize()),
        of(lambda x: torch.softmax(quantized(x).dequantize(), 1)),
    ),
    "return x.dequantize(), for example with DeQuantStub, or the integers x.int_repr()": (
        of(quantized),
        of(lambda x: quantized(x).int_repr()),
    ),
    "give it a static method symbolic(g, ...), which is exported instead": (
        lambda: fxonnx.torch_onnx_export(Function(Negated.apply).eval(), (X,), autograd_inlining=False),
        lambda: fxonnx.torch_onnx_export(Function(NegatedWithSymbolic.apply).eval(), (X,)),
    ),
    "return the new value from the branch or loop instead": (scripted(Appended), scripted(Scripted)),
    "write to a clone() of the tensor and let the branch return it": (scripted(Viewed), scripted(Scripted)),
    "export the script as it was before torch.jit.freeze": (
        lambda: frozen_script(is_frozen=True),
        lambda: frozen_script(is_frozen=False),
    ),
    "export the model with an adapter of the largest rank; PEFT's directories of smaller rank are padded": (
        lambda: adapter(WithAdapters(), weights=larger_rank()),
        lambda: adapter(WithAdapters(default=6), weights=larger_rank()),
    ),
    "export the model with the adapter that has the most layers": (
        lambda: with_further_layers("default"),
        lambda: with_further_layers("german"),
    ),
    "pass the weights instead": (
        lambda: of_a_program(as_weights=False),
        lambda: of_a_program(as_weights=True),
    ),
    "re-export with such inputs as the example": (
        lambda: other_branch(is_exported=False),
        lambda: other_branch(is_exported=True),
    ),
    "the exported arguments are: {}": (lambda: linear()(), lambda: linear()(input=X)),
    "write the loop in a function with def, and not in a lambda": (
        of(lambda x: [row * 2 for row in x], dynamic_shapes=({0: "n"},)),
        rows(torch.float32),
    ),
    'the size of the example is part of the model: export with dynamic_shapes={"{}": {{}}}': (
        lambda: linear()(torch.rand(5, 3)),
        lambda: linear(dynamic_shapes={"input": {0: "input_0"}})(torch.rand(5, 3)),
    ),
    "capture the model with strict=False": (autocast(strict=True), autocast(strict=False)),
    "export with a clone() of one of them, or write to a copy in forward": (
        lambda: of_overlapping(X.clone()),
        lambda: of_overlapping(X.clone(), is_clone=True),
    ),
    "return it as float32 or as an integer": (sum_of(torch.bfloat16), sum_of(torch.float32)),
    "verify the export without quantize, or exclude this layer": (
        lambda: fxonnx.export(Gained().eval(), (WIDE,), quantize="int8").verify(),
        lambda: fxonnx.export(Gained().eval(), (WIDE,)).verify(),
    ),
    "pass the model that was exported, or export this one": (
        lambda: verified(nn.Linear(64, 64).eval()),
        lambda: verified(None),
    ),
    "pass args or kwargs": (lambda: without_example().verify(), lambda: without_example().verify((X,))),
    "export the model again; program.compare(model=model) finds the operator, line and module": (
        lambda: (linear("m.onnx"), fxonnx.verify("m.onnx", nn.Linear(3, 2).eval(), (X,))),
        lambda: (linear("m.onnx"), fxonnx.verify("m.onnx", LINEAR, (X,))),
    ),
    "pass the state_dict of the exported weights": (
        lambda: saved_adapter(peft_type="IA3"),
        lambda: adapter(WithAdapters(), weights=exported_weights(WithAdapters())),
    ),
    "export the PEFT model, or pass the state_dict with values for the scaling of the exported model": (
        lambda: saved_adapter(is_scaled=False),
        saved_adapter,
    ),
    "it takes about {}{}": (full("fsync", lambda: linear("m.onnx")), lambda: linear("m.onnx")),
    "write to another device": (
        full("mkdir", lambda: linear(diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir="full/reports"))),
        lambda: linear(diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir="reports")),
    ),
    "install a torch version that fxonnx is tested with": (
        lambda: without_name(lambda: fxonnx.export(Scans().eval(), (X,), **N)),
        lambda: fxonnx.export(Scans().eval(), (X,), **N),
    ),
    "use program.save(path), which stores the weights as external data": (
        beyond("onnx_program", lambda: wide().model_proto),
        beyond("onnx_program", lambda: wide().save("m.onnx")),
    ),
    "save to a path, so that the weights are stored as external data": (
        beyond("saving", lambda: wide().save(io.BytesIO())),
        beyond("saving", lambda: wide().save("m.onnx", external_data=True)),
    ),
    "omit external_data, or pass external_data=True": (
        beyond("saving", lambda: wide().save("m.onnx", external_data=False)),
        beyond("saving", lambda: wide().save("m.onnx", external_data=True)),
    ),
}

NOT_NAMED = {
    FACTORIZATION_HINT,
    "write the loop in a function with def, and not in a lambda",
    "export it without a cache, with fxonnx.export",
}
"""Hints of the capture, and those that are no argument hint= of the code."""

ELSEWHERE: dict[str, tuple[str, ...]] = {
    # The installed transformers has the layers.
    "tests/genai/test_draft_heads.py::test_an_older_transformers": ("update transformers to 5.23 or later",),
    # The weights have names of published checkpoints, which a fixture makes for the tests beside it.
    "tests/genai/test_draft_heads.py::test_mistakes": ("pass the directory of a checkpoint with them",),
    # The program needs a library that is not installed everywhere.
    "tests/devices/test_devices.py::test_weights_offloaded_by_accelerate_are_refused": (
        "load it without device_map, or call accelerate.hooks.remove_hook_from_module(model, recurse=True)",
    ),
    # The program declares operators of its own.
    "tests/lower/test_other_domains.py::test_results_in_other_lists_than_torch": (
        "nest the values as the schema of the operator does",
    ),
    # No model is known whose file fails so: the file is changed after the export.
    "tests/program/test_sequences.py::test_a_file_that_ignores_its_state_is_an_error": (
        "each call in a row starts from the state that ONNX Runtime returned for the one before: look for code of the "
        "model that reads the state in Python",
    ),
    # torch.export fails before for each known function without a batching rule: the graph is changed.
    "tests/prepare/test_inline.py::test_untraceable_vmap_error_names_the_source_line": (
        "write the function for the whole batch, without vmap",
    ),
    # It asks for a report: no program that provokes it is known.
    "tests/program/test_guards.py::test_verification_expects_a_failure_outside_of_the_limits": (
        "the file has to fail outside of its limits: please report this",
    ),
    # Other devices run what is written so.
    "tests/genai/test_devices.py::test_what_a_device_cannot_run": (
        'pass embeddings="float" (--embeddings float)',
        'pass precision="fp16"',
    ),
    # A server stands for the Hub.
    "tests/huggingface/test_hub.py::test_the_next_steps": (
        "pass the id of the model in the format of transformers",
        "accept its conditions on {}, and {}",
        "leave it out for the branch main",
        "run: hf auth login",
        "check the name; for a private model, {}",
    ),
    "tests/huggingface/test_hub.py::test_genai_without_a_connection_afterwards": (
        "on a machine with network access, run: hf download {}",
        "run it again: files that are complete are kept",
    ),
    # onnxruntime-genai's results are replaced.
    "tests/genai/test_precision.py::test_rounded_activations_of_routers_are_named": (
        "activations rounded to 8 bits can make a router choose another expert where two are almost equally good; if "
        "the export with precision='fp32' succeeds, compare the quality of this one and pass verify=False (--no-verify)",
    ),
    # The calls of a loaded model.
    "tests/huggingface/test_image_text.py::test_dtypes_and_calls": ("the processor of the model inserts the tokens",),
    # The installed version stands for a newer one.
    "tests/huggingface/test_backend.py::test_transformers_without_exporters": ("pip install -U transformers",),
    # Decompositions that always fail stand for those of a library.
    "tests/prepare/test_inline.py::test_call_with_internal_autocast_must_be_decomposable": (
        "turn autocast off for this call, or cast its inputs",
    ),
}
"""Hints that no program in a table follows, for the reason above each, by the test that does."""
UNREACHED = {"pass a newer opset_version"}
"""Of errors that no program is known to reach: sizes are computed with operators that every opset has."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hint", FOLLOWED)
def test_a_followed_hint_works(hint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refused, followed = FOLLOWED[hint]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fxonnx.ExportError) as caught:
        refused()
    check_message(caught.value)
    assert re.search(".*".join(map(re.escape, re.split(r"\{.*?\}+", hint))), caught.value.hint or ""), caught.value
    result = followed()
    if isinstance(result, fxonnx.ONNXProgram):
        result.verify()


def test_every_hint_is_in_a_table() -> None:
    known = {
        *FOLLOWED,
        *OF_CALLS,
        *OF_COMMANDS,
        *OF_TRANSFORMERS,
        *OF_OTHER_MODELS,
        *OF_THE_FIRST_HOUR,
        *(text for texts in ELSEWHERE.values() for text in texts),
        *UNREACHED,
    }
    found = list(other_hints())
    assert len({text for _, text in found}) > 200
    assert [(place, text) for place, text in found if text not in known] == []
    assert known - {text for _, text in found} <= NOT_NAMED


@pytest.mark.parametrize("place", ELSEWHERE)
def test_other_tests_follow_their_hints(place: str) -> None:
    """They exist, and their source has each hint, at least four words of it in a row."""
    file, _, name = place.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    (test,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    source = " ".join(ast.unparse(test).replace("\\", "").split())
    for hint in ELSEWHERE[place]:
        words = hint.split()
        runs = {" ".join(words[start : start + 4]) for start in range(max(len(words) - 3, 1))}
        assert any(run in source for run in runs), hint
