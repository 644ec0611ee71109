"""Decoders of text for onnxruntime-genai: their inputs, caches, padding and attention."""
