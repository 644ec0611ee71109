"""Tensors of other layouts: sparse ones, and the nested ones that eager torch makes of padded sequences."""
