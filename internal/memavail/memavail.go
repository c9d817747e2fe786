package memavail

import (
	"fmt"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Enough returns an error (ENOSPC) if size bytes of memory are not available. root is "/", or a directory
// with proc and sys, for tests.
func Enough(size uint64, root string) error {
	avail, where := Available(root)
	if size > avail {
		return fmt.Errorf("no memory for %s: %s left (%s): %w",
			Human(size), Human(avail), where, syscall.ENOSPC)
	}
	return nil
}

// Available returns how many bytes of memory are available, and what bounds them: MemAvailable, or the file of a
// control group's limit; math.MaxUint64 and "": unknown. root is as for Enough.
func Available(root string) (avail uint64, where string) {
	avail = math.MaxUint64
	meminfo := filepath.Join(root, "proc/meminfo")
	if kib, ok := field(meminfo, "MemAvailable:"); ok {
		avail, where = kib*1024, "MemAvailable in /proc/meminfo"
	}
	for _, g := range cgroups(root) {
		limit, ok := number(filepath.Join(root, g.dir, g.limit))
		if !ok {
			continue // no limit ("max"), or no such file
		}
		used, _ := number(filepath.Join(root, g.dir, g.used))
		cache, _ := field(filepath.Join(root, g.dir, "memory.stat"), g.cache)
		if left := limit - min(limit, used-min(used, cache)); left < avail {
			avail, where = left, path.Join("/", g.dir, g.limit)
		}
	}
	return avail, where
}

// cgroup is a control group: its directory below root, its files with limit and use, and the key in its memory.stat for
// inactive page cache.
type cgroup struct{ dir, limit, used, cache string }

// cgroups returns this process's groups of version 2 and of version 1's memory controller, and all above them.
func cgroups(root string) (all []cgroup) {
	b, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		g := cgroup{"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"}
		if f[0] != "0" { // version 1
			if !slices.Contains(strings.Split(f[1], ","), "memory") {
				continue
			}
			g = cgroup{"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
		}
		base := g.dir
		for p := path.Clean("/" + f[2]); ; p = path.Dir(p) {
			g.dir = path.Join(base, p)
			all = append(all, g)
			if p == "/" {
				break
			}
		}
	}
	return all
}

// number reads a file with one number; false: it has none.
func number(name string) (uint64, bool) {
	b, _ := os.ReadFile(name)
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

// field reads the number after a key that begins a line of a file; false: there is none.
func field(name, key string) (uint64, bool) {
	b, _ := os.ReadFile(name)
	for line := range strings.Lines(string(b)) {
		if w := strings.Fields(line); len(w) >= 2 && w[0] == key {
			n, err := strconv.ParseUint(w[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// Human formats a number of bytes, as "1.5 MiB".
func Human(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d bytes", n)
	}
	v, unit := float64(n), -1
	for ; v >= 1024; unit++ {
		v /= 1024
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGTPE"[unit])
}
