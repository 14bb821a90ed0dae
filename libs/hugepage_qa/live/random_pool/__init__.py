"""Random programs on the pools of the running machine, compared with the model after every operation."""
