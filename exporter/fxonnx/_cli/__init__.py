"""The command line interface: one command for each task, such as ``fxonnx export``."""
