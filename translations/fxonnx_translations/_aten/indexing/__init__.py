"""Gather, scatter and slicing."""
