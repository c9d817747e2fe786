package block

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/broker"
	"vnic.dev/vnic/internal/guestnvme"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/memavail"
	"vnic.dev/vnic/internal/proc"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/transfer"
)

// Peer is the server of the device: the user's, or the command's own.
type Peer struct {
	target target
	text   string
	start  func(ctx context.Context, s *session.Set) (netip.AddrPort, error)
	close  func() error
	child  *proc.Child // the nbdkit that the command has started; nil: none

	content     session.Content // content of the device; nil: unknown
	contentText string
	// written reports whether the device's n bytes from pos on are the bytes that gen makes from position 0 on. It
	// reads them from the disk's memory, not from the server. nil: this process does not see the disk.
	written     func(pos, n uint64, gen session.Content) bool
	writtenText string
	restore     func() // writes content to the disk again; may be nil
}

// Peer finds the user's server, or prepares the command's own and sets the options for it. Call it before this process
// gives up its rights. The caller closes the Peer after Do.
func (o *Options) Peer(ctx context.Context) (*Peer, error) {
	switch {
	case o.URL != "":
		return o.foreign(ctx)
	case o.InProc:
		return o.nbdkit(ctx)
	}
	return o.nvmet()
}

// Close ends the nbdkit, or releases the disk, that Options.Peer made for the command's own server.
func (p *Peer) Close() error { return p.close() }

// claim makes Close signal the nbdkit by the broker, because the sandbox forbids this process to signal others. Without
// an nbdkit or a broker it does nothing.
func (p *Peer) claim(b *broker.Client) error {
	if p.child == nil || b == nil {
		return nil
	}
	signal, err := b.Own(p.child.PID())
	if err == nil {
		p.child.SignalBy(signal)
	}
	return err
}

func (o *Options) foreign(ctx context.Context) (*Peer, error) {
	addr, err := o.resolve(ctx)
	if err != nil {
		return nil, err
	}
	p := &Peer{target: o.target, text: o.URL, close: func() error { return nil },
		start: func(context.Context, *session.Set) (netip.AddrPort, error) { return addr, nil }}
	if o.Content == ContentNBDKit {
		p.content, p.contentText = nbdkitPattern, "nbdkit's pattern"
	}
	return p, nil
}

// Names of the command's own NVMe/TCP target: its subsystem, its guest, and the serial number of its disk.
const (
	ownNQN    = "nqn.2026-01.dev.vnic:disk"
	ownServer = "target"
	serial    = "disk"
)

// nvmet returns the Peer for Linux's NVMe/TCP target in a second guest, with a disk in the host's memory.
func (o *Options) nvmet() (*Peer, error) {
	size := (o.Offset + o.Size + 1<<20 - 1) &^ (1<<20 - 1)
	if err := memavail.Enough(size, "/"); err != nil {
		return nil, fmt.Errorf("--size, --offset: a disk of %s: %w", lab.FormatBytes(size), err)
	}
	disk, err := qemu.NewMemory("disk", size)
	if err != nil {
		return nil, fmt.Errorf("a disk of %s: %w", lab.FormatBytes(size), err)
	}
	// The disk is mapped because the sandbox forbids pwrite(2).
	mem, err := unix.Mmap(int(disk.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("a disk of %s: %w", lab.FormatBytes(size), err), disk.Close())
	}
	p := &Peer{target: target{protocol: transfer.NVMeTCP, name: ownNQN, namespace: 1},
		text:    "Linux's nvmet in guest " + ownServer,
		close:   func() error { return errors.Join(unix.Munmap(mem), disk.Close()) },
		content: session.Pattern(o.Seed), contentText: "what the host put on the disk", writtenText: "the target's disk"}
	p.restore = func() { gpumem.FillAt(mem, o.Seed, 0) }
	p.restore()
	p.written = func(pos, n uint64, gen session.Content) bool { return sameBytes(mem[pos:pos+n], gen) }
	o.Servers = append([]session.Server{{Name: ownServer, Model: lab.Virtio, Modules: guestnvme.TargetModules,
		Disks: []qemu.Disk{{File: disk, Serial: serial}}}}, o.Servers...)
	p.start = func(ctx context.Context, s *session.Set) (netip.AddrPort, error) {
		b := s.Servers[0]
		addr := netip.AddrPortFrom(b.Addr, guestnvme.Port)
		ctx, cancel := context.WithTimeout(ctx, limits.Setup.Here())
		defer cancel()
		err := guestnvme.Serve(ctx, b.QEMU.Agent(), guestnvme.Target{NQN: ownNQN, Addrs: []netip.AddrPort{addr},
			Disks: []string{serial}})
		if err != nil {
			err = fmt.Errorf("guest %s: %w", b.Name, err)
		}
		return addr, err
	}
	return p, nil
}

// nbdkit starts nbdkit with its memory plugin, waits until it listens on loopback, and returns its Peer.
func (o *Options) nbdkit(ctx context.Context) (*Peer, error) {
	path, err := exec.LookPath("nbdkit")
	if err != nil {
		return nil, &assets.Missing{What: "no nbdkit, which in-process guests would have for a server", Err: err,
			Fix: "install nbdkit, name a server as nbd://localhost, or leave out --guest inproc"}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr, err := netip.ParseAddrPort(l.Addr().String())
	if err := errors.Join(err, l.Close()); err != nil {
		return nil, err
	}
	size := o.Offset + o.Size
	cmd := exec.CommandContext(ctx, path, "--foreground", "--exit-with-parent", "--ipaddr", "127.0.0.1", "--port",
		strconv.Itoa(int(addr.Port())), "memory", "size="+strconv.FormatUint(size, 10))
	child, err := proc.StartChild(cmd)
	if err != nil {
		return nil, fmt.Errorf("nbdkit: %w", err)
	}
	end := func() error {
		child.End(limits.CloseWait.Here())
		return nil
	}
	if err := listens(ctx, addr, child); err != nil {
		return nil, errors.Join(err, end())
	}
	o.target = target{protocol: transfer.NBD, host: "127.0.0.1", port: addr.Port()}
	o.Gateway = &lab.GatewayFlags{HostPorts: strconv.Itoa(int(addr.Port()))}
	p, err := o.foreign(ctx)
	if err != nil {
		return nil, errors.Join(err, end())
	}
	p.text, p.close, p.child = "nbdkit memory", end, child
	if o.Read {
		p.content, p.contentText = func(b []byte, _ uint64) { clear(b) }, "zeros" // a new disk has zeros
	}
	if o.Write && len(o.Modes) > 1 {
		p.content = nil // unknown in all modes, as later ones read what the first one has written
	}
	return p, nil
}

func listens(ctx context.Context, addr netip.AddrPort, child *proc.Child) error {
	ctx, cancel := context.WithTimeout(ctx, limits.StorageServer.Here())
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr.String())
		if err == nil {
			return c.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("nbdkit at %v: %w", addr, err)
		case <-child.Done():
			return fmt.Errorf("nbdkit ended: %w", child.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}
