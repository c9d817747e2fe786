package assets

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"vnic.dev/vnic/internal/machine/assets/offline"
	"vnic.dev/vnic/internal/proc"
)

// ErrPartial is the error for what an imported tree lacks.
var ErrPartial = errors.New("not in the archive that was imported")

// Partial returns the error for what, something that a tree lacks that was imported for the commands in have.
func Partial(what, have string) *Missing {
	return &Missing{What: what, Err: fmt.Errorf("%w (it is for %s)", ErrPartial, have),
		Fix: "where there is a network, export again with this command's name in --for, or go on without --offline"}
}

// extra matches paths of files that an archive may have besides QEMU and kernel: u-root's commands.
var extra = regexp.MustCompile(`^programs/u-root-[0-9a-f]{64}/[0-9A-Za-z._-]{1,100}$`)

// Imported is the result of an import.
type Imported struct {
	Cache string   `json:"cache"`
	For   []string `json:"for"`  // commands for which the archive was made
	Vnic  string   `json:"vnic"` // version of the exporting vnic
	Bytes int64    `json:"bytes"`
	Trees []string `json:"trees"` // of the archive, named as in `vnic cache ls`
}

// Import reads an archive into the cache. It changes and removes no tree of the cache. The archive's trees become the
// current ones, except where the current one has the same packages and all files of the archive's. After an error the
// current trees are as before. Import runs the archive's QEMU, if there is one, to check it.
func Import(ctx context.Context, o Options, r io.Reader) (*Imported, error) {
	dir, err := CacheDir(o)
	if err != nil {
		return nil, err
	}
	o.silence()
	c := cache{dir}
	unlock, _, err := c.lockToAdd(ctx, o.Progress)
	if err != nil {
		return nil, err
	}
	defer unlock()
	work, err := os.MkdirTemp(filepath.Join(dir, "tmp"), "fetch-import-")
	if err != nil {
		return nil, CacheError(dir, err)
	}
	defer proc.Sweep(work)()
	root, err := os.OpenRoot(work)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	im := importer{cache: c, root: root, work: work, progress: o.Progress}
	if err := offline.Read(ctx, r, im.begin, im.put); err != nil {
		return nil, CacheError(dir, err)
	}
	if err := im.finish(ctx); err != nil {
		return nil, CacheError(dir, err)
	}
	return &im.done, nil
}

