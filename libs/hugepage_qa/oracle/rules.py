"""Every rule that a boot is judged by: what it says, where it comes from, which kernels it holds for."""

from collections.abc import Mapping
from dataclasses import dataclass

from hugepage_qa.version import KernelVersion

HUGETLB_DOC = "Documentation/admin-guide/mm/hugetlbpage.rst"
THP_DOC = "Documentation/admin-guide/mm/transhuge.rst"
PARAMETERS_DOC = "Documentation/admin-guide/kernel-parameters.txt"


@dataclass(frozen=True)
class Rule:
    """One thing that a kernel must do, from version ``since`` on and before version ``until``."""

    name: str
    statement: str
    source: str
    since: KernelVersion | None = None
    until: KernelVersion | None = None

    def holds_for(self, version: KernelVersion) -> bool:
        """Tell whether kernels of ``version`` follow this rule."""
        return (self.since is None or version >= self.since) and (self.until is None or version < self.until)


def _version(text: str) -> KernelVersion:
    return KernelVersion.parse(text)


# --- which pools there are -------------------------------------------------------------------------------------------
POOL_EXISTS = Rule(
    "pool-exists",
    "each hugetlb page size that the architecture and CPU have, and no other, has a pool",
    f"{HUGETLB_DOC}; arch_hugetlb_valid_size() and hugetlbpage_init() in arch/*/mm/hugetlbpage.c",
)
NO_SUPPORT = Rule(
    "no-huge-pages-without-cpu-support",
    "a CPU without huge pages has no pools, and the parameters for them are ignored",
    "mm/hugetlb.c hugetlb_init(); hugepages_supported()",
)
DEFAULT_SIZE = Rule(
    "default-size",
    "default_hugepagesz= chooses the size that /proc/meminfo and vm.nr_hugepages count, else it is the architecture's",
    f"{HUGETLB_DOC} default_hugepagesz; {PARAMETERS_DOC}",
)
DEFAULT_FILES = Rule(
    "default-size-files",
    "/proc/meminfo HugePages_* and vm.nr_hugepages show the pool of the default size",
    f"{HUGETLB_DOC}; mm/hugetlb.c hugetlb_report_meminfo()",
)
HUGETLB_TOTAL = Rule(
    "hugetlb-total",
    "Hugetlb: in /proc/meminfo is the memory in the pools of all sizes",
    f"{HUGETLB_DOC} Hugetlb; mm/hugetlb.c hugetlb_report_meminfo()",
)
TOTAL_HAS_POOLS = Rule(
    "total-has-the-pools",
    "MemTotal of the machine and of a node is the memory in its pools, what is free, and what else is in use",
    "Documentation/filesystems/proc.rst MemTotal; mm/hugetlb.c gather_bootmem_prealloc()",
)
TOTAL_IS_THERE = Rule(
    "total-is-there",
    "MemTotal of the machine and of a node is no more than the memory that lies there",
    "Documentation/filesystems/proc.rst MemTotal; mm/page_alloc.c adjust_managed_page_count()",
)
TOTAL_COMES_BACK = Rule(
    "total-comes-back",
    "with kernelcore= or movablecore= MemTotal of the machine and of a node lacks less than a gigantic page, whether"
    " boot has such pages or gives them back, since they lie in two zones",
    "Documentation/filesystems/proc.rst MemTotal; mm/hugetlb.c hugetlb_free_cross_zone_pages()",
)

