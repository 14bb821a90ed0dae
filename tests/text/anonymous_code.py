"""Anonymous memory for code: huge at its first fault with bit 1 of hugetext, and only then."""

import mmap

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetext import expect_code, map_code, see_khugepaged_at_work, switch
from hugepage_qa.cases.live import Live
from hugepage_qa.plugins.avocado_test import LiveTest

CODE = Area("text/anonymous-code", sizes=Sizes.ONCE)

ANONYMOUS = (
    "Alibaba Cloud Linux, Huge Pages: enable; include/linux/huge_mm.h __transparent_hugepage_enabled() of ANCK 5.10"
)


@CODE.case(
    "mode 2 gives anonymous memory for code huge pages at its first fault, counted in AnonHugePages only",
    ANONYMOUS,
)
def mode_2(live: Live) -> None:
    switch(live, 2)
    expect_code(live, huge=True)


@CODE.case("mode 1 gives anonymous memory for code no huge pages", ANONYMOUS)
def mode_1(live: Live) -> None:
    switch(live, 1)
    expect_code(live, huge=False)


@CODE.case(
    "memory that is written first and made executable and read-only later is not collapsed",
    "mm/khugepaged.c __collapse_huge_page_isolate() of ANCK 5.10",
)
def code_that_was_data(live: Live) -> None:
    switch(live, 3)
    memory = map_code(live, 1, mmap.PROT_READ | mmap.PROT_WRITE)
    memory.fill()
    memory.expect_huge(0, about="of data")
    memory.protect(mmap.PROT_READ | mmap.PROT_EXEC)
    see_khugepaged_at_work(live, memory.actor)
    memory.expect_huge(0, about="of code that was data")
    memory.expect_filled()


class HugetextAnonymousCode(LiveTest):
    def test_anonymous_code(self) -> None:
        self.run_area(CODE)
