// Package stranger boots QEMUs as a user of `vnic serve` does.
package stranger

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/proc"
)

// Config has the settings of a QEMU.
type Config struct {
	Dir    string // for the guest's files
	Name   string // of the guest, in the files' names
	Initrd string // written by WriteInitrd
	Append string // last words of the kernel's command line
	Args   []string
}

// Console returns the path of the guest's console.
func (c *Config) Console() string { return filepath.Join(c.Dir, "console-"+c.Name) }

// WriteInitrd writes an initramfs for an agent's configuration.
func WriteInitrd(im *machine.Images, c agent.Config, file string) error {
	r, err := im.Initrd(c)
	if err != nil {
		return err
	}
	defer r.Close()
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(f, r)
	return err
}

// Guest is a guest that has booted.
type Guest struct {
	*agent.Client
	qemu    *proc.Child
	monitor string
}

// Boot starts QEMU, which ends with ctx, and waits until the guest has booted. The caller must kill the guest.
func Boot(ctx context.Context, im *machine.Images, c Config) (*Guest, error) {
	results := filepath.Join(c.Dir, "results-"+c.Name)
	_ = os.Remove(results)
	l, err := net.Listen("unix", results)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	// For tsc=unstable see tscUnstable of package qemu.
	args := append(im.QEMU.Args[1:len(im.QEMU.Args):len(im.QEMU.Args)], "-nodefaults", "-no-user-config",
		"-display", "none", "-no-reboot",
		"-accel", "tcg,thread=multi", "-cpu", "max", "-kernel", im.Kernel.Boots(), "-initrd", c.Initrd,
		"-append", "console=ttyS0 quiet panic=-1 tsc=unstable "+c.Append, "-serial", "file:"+c.Console(),
		"-chardev", "socket,id=results,path="+comma(results), "-serial", "chardev:results",
		"-qmp", "unix:"+comma(c.monitor())+",server=on,wait=off")
	cmd := exec.CommandContext(ctx, im.QEMU.Args[0], append(args, c.Args...)...)
	cmd.Env = append(os.Environ(), im.QEMU.Env...)
	output, err := os.Create(c.Console() + "-qemu") // QEMU writes much there when vnic ends
	if err != nil {
		return nil, err
	}
	defer output.Close()
	cmd.Stderr = output
	qemu, err := proc.StartChild(cmd)
	if err != nil {
		return nil, err
	}
	go func() {
		<-qemu.Done()
		_ = l.Close()
	}()
	conn, err := l.Accept()
	if err != nil {
		<-qemu.Done()
		return nil, fmt.Errorf("QEMU of %s ended: %w: %s", c.Name, qemu.Err(), words(output.Name()))
	}
	g := &Guest{agent.NewClient(conn), qemu, c.monitor()}
	select {
	case <-g.Booted():
		return g, nil
	case <-g.Done():
		g.Kill()
		return nil, fmt.Errorf("guest %s: %w: %s", c.Name, g.Err(), words(output.Name()))
	case <-ctx.Done():
		g.Kill()
		return nil, fmt.Errorf("guest %s has not booted: %w", c.Name, ctx.Err())
	}
}

// words returns the last 4 KiB of a file.
func words(file string) []byte {
	b, _ := os.ReadFile(file)
	return b[max(0, len(b)-4<<10):]
}

// comma escapes a value for QEMU's option lists.
func comma(s string) string { return strings.ReplaceAll(s, ",", ",,") }

// Run runs a program in the guest.
func (g *Guest) Run(ctx context.Context, r *agent.ExecResult, args []string) (err error) {
	*r, err = agent.Run.Call(ctx, g.Client, agent.Exec{Args: args})
	return err
}

// Kill ends the guest's QEMU.
func (g *Guest) Kill() {
	Kill(g.qemu)
	_ = g.Close()
}

// Kill ends a program, and its process group, by SIGKILL.
func Kill(program *proc.Child) {
	if !program.Ends(0) {
		_ = syscall.Kill(-program.PID(), syscall.SIGKILL)
	}
	<-program.Done()
}
