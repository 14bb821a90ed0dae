# The two commands that matter are "make qa" and "make test"; "make" alone prints what there is.
#
# Values that a user gives reach the programs through the environment. They are taken verbatim, and no recipe
# has them spliced in: a value can hold spaces, quotes or $(...) and stays a value.
override export PLAN := $(value PLAN)
override export ARCH := $(value ARCH)
override export KERNEL := $(value KERNEL)
override export APPEND := $(value APPEND)
override export MEMORY := $(value MEMORY)
override export PROVISION := $(value PROVISION)
override export TMT_ARGS := $(value TMT_ARGS)
override export KERNELS := $(value KERNELS)
SERIES ?= 6.1
override export SERIES := $(value SERIES)
ifdef ACCEPT
override export HUGEPAGE_QA_ACCEPT := $(value ACCEPT)
endif

BIN := .venv/bin

.PHONY: help qa test survey lint bench setup lab-kernel seeded-kernel seeded-table worker docs packages clean

help:
	@echo "make qa     boot huge page parameters on throwaway machines and judge them (PLAN=smoke)"
	@echo "            PLAN=smoke|boot|kernel  ARCH=\"aarch64 ppc64le s390x\"  KERNEL=path  APPEND=\"words\"  TMT_ARGS=\"-vvv\""
	@echo "            PLAN=functional  every rule of the pools on this machine (root), which is put back"
	@echo "            PLAN=thp|text    transparent huge pages, and those of program text, on this machine"
	@echo "            PLAN=functional PROVISION=lab  the same and reboots on a system machine in QEMU; MEMORY=16G (8G)"
	@echo "            PLAN=guest  guests of QEMU and libvirt on huge pages of this machine (root)"
	@echo "            PLAN=vt     the same guests as tests of avocado-vt, which is installed apart from all else (root)"
	@echo "            PLAN=gate ACCEPT=\"reason\"  performance against the baseline of this machine (root); ACCEPT takes a first one"
	@echo "make test   the suite's own tests, throwaway machines included"
	@echo "make survey measure Debian's kernels for docs/kernels; hours or days, and it goes on where it was stopped"
	@echo "            KERNELS=\"trixie/x86_64 sid */s390x\""
	@echo "make lab-kernel  a kernel with READ_ONLY_THP_FOR_FS, for PROVISION=lab KERNEL=build/lab-kernel/bzImage"
	@echo "make seeded-kernel  a kernel with small faults of our own, one of them chosen at boot (SERIES=6.1|6.12|7.3)"
	@echo "make seeded-table   show that these faults act, and which of them the cases find; hours"
	@echo "make lint   ruff, mypy, tmt lint, and the files for CI systems"
	@echo "make docs   HTML and a manual page below build/docs"
	@echo "make packages  sdist, wheel, source RPM and RPMs below build/packages"
	@echo "make bench  how fast the suite itself is"
	@echo "make worker stock tmt and a fresh machine, as in CI; an hour, 8 GiB"
	@echo "make clean  remove what the above made in this directory, but not the packages of the distribution"

# for the tests and the tools: what any plan needs
setup:
	@ci/setup.sh --all

qa: BIN := $(if $(filter vt,$(PLAN)),.venv-vt/bin,$(BIN))
qa:
	@ci/setup.sh && $(BIN)/python ci/qa.py

# with bytecode also for users who turn it off: else every worker and every program under test compiles all modules anew
test: setup
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n auto --dist worksteal

survey: setup
	@$(BIN)/python ci/survey.py

lint: setup
	@$(BIN)/ruff check
	@$(BIN)/mypy
	@$(BIN)/tmt lint --enforce-check C000 --outcome-only fail --outcome-only warn
	@$(BIN)/python ci/check_ci_files.py
	@rpmlint --config ci/rpmlint.toml ci/hugepage-qa.spec

docs: setup
	@$(BIN)/python ci/build_docs.py

packages: setup
	@ci/build_packages.sh build/packages

bench: setup
	@$(BIN)/python ci/bench.py
	@$(BIN)/python ci/bench_live.py
	@$(BIN)/python ci/bench_ps.py
	@$(BIN)/python ci/bench_gate.py
	@$(BIN)/python -m tests.bench.merge_runs

lab-kernel:
	@ci/lab-kernel.sh

seeded-kernel: setup
	@$(BIN)/python -m ci.seeded_kernel.build_kernel --series "$$SERIES"

seeded-table: setup
	@$(BIN)/python -m ci.seeded_kernel.proofs "build/seeded-kernel/$$SERIES/bzImage" || [ $$? -eq 1 ]
	@$(BIN)/python -m ci.seeded_kernel.detection "build/seeded-kernel/$$SERIES/bzImage"

worker: setup
	@$(BIN)/python ci/worker_test.py --inject

clean:
	rm -rf .venv .venv-vt .cache build .mypy_cache .ruff_cache .pytest_cache .hypothesis libs/hugepage_qa.egg-info
	find libs tests ci -name __pycache__ -type d -prune -exec rm -rf {} +
