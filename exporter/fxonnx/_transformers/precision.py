"""Precision: element types of the computation and of the weights, recipes, and the importance of features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

import torch

from .. import QuantizeConfig
from ..errors import ArgumentError, did_you_mean
from .core import UsualName
from .extras import check_choice
from .meta import has_weights
from .source import Source

__all__ = [
    "KL_LIMITS",
    "MEASURED",
    "RECIPES",
    "VARIANTS",
    "VERIFIED",
    "Precision",
    "PrecisionPlan",
    "Recipe",
    "Variant",
    "check_recipe",
    "config_of_precision",
    "config_of_recipe",
    "importance_of",
    "measured_importance",
    "read_precision",
    "read_variants",
    "tokens_of",
    "with_accuracy_level",
    "with_quantization",
]

Precision: TypeAlias = Literal["fp32", "fp16", "bf16", "int4", "int8"]

_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
)

_TOLERANCES: Mapping[torch.dtype, float] = MappingProxyType(
    {torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.1}
)
# MatMulNBits rounds activations to int8.
_QUANTIZED_TOLERANCE = 0.1
# A whole tensor of activations has one scale.
_DYNAMIC_TOLERANCE = 0.3


@dataclass(frozen=True)
class PrecisionPlan:
    """How an exported model computes.

    Attributes:
        dtype: Element type of activations and of weights that are not quantized.
        quantize: Argument ``quantize`` of ``fxonnx.export``.
        tolerance: Two tokens are equally good if their logits differ by at most this part of the range of all logits.
    """

    dtype: torch.dtype
    quantize: Any
    tolerance: float


def read_precision(precision: str, quantize: Any, target: str) -> PrecisionPlan:
    """Validate the arguments ``precision`` and ``quantize``."""
    mode = quantize.activation_mode if isinstance(quantize, QuantizeConfig) else "float"
    if mode == "static":
        raise ArgumentError(
            "quantize",
            "language models for onnxruntime-genai have no activations with constant scales",
            hint='pass activations="dynamic", or leave it out: MatMulNBits rounds activations by itself',
        )
    check_choice("precision", precision, get_args(Precision))
    dtype = _DTYPES.get(precision)
    if dtype is None:
        # The kernels of CUDA for quantized weights and for attention compute in half precision.
        dtype = torch.float32 if target == "cpu" else torch.float16
        quantize = precision if quantize is None else quantize
    rounding = 0.0 if quantize is None else _DYNAMIC_TOLERANCE if mode == "dynamic" else _QUANTIZED_TOLERANCE
    return PrecisionPlan(dtype, quantize, max(_TOLERANCES[dtype], rounding))


def with_quantization(plan: PrecisionPlan, quantize: Any) -> PrecisionPlan:
    """Return the same precision with quantized weights."""
    return replace(plan, quantize=quantize, tolerance=max(plan.tolerance, _QUANTIZED_TOLERANCE))


def with_accuracy_level(plan: PrecisionPlan, level: int) -> PrecisionPlan:
    """Return the same precision with another accuracy level of the products with quantized weights."""
    if plan.quantize is None:
        hint = "pass precision='int4' or 'int8'"
        raise ArgumentError("accuracy_level", "the weights of the model are not quantized", hint=hint)
    if level not in (0, 1, 2, 3, 4):
        raise ArgumentError("accuracy_level", f"expected a number from 0 to 4, got {level!r}")
    config = plan.quantize if isinstance(plan.quantize, QuantizeConfig) else QuantizeConfig(plan.quantize)
    return replace(plan, quantize=replace(config, accuracy_level=level))


Recipe: TypeAlias = Literal["exact", "balanced", "fast", "prefill"]

# The inputs of attention, whose rounding changes the results most for their size.
_SENSITIVE = tuple(
    UsualName(f"*.{name}") for name in ("q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value", "Wqkv", "c_attn")
)
_SEARCHED = QuantizeConfig("int4", symmetric=False, rounding="search", embeddings="tied")

RECIPES: Mapping[Recipe, QuantizeConfig | None] = MappingProxyType(
    {
        "exact": None,
        "balanced": replace(_SEARCHED, block_size=32, bits=dict.fromkeys(_SENSITIVE, 8)),
        "fast": replace(_SEARCHED, block_size=128),
        "prefill": QuantizeConfig("int8", activations="dynamic", embeddings="tied"),
    }
)
"""Recipe to quantization. `benchmarks/RESULTS.md` has the speed and the quality of each."""

KL_LIMITS: Mapping[str, float] = MappingProxyType(
    {"fp32": 1e-3, "exact": 1e-3, "int8": 0.02, "prefill": 0.05, "balanced": 0.15, "fast": 0.35, "int4": 0.6}
)
"""Precision or recipe to the mean KL divergence to the original model, in nats, above which the export warns."""


def check_recipe(recipe: str, precision: str, quantize: Any) -> None:
    """Check the argument ``recipe``, and the arguments that it excludes."""
    check_choice("recipe", recipe, get_args(Recipe))
    if precision != "fp32" or quantize is not None:
        other = "precision" if precision != "fp32" else "quantize"
        raise ArgumentError("recipe", f"{recipe!r} includes the quantization, and excludes {other}", hint="pass one")


def config_of_recipe(recipe: Recipe, model: Any, tokenizer: Any) -> QuantizeConfig | None:
    """Return the quantization of a recipe for a language model."""
    config = RECIPES[recipe]
    if config is None:
        return None
    head = _head_of(model)
    if recipe == "prefill":
        # Of a prompt, only the last token has logits: these have no use for integer products, but for blocks.
        return replace(config, weights_only=(head,), block_size=32) if head else config
    bits = {**config.bits, head: 8} if head else config.bits
    importance = measured_importance(model, tokenizer) if has_weights(model) else {}
    return replace(config, bits=bits, importance=importance)


def config_of_precision(quantize: Any, target: str) -> QuantizeConfig:
    """Return the quantization of a decoder that "int4" or "int8" implies."""
    config = quantize if isinstance(quantize, QuantizeConfig) else QuantizeConfig(quantize)
    # Integer products have no blocks.
    is_blocked = config.block_size is None and config.activation_mode == "float"
    sizes = config.block_sizes
    if is_blocked and not sizes and config.dtype == "int8" and target == "cpu":
        # Activations are rounded in the same blocks. It takes 1 or 2 percent more bytes.
        sizes = dict.fromkeys(_SENSITIVE, 16)
    return replace(
        config,
        block_size=32 if is_blocked else config.block_size,
        block_sizes=sizes,
        embeddings="tied" if config.embeddings is None else config.embeddings,
    )


def _head_of(model: Any) -> str | None:
    """The name of the layer that computes the logits, if it is a module."""
    head = model.get_output_embeddings()
    return next((name for name, module in model.named_modules() if module is head), None) if head is not None else None


@dataclass(frozen=True)
class Variant:
    """The element types of one file.

    Attributes:
        name: The name, as ``dtype`` of transformers.js.
        suffix: The end of the file name.
        dtype: Element type of the computation; graph inputs and outputs are float32 except for caches.
        quantize: Quantization of the weights, if any.
        tolerance: Largest difference from eager torch, relative to the largest value; None for integers, whose
            difference is shown.
    """

    name: str
    suffix: str
    dtype: torch.dtype = torch.float32
    quantize: QuantizeConfig | None = None
    tolerance: float | None = None

    @property
    def searches(self) -> bool:
        """Whether the rounding of the weights depends on their importance."""
        return self.quantize is not None and self.quantize.rounding == "search"

    def for_inputs(self, importance: Mapping[str, torch.Tensor]) -> Variant:
        """Return the same element types with the importance of the input features of weights."""
        return self if self.quantize is None else replace(self, quantize=replace(self.quantize, importance=importance))


def importance_of(source: Source) -> dict[str, torch.Tensor]:
    """Measure the importance of features in a model of one text; nothing of other models."""
    model = source.model
    tokenizer = next((each for each in source.processors if hasattr(each, "convert_ids_to_tokens")), None)
    is_text = getattr(model, "main_input_name", "") == "input_ids" and not model.config.is_encoder_decoder
    return measured_importance(model, tokenizer) if tokenizer is not None and is_text and has_weights(model) else {}


_INT4 = QuantizeConfig("int4", symmetric=False, rounding="search", embeddings="int8")

VARIANTS: Mapping[str, Variant] = MappingProxyType(
    {
        variant.name: variant
        for variant in (
            Variant("fp32", "", tolerance=1e-3),
            Variant("fp16", "_fp16", torch.float16, tolerance=0.05),
            Variant("q8", "_quantized", quantize=QuantizeConfig("int8", activations="dynamic", embeddings="int8")),
            Variant("q4", "_q4", quantize=_INT4),
            Variant("q4f16", "_q4f16", torch.float16, _INT4),
        )
    }
)


def read_variants(dtype: Any) -> tuple[Variant, ...]:
    """Read the argument ``dtype``."""
    names = [name.strip() for name in dtype.split(",")] if isinstance(dtype, str) else [*dtype]
    for name in names:
        if name not in VARIANTS:
            expected = ", ".join(VARIANTS)
            raise ArgumentError(
                "dtype",
                f"expected names of {expected}, got {name!r}",
                hint=did_you_mean(name, VARIANTS, 'write dtype="q8", or ["fp32", "q4"] for several files'),
            )
    if not names:
        raise ArgumentError("dtype", "at least one is required")
    return tuple(VARIANTS[name] for name in dict.fromkeys(names))


_TOKENS = 640


def measured_importance(model: Any, tokenizer: Any) -> dict[str, torch.Tensor]:
    """Run a model of one text on a text, and return the mean square of each input feature of its layers."""
    found: dict[str, torch.Tensor] = {}

    def recording(name: str) -> Callable[[Any, tuple[Any, ...]], None]:
        def record(module: Any, arguments: tuple[Any, ...]) -> None:
            inputs = arguments[0] if arguments else None
            if (
                isinstance(inputs, torch.Tensor)
                and inputs.is_floating_point()
                and inputs.shape[-1] in module.weight.shape
            ):
                squares = inputs.detach().double().square().flatten(0, -2).mean(0).float()
                if bool(torch.isfinite(squares).all()):
                    found[f"{name}.weight"] = squares.cpu()

        return record

    with ExitStack() as hooks, torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(getattr(module, "weight", None), torch.nn.Parameter) and module.weight.dim() == 2:
                hooks.callback(module.register_forward_pre_hook(recording(name)).remove)
        model(tokens_of(MEASURED, model, tokenizer, _TOKENS))
    return found


MEASURED = """\
The kitchen window looks over a narrow yard where my neighbour keeps six hens. Every evening at about seven \
she comes out with a bowl of grain, and they run to her as if they had not eaten for a week. "You would think \
I starve them," she says, and laughs. Last spring a fox got in, and for some days there were only two left.

