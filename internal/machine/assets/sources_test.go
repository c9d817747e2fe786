package assets

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func aptSources(t *testing.T, files map[string]string) (etc string) {
	t.Helper()
	etc = t.TempDir()
	for name, text := range files {
		write(t, filepath.Join(etc, name), text)
	}
	return etc
}

// debianSource returns the mirror and keyring of the first enabled entry for Debian's main archive.
func TestDebianIsFoundAmongSources(t *testing.T) {
	needsApt(t)
	for name, c := range map[string]struct {
		files           map[string]string
		mirror, keyring string
	}{
		"one-line": {map[string]string{"sources.list": `# a comment
deb [arch=amd64 signed-by=/k/vendor.gpg] http://vendor.example/apt stable main
# deb http://comment.example/debian bookworm main
deb-src http://source.example/debian bookworm main
  deb	[ arch=amd64 signed-by=/k/a.gpg,/k/z.gpg ] https://mirror.example/debian/ trixie main # more
deb [signed-by=/k/b.gpg] http://second.example/debian trixie main
`}, "https://mirror.example/debian", "/k/a.gpg"},
		"one-line without a keyring": {map[string]string{
			"sources.list": "deb http://mirror.example/debian bookworm main contrib # more\n"},
			"http://mirror.example/debian", ""},
		"deb822": {map[string]string{"sources.list.d/debian.sources": `# head
Types: deb
URIs: http://off.example/debian
Suites: trixie
Components: main
Enabled: no

Types: deb-src
URIs: http://source.example/debian
Suites: trixie
Components: main

Types: deb
URIs: http://mirror.example/debian-security
Suites: trixie-security
Components: main
Signed-By: /k/security.gpg

Types: deb deb-src
URIs: http://vendor.example/x
 http://mirror.example/debian/
Suites: bookworm bookworm-updates
# Signed-By: /k/comment.gpg
Components: main
signed-by: /k/b.gpg
`}, "http://mirror.example/debian", "/k/b.gpg"},
		"deb822 with keys in it": {map[string]string{"sources.list.d/debian.sources": `types: deb
uris: https://mirror.example/debian
suites: sid
components: main
signed-by:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abcd/efg
 -----END PGP PUBLIC KEY BLOCK-----
`}, "https://mirror.example/debian", ""},
		"a cloud image's list of mirrors": {map[string]string{"sources.list.d/debian.sources": `Types: deb deb-src
URIs: mirror+file:///etc/apt/mirrors/debian.list
Suites: trixie trixie-updates trixie-backports
Components: main
Signed-By: /k/d.pgp

Types: deb deb-src
URIs: mirror+file:///etc/apt/mirrors/debian-security.list
Suites: trixie-security
Components: main
`}, "mirror+file:/etc/apt/mirrors/debian.list", "/k/d.pgp"},
		"sources.list first": {map[string]string{"sources.list.d/a.list": "deb http://second.example/debian sid main\n",
			"sources.list": "deb http://first.example/debian sid main\n"}, "http://first.example/debian", ""},
		"none of Debian's": {map[string]string{"sources.list.d/ubuntu.sources": "Types: deb\n" +
			"URIs: http://mirror.example/ubuntu/\nSuites: noble\n" +
			"Components: main\nSigned-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg\n"}, "", ""},
		"none": {nil, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			mirror, keyring, err := debianSource(t.Context(), aptSources(t, c.files))
			if err != nil || mirror != c.mirror || keyring != c.keyring {
				t.Errorf("%q signed by %q, %v; want %q by %q", mirror, keyring, err, c.mirror, c.keyring)
			}
		})
	}
}

func TestBrokenSourcesAreSaid(t *testing.T) {
	needsApt(t)
	etc := aptSources(t, map[string]string{"sources.list": "deb http://mirror.example/debian\n"})
	var m *Missing
	_, err := findArchive(t.Context(), &Options{}, etc)
	if !errors.As(err, &m) || !errors.Is(err, ErrNoMirror) ||
		!strings.Contains(err.Error(), "Malformed entry 1 in list file") {
		t.Errorf("got %v", err)
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
	needsApt(t)
	etc := t.TempDir()
	keys := filepath.Join(etc, "keys.gpg")
	write(t, keys, "k")
	write(t, filepath.Join(etc, "sources.list.d/a-vendor.list"), "deb http://vendor.example/apt stable main\n")
	write(t, filepath.Join(etc, "sources.list.d/debian.sources"),
		"Types: deb\nURIs: http://vendor.example/x http://mirror.example/debian/\n"+
			"Suites: trixie\nComponents: main\nSigned-By: "+keys+"\n")
	write(t, filepath.Join(etc, "sources.list.d/ignored.save"), "deb http://wrong.example/debian trixie main\n")

	a, err := findArchive(t.Context(), &Options{}, etc)
	if want := (archive{mirror: "http://mirror.example/debian", keyring: keys}); err != nil || a != want {
		t.Errorf("from sources: %+v, %v", a, err)
	}
	t.Setenv(EnvMirror, "http://env.example/debian")
	if a, err = findArchive(t.Context(), &Options{}, etc); err != nil || a.mirror != "http://env.example/debian" {
		t.Errorf("from the environment: %+v, %v", a, err)
	}
	opt := "http://opt.example/debian"
	if a, err = findArchive(t.Context(), &Options{Mirror: opt}, etc); err != nil || a.mirror != opt {
		t.Errorf("from options: %+v, %v", a, err)
	}
	t.Setenv(EnvMirror, "")

	var m *Missing
	_, err = findArchive(t.Context(), &Options{Keyring: "/nowhere.gpg"}, etc)
	if !errors.Is(err, ErrNoKeyring) || !errors.As(err, &m) {
		t.Errorf("no keyring: %v", err)
	}
	if _, err = findArchive(t.Context(), &Options{}, t.TempDir()); !errors.Is(err, ErrNoMirror) || !errors.As(err, &m) {
		t.Errorf("no sources: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if a, err = findArchive(t.Context(), &Options{Mirror: opt, Keyring: keys}, etc); err != nil || a.keyring != keys {
		t.Errorf("given, without apt: %+v, %v", a, err)
	}
	_, err = findArchive(t.Context(), &Options{}, etc)
	if !errors.Is(err, ErrNoMirror) || strings.Contains(err.Error(), "apt-get") {
		t.Errorf("without apt: %v", err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	testkit.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testkit.OK(t, os.WriteFile(path, []byte(text), 0o644))
}

func FuzzSignedBy(f *testing.F) {
	f.Add("deb [signed-by=/a] http://m/debian s main\n", false)
	f.Add("Types: deb\nURIs: http://m/debian\nSuites: s\nSigned-By: /a\n\n", true)
	f.Fuzz(func(t *testing.T, text string, deb822 bool) {
		k := signedBy(text, deb822, "http://m/debian")
		if k != "" && (k[0] != '/' || !strings.Contains(text, k) || !strings.Contains(text, "m/debian")) {
			t.Errorf("%q", k)
		}
	})
}
