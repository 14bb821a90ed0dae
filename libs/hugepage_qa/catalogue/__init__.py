"""Which cases there are, what each asserts, and where its rule comes from: read from metadata, code and YAML."""
