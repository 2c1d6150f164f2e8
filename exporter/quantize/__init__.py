"""Graph passes that store weights in fewer bits: one a file, each over the linear layers of `linears.py`."""
