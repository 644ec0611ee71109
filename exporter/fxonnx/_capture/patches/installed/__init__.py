"""The installed versions of torch and of the libraries beside those with which fxonnx is tested."""
