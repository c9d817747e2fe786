package guest_test

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/guest"
)

// send sends 1 MiB of GPU memory to guest 0, waits until the peer has acknowledged it, and closes the connection.
func send(ctx context.Context, d *guest.Device) error {
	data := bytes.Repeat([]byte("from GPU to GPU\n"), 1<<16) // 1 MiB
	m, err := d.Alloc(uint64(len(data)))
	if err != nil {
		return err
	}
	if _, err := m.WriteAt(data, 0); err != nil {
		return err
	}
	b, err := d.BindTX(m.Buffer)
	if err != nil {
		return err
	}
	c, err := d.DialGuest(ctx, 0, 5201)
	if err != nil {
		return err
	}
	for done := 0; done < len(data); {
		n, err := c.SendDevmem(b.ID(), []devmem.Range{{Off: uint64(done), Len: uint64(len(data) - done)}})
		if err != nil {
			return err
		}
		if _, _, err := c.ReadCompletion(time.Time{}); err != nil {
			return err
		}
		done += n
	}
	fmt.Printf("sent %d bytes\n", len(data))
	return c.Close()
}

// This program sends GPU memory to guest 0.
func Example_sender() {
	guest.Main(send)
	// Output: sent 1048576 bytes
}
