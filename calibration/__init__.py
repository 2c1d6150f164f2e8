"""Measurements that decide: what a pass costs, whether speculation pays."""
