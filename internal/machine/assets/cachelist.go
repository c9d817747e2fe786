package assets

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrInUse is the error for an entry in use, and for a cache whose lock another process holds.
var ErrInUse = errors.New("in use")

// CacheEntry is an entry of one of the cache's directories (kinds), or such a directory if it is a symbolic link.
type CacheEntry struct {
	Name    string    `json:"name"`              // KIND/NAME; KIND of a linked directory
	Kind    string    `json:"kind"`              // "qemu", "kernel", "images", "tmp", ...
	Bytes   int64     `json:"bytes"`             // disk usage; 0 of a link
	Used    time.Time `json:"used"`              // last use, if uses set a time, else creation; zero of a link
	Current bool      `json:"current"`           // resolved.json names this tree
	Link    string    `json:"link,omitempty"`    // a symbolic link's target; links are not followed
	InUse   bool      `json:"in_use"`            // as far as this process can see
	PIDs    []int     `json:"pids,omitempty"`    // other processes that use it, as far as known
	For     []string  `json:"for,omitempty"`     // of a current tree, if imported: the commands whose files it has
	Partial bool      `json:"partial,omitempty"` // being made or removed, or so left by a killed process
}

// kinds are the cache's directories. ours reports whether vnic gives an entry such a name: RemoveCached must not remove
// other files in a user's directory.
var kinds = []struct {
	name string
	ours func(dir *os.Root, base string) bool
}{
	{roleQEMU, named(`-[0-9a-f]{12}$`)}, // treeKey
	{roleKernel, named(`-[0-9a-f]{12}$`)},
	{BundleTests, named(`-[0-9a-f]{12}$`)},
	{BundleTools, named(`-[0-9a-f]{12}$`)},
	{BundleGuestTools, named(`-[0-9a-f]{12}$`)},
	{BundleHeaders, named(`-[0-9a-f]{12}$`)},
	{BundleCompiler, named(`-[0-9a-f]{12}$`)},
	{GPUModules, named(`^(vnicgpu-.*-[0-9a-f]{16}\.(ko|log)|\.new-.*)$`)},                          // package gpumodule
	{"selftests", named(`^([a-z]+-[0-9a-f]{32}\.squashfs(\.list|\.left)?|[a-z]+\.log|\.new-.*)$`)}, // package selftests
	{"images", named(`^([0-9a-f]{64}\.cpio|\.new-.*)$`)},                                           // guest-images
	{"programs", named(`^((vnic-guest|u-root)-[0-9a-f]{64}|\.new-.*)$`)},                           // guest-images
	{"tools", func(dir *os.Root, base string) bool { // tools/debs.sh, tools/ncdevmem
		_, err := dir.Lstat(path.Join("tools", base, ".complete"))
		return err == nil || partial(base)
	}},
	{"tmp", named(`^(fetch|rm)-`)},
}

func named(pattern string) func(*os.Root, string) bool {
	re := regexp.MustCompile(pattern)
	return func(_ *os.Root, base string) bool { return re.MatchString(base) }
}

// partial reports whether an entry of this name is being made or removed, or was so left by a killed process.
func partial(base string) bool {
	prefixes := []string{".new-", ".apt-", ".ncdevmem-", "fetch-", "rm-"}
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(base, p) })
}

// ListCache returns the cache's directory and its entries; none if there is no cache.
func ListCache(o Options) (dir string, list []CacheEntry, err error) {
	if dir, err = CacheDir(o); err != nil {
		return "", nil, err
	}
	c := cache{dir}
	root, err := os.OpenRoot(dir)
	if errors.Is(err, os.ErrNotExist) {
		return dir, nil, nil
	}
	if err != nil {
		return dir, nil, c.unusable(err)
	}
	defer func() { _ = root.Close() }()
	list, err = c.list(root)
	return dir, list, err
}

func (c cache) unusable(err error) error {
	return cacheError(c.dir, ErrNoCache, err, "set "+EnvCache+" to a directory that you may read")
}

