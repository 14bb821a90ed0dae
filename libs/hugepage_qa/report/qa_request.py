"""What ``make qa`` was asked for: make's variables, checked before anything is started."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.lab.boards import BOARDS, find_board
from hugepage_qa.lab.image import identify
from hugepage_qa.report import settings

#: plan -> the architectures that its tests cover
PLANS = {"smoke": ("x86_64",), "boot": tuple(BOARDS)}


@dataclass(frozen=True)
class QaRequest:
    """The plan to run, the architectures to run it for, and what the tests are told."""

    plan: str
    architectures: tuple[str, ...]
    tmt_arguments: tuple[str, ...]
    test_environment: Mapping[str, str]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "QaRequest":
        """Return the request in ``environment``, where make exports its variables.

        Raises InputError for an unknown plan or architecture, and for a kernel that is none or is not for them.
        """
        asked = tuple(environment.get("ARCH", "").split())
        kernel = _kernel(environment.get("KERNEL", ""), asked)
        architectures = tuple(find_board(name).architecture for name in (*asked, *([] if asked else kernel)))
        plan = environment.get("PLAN", "").strip() or _smallest_plan(architectures)
        if plan not in PLANS:
            raise InputError(f"PLAN={plan}: expected one of {', '.join(PLANS)}")
        for name in architectures:
            if name not in PLANS[plan]:
                raise InputError(f"PLAN={plan}: has no tests for {name}; use PLAN={_smallest_plan([name])}")
        return cls(
            plan=plan,
            architectures=architectures or PLANS[plan],
            tmt_arguments=_split("TMT_ARGS", environment),
            test_environment=_test_environment(environment, next(iter(kernel.values()), None)),
        )


def _smallest_plan(architectures: "tuple[str, ...] | list[str]") -> str:
    return next(plan for plan, covered in PLANS.items() if set(architectures) <= set(covered))


def _kernel(path: str, asked: tuple[str, ...]) -> dict[str, Path]:
    """Return the kernel's architecture and absolute path; empty when none is asked for."""
    if not path:
        return {}
    image = identify(settings.readable_file(path, "KERNEL"))
    if asked not in ((), (image.architecture,)):
        raise InputError(f"KERNEL={path}: is for {image.architecture}, but ARCH is {' '.join(asked)}")
    return {image.architecture: image.path}


def _split(name: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(environment.get(name, "")))
    except ValueError as error:
        raise InputError(f"{name}={environment[name]}: {error}") from error


def _test_environment(environment: Mapping[str, str], kernel: Path | None) -> dict[str, str]:
    told = {settings.APPEND: environment.get("APPEND", ""), settings.KERNEL: str(kernel or "")}
    passed = {name: environment.get(name, "") for name in (settings.CACHE, settings.RANDOM, settings.SEED)}
    return {name: value for name, value in (told | passed).items() if value}
