"""Constraints on dynamic dims: recorded guards, their translation to user names, and the solver."""
