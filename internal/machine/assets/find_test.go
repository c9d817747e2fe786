package assets

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func TestParseQEMUVersion(t *testing.T) {
	for out, want := range map[string]string{
		"QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-1~bpo12+1)\nCopyright": "10.0.2",
		"QEMU emulator version 11.1.2\n":                                         "11.1.2",
		"QEMU emulator version 9.2\n":                                            "9.2",
		"warning: x\nQEMU emulator version 10.1.0-rc1\n":                         "10.1.0",
		"bash: not found":                                                        "",
		"":                                                                       "",
	} {
		got, err := parseQEMUVersion(out)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", out, got, err)
		}
	}
}

// fakeQEMU puts a program that prints a QEMU version into PATH, and returns its path. It clears variables of a fetch.
func fakeQEMU(t *testing.T, version string) string {
	dir := t.TempDir()
	path := filepath.Join(dir, "qemu-system-x86_64")
	testkit.OK(t, os.WriteFile(path, []byte("#!/bin/sh\necho QEMU emulator version "+version+"\n"), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, e := range []string{EnvQEMU, EnvKernel, EnvModules, EnvCache} {
		t.Setenv(e, "")
	}
	return path
}

func TestSystemQEMUIsUsedWhenNewEnough(t *testing.T) {
	path := fakeQEMU(t, "10.0.13")
	k := bzImage(t, "6.12.1-test")
	r, err := Fetch(t.Context(), Options{CacheDir: t.TempDir(), Kernel: k, Modules: t.TempDir(), Offline: true})
	testkit.OK(t, err)
	if r.QEMU.Source != SourceSystem || r.QEMU.Args[0] != path || r.QEMU.Version != "10.0.13" {
		t.Errorf("%+v", r.QEMU)
	}
	if r.Kernel.Version != "6.12.1-test" || r.Kernel.Source != SourceGiven {
		t.Errorf("%+v", r.Kernel)
	}
	if len(r.Untested) != 2 {
		t.Errorf("untested: %q", r.Untested)
	}
}

func TestOldSystemQEMUIsPassedOver(t *testing.T) {
	fakeQEMU(t, "7.2.22")
	r, err := Fetch(t.Context(), Options{CacheDir: t.TempDir(), Kernel: bzImage(t, "6.12.1"), Offline: true})
	var m *Missing
	if !errors.Is(err, ErrOffline) || !errors.As(err, &m) {
		t.Errorf("%+v, %v", r, err)
	}
	b, note, err := hostQEMU(t.Context(), &Options{})
	if err != nil || b.Args != nil || !strings.Contains(note, "7.2.22") {
		t.Errorf("%+v, %q, %v", b, note, err)
	}
}

func TestQEMUWithoutVFIOUserIsPassedOver(t *testing.T) {
	path := fakeQEMU(t, "10.0.13")
	o := Options{CacheDir: t.TempDir(), Kernel: bzImage(t, "6.12.1"), Offline: true, VFIOUser: true}
	if r, err := Fetch(t.Context(), o); !errors.Is(err, ErrOffline) {
		t.Errorf("%+v, %v", r, err)
	}
	o.QEMU = path
	if _, err := Fetch(t.Context(), o); !errors.Is(err, ErrTooOld) ||
		!strings.Contains(err.Error(), "too old for vfio-user: install 10.1 or newer") {
		t.Errorf("got %v", err)
	}
	fakeQEMU(t, "10.1.0")
	o.QEMU = ""
	if r, err := Fetch(t.Context(), o); err != nil || r.QEMU.Version != "10.1.0" {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestOldGivenQEMUIsRefused(t *testing.T) {
	path := fakeQEMU(t, "7.2.22")
	_, err := Fetch(t.Context(), Options{CacheDir: t.TempDir(), QEMU: path})
	if !errors.Is(err, ErrTooOld) || !errors.Is(err, ErrNoQEMU) || !strings.Contains(err.Error(), "10.0 or newer") {
		t.Errorf("got %v", err)
	}
	if _, err = Fetch(t.Context(), Options{CacheDir: t.TempDir(), QEMU: "/bin/true"}); !errors.Is(err, ErrNoQEMU) {
		t.Errorf("no QEMU at all: %v", err)
	}
}

func bzImage(t *testing.T, version string) string {
	b := make([]byte, 512+16*32)
	binary.LittleEndian.PutUint32(b[0x1f4:], 32)
	copy(b[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(b[0x20e:], 0x100)
	copy(b[0x300:], version+" (someone@somewhere) #1 SMP\x00")
	path := filepath.Join(t.TempDir(), "vmlinuz")
	testkit.OK(t, os.WriteFile(path, b, 0o644))
	return path
}

// The error for a file that is no bzImage describes the file, if its beginning is known, and advises what to give.
func TestWhatIsGivenForAKernelIsNamed(t *testing.T) {
	build := t.TempDir()
	built := filepath.Join(build, builtImage)
	testkit.OK(t, errors.Join(os.MkdirAll(filepath.Dir(built), 0o755), os.Rename(bzImage(t, "7.2.0"), built)))
	alone := t.TempDir()
	const otherwise = "give the path of a readable bzImage, of a build arch/x86/boot/bzImage (--kernel)"
	long := strings.Repeat("\x00", 1024)
	for name, c := range map[string]struct{ dir, content, want, fix string }{
		"vmlinux":      {alone, "\x7fELF\x02\x01\x01" + long, "not a bzImage: an ELF file, as vmlinux is", otherwise},
		"vmlinux of":   {build, "\x7fELF\x02\x01\x01" + long, "an ELF file", "give " + built + " (--kernel)"},
		"Image.gz":     {alone, "\x1f\x8b\x08" + long, "packed by gzip", otherwise},
		"kernel.deb":   {alone, "!<arch>\ndebian-binary" + long, "an archive, as a Debian package is", otherwise},
		"vmlinuz.efi":  {alone, "MZ" + long, "an EFI program without Linux' boot header", otherwise},
		"initrd":       {alone, "070701" + long, "an initramfs", otherwise},
		"empty":        {alone, "", "not a bzImage: it is empty", otherwise},
		"short":        {alone, "\x7fELF", "an ELF file", otherwise},
		"of something": {alone, "x", "not a bzImage", otherwise},
	} {
		path := filepath.Join(c.dir, name)
		testkit.OK(t, os.WriteFile(path, []byte(c.content), 0o600))
		_, err := givenKernel(&Options{Kernel: path})
		testkit.ErrorSays(t, err, path, c.want, c.fix)
	}
	_, err := givenKernel(&Options{Kernel: build})
	testkit.ErrorSays(t, err, "not a bzImage: a directory", "give "+built)
	_, err = givenKernel(&Options{Kernel: alone + "/none"})
	testkit.ErrorSays(t, err, "no such file", otherwise)
}

func TestGivenQEMUIsFoundFromElsewhere(t *testing.T) {
	path := fakeQEMU(t, "11.0.0")
	t.Chdir(filepath.Dir(path))
	if b, err := checkQEMU(t.Context(), "./"+filepath.Base(path), SourceGiven, MinQEMU); err != nil || b.Args[0] != path {
		t.Errorf("%+v, %v", b, err)
	}
}

func TestGivenKernelFindsItsModules(t *testing.T) {
	k := bzImage(t, "6.12.1-test")
	dir := t.TempDir()
	flat, err := givenKernel(&Options{Kernel: k, Modules: dir})
	if err != nil || flat.Modules != dir {
		t.Errorf("a flat directory: %+v, %v", flat, err)
	}
	deep := filepath.Join(dir, "lib/modules/6.12.1-test")
	testkit.OK(t, os.MkdirAll(deep, 0o755))
	if got, err := givenKernel(&Options{Kernel: k, Modules: dir}); err != nil || got.Modules != deep {
		t.Errorf("a root: %+v, %v", got, err)
	}
	if got, err := givenKernel(&Options{Kernel: k}); err != nil || got.Modules != "" {
		t.Errorf("none: %+v, %v", got, err)
	}
	for name, c := range map[string]struct{ image, modules string }{
		"no file":      {filepath.Join(dir, "nothing"), ""},
		"no kernel":    {os.Args[0], ""},
		"empty":        {os.DevNull, ""},
		"no directory": {k, filepath.Join(dir, "nothing")},
	} {
		testkit.ErrorIs(t, testkit.Err(givenKernel(&Options{Kernel: c.image, Modules: c.modules})), ErrNoKernel, "%s", name)
	}
}

func FuzzKernelVersion(f *testing.F) {
	f.Add([]byte("HdrS"), uint16(0x100))
	f.Fuzz(func(t *testing.T, text []byte, off uint16) {
		b := make([]byte, 0x210, 0x210+len(text))
		copy(b[0x202:], "HdrS")
		binary.LittleEndian.PutUint16(b[0x20e:], off)
		path := filepath.Join(t.TempDir(), "k")
		testkit.OK(t, os.WriteFile(path, append(b, text...), 0o600))
		if v, err := kernelVersion(path); err == nil && (v == "" || strings.Contains(v, "/")) {
			t.Errorf("%q", v)
		}
	})
}
