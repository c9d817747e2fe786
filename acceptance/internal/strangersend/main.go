// Command strangersend sends GPU memory to guest 0, on whichever NIC its guest has.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/guest"
)

func main() { guest.Main(send) }

func send(ctx context.Context, d *guest.Device) error {
	data := bytes.Repeat([]byte("from one GPU to another\n"), 100_000)
	m, err := d.Alloc(4 << 20)
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
	fmt.Printf("sent %d bytes, sha256 %x\n", len(data), sha256.Sum256(data))
	return c.Close()
}
