// Command devmem-test runs in two guests: guest 1 sends a pattern from its GPU memory to guest 0's GPU memory,
// and guest 0 checks each byte. It is the program of docs/tutorial-test-your-devmem-program.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/guest"
)

const (
	port  = 5201
	total = 8 << 20
)

// pattern returns the byte at an offset of the stream. The period, 251, is not a power of two, so that receive notices
// a page in the wrong place.
func pattern(off int) byte { return byte(off % 251) }

func main() {
	guest.Main(func(ctx context.Context, d *guest.Device) error {
		if d.Index == 0 {
			return receive(d)
		}
		return send(ctx, d)
	})
}

// receive accepts one connection, receives into GPU memory, and checks every byte.
func receive(d *guest.Device) error {
	l, err := d.ListenGPU(port, 16<<20)
	if err != nil {
		return err
	}
	c, err := l.AcceptConn()
	if err != nil {
		return err
	}
	c.SetStallLimit(30 * time.Second) // after so long without progress, calls fail
	frags, linear, page := make([]devmem.Frag, 64), make([]byte, 64<<10), make([]byte, devmem.PageSize)
	got := 0
	for {
		_, n, nlinear, err := c.RecvDevmem(frags, linear, 0)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if nlinear > 0 || n == 0 {
			return fmt.Errorf("%d bytes came through host memory: the flow was not steered", nlinear)
		}
		for _, f := range frags[:n] {
			b := page[:f.Size]
			if _, err := l.Memory.ReadAt(b, int64(f.Off)); err != nil { // on real hardware the GPU would check the bytes
				return err
			}
			for i := range b {
				if b[i] != pattern(got+i) {
					return fmt.Errorf("byte %d is %#x, not %#x", got+i, b[i], pattern(got+i))
				}
			}
			got += len(b)
			if _, err := c.DontNeed([]devmem.TokenRange{{Start: f.Token, Count: 1}}); err != nil {
				return err
			}
		}
	}
	if got != total {
		return fmt.Errorf("%d bytes came, not %d", got, total)
	}
	fmt.Printf("%d bytes, all in device memory\n", got)
	return c.Close()
}

// send fills GPU memory with the pattern, and sends it to guest 0.
func send(ctx context.Context, d *guest.Device) error {
	m, err := d.Alloc(total)
	if err != nil {
		return err
	}
	data := make([]byte, total)
	for i := range data {
		data[i] = pattern(i)
	}
	if _, err := m.WriteAt(data, 0); err != nil {
		return err
	}
	b, err := d.BindTX(m.Buffer)
	if err != nil {
		return err
	}
	c, err := d.DialGuest(ctx, 0, port)
	if err != nil {
		return err
	}
	c.SetStallLimit(30 * time.Second)
	for done := uint64(0); done < total; {
		n, err := c.SendDevmem(b.ID(), []devmem.Range{{Off: done, Len: total - done}})
		if err != nil {
			return err
		}
		if _, _, err := c.ReadCompletion(time.Time{}); err != nil { // after it the sent bytes may change
			return err
		}
		done += uint64(n)
	}
	return c.Close()
}
