package guestimages

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
)

// ProgramPackage is the guest program's import path.
const ProgramPackage = "vnic.dev/vnic/guest-images/internal/vnic-guest"

// EnvProgram is the environment variable that names a file with the guest program.
const EnvProgram = "VNIC_GUEST"

// ErrNoProgram means that no guest program is given, embedded or in the cache, and none can be built.
var ErrNoProgram = errors.New("this vnic carries no guest program, and building one did not work: build vnic with " +
	"make or take a release, " +
	"put Go in PATH, or give one by $" + EnvProgram)

const programFile = "vnic-guest.gz"

// carried are the files for guests that are embedded in this program.
var carried fs.FS = embed.FS{}

// Carry sets the files that are embedded in this program for guests.
func Carry(files fs.FS) { carried = files }

// CarriesProgram reports whether the guest program is embedded.
func CarriesProgram() bool {
	_, err := fs.Stat(carried, programFile)
	return err == nil
}

type program struct {
	content []byte
	gzipped bool
}

func loadProgram(ctx context.Context, o Options) (program, error) {
	path := cmp.Or(o.Program, os.Getenv(EnvProgram))
	if path != "" {
		return readProgram(path)
	}
	b, err := fs.ReadFile(carried, programFile)
	if err == nil {
		return program{content: b, gzipped: true}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return program{}, err
	}
	if m, ok := builtFrom(); ok {
		return m.program(ctx, o.CacheDir)
	}
	dir, err := os.MkdirTemp("", "vnic-guest-")
	if err != nil {
		return program{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path, err = BuildProgram(ctx, ProgramPackage, dir)
	if err != nil {
		return program{}, fmt.Errorf("%w\n%w", ErrNoProgram, err)
	}
	return readProgram(path)
}

// Program returns the guest program. Unless EnvProgram names another one, it is a static program for Linux on x86-64.
func Program(ctx context.Context, cacheDir string) ([]byte, error) {
	p, err := loadProgram(ctx, Options{CacheDir: cacheDir})
	if err != nil {
		return nil, err
	}
	return p.unpack()
}

// FindProgram returns where the guest program will come from, in words, and whether it exists already. ErrNoProgram:
// it does not exist, and there is no go tool to build it.
func FindProgram(cacheDir string) (from string, there bool, err error) {
	if path := os.Getenv(EnvProgram); path != "" {
		_, err := readProgram(path)
		return "given: " + path, err == nil, err
	}
	if CarriesProgram() {
		return "in this program", true, nil
	}
	m, installed := builtFrom()
	if installed {
		if _, err := os.Stat(m.cached(cacheDir)); err == nil {
			return "in the cache", true, nil
		}
	}
	tool, err := exec.LookPath("go")
	if err != nil {
		return "", false, ErrNoProgram
	}
	if installed {
		return "none yet: " + tool + " builds it for the first guest", false, nil
	}
	return tool + " builds it for each guest, in a checkout (this vnic was built without make)", false, nil
}

func readProgram(path string) (program, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return program{}, fmt.Errorf("guest program: %w", err)
	}
	if bytes.HasPrefix(b, []byte{0x1f, 0x8b}) {
		return program{content: b, gzipped: true}, nil
	}
	if !bytes.HasPrefix(b, []byte("\x7fELF")) {
		return program{}, fmt.Errorf("guest program %s: neither an ELF program nor a gzipped one", path)
	}
	return program{content: b}, nil
}

func (p program) unpack() ([]byte, error) {
	if !p.gzipped {
		return p.content, nil
	}
	var b []byte
	z, err := gzip.NewReader(bytes.NewReader(p.content))
	if err == nil {
		b, err = io.ReadAll(z)
	}
	if err != nil {
		return nil, fmt.Errorf("guest program: %w", err)
	}
	return b, nil
}

// BuildProgram builds a guest program, such as ProgramPackage, in dir with the go tool, from the module of the
// current directory, and returns its path.
func BuildProgram(ctx context.Context, pkg, dir string) (string, error) {
	return buildProgram(ctx, "", pkg, dir, "")
}

func buildProgram(ctx context.Context, source, pkg, dir, ldflags string) (string, error) {
	path := filepath.Join(dir, "vnic-guest")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid="+ldflags,
		"-o", path, pkg)
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=-mod=readonly")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build %s: %w: %s", pkg, err, strings.TrimSpace(string(out)))
	}
	return path, nil
}

// goModule is the module from which `go install MODULE/cmd/vnic@VERSION` has built this program, without an
// embedded guest program.
type goModule struct{ path, version, sum string }

// builtFrom returns false if this program was built from a checkout.
func builtFrom() (goModule, bool) {
	i, ok := debug.ReadBuildInfo()
	if !ok || i.Main.Sum == "" || i.Main.Version == "" {
		return goModule{}, false
	}
	return goModule{i.Main.Path, i.Main.Version, i.Main.Sum}, true
}

// cached returns the path that the guest program has in the cache once it is built.
func (m goModule) cached(cacheDir string) string {
	return filepath.Join(cacheDir, "programs",
		fmt.Sprintf("vnic-guest-%x", sha256.Sum256([]byte(m.path+" "+m.version+" "+m.sum))))
}

// program reads the guest program from the cache; if it is not there, program builds it and puts it there.
func (m goModule) program(ctx context.Context, cacheDir string) (program, error) {
	path := m.cached(cacheDir)
	dir := filepath.Dir(path)
	if _, err := os.Stat(path); err == nil {
		return readProgram(path)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return program{}, fmt.Errorf("guest program: %w", err)
	}
	work, err := os.MkdirTemp(dir, ".new-")
	if err != nil {
		return program{}, fmt.Errorf("guest program: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	built, err := m.build(ctx, work)
	if err != nil {
		return program{}, fmt.Errorf("%w\n%w", ErrNoProgram, err)
	}
	if err := os.Rename(built, path); err != nil {
		return program{}, fmt.Errorf("guest program: %w", err)
	}
	return readProgram(path)
}

func (m goModule) build(ctx context.Context, work string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", m.path+"@"+m.version)
	cmd.Dir = work // the current directory may be in a module
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	out, err := cmd.Output()
	var found struct{ Dir, Sum, Error string }
	if uerr := json.Unmarshal(out, &found); err == nil {
		err = uerr
	}
	switch {
	case found.Error != "":
		return "", fmt.Errorf("go mod download %s@%s: %s", m.path, m.version, found.Error)
	case err != nil:
		return "", fmt.Errorf("go mod download %s@%s: %w%s", m.path, m.version, err, stderrOf(err))
	case found.Sum != m.sum:
		return "", fmt.Errorf("module %s@%s is not the one that this vnic was built from: %s, not %s", m.path, m.version,
			found.Sum, m.sum)
	}
	return buildProgram(ctx, found.Dir, ProgramPackage, work, " -X vnic.dev/vnic/internal/version.stamped="+m.version)
}

func stderrOf(err error) string {
	var e *exec.ExitError
	if errors.As(err, &e) && len(e.Stderr) > 0 {
		return ": " + strings.TrimSpace(string(e.Stderr))
	}
	return ""
}
