"""The field: models of published libraries and programs of public bug reports, which nobody here wrote, with their verdicts."""
