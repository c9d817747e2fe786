package guestimages

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
)

// goModule is the module from which `go install MODULE/cmd/vnic@VERSION` built this binary. A
// module holds sources only, so the binary has no embedded guest program; but the machine had a go
// tool, which can build the guest program from the same sources.
type goModule struct{ path, version, sum string }

// builtFrom returns the module of this binary, or false if it was built in a checkout.
func builtFrom() (goModule, bool) {
	i, ok := debug.ReadBuildInfo()
	if !ok || i.Main.Sum == "" || i.Main.Version == "" {
		return goModule{}, false
	}
	return goModule{i.Main.Path, i.Main.Version, i.Main.Sum}, true
}

// cached returns the path of the module's guest program in the cache, which need not exist.
func (m goModule) cached(cacheDir string) string {
	return filepath.Join(cacheDir, "programs",
		fmt.Sprintf("vnic-guest-%x", sha256.Sum256([]byte(m.path+" "+m.version+" "+m.sum))))
}

// program returns the module's guest program: from the cache, or built into it.
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

// build lets the go tool find the module's sources, usually in the go tool's own cache, and builds
// the guest program from them.
func (m goModule) build(ctx context.Context, work string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", m.path+"@"+m.version)
	cmd.Dir = work // outside any module
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

// stderrOf returns what a failed program wrote on stderr.
func stderrOf(err error) string {
	var e *exec.ExitError
	if errors.As(err, &e) && len(e.Stderr) > 0 {
		return ": " + strings.TrimSpace(string(e.Stderr))
	}
	return ""
}
