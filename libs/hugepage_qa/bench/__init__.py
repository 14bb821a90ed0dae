"""Workloads, the machine states that they run in, and the measuring of both; figures leave in the gate's format."""
