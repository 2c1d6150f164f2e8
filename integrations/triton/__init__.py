"""Triton Inference Server: a model repository around a bundle, and what runs in it.

Nothing here imports Triton: `entry.py`, which becomes the model's `model.py`, hands its Python module over.
"""
