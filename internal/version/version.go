// Package version has vnic's version, and refuses peers that use another version of a protocol.
package version

import (
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
)

// stamped is the version that a build sets (go build -ldflags -X), as the Makefile does; "" in other builds.
var stamped string

// String returns the version of vnic: stamped or, if it is empty, the main module's version and, if known, the first 12
// digits of the commit.
var String = sync.OnceValue(func() string {
	if stamped != "" {
		return stamped
	}
	version, revision := "(devel)", ""
	if i, ok := debug.ReadBuildInfo(); ok {
		if i.Main.Version != "" {
			version = i.Main.Version
		}
		for _, s := range i.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				revision = " " + s.Value[:12]
			}
		}
	}
	return version + revision
})

// Hello has the versions that an end of a protocol sends. An older vnic sends none, or Protocol alone.
type Hello struct {
	Protocol int    `json:"protocol"`
	Vnic     string `json:"vnic"`
}

// Ours returns the Hello of this program for a version of a protocol.
func Ours(protocol int) Hello { return Hello{protocol, String()} }

// Error is the error for a peer with another version of the protocol, in one line.
type Error string

func (e Error) Error() string { return string(e) }

// Check returns an Error if theirs has another version of the protocol than h. who names the other end, fix tells the
// user what to do.
func (h Hello) Check(theirs Hello, who, fix string) error {
	if theirs.Protocol == h.Protocol {
		return nil
	}
	return Error(fmt.Sprintf("%s is of %v, this is %v: %s", who, theirs, h, fix))
}

func (h Hello) String() string {
	switch name := strings.Trim(fmt.Sprintf("%.80q", h.Vnic), `"`); {
	case h == Hello{}:
		return "an older vnic, which does not say its version"
	case name == "":
		return fmt.Sprintf("an older vnic (protocol %d)", h.Protocol)
	default:
		return fmt.Sprintf("vnic %s (protocol %d)", name, h.Protocol)
	}
}
