package driver

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/virtionet"
	"vnic.dev/vnic/splitter"
)

// With WholeFrames a backend without offloads, like passt, gets each frame in one buffer, with a complete checksum if
// the frame has NeedsCsum.
func TestBackendWithoutOffloads(t *testing.T) {
	r := newRig(t, rigOptions{offer: func(uint64) uint64 { return featsMandatory },
		driver: func(o *FrontendOptions) { o.WholeFrames = true }})
	for _, n := range []int{0, 1, 1460, 2047, 61441, MaxTxLinear - 54} {
		payload := pattern(make([]byte, n), n)
		header := tcpHeader(n % 0xffff)
		var h splitter.Headers
		testkit.OK(t, splitter.Parse(header, uint32(len(header)+n), &h))
		copy(header[50:], []byte{0, 0})
		sum := splitter.PseudoSum(&h, header, uint32(20+n))
		header[50], header[51] = byte(sum>>8), byte(sum)
		before := bytes.Clone(header)
		r.send(t, 0, TxFrame{Header: header, Linear: payload, NeedsCsum: true, CsumStart: 34, CsumOffset: 16})
		got := r.rcv.waitFrames(1)[0]
		if len(got.Header) != 54+n || !bytes.Equal(got.Header[54:], payload) || got.CsumGood {
			t.Errorf("%d bytes of payload: %d bytes came, CsumGood %v", n, len(got.Header), got.CsumGood)
		}
		if c := splitter.VerifyL4(&h, got.Header[:54], uint32(n), splitter.Sum(payload, 0)); c != splitter.CsumGood {
			t.Errorf("%d bytes of payload: checksum %v", n, c)
		}
		if !bytes.Equal(header, before) {
			t.Error("the caller's header has changed")
		}
	}
	r.dev.do(func() {
		testkit.Equal(t, "buffers of the longest chain", r.dev.longest, 1)
		r.dev.mangle = func(h *netHdr) { h.flags = virtionet.HdrDataValid }
	})
	r.send(t, 0, TxFrame{Header: tcpHeader(0)})
	if !r.rcv.waitFrames(1)[0].CsumGood {
		t.Error("DATA_VALID is not believed")
	}
	for name, f := range map[string]TxFrame{
		"ranges":                        {Header: tcpHeader(1), Device: []Range{{3, 0, 1}}},
		"checksum behind the header":    {Header: tcpHeader(0), NeedsCsum: true, CsumStart: 34, CsumOffset: 20},
		"checksum partly behind it":     {Header: tcpHeader(0), NeedsCsum: true, CsumStart: 34, CsumOffset: 19},
		"checksum far behind it":        {Header: tcpHeader(0), NeedsCsum: true, CsumStart: 0xffff, CsumOffset: 0xffff},
		"checksum in a long header":     {Header: make([]byte, 4096), NeedsCsum: true, CsumStart: 4000},
		"checksum without header bytes": {Linear: make([]byte, 60), NeedsCsum: true},
	} {
		if n, err := r.nic.Transmit(0, []TxFrame{f}); n != 0 || err == nil {
			t.Errorf("%s: %d, %v", name, n, err)
		} else {
			checkErr(t, name, err, unix.EINVAL)
		}
	}
	_, err := r.nic.Transmit(0, []TxFrame{{Header: tcpHeader(1), Device: []Range{{3, 0, 1}}, NeedsCsum: true,
		CsumStart: 34, CsumOffset: 16}})
	checkErr(t, "checksum of device memory", err, ErrFeature)
}
