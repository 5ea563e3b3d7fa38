# retail-loyalty: every target sets up what it needs first. `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help setup demo compose-demo up down status images test test-unit test-containers faults lint format docs bench bench-queries bench-ledger bench-containers bench-simulator bench-peers lock clean

N ?=
FILES ?=
BIN := .venv/bin
CODE := schemas services pipelines api infra
LOCK := $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command "make lock"

# Half of the time a test waits. Two processes share one broker; all that needs the Spark session runs in one of them (tests/conftest.py).
TOGETHER := --numprocesses 2 --dist loadgroup

# Compose v2 where it is installed, else docker-compose 1.29.
COMPOSE = $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)

# The environment's own Python once it exists; PYTHON=… asks for another.
FIND_PYTHON = for python in $(or $(PYTHON),$(BIN)/python python3 python3.13 python3.12 python3.11 python3.14); do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; python=; done; \
	test -n "$$python" || { echo "set-up: Python 3.11 or newer is needed: install it, or give PYTHON=path" >&2; exit 1; }

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  \033[1m%-16s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## environment, Java and jars; does nothing when they are there (PYTHON=path)
	@$(FIND_PYTHON); PYTHON="$(PYTHON)" "$$python" -m infra.setup

demo: setup ## a simulated trading day through the whole stack, every result checked (N=invoices, FILES="a.jsonl b.jsonl")
	@$(BIN)/python -m infra.demo $(if $(N),--invoices $(N)) $(FILES)

compose-demo: setup ## the same in containers: builds the images, starts them, checks from outside, takes all down (N=, FILES=, SECURED=1)
	@$(BIN)/python -m infra.demo --containers $(if $(SECURED),--secured) $(if $(N),--invoices $(N)) $(FILES)

up: setup ## start Kafka, the pipeline and the API; data under ./var
	@$(BIN)/python -m infra.local up

down: setup ## stop what `make up` started; the data stays
	@$(BIN)/python -m infra.local down

status: setup ## what of `make up` is running
	@$(BIN)/python -m infra.local status

test: lint ## lint and all tests
	$(BIN)/pytest $(TOGETHER)

test-unit: setup ## the tests of pure code: no JVM, no broker, seconds
	$(BIN)/pytest tests/unit

images: ## build the images of docker-compose.yml (BASE_IMAGE=, BUILD_NETWORK=host)
	$(COMPOSE) --profile simulate --profile cluster build

test-containers: setup images ## the integration tests on the images, and those of the images and of the Spark cluster
	$(BIN)/pytest tests/integration tests/containers --containers

faults: setup ## kill, fill, cut and corrupt a stack under load, and audit what came of it (ONLY="broker")
	$(BIN)/python -m tests.faults $(if $(ONLY),--only "$(ONLY)")

lint: setup ## ruff, mypy, import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## let ruff format and fix the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: setup ## build the documentation site into var/site; every link is checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	@echo "The site is ready: open var/site/index.html"

bench: setup ## measure throughput, cost, latency and memory of the pipeline
	$(BIN)/python -m benchmarks.pipeline

bench-queries: setup ## measure restore, reads and an owner's death of the interactive queries (OPTIONS="--balances 100000")
	$(BIN)/python -m benchmarks.queries $(OPTIONS)

bench-ledger: setup ## measure entries a second into the ledger, SQLite and PostgreSQL
	$(BIN)/python -m benchmarks.ledger

bench-containers: setup ## measure builds, sizes, start and memory of the containers
	$(BIN)/python -m benchmarks.containers

bench-simulator: setup ## measure the POS simulator (needs a broker: make up)
	$(BIN)/python -m benchmarks.simulator

bench-peers: setup ## measure against Kafka Streams, Quix Streams and Faust; needs a JDK 17 (ONLY="growth", OPTIONS="--rounds 2")
	$(BIN)/python -m benchmarks.peers $(foreach part,$(ONLY),--only $(part)) $(OPTIONS)
	$(BIN)/python -m benchmarks.peers.document

lock: setup ## pin the packages of pyproject.toml and the jars of infra/ivy.xml (UPGRADE=--upgrade for newer ones)
	$(LOCK) $(UPGRADE) pyproject.toml --all-extras --group dev -o requirements/all.txt
	$(LOCK) -c requirements/all.txt --group build -o requirements/build.txt
	$(LOCK) -c requirements/all.txt pyproject.toml --extra api -o requirements/api.txt
	$(LOCK) -c requirements/all.txt pyproject.toml --extra pipeline -o requirements/pipeline.txt
	$(LOCK) --group peers -o requirements/peers.txt
	$(BIN)/python -m infra.setup lock-jars
	$(BIN)/python -m benchmarks.peers.setup lock-jars

clean: ## delete what can be made again, and the data of `make up`
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m infra.local down; fi
	rm -rf .venv var .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
