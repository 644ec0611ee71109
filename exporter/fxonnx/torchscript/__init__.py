"""The interfaces from before torch.export: ScriptModules, symbolic functions, node names, torch.onnx.export."""
