"""Translations of operators that are not in ATen: torchvision, quantized_decomposed, torch.onnx.ops and transformers."""
