package servelab

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"vnic.dev/vnic/internal/proc"
)

const prompt = "iPXE> "

// romfile keeps QEMU from booting from the network.
const romfile = "romfile=,"

// ipxe boots a guest from the network, with the printed flags without the texts in leaveOut, and runs the script of
// the server at url.
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
	defer kill(c.Child)
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

// console is a QEMU with a serial port on two pipes.
type console struct {
	*proc.Child
	ctx  context.Context
	in   io.WriteCloser
	out  output
	seen int // bytes of the output that expect has consumed
}

func newConsole(ctx context.Context, cmd *exec.Cmd, env []string) (c *console, err error) {
	c = &console{ctx: ctx}
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &c.out, os.Stderr
	if c.in, err = cmd.StdinPipe(); err == nil {
		c.Child, err = proc.StartChild(cmd)
	}
	return c, err
}

// A serial port buffers few letters.
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

// expect waits for a text behind the last one.
func (c *console) expect(text string) error {
	return c.out.until(c.ctx, c.Child, text, func(all string) bool {
		_, rest, ok := strings.Cut(all[c.seen:], text)
		if ok {
			c.seen = len(all) - len(rest)
		}
		return ok
	})
}