// word matches a command's name, a version or a suite that may be shown.
var word = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+:~_-]{0,99}$`)

type importer struct {
	cache    cache
	root     *os.Root // of the directory work
	work     string   // directory in tmp, in which files lie as in the cache
	progress func(Progress)
	trees    resolved
	extra    []string // other entries, KIND/NAME
	read     int64
	done     Imported
}

// begin takes the manifest and checks what offline.Read does not, and that there is space for the files.
func (im *importer) begin(m *offline.Manifest) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", offline.ErrFormat, fmt.Sprintf(format, args...))
	}
	d := json.NewDecoder(bytes.NewReader(m.Trees))
	d.DisallowUnknownFields()
	if err := d.Decode(&im.trees); err != nil {
		return bad("its trees: %v", err)
	}
	files := map[string][]string{} // paths in a tree, by the tree's directory
	for _, f := range m.Files {
		if extra.MatchString(f.Path) {
			kind, rest, _ := strings.Cut(f.Path, "/")
			base, _, _ := strings.Cut(rest, "/")
			im.extra = append(im.extra, path.Join(kind, base))
			continue
		}
		role, rest, _ := strings.Cut(f.Path, "/")
		base, name, _ := strings.Cut(rest, "/")
		dir := path.Join(role, base)
		if t := im.trees[role]; t == nil || t.Dir != dir || name == "" {
			return bad("%q is of no tree", f.Path)
		}
		files[dir] = append(files[dir], name)
	}
	for _, w := range append(slices.Clone(m.For), m.Vnic) {
		if !word.MatchString(w) {
			return bad("%.80q is no name of a command, or no version", w)
		}
	}
	if len(m.For) == 0 {
		return bad("it is for no command")
	}
	for key, t := range im.trees {
		i := slices.IndexFunc(roles, func(r Bundle) bool { return r.key == key })
		if i < 0 || t == nil || !word.MatchString(t.Version) || !word.MatchString(t.Suite) ||
			len(t.Packages) == 0 || !slices.Equal(t.For, m.For) {
			return bad("tree %.80q is neither of QEMU nor of a kernel", key)
		}
		if want := path.Join(key, partialKey(t, files[t.Dir])); t.Dir != want {
			return bad("tree %.80q should be %q", t.Dir, want)
		}
		if _, err := lock.untested(key, t.Version, t.Packages); err != nil {
			return err
		}
		im.done.Trees = append(im.done.Trees, t.Dir)
	}
	slices.Sort(im.done.Trees)
	im.done.Cache, im.done.For, im.done.Vnic, im.done.Bytes = im.cache.dir, m.For, m.Vnic, m.Total()
	need := m.Total()
	if im.trees[roleKernel] != nil {
		need += 96 << 20 // for the unpacked kernel
	}
	return im.cache.checkSpace(need)
}

func (im *importer) put(f offline.File, r io.Reader) error {
	var out *os.File
	err := im.root.MkdirAll(path.Dir(f.Path), 0o755)
	if err == nil {
		out, err = im.root.OpenFile(f.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.Mode())
	}
	if err != nil {
		return im.explain(err)
	}
	n, err := io.Copy(out, r)
	if err == nil {
		err = out.Chmod(f.Mode()) // despite the umask
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return im.explain(err)
	}
	im.read += n
	im.progress(Progress{Step: "unpack", What: "the archive", Done: im.read, Total: im.done.Bytes})
	return nil
}

// explain makes the path of an *os.PathError absolute for CacheError.
func (im *importer) explain(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return &os.PathError{Op: p.Op, Path: filepath.Join(im.work, p.Path), Err: p.Err}
	}
	return err
}

// finish completes the trees, checks that they work, moves them and the other entries into the cache, and makes the
// trees current, as Import says. The caller holds the cache's lock.
func (im *importer) finish(ctx context.Context) error {
	have, err := im.cache.load()
	if err != nil {
		return err
	}
	for _, r := range roles {
		t := im.trees[r.key]
		if t == nil {
			continue
		}
		root := filepath.Join(im.work, t.Dir)
		if err := r.finish(ctx, root); err != nil {
			return fmt.Errorf("archive: %s: %w", r.key, err)
		}
		if t.Disk, err = settle(root); err != nil {
			return err
		}
		if err := r.works(ctx, root); err != nil {
			return fmt.Errorf("archive: its %s does not work here: %w", r.key, err)
		}
		t.Fetched = time.Now().UTC().Truncate(time.Second)
	}
	for _, t := range im.trees {
		if err := im.move(t.Dir); err != nil {
			return err
		}
	}
	for _, name := range slices.Compact(im.extra) { // im.extra is sorted, as the manifest is
		if err := im.move(name); err != nil {
			return err
		}
	}
	for key, t := range im.trees {
		if old := have[key]; old == nil || !im.covers(old, t) {
			have[key] = t
		}
	}
	return im.cache.save(have)
}

// move moves a file or directory of this path from work into the cache, unless it exists there.
func (im *importer) move(name string) error {
	to := filepath.Join(im.cache.dir, filepath.FromSlash(name))
	if _, err := os.Lstat(to); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.Rename(filepath.Join(im.work, filepath.FromSlash(name)), to)
}

// covers reports whether the cache's tree old has the same packages as t, and files of all names in t.
func (im *importer) covers(old, t *tree) bool {
	same := func(a, b Package) bool { return a.Name == b.Name && a.SHA256 == b.SHA256 }
	if !slices.EqualFunc(old.Packages, t.Packages, same) {
		return false
	}
	from, to := os.DirFS(filepath.Join(im.cache.dir, t.Dir)), filepath.Join(im.cache.dir, old.Dir)
	all := true
	_ = walkFiles(from, func(name string) { all = all && exists(filepath.Join(to, filepath.FromSlash(name))) })
	return all
}

func walkFiles(from fs.FS, each func(name string)) error {
	return fs.WalkDir(from, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			each(name)
		}
		return err
	})
}
