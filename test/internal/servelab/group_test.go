package servelab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/machine/machinetest"
	"vnic.dev/vnic/internal/proc"
	"vnic.dev/vnic/internal/testkit"
)

// The QEMU of another user, in the group of --socket-group, maps the GPU's memory by vnic gpu-fd, and cannot open it by
// its path.
func TestServeGroupsQEMU(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user: nothing was tried")
	}
	cache := testkit.Must(assets.CacheDir(assets.Options{}))(t)
	for _, nic := range []string{lab.Virtio, lab.GVE} {
		t.Run(nic, func(t *testing.T) {
			dir := testkit.Must(os.MkdirTemp("/tmp", "vnic-group"))(t) // only its owner may enter t.TempDir
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			testkit.OK(t, os.Chmod(dir, 0o755))
			b := &bench{T: t, vnic: filepath.Join(dir, "vnic"), dir: dir, nic: nic, start: time.Now()}
			testkit.OK(t, os.WriteFile(b.vnic, testkit.Must(os.ReadFile(program(t)))(t), 0o755))
			im := machinetest.Images(t, []string{nic}, guestimages.Options{})
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			defer cancel()
			s := b.startServe(ctx, "--nic", nic, "--gpu-memory", "4M", "--socket-group", fmt.Sprint(group))
			defer func() { s.kill() }()
			p := s.rep.Ports[1]
			var args, env []string
			for _, arg := range im.QEMU.Args {
				args = append(args, strings.ReplaceAll(arg, cache+"/", ""))
			}
			for _, v := range im.QEMU.Env {
				env = append(env, strings.ReplaceAll(v, cache+"/", ""))
			}
			args = append(args, "-nodefaults", "-no-user-config", "-display", "none", "-accel", "tcg", "-S", "-monitor", "stdio")
			args = append(args, p.QEMU...)

			q := b.startOfGroup(ctx, cache, env, append([]string{b.vnic, "gpu-fd", p.GPUSocket, "--"}, args...))
			defer kill(q.Child)
			b.must("QEMU by gpu-fd", q.output.says(ctx, q.Child, "(qemu)"))
			s.says(ctx, fmt.Sprintf("%s: process %d connected", p.Name, q.PID()))
			maps := string(testkit.Must(os.ReadFile(fmt.Sprintf("/proc/%d/maps", q.PID())))(t))
			if !strings.Contains(maps, "/memfd:vnic-gpu"+p.Name) {
				t.Errorf("the GPU's memory is not mapped: %s", maps)
			}
			b.ok("QEMU of another user has the GPU's memory")
			testkit.Must(io.WriteString(q.monitor, "quit\n"))(t)
			<-q.Done()
			s.says(ctx, fmt.Sprintf("%s: process %d hung up", p.Name, q.PID()))

			for i := range args {
				args[i] = strings.Replace(args[i], "mem-path=/proc/self/fd/3", "mem-path="+p.GPUPath, 1)
			}
			q = b.startOfGroup(ctx, cache, env, args)
			defer kill(q.Child)
			<-q.Done()
			if exit := (*exec.ExitError)(nil); !errors.As(q.Err(), &exit) || exit.ExitCode() != 1 {
				t.Errorf("by %s: %v: %s", p.GPUPath, q.Err(), q.output.String())
			}
			opens := b.startOfGroup(ctx, cache, nil, []string{"/bin/sh", "-c", `exec < "$0"`, p.GPUPath})
			<-opens.Done()
			if opens.Err() == nil {
				t.Errorf("%s can be opened", p.GPUPath)
			}
			testkit.OK(t, testkit.Must(os.Open(p.GPUPath))(t).Close()) // root can open it
			s.term()
		})
	}
}

// IDs of a group and of a user; the test assumes that the group has no members and that the user owns no files.
const group, nobody = 54321, 65534

type groupsQEMU struct {
	*proc.Child
	monitor io.Writer
	output  output
}

// startOfGroup starts a program as the user nobody, in the group. Its working directory is dir, by a descriptor:
// nobody may have no rights on the folders above dir.
func (b *bench) startOfGroup(ctx context.Context, dir string, env, args []string) *groupsQEMU {
	b.Helper()
	q := &groupsQEMU{}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody,
		Groups: []uint32{group}}}
	root, err := os.Open(dir)
	b.must("the cache", err)
	defer root.Close()
	cmd.Dir = fmt.Sprintf("/proc/self/fd/%d", root.Fd())
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &q.output, &q.output
	q.monitor, err = cmd.StdinPipe()
	b.must("stdin", err)
	q.Child, err = proc.StartChild(cmd)
	b.must(args[0], err)
	return q
}