# --- how many pages --------------------------------------------------------------------------------------------------
POOL_SIZE = Rule(
    "pool-size",
    "hugepages= reserves that many pages of the size before it, or of the default size when it comes first",
    f"{HUGETLB_DOC} hugepages",
)
POOL_UNASKED = Rule(
    "pool-unasked",
    "a size that no parameter reserves pages of has an empty pool",
    f"{HUGETLB_DOC} hugepages",
)
POOL_BOUNDED = Rule(
    "pool-bounded-by-memory",
    "an over-ask reserves what fits into the memory there is, and no more",
    f"{HUGETLB_DOC}; mm/hugetlb.c hugetlb_hstate_alloc_pages_errcheck()",
)
NODE_FORM = Rule(
    "node-form",
    "hugepages=<node>:<count> reserves that many pages on that node and none elsewhere",
    f"{HUGETLB_DOC} node format",
    since=_version("5.16"),
)
NODE_SPREAD = Rule(
    "node-spread",
    "without the node form pages are spread evenly over the nodes with memory",
    f"{HUGETLB_DOC}; mm/hugetlb.c for_each_node_mask_to_alloc()",
)
NODE_SUM = Rule(
    "node-sum",
    "the pages of the nodes add up to the pool",
    f"{HUGETLB_DOC} per node hugepages attributes",
)
ALL_FREE = Rule(
    "all-free-at-boot",
    "right after boot every page of a pool is free, none is reserved or surplus, overcommit is 0",
    f"{HUGETLB_DOC} interaction of the counters",
)
MEMPOLICY_VIEW = Rule(
    "mempolicy-view",
    "nr_hugepages_mempolicy reads like nr_hugepages",
    f"{HUGETLB_DOC} nr_hugepages_mempolicy",
)
CMA_SKIPS_GIGANTIC = Rule(
    "cma-skips-gigantic",
    "with a hugetlb_cma= area and without hugetlb_cma_only= no gigantic page is reserved at boot",
    f"{PARAMETERS_DOC} hugetlb_cma; mm/hugetlb.c hugetlb_hstate_alloc_pages()",
    since=_version("5.7"),
)
CMA_ONLY = Rule(
    "cma-only",
    "with hugetlb_cma_only= gigantic pages are reserved in the hugetlb_cma= areas, as many as these hold",
    f"{PARAMETERS_DOC} hugetlb_cma_only; mm/hugetlb_cma.c hugetlb_early_cma(), hugetlb_cma_alloc_bootmem()",
    since=_version("6.15"),
)
SET_BEFORE_INIT = Rule(
    "set-before-init",
    "sysctl.vm.nr_hugepages= sets the pool of the default size right before init starts",
    f"{PARAMETERS_DOC} sysctl.*; fs/proc/proc_sysctl.c do_sysctl_args()",
    since=_version("5.8"),
)
CMA_USED = Rule(
    "cma-used",
    "gigantic pages that the running kernel allocates come out of the hugetlb_cma= areas",
    f"{PARAMETERS_DOC} hugetlb_cma; mm/hugetlb.c alloc_gigantic_folio()",
    since=_version("5.7"),
)
CMA_AREA = Rule(
    "cma-area",
    "hugetlb_cma= reserves an area of that size, on the nodes named or spread over all",
    f"{PARAMETERS_DOC} hugetlb_cma; hugetlb_cma_reserve()",
    since=_version("5.7"),
)
CMA_ON_NODE = Rule(
    "cma-on-node",
    "the area of a node that hugetlb_cma= reserves lies on that node",
    f"{PARAMETERS_DOC} hugetlb_cma; hugetlb_cma_reserve(); mm/vmstat.c zoneinfo_show_print()",
    since=_version("5.13"),
)
MOVABLE_ZONE = Rule(
    "movable-zone",
    "what kernelcore= leaves of all memory is movable, or as much as movablecore= asks for, whichever is less",
    f"{PARAMETERS_DOC} kernelcore, movablecore; mm/mm_init.c find_zone_movable_pfns_for_nodes()",
)

# --- what the log says -----------------------------------------------------------------------------------------------
LOG_POOL = Rule(
    "log-pre-allocated",
    "the kernel log names each pool and how many pages it pre-allocated",
    "mm/hugetlb.c report_hugepages()",
)
LOG_FREEABLE = Rule(
    "log-freeable",
    "of the struct pages of a page all that do not lie in one base page can be freed, or none of pages of any size",
    "mm/hugetlb.c report_hugepages(); mm/hugetlb_vmemmap.h hugetlb_vmemmap_optimizable_size()",
    since=_version("6.0"),
)
LOG_WARNING = Rule(
    "warning-given",
    "a size, count, policy, list or truth value that cannot be parsed, and a parameter that has no effect where it "
    "stands, are reported in the kernel log; what follows the digits of a count is not, nor hugepage_alloc_threads=",
    f"{HUGETLB_DOC}; mm/hugetlb.c hugepages_setup(), hugepagesz_setup(), default_hugepagesz_setup()",
)
LOG_SHORTAGE = Rule(
    "shortage-warning",
    "a reservation that fell short, and only such a one, is reported with the number asked and the number reserved",
    "mm/hugetlb.c hugetlb_hstate_alloc_pages_errcheck(), hugetlb_hstate_alloc_pages_onenode()",
)
LOG_QUIET = Rule(
    "no-other-warning",
    "parameters that are in order give no warning about huge pages",
    "mm/hugetlb.c, mm/huge_memory.c, mm/shmem.c, mm/hugetlb_cma.c",
)
KNOWN_WORD = Rule(
    "parameter-known",
    "a kernel that documents a parameter and is configured for it does not call a valid value of it unknown",
    "init/main.c print_unknown_bootoptions(); obsolete_checksetup() passes a value on that its handler refused",
    since=_version("5.14"),
)
UNKNOWN_WORD = Rule(
    "misspelt-reported",
    "a word that looks like a huge page parameter and is none is called unknown by the kernel",
    "init/main.c print_unknown_bootoptions()",
    since=_version("5.14"),
)

