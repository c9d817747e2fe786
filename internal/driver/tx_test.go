package driver

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/virtionet"
	"vnic.dev/vnic/splitter"
)

func TestTransmitErrors(t *testing.T) {
	r := newRig(t, rigOptions{offer: func(f uint64) uint64 { return f &^ virtionet.FHostTSO6 }})
	good := TxFrame{Header: tcpHeader(0)}
	for _, c := range []struct {
		name  string
		queue int
		frame TxFrame
		want  error
	}{
		{"no queue", 1, good, unix.EINVAL},
		{"empty", 0, TxFrame{}, unix.EMSGSIZE},
		{"too long", 0, TxFrame{Linear: make([]byte, MaxTxLinear+1)}, unix.EMSGSIZE},
		{"too many ranges", 0, TxFrame{Header: good.Header, Device: make([]Range, MaxTxRanges+1)}, unix.EMSGSIZE},
		{"empty range", 0, TxFrame{Header: good.Header, Device: []Range{{3, 0, 0}}}, unix.EFAULT},
		{"range behind the GPU", 0, TxFrame{Header: good.Header, Device: []Range{{3, testGPUSize, 1}}}, unix.EFAULT},
		{"range beyond the GPU", 0, TxFrame{Header: good.Header, Device: []Range{{3, testGPUSize - 1, 2}}}, unix.EFAULT},
		{"range that wraps", 0, TxFrame{Header: good.Header, Device: []Range{{3, 1<<64 - 1, 2}}}, unix.EFAULT},
		{"range that is too long", 0, TxFrame{Header: good.Header, Device: []Range{{3, 0, maxFrame + 1}}}, unix.EFAULT},
		{"no such GPU", 0, TxFrame{Header: good.Header, Device: []Range{{0, 0, 1}}}, unix.EFAULT},
		{"segmentation not offered", 0, TxFrame{Header: good.Header, NeedsCsum: true, GSOType: splitter.GSOTCPv6, GSOSize: 1},
			ErrFeature},
		{"segmentation unknown", 0, TxFrame{Header: good.Header, NeedsCsum: true, GSOType: splitter.GSOUDPL4, GSOSize: 1},
			ErrFeature},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, err := r.nic.Transmit(c.queue, []TxFrame{good, c.frame, good})
			if !errors.Is(err, c.want) || n != 1 && c.queue == 0 {
				t.Fatalf("%d, %v; want 1, %v", n, err, c.want)
			}
			if c.queue == 0 {
				r.rcv.waitFrames(1)
			}
		})
	}
	var ranges []Range
	for i := range MaxTxRanges {
		ranges = append(ranges, Range{3, uint64(i) * 3, 2})
	}
	r.send(t, 0, TxFrame{Header: tcpHeader(0), Linear: make([]byte, MaxTxLinear-54), Device: ranges})
	if f := r.rcv.waitFrames(1)[0]; len(f.Header) != MaxTxLinear+2*MaxTxRanges {
		t.Errorf("%d bytes", len(f.Header))
	}
}

func TestFullRingTellsWhenToGoOn(t *testing.T) {
	r := newRig(t, rigOptions{driver: func(o *FrontendOptions) { o.RingSize = 16 }})
	r.dev.do(func() { r.dev.hold = true })
	frames := make([]TxFrame, 100)
	for i := range frames {
		frames[i] = TxFrame{Header: tcpHeader(0), Cookie: uint64(i)}
	}
	n, err := r.nic.Transmit(0, frames)
	if err != nil || n != 16 {
		t.Fatalf("%d, %v; want 16", n, err)
	}
	if n, err := r.nic.Transmit(0, frames[16:]); err != nil || n != 0 {
		t.Fatalf("%d, %v; want 0", n, err)
	}
	r.dev.do(func() {})
	go r.dev.release()
	r.rcv.wait(func() bool { return r.rcv.completions > 0 })
	r.send(t, 0, frames[16:]...)
	r.rcv.wait(func() bool { return len(r.rcv.cookies) == 99 })
	for i, c := range r.rcv.cookies {
		if c != uint64(i+1) {
			t.Fatalf("cookie %d is %d", i, c)
		}
	}
}

func TestFramesWithoutCookieAskForNoCall(t *testing.T) {
	r := newRig(t, rigOptions{driver: func(o *FrontendOptions) { o.Spin = -1 }})
	r.steer(-1)
	for range 1000 {
		r.send(t, 0, TxFrame{Header: tcpHeader(0)})
	}
	r.send(t, 0, TxFrame{Header: tcpHeader(0), Cookie: 5})
	r.rcv.wait(func() bool { return len(r.rcv.cookies) == 1 })
	// A full ring may end sleeps of the driver too, and so does the completion of the frame with a cookie.
	if s := r.nic.Stats(); s.Sleeps > 20+10*s.Tx[0].Full {
		t.Errorf("%d sleeps for 1000 frames: %+v", s.Sleeps, s)
	}
}
