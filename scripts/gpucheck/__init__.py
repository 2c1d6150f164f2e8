"""The implementation of `scripts/gpu_check`: build, prove and measure every GPU engine of this host."""
