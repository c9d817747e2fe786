// Package guestroot gives a guest a root file system besides its own: images on read-only disks, each below a directory
// of the first one, under a layer of memory that takes what is written. It is both ends: Ops registers the operation
// with package agent, Mount is the host's call of it. From then on it is the root of the agent and of all that it
// starts; of the agent's own program nothing is there any more but what it has in memory.
//
// Memory that is written to is the guest's; nothing of the images changes, so any number of guests share them.
//
// The package is not API (README, Stability).
package guestroot

import (
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

// Modules are the kernel modules that a guest needs, unless they are built in. Images must be squashfs.
var Modules = []string{"virtio_blk", "squashfs", "overlay"}

// Dir is where the root is made.
const Dir = "/newroot"

// ModprobeName is the name of the applet that the kernel has load modules, which the guest's image has to have: it runs
// modprobe of the new root.
const ModprobeName = "vnic-modprobe"

// Image is a squashfs on a disk of the guest.
type Image struct {
	Serial string `json:"serial"` // of the disk
	// At is where the image is mounted, below the root: "/ks"; "" for the first one. It hides an earlier image at the
	// same place.
	At string `json:"at"`
}

var mountRoot = agent.NewOperation[[]Image, agent.None]("guestroot")

// Ops registers the operation and the applet.
func Ops() {
	mountRoot.Serve(func(ctx context.Context, images []Image) (none agent.None, err error) {
		return none, mountAll(ctx, images)
	})
	agent.RegisterApplet(ModprobeName, modprobe)
}

// Mount has a guest mount images, and make them its root. It is called once.
func Mount(ctx context.Context, c *agent.Client, images []Image) error {
	return mountRoot.Do(ctx, c, images)
}

func mountAll(ctx context.Context, images []Image) error {
	if len(images) == 0 || images[0].At != "" {
		return errors.New("the first image has to be the root")
	}
	lower := map[string][]string{} // at each place, the last one first
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
				continue // a directory of sysfs that this kernel has not: it has no such file system either
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

// layer mounts images at a directory, with a layer of memory above them.
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

// MountAt makes a directory and mounts a file system of a kind there.
func MountAt(source, to, kind string, flags uintptr, options string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, to, kind, flags, options); err != nil {
		return &os.PathError{Op: "mount " + kind, Path: to, Err: err}
	}
	return nil
}

// WaitDisk gives the device of a disk of this guest by its serial number, once the kernel has it: within 20 s.
func WaitDisk(ctx context.Context, serial string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limits.Disk.Here())
	defer cancel()
	for {
		files, _ := filepath.Glob("/sys/block/*/serial")
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) == serial {
				return "/dev/" + filepath.Base(filepath.Dir(f)), nil
			}
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("no disk with the serial number %s: %w", serial, unix.ENODEV)
		case <-time.After(10 * time.Millisecond): // sysfs tells nobody
		}
	}
}

// switchRoot makes Dir the root of this process and of what it starts, as switch_root(8) does: the root of its mount
// namespace, so that programs may make user namespaces, which those below chroot(2) may not (kernel/user_namespace.c,
// create_user_ns).
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

// modprobe is the applet. The kernel starts it below the root that process 1 has, the guest's first one; that a mount
// is above it only dot-dot tells (fs/namei.c, handle_dots).
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
