"""TorchScript: loops over a dynamic number of steps become one step in the body of a Scan; lists and dicts, and their mutations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxonnx

# TorchScript requires the loops that ruff would write as comprehensions.
# ruff: noqa: PERF401


class Stacked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows: list[Tensor] = []
        for i in range(x.size(0)):
            rows.append(x[i] * i)
        return torch.stack(rows, 1)


class Recurrence(nn.Module):
    """Results of every step of a cell, and its last states."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.output = nn.LSTMCell(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor):  # type: ignore[no-untyped-def]
        h, c = torch.zeros(2, 4), torch.zeros(2, 4)
        results: list[Tensor] = []
        for i in range(x.size(0)):
            h, c = self.cell(x[i].expand(2, 3), (h, c))
            results.append(self.output(h))
        return torch.stack(results), h, c


class TwoLists(nn.Module):
    """Two lists, concatenated, indexed and counted."""

    def forward(self, x: Tensor):  # type: ignore[no-untyped-def]
        rows: list[Tensor] = []
        sums: list[Tensor] = []
        state = x[0] * 0
        for i in range(x.size(0)):
            state = state * 0.5 + x[i]
            rows.append(state)
            sums.append(x[i].sum())
        return torch.cat(rows, -1), rows[-1] + rows[0], torch.stack(sums) * len(rows)


