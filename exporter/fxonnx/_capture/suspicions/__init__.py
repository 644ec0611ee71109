"""Differences that the capture suspects and the proof decides about, and the state that Python keeps between calls."""
