"""The switches of transparent huge pages as the machine came up with them: the kernel's own, or who has set them."""

from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.live.case import Area, Sizes
from hugepage_qa.live.host import ObservedTree
from hugepage_qa.live.live import Live
from hugepage_qa.live.outcomes import CannotRun
from hugepage_qa.live.transparent import pmd_size
from hugepage_qa.machine.knobs import Kind, Knob
from hugepage_qa.model.rules import THP_DOC
from hugepage_qa.model.thp import GLOBAL_POLICIES
from hugepage_qa.model.thp_default import own_values
from hugepage_qa.model.thp_state import SMALL_MEMORY
from hugepage_qa.plugins.live_test import LiveTest
from hugepage_qa.sizes import MIB

DEFAULT = Area("thp/default")

#: memory that the kernel may have given back since it compared
_UNSURE = 64 * MIB


@DEFAULT.case(
    "each switch is as the kernel sets it at boot, by its configuration and command line, or as a file of the system",
    f"{THP_DOC} boot parameters; mm/huge_memory.c hugepage_init(), mm/khugepaged.c khugepaged_init()",
    sizes=Sizes.DEFAULT,
)
def as_it_was_booted(live: Live) -> None:
    if SMALL_MEMORY <= live.memory_total < SMALL_MEMORY + _UNSURE:
        raise CannotRun("memory is too close to 512 MiB, below which all is off")
    own = own_values(
        live.host.read("proc/cmdline") or "",
        _configured(live),
        pages=pmd_size(live) // live.base_page,
        small=live.memory_total < SMALL_MEMORY,
    )
    for switch, value in own.items():
        found = Knob(Kind.THP, f"{DIRECTORY}/{switch}").read(ObservedTree(live.host))
        if found in (None, value):
            continue
        if files := live.host.settings(switch, found):
            live.notes.append(f"{switch} is {found} and not {value} by {', '.join(files)}")
        else:
            live.expect(switch, f"{value}, or what a file of the system sets it to", found)


def _configured(live: Live) -> str | None:
    """Return the policy that the kernel was built with; None where its configuration is not known."""
    for policy in GLOBAL_POLICIES:
        if live.host.kernel_option(f"TRANSPARENT_HUGEPAGE_{policy.upper()}"):
            return policy
    return None


class ThpDefault(LiveTest):
    """The switches as the machine came up with them.

    :avocado: enable
    :avocado: tags=thp
    """

    timeout = 600

    def test_default(self) -> None:
        """Every case, once for the machine."""
        self.run_area(DEFAULT)
