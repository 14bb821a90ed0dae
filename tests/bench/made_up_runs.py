"""Directories as tmt 1.78 leaves them, made up: what runs of many machines would be, without the machines."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

#: area -> test; cases of each are numbered
AREAS = {
    "pool": "/tests/pool/resize",
    "reservation": "/tests/reservation/mappings",
    "memory": "/tests/memory/fork",
    "cgroup": "/tests/cgroup",
}
KERNELS = {"x86_64": "6.12.0-55.el10.x86_64", "aarch64": "6.12.0-55.el10.aarch64", "s390x": "6.12.0-55.el10.s390x"}
SIZES = {"x86_64": ("2M", "1G"), "aarch64": ("64K", "2M", "32M", "1G"), "s390x": ("1M",)}


@dataclass(frozen=True)
class MadeUpRun:
    """A run on one machine: ``bad`` are names of results with how they end and why."""

    number: int
    architecture: str = "x86_64"
    cases: int = 400
    bad: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    samples: bool = False

    def names(self) -> list[str]:
        """Return the names of the results."""
        sizes, areas = SIZES[self.architecture], list(AREAS)
        return [
            f"{AREAS[areas[index % len(areas)]]}/case-{index // len(areas)}/{sizes[index % len(sizes)]}"
            for index in range(self.cases)
        ]

    def write(self, directory: Path) -> Path:
        """Write the run into ``directory``, which must not be there, and return it."""
        plan = directory / "plans" / "functional"
        (plan / "execute" / "data" / "guest" / "default-0").mkdir(parents=True)
        (plan / "provision").mkdir()
        (plan / "discover").mkdir()
        (directory / "state-format").write_text("yaml", encoding="utf-8")
        (directory / "run.yaml").write_text("plans:\n- /plans/functional\n", encoding="utf-8")
        (directory / "log.txt").write_text(f"00:00:00 made-up run {self.number}\n", encoding="utf-8")
        (plan / "provision" / "guests.yaml").write_text(_guests(self.architecture), encoding="utf-8")
        (plan / "provision" / "step.yaml").write_text("data:\n- how: local\nstatus: done\n", encoding="utf-8")
        tests = "".join(f"- author: []\n  name: {test}\n" for test in AREAS.values())
        (plan / "discover" / "tests.yaml").write_text(tests, encoding="utf-8")
        results = "".join(
            _result(name, (self.number * place) % 7, *self.bad.get(name, ("pass", "")))
            for place, name in enumerate(self.names())
        )
        (plan / "execute" / "results.yaml").write_text(results, encoding="utf-8")
        if self.samples:
            measured = plan / "execute" / "data" / "guest" / "default-0" / "samples.json"
            measured.write_text(json.dumps(self.sample_document()), encoding="utf-8")
        return directory

    def sample_document(self) -> dict[str, object]:
        """Return one block, measured on one of four machines of each architecture."""
        machine = self.number % 4
        # no two blocks alike
        samples = [10 + machine + ((self.number * 7919 + step * 104729) % 100003) / 1e6 for step in range(10)]
        block = {
            "order": 0,
            "session": f"s{self.number}",
            "boot": f"b{self.number}",
            "started": f"2026-01-01T{self.number % 24:02}:{self.number // 24 % 60:02}:{self.number // 1440:02}Z",
            "samples": samples,
        }
        return {
            "format": "hugepage-qa samples",
            "version": 1,
            "suite": "memory",
            "environment": {"arch": self.architecture, "cpu_model": f"made up {machine}", "hostname": f"lab{machine}"},
            "subject": {"kernel": KERNELS[self.architecture]},
            "series": [{"metric": "walk", "unit": "s", "direction": "lower", "blocks": [block]}],
        }


def _guests(architecture: str) -> str:
    return f"""\
default-0:
  become: false
  facts:
    arch: {architecture}
    distro: Red Hat Enterprise Linux 10
    kernel-release: {KERNELS[architecture]}
  primary-address: 192.0.2.1
"""


def _result(name: str, seconds: int, outcome: str, reason: str) -> str:
    note = f"  note:\n  - {json.dumps(reason)}\n" if reason else "  note: []\n"
    return f"""\
- __class__:
    module: tmt.result
    name: Result
  check: []
  context: {{}}
  data-path: null
  duration: 00:00:0{seconds}
  end-time: null
  fmf-id: {{}}
  guest:
    __class__:
      module: tmt.result
      name: ResultGuestData
    name: default-0
    primary-address: 192.0.2.1
    role: null
  ids: {{}}
  log: []
  name: {name}
{note}  original-result: {outcome}
  result: {outcome}
  serial-number: 1
  start-time: null
  subresult: []
  web-link: null
"""
