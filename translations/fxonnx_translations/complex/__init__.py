"""Translations of operators on complex tensors, which ONNX holds as real tensors with a last axis of 2."""
