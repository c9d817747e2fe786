package assets

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/outfile"
)

// A bzImage decompresses itself at boot, in 1.4 s of 3.8 s under TCG (kernel 7.2). QEMU can also boot the ELF
// file inside it (PVH, docs/misc/pvh.pandoc of Xen; hw/i386/x86-common.c, load_elfboot).

// maxKernel bounds an unpacked kernel, in bytes.
const maxKernel = 256 << 20

// xenPhys32Entry is the type of the note with the PVH entry point (XEN_ELFNOTE_PHYS32_ENTRY).
const xenPhys32Entry = 18

// vmlinuxName is the unpacked kernel in a tree.
const vmlinuxName = "vmlinux"

// unpackKernel unpacks a tree's kernel into an ELF file, unless that exists. The file is empty for a kernel
// that cannot be unpacked or lacks PVH.
func unpackKernel(root string) error {
	if _, err := os.Stat(filepath.Join(root, vmlinuxName)); err == nil {
		return nil
	}
	if err := unix.Access(root, unix.W_OK); err != nil {
		return fmt.Errorf("%s: %w", root, err)
	}
	k, err := kernelOf(root)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(k.Image)
	if err != nil {
		return err
	}
	return outfile.Replace(filepath.Join(root, vmlinuxName), func(f *os.File) error {
		err := vmlinux(f, b)
		if err == nil {
			err = bootsByPVH(f)
		}
		if err == nil || errors.As(err, new(*fs.PathError)) { // of the file system
			return err
		}
		return f.Truncate(0)
	})
}

// Unpacked returns the kernel's unpacked image, at most maxKernel bytes.
func (k *Kernel) Unpacked() ([]byte, error) {
	if k.ELF != "" {
		return os.ReadFile(k.ELF)
	}
	b, err := os.ReadFile(k.Image)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err = vmlinux(&out, b); err != nil {
		return nil, fmt.Errorf("%s: %w", k.Image, err)
	}
	return out.Bytes(), nil
}

// vmlinux writes the ELF file of a bzImage (Linux Documentation/arch/x86/boot.rst: payload_offset counts from
// the protected-mode code).
func vmlinux(w io.Writer, image []byte) error {
	const head = 0x250
	if len(image) < head || string(image[0x202:0x206]) != "HdrS" || binary.LittleEndian.Uint16(image[0x206:]) < 0x208 {
		return errors.New("not a bzImage of Linux 2.6.26 or newer")
	}
	start := (uint64(image[0x1f1])+1)*512 + uint64(binary.LittleEndian.Uint32(image[0x248:]))
	size := uint64(binary.LittleEndian.Uint32(image[0x24c:]))
	if size < 8 || start+size > uint64(len(image)) {
		return fmt.Errorf("a bzImage whose payload of %d bytes at %d lies outside of it", size, start)
	}
	payload := image[start : start+size]
	want := binary.LittleEndian.Uint32(payload[size-4:])
	if want > maxKernel {
		return fmt.Errorf("a kernel of %d bytes", want)
	}
	r, err := decompressor(payload)
	if err != nil {
		return err
	}
	if n, err := io.CopyN(w, r, int64(want)); err != nil {
		return fmt.Errorf("the kernel does not unpack: %d bytes of %d: %w", n, want, err)
	}
	return nil
}

// decompressor supports zstd, xz and gzip. The unpacked size in the last 4 bytes is part of gzip's format, but
// not of the others'.
func decompressor(packed []byte) (io.Reader, error) {
	switch r := bytes.NewReader(packed[:len(packed)-4]); {
	case bytes.HasPrefix(packed, []byte{0x1f, 0x8b}):
		return gzip.NewReader(bytes.NewReader(packed))
	case bytes.HasPrefix(packed, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
	case bytes.HasPrefix(packed, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		return xz.NewReader(r)
	}
	return nil, fmt.Errorf("a kernel packed in an unknown way: %x", packed[:4])
}

// bootsByPVH returns an error for a kernel without a PVH entry point.
func bootsByPVH(kernel io.ReaderAt) error {
	f, err := elf.NewFile(kernel)
	if err != nil {
		return err
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_NOTE || p.Filesz > 1<<16 {
			continue
		}
		b, err := io.ReadAll(p.Open())
		if err != nil {
			return err
		}
		for len(b) >= 12 { // namesz, descsz, type, name and descriptor, padded to 4 bytes
			name, desc := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
			next := 12 + (uint64(name)+3)&^3 + (uint64(desc)+3)&^3
			if next > uint64(len(b)) {
				break
			}
			if binary.LittleEndian.Uint32(b[8:]) == xenPhys32Entry && bytes.HasPrefix(b[12:], []byte("Xen\x00")) {
				return nil
			}
			b = b[next:]
		}
	}
	return errors.New("a kernel without CONFIG_PVH")
}
