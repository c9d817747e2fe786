// Package guestroot replaces a guest's root file system by images on read-only disks: the first image is the
// root, the others are layered over it, or mounted at directories below it. At the root and at each of these
// directories a layer in the guest's memory takes the writes, so guests can share the images. The package has
// both ends: Ops registers the operation with package agent, and the host calls it by Mount.
//
// The package is not API (README, Stability).
package guestroot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/limits"
)

// Modules are the kernel modules that a guest needs for Mount, unless they are built in.
var Modules = []string{"virtio_blk", "squashfs", "overlay"}

// Dir is the directory at which Mount assembles the new root.
const Dir = "/newroot"

// ModprobeName is the name of the applet that the kernel starts after Mount to load modules: it runs the new root's
// modprobe.
const ModprobeName = "vnic-modprobe"

// Image is a squashfs on a disk of the guest.
type Image struct {
	Serial string `json:"serial"`
	// At is the directory at which the image is mounted, as "/ks"; "": the root. Files of the image hide files
	// of earlier images with the same At.
	At string `json:"at"`
}

var mountRoot = agent.NewOperation[[]Image, agent.None]("guestroot")

// Ops registers the operation and the applet with package agent.
func Ops() {
	mountRoot.Serve(func(ctx context.Context, images []Image) (none agent.None, err error) {
		return none, mountAll(ctx, images)
	})
	agent.RegisterApplet(ModprobeName, modprobe)
}

// Mount makes a guest mount images as its root; At of the first one must be "". Call it once.
func Mount(ctx context.Context, c *agent.Client, images []Image) error {
	return mountRoot.Do(ctx, c, images)
}

func mountAll(ctx context.Context, images []Image) error {
	if len(images) == 0 || images[0].At != "" {
		return errors.New("the first image has to be the root")
	}
	lower := map[string][]string{} // by At: the directories at which the images are mounted, the last image first
	var places []string
	for i, im := range images {
		disk, err := WaitDisk(ctx, im.Serial)
		if err != nil {
			return err
		}
		dir := fmt.Sprintf("/vnic/images/%d", i)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(disk, dir, "squashfs", unix.MS_RDONLY, ""); err != nil {
			return &os.PathError{Op: "mount squashfs", Path: disk + " (" + im.Serial + ")", Err: err}
		}
		if lower[im.At] == nil {
			places = append(places, im.At)
		}
		lower[im.At] = append([]string{dir}, lower[im.At]...)
	}
	for i, to := range places {
		if err := layer(lower[to], fmt.Sprintf("/vnic/memory/%d", i), filepath.Join(Dir, to)); err != nil {
			return err
		}
	}
	for _, m := range []struct{ kind, to, options string }{
		{"proc", "proc", ""}, {"sysfs", "sys", ""}, {"devtmpfs", "dev", ""}, {"devpts", "dev/pts", "mode=620,ptmxmode=666"},
		{"tmpfs", "dev/shm", ""}, {"tmpfs", "run", ""}, {"tmpfs", "tmp", ""}, {"bpf", "sys/fs/bpf", ""},
		{"tracefs", "sys/kernel/tracing", ""}, {"debugfs", "sys/kernel/debug", ""}, {"cgroup2", "sys/fs/cgroup", ""},
	} {
		to := filepath.Join(Dir, m.to)
		if _, err := os.Stat(to); err != nil {
			if err := os.Mkdir(to, 0o755); err != nil {
				continue // sysfs lacks the directory if the kernel lacks the file system
			}
		}
		err := unix.Mount(m.kind, to, m.kind, 0, m.options)
		if err != nil && !strings.HasPrefix(m.to, "sys/") && !errors.Is(err, unix.EBUSY) {
			return &os.PathError{Op: "mount " + m.kind, Path: to, Err: err}
		}
	}
	if err := os.WriteFile("/proc/sys/kernel/modprobe", []byte("/bin/"+ModprobeName), 0); err != nil {
		return err
	}
	return switchRoot()
}

// layer mounts an overlay at the directory to: the directories lower, the topmost first, below a writable layer in a
// tmpfs, which it mounts at upper.
func layer(lower []string, upper, to string) error {
	if err := MountAt("tmpfs", upper, "tmpfs", 0, "size=75%"); err != nil {
		return err
	}
	for _, d := range []string{"up", "work"} {
		if err := os.Mkdir(filepath.Join(upper, d), 0o755); err != nil {
			return err
		}
	}
	return MountAt("overlay", to, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s/up,workdir=%s/work",
		strings.Join(lower, ":"), upper, upper))
}

// MountAt calls mount(2), with kind as filesystemtype, for the directory to, which it makes if missing.
func MountAt(source, to, kind string, flags uintptr, options string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, to, kind, flags, options); err != nil {
		return &os.PathError{Op: "mount " + kind, Path: to, Err: err}
	}
	return nil
}

// WaitDisk waits for the disk with this serial number, and returns the path of its device. The error is ENODEV after
// limits.Disk times limits.Slow, or if ctx ends first.
func WaitDisk(ctx context.Context, serial string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limits.Disk.Here())
	defer cancel()
	for {
		var disks []string
		files, _ := filepath.Glob("/sys/block/*/serial")
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				continue
			}
			name, got := filepath.Base(filepath.Dir(f)), strings.TrimSpace(string(b))
			if got == serial {
				return "/dev/" + name, nil
			}
			disks = append(disks, fmt.Sprintf("%s %q", name, got))
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("no disk with the serial number %s, of %s: %w: %w", serial, cmp.Or(strings.Join(disks, ", "), "none"),
				unix.ENODEV, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// switchRoot makes Dir the root of this process and of its later children, as switch_root(8) does, but deletes
// no files of the old root. Dir becomes the root of the mount namespace: after chroot(2) alone, Linux forbids
// user namespaces (kernel/user_namespace.c, create_user_ns).
func switchRoot() error {
	if err := unix.Chdir(Dir); err != nil {
		return &os.PathError{Op: "chdir", Path: Dir, Err: err}
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return &os.PathError{Op: "move the root", Path: Dir, Err: err}
	}
	if err := unix.Chroot("."); err != nil {
		return &os.PathError{Op: "chroot", Path: Dir, Err: err}
	}
	return unix.Chdir("/")
}

// modprobe is the main function of the applet ModprobeName. The kernel starts it in the guest's first root, below the
// mount of the new one, to which only the path "/.." leads (fs/namei.c, handle_dots).
func modprobe(args []string) int {
	const program = "/usr/sbin/modprobe"
	err := unix.Chdir("/..")
	if err == nil {
		err = unix.Chroot(".")
	}
	if err == nil {
		err = syscall.Exec(program, append([]string{"modprobe"}, args...), []string{"PATH=/usr/sbin:/usr/bin"})
	}
	_, _ = fmt.Fprintf(os.Stderr, "%s: %s: %v\n", ModprobeName, program, err)
	return 1
}
