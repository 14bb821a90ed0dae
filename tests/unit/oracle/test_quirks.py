"""The list of quirks: each has the name of its issue, and stands under the file in which that is recorded."""

import inspect
import re

from hugepage_qa.oracle.known_account_issues import ACCOUNT_ISSUES
from hugepage_qa.oracle.known_issues import KNOWN_ISSUES, Quirk
from hugepage_qa.oracle.known_memory_issues import MEMORY_ISSUES
from hugepage_qa.oracle.known_swap_issues import SWAP_ISSUES
from hugepage_qa.oracle.known_thp_issues import THP_ISSUES
from hugepage_qa.oracle.known_userfault_issues import USERFAULT_ISSUES
from hugepage_qa.oracle.pool.known_pool_issues import POOL_ISSUES

#: what stands before the first heading is recorded beside the list itself
RECORDED = {
    "": KNOWN_ISSUES,
    "known_thp_issues.py": THP_ISSUES,
    "known_swap_issues.py": SWAP_ISSUES,
    "known_userfault_issues.py": USERFAULT_ISSUES,
    "pool/known_pool_issues.py": POOL_ISSUES,
    "known_memory_issues.py": MEMORY_ISSUES,
    "known_account_issues.py": ACCOUNT_ISSUES,
}


def test_each_has_the_name_of_its_issue() -> None:
    assert {quirk.name: quirk.value for quirk in Quirk} == {
        quirk.name: quirk.name.lower().replace("_", "-") for quirk in Quirk
    }


def test_each_stands_under_the_file_in_which_it_is_recorded() -> None:
    listed: dict[str, set[str]] = {}
    file = ""
    for line in inspect.getsource(Quirk).splitlines():
        if heading := re.search(r"# .*recorded in (\S+)", line):
            file = heading[1]
        elif member := re.match(r" +(\w+) = ", line):
            listed.setdefault(file, set()).add(member[1])
    assert listed == {file: {quirk.name for quirk in issues} for file, issues in RECORDED.items()}
