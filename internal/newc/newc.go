// Package newc writes cpio archives of the format "newc", as for an initramfs (Linux
// Documentation/driver-api/early-userspace/buffer-format.rst).
//
// The same files give the same bytes. Write adds missing directories, because the kernel drops a file without
// its directory. It refuses names that are too long, have a zero byte or lead out of the root, and contents that are
// too long.
//
// Checksums (magic 070702) and hard links are not supported.
//
// The package is not API (README, Stability).
package newc

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrBadFile means that an archive cannot have the file, that Linux would skip it, or that its name leads out of the
// root.
var ErrBadFile = errors.New("no file for an initramfs")

// File is a file of an archive, owned by root and without a time.
type File struct {
	Name   string // Write drops slashes at its beginning, and cleans it (path.Clean)
	Mode   uint32 // type and permissions (inode(7))
	RMajor uint32 // RMajor and RMinor are a device node's numbers
	RMinor uint32
	Size   int64

	// Open opens the content; it is not called if Size is 0.
	Open func() (io.ReadCloser, error)
}

// Text returns a regular file with this content.
func Text(name, content string, permissions uint32) File {
	return File{Mode: unix.S_IFREG | permissions, Name: name, Size: int64(len(content)), Open: opener(content)}
}

// Link returns a symbolic link.
func Link(name, target string) File {
	return File{Mode: unix.S_IFLNK | 0o777, Name: name, Size: int64(len(target)), Open: opener(target)}
}

func opener(content string) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(content)), nil }
}

// Dir returns a directory.
func Dir(name string, permissions uint32) File {
	return File{Mode: unix.S_IFDIR | permissions, Name: name}
}

// CharDevice returns a character device node.
func CharDevice(name string, permissions, major, minor uint32) File {
	return File{Mode: unix.S_IFCHR | permissions, RMajor: major, RMinor: minor, Name: name}
}

const trailer = "TRAILER!!!" // the name that ends an archive

// check refuses what init/initramfs.c does not accept (do_header), what a header cannot have, and names out
// of the root.
func (f *File) check() error {
	switch {
	case len(f.Name) >= unix.PathMax:
		return fmt.Errorf("%w: its name has %d bytes, and %d is the most", ErrBadFile, len(f.Name), unix.PathMax-1)
	case f.Name == ".." || strings.HasPrefix(f.Name, "../"):
		return fmt.Errorf("%w: its name leads out of the root", ErrBadFile)
	case f.Name == trailer:
		return fmt.Errorf("%w: a file of its name ends an archive", ErrBadFile)
	case strings.ContainsRune(f.Name, 0):
		return fmt.Errorf("%w: its name has a zero byte", ErrBadFile)
	case f.Mode&unix.S_IFMT == unix.S_IFLNK && f.Size > unix.PathMax:
		return fmt.Errorf("%w: a link to a name of %d bytes, and %d is the most", ErrBadFile, f.Size, unix.PathMax)
	case f.Size < 0 || f.Size > math.MaxUint32:
		return fmt.Errorf("%w: it has %d bytes, and 4 GiB - 1 is the most", ErrBadFile, f.Size)
	}
	return nil
}

// Write writes an archive of files and their directories, and returns the number of bytes written. If a name is in the
// archive already, perhaps as an added directory, the error wraps fs.ErrExist. After an error the output is useless.
func Write(w io.Writer, files []File) (int64, error) {
	a := writer{w: w, names: map[string]bool{}}
	for i, f := range files {
		if err := a.add(f, i+1); err != nil {
			return a.n, err
		}
	}
	err := a.file(&File{Name: trailer}, 0)
	return a.n, err
}

type writer struct {
	w     io.Writer
	n     int64
	names map[string]bool // of files and directories written so far
}

// add writes a file with inode number ino, after missing directories.
func (w *writer) add(f File, ino int) error {
	f.Name = path.Clean(strings.TrimLeft(f.Name, "/"))
	if w.names[f.Name] {
		return fmt.Errorf("%s: is in the archive already: %w", f.Name, fs.ErrExist)
	}
	if err := f.check(); err != nil {
		return fmt.Errorf("%.100q: %w", f.Name, err)
	}
	if f.Name != "." && !strings.Contains(f.Name, "/") {
		if err := w.directory("."); err != nil {
			return err
		}
	}
	for i := range len(f.Name) {
		if f.Name[i] == '/' {
			if err := w.directory(f.Name[:i]); err != nil {
				return err
			}
		}
	}
	w.names[f.Name] = true
	return w.file(&f, ino)
}

func (w *writer) directory(name string) error {
	if w.names[name] {
		return nil
	}
	w.names[name] = true
	f := Dir(name, 0o777)
	return w.file(&f, 0)
}

// file writes a header with the name, and the content, each padded to a multiple of 4 bytes.
func (w *writer) file(f *File, ino int) error {
	b := []byte("070701") // c_magic
	for _, n := range []int64{int64(ino), int64(f.Mode), 0, 0, 0, 0, f.Size, 0, 0, int64(f.RMajor), int64(f.RMinor),
		int64(len(f.Name) + 1), 0} {
		b = fmt.Appendf(b, "%08X", n)
	}
	b = append(append(b, f.Name...), 0)
	if err := w.padded(b); err != nil || f.Size == 0 {
		return err
	}
	if err := w.content(f); err != nil {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	return w.padded(nil)
}

func (w *writer) content(f *File) error {
	r, err := f.Open()
	if err != nil {
		return err
	}
	n, err := io.Copy(w.w, io.LimitReader(r, f.Size))
	w.n += n
	if err = errors.Join(err, r.Close()); err == nil && n != f.Size {
		err = fmt.Errorf("has %d bytes now, and had %d", n, f.Size)
	}
	return err
}

func (w *writer) padded(b []byte) error {
	b = append(b, make([]byte, -(w.n+int64(len(b)))&3)...)
	n, err := w.w.Write(b)
	w.n += int64(n)
	return err
}
