// Package export is `vnic cache export`: it writes the software for some commands to one file. It also has the
// output of `vnic cache ls`.
package export

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/guestnvme"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/outfile"
)

// commands maps the names of Options.For to kernel modules that their guests need besides modules for NICs.
var commands = map[string][]string{
	"allreduce": nil,
	"block":     guestnvme.TargetModules,
	"boot":      nil,
	"load":      nil,
	"rdma":      nil,
	"run":       nil,
	"serve":     nil, // for vnic qemu and vnic image build
}

// Commands lists the valid names of Options.For.
func Commands() []string { return slices.Sorted(maps.Keys(commands)) }

// Options are the flags of `vnic cache export`, and functions for its messages.
type Options struct {
	File  string
	For   []string
	Vnic  string // version of this program
	Fetch assets.Options
	Note  func(format string, args ...any)
	Stage func(what string)
}

// Result describes the written file.
type Result struct {
	File   string   `json:"file"`
	Bytes  int64    `json:"bytes"`
	SHA256 string   `json:"sha256"`
	For    []string `json:"for"`
}

// ErrCommand means that For is empty, or has an unknown name.
var ErrCommand = errors.New("cannot be exported for")

// Check returns an ErrCommand for an invalid For; else it sorts For and removes duplicates.
func (o *Options) Check() error {
	for _, name := range o.For {
		if _, ok := commands[name]; !ok {
			return fmt.Errorf("%q %w: name some of %s", name, ErrCommand, strings.Join(Commands(), ", "))
		}
	}
	o.For = slices.Compact(slices.Sorted(slices.Values(o.For)))
	if len(o.For) == 0 {
		return fmt.Errorf("no command %w: name some of %s", ErrCommand, strings.Join(Commands(), ", "))
	}
	return nil
}

// modules lists the kernel modules for NICs of both models, and the further modules of the commands in names.
func modules(im *machine.Images, names []string) (list []string) {
	for _, m := range []string{lab.Virtio, lab.GVE} {
		list = append(list, machine.SoftwareFor(m).Modules...)
		list = append(list, im.Drivers(m)...)
	}
	for _, n := range names {
		list = append(list, commands[n]...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Run fetches what the cache lacks, unless Fetch.Offline is set, and writes the export. It replaces an older file only
// by a complete export. Run holds the content in memory.
func Run(ctx context.Context, o Options) (res *Result, err error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	draft, err := outfile.NewDraft(o.File) // fails before the fetch
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, draft.Discard()) }()
	if !guestimages.CarriesProgram() {
		return nil, errors.New("this vnic carries no guest program: export with one that make has built, or of a release")
	}
	r, paths, err := open(ctx, &o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for _, n := range r.Notes {
		o.Note("%s", n)
	}
	for _, n := range r.Untested {
		o.Note("untested: %s", n)
	}
	extras, err := o.userland(ctx, r.Cache)
	if err != nil {
		return nil, err
	}
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	defer func() { _ = program.Close() }()
	o.Stage("packing")
	b, err := r.WriteArchive(ctx, assets.Export{Vnic: o.Vnic, Program: program, For: o.For, Modules: paths,
		Extras: extras})
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b)
	if err := draft.Commit(b); err != nil {
		return nil, err
	}
	return &Result{File: o.File, Bytes: int64(len(b)), SHA256: hex.EncodeToString(sum[:]), For: o.For}, nil
}

// userland returns the directory in the cache with u-root's commands, if the export is for boot: nothing if this
// program embeds them, as a release does, or there are none.
func (o *Options) userland(ctx context.Context, cacheDir string) ([]string, error) {
	if !slices.Contains(o.For, "boot") {
		return nil, nil
	}
	u, err := guestimages.FindUserland(ctx, guestimages.UserlandOptions{CacheDir: cacheDir, Offline: o.Fetch.Offline,
		Building: func() { o.Stage("building u-root's commands") }})
	switch {
	case errors.Is(err, guestimages.ErrNoUserland):
		o.Note("%v: guests of boot will have what the other machine has", err)
		return nil, nil
	case err != nil || u == nil || u.InCache == "":
		return nil, assets.CacheError(cacheDir, err)
	}
	return []string{u.InCache}, nil
}

// open finds or fetches QEMU and a kernel with the modules for o.For, and returns the paths of these modules' files. If
// an imported kernel lacks one, it fetches another kernel, or fails with Fetch.Offline. The caller closes the result.
func open(ctx context.Context, o *Options) (*assets.Resolved, []string, error) {
	for {
		r, err := assets.FetchCached(ctx, o.Fetch)
		if err != nil {
			return nil, nil, err
		}
		im := &machine.Images{Resolved: r}
		paths, err := guestimages.ModuleFiles(r.Kernel.Modules, modules(im, o.For))
		if err == nil {
			return r, paths, nil
		}
		partial, version := r.Kernel.Partial, r.Kernel.Version
		if cerr := r.Close(); cerr != nil || partial == "" || !errors.Is(err, guestimages.ErrNoModule) {
			return nil, nil, errors.Join(err, cerr)
		}
		if o.Fetch.Offline {
			return nil, nil, assets.Partial("kernel "+version+": "+err.Error(), partial)
		}
		o.Fetch.Whole = true
	}
}
