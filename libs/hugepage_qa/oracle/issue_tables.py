"""All known kernel bugs, in the tables in which docs/known-issues.md has them."""

from collections.abc import Mapping

from hugepage_qa.oracle.known_account_issues import ACCOUNT_ISSUES
from hugepage_qa.oracle.known_issues import KNOWN_ISSUES, KnownIssue, Quirk
from hugepage_qa.oracle.known_memory_issues import MEMORY_ISSUES
from hugepage_qa.oracle.known_swap_issues import SWAP_ISSUES
from hugepage_qa.oracle.known_thp_issues import THP_ISSUES
from hugepage_qa.oracle.known_userfault_issues import USERFAULT_ISSUES
from hugepage_qa.oracle.pool.known_pool_issues import POOL_ISSUES

ISSUE_TABLES = (KNOWN_ISSUES, POOL_ISSUES, MEMORY_ISSUES, ACCOUNT_ISSUES, THP_ISSUES, SWAP_ISSUES, USERFAULT_ISSUES)
ALL_ISSUES: Mapping[Quirk, KnownIssue] = {issue.quirk: issue for table in ISSUE_TABLES for issue in table.values()}
