"""Translations of operators outside ATen: torchvision, quantized_decomposed, torch.onnx.ops and transformers."""
