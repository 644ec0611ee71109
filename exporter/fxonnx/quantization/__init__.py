"""Integers: quantized modules, weights and activations as integers, and checkpoints of quantized weights."""
