"""Dynamic shapes: parsing of specs, inference from examples, and names of dims."""
