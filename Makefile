# `make demo` and `make test` set themselves up in .venv on a machine that has Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo lint lint-types lint-rest test test-all test-browser test-server test-crash test-distributed test-other test-ray test-lowest newcomer reference docs links dist web audit sbom release-check shipped-model help
help:
	@echo "make demo   try the model on a photo; draw faces, train, fine-tune, test and visualize (two to four minutes on two cores)"
	@echo "make lint   style, types, spelling, prose, layers, and pages that must agree with the code (seconds)"
	@echo "make test   make lint and the default tests (about three minutes on two cores)"
	@echo "make test-all  these and the tests marked slow (about a quarter of an hour in all)"
	@echo "make test-browser, test-server, test-crash, test-distributed, test-other  a part of the tests marked slow"
	@echo "make test-ray  the test of the recipe for Ray; installs the extra ray (250 MB) into .venv"
	@echo "make test-lowest  the default tests with the oldest dependencies that pyproject.toml allows, in build/lowest"
	@echo "make newcomer  the core alone in a new environment: its size, README's commands and Python"
	@echo "make reference  write the pages of docs/reference that are made from code"
	@echo "make docs   build the documentation as a site in build/site"
	@echo "make links  check the links of the documentation, also into the web"
	@echo "make dist   build and check the source archive and the wheel in dist"
	@echo "make web    build the page that computes in the visitor's browser in build/web (needs Node 20 or newer)"
	@echo "make audit  look for known vulnerabilities in the pinned dependencies"
	@echo "make sbom   list what an installation without extras contains, in build/sbom.json"
	@echo "make release-check TAG=v0.2.0  check that the files fit a tag, and write build/notes.md"
	@echo "make shipped-model FERPLUS=ferplus.zip FAIRFACE=fairface.zip  train the shipped model (hours on two cores; resumes)"

# If this is newer than pyproject.toml and constraints.txt, everything is installed.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12"; exit 1; }
	@echo "Installing fer-vit into .venv (once; torch is large)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv || { rm -rf .venv; echo "Install Python's venv (Debian: python3-venv)"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

# A test file stays in one process: its fixtures are made once, and tests that mount or fork do not meet.
# Compiled files are kept: tests start many processes, which read the package.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile

# Tests that read the code and the documentation, and run nothing.
CHECKS := tests/test_layers.py tests/test_pages.py

