"""What comes before the routes: limits, hosts, keys, request ids."""
