package assets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// State is what a Fact means for a run.
type State string

// States of a Fact.
const (
	Good    State = "ok"
	Worse   State = "worse"   // with limitations, unknown, or missing and not needed now
	Lacking State = "missing" // needed, and missing or unusable
)

// Fact is something that a machine has or lacks.
type Fact struct {
	Name  string `json:"name"` // as "qemu", "mirror", "kvm"
	OK    bool   `json:"ok"`   // State is Good
	State State  `json:"state"`
	Value string `json:"value"`
	Fix   string `json:"fix,omitempty"` // advice; "": none
}

// NewFact makes a fact, without the advice if s is Good.
func NewFact(name string, s State, value, fix string) Fact {
	if s == Good {
		fix = ""
	}
	return Fact{Name: name, OK: s == Good, State: s, Value: value, Fix: fix}
}

// listBytes estimates the size of apt's lists of a suite and of the suite that it extends.
const listBytes = 22 << 20

// Survey is the result of Look: what this machine has or lacks for a run, and for a fetch.
type Survey struct {
	Cache         string // directory; "" = unknown
	QEMU          Binary // zero: none; a user's may be unusable
	Kernel        Kernel
	Found         []Fact // "qemu", "kernel", "nic virtio", "nic gve"
	Means         []Fact // "packages", "mirror", with a mirror "keyring", "cache", and, if that can be read, "space"
	Ready         bool   // a usable QEMU and kernel are here
	CanFetch      bool   // missing files can be downloaded, if the mirror is reachable; false if a user's file is unusable
	DownloadBytes int64  // estimate for a missing QEMU or kernel, with apt's lists; 0: both are here
	DiskBytes     int64  // estimate for a missing QEMU or kernel, unpacked

	unusable bool // the user named an unusable file
}

// Look examines this machine. It uses no network, and writes no files; it may remove a group's write permission on the
// cache's directories (checkPath).
func Look(ctx context.Context, o Options) *Survey {
	dir, err := CacheDir(o)
	s := &Survey{Cache: dir}
	have := resolved{}
	if err == nil {
		have, err = cache{dir}.load()
	}
	haveQEMU := s.findQEMU(ctx, o, have)
	haveKernel := s.findKernel(o, have)
	s.nics(have)
	packages := s.packages(ctx, o, haveQEMU && haveKernel)
	for role, there := range map[string]bool{roleQEMU: haveQEMU, roleKernel: haveKernel} {
		if !there {
			s.DownloadBytes += lock.Roles[role].Download
			s.DiskBytes += lock.Roles[role].Disk
		}
	}
	if s.DownloadBytes > 0 {
		s.DownloadBytes += listBytes
	}
	fits := s.space(err)
	s.Ready = haveQEMU && haveKernel
	s.CanFetch = packages && fits && !s.unusable
	return s
}

func (s *Survey) found(name string, state State, value, fix string) {
	s.Found = append(s.Found, NewFact(name, state, value, fix))
}

func (s *Survey) means(name string, state State, value, fix string) {
	s.Means = append(s.Means, NewFact(name, state, value, fix))
}

// lacking makes a fact with State Lacking from an error.
func lacking(name string, err error) Fact {
	var m *Missing
	if errors.As(err, &m) {
		return NewFact(name, Lacking, fmt.Sprintf("%s: %v", m.What, m.Err), m.Fix)
	}
	return NewFact(name, Lacking, err.Error(), "")
}

func (s *Survey) findQEMU(ctx context.Context, o Options, have resolved) bool {
	b, note, err := hostQEMU(ctx, &o)
	if err != nil {
		s.Found, s.QEMU, s.unusable = append(s.Found, lacking("qemu", err)), b, true
		return false
	}
	if note != "" {
		note = "; " + note
	}
	where := ""
	switch {
	case b.Source == SourceGiven:
		where = "given: " + cmp.Or(o.QEMU, os.Getenv(EnvQEMU))
	case b.Source == SourceSystem:
		where = b.Args[0]
	case o.will(roleQEMU, have[roleQEMU]):
		cached := have[roleQEMU]
		if b, err = binaryOf(filepath.Join(s.Cache, cached.Dir)); err == nil {
			b.Version = upstream(cached.Version)
			where = cached.where()
		} else {
			note += "; cache: " + err.Error()
		}
	}
	if where == "" {
		s.found("qemu", Lacking, "none that can be used"+note,
			"the first run fetches it; or install "+o.oldest()+" or newer, or give its path (--qemu)")
		return false
	}
	s.found("qemu", Good, fmt.Sprintf("%s (%s)%s", b.Version, where, note), "")
	s.QEMU = b
	return true
}

