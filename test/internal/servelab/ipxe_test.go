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

// romfile is in the arguments that vnic prints for a virtio NIC: the NIC has no boot ROM, so no guest boots from it.
const romfile = "romfile=,"

// ipxe starts QEMU with the arguments that vnic printed for port i, without the texts in leaveOut, so that the NIC's
// iPXE starts. It types commands: iPXE gets its addresses, then fetches and runs the script at url + scriptPath. QEMU
// is killed when ipxe returns.
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
		want []string // texts that the output must have, in this order
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

// say types s. As a serial port buffers few letters, it waits for the echo of each letter before the next one. It
// expects no echo of control characters other than a newline.
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

// expect waits, as [output.until] does, until the output has text behind the text that the last expect found.
func (c *console) expect(text string) error {
	return c.out.until(c.ctx, c.Child, text, func(all string) bool {
		_, rest, ok := strings.Cut(all[c.seen:], text)
		if ok {
			c.seen = len(all) - len(rest)
		}
		return ok
	})
}
