"""What rounds cost on this host: measured, and kept."""
