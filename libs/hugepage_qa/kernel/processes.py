"""Names of processes and kernel threads (/proc/<pid>/comm)."""

from hugepage_qa.kernel.tree import Tree


def read_process_names(tree: Tree) -> frozenset[str]:
    """Return the names of all processes; empty where none was captured.

    Kernel threads are among them: ``khugepaged``, one ``kcompactd<node>`` for each node.
    """
    texts = (tree.read(f"proc/{name}/comm") for name in tree.names("proc") if name.isascii() and name.isdigit())
    # a process can end between the listing and the read
    return frozenset(text.removesuffix("\n") for text in texts if text)
