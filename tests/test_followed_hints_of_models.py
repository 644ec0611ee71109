"""Each hint of the later stages about code of the model, followed; and every hint outside of the capture is in a table."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

import fxonnx
from fxonnx import InputObserver

from .capture.test_refusals import Appended, Viewed
from .capture.test_tensor_subclasses import NoStorage, Pair, frozen
from .functions import Function, VariadicFunction
from .genai.test_followed_hints import FOLLOWED as OF_TRANSFORMERS
from .hints import other_hints
from .messages import check_message
from .program.test_adapters import Model as WithAdapters
from .program.test_adapters import X as TOKENS
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
    program = fxonnx.export(model, (X,), quantize="int8")
    return program.verify(model=nn.Linear(3, 2).eval() if model is LINEAR else model)


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
}

NOT_NAMED = {
    "write the loop in a function with def, and not in a lambda",
    "export it without a cache, with fxonnx.export",
}
"""Hints of the capture, and those that are no argument hint= of the code."""

ELSEWHERE: dict[str, tuple[str, ...]] = {
    "tests/test_hostile_files.py": (
        "torch.export.save writes no such entry; do not load the file by torch.export.load, which may execute it",
    ),
    "tests/test_hostile_checkpoints.py": (
        "copy the file into the directory, if it belongs there",
        "code in a checkpoint is run only with trust_remote_code=True",
        "load the model yourself with trust_remote_code=True and export it with fxonnx.export",
        "check the sizes in config.json, and whether files are missing",
        "convert the weights to safetensors where you trust them",
    ),
    "tests/devices/test_devices.py": (
        "load it without device_map, or call accelerate.hooks.remove_hook_from_module(model, recurse=True)",
    ),
    "tests/lower/test_other_domains.py": ("nest the values as the schema of the operator does",),
    "tests/capture/test_degrade.py": ("install a torch version that fxonnx is tested with",),
    "tests/program/test_saving.py": ("write to another device", "it takes about {}{}"),
    "tests/program/test_adapters.py": (
        "pass the state_dict of the exported weights",
        "export the PEFT model, or pass the state_dict with values for the scaling of the exported model",
    ),
    "tests/program/test_program.py": ("use program.save(path), which stores the weights as external data",),
    "tests/program/test_sequences.py": (
        "each call in a row starts from the state that ONNX Runtime returned for the one before: look for code of the "
        "model that reads the state in Python",
    ),
    "tests/prepare/test_inline.py": (
        "capture the model with strict=False",
        "write the function for the whole batch, without vmap",
    ),
    "tests/test_verify.py": (
        "pass args or kwargs",
        "export the model again; program.compare(model=model) finds the operator, line and module",
    ),
    "tests/test_verify_model.py": ("pass the model that was exported, or export this one",),
    "tests/program/test_guards.py": ("the file has to fail outside of its limits: please report this",),
    "tests/huggingface/test_hub.py": (
        "on a machine with network access, run: hf download {}",
        "pass the id of the model in the format of transformers",
        "accept its conditions on {}, and {}",
        "leave it out for the branch main",
        "run: hf auth login",
        "check the name; for a private model, {}",
        "run it again: files that are complete are kept",
    ),
    "tests/genai/test_gguf.py": (
        "pass the path of one of them",
        "pass the checkpoint of transformers that the file was made of",
        "join them with llama-gguf-split --merge",
        "convert the model to one of {} with llama-quantize",
    ),
    "tests/genai/test_adapters.py": ("names have no '.' or '/'", "merge the adapter"),
    "tests/genai/test_export.py": (
        "export a step of one token, with the states as inputs, with fxonnx.export",
        "export it with fxonnx.export, or pass text_only=True (--text-only) for a model of text",
        "export it with fxonnx.export",
    ),
    "tests/genai/test_precision.py": (
        "activations rounded to 8 bits can make a router choose another expert where two are almost equally good; if "
        "the export with precision='fp32' succeeds, compare the quality of this one and pass verify=False (--no-verify)",
        "pass verify=False (--no-verify)",
        "pass verify=False (--no-verify), or precision='fp16'",
    ),
    "tests/genai/test_quantized_checkpoints.py": (
        'leave it out, or pass quantize="int4"',
        'pass quantize="int4" to round the dequantized weights to nearest',
        "dequantize the checkpoint with the library that has quantized it, and save the model again",
        "pass the directory that model.save_pretrained writes, or the result of model.dequantize()",
        "supported are 4 and 8 bits per weight with scales for blocks or for output features",
    ),
    "tests/genai/test_vision_language.py": ("for text alone, export the language model by itself",),
    "tests/huggingface/test_image_text.py": (
        "fxonnx.genai.export exports further vision-language models, fxonnx.export any model with example inputs",
        "the processor of the model inserts the tokens",
    ),
    "tests/huggingface/test_sound.py": (
        "pass a SpeechT5HifiGan, or its directory: vocoder=, --vocoder",
        "only EnCodec in one chunk is exported: chunk_length_s=None",
        "export with attentions=True (--attentions)",
    ),
    "tests/huggingface/test_diffusers.py": ("export its components with fxonnx.export",),
    "tests/huggingface/test_backend.py": ("pip install -U transformers",),
    "tests/huggingface/test_names.py": ("it has models for {}",),
    "tests/huggingface/test_export.py": (
        "export it with fxonnx.export, which takes an example",
        "its task is image-text-to-text",
        "pass task={} for the model of text only; fxonnx.genai.export exports vision-language models",
        "correct the configuration, or export without the comparison: verify=False, --no-verify",
    ),
    "a library that is not installed": (
        "install it with: pip install peft",
        "install it with: pip install 'fxonnx[{}]'",
    ),
    "a GPU": ("call .cpu()",),
    "weights of 2 GiB": (
        "save to a path, so that the weights are stored as external data",
        "omit external_data, or pass external_data=True",
    ),
    "no program is known that reaches it": (
        "pass a newer opset_version",
        "turn autocast off for this call, or cast its inputs",
        "export with a clone() of one of them, or write to a copy in forward",
        "return it as float32 or as an integer",
        "verify the export without quantize, or exclude this layer",
    ),
}
"""Hints whose errors other tests have, or what a program that follows them needs."""


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
        *(text for texts in ELSEWHERE.values() for text in texts),
    }
    found = list(other_hints())
    assert len({text for _, text in found}) > 200
    assert [(place, text) for place, text in found if text not in known] == []
    assert known - {text for _, text in found} <= NOT_NAMED
    assert [place for place in ELSEWHERE if place.startswith("tests/") and not (ROOT / place).exists()] == []
