package qemu

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestDoctorOnABareMachine(t *testing.T) {
	nothingLeft(t)
	fakeQEMU(t, "7.2.22")
	cacheDir := filepath.Join(t.TempDir(), "cache")
	r := Doctor(t.Context(), Options{CacheDir: cacheDir})
	facts := map[string]Fact{}
	for _, f := range r.Facts {
		facts[f.Name] = f
		if f.OK != (f.State == Good) || (f.OK && f.Fix != "") || f.Value == "" {
			t.Errorf("%+v", f)
		}
	}
	for _, name := range []string{"qemu", "kernel", "nic virtio", "nic gve", "kvm", "packages", "mirror", "cache", "space", "memory", "memfd", "shm"} {
		if _, ok := facts[name]; !ok {
			t.Errorf("no fact %q", name)
		}
	}
	if facts["qemu"].State != Lacking || facts["kernel"].State != Lacking || r.Ready {
		t.Errorf("%+v", r)
	}
	want := lock.fetch[roleQEMU].download + lock.fetch[roleKernel].download
	if r.DownloadBytes <= want || r.DiskBytes == 0 {
		t.Errorf("to download: %d, at least %d", r.DownloadBytes, want)
	}
	if _, err := os.Stat(cacheDir); err == nil {
		t.Error("Doctor made a cache directory")
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

func TestDoctorSaysWhichNICsAGuestCanHave(t *testing.T) {
	modules := t.TempDir()
	for _, m := range []string{"uio/uio_pci_generic.ko.xz", "google/gve/gve.ko", "google/gve/gvenot.ko"} {
		path := filepath.Join(modules, m)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		qemu, modules string
		virtio, gve   State
	}{
		"both":       {"10.1.0", modules, Good, Good},
		"old QEMU":   {"10.0.13", modules, Good, Worse},
		"no QEMU":    {"7.2.22", modules, Worse, Worse},
		"no gve":     {"11.1.2", filepath.Join(modules, "uio"), Good, Lacking},
		"no modules": {"11.1.2", t.TempDir(), Lacking, Lacking},
	} {
		t.Run(name, func(t *testing.T) {
			fakeQEMU(t, c.qemu)
			r := Doctor(t.Context(), Options{CacheDir: t.TempDir(), Kernel: bzImage(t, "6.12.1"), Modules: c.modules})
			got := map[string]Fact{}
			for _, f := range r.Facts {
				got[f.Name] = f
			}
			if got["nic virtio"].State != c.virtio || got["nic gve"].State != c.gve {
				t.Errorf("%+v, %+v", got["nic virtio"], got["nic gve"])
			}
		})
	}
}

func TestDoctorWithEverything(t *testing.T) {
	fetched(t)
	r := Doctor(t.Context(), Options{})
	if !r.Ready || r.DownloadBytes != 0 {
		t.Errorf("%+v", r)
	}
	for _, f := range r.Facts {
		t.Logf("%+v", f)
	}
}
