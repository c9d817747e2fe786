package assets

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseOneLineSources(t *testing.T) {
	got := parseOneLine(`# a comment
deb http://mirror.example/debian bookworm main contrib # more
deb-src http://mirror.example/debian bookworm main
  deb	[ arch=amd64 signed-by=/k/a.gpg ] https://other.example/debian/ trixie main
deb [signed-by=/k/b.gpg]http://third.example/debian trixie main
deb
debx http://no.example/debian a b
`)
	want := []source{
		{uris: []string{"http://mirror.example/debian"}, suites: []string{"bookworm"}},
		{uris: []string{"https://other.example/debian/"}, suites: []string{"trixie"}, signedBy: "/k/a.gpg"},
		{uris: []string{"http://third.example/debian"}, suites: []string{"trixie"}, signedBy: "/k/b.gpg"},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(source{})); d != "" {
		t.Error(d)
	}
}

func TestParseDeb822Sources(t *testing.T) {
	got := parseDeb822(`# head
Types: deb deb-src
URIs: http://mirror.example/debian
 http://second.example/debian
Suites: bookworm bookworm-updates
# in between
Components: main
Signed-By: /k/a.gpg

Types: deb
URIs: http://off.example/debian
Suites: trixie
Enabled: no

Types: deb-src
URIs: http://src.example/debian
Suites: trixie

types: deb
uris: https://third.example/debian
suites: sid
signed-by:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abcd
 -----END PGP PUBLIC KEY BLOCK-----
`)
	want := []source{
		{uris: []string{"http://mirror.example/debian", "http://second.example/debian"}, suites: []string{"bookworm", "bookworm-updates"}, signedBy: "/k/a.gpg"},
		{uris: []string{"https://third.example/debian"}, suites: []string{"sid"}},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(source{})); d != "" {
		t.Error(d)
	}
}

func TestDebianURI(t *testing.T) {
	for uri, want := range map[string]bool{
		"http://mirror.example/debian":               true,
		"https://mirror.example/pub/debian/":         true,
		"mirror+file:///etc/apt/mirrors/debian.list": true,
		"file:/srv/mirror/debian":                    true,
		"http://mirror.example/debian-security":      false,
		"http://mirror.example/ubuntu":               false,
		"cdrom:[Debian 13]/debian":                   false,
		"debian":                                     false,
		"":                                           false,
	} {
		if got := isDebianURI(uri); got != want {
			t.Errorf("%q: %v", uri, got)
		}
	}
}

func TestArchiveComesFromTheMachinesSources(t *testing.T) {
	for _, e := range []string{EnvMirror, EnvKeyring} {
		t.Setenv(e, "")
	}
	etc := t.TempDir()
	keys := filepath.Join(etc, "keys.gpg")
	write(t, keys, "k")
	write(t, filepath.Join(etc, "sources.list.d/a-vendor.list"), "deb http://vendor.example/apt stable main\n")
	write(t, filepath.Join(etc, "sources.list.d/debian.sources"),
		"Types: deb\nURIs: http://vendor.example/x http://mirror.example/debian/\nSuites: trixie\nSigned-By: "+keys+"\n")
	write(t, filepath.Join(etc, "sources.list.d/ignored.save"), "deb http://wrong.example/debian trixie main\n")

	a, err := findArchive(&Options{}, etc)
	if want := (archive{mirror: "http://mirror.example/debian", keyring: keys}); err != nil || a != want {
		t.Errorf("from sources: %+v, %v", a, err)
	}
	t.Setenv(EnvMirror, "http://env.example/debian")
	if a, err = findArchive(&Options{}, etc); err != nil || a.mirror != "http://env.example/debian" {
		t.Errorf("from the environment: %+v, %v", a, err)
	}
	if a, err = findArchive(&Options{Mirror: "http://opt.example/debian"}, etc); err != nil || a.mirror != "http://opt.example/debian" {
		t.Errorf("from options: %+v, %v", a, err)
	}
	t.Setenv(EnvMirror, "")

	var m *Missing
	if _, err = findArchive(&Options{Keyring: "/nowhere.gpg"}, etc); !errors.Is(err, ErrNoKeyring) || !errors.As(err, &m) {
		t.Errorf("no keyring: %v", err)
	}
	if _, err = findArchive(&Options{}, t.TempDir()); !errors.Is(err, ErrNoMirror) || !errors.As(err, &m) {
		t.Errorf("no sources: %v", err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func FuzzSources(f *testing.F) {
	f.Add("deb [signed-by=/a] http://m/debian s main\n")
	f.Add("Types: deb\nURIs: u\nSuites: s\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, s := range append(parseOneLine(text), parseDeb822(text)...) {
			if len(s.uris) == 0 || len(s.suites) == 0 {
				t.Errorf("%+v", s)
			}
		}
	})
}
