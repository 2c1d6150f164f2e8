"""The state that requests change: the sequence and its cache rows, and the statistics."""
