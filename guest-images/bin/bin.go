// Package bin has a program carry what the Makefile puts into this directory for guests: the guest program, and in a
// release, by an overlay, the userland. It is imported for that effect, by programs and by tests that boot guests; no
// other package has to wait for the guest program when it is compiled.
package bin

import (
	"embed"

	guestimages "vnic.dev/vnic/guest-images"
)

//go:embed *
var files embed.FS

func init() { guestimages.Carry(files) }