# --- transparent huge pages ------------------------------------------------------------------------------------------
THP_ENABLED = Rule(
    "thp-enabled",
    "transparent_hugepage= sets the global switch; the last valid one wins, an invalid one changes nothing",
    f"{THP_DOC} boot parameters; mm/huge_memory.c setup_transparent_hugepage()",
)
THP_SMALL_MEMORY = Rule(
    "thp-small-memory",
    "where the kernel manages less than 512 MiB the switch is never, whatever the command line says",
    "mm/huge_memory.c hugepage_init(); totalram_pages(), which lacks what the kernel itself takes",
)
THP_ABSENT = Rule(
    "thp-absent",
    "a CPU without huge pages has no transparent_hugepage directory",
    "mm/huge_memory.c hugepage_init(); has_transparent_hugepage()",
)
THP_PMD_SIZE = Rule(
    "thp-pmd-size",
    "hpage_pmd_size is the size of a PMD entry",
    f"{THP_DOC} hpage_pmd_size",
)
THP_SWITCHES = Rule(
    "thp-switches",
    "what no parameter sets has the value that the kernel starts with: defrag, use_zero_page, the knobs of khugepaged",
    f"{THP_DOC}; mm/huge_memory.c transparent_hugepage_flags, mm/khugepaged.c khugepaged_init()",
)
THP_SHARED_PTES = Rule(
    "thp-shared-ptes",
    "max_ptes_shared is half of the pages that a PMD-sized page has",
    f"{THP_DOC} max_ptes_shared; mm/khugepaged.c khugepaged_init()",
    since=_version("5.8"),
)
THP_UNDERUSED = Rule(
    "thp-underused",
    "huge pages that hold little are split under pressure unless shrink_underused is switched off",
    f"{THP_DOC} shrink_underused; mm/huge_memory.c split_underused_thp",
    since=_version("6.12"),
)
KHUGEPAGED = Rule(
    "khugepaged-runs",
    "khugepaged runs when PMD-sized THP are enabled, since 7.2 when any size is, and not when all are never",
    f"{THP_DOC} khugepaged; mm/khugepaged.c start_stop_khugepaged()",
)
THP_ANON = Rule(
    "thp-anon",
    "thp_anon= sets each anonymous size; once given, sizes not named are never; without it the PMD size inherits",
    f"{THP_DOC} boot parameters; mm/huge_memory.c setup_thp_anon()",
    since=_version("6.12"),
)
THP_SIZES = Rule(
    "thp-sizes",
    "each anonymous THP size has a directory of its own",
    f"{THP_DOC}; THP_ORDERS_ALL_ANON",
    since=_version("6.8"),
)
THP_SHMEM = Rule(
    "thp-shmem",
    "thp_shmem= sets each shmem size; once given, sizes not named are never; without it the PMD size inherits",
    f"{THP_DOC} boot parameters; mm/shmem.c setup_thp_shmem()",
    since=_version("6.13"),
)
SHMEM_ENABLED = Rule(
    "shmem-enabled",
    "transparent_hugepage_shmem= sets the policy of the internal shmem mount; the last valid one wins",
    f"{THP_DOC} boot parameters; mm/shmem.c setup_transparent_hugepage_shmem()",
    since=_version("6.13"),
)
TMPFS_HUGE = Rule(
    "tmpfs-huge",
    "transparent_hugepage_tmpfs= sets the huge= option that a tmpfs mount gets by default",
    f"{THP_DOC} boot parameters; mm/shmem.c setup_transparent_hugepage_tmpfs()",
    since=_version("6.14"),
)

# --- the rest --------------------------------------------------------------------------------------------------------
VMEMMAP = Rule(
    "vmemmap-optimisation",
    "hugetlb_free_vmemmap= is what vm.hugetlb_optimize_vmemmap reads",
    f"{HUGETLB_DOC} hugetlb_free_vmemmap; mm/hugetlb_vmemmap.c",
    since=_version("6.1"),
)
ALLOC_THREADS = Rule(
    "allocation-threads",
    "hugepage_alloc_threads= is the number of threads that the log names; 0 and non-numbers are ignored",
    f"{HUGETLB_DOC} hugepage_alloc_threads; mm/hugetlb.c hugepage_alloc_threads_setup()",
    since=_version("6.15"),
)
HUGETEXT = Rule(
    "hugetext",
    "hugetext=0..3 sets hugetext_enabled; the last one wins, 4 and up are ignored; lost below 512 MiB",
    "Alibaba Cloud Linux documentation of hugetext; mm/huge_memory.c setup_hugetext() of ANCK 5.10",
)
KVM_HPAGE = Rule(
    "kvm-hpage",
    "kvm.hpage= is what the kvm module's parameter reads",
    "arch/s390/kvm/kvm-s390.c module_param(hpage), since 7.3 in arch/s390/kvm/s390/s390.c",
    since=_version("4.19"),
)
SURVIVES = Rule(
    "boot-survives",
    "the kernel boots to its init unless the parameters ask for all of its memory",
    f"{HUGETLB_DOC}; mm/oom_kill.c",
)

RULES: Mapping[str, Rule] = {rule.name: rule for rule in list(globals().values()) if isinstance(rule, Rule)}
