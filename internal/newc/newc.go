// Package newc writes and reads cpio archives of the format "newc", which Linux unpacks as an
// initramfs (Linux Documentation/driver-api/early-userspace/buffer-format.rst).
//
// An archive is a sequence of files, each a header, a name and the content, and ends with a
// trailer. The same Files give the same bytes: nothing else comes from the clock or the file
// system. A Writer makes the directories of a path that the archive does not have, because the
// kernel drops a file without its directory. It refuses files that the kernel would silently skip.
// A Reader accepts any bytes: if they are not an archive, the error is ErrBadArchive, and it
// allocates memory only for a name, of at most PATH_MAX.
//
// Checksums (magic 070702) are not supported, and hard links are treated as separate files.
//
// The package is not API (README, Stability).
package newc

import (
	"io"
	"strings"

	"golang.org/x/sys/unix"
)

// Header is a file's header (buffer-format.rst, the table of cpio_header), without size and length
// of name, which File has.
type Header struct {
	Ino    uint32 // c_ino
	Mode   uint32 // c_mode: type and permissions (inode(7))
	UID    uint32 // c_uid
	GID    uint32 // c_gid
	NLink  uint32 // c_nlink
	MTime  uint32 // c_mtime: seconds since 1970
	Major  uint32 // c_maj, c_min: the device of the file system
	Minor  uint32
	RMajor uint32 // c_rmaj, c_rmin: the device of a device node
	RMinor uint32
}

// File is a file of an archive.
type File struct {
	Header
	Name string // without the first slash
	Size int64  // c_filesize

	// Open opens the content for a Writer, each time that the file is written; it is not called if
	// Size is 0.
	Open func() (io.ReadCloser, error)
}

const (
	magic   = "070701" // c_magic
	trailer = "TRAILER!!!"

	numbers   = 13 // after the magic, of 8 digits each
	headerLen = len(magic) + 8*numbers
)

// fields returns the header's numbers in order. The last one, c_chksum, is 0 in this format.
func (h *Header) fields(size, nameLen, sum *uint32) [numbers]*uint32 {
	return [numbers]*uint32{&h.Ino, &h.Mode, &h.UID, &h.GID, &h.NLink, &h.MTime, size, &h.Major, &h.Minor, &h.RMajor,
		&h.RMinor, nameLen, sum}
}

// Text returns a regular file with this content.
func Text(name, content string, permissions uint32) File {
	return File{Header: Header{Mode: unix.S_IFREG | permissions}, Name: name, Size: int64(len(content)),
		Open: opener(content)}
}

// Link returns a symbolic link.
func Link(name, target string) File {
	return File{Header: Header{Mode: unix.S_IFLNK | 0o777}, Name: name, Size: int64(len(target)), Open: opener(target)}
}

func opener(content string) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(content)), nil }
}

// Dir returns a directory.
func Dir(name string, permissions uint32) File {
	return File{Header: Header{Mode: unix.S_IFDIR | permissions}, Name: name}
}

// CharDevice returns a character device node.
func CharDevice(name string, permissions, major, minor uint32) File {
	return File{Header: Header{Mode: unix.S_IFCHR | permissions, RMajor: major, RMinor: minor}, Name: name}
}
