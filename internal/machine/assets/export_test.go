package assets

import (
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"vnic.dev/vnic/internal/machine/assets/offline"
	"vnic.dev/vnic/internal/testkit"
)

const kernelRelease = "6.1.5-cloud-amd64"

var commandsDir = "programs/u-root-" + strings.Repeat("0f", 32)

// elfFile is an ELF header, of a file without sections and segments.
var elfFile = "\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9) + "\x02\x00\x3e\x00\x01" + strings.Repeat("\x00", 31) +
	"\x40\x00" + strings.Repeat("\x00", 10)

// elfNeeding returns an ELF file that needs one library.
func elfNeeding(library string) string {
	const header, section, entry = 64, 64, 16 // sizes of Elf64_Ehdr, Elf64_Shdr and Elf64_Dyn
	names := "\x00" + library + "\x00"
	dynamic := uint64(header + len(names))
	b, err := binary.Append([]byte(nil), binary.LittleEndian, elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Shoff: dynamic + entry, Ehsize: header, Shentsize: section, Shnum: 3, Shstrndx: 1,
	})
	b = append(b, names...)
	for _, part := range []any{elf.Dyn64{Tag: int64(elf.DT_NEEDED), Val: 1}, elf.Section64{},
		elf.Section64{Type: uint32(elf.SHT_STRTAB), Off: header, Size: uint64(len(names))},
		elf.Section64{Type: uint32(elf.SHT_DYNAMIC), Off: dynamic, Size: entry, Link: 1, Entsize: entry}} {
		var perr error
		b, perr = binary.Append(b, binary.LittleEndian, part)
		err = errors.Join(err, perr)
	}
	if err != nil {
		panic(err)
	}
	return string(b)
}

// fakeTrees returns the contents, by role and path, of files of a QEMU and a kernel. The loader is a script that prints
// QEMU's version.
func fakeTrees() map[string]string {
	modules := "usr/lib/modules/" + kernelRelease
	return map[string]string{
		"qemu/usr/bin/qemu-system-x86_64":           elfNeeding("libc.so.6"),
		"qemu/" + Libraries + "/libc.so.6":          elfFile,
		"qemu/" + Loader:                            "#!/bin/sh\necho QEMU emulator version 11.1.2\n",
		"qemu/" + Libraries + "/libgcc_s.so.1.real": elfFile,
		"qemu/usr/share/seabios/bios-256k.bin":      "bios",
		"qemu/usr/share/qemu/pvh.bin":               "pvh",
		"qemu/usr/share/qemu/skiboot.lid":           "of no use here",
		"kernel/" + modules + "/vmlinuz":            "kernel",
		"kernel/" + modules + "/kernel/gve.ko":      "gve",
		"kernel/" + modules + "/kernel/nvmet.ko":    "nvmet",
	}
}

var fakePackages = map[string][]Package{
	roleQEMU:   {{Name: "qemu-system-x86", Version: "1:11.0+test", SHA256: strings.Repeat("1", 64)}},
	roleKernel: {{Name: "linux-image-6.1.5", Version: "6.1.5-1", SHA256: strings.Repeat("2", 64)}},
}

func fakeCache(t *testing.T) Options {
	t.Helper()
	for _, e := range []string{EnvQEMU, EnvKernel, EnvModules} {
		t.Setenv(e, "")
	}
	c, have := cache{t.TempDir()}, resolved{}
	for role, list := range fakePackages {
		have[role] = &tree{Dir: path.Join(role, treeKey(list[0].Version, list)), Version: list[0].Version, Suite: "test",
			Packages: list}
	}
	for name, text := range fakeTrees() {
		role, rest, _ := strings.Cut(name, "/")
		file := filepath.Join(c.dir, have[role].Dir, rest)
		write(t, file, text)
		testkit.OK(t, os.Chmod(file, 0o755))
	}
	testkit.OK(t, os.Symlink("libgcc_s.so.1.real",
		filepath.Join(c.dir, have[roleQEMU].Dir, Libraries, "libgcc_s.so.1")))
	testkit.OK(t, c.save(have))
	return Options{CacheDir: c.dir, Offline: true, IgnoreSystemQEMU: true}
}

// exported returns an archive of the cache of o, with these modules.
func exported(t *testing.T, o Options, modules ...string) []byte {
	t.Helper()
	r, err := FetchCached(t.Context(), o)
	testkit.OK(t, err)
	defer func() { testkit.NoError(t, r.Close()) }()
	x := Export{Vnic: "v1", Program: strings.NewReader("program"), For: []string{"run"}}
	if exists(filepath.Join(o.CacheDir, commandsDir)) {
		x.Extras = []string{commandsDir}
	}
	for _, m := range modules {
		x.Modules = append(x.Modules, filepath.Join(r.Kernel.Modules, "kernel", m+".ko"))
	}
	b, err := r.WriteArchive(t.Context(), x)
	testkit.OK(t, err)
	return b
}

