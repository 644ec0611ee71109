"""Lists and dicts in TorchScript: nested containers, and every operator that mutates one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxonnx
from fxonnx import CaptureError


class ListsOfLists(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows: list[list[Tensor]] = []
        for i in range(3):
            row: list[Tensor] = []
            for j in range(2):
                row.append(x + i * j)  # noqa: PERF401 - the append is tested
            rows.append(row)
        rows[0].append(x * 7)
        del rows[1]
        last = rows.pop()
        first = rows[0].pop(0)
        del rows[0][0]
        rows.insert(0, last)
        rows[0][1] = x - 1
        return rows[0][0] + rows[0][1] + rows[1][0] + first + last[0] + len(rows) + len(rows[1])


class ListsOfNumbers(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows: list[list[int]] = [[1, 2, 3], [3]]
        rows[0].append(x.size(0))
        rows.append([5])
        del rows[0][0]
        head = rows.pop(0)
        rows[0] += [7]
        total = 0
        for row in rows:
            for item in row:
                total += item
        return x * total + head[0] * 10 + len(head)


class UnrolledRows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows: list[list[Tensor]] = []
        for i in range(x.size(1)):
            rows.append([x[:, i], x[:, i] * 2])  # noqa: PERF401 - the append is tested
        if x.size(1) > 2:
            rows.pop()
        del rows[0][0]
        return rows[0][0] + rows[1][1]


class InPlaceLists(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        items = [4, 1, 3]
        items += [1]
        items.sort()
        items.remove(3)
        twice = items.copy()
        twice *= 2
        items.clear()
        items.extend([9, 8])
        items.reverse()
        found = twice.index(4) + twice.count(1) + sum(twice) + max(items)
        parts = [x, x + 1]
        parts += [x * 2]
        parts.reverse()
        ordered = sorted([3.0, 2.0])
        if any([0, 1]) and not all([0, 1]):
            found += 1000
        return parts[0] * found + items[0] * ordered[0]


class Dicts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        sizes: dict[str, int] = {"a": 3}
        sizes["b"] = 4
        sizes.update({"c": 50})
        del sizes["a"]
        parts: dict[str, Tensor] = {"u": x}
        parts.update({"v": x + 1})
        kept = parts.setdefault("w", x * 3)
        parts["u"] = parts["u"] - 2
        missing = parts.get("z")
        total = 0
        for key, size in sizes.items():
            total += size + len(key)
        copied = parts.copy()
        parts.clear()
        if missing is not None:
            total += 1000
        return kept + copied["u"] * total + copied.pop("v") + len(copied) + len(parts)


@pytest.mark.parametrize("model", [ListsOfLists, ListsOfNumbers, UnrolledRows, InPlaceLists, Dicts])
def test_a_container(model: type[nn.Module]) -> None:
    scripted = torch.jit.script(model().eval())
    program = fxonnx.export(scripted, (torch.rand(2, 3),), dynamic_shapes=({0: "n"},))
    for size in (2, 1, 5):
        x = torch.rand(size, 3)
        torch.testing.assert_close(program(x)[0], scripted(x))


def test_an_operator_that_mutates_a_list_never_runs_on_a_copy() -> None:
    class Popped(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            sizes: dict[str, int] = {"a": 3, "b": 4}
            key, size = sizes.popitem()
            return x + size + len(key)

    with pytest.raises(CaptureError, match="aten::popitem has no equivalent in ONNX"):
        fxonnx.export(torch.jit.script(Popped()).eval(), (torch.rand(2),))


def test_a_side_effect_in_a_data_dependent_branch_is_rejected() -> None:
    class Cleared(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            parts = [x]
            if bool(x.sum() > 0):
                parts += [x]
            return torch.stack(parts)

    with pytest.raises(CaptureError, match="aten::add_ mutates a value from outside of a data-dependent branch"):
        fxonnx.export(torch.jit.script(Cleared()).eval(), (torch.rand(2),))
