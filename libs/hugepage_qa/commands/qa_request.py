"""What ``make qa`` was asked for: make's variables, checked before anything is started."""

import os
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.bench import gate_settings
from hugepage_qa.bench.gate_settings import GateSettings
from hugepage_qa.cases import run_settings
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.boards import BOARDS, find_board
from hugepage_qa.qemu.packages import open_kernel
from hugepage_qa.sizes import parse_size

#: the plan of all that throwaway machines can do
KERNEL = "kernel"
#: plan -> the architectures that its throwaway machines cover
PLANS = {"smoke": ("x86_64",), "boot": tuple(BOARDS), KERNEL: tuple(BOARDS)}
#: plans that judge performance: the usual workloads, and those of memory that is scarce
GATES = ("gate", "gate-memory")
#: plans that start guests on the machine that they run on
_GUEST_PLANS = ("functional", "guest", "vt")
#: plans whose tests change the machine that they run on, and put it back
MACHINE_PLANS = (*_GUEST_PLANS, "thp", "text", *GATES)
#: where the tests run: on this machine, or on a whole system that is started for them
LOCAL, LAB = "local", "lab"
#: what the tests of these plans read
_READ_ON_MACHINES = {
    **dict.fromkeys(
        _GUEST_PLANS,
        (run_settings.SEED, run_settings.OPERATIONS, run_settings.CYCLES, run_settings.VT, run_settings.QEMU),
    ),
    **dict.fromkeys(GATES, tuple(gate_settings.MEANING)),
}


@dataclass(frozen=True)
class QaRequest:
    """The plan to run, where, and what the tests are told.

    ``architectures`` are those of the throwaway machines; a plan that tests the machine itself has none.
    ``provision`` holds the options of tmt's provision step.
    """

    plan: str
    architectures: tuple[str, ...]
    provision: tuple[str, ...]
    tmt_arguments: tuple[str, ...]
    test_environment: Mapping[str, str]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "QaRequest":
        """Return the request in ``environment``, where make exports its variables.

        Raises InputError for an unknown plan or architecture, and for a kernel that is none or is not for them.
        """
        if environment.get("PLAN", "").strip() in MACHINE_PLANS:
            return cls._for_a_machine(environment)
        asked = tuple(environment.get("ARCH", "").split())
        kernel = _kernel(environment.get("KERNEL", ""), asked)
        architectures = tuple(find_board(name).architecture for name in (*asked, *([] if asked else kernel)))
        plan = environment.get("PLAN", "").strip() or _smallest_plan(architectures)
        if plan not in PLANS:
            raise InputError(f"PLAN={plan}: expected one of {', '.join((*PLANS, *MACHINE_PLANS))}")
        if environment.get("MEMORY"):
            raise InputError(f"MEMORY={environment['MEMORY']}: machines of plan {plan} have what their case needs")
        if environment.get("PROVISION", LOCAL) not in ("", LOCAL):
            raise InputError(
                f"PROVISION={environment['PROVISION']}: plan {plan} boots machines of its own; leave it out"
            )
        for name in architectures:
            if name not in PLANS[plan]:
                raise InputError(f"PLAN={plan}: has no tests for {name}; use PLAN={_smallest_plan([name])}")
        return cls(
            plan=plan,
            architectures=architectures or PLANS[plan],
            provision=("--how", LOCAL),
            tmt_arguments=_split("TMT_ARGS", environment),
            test_environment=_test_environment(plan, environment, next(iter(kernel.values()), None)),
        )

    @classmethod
    def _for_a_machine(cls, environment: Mapping[str, str]) -> "QaRequest":
        how = environment.get("PROVISION", "").strip() or LOCAL
        if how not in (LOCAL, LAB):
            raise InputError(f"PROVISION={how}: expected {LOCAL} (this machine) or {LAB} (a system machine)")
        if environment.get("ARCH", "").strip():
            raise InputError(f"ARCH={environment['ARCH']}: plan {environment['PLAN']} tests one machine; leave it out")
        plan = environment["PLAN"].strip()
        if plan in GATES and how == LAB:
            raise InputError(f"PROVISION={how}: a machine in an emulator has no performance to speak of; leave it out")
        return cls(
            plan=plan,
            architectures=(),
            provision=_lab_options(environment) if how == LAB else _local_options(environment),
            tmt_arguments=_split("TMT_ARGS", environment),
            test_environment=_of_a_machine(plan, how, environment),
        )

    @property
    def has_guests(self) -> bool:
        """Whether the tests start guests on the machine that they run on."""
        return self.plan in _GUEST_PLANS

    @property
    def needs_root(self) -> bool:
        """Whether the tests change the machine that they run on; throwaway machines need no root."""
        return not self.architectures

    @property
    def needs_all_results(self) -> bool:
        """Whether nothing is decided as long as one case is skipped."""
        return self.plan in GATES

    @property
    def needs_vt(self) -> bool:
        """Whether avocado-vt runs the tests."""
        return self.plan == "vt"

    @property
    def in_lab(self) -> bool:
        """Whether the tests run on a system machine that is started for them."""
        return LAB in self.provision


