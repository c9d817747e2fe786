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

// ErrBadFile means that an archive cannot have a file, or that Linux would skip it.
var ErrBadFile = errors.New("no file for an initramfs")

// Writer writes an archive. After an error of Add, the output is useless.
type Writer struct {
	w     io.Writer
	n     int64
	names map[string]bool // of all written files and directories
}

// NewWriter makes a Writer; Close completes the archive.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w, names: map[string]bool{}} }

// Len returns the number of written bytes.
func (w *Writer) Len() int64 { return w.n }

// Add writes a file, and before it the directories of its path that the archive does not have. A
// second file with the same name is fs.ErrExist.
func (w *Writer) Add(f File) error {
	f.Name = path.Clean(strings.TrimLeft(f.Name, "/"))
	if w.names[f.Name] {
		return fmt.Errorf("%s: is in the archive already: %w", f.Name, fs.ErrExist)
	}
	if err := f.check(); err != nil {
		return fmt.Errorf("%.100q: %w", f.Name, err)
	}
	for i := range len(f.Name) {
		if f.Name[i] == '/' {
			if err := w.directory(f.Name[:i]); err != nil {
				return err
			}
		}
	}
	if f.Name != "." && !strings.Contains(f.Name, "/") {
		if err := w.directory("."); err != nil {
			return err
		}
	}
	w.names[f.Name] = true
	return w.file(&f)
}

// check finds files that init/initramfs.c would skip (do_header), truncate, or not read at all.
func (f *File) check() error {
	switch {
	case len(f.Name) >= unix.PathMax:
		return fmt.Errorf("%w: its name has %d bytes, and %d is the most", ErrBadFile, len(f.Name), unix.PathMax-1)
	case f.Name == ".." || strings.HasPrefix(f.Name, "../"):
		return fmt.Errorf("%w: its name leads out of the root", ErrBadFile)
	case strings.ContainsRune(f.Name, 0):
		return fmt.Errorf("%w: its name has a zero byte", ErrBadFile)
	case f.Mode&unix.S_IFMT == unix.S_IFLNK && f.Size > unix.PathMax:
		return fmt.Errorf("%w: a link to a name of %d bytes, and %d is the most", ErrBadFile, f.Size, unix.PathMax)
	case f.Size < 0 || f.Size > math.MaxUint32:
		return fmt.Errorf("%w: it has %d bytes, and 4 GiB - 1 is the most", ErrBadFile, f.Size)
	}
	return nil
}

func (w *Writer) directory(name string) error {
	if w.names[name] {
		return nil
	}
	w.names[name] = true
	f := Dir(name, 0o777)
	return w.file(&f)
}

// file writes a header, the name and the content, each padded to 4 bytes.
func (w *Writer) file(f *File) error {
	size, nameLen, sum := uint32(f.Size), uint32(len(f.Name)+1), uint32(0)
	b := append(make([]byte, 0, headerLen+len(f.Name)+4), magic...)
	for _, v := range f.fields(&size, &nameLen, &sum) {
		b = fmt.Appendf(b, "%08X", *v)
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

func (w *Writer) content(f *File) error {
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

func (w *Writer) padded(b []byte) error {
	b = append(b, make([]byte, -(w.n+int64(len(b)))&3)...)
	n, err := w.w.Write(b)
	w.n += int64(n)
	return err
}

// Close writes the trailer. It does not close the underlying writer.
func (w *Writer) Close() error { return w.file(&File{Name: trailer}) }
