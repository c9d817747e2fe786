// Package guesttools makes programs of Debian packages available in a guest, with their libraries, beside the
// guest's own programs, which may have another libc. It has both ends: Ops registers the operation and the
// applet with package agent in the guest, and the host calls Mount. A guest that no host calls mounts the
// packages itself (MountAlone).
//
// The packages are in a squashfs image on a disk of the guest, or in a file of the guest. Their programs run in
// a chroot (Root). There /usr is the image's /usr over the guest's; /bin, /sbin, /lib and /lib64 are links into
// /usr; the other directories, except for /vnic, are bind mounts of the guest's, or of the image's where the
// guest has none. BinDir has a script for each of Config.Programs, by which the applet runs the program in Root.
//
// The package is not API (README, Stability).
package guesttools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/guestroot"
)

// Modules are the kernel modules that a guest needs for images on disks, and FileModules for images in files,
// unless they are built in.
var (
	Modules     = guestroot.Modules
	FileModules = []string{"loop", "squashfs", "overlay"}
)

const dir = "/vnic/tools"

// BinDir is the directory of the scripts, Root the root directory of the programs, both in the guest.
const (
	BinDir = dir + "/bin"
	Root   = dir + "/root"
)

// ConfigPath is the file in the guest with the Config for MountAlone.
const ConfigPath = "/vnic/tools.json"

// AppletName is the name of the applet that is the interpreter of BinDir's scripts.
const AppletName = "vnic-tool"

// Config has the images and programs of a guest.
type Config struct {
	Images   []Image   `json:"images"`
	Programs []Program `json:"programs"`
}

// Image is a squashfs on a disk of the guest, or in a file of the guest.
type Image struct {
	Serial string `json:"serial,omitempty"` // serial number of the disk
	File   string `json:"file,omitempty"`
	// At is the directory of the image below Root, as "/ks"; "" for the first image, which has the
	// packages.
	At string `json:"at"`
}

// Program is a program with a script in BinDir.
type Program struct {
	Name string `json:"name"`
	Path string `json:"path"` // absolute, in Root
}

var mountTools = agent.NewOperation[Config, agent.None]("guesttools")

// Ops registers the operation and the applet with package agent.
func Ops() {
	mountTools.Serve(func(ctx context.Context, c Config) (none agent.None, err error) { return none, mount(ctx, c) })
	agent.RegisterApplet(AppletName, applet)
}

// Mount makes a guest mount images and fill BinDir. Call it once.
func Mount(ctx context.Context, a *agent.Client, c Config) error { return mountTools.Do(ctx, a, c) }

// MountAlone is Mount without a host: it mounts in the guest of this process, with the Config in ConfigPath (JSON).
// Without this file it does nothing.
func MountAlone() error {
	b, err := os.ReadFile(ConfigPath)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var c Config
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err == nil {
		err = mount(context.Background(), c)
	}
	if err != nil {
		return fmt.Errorf("tools: %w", err)
	}
	return nil
}

func (im *Image) device(ctx context.Context) (string, error) {
	if im.File == "" {
		return guestroot.WaitDisk(ctx, im.Serial)
	}
	dev, err := loopDevice(im.File)
	if err != nil {
		return "", fmt.Errorf("a loop device for %s: %w", im.File, err)
	}
	return dev, nil
}

