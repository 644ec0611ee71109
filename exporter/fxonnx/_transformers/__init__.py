"""Models of transformers and pipelines of Diffusers as directories that runtimes load."""
