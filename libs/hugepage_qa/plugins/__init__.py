"""Thin plugins for tmt and Avocado; nothing of the library needs them."""
