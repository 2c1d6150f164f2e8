"""Measurements for decisions: what a pass costs, whether speculation pays, how weights are quantized."""
