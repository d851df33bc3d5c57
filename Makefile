# Every target is one command or a list of other targets; what needs logic is a script in testdata or a Go test.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS  = -s -w -X main.version=$(VERSION)
FUZZTIME ?= 30s
RELEASES ?= 1.35.4 1.36.3

.DEFAULT_GOAL := help
.PHONY: help build demo test unit interop lint e2e e2e-machine e2e-cluster e2e-releases image-check chaos fuzz bench cluster cluster-down generate verify clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

build: ## build bin/ekg and bin/ekg-supervisor, static, and bin/ekg-gpu, which needs a C compiler
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/ekg ./cmd/ekg-supervisor
	CGO_ENABLED=1 $(GO) build -trimpath -ldflags '$(LDFLAGS) -extldflags=-Wl,-z,lazy' -o bin/ ./cmd/ekg-gpu

demo: build ## set everything up and run JupyterLab through ekg on a printed URL; Ctrl-C ends it
	@testdata/demo

test: lint unit interop e2e ## everything that CI runs: lint, unit tests, end to end tests (installs what they need)

unit: ## unit tests with the race detector, fuzz seeds included
	$(GO) test -race -timeout 10m ./...
	$(GO) test -run bigMessages ./launcher/supervisor

interop: ## our ZeroMQ against libzmq, and the tests' fake kernel against jupyter_client
	EKG_TEST_PYTHON=$$(testdata/env/setup lab)/lab/bin/python $(GO) test -race -timeout 5m -count 1 -run '^(TestSocket_Libzmq|TestFakeKernel_JupyterClient)$$' ./launcher/supervisor ./launcher/launchertest

e2e: ## end to end tests, of this machine and of a cluster at once: real kernels, Jupyter's own clients, JupyterLab in Chromium
	@$(MAKE) --no-print-directory -j 2 --output-sync=target e2e-machine e2e-cluster

e2e-machine: ## those whose kernels are processes of this machine
	$(GO) test -tags e2e -timeout 60m -count 1 -v -run '^TestE2E_' -skip '^TestE2E_Kube' ./cmd/ekg

e2e-cluster: ## those whose kernels are pods, of KUBECONFIG's cluster or of deploy/devcluster's
	$(GO) test -tags e2e -timeout 60m -count 1 -v -run '^TestE2E_Kube' ./cmd/ekg

e2e-releases: ## the cluster's tests that depend on Kubernetes itself, on other RELEASES of it (default: the supported ones that are not the cluster's own)
	@GO='$(GO)' testdata/releases $(RELEASES)

image-check: ## the image of deploy/Dockerfile, built by buildah as root on Debian, and a look at what is in it
	@GO='$(GO)' testdata/image

chaos: ## cut connections, killed gateways and floods, the long form of what make test does: about half an hour
	$(GO) test -tags e2e -timeout 90m -count 1 -v -run '^TestChaos' ./cmd/ekg

lint: ## gofmt, go vet, staticcheck, go mod tidy
	@testdata/lint

fuzz: ## fuzz every fuzz target for FUZZTIME each (default 30s)
	@testdata/fuzz $(FUZZTIME)

bench: ## benchmarks of the message path, beside direct ZeroMQ in the same run
	$(GO) test -run '^$$' -bench . -benchmem -timeout 30m ./gateway/... ./launcher/...

cluster: ## a Kubernetes of one node on this machine, as root, with the images that tests use; see docs/kubernetes.md
	@deploy/devcluster/devcluster up
	@deploy/devcluster/devcluster images

cluster-down: ## end it and remove every trace of it
	@deploy/devcluster/devcluster down

generate: ## write the generated parts of the documentation: the tables of settings and of metrics
	$(GO) run ./cmd/ekg docs flags --into README.md
	$(GO) run ./cmd/ekg docs metrics --into docs/monitoring.md

verify: ## fail if what is generated is not what is committed
	$(GO) test -count 1 -run '^TestDocs' ./cmd/ekg

clean: ## remove what was built and what tests left behind
	rm -rf bin artifacts
