"""Proof of a capture: what departs from plain torch.export is compared with the model itself before the export ends."""

from __future__ import annotations

from .assumed_limits import confirm_assumed_limits, confirmed_limits, fails_outside
from .data_edges import confirm_data_edges
from .prove import prove
from .record import PROOF_KEY, Proof, ProofRun, unproved_for_untested
from .variations import repeated_inputs

__all__ = [
    "PROOF_KEY",
    "Proof",
    "ProofRun",
    "confirm_assumed_limits",
    "confirm_data_edges",
    "confirmed_limits",
    "fails_outside",
    "prove",
    "repeated_inputs",
    "unproved_for_untested",
]
