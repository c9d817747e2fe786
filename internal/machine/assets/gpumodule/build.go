package gpumodule

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"vnic.dev/vnic/internal/proc"
)

const buildLimit = 10 * time.Minute

// notOurs are environment variables that would change a build; build unsets them.
var notOurs = []string{"MAKEFLAGS", "MFLAGS", "GNUMAKEFLAGS", "KBUILD_OUTPUT", "KBUILD_EXTMOD", "KBUILD_EXTRA_SYMBOLS",
	"ARCH", "CROSS_COMPILE", "M", "O", "MO", "W", "C", "V"}

// build builds the module in the directory work, removes the log of an earlier failure, and moves the module to path.
// If make or strip fails, or the log has a warning, build saves the log and returns an error; if ctx has ended, it
// saves none.
func (o *Options) build(ctx context.Context, h *headers, c *compiler, work, path string) error {
	module, bin := filepath.Join(work, "module"), filepath.Join(work, "bin")
	for _, d := range []string{module, bin} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	sources, err := o.sources()
	if err != nil {
		return err
	}
	for _, s := range sources {
		if err := os.WriteFile(filepath.Join(module, s.name), s.content, 0o644); err != nil {
			return err
		}
	}
	tree, err := h.configured(work)
	if err != nil {
		return err
	}
	cc := filepath.Join(bin, "cc")
	if err := os.WriteFile(cc, []byte(c.wrapper(ctx, work)), 0o755); err != nil {
		return err
	}
	// The module has no BTF, which needs pahole and vmlinux. The shell joins stdout and stderr, which keeps their order.
	const sh, joined = "sh", `exec "$@" 2>&1`
	args := []string{"-c", joined, sh, "make", "-s", "-j", strconv.Itoa(runtime.NumCPU()), "-C", tree,
		"CC=" + cc, "CONFIG_DEBUG_INFO_BTF_MODULES=", "KCFLAGS=-Wno-attributes -ffile-prefix-map=" + work + "/=",
		"M=" + module, "modules"}
	var log bytes.Buffer
	run := proc.Command{Dir: work, Env: temporary(work), Unset: notOurs,
		Stdout: func(line string) { fmt.Fprintln(&log, line) }}
	if c.bin != "" {
		run.Env = append(run.Env, "PATH="+c.bin+":"+os.Getenv("PATH"))
	}
	limited, cancel := context.WithTimeout(ctx, buildLimit)
	defer cancel()
	_, err = run.Run(limited, sh, args...)
	made := filepath.Join(module, "vnicgpu.ko")
	if err == nil {
		_, err = run.Run(limited, sh, "-c", joined, sh, "strip", "--strip-debug", made)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		fmt.Fprintln(&log, err)
		return o.failed(ErrBuild, c, &log, path)
	case warning.Match(log.Bytes()):
		return o.failed(ErrWarnings, c, &log, path)
	}
	_ = os.Remove(logOf(path))
	return os.Rename(made, path)
}

// warning matches a compiler's warning about a source or header file.
var warning = regexp.MustCompile(`(?m)^[^\s:]+\.[ch]:[0-9:]* warning`)

func logOf(path string) string { return strings.TrimSuffix(path, ".ko") + ".log" }

// failed saves the log of a failed build, and returns an error with the log's path.
func (o *Options) failed(why error, c *compiler, log *bytes.Buffer, path string) error {
	if err := os.WriteFile(logOf(path), log.Bytes(), 0o644); err != nil {
		return errors.Join(err, why)
	}
	return o.missing(fmt.Errorf("%w by %s: %s", why, c.name, logOf(path)), "boot another kernel (--kernel)")
}

// wrapper returns a script that runs the compiler. If the compiler lacks -fmin-function-alignment (new in GCC 14), the
// script replaces that option by -falign-functions.
func (c *compiler) wrapper(ctx context.Context, work string) string {
	older := ""
	if !c.works(ctx, work, "-fmin-function-alignment=16") {
		older = `for a; do
  shift
  case $a in -fmin-function-alignment=*) a=-falign-functions=${a#*=} ;; esac
  set -- "$@" "$a"
done
`
	}
	return "#!/bin/sh\n" + older + "exec " + c.cc + ` "$@"` + "\n"
}

// configured returns a kernel tree to build modules with: the user's, or one that it makes in work, with links to the
// files of Debian's packages.
func (h *headers) configured(work string) (string, error) {
	if h.dir != "" {
		return h.dir, nil
	}
	_, base, _ := packages(h.release)
	root := filepath.Join(h.tree.Dir, "usr")
	dir := filepath.Join(root, "src/linux-headers-"+h.release)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	kernel := filepath.Join(work, "kernel")
	if err := os.Mkdir(kernel, 0o755); err != nil {
		return "", err
	}
	for _, e := range entries {
		to := filepath.Join(dir, e.Name())
		switch e.Name() {
		case "Makefile":
			continue
		case "scripts", "tools":
			to = filepath.Join(root, "lib/linux-kbuild-"+base, e.Name())
		}
		if err := os.Symlink(to, filepath.Join(kernel, e.Name())); err != nil {
			return "", err
		}
	}
	common := filepath.Join(root, "src/linux-headers-"+base+"-common/Makefile")
	text := "KBUILD_OUTPUT := " + kernel + "\ninclude " + common + "\n"
	return kernel, os.WriteFile(filepath.Join(kernel, "Makefile"), []byte(text), 0o644)
}
