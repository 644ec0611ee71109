"""The rows, by kind of model."""
