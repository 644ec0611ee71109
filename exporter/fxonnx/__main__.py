"""``python -m fxonnx``: the command ``fxonnx``."""

from ._cli.main import main

if __name__ == "__main__":
    main()
