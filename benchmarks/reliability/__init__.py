"""What a server, a bundle and a build survive, measured. `python benchmarks/reliability BUNDLE`."""
