// Package guestbin embeds the files for guests that the Makefile puts into this directory, and gives them to
// package guestimages. It is separate so that only its importers depend on the built guest program.
package guestbin

import (
	"embed"

	guestimages "vnic.dev/vnic/guest-images"
)

//go:embed *
var files embed.FS

func init() { guestimages.Carry(files) }
