# vnic. The two commands:
#
#   make demo       fetch, build, and run the main job: GPU to GPU between two QEMU guests, on either NIC
#   make test       all tests, the fuzz corpora, and guests in QEMU
#
# for those who work on it (CONTRIBUTING.md):
#
#   make check      before every commit: lint of what differs from HEAD, and tests that boot nothing but the slow ones
#   make race       all tests that boot nothing, the slow ones too, with the race detector
#   make test-all   every script, tests in their long form, new inputs for fuzz targets: hours; PART=3 is one part of it
#   make parts      the parts of test-all, at most 25 minutes each
#   make test-speed scripts that judge speed: on a machine with nothing else to do
#
# and for others to use it (packaging/INSTALL.md):
#
#   make install [PREFIX=/usr/local] [DESTDIR=]   program, man pages, completions, systemd unit
#   make release                                  the same as a tarball, in dist/
#
# They need Debian with apt, make and git; what else is missing they fetch into the cache (tools/with-tools).

MAKEFLAGS += -r # no rules of make's own, which it would try for each source

WITH  := tools/with-tools
GUEST := internal/guestbin/vnic-guest.gz
UROOT := bin/u-root.gz
# Everything that Go builds from: a change of any of it builds anew.
SRC   := $(shell find . -name '*.go' -o -name '*.s' -o -name go.mod -o -name go.sum -o \
                 \( -name '*.json' -o -name '*.yaml' -o -name '*.sh' \) -path '*/internal/*' -o \
                 -path './internal/machine/assets/selftests/p*/*' -o \
                 -path './guest-images/vnicgpu/*' | grep -v '^./tools/')

# What is made bears the date of its source, not of its making.
SOURCE_DATE_EPOCH := $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null || echo 0))
export SOURCE_DATE_EPOCH
VERSION := $(or $(VERSION),$(shell git describe --tags --always --dirty 2>/dev/null || echo devel))
PREFIX  ?= /usr/local

.PHONY: build install release demo demo-build demo-fetch modules check test test-all test-speed parts lint short unit guests race fuzz selftest clean

build: bin/vnic

# What vnic is made of, its guest program included.
# make demo sets MODULES to : (nothing to do) once they are there.
MODULES := $(WITH) tools/modules ./cmd/vnic ./guest-images/internal/vnic-guest
modules:
	@$(MODULES)

# Compilers take less time with more garbage; and on two processors a seventh less where each has one for itself.
CPUS  := $(shell nproc)
HASTE := GOGC=400 $(if $(filter 1 2,$(CPUS)),GOMAXPROCS=1)
BUILD := $(HASTE) $(WITH) go build -p $(CPUS)
STAMP := -s -w -X vnic.dev/vnic/internal/version.stamped=$(VERSION)
INSTALL := $(HASTE) $(WITH) go install -p $(CPUS)

# All that vnic is made of, but for its main package, which carries the guest program and so comes after it.
REST := ./internal/job/... ./internal/live ./internal/report/... github.com/schollz/progressbar/v3 github.com/spf13/cobra runtime/pprof

# The guest program goes into vnic itself: static, and with nothing in it that differs between machines. It is the only
# program among these packages, and the first: the others are compiled while it is linked. go install compiles packages
# that are no programs, too; go build -o compiles the programs alone.
$(GUEST): $(SRC)
	@mkdir -p bin
	@$(MODULES)
	GOBIN='$(CURDIR)/bin' $(INSTALL) -ldflags='-buildid= $(STAMP)' ./guest-images/internal/vnic-guest $(REST)
	@gzip -1nc bin/vnic-guest > $@.new && mv $@.new $@

# The commands of guests' userland: u-root's own builder makes one program of them. A vnic in a checkout builds them when
# it first needs them (guest-images/userlandbuild.go); only one that leaves its checkout carries them.
$(UROOT): tools/uroot/build tools/uroot/go.mod tools/uroot/go.sum tools/uroot/sh/main.go
	@mkdir -p bin
	$(WITH) tools/uroot/build $@

AS_VNIC := -ldflags='$(STAMP)'
# Only its main package is left to compile: both processors do.
bin/vnic: $(SRC) $(GUEST)
	$(WITH) go build $(AS_VNIC) -o $@ ./cmd/vnic

# To Go the userland lies in internal/guestbin here, and is embedded; and vnic is compiled in full: see tools/with-tools.
bin/release/vnic: $(SRC) $(GUEST) $(UROOT)
	@mkdir -p bin/release
	@{ echo '{"Replace": {'; for f in u-root.txt u-root-licences.gz u-root.gz; do \
	  echo "  \"$(CURDIR)/internal/guestbin/$$f\": \"$(CURDIR)/bin/$$f\"$$([ $$f = u-root.gz ] || echo ,)"; done; \
	  echo '}}'; } > bin/release/overlay.json
	$(BUILD) $(AS_VNIC) -gcflags=all= -overlay bin/release/overlay.json -o $@ ./cmd/vnic

