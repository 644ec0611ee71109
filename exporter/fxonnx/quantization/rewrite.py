"""Weight-only quantization of a graph: MatMul, Gemm, Gather and MoE of weights."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import onnx_ir as ir
import torch

from fxonnx_translations._builder.builder import Builder, Unsupported
from fxonnx_translations._builder.dtypes import BFLOAT16, FLOAT, FLOAT16, to_torch_dtype
from fxonnx_translations._builder.initializers import DerivedTensor, TorchTensor, sources_of, storage_key

from .._quantize_config import QuantizeConfig, UsualName
from .._targets import TargetProfile
from ..errors import ArgumentError, did_you_mean
from .channel_weights import ChannelWeight
from .config import HALF_SCALES_OPSET, has_blocks
from .experts import EXPERT_WEIGHTS, expert_attributes, expert_block_size, expert_weights, inputs_of_qmoe, routers
from .quantization_report import QuantizedLayer
from .quantized_tensor import Layout, Part, QuantizedTensor
from .quantized_weight import WeightScheme, blocks_of
from .weights import HEAD_NAMES, Weight, has_name_of_head, keys_of_sources, matches, matches_any, stored_value

__all__ = ["MICROSOFT", "Choice", "WeightQuantizer"]

MICROSOFT = "com.microsoft"
_LEAST_COLUMNS = 16
"""Weights with fewer input features stay floating-point numbers: the scales would take most of the bytes."""
_PRODUCTS = frozenset({"columns", "matmul_nbits"})
"""Layouts of weights that are multiplied by activations."""
_SCALE_DTYPES = frozenset({FLOAT, FLOAT16, BFLOAT16})

Choice: TypeAlias = Literal["float", "int4", "int8"]
"""The element type of the weights of a layer."""


class WeightQuantizer:
    """Quantize the weights of products and embedding tables of one graph, in place; nothing is computed.

    Weights of 2 axes are quantized, if a MatMul or Gemm multiplies by them from the right, and the weights of MoE, an
    operator of ONNX Runtime. Convolutions, recurrent layers and weights of experts in loops are not. A weight has one
    value in the whole model: those with further uses, or multiplied by in both directions, are left as they are. The
    exception is a tied embedding, whose table may have another element type than the layer of the logits. In graphs
    without MatMulNBits, weights in the bodies of loops and branches are left: ONNX Runtime cannot load DequantizeLinear
    of an outer initializer there.

    Args:
        builder: The builder of the complete graph.
        config: Which weights to quantize, and how.
        parameter_names: The result of the function of this name.
        profile: The target: whether it has MatMulNBits and GatherBlockQuantized, and blocks of 8-bit weights.

    Attributes:
        layers: The quantized layers, in the order of the graph.
    """

    def __init__(
        self,
        builder: Builder,
        config: QuantizeConfig,
        parameter_names: Mapping[Any, tuple[str, ...]],
        profile: TargetProfile,
    ) -> None:
        self.builder = builder
        self.graph = builder.root.graph
        self.config = config
        self.parameter_names = parameter_names
        self.has_matmul_nbits = self.writes_matmul_nbits = profile.has_matmul_nbits
        self.has_gather_nbits = profile.has_gather_nbits
        self.adds_bias = profile.adds_bias
        self.int8_block_size = 128 if has_blocks(profile, builder.opset_version) else 0
        self.initializers: dict[Any, ir.Value] = {}
        self.known: dict[str, None] = {}
        self.layers: list[QuantizedLayer] = []

    def run(self) -> None:
        """Rewrite the graph.

        Raises:
            ArgumentError: If a pattern matches no weight, or no layer of the model computes logits for ``lm_head``.
        """
        nodes = list(ir.traversal.RecursiveGraphIterator(self.graph))
        products = [(node, weight) for node in nodes if (weight := self._weight_of_product(node)) is not None]
        tables = [(node, weight) for node in nodes if (weight := self._weight_of_gather(node)) is not None]
        experts = [(node, weights) for node in nodes if (weights := self._weights_of_experts(node)) is not None]
        convolutions = [(node, weight) for node in nodes if (weight := self._weight_of_convolution(node)) is not None]
        reused = self._reused(nodes, products, tables, [node for node, _ in experts])
        products = [(node, weight) for node, weight in products if reused.isdisjoint(weight.sources)]
        tables = [(node, weight) for node, weight in tables if reused.isdisjoint(weight.sources)]
        tied = {weight.key for _, weight in tables}
        heads = {weight.key for _, weight in products if weight.key in tied or has_name_of_head(weight)}
        single = (weight for _, weight in (*products, *convolutions, *tables))
        for weight in (*single, *(one for _, some in experts for one in some)):
            self.known.update(dict.fromkeys(weight.names))
        self._check_names(bool(heads))
        routing = {router for node, _ in experts for router in routers(node)}
        for node, weight in products:
            if node in routing and "*" in self.config.include:
                continue  # rounding would select other experts
            element = self._choice(weight, is_head=weight.key in heads)
            if element != "float":
                self._quantize_product(node, weight, element)
        for node, weight in convolutions:
            if self._is_selected(weight):
                self._quantize_convolution(node, weight)
        for node, weights in experts:
            if all(self._is_selected(weight) and reused.isdisjoint(weight.sources) for weight in weights):
                self._quantize_experts(node, weights)
        # After the products, whose codes a tied table shares.
        for node, weight in tables:
            if self._is_selected(weight) and (element := self._element_of_table(weight, heads)) != "float":
                self._quantize_gather(node, weight, element)

    def _reused(
        self,
        nodes: Sequence[ir.Node],
        products: Sequence[tuple[ir.Node, Weight]],
        tables: Sequence[tuple[ir.Node, Weight]],
        experts: Sequence[ir.Node],
    ) -> set[Any]:
        """Keys of the parameters with further uses, or in products in different forms."""
        forms: dict[Any, set[Any]] = {}
        for _, weight in products:
            for source in weight.sources:
                forms.setdefault(source, set()).add((weight.key, weight.is_transposed))
        reused = {source for source, several in forms.items() if len(several) > 1}
        positions: dict[ir.Node, Sequence[int]] = dict.fromkeys(experts, EXPERT_WEIGHTS)
        positions.update({node: (0,) for node, _ in tables})
        positions.update({node: (1,) for node, _ in products})
        values = [
            value
            for node in nodes
            for position, value in enumerate(node.inputs)
            if node.op_type not in ("Transpose", "Cast")
            and position not in positions.get(node, ())
            and value is not None
        ]
        for value in (*values, *self.graph.outputs):
            stored, _ = stored_value(value)
            reused.update(keys_of_sources(stored.const_value))
        return reused

    def _check_names(self, has_head: bool) -> None:
        choices = [(pattern, "include") for pattern in self.config.include if pattern != "*"]
        for name in ("exclude", "block_sizes", "bits", "weights_only"):
            choices += [(pattern, name) for pattern in getattr(self.config, name)]
        modules = [name.rpartition(".")[0] or name for name in self.known]
        for pattern, name in choices:
            if not isinstance(pattern, UsualName) and not matches_any(self.known, pattern):
                raise ArgumentError(
                    "quantize",
                    f"{name}: {pattern!r} matches no linear layer or embedding",
                    hint=did_you_mean(pattern, modules, f"the layers are {', '.join(map(repr, modules[:5]))}")
                    if modules
                    else None,
                )
        if self.config.lm_head is not None and not has_head:
            names = ", ".join(sorted(HEAD_NAMES))
            raise ArgumentError(
                "quantize",
                f"lm_head: the model has no layer of the name {names}, or with the weight of an embedding",
                hint="name the layer in include or exclude",
            )

    def _choice(self, weight: Weight, *, is_head: bool) -> Choice:
        if not self._is_selected(weight):
            return "float"
        return self.config.lm_head if is_head and self.config.lm_head is not None else self._dtype(weight)

    def _element_of_table(self, weight: Weight, heads: Collection[Any]) -> Choice:
        if self.config.embeddings != "tied":
            return self.config.embeddings or "float"
        return self._choice(weight, is_head=True) if weight.key in heads else "int8"

    def _dtype(self, weight: Weight) -> Literal["int4", "int8"]:
        """The element type of a weight: the one of the first pattern that matches, or of all."""
        bits = next((bits for pattern, bits in self.config.bits.items() if matches_any(weight.names, pattern)), None)
        return self.config.dtype if bits is None else "int4" if bits == 4 else "int8"

    def _is_selected(self, weight: Weight) -> bool:
        """Whether all parameters are included, and none is excluded, under one of their names."""
        is_included = all(matches(tied, self.config.include) for tied in weight.tied_names)
        return is_included and not matches(weight.names, self.config.exclude)

    # ---- weights

    def _weight_of_product(self, node: ir.Node) -> Weight | None:
        if node.domain or node.op_type not in ("MatMul", "Gemm"):
            return None
        if node.graph is not self.graph and not self.has_matmul_nbits:
            return None
        activations, value = node.inputs[:2]
        if activations is None or value is None or self._rank(activations) < 2:
            return None
        attributes = node.attributes
        is_scaled = any(name in attributes and attributes[name].as_float() != 1 for name in ("alpha", "beta"))
        if is_scaled or ("transA" in attributes and attributes["transA"].as_int()) or value.dtype not in _SCALE_DTYPES:
            return None
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if self.has_matmul_nbits and bias is not None and (bias.shape is None or len(bias.shape) != 1):
            return None
        found = self._stored(value, "transB" in attributes and bool(attributes["transB"].as_int()))
        return None if found is None or found.in_features < _LEAST_COLUMNS else found

    def _weight_of_gather(self, node: ir.Node) -> Weight | None:
        if node.domain or node.op_type != "Gather" or ("axis" in node.attributes and node.attributes["axis"].as_int()):
            return None
        value = node.inputs[0]
        if value is None or value.dtype not in _SCALE_DTYPES or str(value.name) not in self.graph.initializers:
            return None
        found = self._stored(value, True)
        return None if found is None or found.is_transposed or found.in_features < _LEAST_COLUMNS else found

    def _weight_of_convolution(self, node: ir.Node) -> Weight | None:
        """The kernel of a convolution that is quantized: none, if only weights are."""
        return None

    def _quantize_convolution(self, node: ir.Node, weight: Weight) -> None:
        """Quantize a convolution that ``_weight_of_convolution`` has found."""

    def _weights_of_experts(self, node: ir.Node) -> list[Weight] | None:
        """The weights of MoE; None if one of them is not a parameter."""
        if (node.domain, node.op_type) != (MICROSOFT, "MoE") or not self.has_matmul_nbits:
            return None
        found = []
        for value in expert_weights(node):
            tensor: Any = value.const_value
            is_stored = isinstance(tensor, (TorchTensor, DerivedTensor)) and value not in self.graph.inputs
            names = self._names_of_parameters(tensor) if is_stored and tensor.dtype in (FLOAT, FLOAT16) else None
            if not names:
                return None
            count, rows, columns = (int(size) for size in tensor.shape.numpy())
            found.append(Weight(tensor, False, names, count * rows, columns))
        return found

    def _names_of_parameters(self, tensor: Any) -> tuple[tuple[str, ...], ...] | None:
        """The names of each parameter that a tensor is or is computed from; None if it has other sources."""
        names = [self.parameter_names.get(key) for key in keys_of_sources(tensor)]
        return None if None in names else tuple(dict.fromkeys(found for found in names if found is not None))

    def _stored(self, value: ir.Value, rows_are_outputs: bool) -> Weight | None:
        """Find the parameters that a value consists of, through transposes and Casts."""
        stored, is_transposed = stored_value(value)
        rows_are_outputs ^= is_transposed
        tensor: Any = stored.const_value
        if stored in self.graph.inputs or not isinstance(tensor, (TorchTensor, DerivedTensor)):
            return None
        if tensor.dtype not in _SCALE_DTYPES or len(tensor.shape) != 2:
            return None
        if isinstance(tensor, DerivedTensor) and tensor.recipe is torch.t:
            (tensor,) = tensor.sources
            rows_are_outputs = not rows_are_outputs
        names = self._names_of_parameters(tensor)
        first, second = (int(size) for size in tensor.shape.numpy())
        shape = (first, second) if rows_are_outputs else (second, first)
        return Weight(tensor, not rows_are_outputs, names, *shape) if names and all(shape) else None

    def _rank(self, value: ir.Value) -> int:
        """The number of axes; 0 if it is not known."""
        try:
            return len(self.builder.dims(value))
        except Unsupported:
            return 0

    # ---- operators

    def _record(self, node: ir.Node, weights: Sequence[Weight], parts: Iterable[ir.Value | None], bits: int) -> None:
        """Add a layer to the list; to be called before its operator is replaced."""
        first, output = weights[0].names[0], node.outputs[0]
        self.layers.append(
            QuantizedLayer(
                name=first.rpartition(".")[0] or first,
                op_type=node.op_type,
                dtype=f"int{bits}",
                output=output,
                float_output=str(output.name),
                float_bytes=sum(weight.tensor.nbytes for weight in weights),
                initializers=tuple(part for part in parts if part is not None),
            )
        )

    def _scheme(self, weight: Weight, choice: Choice, dtype: ir.DataType) -> WeightScheme:
        sizes = (size for pattern, size in self.config.block_sizes.items() if matches_any(weight.names, pattern))
        size = next(sizes, self.config.block_size)
        bits = 4 if choice == "int4" else 8
        if size is None:
            size = 32 if bits == 4 else self.int8_block_size
        if size:
            size = _fitting_size(size, weight.in_features)
        searches = self.config.rounding == "search"
        return WeightScheme(
            bits, size, self.config.symmetric, to_torch_dtype(dtype), self.writes_matmul_nbits, searches
        )

    def _initializers(self, weight: Weight, scheme: WeightScheme, layout: Layout) -> list[ir.Value | None]:
        """Codes, scales and, unless the scheme is symmetric, zero points; equal ones are shared."""
        parts: list[ir.Value | None] = [self._initializer(weight, scheme, layout, part) for part in ("codes", "scales")]
        return [*parts, None if scheme.symmetric else self._initializer(weight, scheme, layout, "zero_points")]

    def _initializer(self, weight: Weight, scheme: WeightScheme, layout: Layout, part: Part) -> ir.Value:
        # Scales and zero points of both operators of ONNX Runtime are the same.
        kind = "nbits" if layout.endswith("nbits") and part not in ("codes", "offsets") else layout
        key = (weight.key, weight.is_transposed, scheme, kind, part)
        is_permuted = layout in _PRODUCTS and self._is_permuted(weight)
        if key not in self.initializers:
            suffix = f"int{scheme.bits}" if part == "codes" else part
            name = self.builder.names.unique(f"{weight.tensor.name}::{suffix}")
            tensor = QuantizedTensor(
                *(name, weight.tensor, scheme, part, layout),
                is_transposed=weight.is_transposed,
                is_permuted=is_permuted,
                importance=self._importance(weight) if scheme.searches_scales else None,
            )
            self.initializers[key] = self._registered(tensor, suffix)
        return self.initializers[key]

    def _importance(self, weight: Weight) -> torch.Tensor | None:
        """The importance of the input features; the parameters that one product packs have the same ones."""
        found = (self.config.importance.get(name) for name in weight.names)
        factors = next((each for each in found if each is not None), None)
        return None if factors is None or len(factors) != weight.in_features else factors

    def _channel_parts(self, weight: Weight, channels: ChannelWeight, key: Any = ()) -> tuple[ir.Value, ir.Value]:
        """Codes and scales of a weight with one scale for each output; tied weights share them, if the key is equal."""
        keys = [(weight.key, weight.is_transposed, "channels", key, part) for part in ("codes", "scales")]
        if keys[0] not in self.initializers:
            names = [self.builder.names.unique(f"{weight.tensor.name}::{suffix}") for suffix in ("int8", "scales")]
            tensors = (channels.codes(names[0]), channels.scales(names[1]))
            for one, tensor, recipe in zip(keys, tensors, ("int8", "scales"), strict=True):
                self.initializers[one] = self._registered(tensor, recipe)
        return self.initializers[keys[0]], self.initializers[keys[1]]

    def _names_of_kernel(self, tensor: TorchTensor | DerivedTensor) -> tuple[tuple[str, ...], ...]:
        """The names of the parameters with the axes of a kernel, which batch norm may have been folded into."""
        sources = [source for source in sources_of(tensor) if len(source.shape) == len(tensor.shape)]
        names = [self.parameter_names.get(storage_key(source.raw, str(source.name))) for source in sources]
        return tuple(dict.fromkeys(found for found in names if found is not None))

    def _registered(self, tensor: DerivedTensor, recipe: str) -> ir.Value:
        """Add an initializer that is derived from weights, with its provenance."""
        value = self.builder.register_weight(str(tensor.name), tensor)
        sources = dict.fromkeys(str(source.name) for source in sources_of(tensor))
        value.metadata_props["pkg.fxonnx.derived_from"] = ", ".join(sources)
        value.metadata_props["pkg.fxonnx.recipe"] = recipe
        return value

    def _quantize_product(self, node: ir.Node, weight: Weight, choice: Choice) -> None:
        value = node.inputs[1]
        if value is None or value.dtype is None:
            return
        scheme = self._scheme(weight, choice, value.dtype)
        if self._is_permuted(weight):
            layout: Layout = "matmul_nbits" if self.writes_matmul_nbits else "columns"
            self._permute_inputs(node, self._initializer(weight, scheme, layout, "order"), value.dtype)
        if self.writes_matmul_nbits:
            self._to_matmul_nbits(node, weight, scheme)
            return
        self._check_scale_dtype(value.dtype)
        initializers = self._initializers(weight, scheme, "columns")
        self._record(node, [weight], initializers, scheme.bits)
        inputs = [given for given in initializers if given is not None]
        attributes: dict[str, Any] = {"axis": 0, "block_size": scheme.block_size} if scheme.block_size else {"axis": 1}
        shape = (weight.in_features, weight.out_features)
        dequantized = self._insert(node, "DequantizeLinear", inputs, attributes, value.dtype, shape)
        node.replace_input_with(1, dequantized)
        node.attributes.pop("transB", None)

    def _is_permuted(self, weight: Weight) -> bool:
        return matches(weight.names, self.config.permuted)

    def _permute_inputs(self, node: ir.Node, order: ir.Value, dtype: ir.DataType) -> None:
        """Select the inputs of a product in the order of the weight's input features."""
        activations = node.inputs[0]
        shape, axis = (None, 1) if activations is None else (activations.shape, self._rank(activations) - 1)
        permuted = self._insert(node, "Gather", [activations, order], {"axis": axis}, dtype, shape)
        node.replace_input_with(0, permuted)

    def _check_scale_dtype(self, dtype: ir.DataType) -> None:
        opset = self.builder.opset_version
        if dtype != FLOAT and opset < HALF_SCALES_OPSET:
            raise ArgumentError(
                "quantize",
                f"weights of {dtype.name.lower()} require opset {HALF_SCALES_OPSET}, got opset_version={opset}",
                hint=f"pass opset_version={HALF_SCALES_OPSET} or newer, or leave it out",
            )

    def _attributes(self, weight: Weight, scheme: WeightScheme) -> dict[str, Any]:
        """The attributes of MatMulNBits."""
        return {
            "K": weight.in_features,
            "N": weight.out_features,
            "bits": scheme.bits,
            "block_size": scheme.block_size,
            "accuracy_level": self.config.accuracy_level,
        }

    def _to_matmul_nbits(self, node: ir.Node, weight: Weight, scheme: WeightScheme) -> None:
        attributes = self._attributes(weight, scheme)
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        initializers = self._initializers(weight, scheme, "matmul_nbits")
        self._record(node, [weight], initializers, scheme.bits)
        inputs = [node.inputs[0], *initializers]
        if bias is None or self.adds_bias:
            self._become(node, "MatMulNBits", [*inputs, None, bias], attributes)
            return
        dtype, shape = weight.tensor.dtype, node.outputs[0].shape
        product = self._insert(node, "MatMulNBits", inputs, attributes, dtype, shape, MICROSOFT)
        self._become(node, "Add", [product, bias], {}, "")

    def _quantize_experts(self, node: ir.Node, weights: Sequence[Weight]) -> None:
        dtype = weights[0].tensor.dtype
        scheme = self._scheme(weights[0], self._dtype(weights[0]), dtype)
        size = expert_block_size(scheme.block_size, [weight.in_features for weight in weights])
        if size is None:
            return
        scheme = replace(scheme, block_size=size)
        quantized = [self._initializers(weight, scheme, "experts") for weight in weights]
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        self._record(node, weights, (part for parts in quantized for part in parts), scheme.bits)
        attributes |= expert_attributes(scheme.bits, size, self.config.accuracy_level)
        self._become(node, "QMoE", inputs_of_qmoe(node, quantized), attributes)

    def _quantize_gather(self, node: ir.Node, weight: Weight, choice: Choice) -> None:
        data, indices = node.inputs
        if data is None or data.dtype is None:
            return
        if not self.has_gather_nbits:
            self._gather_rows(node, weight, data.dtype)
            return
        # Without a kernel for the product, there is none for the table in this type either.
        dtype = FLOAT if data.dtype in self.builder.missing_kernels.get("MatMul", ()) else data.dtype
        scheme = self._scheme(weight, choice, dtype)
        codes, scales, points = self._initializers(weight, scheme, "gather_nbits")
        self._record(node, [weight], (codes, scales, points), scheme.bits)
        shared = self.initializers.get((weight.key, weight.is_transposed, scheme, "matmul_nbits", "codes"))
        if shared is not None and codes is not None and not self._is_permuted(weight):
            # The same bytes in another shape.
            matrix = self._constant([weight.out_features, -1], ir.DataType.INT64)
            codes = self._insert(node, "Reshape", [shared, matrix], {}, ir.DataType.UINT8, codes.shape)
        attributes = {"bits": scheme.bits, "block_size": scheme.block_size, "gather_axis": 0, "quantize_axis": 1}
        inputs = [codes, indices, scales, points]
        count, size = blocks_of(weight.in_features, scheme.block_size)
        is_padded = count * size != weight.in_features
        if dtype == data.dtype and not is_padded:
            self._become(node, "GatherBlockQuantized", inputs, attributes)
            return
        dims = node.outputs[0].shape
        padded = None if dims is None else [*dims[:-1], count * size]
        rows = self._insert(node, "GatherBlockQuantized", inputs, attributes, dtype, padded, MICROSOFT)
        if is_padded:
            # The last block of a row is completed with bytes without a meaning.
            ends = [self._constant([number], ir.DataType.INT64) for number in (0, weight.in_features, -1)]
            if dtype == data.dtype:
                self._become(node, "Slice", [rows, *ends], {}, "")
                return
            rows = self._insert(node, "Slice", [rows, *ends], {}, dtype, dims)
        self._become(node, "Cast", [rows], {"to": data.dtype.value}, "")

    def _gather_rows(self, node: ir.Node, weight: Weight, dtype: ir.DataType) -> None:
        """Gather codes and scales, and multiply them: DequantizeLinear would compute the whole table in every call."""
        scheme = WeightScheme(8, 0, True, torch.float32)
        codes, scales, _ = self._initializers(weight, scheme, "rows")
        self._record(node, [weight], (codes, scales), scheme.bits)
        indices, output = node.inputs[1], node.outputs[0]
        shape = output.shape
        gathered = self._insert(node, "Gather", [codes, indices], {"axis": 0}, ir.DataType.INT8, shape)
        factors = self._insert(
            node, "Gather", [scales, indices], {"axis": 0}, FLOAT, None if shape is None else [*shape[:-1], 1]
        )
        numbers = self._insert(node, "Cast", [gathered], {"to": FLOAT.value}, FLOAT, shape)
        if dtype == FLOAT:
            self._become(node, "Mul", [numbers, factors], {}, domain="")
            return
        product = self._insert(node, "Mul", [numbers, factors], {}, FLOAT, shape)
        self._become(node, "Cast", [product], {"to": dtype.value}, domain="")

    def _constant(self, value: Any, dtype: ir.DataType) -> ir.Value:
        """The initializer of a literal, which the graph no longer has if nothing used it."""
        found = self.builder.constant(value, dtype)
        if str(found.name) not in self.graph.initializers:
            self.graph.register_initializer(found)
        return found

    def _insert(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        dtype: ir.DataType,
        shape: Any,
        domain: str = "",
    ) -> ir.Value:
        """Insert a node with one output, as a part of the operator that another node belongs to."""
        output = ir.Value(
            name=self.builder.names.helper(),
            type=ir.TensorType(dtype),
            shape=None if shape is None else ir.Shape(shape),
        )
        given = _without_trailing_none(inputs)
        metadata = dict(before.metadata_props)
        node = ir.node(op_type, given, attributes, domain=domain, outputs=[output], metadata_props=metadata)
        node.meta.update(before.meta)
        if before.graph is not None:
            before.graph.insert_before(before, node)
        self._import(domain)
        return output

    def _become(
        self,
        node: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        domain: str = MICROSOFT,
    ) -> None:
        """Change the operator of a node, whose output keeps its name and metadata."""
        given = _without_trailing_none(inputs)
        node.resize_inputs(len(given))
        for index, value in enumerate(given):
            node.replace_input_with(index, value)
        node.op_type, node.domain = op_type, domain
        node.attributes.clear()
        node.attributes.update(
            {name: ir.convenience.convert_attribute(name, value) for name, value in attributes.items()}
        )
        self._import(domain)

    def _import(self, domain: str) -> None:
        if domain:
            self.graph.opset_imports.setdefault(domain, 1)


def _fitting_size(size: int, columns: int) -> int:
    """The largest size of at least 32 that divides a row; otherwise the given one, up to the length of the row.

    MatMulNBits completes the last block of a row with bytes without a meaning, which take space and time.
    """
    dividing = columns & -columns
    return dividing if 32 <= dividing < size else max(16, min(size, 1 << (columns - 1).bit_length()))


def _without_trailing_none(inputs: Sequence[ir.Value | None]) -> list[ir.Value | None]:
    given = list(inputs)
    while given and given[-1] is None:
        given.pop()
    return given
