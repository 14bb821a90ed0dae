"""One driver as a case sees it: what it is asked, and what it answers."""

import json
from collections.abc import Mapping
from typing import Any

from hugepage_qa.guest.description import GuestDescription, MemoryDevice
from hugepage_qa.guest.domain_xml import domain_xml, memory_device_xml
from hugepage_qa.guest.machine import CANNOT, DONE, GUEST, QEMU, REFUSED
from hugepage_qa.guest.qemu_command import memory_device, qemu_arguments
from hugepage_qa.guest.refusal import refusal
from hugepage_qa.guest.site import Site
from hugepage_qa.live.live import Live
from hugepage_qa.live.outcomes import CannotRun


class Hypervisor:
    """The driver ``driver`` on the machine of ``live``; ``site`` is what it starts guests with."""

    def __init__(self, live: Live, driver: str) -> None:
        """Raises CannotRun where the machine has no such driver, InputError when it does not come up."""
        self.live = live
        self._driver = driver
        self.site = Site.from_document(self.ask("site"))

    @property
    def is_qemu(self) -> bool:
        """Whether QEMU is asked itself."""
        return self._driver == QEMU

    def ask(self, action: str, *arguments: object) -> Any:
        """Have the driver do something. Raises GuestError when it refuses, CannotRun where there is none.

        Raises InputError where the machine around it is at fault.
        """
        answer: Mapping[str, Any] = self.live.host.ask(GUEST, [self._driver, action, *arguments])
        if CANNOT in answer:
            raise CannotRun(answer[CANNOT])
        if REFUSED in answer:
            raise refusal(answer[REFUSED])
        return answer[DONE]

    def definition(self, guest: GuestDescription) -> str:
        """Return what the driver takes for a guest."""
        return json.dumps(qemu_arguments(guest, self.site)) if self.is_qemu else domain_xml(guest, self.site)

    def device(self, guest: GuestDescription, device: MemoryDevice) -> str:
        """Return what the driver takes for a memory device."""
        return memory_device(guest, device, self.site) if self.is_qemu else memory_device_xml(device)
