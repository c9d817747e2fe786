// Command strangersend sends GPU memory to guest 0, on whichever NIC its guest has.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/guest"
)

func main() {
	if err := send(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func send(ctx context.Context) error {
	d, err := guest.Open(ctx)
	if err != nil {
		return err
	}
	defer d.Close()
	data := bytes.Repeat([]byte("from one GPU to another\n"), 100_000)
	buf, err := d.Register(d.GPU, 0, 4<<20)
	if err != nil {
		return err
	}
	b, err1 := d.BindTX(buf)
	if err := errors.Join(err1, d.Write(ctx, 0, data)); err != nil {
		return err
	}
	to := netip.AddrPortFrom(d.AddrOf(0), 5201)
	var c devmem.Conn
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) { // until it listens
		if c, err = d.Dial(ctx, netip.AddrPortFrom(d.Addr, 0), to); err == nil || time.Now().After(end) {
			break
		}
	}
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
