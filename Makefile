# Every target runs one or two commands. Scripts with logic are in hack.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS  = -s -w -X main.version=$(VERSION) -X github.com/elastic-kernel-gateway/ekg/cmd/buildinfo.commit=$(COMMIT)
BIN     ?= bin
FUZZTIME ?= 30s
RELEASES ?= 1.35.4 1.36.3

.DEFAULT_GOAL := help
.PHONY: help build labextension page screenshots demo test environments unit interop lint e2e e2e-machine e2e-cluster e2e-releases image image-push image-check gpu-check chaos costs vulncheck fuzz bench bench-quick microbench simulate cluster cluster-down generate verify clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

build: ## build the programs into bin: all are static but ekg-gpu, which needs a C compiler
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/ekg ./cmd/ekg-supervisor ./cmd/ekg-gpu-agent
	CGO_ENABLED=1 $(GO) build -trimpath -ldflags '$(LDFLAGS) -extldflags=-Wl,-z,lazy' -o $(BIN)/ ./cmd/ekg-gpu

labextension: ## build the JupyterLab part of python/jupyter-ekg; its committed build is all that pip and the tests need
	@hack/labextension build

page: ## build the operator's page of gateway/page; its committed build is all that go build needs
	@hack/page build

screenshots: ## take the pictures of docs/pictures from JupyterLab and the page in Chromium, with real kernels
	EKG_PICTURES=$(CURDIR)/docs/pictures $(GO) test -tags e2e -timeout 20m -count 1 -v -run '^TestPictures$$' ./e2e

demo: ## build and install what is needed, and run JupyterLab through ekg on a printed URL; Ctrl-C ends it
	@GO='$(GO)' LDFLAGS='$(LDFLAGS)' hack/demo

test: ## everything that CI runs: lint, unit, interop and e2e, each named with its time; installs what they need
	@MAKE='$(MAKE)' hack/parts --at-once 'lint unit interop e2e-machine' e2e-cluster environments

environments: ## install what the tests need besides the cluster, outside the tree
	@hack/env/all

unit: ## unit tests with the race detector, fuzz seeds included
	@GO='$(GO)' hack/gotest -race -timeout 20m ./...
	$(GO) test -C hack/bench -race -timeout 10m ./...
	$(GO) test -run '^TestSupervisor_BigMessages$$' ./launcher/supervisor
	@hack/labextension test
	@hack/page test

interop: ## our ZeroMQ against libzmq, the tests' fake kernel against jupyter_client, compression against the library websockets, and Enterprise Gateway's launcher and chart
	EKG_TEST_PYTHON=$$(hack/env/setup lab)/lab/bin/python EKG_TEST_ENTERPRISE=$$(hack/env/peers) EKG_TEST_PACKAGES=$$(hack/env/notebook) GO='$(GO)' hack/gotest -race -timeout 5m -count 1 -run '^(TestSocket_Libzmq|TestFakeKernel_JupyterClient|TestLaunched_Enterprise|TestHelm_EnterpriseValues|TestCompression_Websockets)$$' ./gateway/channels ./launcher/supervisor ./launcher/supervisor/zeromq ./launcher/launchertest ./jupyter/zmtp ./deploy

e2e: ## end to end tests, with kernels of this machine and of a cluster at once: real kernels, Jupyter's own clients, JupyterLab in Chromium
	@MAKE='$(MAKE)' hack/parts --at-once e2e-machine e2e-cluster

e2e-machine: ## end to end tests whose kernels are processes of this machine
	@GO='$(GO)' hack/gotest -tags e2e -timeout 60m -count 1 -v -run '^TestE2E_' -skip '^TestE2E_Kube' ./e2e

e2e-cluster: ## end to end tests whose kernels are pods of KUBECONFIG's cluster, or of deploy/devcluster's
	@GO='$(GO)' hack/gotest -tags e2e -timeout 80m -count 1 -v -run '^TestE2E_Kube' ./e2e

e2e-releases: ## the tests that depend on Kubernetes itself, on other RELEASES of it (default: those supported besides the cluster's own)
	@GO='$(GO)' hack/releases $(RELEASES)

image: ## build the image for amd64 and arm64 with docker, podman or buildah; IMAGE=registry.example.com/ekg:1.0 names it
	@VERSION='$(VERSION)' hack/multiarch build '$(IMAGE)'

image-push: ## build the image as `make image` does, and push it
	@VERSION='$(VERSION)' hack/multiarch push '$(IMAGE)'

image-check: ## build the image of deploy/Dockerfile with buildah, as root on Debian, and check its content
	@GO='$(GO)' hack/image

gpu-check: ## check what the documents say about GPUs, on a machine with an NVIDIA GPU; writes docs/gpu-measured.md
	@hack/gpucheck

chaos: ## the long form of the tests with cut connections, killed gateways, floods, parked kernels, other kernels and users, and a broken cluster: over an hour
	$(GO) test -tags e2e -timeout 90m -count 1 -v -run '^TestChaos' ./e2e

costs: ## measure idle supervisors, floods, and a cell with many displays in JupyterLab: about ten minutes
	$(GO) test -tags e2e -timeout 30m -count 1 -v -run '^TestCosts' ./e2e

vulncheck: ## look for known vulnerabilities with govulncheck; reads https://vuln.go.dev or GOVULNDB
	@GO='$(GO)' hack/vulncheck

lint: ## golangci-lint with .golangci.yml, and a tidy go.mod
	@hack/lint

fuzz: ## fuzz every fuzz target for FUZZTIME each (default 30s)
	@hack/fuzz $(FUZZTIME)

bench: ## measure ekg beside libzmq, Enterprise Gateway and jupyter_server; writes docs/benchmarks.md, in about an hour
	$(GO) run -C hack/bench . -write

bench-quick: ## a shorter form of it, in five minutes; prints the tables and names what got worse since hack/bench/results.json
	$(GO) run -C hack/bench . -quick -compare hack/bench/results.json

microbench: ## Go's benchmarks of the message path, with allocations
	$(GO) test -run '^$$' -bench . -benchmem -timeout 30m ./gateway/... ./launcher/...

simulate: ## compute what parking kernels saves and costs; writes docs/parking.md, in a few seconds
	$(GO) run ./hack/simulate -write

cluster: ## start Kubernetes with one node on this machine, as root, with the images of the tests; see docs/kubernetes.md
	@deploy/devcluster/devcluster up
	@deploy/devcluster/devcluster images

cluster-down: ## stop that Kubernetes and remove all its files
	@deploy/devcluster/devcluster down

generate: ## write the generated parts: the tables of settings, metrics and imports, and the chart's schema of settings
	$(GO) run ./hack/generate

verify: ## fail if a generated part differs from what is committed
	$(GO) test -count 1 -run '^TestDocs' ./hack/...

clean: ## remove the built programs and the logs of tests
	rm -rf bin artifacts
