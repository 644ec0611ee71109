"""Rewriting of Python control flow on tensors."""
