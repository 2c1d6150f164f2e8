"""What `scripts/gpu_check` does: build, prove and measure every GPU engine of this host."""
