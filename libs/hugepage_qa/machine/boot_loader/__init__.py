"""Boot loaders: how the kernel arguments of the machine under test are read, added and removed."""
