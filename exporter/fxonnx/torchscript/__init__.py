"""The interfaces from before torch.export: ScriptModules, symbolic functions, node names, and the drop-in for torch.onnx."""
