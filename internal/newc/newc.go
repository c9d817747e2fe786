// Package newc writes and reads cpio archives of the form "newc", which Linux unpacks as an initramfs (Linux
// Documentation/driver-api/early-userspace/buffer-format.rst).
//
// An archive is a row of files, each a header, a name and the content, and ends with a trailer. The same files give the
// same bytes: nothing is taken from the clock or the file system but what a File says. A Writer makes the directories
// of a path where the archive has none yet, as the kernel drops a file whose directory is missing. It refuses what the
// kernel would skip without a word. A Reader takes any bytes: what is no archive is ErrBadArchive, and memory is taken
// for a name alone, of at most PATH_MAX.
//
// Checksums (magic 070702) are not known here, and hard links are files like others.
//
// The package is not API (README, Stability).
package newc

import (
	"io"
	"strings"

	"golang.org/x/sys/unix"
)

// Header is a file's (buffer-format.rst, the table of cpio_header); its size and the length of its name are File's.
type Header struct {
	Ino    uint32 // c_ino
	Mode   uint32 // c_mode: type and permissions (inode(7))
	UID    uint32 // c_uid
	GID    uint32 // c_gid
	NLink  uint32 // c_nlink
	MTime  uint32 // c_mtime: seconds since 1970
	Major  uint32 // c_maj, c_min: of the device that the file is on
	Minor  uint32
	RMajor uint32 // c_rmaj, c_rmin: of the device that a node is for
	RMinor uint32
}

// File is one of an archive.
type File struct {
	Header
	Name string // without the first slash
	Size int64  // c_filesize

	// Open gives the content to a Writer, each time that the file is written; it is not called if Size is 0.
	Open func() (io.ReadCloser, error)
}

const (
	magic   = "070701" // c_magic
	trailer = "TRAILER!!!"

	numbers   = 13 // behind the magic, of 8 digits each
	headerLen = len(magic) + 8*numbers
)

// fields gives the header's numbers in their order. The last one, c_chksum, is 0 in this form.
func (h *Header) fields(size, nameLen, sum *uint32) [numbers]*uint32 {
	return [numbers]*uint32{&h.Ino, &h.Mode, &h.UID, &h.GID, &h.NLink, &h.MTime, size, &h.Major, &h.Minor, &h.RMajor,
		&h.RMinor, nameLen, sum}
}

// Text is a regular file with this content.
func Text(name, content string, permissions uint32) File {
	return File{Header: Header{Mode: unix.S_IFREG | permissions}, Name: name, Size: int64(len(content)),
		Open: opener(content)}
}

// Link is a symbolic link.
func Link(name, target string) File {
	return File{Header: Header{Mode: unix.S_IFLNK | 0o777}, Name: name, Size: int64(len(target)), Open: opener(target)}
}

func opener(content string) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(content)), nil }
}

// Dir is a directory.
func Dir(name string, permissions uint32) File {
	return File{Header: Header{Mode: unix.S_IFDIR | permissions}, Name: name}
}

// CharDevice is a node of a character device.
func CharDevice(name string, permissions, major, minor uint32) File {
	return File{Header: Header{Mode: unix.S_IFCHR | permissions, RMajor: major, RMinor: minor}, Name: name}
}
