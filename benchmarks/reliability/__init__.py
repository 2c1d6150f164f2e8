"""Fault-injection tests of servers, bundles and builds: `python benchmarks/reliability BUNDLE`."""
