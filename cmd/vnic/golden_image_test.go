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

	"github.com/cavaliergopher/cpio"
	"golang.org/x/sys/unix"
)

// initrd FILE: adds to the transcript a list of the files in FILE's cpio archives, with the content of regular files
// that are not ELF. It leaves the files in bbin, and the parent directory of $WORK, out.
func (tr *transcript) initrd(args []string) {
	rest, err := os.ReadFile(tr.MkAbs(args[0]))
	tr.Check(err)
	var b strings.Builder
	fmt.Fprintf(&b, "> initrd %s\n", args[0])
	for n := 1; len(rest) > 0; n++ {
		fmt.Fprintf(&b, "archive %d\n", n)
		from := bytes.NewReader(rest)
		for r := cpio.NewReader(from); ; {
			start := (len(rest) - from.Len() + 3) &^ 3 // Next skips padding
			f, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			tr.Check(err)
			if "/"+f.Name == filepath.Dir(tr.Getenv("WORK")) { // the parent of $WORK has another name in each run
				continue
			}
			if strings.HasPrefix(f.Name, "bbin/") { // guest-images tests these
				continue
			}
			content, err := io.ReadAll(r)
			tr.Check(err)
			var dev [4]uint32 // c_maj, c_min, c_rmaj, c_rmin
			_, err = fmt.Sscanf(string(rest[start+62:start+94]), "%8x%8x%8x%8x", &dev[0], &dev[1], &dev[2], &dev[3])
			tr.Check(err)
			fmt.Fprintf(&b, "%06o uid %d gid %d nlink %d mtime %d dev %d:%d rdev %d:%d %s", uint32(f.Mode),
				f.Uid, f.Guid, f.Links, f.ModTime.Unix(), dev[0], dev[1], dev[2], dev[3],
				strings.Replace(f.Name, tr.Getenv("WORK")[1:], "$WORK", 1))
			switch {
			case f.Mode&unix.S_IFMT == unix.S_IFLNK:
				fmt.Fprintf(&b, " -> %s\n", f.Linkname)
			case f.Mode&unix.S_IFMT != unix.S_IFREG:
				b.WriteString("\n")
			case bytes.HasPrefix(content, []byte(elf.ELFMAG)):
				b.WriteString(", a program or module\n")
			default:
				text := tr.clean(string(content))
				fmt.Fprintf(&b, ", %d bytes:\n", len(text))
				for l := range strings.Lines(text) {
					b.WriteString("    " + strings.TrimSuffix(l, "\n") + "\n")
				}
			}
		}
		rest = bytes.TrimLeft(rest[len(rest)-from.Len():], "\x00")
	}
	tr.append(b.String() + "\n")
}

// bzimage FILE VERSION: writes the header of a kernel of this version (Linux Documentation/arch/x86/boot.rst).
func (tr *transcript) bzimage(args []string) {
	b := make([]byte, 0x300)
	copy(b[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(b[0x20e:], 0x10)
	copy(b[0x210:], args[1]+" (nobody) #1\x00")
	tr.Check(os.WriteFile(tr.MkAbs(args[0]), b, 0o644))
}

// module FILE [NAME=VALUE...]: writes a kernel module with this .modinfo.
func (tr *transcript) module(args []string) {
	tr.elf(args[0], elf.ET_REL, section{".modinfo", elf.SHT_PROGBITS, []byte(strings.Join(args[1:], "\x00") + "\x00")})
}

// program FILE LIBRARY: writes a dynamic program that needs LIBRARY.
func (tr *transcript) program(args []string) {
	var dynamic bytes.Buffer
	for _, d := range []elf.Dyn64{{Tag: int64(elf.DT_NEEDED), Val: 1}, {Tag: int64(elf.DT_NULL)}} {
		tr.Check(binary.Write(&dynamic, binary.LittleEndian, d))
	}
	tr.elf(args[0], elf.ET_DYN, section{".dynstr", elf.SHT_STRTAB, []byte("\x00" + args[1] + "\x00")},
		section{".dynamic", elf.SHT_DYNAMIC, dynamic.Bytes()})
}

type section struct {
	name    string
	kind    elf.SectionType
	content []byte
}

// elf writes an ELF file. A dynamic section must directly follow the section of its strings.
func (tr *transcript) elf(name string, kind elf.Type, sections ...section) {
	const headerLen, progLen, sectionLen = 64, 56, 64
	names := "\x00"
	for _, s := range sections {
		names += s.name + "\x00"
	}
	sections = append(sections, section{".shstrtab", elf.SHT_STRTAB, []byte(names + ".shstrtab\x00")})
	h := elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(kind), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT), Ehsize: headerLen,
		Phoff: headerLen, Phentsize: progLen, Phnum: 1,
		Shentsize: sectionLen, Shnum: uint16(len(sections) + 1), Shstrndx: uint16(len(sections)),
	}
	prog := elf.Prog64{Type: uint32(elf.PT_NULL)}
	table, nameAt := []elf.Section64{{}}, uint32(1)
	var content bytes.Buffer
	for i, s := range sections {
		pos := uint64(headerLen + progLen + content.Len())
		t := elf.Section64{Name: nameAt, Type: uint32(s.kind), Off: pos, Size: uint64(len(s.content))}
		if s.kind == elf.SHT_DYNAMIC {
			t.Link = uint32(i)
			prog = elf.Prog64{Type: uint32(elf.PT_DYNAMIC), Off: pos, Filesz: t.Size, Memsz: t.Size}
		}
		table = append(table, t)
		nameAt += uint32(len(s.name) + 1)
		content.Write(s.content)
	}
	h.Shoff = uint64(headerLen + progLen + content.Len())
	var b bytes.Buffer
	for _, v := range []any{h, prog, content.Bytes(), table} {
		tr.Check(binary.Write(&b, binary.LittleEndian, v))
	}
	file := tr.MkAbs(name)
	tr.Check(os.MkdirAll(filepath.Dir(file), 0o755))
	tr.Check(os.WriteFile(file, b.Bytes(), 0o755))
}
