"""Descriptions of an export: the graph as text, times, reports, differences of files and of values."""
