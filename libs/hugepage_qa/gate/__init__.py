"""The performance gate: samples, baselines, decision. Needs numpy and scipy (extra ``gate``)."""
