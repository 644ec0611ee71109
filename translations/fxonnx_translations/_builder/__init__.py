"""The graph builder that translations emit ONNX with: types and shapes, constants, names, peepholes."""