# The same with a command that writes man pages and completions: cmd/vnic/docs.go.
bin/vnic-docs: $(SRC)
	$(BUILD) -tags docs -o $@ ./cmd/vnic

install: bin/release/vnic bin/vnic-docs
	packaging/install.sh "$(DESTDIR)" "$(PREFIX)"

release: bin/release/vnic bin/vnic-docs
	packaging/release.sh "$(VERSION)" "$(PREFIX)"

# The small program that fetches QEMU and a kernel is compiled first, and then runs while Go compiles the rest: the same
# packages are not compiled twice, as they would be at the same time. Where it fails, vnic tries itself, and says why.
demo:
	@tools/cold
	@$(WITH) true
	@$(MAKE) --no-print-directory -j2 demo-fetch demo-build
	bin/vnic run --size 32M
	bin/vnic run --nic gve --size 16M

demo-build: modules bin/fetch
	@$(MAKE) --no-print-directory MODULES=: build

demo-fetch: bin/fetch
	@-bin/fetch

# Nearly all packages wait for Go's runtime: two processors compile it.
bin/fetch: $(SRC) internal/machine/assets/versions.lock
	@mkdir -p bin
	@GOGC=400 $(WITH) go build runtime
	$(BUILD) -o $@ ./internal/machine/assets/cmd/fetch

# The packages that differ from HEAD, or all if none does. CI runs the linter over all.
CHANGED = $(or $(sort $(patsubst %/,./%,$(dir $(wildcard $(filter-out tools/%,$(shell \
          git diff --name-only HEAD -- '*.go'; git ls-files -o --exclude-standard '*.go')))))),./...)

# Linter and tests build on the same compiled packages. Then the linter takes the processor time that the tests leave.
check: $(GUEST)
	@$(HASTE) $(WITH) go list -p $(CPUS) -test -export ./... > /dev/null
	@tools/beside '$(MAKE) --no-print-directory lint LINTED="$(CHANGED)"' '$(MAKE) --no-print-directory short'

# Guests boot when nothing else runs: they emulate two processors on two.
test: build
	@rm -f bin/reruns.txt # of the run before
	$(MAKE) unit
	$(MAKE) guests

PART ?= all
test-all: build
	@rm -f bin/reruns.txt # of the run before; CI's is another
	tools/parts run $(PART)

test-speed: build
	tools/parts --speed run all

parts:
	@tools/parts list

# The linter runs for half a minute, and takes two to compile. go vet is one of the linter's.
LINTED ?= ./...
lint:
	$(WITH) go mod tidy -diff
	$(WITH) go vet -C tools ./...
	$(HASTE) $(WITH) go build -C tools -p $(CPUS) -ldflags='-s -w' -o ../bin/ \
		github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	$(WITH) bin/golangci-lint run --allow-parallel-runners $(LINTED)
	tools/apidiff

# lint has vetted what is tested, and without debug information it links faster.
GOTEST := tools/gotest -vet=off -ldflags=-s
# What boots guests in `make test`, and nowhere else.
GUESTS := ./test/internal/guests

# What boots nothing, in its short form.
short: $(GUEST)
	$(WITH) $(GOTEST) -short ./...

# Without -race as well: the tests that count allocations mean nothing under it.
unit: $(GUEST)
	$(WITH) sh -c 'exec $(GOTEST) -timeout 15m $$(go list ./... | grep -v /$(notdir $(GUESTS))$$)'
	$(WITH) go test -C tools -vet=off ./...

guests: build
	$(WITH) $(GOTEST) -timeout 15m $(GUESTS)

# Golden files and bounds of memory are the same with -race, or mean nothing.
# No goroutine outlives a test (testkit.Main): programs need not wait at their end, a second each, for races of such.
race: export GORACE := atexit_sleep_ms=10
race: $(GUEST)
	$(WITH) --cc $(GOTEST) -race -short -timeout 15m -skip '^(TestGolden|TestMemoryIsBounded)$$' ./...

# Each fuzz target for so many inputs, on top of its corpus, which `unit` has run. FUZZ=10m hunts.
FUZZ ?= 2000x
fuzz:
	$(WITH) tools/fuzz $(FUZZ)

# The kernel's own driver selftests on both models and on QEMU's NIC, and the table of them side by side.
SELFTESTS ?= dist/selftests
selftest: build
	tools/selftests $(SELFTESTS)

clean:
	rm -rf bin dist $(GUEST)
