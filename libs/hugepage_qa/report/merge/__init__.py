"""Many runs of tmt, on many machines, as one report."""