def _of_a_machine(plan: str, how: str, environment: Mapping[str, str]) -> dict[str, str]:
    told = {name: environment[name] for name in _READ_ON_MACHINES.get(plan, ()) if environment.get(name)}
    named = told.pop(run_settings.QEMU, None)
    # a system machine has one of its own
    if named and how == LOCAL:
        told[run_settings.QEMU] = _program(named)
    if gate_settings.BASELINES in told:
        # tests run in another directory
        told[gate_settings.BASELINES] = str(Path(told[gate_settings.BASELINES]).absolute())
    if plan in GATES:
        # what the test would refuse after a minute
        GateSettings.from_environment(told)
    return told


def _local_options(environment: Mapping[str, str]) -> tuple[str, ...]:
    for name in ("KERNEL", "APPEND", "MEMORY"):
        if environment.get(name):
            raise InputError(f"{name}={environment[name]}: this machine is running already; use PROVISION={LAB}")
    return ("--how", LOCAL)


def _lab_options(environment: Mapping[str, str]) -> tuple[str, ...]:
    # two nodes, each with room for gigantic pages at run time
    options = ["--how", LAB, "--memory", _memory(environment), "--nodes", "2"]
    if environment.get("KERNEL"):
        options += ["--kernel", str(run_settings.readable_file(environment["KERNEL"], "KERNEL"))]
    if environment.get("APPEND"):
        options += ["--append", environment["APPEND"]]
    return tuple(options)


def _memory(environment: Mapping[str, str]) -> str:
    memory = environment.get("MEMORY", "").strip() or "8G"
    try:
        parse_size(memory)
    except InputError as error:
        raise InputError(f"MEMORY={memory}: {error}") from error
    return memory


def _smallest_plan(architectures: "tuple[str, ...] | list[str]") -> str:
    return next(plan for plan, covered in PLANS.items() if set(architectures) <= set(covered))


def _kernel(path: str, asked: tuple[str, ...]) -> dict[str, Path]:
    """Return the kernel's architecture and absolute path; empty when none is asked for."""
    if not path:
        return {}
    file = run_settings.readable_file(path, "KERNEL")
    with tempfile.TemporaryDirectory(prefix="hugepage-qa-kernel-") as scratch:
        architecture = open_kernel(file, Path(scratch)).architecture
    if asked not in ((), (architecture,)):
        raise InputError(f"KERNEL={path}: is for {architecture}, but ARCH is {' '.join(asked)}")
    return {architecture: file}


def _split(name: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(environment.get(name, "")))
    except ValueError as error:
        raise InputError(f"{name}={environment[name]}: {error}") from error


def _program(name: str) -> str:
    """Return the path of the program ``name``: tests run in another directory."""
    return str(Path(shutil.which(name) or name).absolute())


def _test_environment(plan: str, environment: Mapping[str, str], kernel: Path | None) -> dict[str, str]:
    told = {run_settings.APPEND: environment.get("APPEND", ""), run_settings.KERNEL: str(kernel or "")}
    names = [run_settings.CACHE, run_settings.GROUPS, run_settings.RANDOM, run_settings.SEED]
    if plan == KERNEL:
        names += [run_settings.AREAS, run_settings.OPERATIONS, run_settings.MINUTES]
    passed = {name: environment.get(name, "") for name in names}
    if named := environment.get(run_settings.QEMU):
        passed[run_settings.QEMU] = _program(named)
    return {name: value for name, value in (told | passed).items() if value}
