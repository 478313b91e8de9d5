# Targets for people. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
STOWAGE_DIR ?= /var/lib/stowage
WORKER := ./worker/storageprovisioner/...
SCALE := ./worker/storageprovisioner/internal/scale
FUZZTIME ?= 30s
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.7.0

# GO_TEST is the command that runs tests; the gate sets it to scripts/retest.
GO_TEST ?= go test
# LONGEST are the packages with the slowest tests: starting them first shortens the whole run.
LONGEST := ./e2e ./storage/provider ./storage/provider/managed
RACE ?= -short
# Tests that run as root get a mount namespace of their own.
SANDBOX := $(if $(filter 0,$(shell id -u)),-exec="'$(CURDIR)/scripts/sandbox'")

.DEFAULT_GOAL := help
.PHONY: help build run test lint race generate verify e2e soak cluster upgrade onefault simulate delays faults uml cover mutate etcd fuzz monitoring bench-agent bench-servers bench-apply bench-dataplane bench-scale bench-state model kubernetes-unit kubernetes kubelet csi csi-mock docker ui package package-test packages

help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

build: ## Build bin/stowage
	go build -o bin/stowage ./cmd/stowage

run: build packages ## Run an agent with the storage in examples/spec.yaml; Ctrl-C stops it
	bin/stowage run --data-dir '$(STOWAGE_DIR)' --spec examples/spec.yaml --progress --log-level WARNING

test: packages ## Run the tests; as root also those on real devices
	$(GO_TEST) $(SANDBOX) $(LONGEST) ./...

lint: ## Run gofmt, go vet and staticcheck
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "not formatted (gofmt -w): $$unformatted" >&2; exit 1; }
	go vet ./... && go -C internal/mutate vet .
	go run $(STATICCHECK) ./... && cd internal/mutate && go run $(STATICCHECK) .

race: ## Run the tests except e2e, and etcdkv with its server, under the race detector (RACE=: without -short)
	$(GO_TEST) -race $(RACE) $(SANDBOX) $$(go list $(LONGEST) ./... | grep -v -e /e2e -e /etcdkv)

generate: ## Rewrite the generated files: linked.txt, the tables of behaviours and figures, the pages of the command line and the API
	go test -count=1 -run='^TestDescriptionsAreCurrent$$' ./apiserver/userapi -args -update
	go test -count=1 -run='^(TestLinkedPackages|TestTablesAreCurrent|TestFiguresAreThoseMeasured|TestCommandLinePageIsCurrent|TestOpenAPIDocumentIsCurrent)$$' . ./cmd/stowage/internal/cli ./apiserver/userapi -args -update

verify: packages ## Run all searches and measurements with a new seed, and print a table (ONLY='soak faults', SEED=1)
	@scripts/verify $(ONLY)

e2e: packages ## Run the end-to-end tests: the command on real devices and mounts
	$(GO_TEST) -count=1 $(SANDBOX) ./e2e

soak: packages ## Crash the agent and its disks 500 times while storage is in use (SOAK='-for 1h -seed 1', KEEP=1)
	@dir=$$(mktemp -d) && trap 'rm -r "$$dir"' EXIT && go build -o "$$dir/soak" ./e2e/soak && nice unshare --mount "$$dir/soak" $(SOAK)

cluster: packages ## Let servers and machines fail while storage moves between them, for ten minutes (CLUSTER='-cluster 1h -cluster-seed 1')
	@scripts/packages ip:iproute2
	STOWAGE_REQUIRE_ROOT=1 $(GO_TEST) -count=1 -timeout=0 -v -run='^TestCluster$$' $(SANDBOX) ./e2e -args -cluster 10m $(CLUSTER)

upgrade: packages ## Replace servers and agents of an older version, of commit OLD, one after the other (OLD=HEAD~20)
	@dir=$$(mktemp -d) && trap 'git worktree remove --force "$$dir/tree"; rm -r "$$dir"' EXIT && \
	git worktree add --quiet --detach "$$dir/tree" $(OLD) && (cd "$$dir/tree" && go build -o "$$dir/older" ./cmd/stowage) && \
	STOWAGE_REQUIRE_ROOT=1 $(GO_TEST) -count=1 -v -run='^TestUpgrade$$' $(SANDBOX) ./e2e -args -older "$$dir/older"

