// Command strangerrecv receives one connection into GPU memory, on whichever NIC its guest has.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"net/netip"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/guest"
)

func main() {
	if err := receive(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func receive(ctx context.Context) error {
	d, err := guest.Open(ctx)
	if err != nil {
		return err
	}
	defer d.Close()
	addr := netip.AddrPortFrom(d.Addr, 5201)
	buf, err := d.Register(d.GPU, 0, 16<<20)
	if err != nil {
		return err
	}
	_, err1 := d.BindRX(buf, d.Queue)
	_, err2 := d.AddFlow(devmem.Flow{Dst: addr, Queue: d.Queue})
	l, err3 := d.Listen(addr)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	c, err := l.AcceptConn()
	if err != nil {
		return err
	}
	sum, total, linear := sha256.New(), 0, 0
	frags, small := make([]devmem.Frag, 64), make([]byte, 64<<10)
	for {
		n, nfrags, nlinear, err := c.RecvDevmem(frags, small, 0)
		if err == io.EOF {
			fmt.Printf("received %d bytes, %d not in GPU memory, sha256 %x\n", total, linear, sum.Sum(nil))
			return c.Close()
		}
		if err != nil {
			return err
		}
		total, linear = total+n, linear+nlinear
		for _, f := range frags[:nfrags] {
			b := make([]byte, f.Size)
			terr := d.Read(ctx, f.Off, b)
			if _, err := c.DontNeed([]devmem.TokenRange{{Start: f.Token, Count: 1}}); errors.Join(terr, err) != nil {
				return errors.Join(terr, err)
			}
			sum.Write(b)
		}
	}
}
