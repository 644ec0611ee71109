"""Replacements of functions of libraries that ask tensors for their values."""
