"""The directories: of onnxruntime-genai, and of optimum, transformers.js and sentence-transformers."""
