"""``python -m hugepage_qa``: the command, wherever its script is installed."""

from hugepage_qa.cli import main

main()
