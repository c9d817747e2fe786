// Package version says of which vnic this program is, and refuses what another vnic says where the two do not understand
// each other. Each end of a protocol says in its first message which vnic it is of, and its version of the protocol.
package version

import (
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
)

// stamped is the version that the Makefile knows. Without it, the module's says which one this is.
var stamped string

// String is the version of vnic, as `vnic version` prints it.
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

// Hello is what an end says of itself. Vnics up to 780d5150 say nothing, or their protocol alone.
type Hello struct {
	Protocol int    `json:"protocol"`
	Vnic     string `json:"vnic"`
}

// Ours is the Hello of this program.
func Ours(protocol int) Hello { return Hello{protocol, String()} }

// Error is the refusal of an end that is of another vnic, in one line.
type Error string

func (e Error) Error() string { return string(e) }

// Check refuses an end whose protocol is another one: who that is ("the guest's agent"), and what to do about it.
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
