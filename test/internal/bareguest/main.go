// Command bareguest makes a minimal guest like a user's own, whose only program beside this one is the given tool. On
// the host it writes an initramfs,
//
//	bareguest -o initrd -tool ./devmem a.ko.xz b.ko.xz
//
// and in that initramfs it is /init: it loads the modules in their order, runs the tool with the words after -- of the
// kernel's command line, and prints on the console the tool's standard error, the length and SHA-256 of its standard
// output, and its exit status. Then it powers the guest off.
package main

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"hash"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/newc"
)

const toolPath = "/usr/bin/devmem"

func main() {
	if os.Getpid() == 1 {
		inGuest()
	}
	out, tool := flag.String("o", "", "file to write"), flag.String("tool", "", "the tool")
	flag.Parse()
	if err := write(*out, *tool, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "bareguest:", err)
		os.Exit(1)
	}
}

func write(out, tool string, modules []string) error {
	list := []newc.File{newc.Dir("proc", 0o755), newc.Dir("sys", 0o755), newc.Dir("dev", 0o755),
		newc.CharDevice("dev/console", 0o600, 5, 1)}
	files := [][2]string{{"init", "/proc/self/exe"}, {strings.TrimPrefix(toolPath, "/"), tool}}
	for i, m := range modules {
		files = append(files, [2]string{fmt.Sprintf("modules/%02d-%s", i, filepath.Base(m)), m})
	}
	for _, f := range files {
		b, err := os.ReadFile(f[1])
		if err != nil {
			return err
		}
		list = append(list, newc.Text(f[0], string(b), 0o755))
	}
	var b bytes.Buffer
	if _, err := newc.Write(&b, list); err != nil {
		return err
	}
	return os.WriteFile(out, b.Bytes(), 0o644)
}

// inGuest runs as process 1 of the guest, and does not return.
func inGuest() {
	if err := run(); err != nil {
		fmt.Println("bareguest:", err)
	}
	time.Sleep(time.Second) // the serial line is slow
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

func run() error {
	for dir, kind := range map[string]string{"/proc": "proc", "/sys": "sysfs", "/dev": "devtmpfs"} {
		if err := unix.Mount(kind, dir, kind, 0, ""); err != nil && err != unix.EBUSY {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	modules, err := filepath.Glob("/modules/*")
	if err != nil {
		return err
	}
	for _, m := range modules { // in the order of their names
		f, err := os.Open(m)
		if err != nil {
			return err
		}
		if err := unix.FinitModule(int(f.Fd()), "", unix.MODULE_INIT_COMPRESSED_FILE); err != nil {
			return fmt.Errorf("%s: %w", m, err)
		}
	}
	words, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	args := strings.Fields(string(words))
	args = args[slices.Index(args, "--")+1:]
	sum := &counting{Hash: sha256.New()}
	cmd := exec.Command(toolPath, args...)
	cmd.Stdout, cmd.Stderr = sum, os.Stdout
	err = cmd.Run()
	fmt.Printf("bareguest: %v: %d bytes, sha256 %x: %v\n", args[0], sum.n, sum.Sum(nil), cmd.ProcessState)
	return err
}

type counting struct {
	hash.Hash
	n int
}

func (c *counting) Write(b []byte) (int, error) {
	c.n += len(b)
	return c.Hash.Write(b)
}
