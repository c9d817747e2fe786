// Package guestbin embeds the files for guests that the Makefile puts into this directory: the
// guest program, and in a release, by an overlay, the userland. Programs, and tests that boot
// guests, import it for this effect. It is separate from package guestimages so that only its
// importers depend on the built guest program.
package guestbin

import (
	"embed"

	guestimages "vnic.dev/vnic/guest-images"
)

//go:embed *
var files embed.FS

func init() { guestimages.Carry(files) }
