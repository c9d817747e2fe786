package guestimages

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/newc"
)

// UserlandDir is the directory of the userland's commands in a guest. All commands are links to the same program.
const UserlandDir = "/bbin"

// The files of a userland that tools/uroot/build has built: the commands as one gzipped program, their names, and the
// gzipped licences.
const (
	userlandFile     = "u-root.gz"
	userlandNames    = "u-root.txt"
	userlandLicences = "u-root-licences.gz"
)

// Userland is commands for guests as one program: u-root's commands, and vnic's shell.
type Userland struct {
	InCache string // its directory, relative to the cache directory; "": embedded in this binary

	names             []string // sorted
	program, licences []byte   // gzipped; licences may be nil
}

// readUserland reads a userland from the root of dir. Its error wraps fs.ErrNotExist if the program or the list of
// names is missing.
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

// Names returns the sorted names of the commands; of a nil Userland, nil.
func (u *Userland) Names() []string {
	if u == nil {
		return nil
	}
	return u.names
}

// Has reports whether the userland has a command of this name. A nil Userland has none.
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
