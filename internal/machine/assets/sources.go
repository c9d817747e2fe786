package assets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/proc"
)

// debianKeyrings are paths of the keyring of Debian's package debian-archive-keyring.
var debianKeyrings = []string{
	"/usr/share/keyrings/debian-archive-keyring.gpg",
	"/usr/share/keyrings/debian-archive-keyring.pgp",
	"/etc/apt/trusted.gpg.d/debian-archive-keyring.gpg",
}

const aptEtc = "/etc/apt"

// archive is a mirror of Debian's packages, and its keyring.
type archive struct {
	mirror  string
	keyring string
}

// findArchive takes the mirror, and independently the keyring, from options, else the environment, else the apt
// sources in the directory etc. If these name no readable keyring, it is the first readable one of debianKeyrings.
func findArchive(ctx context.Context, o *Options, etc string) (archive, error) {
	a := archive{mirror: cmp.Or(o.Mirror, os.Getenv(EnvMirror)), keyring: cmp.Or(o.Keyring, os.Getenv(EnvKeyring))}
	if a.mirror != "" && a.keyring != "" {
		return a, a.check()
	}
	mirror, keyring, err := debianSource(ctx, etc)
	switch {
	case ctx.Err() != nil:
		return a, ctx.Err()
	case errors.Is(err, exec.ErrNotFound): // no apt
		err = nil
	}
	a.mirror = cmp.Or(a.mirror, mirror)
	if a.mirror == "" {
		return a, &Missing{
			What: "packages", Err: errors.Join(ErrNoMirror, err),
			Fix: "this machine's apt sources name no Debian mirror: name one (--mirror, " + EnvMirror +
				"), or " + giveBoth,
		}
	}
	if a.keyring == "" {
		candidates := append([]string{keyring}, debianKeyrings...)
		if i := slices.IndexFunc(candidates, readable); i >= 0 {
			a.keyring = candidates[i]
		}
	}
	return a, a.check()
}

func (a archive) check() error {
	if readable(a.keyring) {
		return nil
	}
	return &Missing{
		What: "packages", Err: fmt.Errorf("%w %s", ErrNoKeyring, a.keyring),
		Fix: "install debian-archive-keyring, name a keyring (--keyring, " + EnvKeyring +
			"), or " + giveBoth,
	}
}

func readable(path string) bool { return unix.Access(path, unix.R_OK) == nil }

// debianSource returns the URI of the first source in the directory etc that is Debian's main archive, and the keyring
// that its Signed-By names; "": none. Without the fetched lists apt needs 20 ms instead of 800.
func debianSource(ctx context.Context, etc string) (mirror, keyring string, err error) {
	out, err := proc.Command{}.Run(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI) $(SOURCESENTRY)",
		"-o", "Dir::Etc="+etc, "-o", "Dir::State::lists=/dev/null",
		"-o", "APT::Get::IndexTargets::ReleaseInfo=false", "Created-By: Packages")
	if err != nil {
		return "", "", err
	}
	for line := range strings.Lines(string(out)) {
		uri, entry, _ := strings.Cut(strings.TrimSpace(line), " ")
		if uri = strings.TrimRight(uri, "/"); isDebianURI(uri) {
			file := entry[:max(0, strings.LastIndexByte(entry, ':'))]
			text, _ := os.ReadFile(file)
			return uri, signedBy(string(text), strings.HasSuffix(file, ".sources"), uri), nil
		}
	}
	return "", "", nil
}

var (
	comments   = regexp.MustCompile(`(?m)^[ \t]*#.*\n?`)
	stanzaEnd  = regexp.MustCompile(`\n[ \t]*\n`)
	signedPath = regexp.MustCompile(`(?i)\bsigned-by[ \t]*[=:][^\n\]/]*(/[^\s,\]]+)`)
)

// signedBy returns the first path of Signed-By in an entry for uri in text, a file of sources.list(5), one-line or
// deb822; "": none. apt-get indextargets does not name that path.
func signedBy(text string, deb822 bool, uri string) string {
	text = comments.ReplaceAllString(text, "")
	entries := strings.Split(text, "\n")
	if deb822 {
		entries = stanzaEnd.Split(text, -1)
	}
	for _, e := range entries {
		between := func(r rune) bool { return strings.ContainsRune(" \t\n[]", r) }
		words := strings.FieldsFunc(strings.ReplaceAll(e, ":///", ":/"), between)
		if !slices.ContainsFunc(words, func(w string) bool { return strings.TrimRight(w, "/") == uri }) {
			continue
		}
		if m := signedPath.FindStringSubmatch(e); m != nil {
			return m[1]
		}
	}
	return ""
}

// isDebianURI reports whether a URI names Debian's main archive, by its scheme and the end of its path. Cloud images
// list mirrors in debian.list (apt-transport-mirror(1)).
func isDebianURI(uri string) bool {
	scheme, rest, ok := strings.Cut(uri, ":")
	if !ok {
		return false
	}
	rest = strings.TrimRight(rest, "/")
	switch scheme {
	case "http", "https", "ftp", "file", "copy", "tor+http", "tor+https":
		return strings.HasSuffix(rest, "/debian")
	case "mirror", "mirror+file", "mirror+http", "mirror+https":
		return strings.HasSuffix(rest, "/debian.list")
	}
	return false
}
