"""Branches whose other side only raises an error, found in byte code: ``exec`` leaves no source of a function."""

from __future__ import annotations

import dis
from types import FrameType

from ..evaluating_code import Asking

__all__ = ["answer_without_raise"]

_JUMP_IF = ("POP_JUMP_IF_", "POP_JUMP_FORWARD_IF_")
# Without an effect but on the stack, and calls and names for the error.
_PLAIN = (
    *("LOAD_", "CALL", "BUILD_", "FORMAT_", "CONVERT_VALUE", "PUSH_NULL", "PRECALL", "KW_NAMES", "COPY", "SWAP"),
    *("BINARY_", "COMPARE_OP", "STORE_FAST", "RESUME", "NOP", "CACHE", "EXTENDED_ARG", "ROT_", "NOT_TAKEN"),
)


def answer_without_raise(frame: FrameType | Asking) -> bool | None:
    """The truth value with which execution goes on at the jump that a frame executes; None if both or none raise."""
    instructions = list(dis.get_instructions(frame.f_code))
    place = next((index for index, one in enumerate(instructions) if one.offset == frame.f_lasti), None)
    if place is None:
        return None
    while place < len(instructions) and instructions[place].opname in ("TO_BOOL", "CACHE", "EXTENDED_ARG"):
        place += 1
    jump = instructions[place] if place < len(instructions) else None
    condition = next((jump.opname[len(name) :] for name in _JUMP_IF if jump and jump.opname.startswith(name)), "")
    if jump is None or condition not in ("TRUE", "FALSE"):
        return None
    target = next(index for index, one in enumerate(instructions) if one.offset == jump.argval)
    next_raises, target_raises = _raises(instructions[place + 1 :]), _raises(instructions[target:])
    if next_raises == target_raises:
        return None
    return (condition == "TRUE") == next_raises


def _raises(instructions: list[dis.Instruction]) -> bool:
    """Whether a sequence of instructions ends in an error without another effect."""
    for one in instructions:
        if one.opname == "RAISE_VARARGS":
            return True
        if not one.opname.startswith(_PLAIN):
            return False
    return False
