package assets

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// source is one entry of the machine's apt sources, as far as it matters here.
type source struct {
	uris     []string
	suites   []string
	signedBy string // a path; "" = none, or keys in the entry itself
}

// debianKeyrings are where Debian's package debian-archive-keyring puts its keys.
var debianKeyrings = []string{
	"/usr/share/keyrings/debian-archive-keyring.gpg",
	"/usr/share/keyrings/debian-archive-keyring.pgp",
	"/etc/apt/trusted.gpg.d/debian-archive-keyring.gpg",
}

// aptEtc is where the machine keeps its apt sources.
const aptEtc = "/etc/apt"

// archive is where Debian's packages come from, and whose signature is believed.
type archive struct {
	mirror  string
	keyring string
}

// findArchive takes what the options and the environment leave open from the machine's apt sources.
func findArchive(o *Options, etc string) (archive, error) {
	a := archive{mirror: cmp.Or(o.Mirror, os.Getenv(EnvMirror)), keyring: cmp.Or(o.Keyring, os.Getenv(EnvKeyring))}
	sources, readErr := readSources(etc)
	s, ok := debianSource(sources)
	if ok {
		a.mirror = cmp.Or(a.mirror, s.uris[0])
	}
	if a.mirror == "" {
		return a, &Missing{
			What: "packages", Err: errors.Join(ErrNoMirror, readErr),
			Fix: "this machine's apt sources name no Debian mirror: name one (--mirror, " + EnvMirror + "), or give QEMU and a kernel yourself (--qemu, --kernel, --modules)",
		}
	}
	if a.keyring == "" {
		candidates := debianKeyrings
		if ok && s.signedBy != "" {
			candidates = slices.Insert(slices.Clone(candidates), 0, s.signedBy)
		}
		for _, k := range candidates {
			if readable(k) {
				a.keyring = k
				break
			}
		}
	}
	if a.keyring == "" || !readable(a.keyring) {
		return a, &Missing{
			What: "packages", Err: fmt.Errorf("%w %s", ErrNoKeyring, a.keyring),
			Fix: "install debian-archive-keyring, name a keyring (--keyring, " + EnvKeyring + "), or give QEMU and a kernel yourself (--qemu, --kernel, --modules)",
		}
	}
	return a, nil
}

func readable(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	_ = f.Close()
	return true
}

// readSources reads sources.list and sources.list.d below etc (/etc/apt).
func readSources(etc string) ([]source, error) {
	files := []string{filepath.Join(etc, "sources.list")}
	entries, err := os.ReadDir(filepath.Join(etc, "sources.list.d"))
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext == ".list" || ext == ".sources" {
			files = append(files, filepath.Join(etc, "sources.list.d", e.Name()))
		}
	}
	var list []source
	for _, f := range files {
		b, ferr := os.ReadFile(f)
		if ferr != nil {
			if !errors.Is(ferr, os.ErrNotExist) {
				err = errors.Join(err, ferr)
			}
			continue
		}
		if strings.HasSuffix(f, ".sources") {
			list = append(list, parseDeb822(string(b))...)
		} else {
			list = append(list, parseOneLine(string(b))...)
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return list, err
}

// parseOneLine reads sources.list(5)'s one-line style: deb [options] uri suite component...
func parseOneLine(text string) []source {
	var list []source
	for line := range strings.SplitSeq(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb")
		if !ok || rest == "" || !strings.ContainsAny(rest[:1], " \t[") {
			continue
		}
		var s source
		rest = strings.TrimSpace(rest)
		if opts, after, ok := strings.Cut(rest, "]"); ok && strings.HasPrefix(rest, "[") {
			rest = after
			for o := range strings.FieldsSeq(opts[1:]) {
				if v, ok := strings.CutPrefix(o, "signed-by="); ok {
					s.signedBy = keyPath(v)
				}
			}
		}
		f := strings.Fields(rest)
		if len(f) < 2 {
			continue
		}
		s.uris, s.suites = f[:1], f[1:2]
		list = append(list, s)
	}
	return list
}

// parseDeb822 reads sources.list(5)'s deb822 style: stanzas of "Field: value", continued on indented lines.
func parseDeb822(text string) []source {
	var list []source
	fields := map[string]string{}
	name := ""
	flush := func() {
		if slices.Contains(strings.Fields(fields["types"]), "deb") && !strings.EqualFold(fields["enabled"], "no") {
			s := source{uris: strings.Fields(fields["uris"]), suites: strings.Fields(fields["suites"]), signedBy: keyPath(fields["signed-by"])}
			if len(s.uris) > 0 && len(s.suites) > 0 {
				list = append(list, s)
			}
		}
		clear(fields)
		name = ""
	}
	for line := range strings.SplitSeq(text, "\n") {
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			flush()
		case line[0] == ' ' || line[0] == '\t':
			if name != "" {
				fields[name] += "\n" + strings.TrimSpace(line)
			}
		default:
			k, v, ok := strings.Cut(line, ":")
			name = strings.ToLower(strings.TrimSpace(k))
			if ok {
				fields[name] = strings.TrimSpace(v)
			}
		}
	}
	flush()
	return list
}

// keyPath gives the first path of a Signed-By value; it may also hold fingerprints or keys, which are of no use here.
func keyPath(v string) string {
	for f := range strings.FieldsFuncSeq(v, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' }) {
		if strings.HasPrefix(f, "/") {
			return f
		}
	}
	return ""
}

// debianSource picks the first entry that is Debian's main archive.
func debianSource(list []source) (source, bool) {
	for _, s := range list {
		for _, uri := range s.uris {
			if isDebianURI(uri) {
				s.uris = []string{strings.TrimRight(uri, "/")}
				return s, true
			}
		}
	}
	return source{}, false
}

// isDebianURI knows the main archive by the end of its path, which every mirror keeps; cloud images list mirrors in a
// file debian.list (apt-transport-mirror(1)).
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
