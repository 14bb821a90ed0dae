"""The commands of ``hugepage-qa``: thin; each reads its options, calls the library and prints."""
