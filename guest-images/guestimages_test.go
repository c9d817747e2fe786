package guestimages

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cavaliergopher/cpio"
	"github.com/ulikunitz/xz"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/testkit"
)

// ko returns an ELF file with info in its section .modinfo.
func ko(t *testing.T, info string) []byte {
	t.Helper()
	const headerLen, sectionLen = 64, 64
	names := "\x00.modinfo\x00.shstrtab\x00"
	h := elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Ehsize: headerLen, Shentsize: sectionLen, Shnum: 3, Shstrndx: 2,
		Shoff: uint64(headerLen + len(info) + len(names)),
	}
	var b bytes.Buffer
	for _, v := range []any{
		h, []byte(info), []byte(names), elf.Section64{},
		elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: headerLen, Size: uint64(len(info))},
		elf.Section64{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: uint64(headerLen + len(info)), Size: uint64(len(names))},
	} {
		testkit.OK(t, binary.Write(&b, binary.LittleEndian, v))
	}
	return b.Bytes()
}

func put(t *testing.T, path string, b []byte) {
	t.Helper()
	testkit.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testkit.OK(t, os.WriteFile(path, b, 0o755))
}

func xzOf(t *testing.T, b []byte) []byte {
	var out bytes.Buffer
	w, err := xz.NewWriter(&out)
	if err == nil {
		_, err = w.Write(b)
	}
	if err == nil {
		err = w.Close()
	}
	testkit.OK(t, err)
	return out.Bytes()
}

func gzOf(t *testing.T, b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	testkit.OK(t, errors.Join(err, w.Close()))
	return out.Bytes()
}

func kernel(t *testing.T) string {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "kernel/a/top-module.ko.xz"), xzOf(t, ko(t, "license=GPL\x00depends=mid,built-in\x00")))
	put(t, filepath.Join(dir, "kernel/b/mid.ko.gz"), gzOf(t, ko(t, "depends=low\x00name=mid\x00")))
	put(t, filepath.Join(dir, "kernel/b/low.ko"), ko(t, "depends=\x00"))
	put(t, filepath.Join(dir, "kernel/b/lost.ko"), ko(t, "depends=nowhere\x00"))
	put(t, filepath.Join(dir, "kernel/b/broken.ko"), []byte("no ELF"))
	put(t, filepath.Join(dir, "kernel/z/packed.ko.zst"), []byte("as it is"))
	put(t, filepath.Join(dir, "modules.dep"),
		[]byte("kernel/z/packed.ko.zst: kernel/b/mid.ko.gz kernel/b/low.ko\nkernel/b/low.ko:\n"))
	put(t, filepath.Join(dir, "modules.builtin"), []byte("kernel/c/built-in.ko\n"))
	return dir
}

func TestModulesComeWithWhatTheyNeed(t *testing.T) {
	dir := kernel(t)
	mods, err := resolve(dir, "", []string{"top_module", "low"})
	testkit.OK(t, err)
	var names []string
	for _, m := range mods {
		names = append(names, m.name)
		if (m.content == nil) != (m.name == "built_in") {
			t.Errorf("%s: content of %d bytes", m.name, len(m.content))
		}
	}
	testkit.Equal(t, "modules", strings.Join(names, " "), "low mid built_in top_module")
	mods, err = resolve(dir, "", []string{"packed"})
	if err != nil || len(mods) != 3 || mods[2].ext != zstdModule || strings.Join(mods[2].needs, " ") != "mid low" ||
		string(mods[2].content) != "as it is" {
		t.Errorf("a module that the kernel unpacks: %+v, %v", mods, err)
	}
	for name, want := range map[string]string{"nothing": "nothing", "lost": "nowhere, needed by lost"} {
		_, err := resolve(dir, "", []string{name})
		testkit.ErrorIs(t, err, ErrNoModule, name)
		testkit.ErrorSays(t, err, want)
	}
	_, err = resolve(dir, "", []string{"broken"})
	testkit.ErrorIs(t, err, ErrBadModule, "a broken module")
	testkit.ErrorSays(t, err, "/broken.ko")
	for name, want := range map[string]bool{"top-module": true, "built-in": false, "nothing": false} {
		testkit.Equal(t, "has "+name, HasModule(dir, name), want)
	}
	odd := t.TempDir()
	put(t, filepath.Join(odd, "low.ko.bz2"), []byte("BZh9"))
	_, err = resolve(odd, "", []string{"low"})
	testkit.ErrorIs(t, err, ErrBadModule, "packed in another way")
	testkit.ErrorSays(t, err, "packed by xz, gzip or zstd")
	testkit.ErrorSays(t, testkit.Err(resolve("", "", []string{"low"})), "no module directory given")
	if mods, err := resolve("", "", nil); err != nil || mods != nil {
		t.Errorf("no modules asked for: %v, %v", mods, err)
	}
}

func TestModulesOfAnotherKernelAreRefused(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "a.ko"), ko(t, "depends=\x00vermagic=6.1.0 SMP preempt\x00"))
	put(t, filepath.Join(dir, "b.ko"), ko(t, "depends=a\x00"))
	o := options(t)
	o.ModulesDir, o.Modules, o.Kernel = dir, []string{"b"}, "6.12.0"
	_, err := Build(t.Context(), o)
	testkit.ErrorIs(t, err, ErrOtherKernel)
	testkit.ErrorSays(t, err, "its is 6.1.0, this is 6.12.0")
	o.Kernel = "6.1.0"
	testkit.Must(Build(t.Context(), o))(t)
}

