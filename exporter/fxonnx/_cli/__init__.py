"""The command line interface: ``fxonnx export`` and ``fxonnx demo``."""
