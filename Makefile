# Every target sets up what it needs under build/: a virtual environment, the engine, the models.
#
#   make demo          calibrate a small model, measure, ask the server: some minutes
#   make serve         start the server with the demo's model and its ready maps
#   make test          unit, C++ and server tests
#   make lint          ruff, mypy, clang-format and clang-tidy
#   make format        bring Python and C++ into the form that lint wants
#   make build         the package with the engine, in build/venv
#   make wheel         a wheel in dist/
#   make bench-models  the larger model that benchmarks use
#   make bench         time, needles and loss of both models, appended to benchmarks/results/
#   make bench-selected  the same for low splits with selected rows
#   make clean         remove build/ and dist/
#
# CMAKE_ARGS="-DGGML_CUDA=ON ..." passes options to llama.cpp.

PYTHON     ?= python3
CMAKE_ARGS ?=

# the compilers that plain cmake takes, not those that Python was built with
ifeq ($(origin CXX),default)
CXX := c++
endif
export CC CXX

BUILD  := build
VENV   := $(BUILD)/venv
ENGINE := $(BUILD)/engine
MODELS := $(BUILD)/models
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip --disable-pip-version-check --quiet

# a list in pyproject.toml, as quoted arguments
requirements = $$($(PY) -c "import sys, tomllib; \
	t = tomllib.load(open('pyproject.toml', 'rb')); \
	[t := t[key] for key in sys.argv[1:]]; \
	print(*t)" $(1))

PIN_ARCHIVE := $(ENGINE)/download/$(shell sed -n 's/^archive *= *//p' llama.cpp/PIN)

OVERLAY_CODE := $(shell find llama.cpp/overlay -name '*.cpp' -o -name '*.h')

