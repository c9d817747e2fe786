package nictest

import (
	"testing"

	"vnic.dev/vnic/dma"
)

// moved counts copied bytes by the kinds of memory of source and destination.
type moved [dma.NumMemKinds][dma.NumMemKinds]uint64

func counted(c *dma.Counts) (m moved) {
	for s := range dma.NumMemKinds {
		for d := range dma.NumMemKinds {
			m[s][d] = c.Total(s, d)
		}
	}
	return m
}

// Without peer to peer there are two more copies: the payload goes through the host memory of both NICs.
//
// Invariant: nic: Payload is copied once, unless it is bounced or held.
func once(t *testing.T, lab Lab, traits Traits) {
	const (
		n    = 40
		size = 5000
	)
	for name, c := range map[string]struct {
		gpu, p2p bool
		want     moved
	}{
		"GPU to GPU": {true, true, moved{dma.GPU: {dma.GPU: n * size}}},
		"RAM to RAM": {false, true, moved{dma.Host: {dma.Host: n * size}}},
		"GPU to GPU off": {true, false,
			moved{dma.GPU: {dma.Host: n * size}, dma.Host: {dma.Host: n * size, dma.GPU: n * size}}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := lab(t, Options{NoP2P: !c.p2p})
			to := 0
			if c.gpu {
				to = 1
				SplitTo(t, b, 1, 2000)
			}
			frame := Make(b.MAC(), a.MAC(), Spec{Payload: size})
			before := counted(a.Copied(0))
			for range n {
				b.Post(to, 2)
				if c.gpu {
					a.SendGPU(0, frame)
				} else {
					a.Send(0, frame)
				}
				Arrives(t, b, to, &frame)
			}
			got, want := counted(a.Copied(0)), c.want
			for s := range got {
				for d := range got[s] {
					got[s][d] -= before[s][d]
				}
			}
			// The sender's NIC reads the headers, and the receiver's writes them.
			want[dma.Host][dma.Private] = n * uint64(traits.RingHeader+len(frame.Header))
			want[dma.Private][dma.Host] = want[dma.Host][dma.Private]
			if got != want {
				t.Errorf("bytes moved, by source and destination (private, host, GPU's file, GPU, wire):\n got %v\nwant %v", got,
					want)
			}
		})
	}
}
