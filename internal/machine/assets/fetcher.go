package assets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"vnic.dev/vnic/internal/proc"
)

// fetchInto fetches the trees of want under the cache's lock, and returns all current trees, and notes about suites
// that were passed over. It skips trees for which o.will is true, unless o.Refresh is set and no other vnic held the
// lock.
func fetchInto(ctx context.Context, c cache, o *Options, want []Bundle) (have resolved, notes []string, err error) {
	if runtime.GOARCH != "amd64" {
		return nil, nil, &Missing{What: "a QEMU for " + runtime.GOARCH, Err: ErrNoQEMU,
			Fix: "packages can be fetched only for amd64: " + giveBoth}
	}
	unlock, waited, err := c.lockToAdd(ctx, o.Progress)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	if have, err = c.load(); err != nil {
		return nil, nil, err
	}
	if !o.Refresh || waited {
		want = slices.DeleteFunc(slices.Clone(want), func(b Bundle) bool {
			key := b.resolvedKey()
			return o.will(key, have[key])
		})
		if len(want) == 0 {
			return have, nil, nil
		}
	}
	if lacking := lackingTools(); lacking != nil {
		return nil, nil, fmt.Errorf("fetch %s: %w", want[0].Name, &Missing{What: lacking[0], Err: ErrNoApt,
			Fix: "packages can only be fetched on Debian and its relatives: " + giveBoth})
	}
	a, err := findArchive(ctx, o, aptEtc)
	if err != nil {
		return nil, nil, err
	}
	work, err := os.MkdirTemp(filepath.Join(c.dir, "tmp"), "fetch-")
	if err != nil {
		return nil, nil, err
	}
	defer proc.Sweep(work)()
	f := &fetcher{cache: c, o: o, archive: a, work: work, suites: map[string]suite{}}
	for _, role := range want {
		t, err := f.fetch(ctx, role)
		if err != nil {
			return nil, nil, fmt.Errorf("fetch %s: %w", cmp.Or(role.Title, role.Name), err)
		}
		have[role.resolvedKey()] = t
		if err := c.save(have); err != nil {
			return nil, nil, fmt.Errorf("cache: %w", err)
		}
		// Machines may still run from the previous tree: Prune leaves trees that are held, or, as a file system may have no
		// locks, whose last hold was less than 30 days ago.
		Prune(filepath.Join(c.dir, role.Name), 30*24*time.Hour, filepath.Base(t.Dir))
	}
	return have, f.notes, nil
}

// fetcher is one call of fetchInto, with the suites that it has read.
type fetcher struct {
	cache   cache
	o       *Options
	archive archive
	work    string
	suites  map[string]suite
	notes   []string
}

func (f *fetcher) passOver(why error) {
	f.o.Log.Warn("suite passed over", "why", why)
	if n := fmt.Sprintf("%v: passed over", why); !slices.Contains(f.notes, n) {
		f.notes = append(f.notes, n)
	}
}

// suite is a suite whose lists were fetched, or the error of that.
type suite struct {
	apt *apt
	err error
}

func (f *fetcher) suite(ctx context.Context, name string) (*apt, error) {
	s, ok := f.suites[name]
	if !ok {
		f.o.Progress(Progress{Step: "update", What: name})
		if s.apt, s.err = newApt(ctx, filepath.Join(f.work, "apt-"+name), name, f.archive); s.err == nil {
			s.err = s.apt.update(ctx)
		}
		f.suites[name] = s
	}
	return s.apt, s.err
}

// candidate is what one suite offers for a role or bundle: the packages to install, and the main package's version.
type candidate struct {
	apt     *apt
	list    []Package
	version string
}

// hopeless reports whether an error is of a kind that other suites would have, too.
func hopeless(err error) bool {
	return errors.Is(err, ErrNoSpace) || errors.Is(err, ErrNoApt) || errors.Is(err, ErrNoNetwork)
}

// choose returns the candidate nearest to the preferred version, or the first if no version is preferred. It passes
// over suites in failed, by name, and suites that offer nothing. After a hopeless error it asks no further suite.
func (f *fetcher) choose(ctx context.Context, r Bundle, failed map[string]error) (*candidate, error) {
	want := cmp.Or(r.Want, lock.version(r.Name))
	var best *candidate
	var errs []error
	suites := r.Suites
	if suites == nil {
		suites = lock.Suites
	}
	for _, name := range suites {
		c, err := (*candidate)(nil), failed[name]
		if err == nil {
			c, err = f.offer(ctx, r, name)
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			errs = append(errs, err)
			if hopeless(err) {
				break
			}
			f.passOver(err)
			continue
		}
		if want == "" || c.version == want {
			return c, nil
		}
		a, b := distance(c.version, want), [4]int{}
		if best != nil {
			b = distance(best.version, want)
		}
		if best == nil || slices.Compare(a[:], b[:]) < 0 {
			best = c
		}
	}
	if best == nil {
		return nil, errors.Join(errs...)
	}
	return best, nil
}