func imported(t *testing.T, o Options, b []byte) *Imported {
	t.Helper()
	done, err := Import(t.Context(), o, bytes.NewReader(b))
	testkit.OK(t, err)
	empty(t, filepath.Join(o.CacheDir, "tmp"))
	return done
}

// Invariant: offline: files exported from one cache and imported into another are found there
// without a network.
func TestExportIsFoundElsewhere(t *testing.T) {
	testkit.LeavesNothing(t)
	from := fakeCache(t)
	for _, f := range []string{"u-root.gz", "u-root.txt"} {
		write(t, filepath.Join(from.CacheDir, commandsDir, f), f)
	}
	b := exported(t, from, "gve")
	o := Options{CacheDir: filepath.Join(t.TempDir(), "new"), Offline: true, IgnoreSystemQEMU: true}
	done := imported(t, o, b)
	if !slices.Equal(done.For, []string{"run"}) || len(done.Trees) != 2 || done.Vnic != "v1" {
		t.Errorf("%+v", done)
	}
	r, err := Fetch(t.Context(), o)
	testkit.OK(t, err)
	defer func() { testkit.NoError(t, r.Close()) }()
	if r.QEMU.Version != "11.0.0" || r.Kernel.Version != kernelRelease || r.Kernel.Partial != "run" {
		t.Errorf("%+v %+v", r.QEMU, r.Kernel)
	}
	b, err = os.ReadFile(filepath.Join(o.CacheDir, commandsDir, "u-root.txt"))
	if err != nil || string(b) != "u-root.txt" {
		t.Errorf("u-root's commands: %q, %v", b, err)
	}
	have, err := cache{o.CacheDir}.load()
	testkit.OK(t, err)
	got := map[string]string{}
	for role, t1 := range have {
		root := os.DirFS(filepath.Join(o.CacheDir, t1.Dir))
		testkit.OK(t, walkFiles(root, func(name string) {
			text, err := fs.ReadFile(root, name)
			testkit.NoError(t, err)
			got[role+"/"+name] = string(text)
		}))
	}
	want := fakeTrees()
	want["qemu/"+Libraries+"/libgcc_s.so.1"] = elfFile // a link in the exporting cache
	want["kernel/vmlinux"] = ""                        // made by Import; empty, as the fake kernel cannot be unpacked
	for _, not := range []string{"qemu/" + Libraries + "/libgcc_s.so.1.real", "qemu/usr/share/qemu/skiboot.lid",
		"kernel/usr/lib/modules/" + kernelRelease + "/kernel/nvmet.ko"} {
		delete(want, not)
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %q\nwant %q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}

// Invariant: offline: an imported tree is marked as partial: offline, a command that needs a whole
// one fails with advice.
func TestPartialTreeIsNotTakenForAWholeOne(t *testing.T) {
	whole := fakeCache(t)
	o := whole
	o.CacheDir = t.TempDir()
	imported(t, o, exported(t, whole, "gve"))
	o.Whole = true
	_, err := Fetch(t.Context(), o)
	testkit.ErrorIs(t, err, ErrPartial)
	if missing := (*Missing)(nil); !errors.As(err, &missing) || !strings.Contains(missing.Fix, "--for") {
		t.Errorf("%v", err)
	}
	// A tree with more files replaces one with fewer, but not the reverse.
	kernel := func(o Options) []string {
		have, err := cache{o.CacheDir}.load()
		testkit.OK(t, err)
		root, list := os.DirFS(filepath.Join(o.CacheDir, have[roleKernel].Dir)), []string{}
		testkit.OK(t, walkFiles(root, func(name string) {
			if strings.HasSuffix(name, ".ko") {
				list = append(list, path.Base(name))
			}
		}))
		return list
	}
	both := exported(t, whole, "gve", "nvmet")
	imported(t, o, both)
	imported(t, o, exported(t, whole, "gve"))
	if got := kernel(o); len(got) != 2 {
		t.Errorf("modules after more and less were imported: %v", got)
	}
	imported(t, whole, both)
	whole.Whole = true
	r, err := Fetch(t.Context(), whole)
	testkit.OK(t, err)
	testkit.NoError(t, r.Close())
}

func TestFetchCompletesAPartialTree(t *testing.T) {
	needsApt(t)
	fakeQEMU(t, "11.1.2")
	o := fakeCache(t)
	b := exported(t, o, "gve")
	o.CacheDir = t.TempDir()
	imported(t, o, b)
	conf := filepath.Join(t.TempDir(), "apt.conf")
	write(t, conf, "Dir::Etc::main \"/dev/null\";\nDir::Etc::parts \"/dev/null\";\n")
	t.Setenv("APT_CONFIG", conf)
	m := newMirror(t)
	for _, s := range lock.Suites[:2] {
		m.kernel(s, lock.version(roleKernel), time.Time{})
	}
	r, err := Fetch(t.Context(), Options{CacheDir: o.CacheDir, Mirror: "file:" + m.dir, Keyring: m.keyring, Whole: true})
	testkit.OK(t, err)
	defer func() { testkit.NoError(t, r.Close()) }()
	if r.Kernel.Partial != "" || r.Kernel.Version == kernelRelease {
		t.Errorf("%+v", r.Kernel)
	}
}

// Invariant: offline: an import that fails leaves the trees that the cache uses as they were.
func TestBadImportChangesNothing(t *testing.T) {
	testkit.LeavesNothing(t)
	o := fakeCache(t)
	good := exported(t, o, "gve")
	before := snapshot(t, o.CacheDir)
	works := fstest.MapFS{}
	for name, text := range fakeTrees() {
		if rest, ok := strings.CutPrefix(name, "qemu/"); ok {
			works["qemu/x/"+rest] = &fstest.MapFile{Data: []byte(text), Mode: 0o755}
		}
	}
	for name, b := range map[string][]byte{
		"None":         nil,
		"Cut":          good[:len(good)-2000],
		"NoTrees":      crafted(t, nil, fstest.MapFS{"qemu/x/y": {}}),
		"OtherRole":    crafted(t, resolved{"tools": fakeTree("tools/x")}, fstest.MapFS{"tools/x/y": {}}),
		"OtherDir":     crafted(t, resolved{roleQEMU: fakeTree("qemu/x")}, works),
		"DirOutside":   crafted(t, resolved{roleQEMU: fakeTree("../x")}, fstest.MapFS{"qemu/x/y": {}}),
		"TheCacheFile": crafted(t, nil, fstest.MapFS{"resolved.json": {}}),
		"Programs":     crafted(t, nil, fstest.MapFS{"programs/vnic-guest-" + strings.Repeat("0", 64): {}}),
		"NotWorking":   crafted(t, resolved{roleQEMU: fakeTree("")}, fstest.MapFS{"usr/bin/qemu-system-x86_64": {}}),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Import(t.Context(), o, bytes.NewReader(b)); err == nil {
				t.Error("taken")
			}
			if now := snapshot(t, o.CacheDir); !slices.Equal(now, before) {
				t.Errorf("the cache has now %q", now)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Import(ctx, o, bytes.NewReader(good))
	testkit.ErrorIs(t, err, context.Canceled)
	imported(t, o, good)
}

func fakeTree(dir string) *tree {
	return &tree{Dir: dir, Version: "1", Suite: "test", Packages: fakePackages[roleQEMU], For: []string{"run"}}
}

// crafted returns an archive. If the QEMU's tree has no Dir, it gets the one that Import demands, and files lie in it.
func crafted(t *testing.T, trees resolved, files fstest.MapFS) []byte {
	t.Helper()
	prefix := ""
	if qemu := trees[roleQEMU]; qemu != nil && qemu.Dir == "" {
		qemu.Dir = path.Join(roleQEMU, partialKey(qemu, slices.Sorted(maps.Keys(files))))
		prefix = qemu.Dir
	}
	b, err := json.Marshal(trees)
	testkit.OK(t, err)
	var paths []string
	for name := range files {
		paths = append(paths, path.Join(prefix, name))
	}
	open := func(p string) (fs.File, error) {
		return files.Open(cmp.Or(strings.TrimPrefix(strings.TrimPrefix(p, prefix), "/"), p))
	}
	b, err = offline.Write(t.Context(), offline.Manifest{Vnic: "v1", For: []string{"run"}, Trees: b},
		strings.NewReader("program"), paths, open)
	testkit.OK(t, err)
	return b
}

// snapshot lists a cache's files and their contents, but for the lock and unpacked kernels.
func snapshot(t *testing.T, dir string) (list []string) {
	t.Helper()
	testkit.OK(t, walkFiles(os.DirFS(dir), func(name string) {
		if name != "lock" && !strings.HasSuffix(name, "/"+vmlinuxName) {
			b, err := os.ReadFile(filepath.Join(dir, name))
			testkit.OK(t, err)
			list = append(list, name+" "+string(b))
		}
	}))
	return list
}

func TestStrippedProgramRuns(t *testing.T) {
	self, err := os.Executable()
	testkit.OK(t, err)
	whole, err := os.ReadFile(self)
	testkit.OK(t, err)
	b, err := stripped(bytes.NewReader(whole))
	testkit.OK(t, err)
	if len(b) > len(whole) {
		t.Errorf("%d bytes of %d", len(b), len(whole))
	}
	file := filepath.Join(t.TempDir(), "program")
	testkit.OK(t, os.WriteFile(file, b, 0o755))
	out, err := exec.Command(file, "-test.list", "^TestStripped").CombinedOutput()
	if err != nil || !strings.Contains(string(out), t.Name()) {
		t.Errorf("%v: %s", err, out)
	}
	for _, text := range []string{"", "no ELF", elfFile} { // stripped does not change these
		b, err := stripped(strings.NewReader(text))
		if err != nil || string(b) != text {
			t.Errorf("%.20q: %q, %v", text, b, err)
		}
	}
}
