"""The table of formats that the gate imports: a new one is one file, and one entry."""

from collections.abc import Callable, Mapping
from pathlib import Path

from hugepage_gate.importers.csv_samples import read_csv
from hugepage_gate.importers.fio_json import read_fio
from hugepage_gate.importers.foreign_series import Origin
from hugepage_gate.importers.go_benchmark import read_go_benchmark
from hugepage_gate.importers.hyperfine_json import read_hyperfine
from hugepage_gate.importers.lkp_stats import read_lkp
from hugepage_gate.importers.mmtests_json import read_mmtests
from hugepage_gate.importers.pgbench_output import read_pgbench
from hugepage_gate.importers.phoronix_xml import read_phoronix
from hugepage_gate.importers.pyperf_json import read_pyperf
from hugepage_gate.importers.sysbench_output import read_sysbench
from hugepage_gate.samples import SampleSet

#: each reads one file, and raises InputError for what is not of its format
FORMATS: Mapping[str, Callable[[Path, Origin], SampleSet]] = {
    "csv": read_csv,
    "fio": read_fio,
    "go": read_go_benchmark,
    "hyperfine": read_hyperfine,
    "lkp": read_lkp,
    "mmtests": read_mmtests,
    "pgbench": read_pgbench,
    "phoronix": read_phoronix,
    "pyperf": read_pyperf,
    "sysbench": read_sysbench,
}
