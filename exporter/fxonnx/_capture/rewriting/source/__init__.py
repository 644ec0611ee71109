"""Source transformation of functions with control flow."""
