// Command servelab is a stranger with a QEMU of his own: it starts `vnic serve --json`, gives two QEMUs the arguments that it
// prints, and has their guests send from GPU to GPU. One of them is killed and comes again. At the end vnic gets a SIGTERM while
// both run. With -stock the guests have the kernel's virtio_net, and everything is tried that people do to it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"vnic.dev/vnic/guest-images/agent"
)

var (
	bin    = flag.String("vnic", "", "the program under test")
	cache  = flag.String("cache", "", "its cache")
	nic    = flag.String("nic", "virtio", "virtio or gve")
	dir    = flag.String("dir", "", "for sockets and consoles")
	linux  = flag.Bool("stock", false, "guests with the kernel's virtio_net instead")
	given  = flag.String("qemu", "", "the user's QEMU (default: the cache's)")
	client = flag.Bool("client", false, "QEMU listens, vnic connects")
	limit  = flag.Duration("limit", 3*time.Minute, "for all of it")
)

func main() {
	inGuest()
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	f := devmem
	if *linux {
		f = stock
	}
	if err := f(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL", err)
		os.Exit(1)
	}
}

var start = time.Now()

func ok(format string, args ...any) {
	fmt.Printf("ok   %5.1f s  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
}

// devmem has the guests' tool send from GPU to GPU.
func devmem(ctx context.Context) error {
	im, err := prepare(ctx, nil)
	if err != nil {
		return err
	}
	s, err := startServe(ctx, "--nic", *nic, "--gpu-memory", "128M", fmt.Sprintf("--client=%t", *client))
	if err != nil {
		return err
	}
	defer func() { s.kill() }()
	ok("vnic serve --nic %s --client=%t: %d ports", s.rep.NIC, *client, len(s.rep.Ports))
	guests, err := im.bootAll(ctx, s)
	defer guests.kill()
	if err != nil {
		return err
	}
	ok("QEMU %s runs with what was printed, twice", im.QEMU.Version)
	if err := send(ctx, guests[0], guests[1]); err != nil {
		return err
	}
	ok("64 MiB from GPU to GPU")
	guests[1].kill()
	if guests[1], err = im.boot(ctx, s, 1); err != nil {
		return err
	}
	ok("one QEMU was killed, and another took its NIC")
	if err := send(ctx, guests[0], guests[1]); err != nil {
		return err
	}
	ok("64 MiB from GPU to GPU")
	if *nic == "virtio" { // QEMU's vfio-user does not come back
		if s, err = s.again(ctx); err != nil {
			return err
		}
		for _, p := range s.rep.Ports {
			if err := s.says(ctx, p.Name+": warning: process "); err != nil {
				return err
			}
		}
		ok("vnic was killed and started again, and warns of both QEMUs: they have the GPU memory of the first")
	}
	took, err := s.term()
	if err != nil {
		return err
	}
	ok("SIGTERM under two QEMUs: gone after %v, status 0", took.Round(time.Millisecond))
	for _, p := range s.rep.Ports {
		if *client {
			break // the sockets are QEMU's
		}
		if _, err := os.Lstat(p.Socket); err == nil {
			return fmt.Errorf("%s is left", p.Socket)
		}
	}
	return nil
}

// send has the tool of the guests send device memory.
func send(ctx context.Context, a, b *guest) error {
	iface := map[string]string{"virtio": "virtio", "gve": "eth0"}[*nic]
	common := []string{"-f", iface, "-s", b.addr, "-p", "5201", "-v", "7"}
	got := make(chan error, 1)
	var r agent.ExecResult
	go func() { got <- b.run(ctx, &r, append([]string{"/bin/devmem", "recv", "-L"}, common...)) }()
	for {
		var s agent.ExecResult
		if err := a.run(ctx, &s, append([]string{"/bin/devmem", "send", "-c", a.addr, "-b", "64M"}, common...)); err != nil {
			return err
		}
		if s.Status != 0 && (strings.Contains(s.Stderr, "connection refused") || strings.Contains(s.Stderr, "no route to host")) {
			select {
			case err := <-got:
				return fmt.Errorf("recv: %+v, %w", r, err)
			default:
			}
			continue // it does not listen yet
		}
		if s.Status != 0 {
			return fmt.Errorf("send: %+v", s)
		}
		break
	}
	if err := <-got; err != nil {
		return err
	}
	if r.Status != 0 || !strings.Contains(r.Stdout, "Validated buffer") || !strings.Contains(r.Stderr, "total_received=67108864\n") ||
		!strings.Contains(r.Stderr, "linear_received=0\n") {
		return fmt.Errorf("recv: %+v", r)
	}
	return nil
}

func consoleOf(i int) string { return filepath.Join(*dir, fmt.Sprintf("console-%d", i)) }