Question: What is the boiling point of water at sea level?
Answer: Water boils at 100 degrees Celsius (212 degrees Fahrenheit) at a pressure of one atmosphere. At higher \
altitudes the pressure is lower, and water boils at a lower temperature: in Denver, at 1,609 metres, it is \
about 95 degrees.

def average(values):
    if not values:
        raise ValueError("an empty list has no average")
    total = 0.0
    for value in values:
        total += value
    return total / len(values)

The treaty of 1648 ended thirty years of war in central Europe. Historians disagree about the number of dead, \
but in some regions more than half of the population had been lost to battle, hunger and disease. Trade \
recovered slowly; Amsterdam and London took the trade of the cities of the Rhine.

User: I would like to learn to play the guitar. How should I begin?
Assistant: That is a great idea! Here are some steps to get started:
1. Choose a guitar that is comfortable to hold. A classical guitar has softer strings.
2. Learn to tune it. Most beginners use a free app on their phone.
3. Practise three simple chords (G, C and D) for ten minutes every day.
4. Pick a song that you love and play it slowly, even if it sounds bad at first.

Photosynthesis converts light into chemical energy. In the first stage, pigments in the thylakoid membranes \
absorb light, split water and release oxygen; in the second, the enzyme rubisco fixes carbon dioxide into \
sugars. The overall reaction is 6 CO2 + 6 H2O -> C6H12O6 + 6 O2. Plants that live in hot and dry places have \
evolved other ways to collect carbon at night, when less water evaporates.

