# `make` alone lists the targets. CI calls the same ones.
# ARGS is passed on:  make test ARGS="tests/domain -k lease -n 0"   make bench NAME=jobs ARGS=--json
# AREA is a package:    make test AREA=jobs   make test AREA=transports/kafka

.DEFAULT_GOAL := help
.PHONY: help up dev quick test test-full clients test-clients check audit fmt docs bench lock clean

unexport PYTHONDONTWRITEBYTECODE # tests start thousands of processes; each would compile everything for itself

PYTHON_IN_VENV := .venv/bin/python
PYTEST := $(PYTHON_IN_VENV) -m pytest
IN_PROCESSES := -n 4 --dist loadfile --no-loadscope-reorder # a module stays together: its servers are started once
SERVERLESS = tests/arch tests/domain tests/rest $(shell find tests -type d -name units)
AREAS = $(sort $(patsubst tests/%/,%,$(patsubst tests/capabilities/%,tests/%,$(filter-out tests/capabilities/ tests/kit/,\
	$(wildcard tests/*/ tests/capabilities/*/ tests/transports/*/)))))
AREA_FOLDER = $(firstword $(wildcard tests/capabilities/$(AREA) tests/$(AREA)) tests/$(AREA))
LOCK_OPTIONS := --group build --group dev --universal --python-version 3.11 --generate-hashes \
	--no-header --no-emit-index-url --no-emit-find-links

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-9s %s\n", $$1, $$2 }' Makefile

up: ## install what is needed and start everything on the embedded PostgreSQL
	@sh scripts/bootstrap.sh
	@exec .venv/bin/tickwright up $(ARGS)

dev: ## make .venv with everything that checks and tests need
	@sh scripts/bootstrap.sh dev

quick: dev ## run the tests that need no server: units, properties, architecture; under a minute
	@$(PYTEST) -q -n 2 -m "not mutant" $(SERVERLESS) $(ARGS)

test: dev ## run the tests that guard a change, against real servers that the run starts; AREA=jobs: one package
	@test -e $(if $(AREA),$(AREA_FOLDER),tests) || { echo "There is no area $(AREA). Areas: $(AREAS)"; exit 2; }
	@sh scripts/test-servers.sh
	@$(if $(ARGS)$(filter-out dashboard,$(AREA)),,$(PYTHON_IN_VENV) scripts/page.py verify)
	@$(PYTEST) $(IN_PROCESSES) -m "not mutant and not storm" $(if $(AREA),$(AREA_FOLDER)) $(ARGS)

test-full: dev ## run every test: also mutants, storms, slow disks, matrices of versions
	@sh scripts/test-servers.sh
	@$(PYTHON_IN_VENV) scripts/page.py verify
	@$(PYTEST) $(IN_PROCESSES) $(ARGS)

clients: ## build the client packages for other languages; needs Node.js and Go
	@cd clients/typescript && npm ci --silent --no-audit --no-fund && npm run --silent build
	@cd clients/go && go vet ./...

test-clients: dev ## run the tests of the client packages against a real server
	@sh scripts/test-servers.sh
	@$(PYTEST) tests/clients $(ARGS)

check: dev ## format, lint, types and layers: everything that needs no server
	@$(PYTHON_IN_VENV) scripts/check.py

audit: dev ## look up known vulnerabilities of what requirements.lock and the page's lock name; needs the public indexes
	$(PYTHON_IN_VENV) scripts/audit.py

fmt: dev ## format the code and fix what can be fixed safely
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

docs: dev ## run the examples of the documentation
	@sh scripts/test-servers.sh
	@$(PYTEST) tests/docs $(ARGS)

bench: dev ## measure everything and write docs/performance.md; make bench NAME=… for one
	@$(if $(NAME),.venv/bin/tickwright bench $(NAME) $(ARGS),$(PYTHON_IN_VENV) bench/run.py $(ARGS))

lock: dev ## bring requirements.lock up to date with pyproject.toml
	.venv/bin/uv pip compile pyproject.toml $(LOCK_OPTIONS) --quiet --output-file requirements.lock

clean: ## remove caches and builds; .venv and your data stay
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests bench examples scripts -name __pycache__ -type d -prune -exec rm -rf {} +
