"""Huge pages for program text as Alibaba's kernels give them (hugetext): pure predictions."""
