"""FX to onnx_ir: signature, dispatch, metadata, and the walk over the graph."""
