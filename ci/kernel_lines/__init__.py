"""Which lines of the kernel's huge page code no case runs: no case can find a fault there.

docs/seeded-kernels.md explains it.
"""
