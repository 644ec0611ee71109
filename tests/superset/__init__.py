"""Small programs exported by fxonnx and by both exporters of torch: what either of those exports right, fxonnx exports right."""
