package gpumodule

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/proc"
)

// compiler is a C compiler with make.
type compiler struct {
	cc   string       // command and options, quoted for a shell
	bin  string       // directory to put first in PATH; "": none
	tree *assets.Tree // of Debian's compiler; nil: this machine's compiler
	name string
}

// programs must be in PATH for a build with this machine's compiler.
var programs = []string{"make", "ld", "strip"}

// findCompiler returns this machine's compiler, $CC or else gcc; nil if it does not work, or one of programs is
// missing. The directory work receives the output of a test.
func findCompiler(ctx context.Context, work string) *compiler {
	cc := strings.Fields(os.Getenv("CC"))
	if len(cc) == 0 {
		cc = []string{"gcc"}
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			return nil
		}
	}
	c := &compiler{name: strings.Join(cc, " ")}
	for i, w := range cc {
		cc[i] = assets.ShellQuote(w)
	}
	c.cc = strings.Join(cc, " ")
	if !c.works(ctx, work) {
		return nil
	}
	return c
}

// temporary returns an environment variable that makes compilers write temporary files into work.
func temporary(work string) []string { return []string{"TMPDIR=" + work} }

// works reports whether the compiler compiles an empty file with these options; work receives the output.
func (c *compiler) works(ctx context.Context, work string, options ...string) bool {
	script := "exec " + c.cc + ` "$@"`
	args := append([]string{"-c", script, "cc"}, options...)
	args = append(args, "-x", "c", "-c", "-o", filepath.Join(work, "none.o"), "/dev/null")
	_, err := proc.Command{Dir: work, Env: temporary(work)}.Run(ctx, "sh", args...)
	return err == nil
}

// compilerBundle returns the bundle of Debian's gcc and make, of any version.
func compilerBundle() assets.Bundle {
	return assets.Bundle{Name: assets.BundleCompiler, Title: "a C compiler", Packages: []string{"gcc", "make"},
		// libraries that a kernel module does not need, as sanitizers'
		Leave:  []string{"libasan8", "liblsan0", "libtsan2", "libubsan1", "libhwasan0", "libitm1", "libquadmath0"},
		Suites: suites(machineSuite("/etc/os-release")),
		Build: func(ctx context.Context, root string) error {
			return finish(ctx, root, "usr/bin", "usr/libexec", "usr/lib/gcc")
		},
		Mark:  ".vnic-compiler-1",
		Needs: []string{assets.Loader, "usr/bin/gcc", "usr/bin/make", "usr/bin/ld", "usr/bin/strip"}}
}

func (o *Options) debianCompiler(ctx context.Context, work string) (*compiler, error) {
	tree, _, err := assets.FetchBundle(ctx, o.Options, compilerBundle())
	if err != nil {
		return nil, o.fetched(err, ErrNoCompiler, "install gcc and make")
	}
	bin := filepath.Join(tree.Dir, "usr/bin")
	gcc := assets.ShellQuote(filepath.Join(bin, "gcc")) + " --sysroot=" + assets.ShellQuote(tree.Dir) + " -B " +
		assets.ShellQuote(bin)
	c := &compiler{cc: gcc, bin: bin, tree: tree, name: "Debian's gcc " + tree.Version}
	if !c.works(ctx, work) {
		err := o.missing(ErrNoCompiler, "install gcc and make: that of "+tree.Dir+" does not work here")
		return nil, errors.Join(err, tree.Close())
	}
	return c, nil
}

// finish makes the programs below dirs, which are patterns relative to root, a tree of packages, run with the tree's
// libraries (assets.RunByOwnLoader). Before, it merges directories such as /lib, which packages of Debian 12 and older
// have beside /usr, into /usr.
func finish(ctx context.Context, root string, dirs ...string) error {
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		old := filepath.Join(root, dir)
		if st, err := os.Lstat(old); err != nil || !st.IsDir() {
			continue
		}
		merged := filepath.Join(root, "usr", dir)
		if err := os.MkdirAll(merged, 0o755); err != nil {
			return err
		}
		if _, err := (proc.Command{}).Run(ctx, "cp", "-a", old+"/.", merged); err != nil {
			return err
		}
		if err := os.RemoveAll(old); err != nil {
			return err
		}
	}
	return assets.RunByOwnLoader(root, dirs...)
}
