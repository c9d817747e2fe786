package guestimages

import (
	"path"
	"slices"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"
)

// UserlandDir has the commands of the userland, each a link to one program.
const UserlandDir = "/bbin"

// The userland is u-root's commands as one program, which tools/uroot/build has made of them, and their names.
const (
	userlandFile  = "bin/u-root.gz"
	userlandNames = "bin/u-root.txt"
	// Of all modules that it is made of; the guest has them beside it.
	userlandLicences = "bin/u-root-licences.gz"
)

// Userland gives the names of the commands of UserlandDir, in their order; none where this program was built without
// make, which has them embedded.
func Userland() []string {
	names, err := bin.ReadFile(userlandNames)
	if err != nil {
		return nil
	}
	return strings.Fields(string(names))
}

// HasCommand says whether the userland has a command.
func HasCommand(name string) bool {
	_, found := slices.BinarySearch(Userland(), name)
	return found
}

// userland gives the userland's program, packed; nil: this program carries none.
func userland() []byte {
	b, err := bin.ReadFile(userlandFile)
	if err != nil {
		return nil
	}
	return b
}

// userlandRecords put it into an image, with /bin/sh: what a user brings to the same places takes theirs.
func userlandRecords(packed []byte) ([]cpio.Record, error) {
	content, err := program{content: packed, gzipped: true}.unpack()
	if err != nil {
		return nil, err
	}
	dir := strings.TrimPrefix(UserlandDir, "/")
	recs := []cpio.Record{cpio.Directory(dir, 0o755), cpio.StaticFile(path.Join(dir, "bb"), string(content), 0o755)}
	if packed, err := bin.ReadFile(userlandLicences); err == nil {
		text, err := program{content: packed, gzipped: true}.unpack()
		if err != nil {
			return nil, err
		}
		recs = append(recs, cpio.StaticFile(path.Join(dir, "LICENCES"), string(text), 0o644))
	}
	for _, name := range Userland() {
		recs = append(recs, cpio.Symlink(path.Join(dir, name), "bb"))
	}
	return append(recs, cpio.Symlink("bin/sh", path.Join(UserlandDir, "sh"))), nil
}
