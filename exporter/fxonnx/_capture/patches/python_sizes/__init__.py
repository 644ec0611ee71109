"""Sizes where Python would convert them to numbers: ``int``, ``len``, the functions of ``math``, arguments of torch."""