class Backward(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows: list[Tensor] = []
        for i in range(x.size(0) - 1, -1, -1):
            rows.append(x[i])
        return torch.stack(rows)


class EverySecond(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows: list[Tensor] = []
        for i in range(0, x.size(0), 2):
            rows.append(x[i])
        return torch.stack(rows)


class OverTensor(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows: list[Tensor] = []
        for row in x:
            rows.append(row.cumsum(0))
        return torch.stack(rows)


class OverList(nn.Module):
    """A loop over the elements of a list of dynamic length, which carries a tensor only."""

    def forward(self, x: Tensor) -> Tensor:
        rows: list[Tensor] = []
        for i in range(x.size(0)):
            rows.append(x[i] * 2)
        total = torch.zeros(3)
        for row in rows:
            total = total * 0.5 + row
        return total


class Branches(nn.Module):
    """A branch in the body, and a branch that reads the list."""

    def forward(self, x: Tensor) -> Tensor:
        rows: list[Tensor] = []
        for i in range(x.size(0)):
            y = x[i] if i % 2 == 0 else -x[i]
            rows.append(y)
        last = rows[0] * 2 if bool(x.sum() > 0) else rows[-1] * 3
        return torch.stack(rows) + last


class Nested(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows: list[Tensor] = []
        for i in range(x.size(0)):
            columns: list[Tensor] = []
            for j in range(x.size(1)):
                columns.append(x[i, j] * (i + j))
            rows.append(torch.stack(columns))
        return torch.stack(rows)


class WritesBack(nn.Module):
    """An element that is modified after it was appended."""

    def forward(self, x: Tensor):  # type: ignore[no-untyped-def]
        state = torch.zeros(3)
        rows: list[Tensor] = []
        for i in range(x.size(0)):
            state = state * 1.5
            rows.append(state)
            state += x[i]
        return torch.stack(rows), state


LOOPS = [
    Stacked,
    Recurrence,
    TwoLists,
    Backward,
    EverySecond,
    OverTensor,
    OverList,
    Branches,
    Nested,
    WritesBack,
]


@pytest.mark.parametrize("opset", [13, 18, 20])
@pytest.mark.parametrize("model", LOOPS)
def test_a_loop(model: type[nn.Module], opset: int) -> None:
    scripted = torch.jit.script(model().eval())
    program = fxonnx.export(scripted, (torch.randn(3, 3),), dynamic_shapes=({0: "n"},), opset_version=opset)
    assert "Scan" in [node.op_type for node in program.model.graph]
    for count in (3, 1, 2, 7):
        x = torch.randn(count, 3)
        with torch.no_grad():
            expected = torch.utils._pytree.tree_leaves(scripted(x))
        for ours, theirs in zip(program(x), expected, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_nodes_do_not_grow_with_the_length() -> None:
    scripted = torch.jit.script(Recurrence().eval())
    sizes = {
        length: len(fxonnx.export(scripted, (torch.randn(length, 3),), dynamic_shapes=({0: "n"},)).model.graph)
        for length in (4, 64)
    }
    assert sizes[4] == sizes[64]


class OverHits(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        hits = x.nonzero()
        total = torch.zeros(2)
        for i in range(hits.size(0)):
            total = total * 0.5 + hits[i]
        return total


class CountedHits(nn.Module):
    """A number carried by a loop over an unbacked number of steps."""

    def forward(self, x: Tensor) -> Tensor:
        hits = x.nonzero()
        count = 0
        for i in range(hits.size(0)):
            count += int(hits[i, 1]) + i
        return x * count


@pytest.mark.parametrize("opset", [13, 18, 20])
@pytest.mark.parametrize("model", [OverHits, CountedHits])
def test_an_unbacked_number_of_steps(model: type[nn.Module], opset: int) -> None:
    scripted = torch.jit.script(model().eval())
    examples = [torch.tensor(rows) for rows in ([[1.0, 0, 2]], [[0.0, 0, 0]], [[0.0, 3, 0]], [[1.0, 2, 3], [4, 0, 5]])]
    program = fxonnx.export(scripted, (examples[0],), dynamic_shapes=({0: "n"},), opset_version=opset)
    assert "Loop" in [node.op_type for node in program.model.graph]
    for x in examples:
        torch.testing.assert_close(program(x)[0], scripted(x))


class Growing(nn.Module):
    """A carried tensor that grows."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x[:1]
        for i in range(x.size(0)):
            rows = torch.cat([rows, x[i : i + 1]])
        return rows


class Unequal(nn.Module):
    """Elements of different shapes."""

    def forward(self, x: Tensor) -> Tensor:
        parts: list[Tensor] = []
        for i in range(x.size(0)):
            parts.append(x[:i])
        return torch.cat(parts)


class Returned(nn.Module):
    """A list that is returned."""

    def forward(self, x: Tensor) -> list[Tensor]:
        rows: list[Tensor] = []
        for i in range(x.size(0)):
            rows.append(x[i])
        return rows


class Written(nn.Module):
    """A buffer that is written in place."""

    def forward(self, x: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        for i in range(x.size(0)):
            result[i] = x[i] * 2
        return result


class Counted(nn.Module):
    """A number that becomes a size."""

    def forward(self, x: Tensor) -> Tensor:
        count = 0
        for _ in range(x.size(0)):
            count += 2
        return torch.ones(count, 2)


class NotEmpty(nn.Module):
    """A list that has an element before the loop."""

    def forward(self, x: Tensor) -> Tensor:
        rows = [x[0] * 0]
        for i in range(x.size(0)):
            rows.append(x[i])
        return torch.stack(rows)


@pytest.mark.parametrize("model", [Growing, Unequal, Returned, Written, Counted, NotEmpty])
def test_other_loops_are_unrolled(model: type[nn.Module]) -> None:
    scripted = torch.jit.script(model().eval())
    x = torch.randn(3, 3)
    with pytest.raises(fxonnx.CaptureError, match="x axis 0, 'n', is always 3"):
        fxonnx.export(scripted, (x,), dynamic_shapes=({0: "n"},))
    program = fxonnx.export(scripted, (x,))
    assert "Scan" not in [node.op_type for node in program.model.graph]
    expected = torch.utils._pytree.tree_leaves(scripted(x))
    for ours, theirs in zip(program(x), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


# Lists and dicts in TorchScript: nested containers, and every operator that mutates one.


class ListsOfLists(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows: list[list[Tensor]] = []
        for i in range(3):
            row: list[Tensor] = []
            for j in range(2):
                row.append(x + i * j)
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
            rows.append([x[:, i], x[:, i] * 2])
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
