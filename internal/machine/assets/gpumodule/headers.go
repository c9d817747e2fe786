package gpumodule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/machine/assets"
)

// headers are the kernel headers for a module: the user's, or Debian's.
type headers struct {
	dir     string // the user's tree; "": Debian's, and only then the other fields are set
	bundle  assets.Bundle
	release string
	tree    *assets.Tree // of bundle, once fetched
}

// ownHeaders returns the headers that the user names, or the matching headers to which the modules' directory of the
// user's kernel links; nil: none. Headers that the user names and that do not match the kernel are an error.
func (o *Options) ownHeaders() (*headers, error) {
	if dir := cmp.Or(o.Headers, os.Getenv(assets.EnvHeaders)); dir != "" {
		if err := checkHeaders(dir, o.Kernel.Version); err != nil {
			return nil, &assets.Missing{What: "--headers " + dir, Err: oneLine{err},
				Fix: "name the build tree of kernel " + o.Kernel.Version +
					", or its headers, as /lib/modules/RELEASE/build has them"}
		}
		abs, err := filepath.Abs(dir)
		return &headers{dir: abs}, err
	}
	if o.Kernel.Source != assets.SourceGiven || o.Kernel.Modules == "" {
		return nil, nil
	}
	for _, link := range []string{"build", "source"} {
		dir, err := filepath.EvalSymlinks(filepath.Join(o.Kernel.Modules, link))
		if err == nil && checkHeaders(dir, o.Kernel.Version) == nil {
			return &headers{dir: dir}, nil
		}
	}
	return nil, nil
}

// Files of a configured kernel tree.
const (
	releaseFile = "include/config/kernel.release"
	configFile  = "include/config/auto.conf"
)

// checkHeaders returns an error if a directory does not have prepared headers of this kernel release.
func checkHeaders(dir, release string) error {
	b, err := os.ReadFile(filepath.Join(dir, releaseFile))
	if err != nil {
		return fmt.Errorf("%w: no %s: build the kernel there, or 'make modules_prepare'", ErrNoHeaders, releaseFile)
	}
	if has := strings.TrimSpace(string(b)); has != release {
		return fmt.Errorf("%w: they are of %s", ErrNoHeaders, has)
	}
	for _, f := range []string{"Makefile", configFile} {
		if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
			return fmt.Errorf("%w: no %s", ErrNoHeaders, f)
		}
	}
	return nil
}

// each calls part for three files that identify the user's headers; the content of a missing file is empty.
func (h *headers) each(part func(name string, content []byte)) error {
	for _, name := range []string{releaseFile, configFile, "Module.symvers"} {
		b, err := os.ReadFile(filepath.Join(h.dir, name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		part("headers "+name, b)
	}
	return nil
}

// flavors matches releases of Debian's kernels for amd64; the group is the part that names of common packages have.
var flavors = regexp.MustCompile(`^(\d+\.\d.*?)(?:-cloud)?-amd64$`)

// packages returns the names of the packages with a Debian kernel's headers; base is the part of the release that the
// names have in common. ok is false if the release is not like one of Debian's.
func packages(release string) (names []string, base string, ok bool) {
	m := flavors.FindStringSubmatch(release)
	if m == nil || strings.ContainsAny(release, "/ ") {
		return nil, "", false
	}
	return []string{"linux-headers-" + release, "linux-headers-" + m[1] + "-common", "linux-kbuild-" + m[1]}, m[1], true
}

// libraries are the packages with libraries of linux-kbuild's programs; some have different names in different suites.
var libraries = []string{"libc6", "libelf1t64", "libelf1", "zlib1g", "libzstd1"}

// debianVersion matches the version of Debian's package in a kernel's banner (assets.KernelBanner).
var debianVersion = regexp.MustCompile(` Debian (\S+) \(`)

// debianHeaders returns Debian's headers of the kernel, not yet fetched.
func (o *Options) debianHeaders() (*headers, error) {
	release := o.Kernel.Version
	names, base, ok := packages(release)
	if !ok {
		return nil, o.missing(ErrNoHeaders, "name its build tree, or its headers, by --headers DIR")
	}
	want := ""
	if banner, err := assets.KernelBanner(o.Kernel.Image); err == nil {
		if m := debianVersion.FindStringSubmatch(banner); m != nil {
			want = m[1]
		}
	}
	return &headers{release: release, bundle: assets.Bundle{
		Name: assets.BundleHeaders, Title: "the headers of kernel " + release, Series: release, Packages: names,
		Only: libraries, Suites: suites(o.Kernel.Suite), Want: want,
		Build: func(ctx context.Context, root string) error { return finish(ctx, root, "usr/lib/linux-kbuild-*") },
		Needs: []string{assets.Loader, "usr/src/linux-headers-" + release + "/" + configFile,
			"usr/src/linux-headers-" + base + "-common/Makefile", "usr/lib/linux-kbuild-" + base + "/scripts/mod/modpost"}}}, nil
}

// suites returns the suites to search, best first: from, unless that is "", the suites of QEMU and kernels
// (assets.Suites), the backports of this machine's suite, and sid.
func suites(from string) (list []string) {
	for _, s := range slices.Concat([]string{from}, assets.Suites(),
		[]string{machineSuite("/etc/os-release") + "-backports", "sid"}) {
		if s != "" && !strings.HasPrefix(s, "-") && !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// machineSuite returns VERSION_CODENAME of file, which is as /etc/os-release (os-release(5)); "": unknown.
func machineSuite(file string) string {
	b, _ := os.ReadFile(file)
	for line := range strings.Lines(string(b)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "VERSION_CODENAME="); ok {
			return strings.Trim(name, `"'`)
		}
	}
	return ""
}

// fetched adds the error lacking and advice to an error of a fetch, unless the fetch's context has ended. The
// advice begins with fix, unless err is assets.ErrOffline or has advice of its own.
func (o *Options) fetched(err, lacking error, fix string) error {
	var known *assets.Missing
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, assets.ErrOffline):
		return o.missing(fmt.Errorf("%w: %w", lacking, assets.ErrOffline), "run it once without --offline")
	case errors.As(err, &known) && !errors.Is(err, assets.ErrNoPackage):
		return o.missing(fmt.Errorf("%w: %w", lacking, err), "")
	}
	return o.missing(fmt.Errorf("%w: %w", lacking, err), fix)
}
