"""The cases of ``cases.yaml`` as they are on one machine."""

from dataclasses import dataclass, replace
from importlib import resources

from hugepage_qa.cases.boot.boot_case import (
    Amounts,
    BootCase,
    NotApplicable,
    Target,
    make_case,
    named_sizes,
    parse_entries,
)
from hugepage_qa.oracle.architecture import Machine
from hugepage_qa.oracle.boot.unknown_parameters import PARAMETERS
from hugepage_qa.parameters import parse_parameters
from hugepage_qa.sizes import format_size, parse_memory

_GROUP = "reboot"
_PROPERTIES = {
    "persisted": {"type": "string"},
    "run-time": {"type": "string"},
    "interface": {"enum": ["hugetext", "hugetext_pad_threshold"]},
}
_CPU = "of the machine under test"


@dataclass(frozen=True)
class Ask:
    """So many pages of ``size`` bytes."""

    pages: int
    size: int


@dataclass(frozen=True)
class RebootCase:
    """What a machine is booted with: arguments, and what of sysctl.d comes after them.

    ``persisted`` is vm.nr_hugepages (pages), None where it is not set. ``at_run_time`` is asked for before the boot.
    ``why_not`` is the fact that keeps this machine from running the case, empty where it can.
    """

    boot: BootCase
    persisted: int | None = None
    at_run_time: Ask | None = None
    why_not: str = ""

    @property
    def name(self) -> str:
        """The name, starting with ``/``."""
        return self.boot.name

    @property
    def words(self) -> tuple[str, ...]:
        """The kernel arguments to add, one word each."""
        return tuple(str(parameter) for parameter in parse_parameters(self.boot.words))


def load_cases(machine: Machine, arguments: str, memory: int) -> list[RebootCase]:
    """Return all cases as they are on ``machine``; it has ``memory`` bytes, and boots with ``arguments`` by itself."""
    text = (resources.files(__package__) / "cases.yaml").read_text(encoding="utf-8")
    return parse_reboot_cases(text, machine, arguments, memory)


def parse_reboot_cases(text: str, machine: Machine, arguments: str, memory: int) -> list[RebootCase]:
    """Return the cases in YAML ``text``. Raises InputError for text of another form."""
    target = Target(machine.architecture, _CPU, machine.mmu, machine.features)
    amounts = Amounts(named_sizes(machine.mmu, machine.features), memory)
    cases = []
    for entry in parse_entries(text, _GROUP, _PROPERTIES):
        try:
            _require(entry, machine, memory)
            boot = make_case(entry, _GROUP, target, amounts)
            persisted = amounts.pages(entry["persisted"], "default") if "persisted" in entry else None
            run_time = entry.get("run-time")
            asked = Ask(amounts.pages(run_time, "default"), amounts.size("default")) if run_time else None
            case = RebootCase(boot, persisted, asked)
            if (entry.get("pools") or entry.get("nodes")) and 0 in (*boot.facts.values(), persisted):
                raise NotApplicable("the memory is too small for one page of each size")
        except NotApplicable as fact:
            empty = BootCase(f"/{_GROUP}/{entry['name']}", machine.architecture, _CPU, "", (), source=entry["source"])
            case = RebootCase(empty, why_not=str(fact))
        cases.append(case)
    if any(word.canonical in PARAMETERS for word in parse_parameters(arguments)):
        # what the documents say is of the words of a case alone; with others before them only the model knows
        return [replace(case, boot=replace(case.boot, facts={}, log=())) for case in cases]
    return cases


def _require(entry: dict[str, object], machine: Machine, memory: int) -> None:
    if not machine.supports_huge_pages:
        raise NotApplicable("the CPU has no huge pages")
    interface = str(entry.get("interface", ""))
    if interface and not machine.interfaces.get(interface):
        raise NotApplicable(f"the kernel has no {interface}")
    nodes = [node.number for node in machine.memory_nodes]
    wanted = entry.get("nodes", {})
    missing = [name for name in wanted if int(name) not in nodes] if isinstance(wanted, dict) else []
    if missing:
        raise NotApplicable(f"no memory on node {missing[0]}, only on {', '.join(map(str, nodes))}")
    least = sum(parse_memory(str(entry.get("memory", "1"))))
    # what the firmware keeps is not counted as memory
    if memory < least * 7 // 8:
        raise NotApplicable(f"{format_size(least)} of memory are needed, there are {memory} bytes")
