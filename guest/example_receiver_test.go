package guest_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/guest"
)

// receive accepts one connection, and at its end prints the number of received bytes and their SHA-256. It expects all
// bytes to arrive in GPU memory.
func receive(_ context.Context, d *guest.Device) error {
	l, err := d.ListenGPU(5201, 16<<20)
	if err != nil {
		return err
	}
	c, err := l.AcceptConn()
	if err != nil {
		return err
	}
	sum, total := sha256.New(), 0
	frags, linear := make([]devmem.Frag, 64), make([]byte, 64<<10) // len(linear) bounds the bytes of one call
	for {
		n, nfrags, _, err := c.RecvDevmem(frags, linear, 0)
		if err == io.EOF {
			fmt.Printf("received %d bytes: sha256 %x\n", total, sum.Sum(nil))
			return c.Close()
		}
		if err != nil {
			return err
		}
		total += n
		for _, f := range frags[:nfrags] { // a real receiver gives (f.Off, f.Size) to the GPU
			if _, err := io.Copy(sum, io.NewSectionReader(l.Memory, int64(f.Off), int64(f.Size))); err != nil {
				return err
			}
			if _, err := c.DontNeed([]devmem.TokenRange{{Start: f.Token, Count: 1}}); err != nil {
				return err
			}
		}
	}
}

// A receiver in GPU memory. Guest 0 of `vnic boot --guests 2` runs it, because Example_sender sends to guest 0.
func Example_receiver() {
	guest.Main(receive)
	// Output: received 1048576 bytes: sha256 2a87b1e711042d8198230ce05edcb9061c5728b27b22770d8bdac024b7252018
}
