"""Translations of ATen operators, one file per family."""