func (c cache) list(root *os.Root) (list []CacheEntry, err error) {
	have, err := c.load()
	if err != nil {
		return nil, err
	}
	for _, k := range kinds {
		if to, err := root.Readlink(k.name); err == nil {
			list = append(list, CacheEntry{Name: k.name, Kind: k.name, Link: to})
			continue
		}
		entries, err := fs.ReadDir(root.FS(), k.name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, c.unusable(err)
		}
		for _, e := range entries {
			if k.ours(root, e.Name()) {
				list = append(list, c.entry(root, k.name, e.Name(), have))
			}
		}
	}
	using := users(c.dir)
	for i := range list {
		e := &list[i]
		for pid, names := range using {
			if slices.ContainsFunc(names, func(n string) bool { return n == e.Name || strings.HasPrefix(n, e.Name+"/") }) {
				e.PIDs = append(e.PIDs, pid)
			}
		}
		slices.Sort(e.PIDs)
		e.InUse = len(e.PIDs) > 0
		if e.Link == "" && !e.InUse && (e.Kind == roleQEMU || e.Kind == roleKernel) {
			f, free := holdAlone(root, e.Name)
			e.InUse = !free
			if f != nil {
				_ = f.Close()
			}
		}
	}
	return list, nil
}

func (c cache) entry(root *os.Root, kind, base string, have resolved) CacheEntry {
	e := CacheEntry{Name: path.Join(kind, base), Kind: kind, Partial: partial(base)}
	if to, err := root.Readlink(e.Name); err == nil {
		e.Link = to
		return e
	}
	mark := e.Name
	if kind == "tools" && !e.Partial {
		mark = path.Join(e.Name, ".complete")
	}
	if st, err := root.Lstat(mark); err == nil {
		e.Used = st.ModTime()
	}
	for _, t := range have {
		if filepath.Clean(t.Dir) == e.Name {
			e.Current, e.For = true, t.For
			if t.Fetched.After(e.Used) {
				e.Used = t.Fetched
			}
		}
	}
	e.Bytes = usage(root, e.Name)
	return e
}

// usage returns the disk usage of a file or tree in bytes, and as du does counts hard links once. It follows no
// symbolic links.
func usage(root *os.Root, name string) (n int64) {
	type id struct{ dev, ino uint64 }
	seen := map[id]bool{}
	_ = fs.WalkDir(root.FS(), name, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // removed, or unreadable
		}
		st, err := d.Info()
		if err != nil {
			return nil
		}
		if s, ok := st.Sys().(*syscall.Stat_t); ok && !seen[id{s.Dev, s.Ino}] {
			seen[id{s.Dev, s.Ino}] = true
			n += s.Blocks * 512
		}
		return nil
	})
	return n
}

// Choose returns the entries of list that names select: by name, kind, or a unique beginning of a name, also without
// its kind. A name that selects none is an error.
func Choose(list []CacheEntry, names []string) (chosen []CacheEntry, err error) {
	for _, n := range names {
		n = strings.TrimSuffix(n, "/")
		var exact, begin []CacheEntry
		for _, e := range list {
			if e.Name == n || e.Kind == n {
				exact = append(exact, e)
			} else if n != "" && (strings.HasPrefix(e.Name, n) || strings.HasPrefix(path.Base(e.Name), n)) {
				begin = append(begin, e)
			}
		}
		if exact == nil {
			exact = begin
			switch len(begin) {
			case 0:
				return nil, fmt.Errorf("%q is not in the cache: 'vnic cache ls' lists what is", n)
			case 1:
			default:
				return nil, fmt.Errorf("%q may mean %s or %s: write more of it", n, begin[0].Name, begin[1].Name)
			}
		}
		for _, e := range exact {
			if !slices.ContainsFunc(chosen, func(o CacheEntry) bool { return o.Name == e.Name }) {
				chosen = append(chosen, e)
			}
		}
	}
	return chosen, nil
}

