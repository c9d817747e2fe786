package assets

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

// A bundle is fetched once, its size is said before, and what only maintainer scripts need stays away. A package that
// is not there is named.
func TestBundleIsFetchedOnce(t *testing.T) {
	needsApt(t)
	conf := filepath.Join(t.TempDir(), "apt.conf")
	write(t, conf, "Dir::Etc::main \"/dev/null\";\nDir::Etc::parts \"/dev/null\";\n")
	t.Setenv("APT_CONFIG", conf)
	m := newMirror(t)
	var index strings.Builder
	for name, depends := range map[string]string{"tool": "lib, script", "lib": "", "script": ""} {
		control := "Package: " + name + "\nVersion: 1.2\nArchitecture: amd64\nMaintainer: test\nDescription: test\n"
		if depends != "" {
			control += "Depends: " + depends + "\n"
		}
		b := m.deb(control, []string{"usr/bin/" + name})
		path := "pool/" + name + "_1.2_amd64.deb"
		write(t, filepath.Join(m.dir, path), string(b))
		fmt.Fprintf(&index, "%sFilename: %s\nSize: %d\nSHA256: %x\n\n", control, path, len(b), sha256.Sum256(b))
	}
	for _, s := range lock.Suites {
		m.suite(s, index.String(), time.Time{})
		if base, ok := strings.CutSuffix(s, "-backports"); ok {
			m.suite(base, "", time.Time{})
		}
	}
	said := 0
	b := Bundle{Name: BundleGuestTools, Title: "the tools x", Series: "tool", Packages: []string{"tool"}, Want: "1.2",
		Leave: []string{"script"}, Needs: []string{"usr/bin/tool", "usr/bin/lib"},
		Build:       func(_ context.Context, root string) error { return os.Remove(filepath.Join(root, "usr/bin/lib")) },
		Downloading: func(bytes int64) { said++; testkit.Equal(t, "bytes", bytes > 0, true) }}
	b.Needs = b.Needs[:1]
	o := Options{CacheDir: t.TempDir(), Mirror: "file:" + m.dir, Keyring: m.keyring}
	offline := o
	offline.Offline = true
	if _, _, err := FetchBundle(t.Context(), offline, b); !errors.Is(err, ErrOffline) ||
		!strings.HasPrefix(err.Error(), "the tools x in ") {
		t.Errorf("offline: %v", err)
	}
	tree, _, err := FetchBundle(t.Context(), o, b)
	testkit.OK(t, err)
	if _, err := os.Stat(filepath.Join(tree.Dir, "usr/bin/script")); err == nil || len(tree.Packages) != 2 {
		t.Errorf("%v, %v", tree.Packages, err)
	}
	testkit.OK(t, tree.Close())
	tree, _, err = FetchBundle(t.Context(), offline, b)
	testkit.OK(t, err)
	testkit.OK(t, tree.Close())
	testkit.Equal(t, "downloads", said, 1)

	b.Series, b.Packages = "none", []string{"tool", "no-such-package"}
	if _, _, err := FetchBundle(t.Context(), o, b); !errors.Is(err, ErrNoPackage) ||
		!strings.Contains(err.Error(), "no-such-package") {
		t.Errorf("got %v", err)
	}
	// apt-get takes it for an expression, and finds packages.
	b.Series, b.Packages = "like", []string{"too."}
	if _, _, err := FetchBundle(t.Context(), o, b); !errors.Is(err, ErrNoPackage) {
		t.Errorf("got %v", err)
	}
}
