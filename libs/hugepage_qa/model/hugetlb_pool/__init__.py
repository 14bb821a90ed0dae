"""The pools of a running machine: counters, quotas, groups and contents after every operation."""
