"""The identity of the machine: every fact that must agree before two measurements may be compared.

What the machine cannot tell is there, too, as ``n/a``: a fact that one measurement has and another lacks is a
difference. The names of soft facts (hostname, uptime, ...) are those that the gate knows.
"""

import gzip
import hashlib
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from hugepage_qa.bench.workload import Fact
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.cpu import read_cpu
from hugepage_qa.kernel.memory_layout import read_zones
from hugepage_qa.kernel.pools import read_pools
from hugepage_qa.kernel.thp import read_thp
from hugepage_qa.kernel.tree import Tree
from hugepage_qa.sizes import format_size

NOT_KNOWN = "n/a"

_CPUS = "sys/devices/system/cpu"
_DMI = "sys/class/dmi/id"
_VULNERABILITIES = f"{_CPUS}/vulnerabilities"

#: words of the command line that switch mitigations
_MITIGATIONS = re.compile(
    r"(mitigations|spectre_v2|spectre_v2_user|spec_store_bypass_disable|l1tf|mds|tsx_async_abort|kvm\.nx_huge_pages"
    r"|srbds|mmio_stale_data|retbleed|spec_rstack_overflow|gather_data_sampling|reg_file_data_sampling"
    r"|indirect_target_selection)=\S*|nopti|pti=\S*|nospectre_v[12]|nospec_store_bypass_disable"
)

#: fields of /proc/cpuinfo -> our names: x86, arm64, powerpc
_CPU_FIELDS = {
    "cpu family": "family",
    "model": "model",
    "stepping": "stepping",
    "microcode": "microcode",
    "CPU implementer": "implementer",
    "CPU part": "part",
    "CPU variant": "variant",
    "CPU revision": "revision",
    "revision": "revision",
    "cpu MHz static": "mhz",
}


def read_environment(tree: Tree) -> dict[str, Fact]:
    """Return the facts about the machine, nested keys joined by dots. Raises InputError for a malformed file."""
    return {
        "arch": platform.machine(),
        **_processor(tree),
        **_memory(tree),
        **_virtualization(tree),
        **_huge_pages(tree),
        **_mitigations(tree),
        **_frequency(tree),
        "kernel_config": _kernel_config(tree),
        **_soft(tree),
    }


def read_subject(tree: Tree) -> dict[str, Fact]:
    """Return what is judged of the machine itself: the kernel."""
    return {"kernel": (tree.read("proc/sys/kernel/osrelease") or NOT_KNOWN).strip()}


def boot_id(tree: Tree) -> str:
    """Return what this boot is called."""
    return (tree.read("proc/sys/kernel/random/boot_id") or NOT_KNOWN).strip()


def _processor(tree: Tree) -> dict[str, Fact]:
    cpu = read_cpu(tree)
    places = [
        tuple(_text(tree, f"{_CPUS}/{name}/topology/{file}") for file in ("physical_package_id", "core_id"))
        for name in tree.names(_CPUS)
        if re.fullmatch("cpu[0-9]+", name)
    ]
    # arm64 has the whole register, s390 and the machine below tell of themselves in sysinfo
    midr = _text(tree, f"{_CPUS}/cpu0/regs/identification/midr_el1")
    sysinfo = _sysinfo(tree)
    return {
        "cpu_model": cpu.model or NOT_KNOWN,
        **{f"cpu.{name}": value for name, value in _cpu_fields(tree).items()},
        **({"cpu.midr": midr} if midr != NOT_KNOWN else {}),
        **({"cpu.mmu": cpu.mmu} if cpu.mmu else {}),
        **sysinfo,
        "cpu.sockets": len({socket for socket, _ in places}),
        "cpu.cores": len(set(places)),
        "cpu.online": cpu.count,
        "cpu.smt": _text(tree, f"{_CPUS}/smt/active"),
    }


def _cpu_fields(tree: Tree) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for line in (tree.read("proc/cpuinfo") or "").splitlines():
        name, colon, value = line.partition(":")
        ours = _CPU_FIELDS.get(name.strip())
        if colon and ours is not None:
            found.setdefault(ours, value.strip())
    return found


def _sysinfo(tree: Tree) -> dict[str, Fact]:
    """Return machine, partition and hypervisor of s390."""
    wanted = {"Type": "type", "Model": "machine_model", "LPAR Name": "lpar", "VM00 Control Program": "control_program"}
    fields = dict(line.split(":", 1) for line in (tree.read("proc/sysinfo") or "").splitlines() if ":" in line)
    return {f"machine.{ours}": fields[name].strip() for name, ours in wanted.items() if name in fields}


