# `make help` lists the targets. Settings of the servers (ports, mode): deploy/dev/stack.sh.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

STACK := deploy/dev/stack.sh
# The same feature set for lint and test, so that nothing is compiled twice.
FEATURES := --features crash-points

.PHONY: help deps up down logs status build demo test test-cdc lint rules fuzz bench bench-live bench-all bench-micro bench-replay bench-orders bench-projections soak chaos model clean-dev

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## install (as root, by apt) or name what the build needs
	@$(STACK) deps

up: ## start Kafka and Postgres: containers where Docker answers, else processes under .dev/
	@$(STACK) up

down: ## stop them; their data stay
	@$(STACK) down

status: ## what runs
	@$(STACK) status

logs: ## follow their logs
	@$(STACK) logs

build: deps ## release binary
	cargo build --release --locked

demo: build up ## a small story on the real servers: events, a bug, a replay
	@eval "$$($(STACK) env)"; target/release/reprise demo

lint: deps ## formatting, clippy with warnings denied, shell scripts; licences and advisories where cargo-deny is there
	cargo fmt --check
	cargo clippy --locked --all-targets $(FEATURES) -- -D warnings
	@for script in deploy/dev/*.sh .ci/run; do bash -n $$script; done
	@if command -v shellcheck >/dev/null; then shellcheck -x deploy/dev/stack.sh .ci/run; fi
	@if command -v cargo-deny >/dev/null; then cargo deny --locked check; fi

rules: deps ## alert rules: checked, and each told the story in which it fires
	promtool check rules deploy/prometheus/alerts.yml
	promtool test rules deploy/prometheus/tests/*_test.yml

test: lint rules up ## everything: lint, unit and integration tests against the real servers
	@eval "$$($(STACK) env)"; cargo test --locked --no-fail-fast $(FEATURES)

test-cdc: deps up ## the outbox by Debezium: Kafka Connect from Maven Central on the real servers (needs Java, Maven)
	@eval "$$($(STACK) env)"; deploy/debezium/test.sh

# Measuring (docs/performance.md). SCENARIO picks some: make bench-live SCENARIO="known restart"
SCENARIO ?=
MINUTES ?= 5

bench: bench-live bench-replay bench-orders bench-projections ## all of the following, on the real servers

bench-live: deps up ## throughput and latency, against the plain designs and the raw limits
	@eval "$$($(STACK) env)"; cargo bench --locked --bench live -- $(SCENARIO)

bench-replay: deps up ## what a rewind costs where everything is done already
	@eval "$$($(STACK) env)"; cargo bench --locked --bench replay

bench-orders: deps up ## loading an order of many events; relaying the outbox
	@eval "$$($(STACK) env)"; cargo bench --locked --bench orders --bench outbox

bench-projections: deps up ## read models: following, and a rebuild beside live writes: EVENTS=10000000
	@eval "$$($(STACK) env)"; cargo bench --locked --bench projections

bench-all: deps up ## the same and: restarts, memory, instances, random ids, a large ledger
	@eval "$$($(STACK) env)"; cargo bench --locked --bench live -- throughput latency restart memory instances random ledger

bench-micro: deps ## decode, plan and watermark, without servers
	cargo bench --locked --bench micro

soak: deps up ## a steady rate with replays beside it, fails on drift: MINUTES=60 RATE=1000
	@eval "$$($(STACK) env)"; MINUTES=$(MINUTES) cargo bench --locked --bench live -- soak

SECONDS ?= 60
SEED ?= $(shell date +%s)

chaos: deps up ## a seeded storm of kills, pauses and cuts: SECONDS=600 SEED=7
	@eval "$$($(STACK) env)"; REPRISE_CHAOS_SECONDS=$(SECONDS) REPRISE_CHAOS_SEED=$(SEED) \
		cargo test --locked $(FEATURES) --test integration chaos -- --nocapture

fuzz: deps ## the decoders on mutations of fuzz/corpus: SECONDS=60 for each of three targets, side by side
	REPRISE_FUZZ_SECONDS=$(SECONDS) cargo test --locked $(FEATURES) --test integration fuzz:: -- --nocapture

model: deps ## the ledger's state machine, explored where it takes millions of states
	cargo test --release --locked --lib applier::model -- --include-ignored

clean-dev: ## stop the servers and remove their data (fetched jars stay)
	@$(STACK) clean
