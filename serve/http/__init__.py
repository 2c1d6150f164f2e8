"""What stands in front of the routes: limits, hosts, keys, request ids."""
