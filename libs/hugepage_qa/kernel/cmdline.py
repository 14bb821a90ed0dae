"""The command line that the running kernel was started with."""

from hugepage_qa.kernel.tree import Tree
from hugepage_qa.parameters import Parameter, parse_parameters

__all__ = ["Parameter", "parse_parameters", "read_cmdline"]


def read_cmdline(tree: Tree) -> str:
    """Return ``/proc/cmdline`` without its final newline; empty where it was not captured."""
    return (tree.read("proc/cmdline") or "").removesuffix("\n")
