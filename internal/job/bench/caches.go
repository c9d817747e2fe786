package bench

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// cacheBytes returns the total size of this machine's last-level caches (Linux,
// Documentation/ABI/testing/sysfs-devices-system-cpu: cache/index*), as far as their sizes can be read; 0: unknown.
// root is "/" or a test's directory.
func cacheBytes(root string) (sum uint64) {
	dirs, _ := filepath.Glob(filepath.Join(root, "sys/devices/system/cpu/cpu[0-9]*/cache/index[0-9]*"))
	sizes := make(map[[2]string]uint64) // key: level, and the processors that share the cache
	last := ""
	for _, dir := range dirs {
		read := func(name string) string {
			b, _ := os.ReadFile(filepath.Join(dir, name))
			return strings.TrimSpace(string(b))
		}
		kib, ok := strings.CutSuffix(read("size"), "K")
		n, err := strconv.ParseUint(kib, 10, 40)
		level := read("level")
		if !ok || err != nil || len(level) != 1 || read("type") == "Instruction" {
			continue
		}
		sizes[[2]string{level, read("shared_cpu_list")}] = n << 10
		last = max(last, level)
	}
	for cache, n := range sizes {
		if cache[0] == last {
			sum += n
		}
	}
	return sum
}
