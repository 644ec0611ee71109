"""What each PyTorch operator means in ONNX.

``registry`` says which function translates which operator, ``builder`` is what those functions write with, and
``aten/`` holds the functions, one file per family.
"""
