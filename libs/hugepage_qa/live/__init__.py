"""Cases on the running machine: what they act on, how they are judged, how they are recorded and falsified."""
