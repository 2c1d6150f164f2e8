"""What a request changes: the sequence and its cache rows, and the statistics."""
