"""What an export was: the graph as text, times, reports, differences of files and of values."""
