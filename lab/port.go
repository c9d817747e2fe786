package lab

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/qemu"
	"vnic.dev/vnic/wire"
)

// GPUFilePrefix and the port's name is the name of its GPU's memory in /proc.
const GPUFilePrefix = "vnic-gpu"

// ErrClosed is a port's whose world has been closed.
var ErrClosed = errors.New("port closed")

// Port is a NIC, and its GPU if it has one.
type Port struct {
	Index        int
	Name         string
	MAC          wire.MAC
	Addr4, Addr6 netip.Prefix // meant for its guest

	w    *Lab
	dev  device
	gpu  *gpumem.GPU
	file *os.File // the GPU's memory, for QEMU

	life context.Context // ends what is served
	end  context.CancelCauseFunc

	mu      sync.Mutex
	closed  bool // under mu: nothing more is served
	serving sync.WaitGroup
}

func (p *Port) begin() { p.life, p.end = context.WithCancelCause(context.Background()) }

// NIC is the port's end on the wire: counters, meters, link.
func (p *Port) NIC() *nic.Port { return p.dev.Port() }

// Space is the guest's memory, as far as it is shared with the NIC.
func (p *Port) Space() *dma.Space { return p.dev.Space() }

// GPU is nil if the port has none.
func (p *Port) GPU() *gpumem.GPU { return p.gpu }

// GPUFile is the GPU's memory, to be mapped or handed on; nil if the port has none. It is the port's.
func (p *Port) GPUFile() *os.File { return p.file }

// Serve has the NIC speak its protocol on conn, which it owns, until the peer hangs up (nil), ctx or the world ends, or the peer
// breaks the protocol. One connection is served at a time: the caller waits for one Serve to return before the next.
func (p *Port) Serve(ctx context.Context, conn *net.UnixConn) error {
	if !p.enter() {
		return errors.Join(ErrClosed, conn.Close())
	}
	defer p.serving.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.life, func() { cancel(ErrClosed) })()
	return p.dev.Serve(ctx, conn)
}

// Connected serves conn on a goroutine of its own, until that or the world ends: it is what qemu.Netdev wants. An error is logged.
func (p *Port) Connected(conn *net.UnixConn) {
	if !p.enter() {
		_ = conn.Close()
		return
	}
	dma.Go(func() {
		defer p.serving.Done()
		if err := p.dev.Serve(p.life, conn); err != nil && p.life.Err() == nil {
			p.w.opt.Log.Error("connection to QEMU", "port", p.Name, "err", err)
		}
	})
}

// enter counts one more that serves.
func (p *Port) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.serving.Add(1)
	}
	return !p.closed
}

// endServing waits until nothing is served any more: for a while for what ends by itself, as the end of a QEMU that is gone may be
// seen a moment later; then because it is told to.
func (p *Port) endServing() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		p.serving.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(p.w.opt.Farewell):
	}
	p.end(ErrClosed)
	<-ended
}

// openGPU makes GPUFile.
func (p *Port) openGPU() error {
	fd, err := unix.FcntlInt(uintptr(p.gpu.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	p.file = os.NewFile(uintptr(fd), "gpu")
	return nil
}

func (p *Port) closeGPU() error {
	if p.gpu == nil {
		return nil
	}
	err := p.gpu.Close()
	if p.file != nil {
		err = errors.Join(err, p.file.Close())
	}
	return err
}

// Hardware gives a machine the NIC and its GPU: of c it adds to GPUs, Netdevs and Append.
func (p *Port) Hardware(c *qemu.Config) {
	kind := p.w.kind
	if c.Append != "" && kind.KernelArgs != "" {
		c.Append += " "
	}
	c.Append += kind.KernelArgs
	if p.gpu != nil {
		c.GPUs = append(c.GPUs, qemu.GPU{File: p.file, Size: p.gpu.Size(), Node: kind.Node})
	}
	c.Netdevs = append(c.Netdevs, qemu.Netdev{Connected: p.Connected, VFIOUser: kind.VFIOUser, Queues: p.w.opt.QueuePairs,
		MAC: net.HardwareAddr(p.MAC[:]), MTU: p.w.opt.MTU, RXQueueSize: 1024, TXQueueSize: 1024})
}