func mount(ctx context.Context, c Config) error {
	if len(c.Images) == 0 || c.Images[0].At != "" {
		return errors.New("the first image has to be that of packages")
	}
	images := make([]string, len(c.Images))
	for i, im := range c.Images {
		disk, err := im.device(ctx)
		if err != nil {
			return err
		}
		images[i] = fmt.Sprintf("%s/images/%d", dir, i)
		if err := guestroot.MountAt(disk, images[i], "squashfs", unix.MS_RDONLY, ""); err != nil {
			return err
		}
	}
	// Later mounts in the directories that bindAll binds also appear below Root.
	if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return &os.PathError{Op: "mount --make-rshared", Path: "/", Err: err}
	}
	if err := guestroot.MountAt("tmpfs", Root, "tmpfs", 0, "mode=755,size=1m"); err != nil {
		return err
	}
	if err := system(images[0]); err != nil {
		return err
	}
	if err := bindAll("/", Root); err != nil {
		return err
	}
	if err := bindAll(images[0], Root); err != nil { // directories and links that the guest lacks
		return err
	}
	for i, im := range c.Images[1:] {
		if err := bind(images[i+1], filepath.Join(Root, im.At)); err != nil {
			return err
		}
	}
	return scripts(c.Programs)
}

func bind(from, to string) error {
	return guestroot.MountAt(from, to, "", unix.MS_BIND|unix.MS_REC, "")
}

// usr are the directories below /usr to which a distribution with a merged /usr has links in the root
// directory.
var usr = []string{"bin", "sbin", "lib", "lib64"}