func options(t *testing.T) Options {
	program := filepath.Join(t.TempDir(), "program")
	put(t, program, []byte("\x7fELF and so on"))
	extra := filepath.Join(t.TempDir(), "extra")
	put(t, extra, []byte("text"))
	return Options{
		CacheDir: t.TempDir(), ModulesDir: kernel(t), Modules: []string{"top-module"}, Program: program,
		Applets: []string{"zeta", "devmem"}, Files: map[string]string{"/usr/bin/extra": extra},
	}
}

func TestImageHoldsWhatWasAskedFor(t *testing.T) {
	img := testkit.Must(Build(t.Context(), options(t)))(t)
	initrd := testkit.Must(img.Initrd(agent.Config{Hostname: "h", Modules: []string{"top_module"}}))(t)
	defer initrd.Close()
	all := testkit.Must(io.ReadAll(initrd))(t)
	if st, err := os.Stat(img.Path); err != nil || st.Size() != img.Size || img.Size%4 != 0 {
		t.Errorf("size %d, %v", img.Size, err)
	}
	got := map[string]string{}
	for _, part := range [][]byte{all[:img.Size], all[img.Size:]} {
		for r := cpio.NewReader(bytes.NewReader(part)); ; {
			f, err := r.Next()
			if err == io.EOF {
				break
			}
			testkit.OK(t, err)
			got[f.Name] = string(testkit.Must(io.ReadAll(r))(t)) + f.Linkname
			if f.ModTime.Unix() != 0 || f.Uid != 0 || f.Guid != 0 {
				t.Errorf("%s: %+v", f.Name, f)
			}
		}
	}
	for name, want := range map[string]string{
		"init": "\x7fELF and so on", "bin/devmem": "/init", "bin/zeta": "/init", "usr/bin/extra": "text", "dev/console": "",
		"vnic/modules/top_module.needs": "mid\nbuilt_in", "vnic/modules/built_in.needs": "",
		"vnic/modules/low.ko": string(ko(t, "depends=\x00")),
	} {
		if text, ok := got[name]; !ok || text != want {
			t.Errorf("%s: %q, %v", name, text, ok)
		}
	}
	if _, ok := got["vnic/modules/built_in.ko"]; ok {
		t.Error("a file for what the kernel has built in")
	}
	if c := got["vnic/config.json"]; !strings.Contains(c, `"hostname": "h"`) {
		t.Errorf("config: %s", c)
	}
}

func TestImageIsReproducibleAndKept(t *testing.T) {
	o := options(t)
	a := testkit.Must(Build(t.Context(), o))(t)
	first := testkit.Must(os.ReadFile(a.Path))(t)
	old := time.Now().Add(-time.Hour)
	testkit.OK(t, os.Chtimes(a.Path, old, old))
	again, err := Build(t.Context(), o)
	if err != nil || *again != *a {
		t.Errorf("%+v, then %+v, %v", a, again, err)
	}
	if st, err := os.Stat(a.Path); err != nil || st.ModTime().Equal(old) {
		t.Errorf("an image in use is not marked so: %v", err)
	}
	o.CacheDir = t.TempDir()
	elsewhere := testkit.Must(Build(t.Context(), o))(t)
	if second, err := os.ReadFile(elsewhere.Path); err != nil || !bytes.Equal(first, second) {
		t.Errorf("built again, it differs: %v", err)
	}
	o.Applets = o.Applets[:1]
	if other, err := Build(t.Context(), o); err != nil || other.Key == a.Key {
		t.Errorf("other content has the same key: %v", err)
	}
}

func TestOldImagesGo(t *testing.T) {
	o := options(t)
	dir := filepath.Join(o.CacheDir, "images")
	for name, age := range map[string]time.Duration{"old.cpio": 2 * keep, ".new-1": 2 * keep, "new.cpio": time.Hour} {
		put(t, filepath.Join(dir, name), nil)
		when := time.Now().Add(-age)
		testkit.OK(t, os.Chtimes(filepath.Join(dir, name), when, when))
	}
	img := testkit.Must(Build(t.Context(), o))(t)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
	testkit.Must(os.Stat(img.Path))(t)
}

func TestBadProgramIsRefused(t *testing.T) {
	o := options(t)
	for name, content := range map[string]string{"text": "#!/bin/sh\n", "empty": "", "broken gzip": "\x1f\x8bxxxx"} {
		put(t, o.Program, []byte(content))
		if _, err := Build(t.Context(), o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	o.Program = filepath.Join(t.TempDir(), "nothing")
	testkit.ErrorIs(t, testkit.Err(Build(t.Context(), o)), os.ErrNotExist)
	o = options(t)
	o.Applets = []string{"a/b"}
	testkit.ErrorSays(t, testkit.Err(Build(t.Context(), o)), "is not a valid applet name")
}

func TestGzippedProgramIsTheSameInTheGuest(t *testing.T) {
	p := testkit.Must(readProgram(options(t).Program))(t)
	path := filepath.Join(t.TempDir(), "p.gz")
	put(t, path, gzOf(t, p.content))
	z := testkit.Must(readProgram(path))(t)
	if b, err := z.unpack(); err != nil || !bytes.Equal(b, p.content) {
		t.Errorf("%q, %v", b, err)
	}
}

func FuzzModuleNeeds(f *testing.F) {
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _, _ = moduleInfo(b) // must not panic
	})
}