func (t *tree) where() string {
	where := "in the cache, from " + t.Suite
	if t.For != nil {
		where += ", imported for " + strings.Join(t.For, ", ")
	}
	return where
}

func (s *Survey) findKernel(o Options, have resolved) bool {
	k, err := givenKernel(&o)
	if err != nil {
		s.Found, s.unusable = append(s.Found, lacking("kernel", err)), true
		if k.Version != "" { // only modules are missing
			s.Kernel = k
		}
		return false
	}
	where := "given: " + cmp.Or(o.Kernel, os.Getenv(EnvKernel))
	if cached := have[roleKernel]; k.Image == "" && cached != nil {
		where = cached.where()
		if k, err = kernelOf(filepath.Join(s.Cache, cached.Dir)); err != nil {
			k = Kernel{}
		}
		k.Suite = cached.Suite
	}
	if k.Image == "" {
		s.found("kernel", Lacking, "none for guests", "the first run fetches it, or give one (--kernel, --modules)")
		return false
	}
	s.found("kernel", Good, fmt.Sprintf("%s (%s)", k.Version, where), "")
	s.Kernel = k
	return true
}

// packages adds facts about fetching, and reports whether packages can be fetched. done: a run needs none, so missing
// means are Worse, not Lacking.
func (s *Survey) packages(ctx context.Context, o Options, done bool) bool {
	worst := Lacking
	if done {
		worst = Worse
	}
	lacking := lackingTools()
	if lacking == nil {
		s.means("packages", Good, "apt-get and dpkg-deb", "")
	} else {
		s.means("packages", worst, "no "+strings.Join(lacking, ", "), giveBoth)
	}
	a, err := findArchive(ctx, &o, aptEtc)
	var m *Missing
	switch {
	case err == nil:
		s.means("mirror", Good, a.mirror, "")
		s.means("keyring", Good, a.keyring, "")
		return lacking == nil
	case errors.As(err, &m) && errors.Is(err, ErrNoKeyring):
		s.means("mirror", Good, a.mirror, "")
		s.means("keyring", worst, m.Err.Error(), m.Fix)
	case errors.As(err, &m):
		s.means("mirror", worst, m.Err.Error(), m.Fix)
	default:
		s.means("mirror", worst, err.Error(), "")
	}
	return false
}

// space adds facts about the cache, and reports whether it can take the download. err is the error of finding or
// reading the cache; nil: none.
func (s *Survey) space(err error) bool {
	if err != nil {
		s.Means = append(s.Means, lacking("cache", err))
		return false
	}
	dir := s.Cache
	writable := dir
	for writable != "/" {
		if _, err := os.Stat(writable); err == nil {
			break
		}
		writable = filepath.Dir(writable)
	}
	denied := unix.Access(writable, unix.W_OK)
	if denied != nil {
		s.means("cache", Lacking, fmt.Sprintf("%s: %v", dir, denied), fixWrite)
	} else {
		s.means("cache", Good, dir, "")
	}
	c := cache{dir}
	free, err := c.free()
	need := (s.DownloadBytes + s.DiskBytes) * 6 / 5
	switch {
	case err != nil:
		s.Means = append(s.Means, lacking("space", err))
		return false
	case free < need:
		s.means("space", Lacking, fmt.Sprintf("%d MB free in the cache, %d MB needed", free>>20, need>>20),
			fixSpace)
		return false
	}
	s.means("space", Good, fmt.Sprintf("%d MB free in the cache", free>>20), "")
	return denied == nil
}

// models are the NIC models, with the oldest QEMU for each.
var models = []struct{ nic, oldest string }{
	{"virtio", MinQEMU},
	{"gve", MinVFIOUser},
}

// nics adds a fact about each NIC model. If no QEMU was found, or it is too old for the model, the cache's counts.
func (s *Survey) nics(have resolved) {
	for _, p := range models {
		version := s.QEMU.Version
		if cached := have[roleQEMU]; older(version, p.oldest) && cached != nil {
			version = upstream(cached.Version)
		}
		name := "nic " + p.nic
		switch {
		case version == "" || s.Kernel.Image == "":
			s.found(name, Worse, "not known before there are a QEMU and a guest kernel", "see above")
		case older(version, p.oldest):
			s.found(name, Worse, fmt.Sprintf("QEMU %s is older than %s", version, p.oldest),
				"the first run with --nic "+p.nic+" fetches a newer one")
		default:
			s.found(name, Good, fmt.Sprintf("QEMU %s, kernel %s", version, s.Kernel.Version), "")
		}
	}
}
