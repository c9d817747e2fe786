package servelab

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// prompt of iPXE's command line.
const prompt = "iPXE> "

// romfile is printed so that nothing is booted from the network.
const romfile = "romfile=,"

// ipxe boots port i from the network, with the flags as printed, but for what the text before them
// says to leave out. At iPXE's command line it gets an address, and runs a script from an HTTP
// server at url.
func (im *image) ipxe(ctx context.Context, s *server, i int, url string, leaveOut []string) error {
	p := s.rep.Ports[i]
	args := append(im.QEMU.Args[1:len(im.QEMU.Args):len(im.QEMU.Args)], "-nodefaults", "-no-user-config", "-nographic",
		"-monitor", "none", "-accel", "tcg", "-cpu", "max", "-boot", "n", "-serial", "stdio")
	for _, a := range p.QEMU {
		for _, not := range leaveOut {
			a = strings.Replace(a, not, "", 1)
		}
		args = append(args, a)
	}
	c, err := newConsole(ctx, exec.Command(im.QEMU.Args[0], args...), im.QEMU.Env)
	if err != nil {
		return err
	}
	defer c.kill()
	addr, _, _ := strings.Cut(p.Addr4, "/")
	addr6, _, _ := strings.Cut(p.Addr6, "/")
	for _, step := range []struct {
		say  string
		want []string // in this order
	}{
		{"", []string{"iPXE initialising devices", "Press Ctrl-B for the iPXE command line"}},
		{"\x02", nil},
		{"dhcp\n", []string{"Configuring (net0 " + p.MAC + ")", " ok"}},
		{"ifstat\n", []string{"net0: " + p.MAC + " using virtio-net on ", "Link:up"}},
		{"route\n", []string{"net0: " + addr + "/255.255.255.0 gw " + s.rep.Gateway, "net0: " + addr6 + "/64 "}},
		{"chain " + url + scriptPath + "\n", []string{" ok", scriptSays}},
	} {
		if err := c.say(step.say); err != nil {
			return fmt.Errorf("iPXE: %w", err)
		}
		if step.say != "" {
			step.want = append(step.want, prompt)
		}
		for _, want := range step.want {
			if err := c.expect(want); err != nil {
				return fmt.Errorf("iPXE: after %q: %w", step.say, err)
			}
		}
	}
	im.ok("iPXE, QEMU %s: DHCP gives %s; a script from %s", im.QEMU.Version, addr, url)
	return nil
}

// console is a QEMU whose serial port is at our end of two pipes.
type console struct {
	ctx  context.Context
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  chan []byte // what it said; closed when it has ended
	seen []byte      // not asked for yet
	all  []byte
}

func newConsole(ctx context.Context, cmd *exec.Cmd, env []string) (*console, error) {
	c := &console{ctx: ctx, cmd: cmd, out: make(chan []byte)}
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err == nil {
		c.in, err = cmd.StdinPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	go func() {
		defer close(c.out)
		for {
			b := make([]byte, 4096)
			n, err := out.Read(b)
			if err != nil {
				return
			}
			c.out <- b[:n]
		}
	}()
	return c, nil
}

// say types, a letter after the one before has come back: a serial port holds few.
func (c *console) say(s string) error {
	for _, letter := range s {
		if _, err := io.WriteString(c.in, string(letter)); err != nil {
			return err
		}
		if letter < ' ' && letter != '\n' {
			continue
		}
		if err := c.expect(string(letter)); err != nil {
			return err
		}
	}
	return nil
}

// expect waits until a text has come, and goes on behind it.
func (c *console) expect(text string) error {
	late := time.After(patience)
	for {
		if _, rest, ok := strings.Cut(string(c.seen), text); ok {
			c.seen = []byte(rest)
			return nil
		}
		var err error
		select {
		case b, ok := <-c.out:
			if !ok {
				err = io.EOF
			}
			c.seen, c.all = append(c.seen, b...), append(c.all, b...)
		case <-c.ctx.Done():
			err = c.ctx.Err()
		case <-late:
			err = os.ErrDeadlineExceeded
		}
		if err != nil {
			return fmt.Errorf("no %q: %w: the console says:\n%s", text, err, c.all)
		}
	}
}

func (c *console) kill() {
	_ = c.cmd.Process.Kill()
	for range c.out {
	}
	_ = c.cmd.Wait()
}
