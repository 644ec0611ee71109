"""Example inputs: binding to the signature of ``forward``, names, pytrees, objects and scalars."""
