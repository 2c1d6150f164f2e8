"""Tool calls: how a model's template writes them, what bounds them, and how they are read from its text."""