onefault: packages ## Fail one system call of the agent at a time, one of each class (an hour; ONEFAULT='-for 10m', -every, -help)
	@dir=$$(mktemp -d) && trap 'rm -r "$$dir"' EXIT && go build -o "$$dir/soak" ./e2e/soak && nice unshare --mount "$$dir/soak" one-fault $(ONEFAULT)

simulate: ## Run the workers through random histories, a million steps (SIMULATE='-steps=10000000 -seed=1')
	$(GO_TEST) -count=1 -timeout=0 -run='^TestSimulation' ./worker/storageprovisioner/internal/simulation -args -steps=1000000 -search $(SIMULATE)

delays: ## Run the worker's tests with delays at scheduling points (DELAYS='clerk-job all': only some points)
	@scripts/delays $(DELAYS)

faults: ## Inject every fault on real devices (FAULTS=-short: at fixed steps; SAMPLE='-one-in 8 -seed 1': at a sample of the steps)
	@scripts/packages strace:strace mkfs.btrfs:btrfs-progs
	cd storage/provider/faults && STOWAGE_REQUIRE_ROOT=1 $(GO_TEST) $(SANDBOX) -tags=faults -count=1 -timeout=3h $(FAULTS) -args $(SAMPLE)
	STOWAGE_REQUIRE_ROOT=1 $(GO_TEST) $(SANDBOX) -tags=faults -count=1 $(FAULTS) -run='^Test.*Steps' ./storage/provider/rootfs ./storage/provider/csi
	STOWAGE_REQUIRE_ROOT=1 $(GO_TEST) $(SANDBOX) -tags=faults -count=1 $(FAULTS) -run='^(TestManagedHangsAlone|TestDeviceThatDoesNotAnswer)$$' ./storage/provider/managed

uml: ## Run the tests of project quotas and ext4 growth in user-mode Linux, for kernels that lack them
	scripts/uml

cover: ## Check that the tests reach 95 % of the worker's statements
	@dir=$$(mktemp -d) && trap 'rm -r "$$dir"' EXIT && \
	go test -coverprofile="$$dir/profile" -coverpkg=$(WORKER) $(WORKER) >"$$dir/log" || { cat "$$dir/log"; exit 1; } && \
	go tool cover -func="$$dir/profile" | awk '{ reached = $$NF + 0 } \
		END { printf "%.1f %% of the statements of $(WORKER)\n", reached; exit reached < 95 }'

mutate: ## Mutate the worker's code and list what no test notices (an hour; MUTATE=worker/storageprovisioner/internal/schedule: one package)
	cd internal/mutate && nice go test -race . && nice go run . $(MUTATE)

etcd: ## Run the suites of the store and the state on etcd: one member, three, Debian's (ETCD='one debian')
	@nice scripts/etcd $(ETCD)

monitoring: ## Test the alert rules and the dashboard with promtool of Debian's package prometheus
	@scripts/packages promtool:prometheus
	$(GO_TEST) -count=1 ./monitoring

fuzz: ## Run every fuzz test for FUZZTIME (30s)
	nice scripts/fuzz '$(FUZZTIME)'

bench-agent: packages ## Measure an agent with up to 90,000 directories: one more, a restart, memory, idle (CHECK=1: quick, growth only)
ifdef CHECK
	STOWAGE_REQUIRE_ROOT=1 go test -count=1 -run '^TestAgentGrowth$$' -v $(SANDBOX) ./e2e -args -bounds
else
	STOWAGE_REQUIRE_ROOT=1 go test -timeout=0 -count=1 -run '^$$' -bench '^BenchmarkAgent$$' -benchtime 1x $(SANDBOX) ./e2e
endif

bench-servers: packages ## Measure a server with up to 10,000 agents, and how long failures of servers and machines last
	STOWAGE_REQUIRE_ROOT=1 go test -timeout=0 -count=1 -run '^$$' -bench '^Benchmark(Failover|Agents)$$' -benchtime 1x $(SANDBOX) ./e2e

bench-apply: packages ## Measure creating and removing 200 ext4 volumes on loop devices
	go test -count=1 -run '^$$' -bench '^BenchmarkApply$$' -benchtime 3x ./e2e

bench-dataplane: packages ## Measure the data plane against the classic commands and bare system calls (CHECK=1: quick, ratios only)
ifdef CHECK
	STOWAGE_REQUIRE_ROOT=1 go test -count=1 -run '^TestRatios$$' -v $(SANDBOX) ./storage/provider/internal/bench -args -bounds
