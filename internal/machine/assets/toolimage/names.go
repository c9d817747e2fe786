package toolimage

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Words of --tools.
const (
	None     = "none"
	Net      = "net"
	Python   = "python"
	NCDevmem = "ncdevmem"
)

// Bounds of --tools: how many names it has, and how many bytes a name has.
const (
	MaxNames = 32
	MaxName  = 64
)

// groups are the packages for a word. A word without a group is a package's name.
var groups = map[string][]string{
	// iputils-ping, because u-root's ping does not accept -c1.
	Net:    {"ethtool", "tcpdump", "iperf3", "iputils-ping"},
	Python: {"python3-minimal"},
	// Libraries of ncdevmem, which is no package.
	NCDevmem: {"libc6", "libmnl0"},
}

// packageName matches names by Debian Policy, 5.6.1, but not with a dot at the end, nor with a -, by which apt-get
// removes a package.
var packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]*[a-z0-9+]$`)

// Set is a parsed value of --tools.
type Set struct {
	Words    []string // as given, each once; empty: none
	Packages []string // for Words
	NCDevmem bool     // ncdevmem is in Words
}

// Parse parses the value of --tools.
func Parse(text string) (s Set, err error) {
	words := strings.Split(text, ",")
	if len(words) == 1 && (words[0] == None || words[0] == "") {
		return s, nil
	}
	if len(words) > MaxNames {
		return s, fmt.Errorf("--tools: %d names: %d at most", len(words), MaxNames)
	}
	for _, w := range words {
		switch {
		case w == None:
			return s, fmt.Errorf("--tools %s: %s stands alone", text, None)
		case len(w) > MaxName || !packageName.MatchString(w):
			return s, fmt.Errorf("--tools: %q is no name of a package: %s, or of %s, %s, %s and Debian packages, with "+
				"commas between them", shorten(w), None, Net, Python, NCDevmem)
		case slices.Contains(s.Words, w):
			continue
		}
		s.Words = append(s.Words, w)
		packages := groups[w]
		if packages == nil {
			packages = []string{w}
		}
		for _, p := range packages {
			if !slices.Contains(s.Packages, p) {
				s.Packages = append(s.Packages, p)
			}
		}
		s.NCDevmem = s.NCDevmem || w == NCDevmem
	}
	return s, nil
}

func shorten(w string) string {
	if len(w) > MaxName {
		return w[:MaxName] + "..."
	}
	return w
}

func (s Set) String() string { return strings.Join(s.Words, ",") }