# CHANGELOG.md and the generated pages follow the code.
PROSE := README.md CONTRIBUTING.md SECURITY.md data/README.md $(filter-out docs/reference/%,$(wildcard docs/*/*.md))

# The parts run side by side; mypy takes half a minute without its cache.
lint: .venv/installed
	@$(MAKE) --no-print-directory -j 2 lint-types lint-rest

lint-types:
	$(BIN)/mypy

lint-rest:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/proselint --config .proselintrc.json check $(PROSE)
	$(BIN)/python -m pytest -n 0 $(CHECKS)

test: lint
	$(PYTEST) $(CHECKS:%=--ignore=%)

test-all: test
	$(PYTEST) -m slow

# Parts of the slow tests, which CI runs as jobs; `other` is what no other part has.
SERVER := tests/app tests/attacks tests/commands/test_app.py tests/commands/test_live.py
CRASH := tests/test_crashes.py tests/test_processes.py tests/commands/test_hostile.py
DISTRIBUTED := tests/train/test_distributed.py
test-browser: PART := -m browser
test-server: PART := -m "slow and not browser" $(SERVER)
test-crash: PART := -m slow $(CRASH)
test-distributed: PART := -m slow $(DISTRIBUTED)
test-other: PART := -m "slow and not browser" $(patsubst %,--ignore=%,$(SERVER) $(CRASH) $(DISTRIBUTED))
test-browser test-server test-crash test-distributed test-other: .venv/installed
	$(PYTEST) $(PART)

# The extra `ray` is not in `dev`.
test-ray: .venv/installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[ray]"
	$(BIN)/python -m pytest -n 0 -m slow tests/predict/test_ray.py

# uv chooses the lowest versions of what pyproject.toml names, and the newest of everything else.
LOWEST := build/lowest
test-lowest:
	@rm -rf $(LOWEST)
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet "uv>=0.9,<1"
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct -e ".[tests]"
	$(LOWEST)/bin/python -m pytest -n 2 --dist loadfile

NEWCOMER := build/newcomer
newcomer: .venv/installed
	PYTHON=$(CURDIR)/$(BIN)/python bash .ci/newcomer.sh data/sample/astronaut.jpg $(NEWCOMER)
	CORE_PYTHON=$(CURDIR)/$(NEWCOMER)/venv/bin/python $(BIN)/python -m pytest -n 2 tests/test_core.py

reference: .venv/installed
	$(BIN)/python -m docs.generate

docs: .venv/installed
	$(BIN)/python -m sphinx -qW --keep-going -c docs -d build/doctrees . build/site
	@echo "Open build/site/index.html"

links: .venv/installed
	$(BIN)/python -m sphinx -q -b linkcheck -c docs -d build/doctrees . build/links

# The page in the browser: a static folder with the default model.
WEB := build/web
web/node_modules: web/package-lock.json
	npm ci --prefix web
	@touch $@

web: .venv/installed web/node_modules
	npm run check --prefix web
	@rm -rf $(WEB)
	$(BIN)/python -m web.facts $(WEB)/model
	node web/build.mjs $(WEB)
	@echo "Try it: $(BIN)/python -m http.server --directory $(WEB), then open http://localhost:8000"

# pip-audit has its own environment: its dependencies are not part of fer-vit's.
build/audit/bin/pip-audit:
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet "pip-audit>=2.10,<3"

audit: build/audit/bin/pip-audit
	build/audit/bin/pip-audit -r constraints.txt --no-deps --disable-pip

sbom: build/audit/bin/pip-audit newcomer
	build/audit/bin/pip-audit --path $(NEWCOMER)/venv/lib/python*/site-packages \
		--format cyclonedx-json --output build/sbom.json

release-check:
	$(PYTHON) .ci/release.py $(TAG) build/notes.md

dist: .venv/installed
	@rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m check_wheel_contents dist/*.whl

demo: .venv/installed
	@rm -rf demo && mkdir demo
	@echo "[1/5] The default model on the sample photo (NASA, public domain)"
	@$(BIN)/fer-vit predict data/sample --output demo/photo.csv
	@$(BIN)/fer-vit visualize data/sample --output demo/photo_report
	@echo "[2/5] Drawing 240 faces of eight expressions into demo/faces, and their manifest"
	@$(BIN)/fer-vit prepare drawn demo/faces demo/faces.parquet --count 240
	@echo "[3/5] Training a small RegionViT from random weights for two epochs, to show how (configs/drawn.yaml)"
	@$(BIN)/fer-vit fit --config drawn --data.manifest demo/faces.parquet --trainer.max_epochs 2 \
		--trainer.logger.init_args.save_dir demo
	@echo "[4/5] Fine-tuning ferplus-fairface-small on the drawn faces, and testing it on 36 that it has not seen (34 right on 2026-11-29)"
	@$(BIN)/fer-vit finetune demo/faces.parquet --output demo/mine --checkpoint ferplus-fairface-small
	@echo "[5/5] Predicting and explaining the test faces with the fine-tuned model"
	@$(BIN)/fer-vit predict demo/faces/test --output demo/predictions.csv --checkpoint demo/mine/model
	@$(BIN)/fer-vit visualize demo/faces/test --output demo/report --checkpoint demo/mine/model
	@echo
	@echo "Open these:"
	@echo "  demo/photo_report/index.html     the photo and the explanation of its expression"
	@echo "  demo/mine/evaluation/index.html  how good the fine-tuned model is"
	@echo "  demo/report/index.html           every test face and the explanation of its expression"
	@echo "  demo/predictions.csv             one row per test face"

shipped-model: .venv/installed
	@test -e "$(FERPLUS)" -a -e "$(FAIRFACE)" || { echo "Name both data sets: make shipped-model FERPLUS=ferplus.zip FAIRFACE=fairface.zip"; exit 1; }
	$(BIN)/python -m benchmarks.shipped_model $(FERPLUS) $(FAIRFACE) runs/shipped
