"""Towers of models that read images or audio: the module that computes features, its example and preprocessing."""
