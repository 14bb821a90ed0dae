"""A double of a kernel with hugetext: for unit tests and for writing cases, never reported as a kernel."""
