package stack_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/stacktest"
	"vnic.dev/vnic/internal/testkit"
)

// BenchmarkReceive measures how a stack receives frames into device memory and into host memory, and for comparison a
// copy.
func BenchmarkReceive(b *testing.B) {
	for _, size := range []int{1448, 64000} {
		b.Run(fmt.Sprintf("copy/%d", size), func(b *testing.B) {
			src, dst := make([]byte, 16<<20), make([]byte, size)
			b.SetBytes(int64(size))
			for i := range b.N {
				off := i * size % (len(src) - size)
				copy(dst, src[off:])
			}
		})
		b.Run(fmt.Sprintf("device/%d", size), func(b *testing.B) { benchReceive(b, size, true) })
		b.Run(fmt.Sprintf("host/%d", size), func(b *testing.B) { benchReceive(b, size, false) })
	}
}

func benchReceive(b *testing.B, size int, device bool) {
	w := newRig(b, stacktest.Options{GPUSize: 64 << 20, RingSize: 4096})
	bindRX(b, w.b, 0, 64<<20, 7, 1)
	ca, cb := w.connect(7, false)
	write(b, ca, "x")
	skip(b, cb, 1)
	hdr := w.nb.LastHeader()
	seq := binary.BigEndian.Uint32(hdr[38:]) + 1
	const batch = 8
	frags, linear := make([]devmem.Frag, 32*batch), make([]byte, size*batch)
	frames := make([]driver.RxFrame, batch)
	tokens := make([]devmem.TokenRange, 0, devmem.MaxTokenRanges)
	read := func(n int) {
		for n > 0 {
			if !device {
				k := testkit.Must(cb.Read(linear[:min(n, len(linear))]))(b)
				n -= k
				continue
			}
			k, nf, _, err := cb.RecvDevmem(frags, linear[:n], 0)
			testkit.OK(b, err)
			n -= k
			for _, f := range frags[:nf] {
				if tokens = append(tokens, devmem.TokenRange{Start: f.Token, Count: 1}); len(tokens) == cap(tokens) {
					cb.DontNeed(tokens)
					tokens = tokens[:0]
				}
			}
		}
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += batch {
		k := min(batch, b.N-i)
		for j := range k {
			fr := &frames[j]
			fr.Queue, fr.CsumGood, fr.Split = 0, true, device
			fr.Header = append(fr.Header[:0], hdr...)
			binary.BigEndian.PutUint32(fr.Header[38:], seq)
			ip := header.IPv4(fr.Header[header.EthernetMinimumSize:])
			ip.SetTotalLength(uint16(len(hdr) - header.EthernetMinimumSize + size))
			ip.SetChecksum(0)
			ip.SetChecksum(^ip.CalculateChecksum())
			fr.Payload = fr.Payload[:0]
			if device {
				fr.Queue, fr.PayloadLen = 1, size
				for left, pages := size, w.nb.TakePosted(1, (size+4095)/4096); left > 0; left -= 4096 {
					fr.Payload = append(fr.Payload, driver.Range{Off: pages[0], Len: uint32(min(left, 4096))})
					pages = pages[1:]
				}
			} else {
				fr.Header = append(fr.Header, linear[:size]...)
			}
			seq += uint32(size)
		}
		w.nb.Inject(frames[:k])
		read(k * size)
	}
}

// BenchmarkStream measures transfers, from device memory to device memory and from host memory to host memory, between
// two stacks over a pair of NICs in one process.
func BenchmarkStream(b *testing.B) {
	for _, v := range []struct {
		name   string
		o      stacktest.Options
		device bool
	}{
		{"device/64k", stacktest.Options{}, true}, {"host/64k", stacktest.Options{}, false},
		{"device/1500", stacktest.Options{Cut: true}, true}, {"host/1500", stacktest.Options{Cut: true}, false},
		{"device/1500-merged", stacktest.Options{Cut: true, Merge: true}, true},
	} {
		b.Run(v.name, func(b *testing.B) {
			v.o.GPUSize = 64 << 20
			v.o.RingSize = 1024
			w := newRig(b, v.o)
			tx := bindTX(b, w.a, 0, 64<<20)
			bindRX(b, w.b, 0, 32<<20, 7, 1)
			port := uint16(8)
			if v.device {
				port = 7
			}
			ca, cb := w.connect(port, false)
			const chunk = 1 << 20
			b.SetBytes(chunk)
			b.ReportAllocs()
			b.ResetTimer()
			go func() {
				buf := make([]byte, chunk)
				for i := range b.N {
					if v.device {
						ca.SendDevmem(tx.ID(), []devmem.Range{{Off: uint64(i % 64 * chunk), Len: chunk}})
					} else {
						ca.Write(buf)
					}
				}
				ca.CloseWrite()
			}()
			frags, linear := make([]devmem.Frag, 256), make([]byte, chunk)
			for {
				if !v.device {
					if _, err := cb.Read(linear); err == io.EOF {
						break
					} else if err != nil {
						b.Fatal(err)
					}
					continue
				}
				_, nf, _, err := cb.RecvDevmem(frags, linear, 0)
				if err == io.EOF {
					break
				}
				testkit.OK(b, err)
				var ts []devmem.TokenRange
				for _, f := range frags[:nf] {
					ts = append(ts, devmem.TokenRange{Start: f.Token, Count: 1})
					if len(ts) == devmem.MaxTokenRanges {
						cb.DontNeed(ts)
						ts = ts[:0]
					}
				}
				if len(ts) > 0 {
					cb.DontNeed(ts)
				}
			}
		})
	}
}
