# vnic. The two commands:
#
#   make demo       fetch, build, and run the main job: GPU to GPU between two QEMU guests, on either NIC
#   make test       what CI runs: lint, unit, race, fuzz corpora, guests in the process and in QEMU, acceptance
#
# for those who work on it (CONTRIBUTING.md):
#
#   make check      before every commit: lint, and all tests that boot nothing
#   make test-all   everything: repeats, sweeps, longer fuzzing, every acceptance script; nightly
#
# and for others to use it (packaging/INSTALL.md):
#
#   make install [PREFIX=/usr/local] [DESTDIR=]   program, man pages, completions, systemd unit
#   make release                                  the same as a tarball, in dist/
#
# They need Debian with apt, make and git; what else is missing they fetch into the cache (tools/with-tools).

WITH  := tools/with-tools
GUEST := guest-images/bin/vnic-guest.gz
UROOT := guest-images/bin/u-root.gz
# The driver of guests' GPUs, for the kernel that is fetched: in vnic as well.
KERNEL := $(shell sed -n 's/.*"name": "linux-binary-\(.*\)",/\1/p' assets/versions.lock)
GPU    := guest-images/bin/vnicgpu-$(KERNEL).ko.gz
# Everything that Go builds from: a change of any of it builds anew.
SRC   := $(shell find . -name '*.go' -o -name '*.s' -o -name go.mod -o -name go.sum -o \
                 \( -name '*.json' -o -name '*.yaml' -o -name '*.sh' \) -path '*/internal/*' -o \
                 -path './assets/selftests/p*/*' | grep -v '^./tools/')

# What is made bears the date of its source, not of its making.
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
PREFIX  ?= /usr/local

# One way to compile for vnic, its tests and its linter: each takes from Go's cache what another has left.
export GOFLAGS := $(strip $(filter-out -trimpath,$(GOFLAGS)) -trimpath)

.PHONY: build install release demo check test test-all lint unit race race-compiled fuzz acceptance selftest short clean

build: bin/vnic

# The guest program goes into vnic itself: static, and with nothing in it that differs between machines.
$(GUEST): $(SRC)
	@mkdir -p bin
	$(WITH) go build -trimpath -buildvcs=false -ldflags='-s -w -buildid=' -o bin/vnic-guest ./guest-images/cmd/vnic-guest
	@gzip -9nc bin/vnic-guest > $@.new && mv $@.new $@

# The commands of guests' userland, beside it: u-root's own builder makes one program of them.
$(UROOT): tools/uroot/build tools/uroot/go.mod tools/uroot/go.sum tools/uroot/sh/main.go
	$(WITH) tools/uroot/build $@

$(GPU): tools/vnicgpu $(wildcard guest-images/vnicgpu/*.[ch]) guest-images/vnicgpu/Kbuild
	@$(WITH) --cc tools/vnicgpu $(KERNEL) $@ || \
	  { [ $$? = 3 ] && echo "make: note: this vnic has no driver for guests' GPUs (--gpu-driver vnicgpu)" >&2; }

bin/vnic: $(SRC) $(GUEST) $(UROOT) $(GPU)
	$(WITH) go build -trimpath -buildvcs=false -ldflags='-X main.stamped=$(VERSION)' -o $@ ./cmd/vnic

# The same with a command that writes man pages and completions: cmd/vnic/docs.go.
bin/vnic-docs: $(SRC)
	$(WITH) go build -trimpath -buildvcs=false -tags docs -o $@ ./cmd/vnic

install: build bin/vnic-docs
	packaging/install.sh "$(DESTDIR)" "$(PREFIX)"

release: build bin/vnic-docs
	packaging/release.sh "$(VERSION)" "$(PREFIX)"

demo: build
	bin/vnic run
	bin/vnic run --nic gve --size 64M

check: lint short

# Guests wait at times: what race needs is compiled, and lint runs, with what they leave.
test: build
	tools/beside '$(MAKE) race-compiled lint' '$(MAKE) unit race fuzz acceptance'

test-all: export VNIC_LONG := 1
test-all: export REPEAT := 20
test-all: export FUZZ := 100000x
test-all: export ACCEPTANCE :=
test-all: test

# Compilers take a fifth less time with more garbage. The linter runs for half a minute, and takes three to compile, two
# without inlining. go vet is one of the linter's.
HASTE := GOGC=400
lint:
	$(WITH) go mod tidy -diff
	$(WITH) go vet -C tools ./...
	cd tools && CGO_ENABLED=0 $(HASTE) ./with-tools go build -gcflags=all=-l -ldflags='-s -w' -o ../bin/ \
		github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	$(WITH) bin/golangci-lint run --allow-parallel-runners ./...
	tools/apidiff

# lint has vetted what is tested, and without debug information it links faster.
GOTEST := tools/gotest -vet=off -ldflags='-s -w'

# What boots nothing.
short: $(GUEST) $(UROOT) $(GPU)
	$(WITH) $(GOTEST) -short ./...

# Without -race as well: the tests that count allocations mean nothing under it.
unit: $(GUEST) $(UROOT) $(GPU)
	$(WITH) $(GOTEST) -timeout 15m ./...
	$(WITH) go test -C tools -vet=off ./...

# Golden files and bounds of memory are the same with -race, or mean nothing.
# No goroutine outlives a test (testkit.Main): programs need not wait at their end, a second each, for races of such.
race: export GORACE := atexit_sleep_ms=10
race: $(GUEST) $(UROOT) $(GPU)
	$(WITH) --cc $(GOTEST) -race -short -timeout 15m -skip '^(TestGolden|TestMemoryIsBounded)$$' ./...

# All that race compiles goes into Go's cache: this is go list's way to say so, and it links nothing.
race-compiled: $(GUEST) $(UROOT) $(GPU)
	$(HASTE) $(WITH) --cc go list -race -export -test ./... > /dev/null

# Each fuzz target for so many inputs, on top of its corpus, which `unit` has run. FUZZ=10m hunts.
FUZZ ?= 2000x
fuzz:
	$(WITH) tools/fuzz $(FUZZ)

# The scripts that take long are run by hand, or all by acceptance/run.
ACCEPTANCE ?= 1 39
acceptance: build
	acceptance/run $(ACCEPTANCE)

# The kernel's own driver selftests on both models and on QEMU's NIC, and the table of them side by side.
SELFTESTS ?= dist/selftests
selftest: build
	tools/selftests $(SELFTESTS)

clean:
	rm -rf bin dist $(GUEST) $(UROOT) $(GPU)
