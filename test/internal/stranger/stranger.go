// Package stranger starts QEMUs with arguments such as `vnic serve` prints, as a user of it does, and boots guests in
// them.
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

// Config has the settings of a QEMU and its guest.
type Config struct {
	Dir    string // folder for the guest's files: console, sockets and QEMU's messages
	Name   string // of the guest, in the files' names
	Initrd string // path of the file that WriteInitrd has written
	Append string // last words of the kernel's command line
	Args   []string
}

// Console returns the path of the file with the output of the guest's console.
func (c *Config) Console() string { return filepath.Join(c.Dir, "console-"+c.Name) }

// WriteInitrd writes the initramfs of im, with the configuration c of the guest's agent, to file.
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

// Guest is a guest that has booted, and its QEMU.
type Guest struct {
	*agent.Client
	qemu    *proc.Child
	monitor string
}

// Boot starts QEMU, which is killed when ctx ends, and waits until the guest has booted. Without an error the
// caller must kill the guest.
func Boot(ctx context.Context, im *machine.Images, c Config) (*Guest, error) {
	results := filepath.Join(c.Dir, "results-"+c.Name)
	_ = os.Remove(results)
	l, err := net.Listen("unix", results)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	// Why tsc=unstable: see tscUnstable in internal/machine/qemu.
	args := append(im.QEMU.Args[1:len(im.QEMU.Args):len(im.QEMU.Args)], "-nodefaults", "-no-user-config",
		"-display", "none", "-no-reboot",
		"-accel", "tcg,thread=multi", "-cpu", "max", "-kernel", im.Kernel.Boots(), "-initrd", c.Initrd,
		"-append", "console=ttyS0 quiet panic=-1 tsc=unstable "+c.Append, "-serial", "file:"+c.Console(),
		"-chardev", "socket,id=results,path="+comma(results), "-serial", "chardev:results",
		"-qmp", "unix:"+comma(c.monitor())+",server=on,wait=off")
	cmd := exec.CommandContext(ctx, im.QEMU.Args[0], append(args, c.Args...)...)
	cmd.Env = append(os.Environ(), im.QEMU.Env...)
	output, err := os.Create(c.Console() + "-qemu") // for QEMU's stderr
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

// words returns at most the last 4 KiB of a file, or nothing if it cannot be read.
func words(file string) []byte {
	b, _ := os.ReadFile(file)
	return b[max(0, len(b)-4<<10):]
}

// comma escapes the commas of a value in QEMU's option lists.
func comma(s string) string { return strings.ReplaceAll(s, ",", ",,") }

// Run runs a program in the guest, waits for its end, and sets *r to the result.
func (g *Guest) Run(ctx context.Context, r *agent.ExecResult, args []string) (err error) {
	*r, err = agent.Run.Call(ctx, g.Client, agent.Exec{Args: args})
	return err
}

// Kill kills the guest's QEMU, waits for its end, and closes the connection to the guest's agent.
func (g *Guest) Kill() {
	Kill(g.qemu)
	_ = g.Close()
}

// Kill sends SIGKILL to the process group of a program that [proc.StartChild] has started, unless the program has
// ended, and waits for the program.
func Kill(program *proc.Child) {
	if !program.Ends(0) {
		_ = syscall.Kill(-program.PID(), syscall.SIGKILL)
	}
	<-program.Done()
}
