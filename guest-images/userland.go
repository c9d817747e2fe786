package guestimages

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/newc"
)

// UserlandDir is the directory of the userland's commands, each a link to one program.
const UserlandDir = "/bbin"

// The files that tools/uroot/build writes: u-root's commands as one program, the commands' names, and
// licences.
const (
	userlandFile     = "u-root.gz"
	userlandNames    = "u-root.txt"
	userlandLicences = "u-root-licences.gz"
)

// Userland is u-root's commands.
type Userland struct {
	InCache string // its directory below the cache; "": embedded in this binary

	names             []string // sorted
	program, licences []byte   // gzipped
}

// readUserland's error is fs.ErrNotExist if the program or the list of names is missing.
func readUserland(dir fs.FS) (*Userland, error) {
	u := &Userland{}
	names, err := fs.ReadFile(dir, userlandNames)
	if err == nil {
		u.program, err = fs.ReadFile(dir, userlandFile)
	}
	if err != nil {
		return nil, err
	}
	if u.licences, err = fs.ReadFile(dir, userlandLicences); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	u.names = strings.Fields(string(names))
	return u, nil
}

// Names returns the sorted names of the commands in [UserlandDir].
func (u *Userland) Names() []string {
	if u == nil {
		return nil
	}
	return u.names
}

// Has reports whether the userland has a command.
func (u *Userland) Has(name string) bool {
	_, found := slices.BinarySearch(u.Names(), name)
	return found
}

func (u *Userland) archived() ([]newc.File, error) {
	bb, err := program{content: u.program, gzipped: true}.unpack()
	if err != nil {
		return nil, err
	}
	dir := strings.TrimPrefix(UserlandDir, "/")
	list := []newc.File{newc.Dir(dir, 0o755), newc.Text(path.Join(dir, "bb"), string(bb), 0o755)}
	if u.licences != nil {
		text, err := program{content: u.licences, gzipped: true}.unpack()
		if err != nil {
			return nil, err
		}
		list = append(list, newc.Text(path.Join(dir, "LICENCES"), string(text), 0o644))
	}
	for _, name := range u.names {
		list = append(list, newc.Link(path.Join(dir, name), "bb"))
	}
	return append(list, newc.Link("bin/sh", path.Join(UserlandDir, "sh"))), nil
}
