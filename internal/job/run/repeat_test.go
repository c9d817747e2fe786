package run

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/testkit"
)

// A run with guests in this process takes less memory than it sends bytes.
func TestMemoryIsBounded(t *testing.T) {
	testkit.Slow(t)
	o := options(256 << 20)
	if testkit.Long() {
		o.Size, o.GPUMemory = 4<<30, 512<<20
	}
	// resets the process's peak of memory, VmHWM (proc(5))
	testkit.OK(t, os.WriteFile("/proc/self/clear_refs", []byte("5"), 0))
	before := status(t, "VmRSS")
	rep := do(t, o)
	for _, wrong := range unproved(rep, &o) {
		t.Error(wrong)
	}
	grown := status(t, "VmHWM") - before
	t.Logf("%d MiB by way of 2 GPUs of %d MiB: %d MiB more at the most", o.Size>>20, o.GPUMemory>>20, grown>>20)
	if grown < int64(o.GPUMemory)/2 || grown > int64(o.Size) {
		t.Errorf("%d bytes of memory more than before", grown)
	}
}

func status(t *testing.T, field string) int64 {
	t.Helper()
	b := testkit.Must(os.ReadFile("/proc/self/status"))(t)
	_, text, found := strings.Cut(string(b), "\n"+field+":")
	kib, err := strconv.ParseInt(strings.TrimSpace(strings.Split(text, "kB")[0]), 10, 64)
	if !found || err != nil {
		t.Fatalf("%s: %v", field, err)
	}
	return kib << 10
}

func TestRepeatedRunsLeaveNothing(t *testing.T) {
	inproc, size := 2, uint64(4<<20)
	if testkit.Long() {
		inproc, size = 20, 64<<20
	}
	repeat := func(t *testing.T, n int, o Options) {
		before := left(t, o.Fetch.CacheDir)
		for i := range n {
			o.Seed = uint64(i + 1)
			rep := do(t, o)
			for _, wrong := range unproved(rep, &o) {
				t.Errorf("run %d: %s", i+1, wrong)
			}
			if after := left(t, o.Fetch.CacheDir); !slices.Equal(before, after) {
				t.Fatalf("run %d: before %q, after %q", i+1, before, after)
			}
		}
	}
	t.Run("in process, with loss and reordering", func(t *testing.T) {
		t.Setenv("TMPDIR", t.TempDir())
		o := options(size)
		o.Loss, o.Reorder = 0.01, 0.01
		repeat(t, inproc, o)
	})
	t.Run("QEMU", func(t *testing.T) {
		testkit.Boots(t)
		o := pairOptions(NICVirtio, 16<<20)
		// A probe of KVM would put files into the cache.
		o.Fetch.CacheDir, o.Accel = ownCache(t), qemu.AccelTCG
		r := testkit.Must(newRunner(t.Context(), &o, nil))(t) // puts the guests' image into the cache
		testkit.OK(t, r.close())
		t.Setenv("TMPDIR", t.TempDir())
		repeat(t, 8, o)
	})
}

func ownCache(t *testing.T) string {
	t.Helper()
	im, err := machine.Fetch(context.Background(), pairOptions(NICVirtio, 1).Fetch, []string{NICVirtio}, t.Logf)
	testkit.OK(t, err)
	defer im.Close()
	dir := t.TempDir()
	for _, name := range []string{"qemu", "kernel"} {
		testkit.OK(t, os.Symlink(filepath.Join(im.Cache, name), filepath.Join(dir, name)))
	}
	const resolved = "resolved.json"
	b := testkit.Must(os.ReadFile(filepath.Join(im.Cache, resolved)))(t)
	testkit.OK(t, os.WriteFile(filepath.Join(dir, resolved), b, 0o600))
	return dir
}

func left(t *testing.T, cache string) (list []string) {
	t.Helper()
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		who := strings.LastIndex(string(b), ")") + 1 // length of "12 (name)"
		fields := strings.Fields(string(b[who:]))    // state, ppid and more
		if fields[1] == strconv.Itoa(os.Getpid()) {
			list = append(list, fmt.Sprintf("process %s", b[:who]))
		}
	}
	for _, dir := range []string{os.TempDir(), cache} {
		if dir == "" {
			continue
		}
		testkit.OK(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			list = append(list, path)
			return err
		}))
	}
	shm, _ := filepath.Glob("/dev/shm/*vnic*")
	return append(list, shm...)
}
