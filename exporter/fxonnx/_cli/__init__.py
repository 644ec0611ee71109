"""The command line interface: ``fxonnx export``, ``fxonnx genai``, ``fxonnx check`` and ``fxonnx demo``."""