def _memory(tree: Tree) -> dict[str, Fact]:
    cpu = read_cpu(tree)
    present: dict[int, int] = {}
    # what is there physically: MemTotal is less by what this kernel build takes for itself
    for zone in read_zones(tree):
        present[zone.node] = present.get(zone.node, 0) + zone.present * (cpu.base_page_size or 0)
    return {
        "memory.nodes": len(present),
        **{f"memory.node{node}": format_size(size) for node, size in sorted(present.items())},
        # in firmware tables, which virtual machines make up
        "memory.dimms": NOT_KNOWN,
        "pages.base": cpu.base_page_size,
        "pages.huge": ",".join(format_size(pool.size) for pool in read_pools(tree)) or "none",
    }


def _virtualization(tree: Tree) -> dict[str, Fact]:
    hypervisor = _text(tree, "sys/hypervisor/type")
    is_guest = (
        hypervisor != NOT_KNOWN
        or "hypervisor" in read_cpu(tree).features
        or "VM00" in (tree.read("proc/sysinfo") or "")
    )
    nested = [_text(tree, f"sys/module/{name}/parameters/nested") for name in ("kvm_intel", "kvm_amd", "kvm", "kvm_hv")]
    return {
        "virtualization.role": "guest" if is_guest else "host",
        "virtualization.hypervisor": hypervisor if hypervisor != NOT_KNOWN else _text(tree, f"{_DMI}/sys_vendor"),
        "virtualization.product": _text(tree, f"{_DMI}/product_name"),
        # a guest cannot see what the host gives it, and a host that measures itself has none
        "virtualization.backing": NOT_KNOWN,
        "virtualization.pinning": NOT_KNOWN,
        "virtualization.nested": next((one for one in nested if one != NOT_KNOWN), NOT_KNOWN),
    }


def _huge_pages(tree: Tree) -> dict[str, Fact]:
    """Return modes and pools as they are before a measurement; what a configuration sets follows from its name."""
    thp = read_thp(tree)
    facts: dict[str, Fact] = {
        "thp.enabled": thp.enabled if thp else NOT_KNOWN,
        "thp.defrag": thp.defrag if thp else NOT_KNOWN,
        "thp.shmem": thp.shmem_enabled if thp else NOT_KNOWN,
    }
    counters = {"pages_collapsed", "full_scans"}
    if thp:
        facts |= {f"thp.khugepaged.{name}": number for name, number in thp.khugepaged.items() if name not in counters}
    pools = {f"nr_hugepages.{format_size(pool.size)}": pool.files.get("nr_hugepages") for pool in read_pools(tree)}
    return facts | pools


def _mitigations(tree: Tree) -> dict[str, Fact]:
    """Return what is not mitigated, and words that say so.

    What is mitigated is left out: a kernel that learns of one more vulnerability is the one under test, and not
    another machine.
    """
    vulnerable = [
        name
        for name in tree.names(_VULNERABILITIES)
        if _text(tree, f"{_VULNERABILITIES}/{name}").startswith("Vulnerable")
    ]
    words = [word for word in (tree.read("proc/cmdline") or "").split() if _MITIGATIONS.fullmatch(word)]
    return {
        "mitigations.vulnerable": ",".join(vulnerable) or "none",
        "mitigations.arguments": " ".join(words) or "none",
    }


def _frequency(tree: Tree) -> dict[str, Fact]:
    no_turbo = _text(tree, f"{_CPUS}/intel_pstate/no_turbo")
    boost = _text(tree, f"{_CPUS}/cpufreq/boost")
    return {
        "frequency.governor": _text(tree, f"{_CPUS}/cpu0/cpufreq/scaling_governor"),
        "frequency.driver": _text(tree, f"{_CPUS}/cpu0/cpufreq/scaling_driver"),
        "frequency.boost": {"0": "1", "1": "0"}.get(no_turbo, boost),
    }


def _kernel_config(tree: Tree) -> str:
    """Return a fingerprint of the configuration of the running kernel."""
    release = (tree.read("proc/sys/kernel/osrelease") or "").strip()
    places = ("/proc/config.gz", f"/boot/config-{release}", f"/lib/modules/{release}/config")
    for place in map(Path, places):
        try:
            content = place.read_bytes()
        except OSError:
            continue
        return hashlib.sha256(gzip.decompress(content) if place.suffix == ".gz" else content).hexdigest()[:16]
    return NOT_KNOWN


def _soft(tree: Tree) -> dict[str, Fact]:
    return {
        "hostname": platform.node() or NOT_KNOWN,
        "bios": _text(tree, f"{_DMI}/bios_version"),
        "uptime": (tree.read("proc/uptime") or NOT_KNOWN).split()[0],
        "free_memory": read_meminfo(tree).get("MemFree", 0),
        "load": os.getloadavg()[0],
    }


def _text(tree: Tree, path: str) -> str:
    """Return the file as one line; ``n/a`` where there is none, or it is empty."""
    return " ".join((tree.read(path) or "").split()) or NOT_KNOWN
