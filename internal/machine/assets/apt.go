package assets

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"vnic.dev/vnic/internal/proc"
)

// apt is apt-get with its own settings and state below dir. newApt copies the system's settings that aptKept
// matches. As the status of dpkg is empty, apt computes a package's whole closure, down to libc.
type apt struct {
	dir   string
	suite string
}

// aptKept matches the lines of "apt-config dump Acquire", the system's settings, that newApt copies.
var aptKept = regexp.MustCompile(`(?i)^Acquire::((https?|ftp|tor|socks5?h?)::|Retries |ForceIPv[46] |` +
	`Check-Valid-Until |Check-Date )`)

// lackingTools returns which of apt-get, apt-config and dpkg-deb are not in PATH. A fetch needs all three.
func lackingTools() (lacking []string) {
	for _, tool := range []string{"apt-get", "apt-config", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			lacking = append(lacking, tool)
		}
	}
	return lacking
}

// newApt writes an apt's configuration for suite into dir. Of a backports suite the base suite is a source, too.
func newApt(ctx context.Context, dir, suite string, a archive) (*apt, error) {
	t := &apt{dir: dir, suite: suite}
	for _, d := range []string{"lists/partial", "archives/partial", "state", "cache", "log", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	kept, err := proc.Command{}.Run(ctx, "apt-config", "dump", "Acquire")
	if err != nil {
		return nil, err
	}
	var conf strings.Builder
	conf.WriteString("Acquire::Retries \"2\";\n") // the machine's Acquire::Retries, if any, overrides it
	for line := range strings.SplitSeq(string(kept), "\n") {
		if aptKept.MatchString(line) {
			conf.WriteString(line + "\n")
		}
	}
	for _, kv := range [][2]string{
		{"Dir::Etc::main", "/dev/null"}, {"Dir::Etc::parts", "/dev/null"},
		{"Dir::Etc::preferences", "/dev/null"}, {"Dir::Etc::preferencesparts", "/dev/null"},
		{"Dir::Etc::sourcelist", filepath.Join(dir, "sources.list")}, {"Dir::Etc::sourceparts", "/dev/null"},
		{"Dir::State", filepath.Join(dir, "state")}, {"Dir::State::lists", filepath.Join(dir, "lists")},
		{"Dir::State::status", filepath.Join(dir, "status")}, {"Dir::Log", filepath.Join(dir, "log")},
		{"Dir::Cache", filepath.Join(dir, "cache")}, {"Dir::Cache::archives", filepath.Join(dir, "archives")},
		{"Dir::Cache::pkgcache", filepath.Join(dir, "pkgcache")}, {"Dir::Cache::srcpkgcache", ""},
		{"APT::Architecture", "amd64"}, {"APT::Install-Recommends", "false"}, {"APT::Sandbox::User", ""},
		{"APT::Update::Error-Mode", "any"}, {"APT::Default-Release", suite},
		{"Acquire::Languages", "none"}, {"Acquire::GzipIndexes", "false"}, // compressed indexes double the time of lookups
		{"Acquire::ForceHash", "SHA256"},
		{"Debug::NoLocking", "true"},
	} {
		fmt.Fprintf(&conf, "%s \"%s\";\n", kv[0], kv[1])
	}
	conf.WriteString("#clear APT::Architectures;\nAPT::Architectures { \"amd64\"; };\n")
	suites := []string{suite}
	if base, ok := strings.CutSuffix(suite, "-backports"); ok {
		suites = append(suites, base)
	}
	var list strings.Builder
	for _, s := range suites {
		fmt.Fprintf(&list, "deb [signed-by=%s] %s %s main\n", a.keyring, a.mirror, s)
	}
	for name, content := range map[string]string{"apt.conf": conf.String(), "sources.list": list.String(), "status": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// command returns the settings to run one of apt's programs in the working directory dir; stdout receives its lines.
// The program's temporary files are in t.dir, because an interrupted apt does not remove them.
func (t *apt) command(dir string, stdout func(string)) proc.Command {
	return proc.Command{Dir: dir, Stdout: stdout,
		Env: []string{"APT_CONFIG=" + filepath.Join(t.dir, "apt.conf"), "TMPDIR=" + filepath.Join(t.dir, "tmp")}}
}

func (t *apt) update(ctx context.Context) error {
	_, err := t.command(t.dir, nil).Run(ctx, "apt-get", "update")
	return aptError("suite "+t.suite, err)
}

// closure returns the named packages with their dependencies, in the suite's versions; a package that a backports suite
// lacks has the base suite's version. The error is ErrNoPackage if apt-get fails and there is no package of some name.
func (t *apt) closure(ctx context.Context, names ...string) ([]Package, error) {
	out, err := t.command(t.dir, nil).Run(ctx, "apt-get",
		append([]string{"--print-uris", "-y", "-d", "install"}, names...)...)
	if err != nil {
		for _, name := range names {
			if !t.has(ctx, name) && ctx.Err() == nil {
				return nil, fmt.Errorf("suite %s: %w %s", t.suite, ErrNoPackage, name)
			}
		}
		return nil, aptError("suite "+t.suite, err)
	}
	return parseURIs(string(out))
}

// has reports whether apt-cache shows a package of this name, which it does not if only dependencies have the name.
func (t *apt) has(ctx context.Context, name string) bool {
	out, err := t.command(t.dir, nil).Run(ctx, "apt-cache", "show", "--no-all-versions", name)
	return err == nil && len(out) > 0
}

// printedURI matches a line of apt-get --print-uris: 'URI' NAME_VERSION_ARCHITECTURE.deb SIZE SHA256:HEX,
// with "%3a" for the epoch's colon.
var printedURI = regexp.MustCompile(`^'[^']*' (([^_/\s]+)_([^_/\s]+)_[^_/\s]+) (\d+) SHA256:([0-9a-f]{64})\s*$`)

func parseURIs(text string) ([]Package, error) {
	var list []Package
	for line := range strings.SplitSeq(text, "\n") {
		if !strings.HasPrefix(line, "'") {
			continue
		}
		f := printedURI.FindStringSubmatch(line)
		if f == nil {
			return nil, fmt.Errorf("apt-get --print-uris: cannot read %q", line)
		}
		name, err1 := url.PathUnescape(f[2])
		version, err2 := url.PathUnescape(f[3])
		size, err3 := strconv.ParseInt(f[4], 10, 64)
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, fmt.Errorf("apt-get --print-uris: cannot read %q: %w", line, err)
		}
		list = append(list, Package{Name: name, Version: version, Size: size, SHA256: f[5], file: f[1]})
	}
	return list, nil
}

// download downloads packages into dir, and calls done with estimates of the bytes so far. apt verifies the packages'
// hashes.
func (t *apt) download(ctx context.Context, dir string, list []Package, done func(bytes int64)) error {
	var total int64
	args := []string{"-o", "APT::Status-Fd=1", "-q", "download"}
	for _, p := range list {
		total += p.Size
		args = append(args, p.Name+"="+p.Version)
	}
	_, err := t.command(dir, func(line string) {
		// For a download apt prints dlstatus:ITEM:PERCENT:TEXT.
		if f := strings.SplitN(line, ":", 4); len(f) == 4 && f[0] == "dlstatus" {
			if pc, err := strconv.ParseFloat(f[2], 64); err == nil && pc >= 0 && pc <= 100 {
				done(int64(pc / 100 * float64(total)))
			}
		}
	}).Run(ctx, "apt-get", args...)
	return aptError("suite "+t.suite, err)
}

// Errors of a mirror's suite.
var (
	errExpired = errors.New("the mirror's copy is out of date") // its Release file is too old, or not valid yet
	errTorn    = errors.New("the mirror's copy is not whole")   // files of different days, or a missing one with file:
)

// aptError classifies an error of apt or dpkg-deb by the words on stderr, because the exit status does not distinguish
// causes. The result begins with what. An error that is no *proc.ToolError is returned unchanged.
func aptError(what string, err error) error {
	var te *proc.ToolError
	if !errors.As(err, &te) {
		return err
	}
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(te.Stderr, w) })
	}
	switch {
	case has("No space left on device", "Disk quota exceeded", "don't have enough free space", "File too large",
		"received signal 25"): // 25 is SIGXFSZ: the limit of a file's size
		return &Missing{What: what, Err: fmt.Errorf("%w (%s)", ErrNoSpace, te.Words()), Fix: fixSpace}
	case has("NO_PUBKEY", "is not signed", "Missing key", "couldn't be verified", "could not be verified"):
		return &Missing{What: what, Err: fmt.Errorf("%w that signs it (%s)", ErrNoKeyring, te.Words()),
			Fix: "install a newer debian-archive-keyring, or name one (--keyring, " + EnvKeyring + ")"}
	case has("is expired", "not valid yet"):
		return fmt.Errorf("%s: %w (%s)", what, errExpired, te.Words())
	case has("does not have a Release file", "404  Not Found"):
		return fmt.Errorf("%s: %w", what, err)
	case has("Hash Sum mismatch", "unexpected size", "Mirror sync in progress", "File not found"):
		return fmt.Errorf("%s: %w (%s)", what, errTorn, te.Words())
	case has("Could not resolve", "Temporary failure", "Could not connect", "Connection refused", "unreachable",
		"timed out", "Unable to connect", "Failed to fetch", "Connection failed"):
		return &Missing{What: what, Err: fmt.Errorf("%w (%s)", ErrNoNetwork, te.Words()),
			Fix: "connect this machine, name another mirror (--mirror, " + EnvMirror + "), or " + giveBoth}
	}
	return fmt.Errorf("%s: %w", what, err)
}
