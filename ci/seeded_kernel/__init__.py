"""A kernel with small faults of our own in its huge page code, one of them chosen at boot or while it runs.

It tells what the suite does not find. docs/seeded-kernels.md explains it.
"""
