package assets

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func TestSurveySaysWhatIsToBeFetched(t *testing.T) {
	testkit.LeavesNothing(t)
	fakeQEMU(t, "7.2.22")
	dir := filepath.Join(t.TempDir(), "cache")
	s := Look(t.Context(), Options{CacheDir: dir})
	if s.Cache != dir || s.Ready || s.QEMU.Args != nil || s.Kernel.Image != "" {
		t.Errorf("%+v", s)
	}
	want := lock.Roles[roleQEMU].Download + lock.Roles[roleKernel].Download
	if s.DownloadBytes <= want || s.DiskBytes == 0 {
		t.Errorf("to download: %d, at least %d", s.DownloadBytes, want)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("Look made a cache directory")
	}
}

// If a user names an unusable file, Look sets neither Ready nor CanFetch.
func TestSurveyIsNotReadyWithWhatCannotBeUsed(t *testing.T) {
	fakeQEMU(t, "11.1.2")
	for name, o := range map[string]Options{"QEMU": {QEMU: "/nonexistent"}, "kernel": {Kernel: "/nonexistent"}} {
		o.CacheDir = t.TempDir()
		if s := Look(t.Context(), o); s.Ready || s.CanFetch {
			t.Errorf("%s: %+v", name, s)
		}
	}
	elf := filepath.Join(t.TempDir(), "vmlinux")
	testkit.OK(t, os.WriteFile(elf, []byte("\x7fELF"+strings.Repeat("x", 1024)), 0o600))
	for _, f := range Look(t.Context(), Options{CacheDir: t.TempDir(), Kernel: elf}).Found {
		if f.Name != "qemu" && f.State == Good || f.Name == "kernel" && !strings.Contains(f.Value, "an ELF file") {
			t.Errorf("of a vmlinux: %+v", f)
		}
	}
}

func TestSurveyIsNotReadyWithAnOldQEMUInTheCache(t *testing.T) {
	o := withOldQEMU(t)
	for _, o.VFIOUser = range []bool{false, true} {
		s := Look(t.Context(), o)
		if s.Ready == o.VFIOUser || (s.QEMU.Args == nil) != o.VFIOUser || (s.DownloadBytes > 0) != o.VFIOUser {
			t.Errorf("VFIOUser %v: %+v", o.VFIOUser, s)
		}
	}
}

func TestNothingIsFetchedIntoACacheThatCannotBeWritten(t *testing.T) {
	for dir, want := range map[string]bool{t.TempDir(): true, "/proc/sys/vnic": false} { // root cannot write there either
		s := Survey{Cache: dir}
		testkit.Equal(t, dir, s.space(nil), want)
		testkit.Equal(t, dir, s.Means[0].OK, want)
	}
}

func TestSurveySaysWhichNICsAGuestCanHave(t *testing.T) {
	for name, c := range map[string]struct {
		qemu        string
		virtio, gve State
	}{
		"both":     {"10.1.0", Good, Good},
		"old QEMU": {"10.0.13", Good, Worse},
		"no QEMU":  {"7.2.22", Worse, Worse},
	} {
		t.Run(name, func(t *testing.T) {
			fakeQEMU(t, c.qemu)
			r := Look(t.Context(), Options{CacheDir: t.TempDir(), Kernel: bzImage(t, "6.12.1")})
			got := map[string]Fact{}
			for _, f := range r.Found {
				got[f.Name] = f
			}
			if got["nic virtio"].State != c.virtio || got["nic gve"].State != c.gve {
				t.Errorf("%+v, %+v", got["nic virtio"], got["nic gve"])
			}
		})
	}
}
