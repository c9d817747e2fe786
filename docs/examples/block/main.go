// Command block reads a remote device, at most 48 MiB of it, into ordinary memory that stands for a GPU's. It prints
// the rate, and how many bytes of that memory the client read to find the headers of messages. It is the program of
// docs/block.md.
//
//	block nbd 127.0.0.1:10809 EXPORT
//	block nvme-tcp 192.0.2.1:4420 NQN
package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"vnic.dev/vnic/block"
	"vnic.dev/vnic/block/nbd"
	"vnic.dev/vnic/block/nvmetcp"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/devmem/plain"
)

const (
	memory = 64 << 20 // bytes of the GPU: 48 MiB for the data, and 16 MiB of receive buffers
	room   = 48 << 20
	depth  = 8
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: block nbd|nvme-tcp ADDRESS:PORT EXPORT|NQN")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "block:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, protocol, server, name string) (err error) {
	addr, err := netip.ParseAddrPort(server)
	if err != nil {
		return err
	}
	gpu, err := plain.NewGPU(memory)
	if err != nil {
		return err
	}
	dev, err := plain.New(plain.Options{GPUs: []*plain.GPU{gpu}}) // or another devmem.Device, of package guest for example
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close(), gpu.Close()) }()
	data, err1 := dev.Register(0, 0, room)
	pool, err2 := dev.Register(0, room, memory-room)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	d, err := open(ctx, protocol, addr, name, dev, plain.NewMemory(gpu), data, pool)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return read(ctx, d)
}

// open connects to the remote device by protocol, nbd or nvme-tcp; for another protocol it returns an error.
func open(ctx context.Context, protocol string, addr netip.AddrPort, name string, dev devmem.Device, mem devmem.Memory,
	data, pool devmem.Buffer) (block.Device, error) {
	switch protocol {
	case "nbd":
		return nbd.Open(ctx, nbd.Config{Device: dev, Memory: mem, Server: addr, Export: name, Queue: 1, Pool: pool,
			Data: data, Depth: depth, ReadOnly: true})
	case "nvme-tcp":
		return nvmetcp.Open(ctx, nvmetcp.Config{Device: dev, Memory: mem, Target: addr, NQN: name, Queue: 1, Pool: pool,
			Data: data, Depth: depth})
	}
	return nil, fmt.Errorf("protocol %q: nbd or nvme-tcp", protocol)
}

// read reads as much of the device as fits into room, depth operations at a time.
func read(ctx context.Context, d block.Device) error {
	info := d.Info()
	size := min(info.Size, room) / info.BlockSize * info.BlockSize
	bs := min(max(128<<10, info.BlockSize), info.MaxTransfer)
	offset, failed, began := uint64(0), 0, time.Now()
	err := d.Do(ctx, depth, func() (block.Op, bool) {
		o := block.Op{Off: offset, Len: min(bs, size-offset), Mem: offset}
		offset += o.Len
		return o, o.Len > 0
	}, func(x block.Done) { // if x.Err is nil, the bytes are in GPU memory, from x.Mem on
		if x.Err != nil {
			failed++
			fmt.Fprintln(os.Stderr, x.Err)
		}
	})
	if err != nil { // such as a connection that cannot be used any more
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d operations failed", failed)
	}
	s := d.Stats()
	fmt.Printf("%s: %d of %d bytes, %.0f MB/s\n", info.Name, s.Read, info.Size,
		float64(s.Read)/time.Since(began).Seconds()/1e6)
	fmt.Printf("looked at %d bytes in %d calls, for %d heads: %.4f %%\n", s.Looked, s.Looks, s.Messages,
		100*float64(s.Looked)/float64(s.Read))
	return nil
}
