"""Families of models: how each becomes one or several files."""
