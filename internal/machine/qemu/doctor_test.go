package qemu

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

func TestDoctorOnABareMachine(t *testing.T) {
	testkit.LeavesNothing(t)
	fakeQEMU(t, "7.2.22")
	cacheDir := filepath.Join(t.TempDir(), "cache")
	r := Doctor(t.Context(), assets.Options{CacheDir: cacheDir})
	facts := map[string]assets.Fact{}
	for _, f := range r.Facts {
		facts[f.Name] = f
		if f.OK != (f.State == assets.Good) || (f.OK && f.Fix != "") || f.Value == "" {
			t.Errorf("%+v", f)
		}
	}
	for _, name := range []string{"qemu", "kernel", "nic virtio", "nic gve", "kvm", "packages", "mirror", "cache", "space",
		"memory", "memfd", "shm"} {
		if _, ok := facts[name]; !ok {
			t.Errorf("no fact %q", name)
		}
	}
	if facts["qemu"].State != assets.Lacking || facts["kernel"].State != assets.Lacking || r.Ready {
		t.Errorf("%+v", r)
	}
	if r.DownloadBytes == 0 || r.DiskBytes == 0 {
		t.Errorf("to download: %d, on the disk %d", r.DownloadBytes, r.DiskBytes)
	}
	if _, err := os.Stat(cacheDir); err == nil {
		t.Error("Doctor made a cache directory")
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

func TestDoctorWithEverything(t *testing.T) {
	fetched(t)
	r := Doctor(t.Context(), assets.Options{})
	if !r.Ready || r.DownloadBytes != 0 {
		t.Errorf("%+v", r)
	}
	for _, f := range r.Facts {
		t.Logf("%+v", f)
	}
}
