"""The implementation of `scripts/gpu_kit`: wheels for a GPU host without a network, in pieces that can be sent."""
