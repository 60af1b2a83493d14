# `make help` lists the targets. Needs Python >= 3.11, make and, for the compiled build, a C compiler.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup leaves run cluster test test-thorough suite packages lint format bench clean

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?=
EXTRAS ?= dev

# Prints what the package is built with, by pyproject.toml, one requirement a line.
BUILD_REQUIRES := import tomllib; project = tomllib.load(open('pyproject.toml', 'rb')); \
	print(*project['build-system']['requires'], sep='\n')
# The sources of the compiled leaves.
LEAF_SOURCES := $(wildcard shard/*_cy.py protocol/*_cy.py broker/*/*_cy.py */*.pxd */*/*.pxd */*.h) shard/leaves.py \
	setup.py
PACKAGES := protocol shard client broker supervisor cluster spark cli
BESIDE := bench examples tests setup.py pyspark_tailrace.py scripts/link-package scripts/rollup-report-picture \
	scripts/top-picture scripts/dashboard-picture scripts/first-week
PYTEST ?= $(BIN)/python -m pytest

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 12

setup: $(VENV)/.leaves  ## make .venv, install tailrace and its test dependencies, build the leaves

leaves:  ## build the compiled leaves anew, such as after installing a compiler
	@rm -f $(VENV)/.built
	@$(MAKE) --no-print-directory setup

$(VENV)/.made: | scripts/find-python
	@python="$(PYTHON)"; python="$${python:-$$(scripts/find-python)}" && [ -n "$$python" ] || exit 1; \
	echo "making $(VENV) with $$python ($$("$$python" --version))"; \
	"$$python" -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }
	$(BIN)/python -c "$(BUILD_REQUIRES)" | \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip -r /dev/stdin
	@touch $@

# The pip that comes with Python 3.11 takes twice as long as today's to choose among all versions of the packages.
# The leaves are built by their own rule, where the message about a missing compiler can be seen, and with `make test`
# while this one installs the rest.
# A folder called tailrace, which older checkouts had, would hide the package.
$(VENV)/.installed: $(VENV)/.made pyproject.toml
	@[ ! -d tailrace ] || find tailrace -depth \( -name '*.pyc' -o -name '*.so' -o -type d -empty \) -delete
	env -u TAILRACE_REQUIRE_COMPILED TAILRACE_DISABLE_COMPILED=1 DIST_EXTRA_CONFIG=$(CURDIR)/scripts/quick-wheels.cfg \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable '.[$(EXTRAS)]'
	@touch $@

$(VENV)/.built: $(VENV)/.made $(LEAF_SOURCES)
	@rm -f shard/*_cy.*.so protocol/*_cy.*.so broker/*/*_cy.*.so
	$(BIN)/python setup.py --quiet build_ext --inplace --parallel 2
	@touch $@

$(VENV)/.leaves: $(VENV)/.installed $(VENV)/.built
	@$(BIN)/python -m tailrace.shard.leaves
	@touch $@

$(VENV)/.bench: $(VENV)/.installed
	env -u TAILRACE_REQUIRE_COMPILED TAILRACE_DISABLE_COMPILED=1 \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,bench,spark]'
	@touch $@

run: setup  ## a broker on 127.0.0.1:5050, its data in ./data, its metrics on 127.0.0.1:5051
	$(BIN)/tailrace serve --host 127.0.0.1 --port 5050 --metrics-host 127.0.0.1 --metrics-port 5051 --data ./data

cluster: setup  ## three nodes, their agents and one etcd on this machine, and what to try; their data in ./data-cluster
	scripts/three-nodes

lint: $(VENV)/.installed  ## ruff and mypy --strict
	$(BIN)/ruff check $(PACKAGES) $(BESIDE)
	scripts/link-package
	nice -n 7 $(BIN)/mypy --scripts-are-modules build/package/tailrace $(BESIDE)

format: setup  ## let ruff lay out the code, sort the imports and mend simple faults
	$(BIN)/ruff check --fix $(PACKAGES) $(BESIDE)
	$(BIN)/ruff format $(PACKAGES) $(BESIDE)

packages:
	scripts/install-system-packages

# The steps before the tests wait for the network, or keep one core busy: side by side. mypy needs a minute of one core,
# and the tests do not need its result.
test:  ## what runs on every submission: lint, and the suite, compiled and interpreted side by side
	@$(MAKE) --no-print-directory --jobs=3 packages setup build/npm
	@$(MAKE) --no-print-directory --jobs=2 lint suite

test-thorough:  ## every test, with all examples: before a release, and by night
	TAILRACE_THOROUGH=1 $(MAKE) --no-print-directory test

suite:
	@if [ "$$($(BIN)/python -c 'from tailrace.shard.leaves import build; print(build())')" = compiled ]; then \
		scripts/test-both-builds $(PYTEST); \
	else \
		echo "== no compiled leaves here: the suite runs interpreted only"; \
		TAILRACE_INTERPRETED=1 $(PYTEST); \
	fi

# A test in a browser needs it, and is skipped without it.
build/npm:
	-! command -v npm >/dev/null || npm install --silent --no-audit --no-fund --ignore-scripts --prefix $@ mqtt@5.16.0

# Programs in other languages for tests/system/test_mqtt_clients.py, each if its compiler is here.
# gmqtt has an environment of its own: it installs a package called tests.
MQTT_CLIENTS := tests/system/mqtt_clients
build/mqtt-clients: | $(VENV)/.made
	mkdir -p $@
	-! command -v go >/dev/null || (cd $(MQTT_CLIENTS)/go && go build -o $(CURDIR)/$@/paho-golang .)
	-! command -v cargo >/dev/null || cargo build --quiet --release --locked \
		--manifest-path $(MQTT_CLIENTS)/rust/Cargo.toml --target-dir $@/rust
	-! command -v mvn >/dev/null || \
		mvn -q -B -f $(MQTT_CLIENTS)/java/pom.xml dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$@/java
	-! [ -e /usr/include/MQTTClient.h ] || \
		cc -O2 -o $@/paho-c $(MQTT_CLIENTS)/c/conversation.c -lpaho-mqtt3c
	-$(BIN)/python -m venv $@/gmqtt && $@/gmqtt/bin/python -m pip install --quiet gmqtt==0.7.0

build/kafka: bench/peers/kafka.xml
	! command -v mvn >/dev/null || mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$@

build/rumqttd:
	! command -v cargo >/dev/null || cargo install --quiet --locked --root $@ rumqttd@0.20.0

bench: setup packages $(VENV)/.bench build/kafka build/rumqttd  ## compare with NATS, Redis, mosquitto, Kafka and others
	$(BIN)/python -m bench

clean:  ## remove what make has made (not ./data)
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f shard/*_cy.*.so protocol/*_cy.*.so broker/*/*_cy.*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
