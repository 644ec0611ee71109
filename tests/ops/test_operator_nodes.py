"""Nodes of single operators are at most torch.onnx's, whose exports are kept by the benchmark."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks._operator_reasons import REASONS
from benchmarks.operator_nodes import OPSET, PEER_RESULTS, SAMPLES, records_of, rows_of, setting_of

from .opinfo import entries

BY_NAME = {entry.full_name: entry for entry in entries()}
SHORT = (
    *("amax", "aminmax", "argmax", "argsort", "max.reduction_no_dim", "max.reduction_with_dim", "median", "msort"),
    *("norm.inf", "quantile", "scatter_reduce.amax", "sign", "signbit", "sort", "topk"),
    *("isfinite", "logit", "nn.functional.grid_sample", "nn.functional.celu", "nn.functional.cross_entropy"),
)


@pytest.mark.parametrize("name", SHORT)
def test_operator_has_at_most_the_nodes_of_torch_onnx(name: str) -> None:
    kept = json.loads(PEER_RESULTS.read_text())
    theirs = kept.get(setting_of(torch.__version__, OPSET, SAMPLES))
    if theirs is None:
        pytest.skip(f"no exports of torch {torch.__version__} are kept")
    found = records_of(BY_NAME[name], torch.float32, with_peer=False)
    assert not [record for record in found["ours"].values() if "error" in record]
    for row in rows_of(found["ours"], theirs[f"{name}-float32"]):
        assert row["nodes"] <= row["theirs"], row


def test_reasons_name_entries_of_the_database() -> None:
    assert set(REASONS) <= set(BY_NAME)
