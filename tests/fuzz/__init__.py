"""Differential fuzzer: random small programs, eager torch against the exported file in ONNX Runtime."""
