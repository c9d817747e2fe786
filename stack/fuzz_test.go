package stack_test

import (
	"encoding/binary"
	"io"
	"testing"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/stacktest"
	"vnic.dev/vnic/internal/testkit"
)

// FuzzReceive makes a device deliver changed headers, and payload in posted pages, in pages that are not posted, or in
// one page several times. A read of payload in device memory by netstack would fault.
//
// Invariant: stack: netstack carries the shadow without reading it, whatever a device delivers.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 1, 0, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 3, 0})
	f.Add([]byte("a frame, and another one, and one that is neither: 0123456789abcdefghijklmnopqrstuvwxyz"))
	f.Fuzz(func(t *testing.T, in []byte) {
		w := newRig(t, stacktest.Options{})
		bindRX(t, w.b, 0, 1<<20, 7, 1)
		bindRX(t, w.b, 1<<20, 1<<20, 8, 2)
		ca, cb := w.connect(7, false)
		write(t, ca, string(make([]byte, 100)))
		skip(t, cb, 100)
		next := func() byte {
			if len(in) == 0 {
				return 0
			}
			b := in[0]
			in = in[1:]
			return b
		}
		template := w.nb.LastHeader()
		for frames := 0; len(in) > 0 && frames < 40; frames++ {
			hdr := append([]byte(nil), template...)
			seq := binary.BigEndian.Uint32(hdr[38:])
			binary.BigEndian.PutUint32(hdr[38:], seq+100+uint32(int8(next()))*16)
			fr := driver.RxFrame{Queue: 1, CsumGood: true, Split: true}
			for range next() % 6 {
				page := uint64(next()) * 4096
				if b := next(); b&1 == 0 {
					if p := w.nb.TakePosted(1, 1); len(p) == 1 {
						page = p[0]
					}
				}
				r := driver.Range{Off: page, Len: uint32(next()) * 17}
				fr.Payload = append(fr.Payload, r)
				fr.PayloadLen += int(r.Len)
			}
			if next()&3 != 0 {
				binary.BigEndian.PutUint16(hdr[16:], uint16(len(hdr)-14+fr.PayloadLen))
			}
			for range next() % 4 {
				hdr[int(next())%len(hdr)] = next()
			}
			switch b := next(); {
			case b&15 == 15:
				fr.Queue = int(int8(b))
			case b&15 == 14:
				fr.CsumGood = false
			case b&15 == 13:
				hdr = hdr[:int(next())%len(hdr)]
			case b&15 == 12:
				hdr = append(hdr, make([]byte, int(b)*3)...)
			case b&15 == 11:
				fr.PayloadLen += int(int8(next()))
			}
			fr.Header = hdr
			w.nb.Inject([]driver.RxFrame{fr})
			frags := make([]devmem.Frag, 8)
			if n, nf, _, err := cb.RecvDevmem(frags, make([]byte, 1000), devmem.DontWait); err == nil {
				for _, f := range frags[:nf] {
					if f.Kind == devmem.Dmabuf && (f.Off+uint64(f.Size) > 1<<20 || f.Size == 0) {
						t.Fatalf("%d bytes, %+v", n, frags[:nf])
					}
				}
			}
		}
		cc, cd := w.connect(8, true)
		cd.SetReadDeadline(time.Now().Add(time.Minute))
		write(t, cc, "still here")
		testkit.Equal(t, "bytes", string(w.nb.Memory()[1<<20+frag(t, cd, 10).Off:][:10]), "still here")
		cc.Close()
		if _, err := cd.Read(make([]byte, 1)); err != io.EOF {
			t.Fatal(err)
		}
	})
}
