package assets

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

// mirror is a package archive below dir, which is signed with a key of its own.
type mirror struct {
	t       *testing.T
	dir     string
	keyring string
	key     *openpgp.Entity
}

func newMirror(t *testing.T) *mirror {
	t.Helper()
	key, err := openpgp.NewEntity("test", "", "test@example.org", &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA})
	testkit.OK(t, err)
	dir := t.TempDir()
	m := &mirror{t: t, dir: filepath.Join(dir, "debian"), keyring: filepath.Join(dir, "keys.gpg"), key: key}
	var b bytes.Buffer
	testkit.OK(t, key.Serialize(&b))
	write(t, m.keyring, b.String())
	return m
}

type fake struct {
	name, version, depends string
	files                  map[string]string
}

func fakeKernel(version string) []fake {
	release, _, _ := strings.Cut(version, "-")
	release += "-cloud-amd64"
	return []fake{
		{"linux-image-cloud-amd64", version, "linux-image-" + release, nil},
		{"linux-image-" + release, version, "",
			map[string]string{"boot/vmlinuz-" + release: "x", "usr/lib/modules/" + release + "/kernel/gve.ko": "x"}},
	}
}

// fakeQEMUPackage returns a package of QEMU with a loader that prints the version.
func fakeQEMUPackage(version string) fake {
	return fake{"qemu-system-x86", version, "", map[string]string{
		Loader:                       "#!/bin/sh\necho QEMU emulator version " + upstream(version) + "\n",
		"usr/bin/qemu-system-x86_64": "x", "usr/share/qemu/x": "x", "usr/share/seabios/x": "x"}}
}

func (m *mirror) kernel(suite, version string, validUntil time.Time) {
	m.t.Helper()
	m.packages(suite, validUntil, fakeKernel(version)...)
}

// packages makes a suite of these packages. validUntil is the expiry of the suite's Release file; zero: none.
func (m *mirror) packages(suite string, validUntil time.Time, list ...fake) {
	m.t.Helper()
	var index strings.Builder
	for _, p := range list {
		control := fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: amd64\nMaintainer: test\nDescription: test\n",
			p.name, p.version)
		if p.depends != "" {
			control += "Depends: " + p.depends + "\n"
		}
		b := m.deb(control, p.files)
		path := fmt.Sprintf("pool/%s/%s_%s_amd64.deb", suite, p.name, p.version[strings.Index(p.version, ":")+1:])
		write(m.t, filepath.Join(m.dir, path), string(b))
		fmt.Fprintf(&index, "%sFilename: %s\nSize: %d\nSHA256: %x\n\n", control, path, len(b), sha256.Sum256(b))
	}
	m.suite(suite, index.String(), validUntil)
}

func (m *mirror) deb(control string, files map[string]string) []byte {
	m.t.Helper()
	dir := m.t.TempDir()
	write(m.t, filepath.Join(dir, "DEBIAN/control"), control)
	for name, text := range files {
		write(m.t, filepath.Join(dir, name), text)
		testkit.OK(m.t, os.Chmod(filepath.Join(dir, name), 0o755))
	}
	out, err := exec.Command("dpkg-deb", "--build", dir, dir+".deb").CombinedOutput()
	if err != nil {
		m.t.Fatalf("dpkg-deb: %v: %s", err, out)
	}
	b, err := os.ReadFile(dir + ".deb")
	testkit.OK(m.t, err)
	return b
}

// unrelated is the index of a suite without the packages that the tests need.
var unrelated = "Package: unrelated\nVersion: 1\nArchitecture: all\nFilename: pool/u.deb\nSize: 1\n" +
	"SHA256: " + strings.Repeat("0", 64) + "\n"

// suite writes a suite's index, and its signed Release file with this expiry; zero: none.
func (m *mirror) suite(name, index string, validUntil time.Time) {
	m.t.Helper()
	const packages = "main/binary-amd64/Packages"
	write(m.t, filepath.Join(m.dir, "dists", name, packages), index)
	release := fmt.Sprintf("Origin: Debian\nSuite: %s\nCodename: %s\nDate: %s\nArchitectures: amd64\nComponents: main\n",
		name, name, time.Now().Add(-365*24*time.Hour).UTC().Format(time.RFC1123))
	if !validUntil.IsZero() {
		release += "Valid-Until: " + validUntil.UTC().Format(time.RFC1123) + "\n"
	}
	release += fmt.Sprintf("SHA256:\n %x %d %s\n", sha256.Sum256([]byte(index)), len(index), packages)
	var b bytes.Buffer
	w, err := clearsign.Encode(&b, m.key.PrivateKey, nil)
	if err == nil {
		_, err = w.Write([]byte(release))
		err = errors.Join(err, w.Close())
	}
	testkit.OK(m.t, err)
	write(m.t, filepath.Join(m.dir, "dists", name, "InRelease"), b.String())
}