else
	for _ in 1 2 3 4 5 6; do STOWAGE_REQUIRE_ROOT=1 go test -run '^$$' -bench . -benchtime 1x $(SANDBOX) ./storage/provider/internal/bench || exit; done
endif

bench-scale: OUT ?= docs/explanation/performance.txt
bench-scale: ## Measure the worker with up to a million volumes (CHECK=1: quick, ratios only; OUT=new.txt for benchstat)
ifdef CHECK
	go test -count=1 -run '^TestBounds$$' -v $(SCALE) -args -bounds
else
	for _ in 1 2; do go test -timeout=0 -run '^$$' -bench . -benchtime 1x $(SCALE) || exit; done | tee $(OUT).new
	mv $(OUT).new $(OUT)
endif

bench-state: ## Measure the state with 1,000, 10,000 and 100,000 storage instances (CHECK=1: quick, growth only)
ifdef CHECK
	go test -count=1 -run '^TestStateGrowth$$' -v ./cmd/stowage/internal/bench -args -bounds
else
	go test -timeout=0 -run '^$$' -bench '^BenchmarkState$$' -benchtime 1x ./cmd/stowage/internal/bench
endif

model: ## Check the models of the life cycle and of a cluster with spin (docs/model; CHECK=1: only the small checks)
	@scripts/packages spin:spin gcc:build-essential
	$(if $(CHECK),,nice) docs/model/run $(if $(CHECK),small)

kubernetes-unit: ## Check the module kubernetes, and run its tests that need no control plane
	go -C kubernetes vet ./...
	go -C kubernetes test -count=1 ./cmd/... ./internal/... ./orchestrator ./provisioner

kubernetes: packages ## Test stowage-provisioner, also against a real control plane, which is built first (KUBERNETES='-test.run=TestGuard')
	@nice scripts/kubernetes $(KUBERNETES)

csi: packages ## Test the CSI driver with csi-sanity, and by hand as its how-to says
	@scripts/packages jq:jq
	go -C csitest vet ./...
	STOWAGE_REQUIRE_ROOT=1 go -C csitest test -count=1 -v -run='^TestSanity$$' $(SANDBOX) .
	@dir=$$(mktemp -d) && trap 'rm -r "$$dir"' EXIT && go -C csitest build -o "$$dir" github.com/fullstorydev/grpcurl/cmd/grpcurl && \
		STOWAGE_REQUIRE_ROOT=1 GRPCURL=$$dir/grpcurl go test -count=1 -v -run='^TestCSIHowTo$$' $(SANDBOX) ./e2e

csi-mock: packages ## Test the CSI provider with the mock driver of the Kubernetes project, and with faults between them
	go -C csitest/mockdriver vet ./...
	@dir=$$(mktemp -d) && trap 'rm -r "$$dir"' EXIT && go -C csitest/mockdriver build -o "$$dir" . && \
		STOWAGE_REQUIRE_ROOT=1 STOWAGE_MOCK_DRIVER=$$dir/mockdriver go test -p 1 -count=1 -v -run='^TestMockDriver' $(SANDBOX) ./storage/provider/csi ./e2e

docker: packages ## Test the volume plugin with Docker and Podman, which are installed
	@scripts/packages dockerd:docker.io podman:podman runc:runc busybox:busybox-static
	go vet -tags=engines ./e2e
	STOWAGE_REQUIRE_ROOT=1 $(GO_TEST) -tags=engines -count=1 -v $(SANDBOX) -run='^TestEngine' ./e2e

ui: packages ## Test the page of stowage ui in a browser without a screen (SCREENSHOTS=DIR: write pictures of it)
	@scripts/packages chromium:chromium
	go -C uitest vet ./...
	STOWAGE_REQUIRE_ROOT=1 go -C uitest test -count=1 -v $(SANDBOX) .$(if $(SCREENSHOTS), -args -screenshots '$(abspath $(SCREENSHOTS))')

package: ## Make the Debian package and the tarball in bin/ (VERSION=v1.2.3; from git otherwise)
	@packaging/build bin

package-test: packages ## Install, upgrade, remove and purge the package on an overlay of this machine's root (LINT=1: also lintian and mandoc)
	@nice packaging/test $(if $(LINT),--lint)

kubelet: packages ## Test pods that use volumes of stowage-provisioner, on a real kubelet with containerd, which is built first
	@nice scripts/kubernetes --kubelet

packages:
	@scripts/packages