Dear Ms. Alvarez, thank you for your letter of March 3. We are sorry to hear that the parcel arrived damaged, \
and we will send a new one at our expense by Friday. Please keep the box, as the carrier may want to inspect \
it. If you have further questions, call us at any time between 9 a.m. and 5 p.m. Yours sincerely, Thomas Reed.

{"name": "oak table", "price": 249.5, "in_stock": true, "tags": ["furniture", "wood"], "size": {"width": 120}}

She had never seen so much snow. The train stood still in the middle of nowhere, and through the frosted glass \
the fields were white up to a line of black trees. Nobody in the carriage spoke. An old man took an orange out \
of his bag, peeled it with great care and offered half of it to the boy who sat across from him. Outside it \
was getting dark."""
"""The text by whose activations the importance of features is measured."""

VERIFIED = """\
The harbour had been quiet since the end of the summer. On most mornings only two boats left before sunrise, \
and the old men who mended nets on the quay knew the sound of each engine. When the ferry company announced \
that it would stop its service to the islands in November, nobody was surprised, but everybody was angry. The \
mayor called a meeting in the school, because the town hall was being repaired, and more than three hundred \
people came. They sat on chairs that were made for children and listened to a man from the capital, who showed \
them a chart with falling numbers of passengers. He said that the company had lost money for six years, and \
that the government could not pay the difference for ever. A teacher asked him whether he had ever been on the \
islands in winter. He had not. She told him that eleven of her pupils crossed the water every day, that the \
only doctor lived on the mainland, and that the last time the ferry had failed for a week, a woman had given \
birth in a fishing boat. The man wrote this down. After the meeting a group of fishermen, two nurses and the \
owner of the bakery stayed to talk. They had an idea which seemed simple at first: if each of the nine \
hundred households paid a small sum every month, they could buy a second-hand boat and run it themselves. The \
baker, who had studied economics before she took over the shop from her father, did the calculation on the \
back of an envelope. The fuel alone would cost more than they could collect. But if the boat also carried the \
mail, the bread and the fish, and if it did not sail empty in either direction, the sum was nearly right."""
"""Another text, by which the exported model is compared with the original."""


def tokens_of(text: str, model: Any, tokenizer: Any, most: int) -> torch.Tensor:
    """The first tokens of a text, int64 of shape (1, length), that the model has embeddings for."""
    config = model.config.get_text_config(decoder=True)
    longest = min(most, getattr(config, "max_position_embeddings", None) or most)
    ids = tokenizer(text, truncation=True, max_length=longest).input_ids
    tokens = torch.tensor([list(ids)], dtype=torch.int64, device=model.device)
    return tokens.clamp(max=config.vocab_size - 1)
