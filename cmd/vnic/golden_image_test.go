package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"
)

// initrd FILE: what each of its archives has, in order; a text's content, but not the bytes of programs.
func (tr *transcript) initrd(args []string) {
	rest, err := os.ReadFile(tr.MkAbs(args[0]))
	tr.Check(err)
	var b strings.Builder
	fmt.Fprintf(&b, "> initrd %s\n", args[0])
	for n := 1; len(rest) > 0; n++ {
		fmt.Fprintf(&b, "archive %d\n", n)
		r := bytes.NewReader(rest)
		for recs := cpio.Newc.Reader(r); ; {
			rec, err := recs.ReadRecord()
			if errors.Is(err, io.EOF) {
				break
			}
			tr.Check(err)
			content := make([]byte, rec.FileSize)
			if rec.FileSize > 0 {
				_, err = io.ReadFull(io.NewSectionReader(rec, 0, int64(rec.FileSize)), content)
				tr.Check(err)
			}
			fmt.Fprintf(&b, "%06o uid %d gid %d nlink %d mtime %d dev %d:%d rdev %d:%d %s", rec.Mode, rec.UID, rec.GID, rec.NLink, rec.MTime,
				rec.Major, rec.Minor, rec.Rmajor, rec.Rminor, rec.Name)
			switch {
			case rec.Mode&cpio.S_IFMT == cpio.S_IFLNK:
				fmt.Fprintf(&b, " -> %s\n", content)
			case rec.Mode&cpio.S_IFMT != cpio.S_IFREG:
				b.WriteString("\n")
			case bytes.HasPrefix(content, []byte(elf.ELFMAG)):
				b.WriteString(", a program or module\n")
			default:
				fmt.Fprintf(&b, ", %d bytes:\n", len(content))
				for l := range strings.Lines(string(content)) {
					b.WriteString("    " + strings.TrimSuffix(l, "\n") + "\n")
				}
			}
		}
		end := bytes.Index(rest, []byte("TRAILER!!!"))
		rest = bytes.TrimLeft(rest[end+len("TRAILER!!!"):], "\x00")
	}
	tr.append(b.String() + "\n")
}

// bzimage FILE VERSION: the least that passes for a kernel (Linux Documentation/arch/x86/boot.rst).
func (tr *transcript) bzimage(args []string) {
	b := make([]byte, 0x300)
	copy(b[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(b[0x20e:], 0x10)
	copy(b[0x210:], args[1]+" (nobody) #1\x00")
	tr.Check(os.WriteFile(tr.MkAbs(args[0]), b, 0o644))
}

// module FILE [NAME=VALUE...]: the least of a kernel module, with these words of .modinfo.
func (tr *transcript) module(args []string) {
	info := strings.Join(args[1:], "\x00") + "\x00"
	const headerLen, sectionLen = 64, 64
	names := "\x00.modinfo\x00.shstrtab\x00"
	h := elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Ehsize: headerLen, Shentsize: sectionLen, Shnum: 3, Shstrndx: 2, Shoff: uint64(headerLen + len(info) + len(names)),
	}
	var b bytes.Buffer
	for _, v := range []any{
		h, []byte(info), []byte(names), elf.Section64{},
		elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: headerLen, Size: uint64(len(info))},
		elf.Section64{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: uint64(headerLen + len(info)), Size: uint64(len(names))},
	} {
		tr.Check(binary.Write(&b, binary.LittleEndian, v))
	}
	file := tr.MkAbs(args[0])
	tr.Check(os.MkdirAll(filepath.Dir(file), 0o755))
	tr.Check(os.WriteFile(file, b.Bytes(), 0o644))
}
