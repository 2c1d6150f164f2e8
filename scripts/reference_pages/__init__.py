"""The pages that `scripts/write_reference` writes."""
