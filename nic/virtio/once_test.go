package virtio_test

import (
	"testing"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/nic/nictest"
)

// moved is what a copier has moved, by domain of source and destination.
type moved [dma.NumDomains][dma.NumDomains]uint64

func counted(c *dma.Counts) (m moved) {
	for s := range dma.NumDomains {
		for d := range dma.NumDomains {
			m[s][d] = c.Total(s, d)
		}
	}
	return m
}

// Payload is copied once from one guest to the other, and nothing else of a frame but its headers is. Without peer to
// peer it is three times: the same counters see each bounce.
func TestPayloadIsCopiedOnce(t *testing.T) {
	const (
		n    = 40
		size = 5000
	)
	headers := func(m moved, frame *nictest.Frame) moved { // in and out, with virtio_net_hdr
		m[dma.Host][dma.Private] = n * uint64(12+len(frame.Header))
		m[dma.Private][dma.Host] = m[dma.Host][dma.Private]
		return m
	}
	for name, c := range map[string]struct {
		gpu, p2p bool
		want     moved
	}{
		"GPU to GPU":     {true, true, moved{dma.GPU: {dma.GPU: n * size}}},
		"RAM to RAM":     {false, true, moved{dma.Host: {dma.Host: n * size}}},
		"GPU to GPU off": {true, false, moved{dma.GPU: {dma.Host: n * size}, dma.Host: {dma.Host: n * size, dma.GPU: n * size}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldWith(t, rawOptions{pairs: 3, mtu: 9000, p2p: c.p2p})
			to := 0
			if c.gpu {
				to = 1
				w.b.must(w.b.Port().SetSplit(control.Split{Queue: 1, On: true}))
				_, err := w.b.Port().AddFlow(control.FlowRule{Proto: 6, DstPort: 2000, Queue: 1})
				w.b.must(err)
			}
			frame := tcp(w.a, w.b, size)
			before := counted(w.a.dev.Counts(0))
			for range n {
				w.b.Post(to, 2)
				if c.gpu {
					w.a.SendGPU(0, frame)
				} else {
					w.a.Send(0, frame)
				}
				if got := w.b.Receive(to); string(got.Bytes()) != string(frame.Bytes()) {
					t.Fatal("bytes differ")
				}
			}
			got := counted(w.a.dev.Counts(0))
			for s := range got {
				for d := range got[s] {
					got[s][d] -= before[s][d]
				}
			}
			if want := headers(c.want, &frame); got != want {
				t.Errorf("bytes moved, by source and destination (private, host, GPU's file, GPU, wire):\n got %v\nwant %v", got, want)
			}
		})
	}
}
