"""A session behind other projects' servers and APIs: one folder for each of them."""
