"""Side-by-side measurements of fxonnx and torch.onnx; every module runs with ``python -m benchmarks.<name>``."""
