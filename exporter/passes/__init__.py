"""Graph-to-graph rewrites, one a file."""
