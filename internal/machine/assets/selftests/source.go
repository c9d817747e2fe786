package selftests

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/proc"
)

// targets are the collections of tests to build.
var targets = []string{"net/lib", "drivers/net", "drivers/net/hw"}

// sourceParts are the needed parts of the kernel's source, as patterns for tar and filepath.Glob.
var sourceParts = []string{"Makefile", "MAINTAINERS", "Documentation/netlink", "arch/*/include", "include", "scripts",
	"tools", "usr/include"}

// ErrBuild is the error of a failed build.
var ErrBuild = errors.New("the kernel's tests do not build")

// source copies the needed parts of the kernel's source into dir: from user, a user's tree, or, if that is "", from the
// source package in tools.
func source(ctx context.Context, tools, user, dir string) error {
	if user != "" {
		return copySource(ctx, user, dir)
	}
	archives, _ := filepath.Glob(filepath.Join(tools, "usr/src/linux-source-*.tar.xz"))
	if len(archives) != 1 {
		return fmt.Errorf("%d archives of the kernel's source in %s", len(archives), tools)
	}
	args := []string{"-x", "-I", filepath.Join(tools, "usr/bin/xz"), "-f", archives[0], "-C", dir, "--strip-components=1",
		"--no-same-owner", "--wildcards"}
	for _, p := range sourceParts {
		args = append(args, "*/"+p) // with everything below it
	}
	// Some series lack a part: tar's error matters only if the tests are missing.
	_, err := proc.Command{Dir: dir}.Run(ctx, "tar", args...)
	if _, serr := os.Stat(filepath.Join(dir, selftestsDir)); serr != nil {
		return errors.Join(fmt.Errorf("unpack %s: %w", archives[0], serr), err)
	}
	return ctx.Err()
}

// selftestsDir is the directory of the tests in a kernel's tree.
const selftestsDir = "tools/testing/selftests"

// CheckSource returns an error for a user's tree without the tests.
func CheckSource(dir string) error {
	for _, f := range []string{selftestsDir + "/drivers/net/hw/Makefile", selftestsDir + "/net/lib/py/ksft.py"} {
		if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
			return &assets.Missing{What: "--source " + dir, Err: fmt.Errorf("it has no %s", f),
				Fix: "name the tree of a kernel of 6.12 or newer, at its root"}
		}
	}
	return nil
}

// partsOf returns the paths of the needed parts of a user's tree.
func partsOf(user string) (list []string) {
	for _, p := range sourceParts {
		matches, _ := filepath.Glob(filepath.Join(user, p))
		list = append(list, matches...)
	}
	return list
}

func copySource(ctx context.Context, user, dir string) error {
	for _, part := range partsOf(user) {
		rel, err := filepath.Rel(user, part)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.Dir(rel))
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		if _, err := (proc.Command{}).Run(ctx, "cp", "-a", part, to+"/"); err != nil {
			return err
		}
	}
	return nil
}

// build builds the tests of the source in dir, and installs them to ks. It writes make's output to log, and calls
// progress with the number of lines so far.
func build(ctx context.Context, tools, dir, ks string, log *bytes.Buffer, progress func(done int64)) error {
	bin := filepath.Join(dir, ".vnic-bin")
	if err := os.MkdirAll(filepath.Join(bin, "python"), 0o755); err != nil {
		return err
	}
	// The generator of netlink code looks for MAINTAINERS in parent directories without end, hence the empty file. It
	// checks schemas with the module jsonschema, which a stub replaces.
	files := map[string]string{"MAINTAINERS": "", ".vnic-bin/python/jsonschema.py": "def validate(*a, **k): pass\n"}
	for name, text := range shims(tools) {
		files[".vnic-bin/"+name] = "#!/bin/sh\n" + text + "\n"
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			return err
		}
	}
	args := []string{"-C", filepath.Join(dir, selftestsDir), "-j", strconv.Itoa(runtime.NumCPU()), "SHELL=/bin/bash",
		"CC=gcc", "CLANG=clang", "TARGETS=" + strings.Join(targets, " "), "FORCE_TARGETS=1",
		"KHDR_INCLUDES=-isystem " + filepath.Join(tools, "usr/include"), "install", "INSTALL_PATH=" + ks}
	include := filepath.Join(dir, ".vnic-include")
	if zcrx, err := knowsZeroCopy(tools, include); err != nil {
		return err
	} else if zcrx {
		// The Makefile detects zero-copy receive by a program that does not link with --as-needed (hw/Makefile has
		// -luring before the source).
		args = append(args, "HAS_IOURING_ZCRX=y")
	}
	done := int64(0)
	c := proc.Command{Dir: dir, Env: []string{"PATH=" + bin + ":" + filepath.Join(tools, "usr/bin") + ":" +
		filepath.Join(tools, "usr/sbin") + ":" + os.Getenv("PATH"), "C_INCLUDE_PATH=" + include, "MAKEFLAGS=", "CFLAGS=",
		"LDFLAGS=", "PYTHONPATH="},
		Stdout: func(line string) { // a line for each step
			fmt.Fprintln(log, line)
			done++
			progress(done)
		}}
	if _, err := c.Run(ctx, filepath.Join(tools, "usr/bin/make"), args...); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%w: %w", ErrBuild, err)
	}
	for _, f := range []string{"drivers/net/hw/ncdevmem", "drivers/net/ping.py", "net/lib/py/ksft.py", "net/lib/csum"} {
		if _, err := os.Stat(filepath.Join(ks, f)); err != nil {
			return fmt.Errorf("%w: nothing was installed as %s", ErrBuild, f)
		}
	}
	return precious(ks)
}

//go:embed include/liburing.h
var liburing []byte

// knowsZeroCopy reports whether the tests can be built with zero-copy receive. If the kernel's headers have it, and a
// liburing lacks it, knowsZeroCopy writes liburing.h with the missing declarations into the directory include.
func knowsZeroCopy(tools, include string) (bool, error) {
	has := func(header, word string) bool {
		text, err := os.ReadFile(filepath.Join(tools, "usr/include", header))
		return err == nil && bytes.Contains(text, []byte(word))
	}
	switch {
	case has("liburing.h", "io_uring_register_ifq"):
		return true, nil
	case !has("liburing.h", "io_uring_queue_init"), !has("linux/io_uring.h", "IORING_REGISTER_ZCRX_IFQ"):
		return false, nil
	}
	if err := os.MkdirAll(include, 0o755); err != nil {
		return false, err
	}
	return true, os.WriteFile(filepath.Join(include, "liburing.h"), liburing, 0o644)
}

// precious makes the installed files readable for all, and scripts executable.
func precious(ks string) error {
	return filepath.WalkDir(ks, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&fs.ModeSymlink != 0 {
			return err
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		mode := st.Mode().Perm() | 0o444
		if slices.Contains(scripts, filepath.Ext(path)) {
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
}
