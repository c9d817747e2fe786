// Command strangerrecv receives one connection into GPU memory, on whichever NIC its guest has.
package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/guest"
)

func main() { guest.Main(receive) }

func receive(_ context.Context, d *guest.Device) error {
	l, err := d.ListenGPU(5201, 16<<20)
	if err != nil {
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
		} else if err != nil {
			return err
		}
		total, linear = total+n, linear+nlinear
		for _, f := range frags[:nfrags] {
			if _, err := io.Copy(sum, io.NewSectionReader(l.Memory, int64(f.Off), int64(f.Size))); err != nil {
				return err
			}
			if _, err := c.DontNeed([]devmem.TokenRange{{Start: f.Token, Count: 1}}); err != nil {
				return err
			}
		}
	}
}
