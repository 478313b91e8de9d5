# Targets for people. `make help` lists them.

STOWAGE_DIR ?= /var/lib/stowage
WORKER := ./worker/storageprovisioner/...
FUZZTIME ?= 30s
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.7.0

# GO_TEST runs the tests of a target; the gate has scripts/retest here.
GO_TEST ?= go test
# LONGEST are the packages whose tests take longest: those that begin first end in time.
LONGEST := ./e2e ./storage/provider ./storage/provider/managed
RACE ?= -short
# Root's tests have a mount namespace of their own.
SANDBOX := $(if $(filter 0,$(shell id -u)),-exec="'$(CURDIR)/scripts/sandbox'")

.DEFAULT_GOAL := help
.PHONY: help build run test lint race verify e2e soak onefault simulate delays faults uml cover mutate fuzz bench-apply bench-dataplane bench-scale bench-state model packages

help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

build: ## Build bin/stowage
	go build -o bin/stowage ./cmd/stowage

run: build packages ## Start the agent on examples/spec.yaml and show how far it is; Ctrl-C stops it
	bin/stowage run --data-dir '$(STOWAGE_DIR)' --spec examples/spec.yaml --progress

test: packages ## Run the tests; as root those on real devices too
	$(GO_TEST) $(SANDBOX) $(LONGEST) ./...

lint: ## Check formatting, go vet, staticcheck
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "not formatted (gofmt -w): $$unformatted" >&2; exit 1; }
	go vet ./... && go -C internal/mutate vet .
	go run $(STATICCHECK) ./... && cd internal/mutate && go run $(STATICCHECK) .

race: ## Run the tests under the race detector, a sample of the longest (RACE=: whole); all but the end-to-end ones
	$(GO_TEST) -race $(RACE) $(SANDBOX) $$(go list $(LONGEST) ./... | grep -v /e2e)

verify: packages ## Run all that searches or measures, with a new seed, and end with a table (ONLY='soak faults', SEED=1)
	@scripts/verify $(ONLY)

e2e: packages ## Run the end-to-end tests: the command, real devices and mounts
	$(GO_TEST) -count=1 $(SANDBOX) ./e2e

soak: packages ## Crash the agent, and the disks under it, 500 times while storage is used (SOAK='-for 1h -seed 1', KEEP=1)
	@dir=$$(mktemp -d) && trap 'rm -r "$$dir"' EXIT && go build -o "$$dir/soak" ./e2e/soak && nice unshare --mount "$$dir/soak" $(SOAK)

onefault: packages ## Have one system call of the agent fail, one of each class, and see what comes of it (an hour; ONEFAULT='-for 10m', -every, -help)
	@dir=$$(mktemp -d) && trap 'rm -r "$$dir"' EXIT && go build -o "$$dir/soak" ./e2e/soak && nice unshare --mount "$$dir/soak" one-fault $(ONEFAULT)

simulate: ## Drive the workers through random histories, a million steps (SIMULATE='-steps=10000000 -seed=1')
	$(GO_TEST) -count=1 -timeout=0 -run='^TestSimulation' ./worker/storageprovisioner/internal/simulation -args -steps=1000000 -search $(SIMULATE)

delays: ## Run the worker's tests with a delay at each point where goroutines hand over to each other (DELAYS='clerk-job all': some)
	@scripts/delays $(DELAYS)

faults: ## Make every fault happen on real devices (FAULTS=-short: a sample of the steps)
	@scripts/packages strace:strace mkfs.btrfs:btrfs-progs
	cd storage/provider/faults && STOWAGE_REQUIRE_ROOT=1 $(GO_TEST) $(SANDBOX) -tags=faults -count=1 -timeout=1h $(FAULTS)
	STOWAGE_REQUIRE_ROOT=1 $(GO_TEST) $(SANDBOX) -tags=faults -count=1 $(FAULTS) -run='^Test.*Steps' ./storage/provider/rootfs
	STOWAGE_REQUIRE_ROOT=1 $(GO_TEST) $(SANDBOX) -tags=faults -count=1 $(FAULTS) -run='^(TestManagedHangsAlone|TestDeviceThatDoesNotAnswer)$$' ./storage/provider/managed

uml: ## Run the tests of project quotas and of growing ext4 in user-mode Linux, where the kernel here has neither
	scripts/uml

cover: ## Check that the tests reach 95 % of the worker's statements
	@dir=$$(mktemp -d) && trap 'rm -r "$$dir"' EXIT && \
	go test -coverprofile="$$dir/profile" -coverpkg=$(WORKER) $(WORKER) >"$$dir/log" || { cat "$$dir/log"; exit 1; } && \
	go tool cover -func="$$dir/profile" | awk '{ reached = $$NF + 0 } \
		END { printf "%.1f %% of the statements of $(WORKER)\n", reached; exit reached < 95 }'

mutate: ## Break the worker's code in small ways and tell what no test notices (an hour; MUTATE=worker/storageprovisioner/internal/schedule: a part)
	cd internal/mutate && nice go test -race . && nice go run . $(MUTATE)

fuzz: ## Run every fuzz test for FUZZTIME (30s), one after another
	nice scripts/fuzz '$(FUZZTIME)'

bench-apply: packages ## Measure 200 ext4 volumes on loop devices, up and away
	go test -count=1 -run '^$$' -bench '^BenchmarkApply$$' -benchtime 3x ./e2e

bench-dataplane: packages ## Measure the data plane beside the classic commands and bare system calls; CHECK=1 for a quick look at the ratios
	@# In a mount namespace of its own: nobody else's keeps what it unmounts.
	unshare --mount go run ./storage/provider/internal/bench $(if $(CHECK),-check)

bench-scale: ## Measure the storage provisioner with up to a million volumes; CHECK=1 for a quick look at the ratios
	go run ./worker/storageprovisioner/internal/scale $(if $(CHECK),-check,-csv docs/performance.csv -plot docs/performance.svg)

bench-state: ## Measure the state with 1,000, 10,000 and 100,000 storage instances; CHECK=1 for a quick look at what grows
	go run ./cmd/stowage/internal/bench $(if $(CHECK),-check)

model: ## Check the model of the life cycle with spin (docs/model); CHECK=1: only what is small
	@scripts/packages spin:spin gcc:build-essential
	$(if $(CHECK),,nice) docs/model/run $(if $(CHECK),small)

packages:
	@scripts/packages
