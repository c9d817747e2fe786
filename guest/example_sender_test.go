package guest_test

import (
	"context"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/guest"
)

// send sends GPU memory to guest 0, and ends when the peer has it all.
func send(ctx context.Context, d *guest.Device) error {
	data := make([]byte, 1<<20)
	m, err := d.Alloc(1 << 20)
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
	return c.Close()
}

// A sender, of GPU memory to that of guest 0.
func Example_sender() { guest.Main(send) }
