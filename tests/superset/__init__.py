"""Small programs exported by fxonnx and by both exporters of torch: fxonnx exports right all that either of those exports right."""
