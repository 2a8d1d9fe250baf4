# Each target makes .venv itself when it is missing; uv is used when present, else pip.
SHELL := /bin/bash
# Where it is set, every process of the tests compiles all modules again, and pytest all tests: half a minute of CPU a suite.
unexport PYTHONDONTWRITEBYTECODE
PY := .venv/bin/python
OUT ?= snapshot
# Exact versions, for pip and uv alike.
LOCKED := -c constraints.txt

.PHONY: run install test test-slow test-torch check measure lock schemas commands columns api docs sbom clean

run: .venv/.ready
	.venv/bin/lemur curate lemur --out $(OUT) --force
	@printf '%s\n' next: '  source .venv/bin/activate' '  lemur show ga-667 --in $(OUT)' '  lemur open $(OUT)'

install: .venv/.ready

test: .venv/.ready-dev
	$(PY) -P -m pytest -n 2 --dist worksteal -m "not slow"

# Oracles, commands that are killed, whole runs.
test-slow: .venv/.ready-dev
	$(PY) -P -m pytest -n 2 --dist worksteal -m slow

# What networks compute, by the oldest torch that is promised and by the newest there is.
test-torch: .venv-oldest/.ready .venv-newest/.ready
	for name in oldest newest; do .venv-$$name/bin/python -P -m pytest -n 2 -m "not slow" \
	tests/lemur_core/graphs tests/curate/test_graphs.py || exit 1; done

check: .venv/.ready-dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

# All figures of README and docs/measured.md, in docs/records; what is measured already on this state is not run again.
measure: .venv/.ready-dev
	$(PY) -m benchmarks.all $(if $(SEED),--seed $(SEED))

# The documents as a site, in build/site.
docs: .venv/.ready-dev
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build -q --strict

# Resolves pyproject.toml anew into constraints.txt and pylock.toml.
lock: .venv/.ready-dev
	$(PY) -P .ci/lock.py

schemas: .venv/.ready
	PYTHONPATH=. $(PY) -P .ci/schemas.py

# The reference of the commands in docs/commands.md, from the parsers.
commands: .venv/.ready
	PYTHONPATH=. $(PY) -P .ci/commands.py

# The columns of all tables in docs/columns.md, from the record types.
columns: .venv/.ready
	PYTHONPATH=. $(PY) -P .ci/columns.py

# Signatures and arguments of the Python interface in docs/api.md, from its docstrings.
api: .venv/.ready
	$(PY) -P .ci/api.py

# What a release depends on, as CycloneDX.
sbom:
	python3 -m venv build/sbom && build/sbom/bin/pip install -q cyclonedx-bom
	build/sbom/bin/cyclonedx-py requirements constraints.txt --pyproject pyproject.toml -o build/sbom.json

clean:
	rm -rf .venv .venv-oldest .venv-newest build *.egg-info

.venv/bin/python:
	@if command -v uv >/dev/null; then uv venv -q --python python3 .venv; else python3 -m venv .venv; fi

.venv/.ready: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing lemur-curator into .venv: 6 GB on disk, 5 GB of it PyTorch with CUDA, each file listed as it is fetched;"
	@echo "the first run fetches LEMUR 2.1.0 (99 MB), keeps it, and takes five minutes or more on two cores"
	@if command -v uv >/dev/null; then uv pip install --compile-bytecode --python $(PY) $(LOCKED) -e .; \
	else $(PY) -m pip install --progress-bar on --disable-pip-version-check $(LOCKED) -e .; fi
	@touch $@

# The peer comes without its dependencies (they include PyTorch); the tests hand it records directly.
.venv/.ready-dev: pyproject.toml constraints.txt | .venv/.ready
	@echo "installing the development tools into .venv"
	@if command -v uv >/dev/null; then uv pip install -q --compile-bytecode --python $(PY) $(LOCKED) -e '.[dev]' && uv pip install -q --compile-bytecode --python $(PY) --no-deps nn-dup==2.2.4; \
	else $(PY) -m pip install -q --disable-pip-version-check $(LOCKED) -e '.[dev]' && $(PY) -m pip install -q --disable-pip-version-check --no-deps nn-dup==2.2.4; fi
	@touch $@

TORCH_oldest := torch~=2.6.0 torchvision~=0.21.0
TORCH_newest := torch torchvision

.venv-%/.ready: pyproject.toml | .venv/.ready-dev
	@echo "installing $(TORCH_$*) into .venv-$*"
	@.venv/bin/uv venv -q --clear --python $(PY) .venv-$*
	@.venv/bin/uv pip install -q --python .venv-$*/bin/python -e '.[dev]' $(TORCH_$*)
	@touch $@