// A suite that cannot be used is skipped, with a note; if none is left, Fetch fails.
func TestSuiteThatIsOfNoUseIsPassedOver(t *testing.T) {
	needsApt(t)
	newest, other := lock.Suites[0], lock.Suites[1]
	tested := lock.version(roleKernel)
	older, lastYear := "6.1.5-1", time.Now().Add(-300*24*time.Hour)
	index := "dists/" + newest + "/main/binary-amd64/Packages"
	expired, torn := ": "+errExpired.Error()+" (Release file for file:", ": "+errTorn.Error()
	for name, c := range map[string]struct {
		spoil func(*mirror) // damages the mirror
		from  string        // suite of the kernel that Fetch uses; "" = an error
		says  string        // note or error; "" = none
	}{
		"none":        {func(*mirror) {}, newest, ""},
		"out of date": {func(m *mirror) { m.kernel(newest, tested, lastYear) }, other, "suite " + newest + expired},
		"gone":        {func(m *mirror) { m.remove("dists/" + newest) }, other, "does not have a Release file"},
		"without it": {func(m *mirror) { m.suite(newest, unrelated, time.Time{}) }, other,
			"no package linux-image-cloud-amd64"},
		"half copied": {func(m *mirror) {
			write(m.t, filepath.Join(m.dir, index), "Package: x\n")
		}, other,
			"suite " + newest + torn},
		"packages gone":     {func(m *mirror) { m.remove("pool/" + newest) }, other, "suite " + newest + torn},
		"packages replaced": {func(m *mirror) { m.replace("pool/" + newest) }, other, "suite " + newest + torn},
		"both out of date": {func(m *mirror) { m.kernel(newest, tested, lastYear); m.kernel(other, older, lastYear) }, "",
			"suite " + other + expired},
		"signed by others": {func(m *mirror) {
			o := newMirror(t)
			o.dir = m.dir
			o.kernel(newest, tested, time.Time{})
		}, other, "no keyring of the Debian archive that signs it"},
	} {
		if testing.Short() && name != "out of date" {
			continue // apt takes seconds
		}
		t.Run(name, func(t *testing.T) {
			testkit.LeavesNothing(t)
			fakeQEMU(t, "11.1.2")
			conf := filepath.Join(t.TempDir(), "apt.conf") // hides this machine's settings
			write(t, conf, "Dir::Etc::main \"/dev/null\";\nDir::Etc::parts \"/dev/null\";\n")
			t.Setenv("APT_CONFIG", conf)
			m := newMirror(t)
			m.kernel(newest, tested, time.Time{})
			m.kernel(other, older, time.Time{})
			if base, ok := strings.CutSuffix(other, "-backports"); ok {
				m.suite(base, "", time.Time{})
			}
			c.spoil(m)
			o := Options{CacheDir: t.TempDir(), Mirror: "file:" + m.dir, Keyring: m.keyring}
			r, err := Fetch(t.Context(), o)
			empty(t, filepath.Join(o.CacheDir, "tmp"))
			if c.from == "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("got %v, want %q", err, c.says)
				}
				return
			}
			testkit.OK(t, err)
			have, err := cache{o.CacheDir}.load()
			if err != nil || have[roleKernel].Suite != c.from || r.Kernel.Version == "" {
				t.Errorf("kernel %+v of %+v, %v; want suite %s", r.Kernel, have[roleKernel], err, c.from)
			}
			notes := strings.Join(r.Notes, "\n")
			if c.says == "" && notes != "" || !strings.Contains(notes, c.says) || strings.Contains(notes, "\n") {
				t.Errorf("notes %q, want %q", notes, c.says)
			}
			if c.says != "" && !strings.HasSuffix(notes, ": passed over") {
				t.Errorf("notes %q", notes)
			}
			testkit.NoError(t, r.Close())
		})
	}
}

