"""A session behind other projects' servers: each folder fits one of them."""
