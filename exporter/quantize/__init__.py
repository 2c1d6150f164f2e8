"""Graph passes that store weights in fewer bits: one pass a file, each over the linear layers that `linears.py` finds."""
