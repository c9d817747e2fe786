package assets

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

// A bundle is fetched once, and then found in the cache. Packages of Leave are not installed. The error for a package
// that no suite has names the package.
func TestBundleIsFetchedOnce(t *testing.T) {
	needsApt(t)
	conf := filepath.Join(t.TempDir(), "apt.conf")
	write(t, conf, "Dir::Etc::main \"/dev/null\";\nDir::Etc::parts \"/dev/null\";\n")
	t.Setenv("APT_CONFIG", conf)
	m := newMirror(t)
	for _, suite := range lock.Suites {
		m.packages(suite, time.Time{}, tools("1.2")...)
		if base, ok := strings.CutSuffix(suite, "-backports"); ok {
			m.suite(base, "", time.Time{})
		}
	}
	calls := 0
	b := Bundle{Name: BundleGuestTools, Title: "the tools x", Series: "tool", Packages: []string{"tool"}, Want: "1.2",
		Leave: []string{"script"}, Needs: []string{"usr/bin/tool", "usr/bin/lib"},
		Build:       func(_ context.Context, root string) error { return os.Remove(filepath.Join(root, "usr/bin/lib")) },
		Downloading: func(bytes int64) { calls++; testkit.Equal(t, "bytes", bytes > 0, true) }}
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
	testkit.Equal(t, "downloads", calls, 1)

	b.Series, b.Packages = "none", []string{"tool", "no-such-package"}
	if _, _, err := FetchBundle(t.Context(), o, b); !errors.Is(err, ErrNoPackage) ||
		!strings.Contains(err.Error(), "no-such-package") {
		t.Errorf("got %v", err)
	}
	// apt-get takes this name for a regular expression, which matches "tool".
	b.Series, b.Packages = "like", []string{"too."}
	if _, _, err := FetchBundle(t.Context(), o, b); !errors.Is(err, ErrNoPackage) {
		t.Errorf("got %v", err)
	}
}

func tools(version string) (list []fake) {
	for name, depends := range map[string]string{"tool": "lib, script", "lib": "", "script": ""} {
		list = append(list, fake{name, version, depends, map[string]string{"usr/bin/" + name: "x"}})
	}
	return list
}

// A bundle may name its suites, and install, of the dependencies, only those in Only.
func TestBundleOfOtherSuites(t *testing.T) {
	needsApt(t)
	conf := filepath.Join(t.TempDir(), "apt.conf")
	write(t, conf, "Dir::Etc::main \"/dev/null\";\nDir::Etc::parts \"/dev/null\";\n")
	t.Setenv("APT_CONFIG", conf)
	m := newMirror(t)
	m.suite("empty", unrelated, time.Time{})
	m.packages("first", time.Time{}, tools("1.2")...)
	m.packages("second", time.Time{}, tools("1.3")...)
	o := Options{CacheDir: t.TempDir(), Mirror: "file:" + m.dir, Keyring: m.keyring}
	for want, suite := range map[string]string{"": "first", "1.3": "second", "1.4": "second"} {
		tree, _, err := FetchBundle(t.Context(), o, Bundle{Name: BundleHeaders, Series: want, Packages: []string{"tool"},
			Only: []string{"lib", "none"}, Needs: []string{"usr/bin/tool"}, Suites: []string{"empty", "first", "second"},
			Want: want})
		testkit.OK(t, err)
		if tree.Suite != suite || len(tree.Packages) != 2 {
			t.Errorf("%q: of suite %s: %v", want, tree.Suite, tree.Packages)
		}
		testkit.OK(t, tree.Close())
	}
	_, list, err := ListCache(o)
	if err != nil || len(list) != 2 || list[0].Kind != BundleHeaders { // the bundles that want 1.3 and 1.4 share one tree
		t.Errorf("%+v, %v", list, err)
	}
}
