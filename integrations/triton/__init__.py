"""Triton Inference Server: a model repository with a bundle, and the models that run in it.

Only `entry.py`, which becomes the model's `model.py`, imports Triton's Python module; it passes it to the rest.
"""
