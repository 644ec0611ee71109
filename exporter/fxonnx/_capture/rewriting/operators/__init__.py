"""The helpers that transformed functions call: control flow as higher-order operators."""
