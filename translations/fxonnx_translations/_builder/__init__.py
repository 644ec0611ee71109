"""The graph builder that translations emit ONNX with, and its services."""