func (f *fetcher) offer(ctx context.Context, r Bundle, suite string) (*candidate, error) {
	t, err := f.suite(ctx, suite)
	if err != nil {
		return nil, err
	}
	closure, err := t.closure(ctx, r.Packages...)
	if err != nil {
		return nil, err
	}
	// If a name is unknown, apt-get may take it for a pattern and select other packages.
	for _, name := range r.Packages {
		if !slices.ContainsFunc(closure, func(p Package) bool { return p.Name == name }) {
			return nil, fmt.Errorf("suite %s: %w %s", suite, ErrNoPackage, name)
		}
	}
	c := &candidate{apt: t, list: r.installed(closure)}
	i := slices.IndexFunc(c.list, r.isMain)
	if i < 0 {
		return nil, fmt.Errorf("suite %s: %s comes without the needed packages", suite, r.Packages[0])
	}
	c.version = c.list[i].Version
	if r.Name == roleQEMU && older(c.version, MinVFIOUser) {
		return nil, fmt.Errorf("suite %s: QEMU %s is older than %s", suite, c.version, MinVFIOUser)
	}
	return c, nil
}

// notServed wraps the error of a failed download of packages that a suite lists.
type notServed struct{ error }

func (e notServed) Unwrap() error { return e.error }

// fetch makes the tree of a role or bundle from the best suite whose packages can be downloaded.
func (f *fetcher) fetch(ctx context.Context, r Bundle) (*tree, error) {
	for failed := map[string]error{}; ; {
		c, err := f.choose(ctx, r, failed)
		if err != nil {
			return nil, err
		}
		t, err := f.install(ctx, r, c)
		if err == nil || ctx.Err() != nil || hopeless(err) || !errors.As(err, new(notServed)) {
			return t, err
		}
		failed[c.apt.suite] = err
	}
}

// install makes the tree of a role or bundle from a candidate, unless the cache has this tree and it works.
func (f *fetcher) install(ctx context.Context, r Bundle, c *candidate) (t *tree, err error) {
	if _, err := lock.untested(r.Name, c.version, c.list); err != nil {
		return nil, err
	}
	t = &tree{
		Dir:     filepath.Join(r.Name, treeKey(c.version, c.list)),
		Version: c.version, Suite: c.apt.suite, Fetched: time.Now().UTC().Truncate(time.Second), Packages: c.list,
	}
	final := filepath.Join(f.cache.dir, t.Dir)
	if err := f.cache.checkTree(t.Dir); err != nil {
		return nil, err
	}
	if r.works(ctx, final) == nil {
		t.Disk, err = settle(final)
		return t, err
	}
	if err := os.RemoveAll(final); err != nil {
		return nil, err
	}
	var download int64
	for _, p := range c.list {
		download += p.Size
	}
	if err := f.cache.checkSpace(download * 6); err != nil { // the packages, and their files with up to 5 times the size
		return nil, err
	}
	if r.Downloading != nil {
		r.Downloading(download)
	}
	debs, root := filepath.Join(f.work, r.Name+"-debs"), filepath.Join(f.work, r.Name)
	for _, d := range []string{debs, root, filepath.Dir(final)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	step := func(name string) func(int64) {
		f.o.Progress(Progress{Step: name, What: r.Name, Total: download})
		return func(n int64) { f.o.Progress(Progress{Step: name, What: r.Name, Done: n, Total: download}) }
	}
	if err := c.apt.download(ctx, debs, c.list, step("download")); err != nil {
		return nil, errors.Join(notServed{err}, os.RemoveAll(debs))
	}
	if err := unpack(ctx, debs, root, c.list, step("unpack")); err != nil {
		return nil, err
	}
	if err := r.finish(ctx, root); err != nil {
		return nil, err
	}
	if t.Disk, err = settle(root); err != nil {
		return nil, err
	}
	if err := r.works(ctx, root); err != nil {
		return nil, fmt.Errorf("the packages of suite %s do not work here: %w", t.Suite, err)
	}
	return t, os.Rename(root, final)
}
