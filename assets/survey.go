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

// State says what a Fact means for a run.
type State string

// States.
const (
	Good    State = "ok"
	Worse   State = "worse"   // works, but worse, or not known yet
	Lacking State = "missing" // a run needs it
)

// Fact is one thing that a machine has or lacks.
type Fact struct {
	Name  string `json:"name"` // as in "qemu", "mirror", "kvm"
	OK    bool   `json:"ok"`   // State is Good
	State State  `json:"state"`
	Value string `json:"value"`         // what was found
	Fix   string `json:"fix,omitempty"` // what to do when not Good
}

// NewFact makes a fact: what is Good needs no fix.
func NewFact(name string, s State, value, fix string) Fact {
	if s == Good {
		fix = ""
	}
	return Fact{Name: name, OK: s == Good, State: s, Value: value, Fix: fix}
}

// listBytes is what apt's lists of one suite and its base amount to.
const listBytes = 22 << 20

// Survey is what a machine has of what is fetched, and of what a fetch needs.
type Survey struct {
	Cache         string // directory; "" = none can be told
	QEMU          Binary // the zero value if there is none, as Kernel's
	Kernel        Kernel
	Found         []Fact // "qemu", "kernel", "nic virtio", "nic gve"
	Means         []Fact // "packages", "mirror", "keyring", "cache", "space"
	Ready         bool   // a run needs no download
	CanFetch      bool   // what is missing can be downloaded, if the mirror can be reached
	DownloadBytes int64  // what the first run will download
	DiskBytes     int64  // what that takes up in the cache
}

// Look looks at this machine. It changes nothing, and uses no network.
func Look(ctx context.Context, o Options) *Survey {
	dir, err := CacheDir(o)
	s := &Survey{Cache: dir}
	have := new(resolved)
	if err == nil {
		have, err = cache{dir}.load()
	}
	haveQEMU := s.findQEMU(ctx, o, have)
	haveKernel := s.findKernel(o, have)
	s.nics(have)
	packages := s.packages(ctx, o, haveQEMU && haveKernel)
	for role, there := range map[string]bool{roleQEMU: haveQEMU, roleKernel: haveKernel} {
		if !there {
			s.DownloadBytes += lock.fetch[role].download
			s.DiskBytes += lock.fetch[role].disk
		}
	}
	if s.DownloadBytes > 0 {
		s.DownloadBytes += listBytes
	}
	room := s.space(err)
	s.Ready = haveQEMU && haveKernel
	s.CanFetch = packages && room
	return s
}

func (s *Survey) found(name string, state State, value, fix string) {
	s.Found = append(s.Found, NewFact(name, state, value, fix))
}

func (s *Survey) means(name string, state State, value, fix string) {
	s.Means = append(s.Means, NewFact(name, state, value, fix))
}

// lacking takes what to do from the error when it says so.
func lacking(name string, err error) Fact {
	var m *Missing
	if errors.As(err, &m) {
		return NewFact(name, Lacking, fmt.Sprintf("%s: %v", m.What, m.Err), m.Fix)
	}
	return NewFact(name, Lacking, err.Error(), "")
}

func (s *Survey) findQEMU(ctx context.Context, o Options, have *resolved) bool {
	if path := cmp.Or(o.QEMU, os.Getenv(EnvQEMU)); path != "" {
		b, err := checkQEMU(ctx, path, SourceGiven, o.oldest())
		if err != nil {
			s.Found, s.QEMU = append(s.Found, lacking("qemu", err)), b
			return false
		}
		s.found("qemu", Good, fmt.Sprintf("%s (given: %s)", b.Version, path), "")
		s.QEMU = b
		return true
	}
	note := ""
	if !o.IgnoreSystemQEMU {
		b, n, ok := systemQEMU(ctx, o.oldest())
		if ok {
			s.found("qemu", Good, fmt.Sprintf("%s (%s)", b.Version, b.Args[0]), "")
			s.QEMU = b
			return true
		}
		if note = n; note != "" {
			note = "; " + note
		}
	}
	if have.QEMU != nil {
		b, err := binaryOf(filepath.Join(s.Cache, have.QEMU.Dir))
		if err == nil {
			b.Version = strings.TrimPrefix(upstream(have.QEMU.Version), "v")
			s.found("qemu", Good, fmt.Sprintf("%s (in the cache, from %s)%s", b.Version, have.QEMU.Suite, note), "")
			s.QEMU = b
			return true
		}
		note += "; cache: " + err.Error()
	}
	s.found("qemu", Lacking, "none that can be used"+note,
		"the first run fetches it; or install "+MinQEMU+" or newer, or give its path (--qemu)")
	return false
}

func (s *Survey) findKernel(o Options, have *resolved) bool {
	if image := cmp.Or(o.Kernel, os.Getenv(EnvKernel)); image != "" {
		k, err := givenKernel(image, cmp.Or(o.Modules, os.Getenv(EnvModules)))
		if err != nil {
			s.Found, s.Kernel = append(s.Found, lacking("kernel", err)), k
			return false
		}
		s.found("kernel", Good, fmt.Sprintf("%s (given: %s)", k.Version, image), "")
		s.Kernel = k
		return true
	}
	if have.Kernel != nil {
		if k, err := kernelOf(filepath.Join(s.Cache, have.Kernel.Dir)); err == nil {
			s.found("kernel", Good, fmt.Sprintf("%s (in the cache, from %s)", k.Version, have.Kernel.Suite), "")
			s.Kernel = k
			return true
		}
	}
	s.found("kernel", Lacking, "none for guests", "the first run fetches it, or give one (--kernel, --modules)")
	return false
}

// packages says whether packages can be fetched; when nothing needs to be, what is missing matters
// less.
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

// space says whether the cache can be written, and holds what is to be fetched. err is what is
// wrong with it.
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
	if err := unix.Access(writable, unix.W_OK); err != nil {
		s.means("cache", Lacking, fmt.Sprintf("%s: %v", dir, err), fixWrite)
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
	return true
}
