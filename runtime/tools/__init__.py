"""Tool calls: how a model's template writes them, the grammar that constrains them, and how they are parsed from its
text.
"""
