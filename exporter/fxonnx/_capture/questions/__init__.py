"""Questions of Python code about the values of tensors, and the answers that the capture gives."""