// system mounts Root's /usr, in which the packages' files hide the guest's, and the guest's /etc, and links the
// directories of usr into Root. It copies the packages' files that the guest's /etc and /var lack into these.
func system(image string) error {
	if err := overlay(filepath.Join(Root, "usr"), filepath.Join(image, "usr"), "/usr"); err != nil {
		return err
	}
	for _, d := range usr {
		to := filepath.Join(Root, "usr", d)
		if _, err := os.Stat(to); err != nil {
			continue
		}
		if err := overlay(to, filepath.Join(image, "usr", d), filepath.Join("/usr", d), filepath.Join("/", d)); err != nil {
			return err
		}
		if err := os.Symlink(filepath.Join("usr", d), filepath.Join(Root, d)); err != nil {
			return err
		}
	}
	for _, d := range []string{"/etc", "/var"} {
		if err := fill(filepath.Join(image, d), d); err != nil {
			return err
		}
	}
	// The guest's ld.so.cache lists the guest's libraries: an empty file hides it in Root.
	etc := filepath.Join(Root, "etc")
	if err := bind("/etc", etc); err != nil {
		return err
	}
	if err := unix.Mount("", etc, "", unix.MS_PRIVATE, ""); err != nil { // else /etc also gets the mount at cache
		return &os.PathError{Op: "mount --make-private", Path: etc, Err: err}
	}
	if cache := filepath.Join(etc, "ld.so.cache"); exists(cache) {
		empty := filepath.Join(dir, "ld.so.cache")
		if err := os.WriteFile(empty, nil, 0o644); err != nil {
			return err
		}
		if err := unix.Mount(empty, cache, "", unix.MS_BIND, ""); err != nil {
			return &os.PathError{Op: "mount --bind", Path: cache, Err: err}
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// overlay mounts the existing directories of lower over one another, read-only, at the directory to: an earlier one
// hides files of later ones. If only one exists, overlay bind-mounts it.
func overlay(to string, lower ...string) error {
	lower = slices.DeleteFunc(lower, func(d string) bool {
		st, err := os.Lstat(d)
		return err != nil || !st.IsDir()
	})
	if len(lower) == 1 {
		return bind(lower[0], to)
	}
	return guestroot.MountAt("overlay", to, "overlay", unix.MS_RDONLY, "lowerdir="+strings.Join(lower, ":"))
}

// fill copies regular files of at most fillBytes in all, and fillFiles at most; beyond these it fails.
const (
	fillBytes = 8 << 20
	fillFiles = 2_000
)

// fill copies the directories, regular files and symbolic links of the directory from that the directory to lacks.
// Without from it only makes to.
func fill(from, to string) error {
	if !exists(from) {
		return os.MkdirAll(to, 0o755)
	}
	bytes, files := int64(0), 0
	return filepath.WalkDir(from, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		to := filepath.Join(to, rel)
		st, err := e.Info()
		switch {
		case err != nil:
			return err
		case e.IsDir():
			return os.MkdirAll(to, st.Mode().Perm()|0o700)
		case exists(to):
			return nil
		case e.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			return os.Symlink(target, to)
		case !e.Type().IsRegular():
			return nil
		}
		if bytes, files = bytes+st.Size(), files+1; bytes > fillBytes || files > fillFiles {
			return fmt.Errorf("%s of the packages: more than %d MB or %d files", to, fillBytes>>20, fillFiles)
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		return os.WriteFile(to, text, st.Mode().Perm())
	})
}

// bindAll bind-mounts each directory in from at the same name in the directory to, and copies each symbolic link. It
// skips the name vnic, the names in usr, and names that to already has.
func bindAll(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		to := filepath.Join(to, e.Name())
		if e.Name() == "vnic" || slices.Contains(usr, e.Name()) || exists(to) {
			continue
		}
		switch {
		case e.IsDir():
			err = bind(filepath.Join(from, e.Name()), to)
		case e.Type()&fs.ModeSymlink != 0:
			var target string
			if target, err = os.Readlink(filepath.Join(from, e.Name())); err == nil {
				err = os.Symlink(target, to)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func scripts(programs []Program) error {
	if err := os.MkdirAll(BinDir, 0o755); err != nil {
		return err
	}
	for _, p := range programs {
		if p.Name != filepath.Base(p.Name) || !filepath.IsAbs(p.Path) || strings.ContainsAny(p.Path, "\n") {
			return fmt.Errorf("%q, %q: no program", p.Name, p.Path)
		}
		text := fmt.Sprintf("#!/bin/%s\n%s\n", AppletName, p.Path)
		if err := os.WriteFile(filepath.Join(BinDir, p.Name), []byte(text), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// applet replaces this process by the program of a script: args are the script's path and the program's arguments. It
// returns an exit status only if it fails.
func applet(args []string) int {
	if len(args) == 0 {
		_, _ = fmt.Fprintf(os.Stderr, "%s: not to be started by hand: it runs the programs of %s\n", AppletName, BinDir)
		return 2
	}
	_, _ = fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(args[0]), run(args))
	return 126
}

func run(args []string) error {
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	_, program, _ := strings.Cut(strings.TrimSuffix(string(text), "\n"), "\n")
	if !filepath.IsAbs(program) {
		return fmt.Errorf("%s: names no program", args[0])
	}
	if err := catchUp(); err != nil {
		return err
	}
	wd, _ := os.Getwd()
	if err := unix.Chroot(Root); err != nil {
		return &os.PathError{Op: "chroot", Path: Root, Err: err}
	}
	if wd == "" || unix.Chdir(wd) != nil {
		if err := unix.Chdir("/"); err != nil {
			return err
		}
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LD_LIBRARY_PATH=") })
	err = syscall.Exec(program, append([]string{filepath.Base(args[0])}, args[1:]...), env)
	return &os.PathError{Op: "exec", Path: program, Err: err}
}

// catchUp binds or copies (bindAll) directories and links that the guest's root has got since Mount. A lock keeps
// other processes from doing so meanwhile.
func catchUp() error {
	lock, err := os.OpenFile(dir+"/lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	return bindAll("/", Root)
}

// loopDevice attaches a file to a free loop device (loop(4)), read-only, and returns the device's path. Another
// process that allocates a loop device meanwhile could get the same one; then LOOP_SET_FD fails for one of both.
func loopDevice(file string) (string, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err = errors.Join(os.NewSyscallError("LOOP_CTL_GET_FREE", err), control.Close()); err != nil {
		return "", err
	}
	path := fmt.Sprintf("/dev/loop%d", n)
	dev, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = dev.Close() }()
	image, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer func() { _ = image.Close() }()
	err = unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_SET_FD, int(image.Fd()))
	return path, os.NewSyscallError("LOOP_SET_FD", err)
}
