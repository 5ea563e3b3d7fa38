# Every target first installs what it needs. `make help` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup test-tools screenshots demo compose-demo up kafka down status images sbom audit-dependencies test test-all test-unit test-containers test-install test-object-store object-store-jars faults fuzz lint format docs contracts release bench bench-queries bench-repeats bench-latency bench-ledger bench-export bench-containers bench-simulator bench-peers verdict soak lock clean

N ?=
FILES ?=
DEMO_OPTIONS = $(if $(N),--invoices $(N)) $(if $(RATE),--rate $(RATE))
BIN := .venv/bin
CODE := schemas services pipelines api infra
LOCK := $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command "make lock"

# Tests spend much time waiting, so four processes run them on two cores. The processes share one broker. All tests that need
# a Spark session run in two of the four (tests/conftest.py). If a process crashes, the run ends, because pytest-xdist 3.8
# hangs when it replaces a process (pytest-dev/pytest-xdist#1323).
DISTRIBUTED := --dist loadgroup --max-worker-restart 0

# Without cached bytecode, each start of a Python program compiles all modules again. This takes a third of the start.
unexport PYTHONDONTWRITEBYTECODE

# Compose v2 if it is installed, otherwise docker-compose 1.29.
COMPOSE = $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)

# The Python of the virtual environment, if it exists. PYTHON=… selects another one.
FIND_PYTHON = for python in $(or $(PYTHON),$(BIN)/python python3 python3.13 python3.12 python3.11 python3.14); do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; python=; done; \
	test -n "$$python" || { echo "set-up: no Python 3.11 or newer found: install one, or use PYTHON=path" >&2; exit 1; }

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  \033[1m%-16s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install the environment, Java and the jars, if they are missing (PYTHON=path)
	@$(FIND_PYTHON); PYTHON="$(PYTHON)" "$$python" -m infra.setup

demo: setup ## run a simulated trading day through the whole stack and check all results (N=invoices, RATE=per second, FILES="a.jsonl b.jsonl", FORMAT=delta, OPEN=1: leave it running)
	@$(BIN)/python -m infra.demo $(DEMO_OPTIONS) $(if $(FORMAT),--export-format $(FORMAT)) $(if $(OPEN),--open) $(FILES)

compose-demo: setup ## run the demo in containers: build, start, check, remove (N=, RATE=, FILES=, SECURED=1)
	@$(BIN)/python -m infra.demo --containers $(if $(SECURED),--secured) $(DEMO_OPTIONS) $(FILES)

up: setup ## start Kafka, the pipeline, the API and the ledger; the data is in ./var
	@$(BIN)/python -m infra.local up

kafka: setup ## start Kafka alone, for example for `loyalty rebuild` after a lost checkpoint
	@$(BIN)/python -m infra.local kafka

down: setup ## stop the stack of `make up`; the data stays
	@$(BIN)/python -m infra.local down

status: setup ## show which parts of `make up` run, their lag, dead letters and freshness
	@$(BIN)/python -m infra.local status; parts=$$?; [ $$parts -le 1 ] || exit $$parts; $(BIN)/loyalty status && exit $$parts

test-tools: setup ## install what some tests need: Chromium, kcat and promtool with apt, and Apicurio Registry
	@$(BIN)/python -m infra.setup test-tools

test: setup ## run lint and all tests, except those of containers, object stores and the wheel
	@$(MAKE) --no-print-directory -j2 lint test-all

test-all: test-tools
	$(BIN)/pytest --numprocesses 4 $(DISTRIBUTED)

# These tests hardly wait. With worksteal, most tests of a file stay in one process, which creates their fixtures once.
test-unit: setup ## run the tests that need no other program, with a tenth of the examples of properties
	TEST_EXAMPLES=few $(BIN)/pytest tests/unit -m "not program" --numprocesses 3 --dist worksteal --max-worker-restart 0

screenshots: test-tools ## make the pictures of the console in docs/pictures again
	mkdir -p docs/pictures
	SCREENSHOTS=docs/pictures $(BIN)/pytest tests/integration/test_console.py

images: ## build the images of docker-compose.yml (BASE_IMAGE=, BUILD_NETWORK=host)
	IMAGE_TAG=latest $(COMPOSE) --profile simulate --profile cluster build

sbom: setup ## write the SBOM of each image into var/sbom (CycloneDX)
	$(BIN)/python -m infra.supply_chain sbom

audit-dependencies: setup ## compare all packages, jars and scripts with OSV exports, without network (OSV="PyPI.zip Maven.zip npm.zip")
	@$(BIN)/python -m infra.supply_chain audit $(OSV)

test-containers: setup images ## run the tests of the images, of the whole stack in containers and of the Spark cluster
	$(BIN)/pytest tests/integration tests/containers --containers

test-install: setup ## install the wheel into an empty environment, and run `loyalty demo`, `up` and `down` in an empty folder
	$(BIN)/python -m tests.install

object-store-jars: setup ## download what an export to S3 needs into var/s3/jars: Spark's jars with S3, and S3Proxy for the test
	@$(BIN)/python -m infra.setup object-store-jars

test-object-store: object-store-jars ## test the export to S3 against S3Proxy
	$(BIN)/pytest tests/integration/test_s3.py

faults: test-tools ## inject faults into a stack under load, and audit all accounts after each (ONLY="broker", TIMES=20)
	$(BIN)/python -m tests.faults $(if $(ONLY),--only "$(ONLY)") $(if $(TIMES),--times $(TIMES))

fuzz: setup ## feed bad inputs to every fuzz target: Kafka, HTTP, files, arguments (N=1000000 for each target, ONLY="kafka", STACK=3000: to a running stack)
	$(BIN)/python -m tests.fuzz $(if $(N),--inputs $(N)) $(if $(STACK),--stack $(STACK)) $(foreach target,$(ONLY),--only $(target))

lint: setup ## run ruff, mypy and import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## format and fix the code with ruff
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: setup ## build the documentation site in var/site and check all links
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	@echo "The site is complete: open var/site/index.html"

contracts: setup ## write the OpenAPI and AsyncAPI documents, and the parts of docs that come from code (RELEASE=1: make them the contracts of the last release)
	$(BIN)/python -m infra.contracts $(if $(RELEASE),--release)
	$(BIN)/python -m infra.site

release: setup ## build the packages, SBOMs, contracts and checksums of the current commit in dist/
	$(BIN)/python -m infra.release

bench: setup ## measure throughput, cost, latency and memory of the pipeline
	$(BIN)/python -m benchmarks.pipeline

bench-queries: setup ## measure restore, reads and failover of the interactive queries (OPTIONS="--balances 100000")
	$(BIN)/python -m benchmarks.queries $(OPTIONS)

bench-repeats: setup ## measure micro-batches of each query while it remembers 0 to 4 million invoice numbers (OPTIONS="--remembered 0 16000000")
	$(BIN)/python -m benchmarks.repeats $(OPTIONS)

bench-latency: setup ## measure the time from a till to a balance, and from a redemption to its answer (OPTIONS="--runs 1 --set shuffle_partitions=2")
	$(BIN)/python -m benchmarks.latency $(OPTIONS)

verdict: test-tools ## run `make test` ten times under load, and count flaky tests (OPTIONS="--runs 1 --load 0")
	$(BIN)/python -m benchmarks.verdict $(OPTIONS)

soak: setup ## run the stack of `make up` for four hours at 100 invoices/s; measure memory, threads, descriptors, disk and latency (OPTIONS="--hours 1")
	$(BIN)/python -m benchmarks.soak $(OPTIONS)

bench-ledger: setup ## measure entries per second into the ledger, with SQLite and PostgreSQL
	$(BIN)/python -m benchmarks.ledger

bench-export: setup ## measure the export to Parquet and to Delta: records per second and files
	$(BIN)/python -m benchmarks.export

bench-containers: setup ## measure builds, sizes, start and memory of the containers
	$(BIN)/python -m benchmarks.containers

bench-simulator: setup ## measure the till simulator (start a broker first: make up)
	$(BIN)/python -m benchmarks.simulator

bench-peers: setup ## compare with Kafka Streams, Quix Streams and Faust; needs a JDK 17 (ONLY="growth", OPTIONS="--rounds 2")
	$(BIN)/python -m benchmarks.peers $(foreach part,$(ONLY),--only $(part)) $(OPTIONS)

lock: setup ## pin the packages of pyproject.toml and the jars of infra/ivy.xml (UPGRADE=--upgrade: newer versions)
	$(LOCK) $(UPGRADE) pyproject.toml --all-extras --group dev -o requirements/all.txt
	$(LOCK) -c requirements/all.txt --group build -o requirements/build.txt
	$(LOCK) -c requirements/all.txt pyproject.toml --extra api -o requirements/api.txt
	$(LOCK) -c requirements/all.txt pyproject.toml --extra pipeline -o requirements/pipeline.txt
	$(LOCK) --group peers -o requirements/peers.txt
	$(BIN)/python -m infra.setup lock-jars
	$(BIN)/python -m benchmarks.peers.setup lock-jars

clean: ## delete all generated files and the data of `make up`
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m infra.local down; fi
	rm -rf .venv var dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
