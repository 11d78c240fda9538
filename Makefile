# `make demo` and `make test` set themselves up in .venv on a machine that has Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all test-lowest newcomer reference docs links dist audit sbom release-check shipped-model help
help:
	@echo "make demo   try the model on a photo; draw faces, train, test, predict and visualize (three minutes on two cores)"
	@echo "make test   style checks, types and the default tests (about three minutes on two cores)"
	@echo "make test-all  these and the tests marked slow (about fifteen minutes in all)"
	@echo "make test-lowest  the default tests with the oldest dependencies that pyproject.toml allows, in build/lowest"
	@echo "make newcomer  README's install, commands and Python in a new environment without extras"
	@echo "make reference  write the pages of docs/reference that are made from code"
	@echo "make docs   build the documentation as a site in build/site"
	@echo "make links  check the links of the documentation, also into the web"
	@echo "make dist   build and check the source archive and the wheel in dist"
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

test: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(PYTEST)

test-all: test
	$(PYTEST) -m slow

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
	@mkdir -p build
	$(BIN)/python -c 'from skimage import data, io; io.imsave("build/photo.jpg", data.astronaut())'
	PYTHON=$(CURDIR)/$(BIN)/python bash .ci/newcomer.sh build/photo.jpg $(NEWCOMER)

reference: .venv/installed
	$(BIN)/python -m docs.generate

docs: .venv/installed
	$(BIN)/python -m sphinx -qW --keep-going -c docs -d build/doctrees . build/site
	@echo "Open build/site/index.html"

links: .venv/installed
	$(BIN)/python -m sphinx -q -b linkcheck -c docs -d build/doctrees . build/links

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
	@echo "[1/6] The model that comes with fer-vit on a photo in the public domain (NASA)"
	@rm -rf demo && mkdir -p demo/photo
	@$(BIN)/python -c 'from skimage import data, io; io.imsave("demo/photo/astronaut.png", data.astronaut())'
	@$(BIN)/fer-vit predict demo/photo --output demo/photo.csv \
		&& $(BIN)/fer-vit visualize demo/photo --output demo/photo_report
	@echo "[2/6] Drawing 1,200 faces of eight expressions into demo/faces, and their manifest"
	@$(BIN)/fer-vit prepare drawn demo/faces demo/faces.parquet --count 1200
	@echo "[3/6] Training a small RegionViT on them (configs/drawn.yaml)"
	@$(BIN)/fer-vit fit --config drawn --data.manifest demo/faces.parquet --trainer.logger.init_args.save_dir demo
	@echo "[4/6] Testing the best checkpoint on faces it has not seen"
	@$(BIN)/fer-vit evaluate demo/faces.parquet --split test --output demo/evaluation \
		--checkpoint demo/drawn/version_0/checkpoints/best.ckpt
	@echo "[5/6] Predicting the folder demo/faces/test: without landmarks, so regions lie where an average face has them"
	@$(BIN)/fer-vit predict demo/faces/test --face crop --detector none --output demo/predictions.csv \
		--checkpoint demo/drawn/version_0/checkpoints/best.ckpt
	@echo "[6/6] Explaining each prediction"
	@$(BIN)/fer-vit visualize demo/faces/test --face crop --detector none --output demo/report \
		--checkpoint demo/drawn/version_0/checkpoints/best.ckpt
	@echo
	@echo "Open these:"
	@echo "  demo/photo_report/index.html             the photo and the explanation of its expression"
	@echo "  demo/report/index.html                   every test face and the explanation of its expression"
	@echo "  demo/predictions.csv                     one row per face"
	@echo "  demo/evaluation/index.html               the test results"

shipped-model: .venv/installed
	@test -e "$(FERPLUS)" -a -e "$(FAIRFACE)" || { echo "Name both data sets: make shipped-model FERPLUS=ferplus.zip FAIRFACE=fairface.zip"; exit 1; }
	$(BIN)/python -m benchmarks.shipped_model $(FERPLUS) $(FAIRFACE) runs/shipped
