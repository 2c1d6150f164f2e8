"""What `scripts/gpu_kit` does: wheels for a GPU host without a network, in pieces that are small enough to be sent."""