ENGINE_FILES := CMakeLists.txt pyproject.toml llama.cpp/PIN \
	$(wildcard cmake/*.cmake) $(wildcard llama.cpp/patches/*.patch) $(shell find llama.cpp/overlay -type f)

# upstream's style; the pinned release of the package reads all of it, and gives the same result everywhere
CLANG_FORMAT := $(VENV)/bin/clang-format --style=file:$(ENGINE)/src/.clang-format

# the engine's part of the overlay where the build has put it, beside upstream's headers; server and common take minutes
TIDY_CODE  = $(patsubst llama.cpp/overlay/%,$(ENGINE)/src/%,$(filter llama.cpp/overlay/src/%.cpp,$(OVERLAY_CODE)))
TIDY_FLAGS := -std=c++17 -Wno-everything \
	$(addprefix -I$(ENGINE)/src/,src include common ggml/include ggml/src vendor tools/server tools/mtmd)
CLANG_TIDY := $(VENV)/bin/clang-tidy --quiet --config-file=llama.cpp/.clang-tidy

# any of them shows the reports that are tested
BROWSERS := chromium chromium-headless-shell google-chrome

.PHONY: all build demo serve test browser lint format wheel models bench-models bench bench-selected clean FORCE
.DELETE_ON_ERROR:

all: build

#
# environment
#

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(PIN_ARCHIVE): llama.cpp/PIN | $(VENV)/.created
	cmake -DROOT=llama.cpp -DDIR=$(ENGINE) -DRIDGEFILL_PYTHON=$(abspath $(PY)) -DDOWNLOAD_ONLY=ON -P cmake/prepare-source.cmake
	touch $@

# the bindings alone: LLAMA_BUILD=OFF leaves llama.cpp out, which is compiled once, below
$(VENV)/.bindings: $(PIN_ARCHIVE)
	$(PIP) install $(call requirements,build-system requires)
	CMAKE_ARGS=-DLLAMA_BUILD=OFF $(PIP) install --no-build-isolation $(PIN_ARCHIVE)
	touch $@

$(VENV)/.dependencies: $(VENV)/.bindings pyproject.toml
	$(PIP) install $(call requirements,project dependencies) $(call requirements,project optional-dependencies dev)
	touch $@

#
# package and engine
#

# changes when CMAKE_ARGS does
$(BUILD)/.cmake-args: FORCE
	@mkdir -p $(BUILD)
	@echo '$(CMAKE_ARGS)' | cmp -s - $@ || echo '$(CMAKE_ARGS)' > $@

$(VENV)/.package: $(VENV)/.dependencies $(ENGINE_FILES) $(BUILD)/.cmake-args
	CMAKE_ARGS='$(CMAKE_ARGS)' RIDGEFILL_ARCHIVE=$(abspath $(PIN_ARCHIVE)) $(PY) -m pip --disable-pip-version-check \
		--verbose install --no-build-isolation --no-deps --editable . \
		--config-settings=cmake.define.RIDGEFILL_BUILD_TESTS=ON --config-settings=cmake.define.RIDGEFILL_STOCK_TWIN=ON
	touch $@

build: $(VENV)/.package

wheel: $(VENV)/.package
	CMAKE_ARGS='$(CMAKE_ARGS)' RIDGEFILL_ARCHIVE=$(abspath $(PIN_ARCHIVE)) $(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist .

#
# models
#

$(MODELS)/%.gguf: | $(VENV)/.package
	mkdir -p $(@D)
	$(PY) -m pyridgefill fetch-model $* --output $@

models: $(MODELS)/smollm2.gguf

bench-models: models $(MODELS)/qwen2.5-coder-0.5b.gguf

#
# use
#

demo: $(VENV)/.package $(MODELS)/smollm2.gguf
	scripts/demo.sh $(PY) $(MODELS)/smollm2.gguf $(BUILD)/demo

serve: $(VENV)/.package $(MODELS)/smollm2.gguf
	$(PY) -m pyridgefill serve $(MODELS)/smollm2.gguf

bench: bench-models
	mkdir -p benchmarks/results $(BUILD)/bench
	scripts/measure.sh $(VENV)/bin/pyridgefill $(MODELS)/smollm2.gguf $(BUILD)/bench \
		benchmarks/results/smollm2-bench.jsonl 20
	scripts/measure.sh $(VENV)/bin/pyridgefill $(MODELS)/qwen2.5-coder-0.5b.gguf $(BUILD)/bench \
		benchmarks/results/qwen2.5-coder-0.5b-bench.jsonl 16

# selected rows: maps with low splits and their retrieval heads, then speed, retrieval and far-context loss
bench-selected: bench-models
	mkdir -p benchmarks/results $(BUILD)/bench
	scripts/bench_selected.sh $(VENV)/bin/pyridgefill $(MODELS)/qwen2.5-coder-0.5b.gguf $(BUILD)/bench \
		benchmarks/results/qwen2.5-coder-0.5b-selected.jsonl 10 4096 8192
	scripts/bench_selected.sh $(VENV)/bin/pyridgefill $(MODELS)/smollm2.gguf $(BUILD)/bench \
		benchmarks/results/smollm2-selected.jsonl 15 4096 8000

#
# checks
#

browser:
	@for name in $(BROWSERS); do command -v $$name > /dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium-headless-shell; \
	else \
		echo "make test needs a browser: install chromium or chromium-headless-shell" >&2; exit 1; \
	fi

test: browser $(VENV)/.package $(MODELS)/smollm2.gguf
	cmake --build $(ENGINE)/build --target ridgefill-tests ridgefill-stock
	ctest --test-dir $(ENGINE)/build --output-on-failure
	$(PY) -m pytest

lint: $(VENV)/.package
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(CLANG_FORMAT) --dry-run -Werror $(OVERLAY_CODE)
	printf '%s\n' $(TIDY_CODE) | xargs -P 2 -n 4 sh -c '$(CLANG_TIDY) "$$@" -- $(TIDY_FLAGS)' lint

format: $(VENV)/.package
	$(PY) -m ruff format .
	$(CLANG_FORMAT) -i $(OVERLAY_CODE)

clean:
	rm -rf $(BUILD) dist
