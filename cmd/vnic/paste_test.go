package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

// printed is a running vnic serve, and the commands that it has printed, by title.
type printed struct {
	*exec.Cmd
	commands map[string]string
}

func serveAndRead(t *testing.T, dir string, env []string, ports int, args ...string) *printed {
	t.Helper()
	args = append([]string{"serve", "--socket-path", dir + "/s%d", "--ports", fmt.Sprint(ports)}, args...)
	p := &printed{exec.Command("vnic", args...), map[string]string{}}
	p.Env = env
	out := bufio.NewScanner(testkit.Must(p.StdoutPipe())(t))
	testkit.OK(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill() })
	title := ""
	for out.Scan() {
		line := out.Text()
		if rest, ok := strings.CutPrefix(line, "# "); ok {
			title, _, _ = strings.Cut(rest, ":")
			continue
		}
		if title == "" || line == "" {
			continue
		}
		p.commands[title] += line + "\n"
		if strings.HasPrefix(title, "or all ") && !strings.HasSuffix(line, "\\") {
			return p
		}
	}
	t.Fatalf("it ends without a command for all ports: %v", p.commands)
	return nil
}

// QEMU is not in PATH. The guest's program must not be a session leader: at the end of one, output of a serial
// line can be lost (guest-images/internal/console).
//
// Invariant: vnic serve: Printed flags can be pasted into a shell.
func TestPrintedCommandsBoot(t *testing.T) {
	atNight(t)
	cache := cacheWithQEMU(t)
	vnic := testkit.Must(exec.LookPath("vnic"))(t)
	for _, tt := range []struct {
		nic   string
		ports int // with virtio the last NIC is for devmem programs
		up    string
	}{
		{lab.GVE, 2, "10.118.110.1/24 10.118.110.2/24"},
		{lab.Virtio, 3, "10.118.110.1/24 10.118.110.2/24"},
	} {
		t.Run(tt.nic, func(t *testing.T) {
			dir := t.TempDir()
			testkit.OK(t, os.Chmod(dir, 0o700))
			bin := filepath.Join(dir, "bin") // PATH without QEMU
			testkit.OK(t, errors.Join(os.Mkdir(bin, 0o755), os.Symlink(vnic, filepath.Join(bin, "vnic"))))
			env := []string{"PATH=" + bin, "HOME=" + dir, assets.EnvCache + "=" + cache, "VNIC_RUNTIME_DIR=" + dir}
			build := exec.Command("vnic", "image", "build", "--offline", "--cache", cache, "--nic", tt.nic, "-o", dir+"/image",
				"--", "sh", "-c", "echo up $(ip -4 -o addr show scope global | "+
					"while read n name inet addr rest; do echo $addr; done); "+
					"read pid name state parent group session rest < /proc/self/stat; [ $session != $$ ] && exit 7")
			output, err := build.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, output)
			}
			s := serveAndRead(t, dir, env, tt.ports, "--nic", tt.nic, "--gpu-memory", "64M", "--image", dir+"/image")
			for title, up := range map[string]string{"port1": "10.118.110.2/24",
				fmt.Sprintf("or all %d ports in one guest", tt.ports): tt.up} {
				ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
				defer cancel()
				c := exec.CommandContext(ctx, "/bin/sh", "-c", "exec "+s.commands[title])
				c.Env, c.WaitDelay = env, time.Second
				out, err := c.CombinedOutput()
				text := strings.ReplaceAll(string(out), "\r", "")
				for _, want := range []string{"up " + up + "\n", "\nvnic-guest: sh: exit status 7\n"} {
					if err != nil || !strings.Contains(text, want) {
						t.Errorf("%s: %v, without %q: %s", title, err, want, text)
						break
					}
				}
			}
			testkit.OK(t, s.Process.Signal(unix.SIGTERM))
			testkit.OK(t, s.Wait())
		})
	}
}
