"""One GPU by the CUDA driver API."""