// RemoveCached removes the entries that choose selects, and returns the removed ones. Entries in use stay, as far as
// this process can see the use, and the error names them. While the cache is locked, as during a fetch or an import,
// RemoveCached removes nothing and returns ErrInUse. Of a symbolic link it removes the link, not the target.
func RemoveCached(
	ctx context.Context, o Options, choose func([]CacheEntry) ([]CacheEntry, error),
) (removed []CacheEntry, err error) {
	dir, err := CacheDir(o)
	if err != nil {
		return nil, err
	}
	c := cache{dir}
	if _, err := os.Stat(dir); err != nil {
		if errors.Is(err, os.ErrNotExist) { // c.lock would create the cache
			_, err = choose(nil)
			return nil, err
		}
		return nil, c.unusable(err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	unlock, err := c.lock(ctx, func() error {
		return fmt.Errorf("cache %s: %w: another vnic is fetching: wait until it is done, or end it", dir, ErrInUse)
	})
	if err != nil {
		return nil, err
	}
	defer unlock()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, c.unusable(err)
	}
	defer func() { _ = root.Close() }()
	list, err := c.list(root)
	if err == nil {
		list, err = choose(list)
	}
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, e := range list {
		if err := c.remove(root, e); err != nil {
			errs = append(errs, err)
		} else {
			removed = append(removed, e)
		}
		if err := ctx.Err(); err != nil {
			return removed, err
		}
	}
	return removed, errors.Join(errs...)
}

// remove removes an entry, unless it is in use. The caller holds the cache's lock.
func (c cache) remove(root *os.Root, e CacheEntry) error {
	if e.Link != "" {
		return root.Remove(e.Name)
	}
	tree, free := holdAlone(root, e.Name)
	if tree != nil {
		defer func() { _ = tree.Close() }()
	}
	switch {
	case len(e.PIDs) > 0:
		return fmt.Errorf("%s: %w by process %d (%s): end it first", e.Name, ErrInUse, e.PIDs[0], commandOf(e.PIDs[0]))
	case !free || e.InUse:
		return fmt.Errorf("%s: %w by another vnic: end it first", e.Name, ErrInUse)
	}
	// Renamed entries are not found by new processes while they are removed.
	gone, err := e.Name, error(nil)
	if e.Kind == roleQEMU || e.Kind == roleKernel || e.Kind == "tools" {
		gone = path.Join("tmp", "rm-"+e.Kind+"-"+path.Base(e.Name))
		err = errors.Join(root.RemoveAll(gone), root.Rename(e.Name, gone))
	}
	if err == nil {
		err = root.RemoveAll(gone)
	}
	if err != nil {
		err = fmt.Errorf("cache: %w", err)
	}
	return err
}

// hold prevents a tree's removal by RemoveCached and Prune, with a shared flock on its directory if the file system has
// locks, until the caller closes the descriptor. It also sets the directory's time, for Prune. It returns no os.File,
// because the garbage collector would close that.
func hold(dir string) (fd int, err error) {
	if fd, err = unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return -1, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); { // waits only for holders by holdAlone, which are brief
		err = unix.Flock(fd, unix.LOCK_SH)
	}
	if errors.Is(err, unix.ENOLCK) || errors.Is(err, unix.EOPNOTSUPP) { // the file system has no locks
		err = nil
	}
	var held, there unix.Stat_t
	if err == nil {
		err = errors.Join(unix.Fstat(fd, &held), unix.Stat(dir, &there))
	}
	if err == nil && (held.Dev != there.Dev || held.Ino != there.Ino) {
		err = os.ErrNotExist // the tree was replaced
	}
	if err != nil {
		return -1, errors.Join(&os.PathError{Op: "lock", Path: dir, Err: err}, unix.Close(fd))
	}
	now := time.Now()
	// Chtimes may fail for a cache that this user may not write.
	_ = os.Chtimes(dir, now, now)
	return fd, nil
}

// holdAlone locks the directory name in dir exclusively; false: it is locked otherwise (hold). If the directory cannot
// be opened, the result is nil and true. The caller closes the file, if it is not nil, which ends the lock.
func holdAlone(dir *os.Root, name string) (*os.File, bool) {
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, true // no directory, or removing it returns the error
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		_ = f.Close()
		return nil, false
	}
	return f, true
}

// users returns, by process ID, the paths relative to dir of the files below dir that other processes use. It sees only
// processes whose files this user may see in /proc.
func users(dir string) map[int][]string {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	found := map[int][]string{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		for _, path := range opened(pid) {
			if name, below := strings.CutPrefix(path, dir+"/"); below && !slices.Contains(found[pid], name) {
				found[pid] = append(found[pid], name)
			}
		}
	}
	return found
}

// opened returns the paths of a process's program, working directory, open files and mapped files.
func opened(pid int) (paths []string) {
	base := fmt.Sprintf("/proc/%d/", pid)
	links := []string{base + "exe", base + "cwd"}
	fds, _ := os.ReadDir(base + "fd")
	for _, fd := range fds {
		links = append(links, base+"fd/"+fd.Name())
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil {
			paths = append(paths, to)
		}
	}
	maps, _ := os.ReadFile(base + "maps")
	for line := range strings.Lines(string(maps)) {
		if i := strings.IndexByte(line, '/'); i >= 0 { // address perms offset dev inode path: proc_pid_maps(5)
			paths = append(paths, strings.TrimSuffix(line[i:], "\n"))
		}
	}
	return paths
}

func commandOf(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(b))
}
