package gpumem

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"vnic.dev/vnic/dma"
)

func TestGPUMemoryIsSealedAndWhole(t *testing.T) {
	files := dma.NewFiles()
	noLeak(t, files)
	g := newGPU(t, files, 3, 1<<20)
	if g.ID() != 3 || g.Size() != 1<<20 || g.File().GPU() != 3 || g.Region().Size() != 1<<20 {
		t.Fatalf("%d, %d bytes, file of GPU %d", g.ID(), g.Size(), g.File().GPU())
	}
	for _, size := range []int64{0, 1<<20 - 1, 1<<20 + 1} {
		if err := unix.Ftruncate(g.FD(), size); !errors.Is(err, syscall.EPERM) {
			t.Errorf("truncate to %d: %v", size, err)
		}
	}
	if err := unix.Ftruncate(g.FD(), 1<<20); err != nil {
		t.Errorf("truncate to its size, as QEMU does: %v", err)
	}
	if _, err := unix.FcntlInt(uintptr(g.FD()), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); !errors.Is(err, syscall.EPERM) {
		t.Errorf("another seal: %v", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(g.FD(), &st); err != nil || st.Blocks*512 < 1<<20 {
		t.Errorf("%d bytes are allocated, %v", st.Blocks*512, err)
	}
	link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", g.FD()))
	if err != nil || !strings.Contains(link, "vnic-gpu3") {
		t.Errorf("it is called %q, %v", link, err)
	}
}

func TestBadGPUs(t *testing.T) {
	files := dma.NewFiles()
	noLeak(t, files)
	for _, tc := range []struct {
		id   int
		size uint64
		want error
		text string
	}{
		{-1, 4096, syscall.EINVAL, "GPU -1"},
		{dma.MaxGPUs, 4096, syscall.EINVAL, "0 to 15"},
		{0, 0, syscall.EINVAL, "multiple of 4096"},
		{0, 4097, syscall.EINVAL, "multiple of 4096"},
		{0, 1 << 63, syscall.EINVAL, "multiple of 4096"},
		{0, 1 << 50, syscall.ENOSPC, "no memory for 1.0 PiB"},
	} {
		_, err := NewGPU(files, tc.id, tc.size, Options{})
		if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("GPU %d of %d: %v", tc.id, tc.size, err)
		}
	}
}

func TestAllocateSaysHowMuch(t *testing.T) {
	err := allocate(-1, 3<<30)
	if !errors.Is(err, syscall.EBADF) || !strings.Contains(err.Error(), "no memory for 3.0 GiB after 0 bytes of it") {
		t.Fatal(err)
	}
}

// TestNoMemory has each limit say that it is the one.
func TestNoMemory(t *testing.T) {
	for _, tc := range []struct {
		name  string
		files map[string]string
		left  uint64
		where string
	}{
		{"host", map[string]string{"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    2048 kB\n"}, 2 << 20, "MemAvailable"},
		{"cgroup 2", map[string]string{
			"proc/meminfo":                   "MemAvailable:    4096 kB\n",
			"proc/self/cgroup":               "0::/a/b\n",
			"sys/fs/cgroup/a/memory.max":     "3145728\n",
			"sys/fs/cgroup/a/memory.current": "2097152\n",
			"sys/fs/cgroup/a/memory.stat":    "anon 5\ninactive_file 4096\n",
			"sys/fs/cgroup/a/b/memory.max":   "max\n",
		}, 1<<20 + 4096, "/sys/fs/cgroup/a/memory.max"},
		{"cgroup 1", map[string]string{
			"proc/meminfo":     "MemAvailable:    4096 kB\n",
			"proc/self/cgroup": "5:cpu:/x\n4:memory:/c\n",
			"sys/fs/cgroup/memory/c/memory.limit_in_bytes":   "1048576\n",
			"sys/fs/cgroup/memory/c/memory.usage_in_bytes":   "2097152\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":     "9223372036854771712\n",
			"sys/fs/cgroup/memory/c/memory.stat":             "total_inactive_file 0\n",
			"sys/fs/cgroup/memory/c/memory.something_else":   "\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes":     "0\n",
			"sys/fs/cgroup/memory/memory.stat":               "",
			"sys/fs/cgroup/memory/memory.max_usage_in_bytes": "1",
		}, 0, "/sys/fs/cgroup/memory/c/memory.limit_in_bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range tc.files {
				p := filepath.Join(root, name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			if left, where := available(root); left != tc.left || !strings.Contains(where, tc.where) {
				t.Fatalf("%d by %s", left, where)
			}
			err := enough(tc.left+1, root)
			if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), tc.where) {
				t.Fatal(err)
			}
			if err := enough(tc.left, root); err != nil {
				t.Fatal(err)
			}
		})
	}
	if err := enough(1<<60, t.TempDir()); err != nil {
		t.Fatalf("where nothing can be read, nothing is refused: %v", err)
	}
}
