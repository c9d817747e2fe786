//go:build !race

package kernel

import (
	"testing"

	"vnic.dev/vnic/devmem"
)

func TestReceiveAllocatesNothing(t *testing.T) {
	td := newTestDevice(t)
	c, h := pair(t, td)
	frags, linear, one := make([]devmem.Frag, 64), make([]byte, 64), []byte{1}
	n := testing.AllocsPerRun(1000, func() {
		h.Write(one)
		if n, _, _, err := c.RecvDevmem(frags, linear, 0); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
