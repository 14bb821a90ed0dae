"""The decision procedure of the performance gate: samples, baselines, statistics. It knows nothing of huge pages."""
