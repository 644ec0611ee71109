"""Attributes that torch.export can trace as buffers only: compressed sparse tensors, which have no strides."""

from __future__ import annotations

import torch

from ...inputs.preserve import Snapshot

__all__ = ["register_compressed_attributes"]

_COMPRESSED = frozenset({torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})


def register_compressed_attributes(snapshot: Snapshot) -> None:
    """Make buffers of the modules' attributes that are compressed sparse tensors; the snapshot restores them.

    Args:
        snapshot: The state of the model before the capture.
    """
    if not any(tensor.layout in _COMPRESSED for tensor in snapshot.tensors):
        return
    for owner, attributes in snapshot.attributes:
        if isinstance(owner, torch.nn.Module):
            for name, value in attributes.items():
                if isinstance(value, torch.Tensor) and value.layout in _COMPRESSED:
                    delattr(owner, name)
                    owner.register_buffer(name, value, persistent=False)
