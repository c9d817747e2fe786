package memavail

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"vnic.dev/vnic/internal/testkit"
)

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
			"proc/self/cgroup": "no group\n5:cpu:/x\n4:memory,hugetlb:/c\n",
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
				testkit.OK(t, errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)))
			}
			if left, where := Available(root); left != tc.left || !strings.Contains(where, tc.where) {
				t.Fatalf("%d by %s", left, where)
			}
			err := Enough(tc.left+1, root)
			if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), tc.where) {
				t.Fatal(err)
			}
			testkit.OK(t, Enough(tc.left, root))
		})
	}
	if err := Enough(1<<60, t.TempDir()); err != nil {
		t.Fatalf("where nothing can be read, nothing is refused: %v", err)
	}
}
