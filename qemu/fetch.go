package qemu

import (
	"context"
	"errors"
	"log/slog"
)

// Environment variables that stand for options left empty.
const (
	EnvCache   = "VNIC_CACHE"
	EnvMirror  = "VNIC_MIRROR"
	EnvKeyring = "VNIC_KEYRING"
	EnvQEMU    = "VNIC_QEMU"
	EnvKernel  = "VNIC_KERNEL"
	EnvModules = "VNIC_MODULES"
)

// Options says where QEMU and the kernel come from. The zero value does the right thing.
type Options struct {
	CacheDir string // "" = $VNIC_CACHE, $XDG_CACHE_HOME/vnic, ~/.cache/vnic
	Mirror   string // "" = $VNIC_MIRROR, else the first Debian URI of the machine's apt sources
	Keyring  string // "" = $VNIC_KEYRING, else the sources' Signed-By, else Debian's
	QEMU     string // "" = $VNIC_QEMU, else PATH when new enough, else the cache, else fetched
	Kernel   string // "" = $VNIC_KERNEL, else the cache, else fetched
	Modules  string // module directory that goes with Kernel; "" = $VNIC_MODULES

	IgnoreSystemQEMU bool // do not look in PATH
	Offline          bool // the cache only
	Refresh          bool // ask the mirror again even when the cache has everything

	Progress func(Progress) // called from one goroutine at a time; may be nil
	Log      *slog.Logger   // may be nil
}

// Progress is one step of a fetch.
type Progress struct {
	Step        string // "update", "download", "unpack", "wait"
	What        string // "qemu", "kernel"
	Done, Total int64  // bytes; Total 0 = unknown
}

// Binary is a QEMU that can be started.
type Binary struct {
	Args    []string `json:"args"`    // program and leading arguments (loader, library path, -L)
	Version string   `json:"version"` // upstream version, "11.1.2"
	Source  string   `json:"source"`  // "given", "system", "cache"
}

// Kernel is a bootable guest kernel.
type Kernel struct {
	Image   string `json:"image"`   // bzImage
	Version string `json:"version"` // uname -r
	Modules string `json:"modules"` // directory with its modules; "" = none
	Source  string `json:"source"`  // "given", "cache"
}

// Package is one package that was unpacked.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256"`
}

// Resolved is what a run uses.
type Resolved struct {
	Cache    string // cache directory
	QEMU     Binary
	Kernel   Kernel
	Untested []string // one line for each part that is not the one in versions.lock; empty = as tested
}

// Fetch finds QEMU and a kernel and fetches into the cache what is not there. It is safe to run in several processes at once.
func Fetch(ctx context.Context, o Options) (*Resolved, error) {
	return nil, errors.New("qemu: Fetch: not written yet")
}
