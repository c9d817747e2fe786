package devmem_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/stacktest"
	"vnic.dev/vnic/stack"
)

// receive accepts one connection to addr, receives its data in memory of GPU 0, and returns the data as text.
// mem is GPU 0's memory as the CPU sees it.
func receive(dev devmem.Device, addr netip.AddrPort, mem []byte) (string, error) {
	buf, err := dev.Register(0, 0, 1<<20) // 1 MiB from the GPU's start
	if err != nil {
		return "", err
	}
	binding, err := dev.BindRX(buf, 1) // its pages go to receive queue 1
	if err != nil {
		return "", err
	}
	defer binding.Close()
	flow, err := dev.AddFlow(devmem.Flow{Dst: addr, Queue: 1}) // packets to addr go to queue 1, too
	if err != nil {
		return "", err
	}
	defer dev.DelFlow(flow)
	l, err := dev.Listen(addr)
	if err != nil {
		return "", err
	}
	defer l.Close()
	conn, err := l.AcceptConn()
	if err != nil {
		return "", err
	}
	defer conn.Close()
	var text string
	frags, linear := make([]devmem.Frag, 64), make([]byte, 64<<10) // len(linear) also limits the bytes in frags
	for {
		_, n, _, err := conn.RecvDevmem(frags, linear, 0)
		if err == io.EOF {
			return text, nil
		}
		if err != nil {
			return "", err
		}
		for _, f := range frags[:n] { // a real receiver passes (f.Off, f.Size) to the GPU
			text += string(mem[f.Off : f.Off+uint64(f.Size)])
			if _, err := conn.DontNeed([]devmem.TokenRange{{Start: f.Token, Count: 1}}); err != nil {
				return "", err
			}
		}
	}
}

// send sends [off, off+size), in the first MiB of GPU 0, to addr. It returns nil once that memory may be reused.
func send(dev devmem.Device, addr netip.AddrPort, off, size uint64) error {
	buf, err := dev.Register(0, 0, 1<<20)
	if err != nil {
		return err
	}
	binding, err := dev.BindTX(buf)
	if err != nil {
		return err
	}
	defer binding.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := dial(ctx, dev, addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetStallLimit(time.Minute) // a call that waits for a minute in vain fails, with a diagnosis
	if _, err := conn.SendDevmem(binding.ID(), []devmem.Range{{Off: off, Len: size}}); err != nil {
		return err
	}
	lo, hi, err := conn.ReadCompletion(time.Time{})
	if err != nil {
		return err
	}
	fmt.Printf("sends %d to %d are complete\n", lo, hi)
	return nil
}

// dial retries until it has a connection or ctx ends.
func dial(ctx context.Context, dev devmem.Device, addr netip.AddrPort) (devmem.Conn, error) {
	for {
		conn, err := dev.Dial(ctx, netip.AddrPort{}, addr)
		if err == nil || ctx.Err() != nil {
			return conn, errors.Join(err, ctx.Err())
		}
	}
}

// Example runs a sender and a receiver in one process, on two NICs that a wire in memory joins.
func Example() {
	na, nb := stacktest.NewPair(stacktest.Options{})
	a, err := stack.New(na, na, stack.Options{Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer a.Close()
	b, err := stack.New(nb, nb, stack.Options{Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()
	addr := netip.MustParseAddrPort("10.0.0.2:5201")

	text := make(chan string)
	go func() {
		s, err := receive(b, addr, nb.Memory())
		if err != nil {
			s = err.Error()
		}
		text <- s
	}()
	copy(na.Memory()[5000:], "from GPU to GPU")
	if err := send(a, addr, 5000, 15); err != nil {
		fmt.Println(err)
	}
	fmt.Printf("%q\n", <-text)
	// Output:
	// sends 0 to 0 are complete
	// "from GPU to GPU"
}
