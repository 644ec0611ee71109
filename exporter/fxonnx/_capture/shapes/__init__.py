"""Dynamic shape specifications: parsing, inference from examples, and names of dims."""
