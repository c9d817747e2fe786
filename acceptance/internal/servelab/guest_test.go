package servelab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/guest-images/agent"
	"vnic.dev/vnic/internal/proc"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/lab"
	"vnic.dev/vnic/lab/machines"
	"vnic.dev/vnic/lab/machines/machinetest"
)

// image is what guests boot from.
type image struct {
	*bench
	*machines.Images
	initrd string // file
}

// prepare makes a guest of ours, or a stock one with these files.
func (b *bench) prepare(files map[string]string) *image {
	b.Helper()
	soft := machines.SoftwareFor(b.nic)
	conf := agent.Config{Modules: soft.Modules, HugePages: soft.HugePages, Node0: b.nic == lab.GVE}
	what := guestimages.Options{Applets: []string{"devmem"}}
	if b.stock {
		conf = agent.Config{Modules: stockModules}
		what = guestimages.Options{Modules: stockModules, Files: files,
			Program: machinetest.Program(b.T, "vnic.dev/vnic/acceptance/internal/servelab/guest")}
	}
	im := &image{bench: b, Images: machinetest.Images(b.T, []string{b.nic}, what),
		initrd: filepath.Join(b.dir, "initrd")}
	r := testkit.Must(im.Initrd(conf))(b)
	defer r.Close()
	f, err := os.Create(im.initrd)
	testkit.OK(b, err)
	defer f.Close()
	if _, err := io.Copy(f, r); err != nil {
		b.Fatal(err)
	}
	return im
}

// guest is a QEMU that vnic has not started.
type guest struct {
	*agent.Client
	qemu *proc.Child
	addr string
}

// pair is the guests of both ports.
type pair [2]*guest

func (p *pair) kill() {
	for _, g := range p {
		if g != nil {
			g.kill()
		}
	}
}

// bootAll boots both. The caller kills them, even when there is an error.
func (im *image) bootAll(ctx context.Context, s *server) (*pair, error) {
	var p pair
	errs := make(chan error)
	for i := range p {
		go func() {
			var err error
			p[i], err = im.boot(ctx, s, i)
			errs <- err
		}()
	}
	return &p, errors.Join(<-errs, <-errs)
}

// boot starts QEMU with the arguments for port i, and what any machine has.
func (im *image) boot(ctx context.Context, s *server, i int) (*guest, error) {
	p := s.rep.Ports[i]
	addr, _, _ := strings.Cut(p.Addr4, "/")
	results := filepath.Join(im.dir, fmt.Sprintf("results-%d", i))
	_ = os.Remove(results)
	l, err := net.Listen("unix", results)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	// tsc=unstable: on a busy machine the kernel's clock by the TSC of two CPUs under TCG ran ten
	// times too fast, once in 13 runs.
	args := append(im.QEMU.Args[1:len(im.QEMU.Args):len(im.QEMU.Args)], "-nodefaults", "-no-user-config",
		"-display", "none", "-no-reboot",
		"-accel", "tcg,thread=multi", "-cpu", "max", "-kernel", im.Kernel.Boots(), "-initrd", im.initrd,
		"-append", "console=ttyS0 quiet panic=-1 tsc=unstable "+s.rep.KernelArgs, "-serial", "file:"+im.consoleOf(i),
		"-chardev", "socket,id=results,path="+results, "-serial", "chardev:results")
	cmd := exec.CommandContext(ctx, im.QEMU.Args[0], append(args, p.QEMU...)...)
	cmd.Env = append(os.Environ(), im.QEMU.Env...)
	said, err := os.Create(im.consoleOf(i) + "-qemu") // much, when vnic goes away
	if err != nil {
		return nil, err
	}
	defer said.Close()
	cmd.Stderr = said
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
		return nil, fmt.Errorf("QEMU %d ended: %w", i, qemu.Err())
	}
	g := &guest{agent.NewClient(conn), qemu, addr}
	select {
	case <-g.Booted():
		return g, nil
	case <-g.Done():
		g.kill()
		return nil, fmt.Errorf("guest %d: %w", i, g.Err())
	case <-ctx.Done():
		g.kill()
		return nil, fmt.Errorf("guest %d has not booted: %w", i, ctx.Err())
	}
}

// run runs a program in the guest.
func (g *guest) run(ctx context.Context, r *agent.ExecResult, args []string) error {
	return g.Call(ctx, "exec", agent.Exec{Args: args}, r)
}

func (g *guest) kill() {
	kill(g.qemu)
	_ = g.Close()
}
