"""Data-dependent guards: conditions of Python code on the values of tensors, and their resolution."""
