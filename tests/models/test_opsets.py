"""The opset is a parameter from the first line on: a few models of different kinds at old and new ones."""

from __future__ import annotations

import pytest
import torch

import fxonnx

from ..hygiene import check_graph
from .zoo import CASES, Case

NAMES = ("mlp", "squeezenet1_1", "word_language_model_gru", "word_language_model_transformer")


@pytest.mark.parametrize("opset", [11, 13, 15, 17, 18, 19, 21, 22, 23, 24, 25, 26])
@pytest.mark.parametrize("case", [case for case in CASES if case.name in NAMES], ids=lambda case: case.name)
def test_opset(case: Case, opset: int) -> None:
    model, args, kwargs = case.example()
    program = fxonnx.export(
        model, args, kwargs=kwargs, dynamic_shapes=case.dynamic_shapes, opset_version=opset, verify=True
    )
    assert program.model.graph.opset_imports[""] == opset
    check_graph(program.model_proto)
    with torch.no_grad():
        rows = program.verify(*case.second_inputs())
    assert all(row.status == "ok" for row in rows)


def test_the_names_are_those_of_cases() -> None:
    assert set(NAMES) <= {case.name for case in CASES}
