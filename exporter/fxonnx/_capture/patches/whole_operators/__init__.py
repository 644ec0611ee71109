"""Replacements of operators and functions that are recorded as a whole, for any size."""
