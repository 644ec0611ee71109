"""What the capture sees and cannot decide: the rows that the proof judges, and the state that Python keeps."""
