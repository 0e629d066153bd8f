# What a newcomer types: make demo. Everything lives in this folder: .venv, .jars and, if need be, .jdk.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.ONESHELL:
.DEFAULT_GOAL := help

VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.ready
EXTRAS := local,postgresql
FOLDER ?= demo

# Spark's JARs are kept here, not under the account's home: Ivy looks up the real home whatever HOME says.
export CDC_JARS := $(CURDIR)/.jars
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup demo test lint hunt bench docs clean

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(STAMP)  ## virtual environment, Java and Spark's JARs; does nothing when they are there

demo: $(STAMP)  ## a shop database under live writes, through to silver, compared row by row
	@$(VENV)/bin/cdc demo --folder "$(FOLDER)"

# Two at a time, each with servers and Spark of its own; the tests of a class or module stay together. What
# ARGS selects runs one at a time.
test: $(STAMP)  ## the default test run, or what ARGS="..." selects (ARGS="-m slow": the rest)
	@export JAVA_HOME="$$($(PY) -m cdc_lib.java)"
	$(PY) -m pytest $(or $(ARGS),-m "not slow" -n 2 --dist loadscope --no-loadscope-reorder)

lint: $(STAMP)  ## ruff and mypy --strict
	@$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

hunt: $(STAMP)  ## a search for faults by random schemas, histories and kills: SEED=1 MINUTES=30
	@export JAVA_HOME="$$($(PY) -m cdc_lib.java)"
	$(PY) -m tests.hunt $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES))

bench: $(STAMP)  ## the benchmarks; results go to benchmarks/results and docs/benchmarks.md
	@export JAVA_HOME="$$($(PY) -m cdc_lib.java)"
	$(PY) -m benchmarks $(ARGS)

docs: $(STAMP)  ## the pages made from the code: docs/properties.md and the JSON schema of pipeline files
	@$(PY) -m cdc_lib.properties_page

clean:  ## remove what the targets above made, the virtual environment included
	rm -rf $(VENV) .jars .jdk .servers demo spark-warehouse metastore_db derby.log
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(PY):
	@# A shim may exist for a Python that does not: ask each for its version instead of looking for its name.
	base=
	for candidate in python3.12 python3.11 python3.10 python3 python; do
	  if "$$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
	    base="$$candidate"; break
	  fi
	done
	if [ -z "$$base" ]; then echo "No Python 3.10, 3.11 or 3.12 found. Install one and run make again." >&2; exit 2; fi
	echo "Virtual environment in $(VENV) with $$("$$base" --version)"
	if ! "$$base" -m venv $(VENV) >/dev/null 2>&1; then
	  # Debian splits venv off into a package of its own; virtualenv from PyPI needs no root.
	  rm -rf $(VENV)
	  "$$base" -m pip install --quiet --target $(VENV)-bootstrap virtualenv || {
	    rm -rf $(VENV)-bootstrap
	    echo "$$base has neither venv nor pip. To do: apt-get install python3-venv, then make again." >&2; exit 2; }
	  PYTHONPATH=$(VENV)-bootstrap "$$base" -m virtualenv --quiet $(VENV)
	  rm -rf $(VENV)-bootstrap
	fi

$(STAMP): pyproject.toml | $(PY)
	@echo "Installing Python packages (a few hundred MB the first time)"
	$(PY) -m pip install --quiet --upgrade 'pip>=25.1'
	$(PY) -m pip install --quiet --editable '.[$(EXTRAS)]' --group dev
	if ! $(PY) -m cdc_lib.java >/dev/null 2>&1; then
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	    echo "Installing Java 17 with apt-get"
	    apt-get update -qq
	    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends openjdk-17-jre-headless </dev/null >/dev/null
	  else
	    echo "Installing Java 17 into .jdk"
	    mkdir -p .jdk
	    $(PY) -m pip install --quiet install-jdk
	    $(PY) -c 'import jdk; jdk.install("17", jre=True, path=".jdk")' || true
	  fi
	fi
	export JAVA_HOME="$$($(PY) -m cdc_lib.java)"
	echo "Fetching Spark's Delta JARs into .jars"
	$(PY) -c 'from cdc_lib.spark_session import start_local; start_local().stop()'
	touch $@
