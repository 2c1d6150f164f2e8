"""A session with the interfaces of other projects: one folder for each of them."""
