"""Cases about guests: each is registered for the drivers that it makes sense with, and is run for each page size."""

from collections.abc import Callable
from functools import wraps

from hugepage_qa.guest.driver import GuestError
from hugepage_qa.guest.guests import Guests
from hugepage_qa.live.case import Area, Sizes
from hugepage_qa.live.live import Live
from hugepage_qa.live.outcomes import CannotRun

GuestAct = Callable[[Live, Guests], None]


class GuestArea(Area):
    """The cases of one file with one of the drivers that ``machine`` names."""

    def __init__(self, name: str, driver: str, *, sizes: Sizes = Sizes.EACH) -> None:
        super().__init__(f"{name}/{driver}", sizes=sizes)
        self.driver = driver


def guest_case(*areas: GuestArea) -> Callable[..., Callable[[GuestAct], GuestAct]]:
    """Return what makes functions cases of ``areas``; its arguments are those of ``Area.case``."""

    def case(
        statement: str, source: str, *, sizes: Sizes | None = None, nodes: int = 1
    ) -> Callable[[GuestAct], GuestAct]:
        def register(act: GuestAct) -> GuestAct:
            for area in areas:
                area.case(statement, source, sizes=sizes, nodes=nodes)(with_guests(act, area.driver))
            return act

        return register

    return case


def with_guests(act: GuestAct, driver: str) -> Callable[[Live], None]:
    """Return what a case does that has guests under ``driver``; a refusal that it does not expect is a difference."""

    @wraps(act)
    def act_with_guests(live: Live) -> None:
        try:
            act(live, Guests(live, driver))
        except GuestError as error:
            live.fail("the driver", "no refusal", str(error))

    return act_with_guests


#: why a case on NUMA nodes cannot run
NO_NODES = "this kernel has no NUMA nodes (CONFIG_NUMA)"


def needs(fact: bool, otherwise: str) -> None:
    """Raise CannotRun with the reason ``otherwise`` unless ``fact``."""
    if not fact:
        raise CannotRun(otherwise)
