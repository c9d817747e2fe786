// Command rdma lets the NIC of one guest write the memory of another guest's GPU, and read it back. It is the program
// of docs/rdma.md. Its guests are in this process, so it needs no QEMU; a program in a QEMU guest calls package
// rdma in the same way.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/rdma"
)

const (
	size = 16 << 20
	room = 64 << 20 // bytes of each GPU's memory
)

// guest has the control channel of a guest's NIC, the NIC's addresses, and the number of the guest's GPU.
type guest struct {
	client *control.Client // here from package driver; if the kernel's driver has the NIC, from kernelnic
	addr   netip.Addr
	mac    net.HardwareAddr
	gpu    uint16
}

// open registers a buffer of the GPU's memory, and makes a memory region of it and a queue pair: each end needs both.
// Device.Close releases what open has made, except the registered buffer.
func (g *guest) open(access uint8) (d *rdma.Device, mr *rdma.MR, qp *rdma.QP, err error) {
	buffer, err := g.client.RegisterBuffer(context.Background(), g.gpu, 0, size) // the NIC may use this memory now
	if err != nil {
		return nil, nil, nil, err
	}
	if d, err = rdma.Open(g.client); err != nil {
		return nil, nil, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	pd, err := d.AllocPD()
	if err != nil {
		return d, nil, nil, err
	}
	if mr, err = pd.RegisterBuffer(buffer, 0, size, access); err != nil {
		return d, nil, nil, err
	}
	cq, err := d.NewCQ(16)
	if err != nil {
		return d, nil, nil, err
	}
	qp, err = pd.NewQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 16})
	return d, mr, qp, err
}

func (g *guest) ends() rdma.Ends { return rdma.Ends{Addr: g.addr, MAC: [6]byte(g.mac)} }

// offer lets the peer write and read the GPU's memory, until the peer sends a byte on conn, an ordinary TCP connection,
// or closes it. After the exchange offer only waits; the guest's NIC does the work.
func (g *guest) offer(ctx context.Context, conn net.Conn) (err error) {
	d, mr, qp, err := g.open(rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	ends := g.ends()
	ends.Offer = mr.Remote() // key, address and length of the memory region
	if _, err := rdma.Exchange(ctx, conn, qp, ends); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}

// use writes this guest's GPU memory to the memory that the peer offers, overwrites this guest's, reads the
// peer's memory back into it, and compares digests.
func (g *guest) use(ctx context.Context, conn net.Conn) (err error) {
	d, mr, qp, err := g.open(rdma.LocalWrite)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	peer, err := rdma.Exchange(ctx, conn, qp, g.ends())
	if err != nil {
		return err
	}
	before, err := g.job(ctx, control.JobFill, 7)
	if err != nil {
		return err
	}
	o := rdma.TransferOptions{Size: 1 << 20, Window: 16}
	put, err := rdma.Put(ctx, qp, mr.Part(0, size), peer.MR, o)
	if err != nil {
		return err // if a work request failed, a *rdma.WCError with it and the reason
	}
	if _, err := g.job(ctx, control.JobPoison, 0); err != nil {
		return err
	}
	got, err := rdma.Get(ctx, qp, mr.Part(0, size), peer.MR, o)
	if err != nil {
		return err
	}
	after, err := g.job(ctx, control.JobSHA256, 0)
	if err != nil {
		return err
	}
	if !bytes.Equal(before, after) {
		return errors.New("what was read back is not what was written")
	}
	c, err := d.Counts(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("put %d bytes by %d work requests, got %d by %d; path MTU %d\n", put.Bytes, put.Completed, got.Bytes,
		got.Completed, peer.Path.MTU)
	fmt.Printf("payload in device memory %d, in host memory %d\n", c.Out.DeviceBytes-c.Out.AgainBytes, c.Out.HostBytes)
	_, err = conn.Write([]byte{0}) // the peer may close now
	return err
}

// job runs the job op of the GPU's engine on the first size bytes of the GPU's memory, and returns their digest
// after it.
func (g *guest) job(ctx context.Context, op control.JobOp, seed uint64) ([]byte, error) {
	if op != control.JobSHA256 {
		if _, err := g.client.RunJob(ctx, control.Job{Op: op, GPU: g.gpu, Len: size, Seed: seed}); err != nil {
			return nil, err
		}
	}
	s, err := g.client.RunJob(ctx, control.Job{Op: control.JobSHA256, GPU: g.gpu, Len: size})
	return s.Sum[:], err
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "rdma:", err)
		os.Exit(1)
	}
}

// run makes two guests in this process, and lets guest 0 use the GPU memory of guest 1.
func run(ctx context.Context) (err error) {
	l, err := lab.Open(lab.Uniform(2, lab.NIC{Model: lab.Virtio, NICOptions: lab.NICOptions{MTU: 9000}}, room),
		lab.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	var guests [2]guest
	for i := range guests {
		p := l.Port(i)
		n, err := p.InProcess(driver.Options{})
		if err != nil {
			return err
		}
		defer func() { _ = n.Close() }()
		guests[i] = guest{client: n.Control(), addr: p.Addr4.Addr(), mac: n.MAC(), gpu: uint16(p.GPU().ID())}
	}
	// The guests may exchange keys over any connection: here it is a TCP connection of this machine.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	offered := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			err = guests[1].offer(ctx, conn)
			_ = conn.Close()
		}
		offered <- err
	}()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return err
	}
	err = guests[0].use(ctx, conn)
	_ = conn.Close() // this ends the peer's wait, also after an error
	return errors.Join(err, <-offered)
}