// Versions other than the tested ones are used, and Untested has one line for each.
func TestNewerVersionsAreSaidOnce(t *testing.T) {
	needsApt(t)
	testkit.LeavesNothing(t)
	conf := filepath.Join(t.TempDir(), "apt.conf")
	write(t, conf, "Dir::Etc::main \"/dev/null\";\nDir::Etc::parts \"/dev/null\";\n")
	t.Setenv("APT_CONFIG", conf)
	for name, c := range map[string]struct{ qemu, kernel string }{
		"Debian's own revision": {lock.version(roleQEMU) + "+1", lock.version(roleKernel) + "+1"},
		"other releases":        {"1:99.1.0+ds-1", "99.1.2-1"},
	} {
		if testing.Short() && name == "other releases" {
			continue // apt takes seconds
		}
		t.Run(name, func(t *testing.T) {
			m := newMirror(t)
			for _, suite := range lock.Suites {
				m.packages(suite, time.Time{}, append(fakeKernel(c.kernel), fakeQEMUPackage(c.qemu))...)
				if base, ok := strings.CutSuffix(suite, "-backports"); ok {
					m.suite(base, "", time.Time{})
				}
			}
			o := Options{CacheDir: t.TempDir(), Mirror: "file:" + m.dir, Keyring: m.keyring, IgnoreSystemQEMU: true}
			want := fmt.Sprintf("qemu %s, tested with %s\nkernel %s, tested with %s", c.qemu, lock.version(roleQEMU), c.kernel,
				lock.version(roleKernel))
			for _, o.Offline = range []bool{false, true} {
				r := testkit.Must(Fetch(t.Context(), o))(t)
				testkit.Equal(t, "untested", strings.Join(r.Untested, "\n"), want)
				testkit.Equal(t, "QEMU", r.QEMU.Version, upstream(c.qemu))
				testkit.Equal(t, "kernel", upstream(r.Kernel.Version), upstream(c.kernel))
				testkit.Equal(t, "notes", len(r.Notes), 0)
				testkit.NoError(t, r.Close())
			}
		})
	}
}

func (m *mirror) remove(path string) {
	m.t.Helper()
	testkit.OK(m.t, os.RemoveAll(filepath.Join(m.dir, path)))
}

// replace changes the last byte of each package in a directory.
func (m *mirror) replace(path string) {
	m.t.Helper()
	files, _ := filepath.Glob(filepath.Join(m.dir, path, "*.deb"))
	for _, f := range files {
		b, err := os.ReadFile(f)
		testkit.OK(m.t, err)
		b[len(b)-1] ^= 1
		write(m.t, f, string(b))
	}
}

// script makes the command of a program in tools/ that fetches from the mirror.
func (m *mirror) script(cache, name string, args ...string) *exec.Cmd {
	needsApt(m.t)
	conf := filepath.Join(m.t.TempDir(), "apt.conf")
	write(m.t, conf, "Dir::Etc::main \"/dev/null\";\nDir::Etc::parts \"/dev/null\";\n")
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "APT_CONFIG="+conf, EnvCache+"="+cache, EnvMirror+"=file:"+m.dir,
		EnvKeyring+"="+m.keyring)
	return cmd
}

// A script that fetches a tree waits while another script fetches, and uses the tree that the other made
// (tools/debs.sh).
func TestScriptsWaitForOneAnother(t *testing.T) {
	m := newMirror(t)
	m.kernel("good", "6.12-1", time.Time{})
	cache := t.TempDir()
	tools := filepath.Join(cache, "tools")
	testkit.OK(t, os.Mkdir(tools, 0o755))
	lock := testkit.Must(os.Open(tools))(t)
	testkit.OK(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	cmd := m.script(cache, "../../../tools/kernel", "good")
	log := bufio.NewReader(testkit.Must(cmd.StderrPipe())(t))
	var out bytes.Buffer
	cmd.Stdout = &out
	testkit.OK(t, cmd.Start())
	testkit.OK(t, testkit.Err(log.ReadString('\n'))) // "fetching"; next the script requests the lock
	for _, f := range []string{".complete", "boot/vmlinuz-1.2.3", "usr/lib/modules/1.2.3/x"} {
		f = filepath.Join(tools, "kernel-good", f)
		testkit.OK(t, os.MkdirAll(filepath.Dir(f), 0o755))
		write(t, f, "the first one's")
	}
	testkit.OK(t, lock.Close())
	rest := testkit.Must(io.ReadAll(log))(t)
	testkit.OK(t, cmd.Wait())
	if !strings.Contains(out.String(), "/vmlinuz-1.2.3 ") {
		t.Errorf("%s%s", &out, rest)
	}
}

// If a script cannot use a suite, it notes that and tries the next suite (tools/debs.sh).
func TestScriptsPassOverASuiteThatIsOfNoUse(t *testing.T) {
	m := newMirror(t)
	m.kernel("expired", "7.2-1", time.Now().Add(-time.Hour))
	m.kernel("good", "6.12-1", time.Time{})
	for _, c := range []struct {
		suites, kernel, says string
	}{
		{"expired good", "6.12", "note: expired at "},
		{"gone good", "6.12", "note: gone at "},
		{"good expired", "6.12", ""},
		{"gone expired", "", "no kernel of gone expired to be had"},
	} {
		cmd := m.script(t.TempDir(), "../../../tools/kernel", strings.Fields(c.suites)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if (err == nil) != (c.kernel != "") || !strings.Contains(string(out), c.kernel) ||
			!strings.Contains(stderr.String(), c.says) {
			t.Errorf("%s: %v, %q, said:\n%s", c.suites, err, out, &stderr)
		}
		if c.says == "" && strings.Contains(stderr.String(), "note:") {
			t.Errorf("%s: said:\n%s", c.suites, &stderr)
		}
	}
}
