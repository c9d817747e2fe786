package driver

import (
	"context"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/virtionet"
	"vnic.dev/vnic/vhostuser"
)

func TestAttachErrors(t *testing.T) {
	for _, c := range []struct {
		name   string
		offer  func(uint64) uint64
		driver func(*FrontendOptions)
	}{
		{"no mergeable buffers", func(f uint64) uint64 { return f &^ virtionet.FMrgRxBuf }, nil},
		{"not virtio 1", func(f uint64) uint64 { return f &^ vhostuser.FeatureVersion1 }, nil},
		{"no MAC", nil, func(o *FrontendOptions) { o.MAC = nil }},
		{"MTU", nil, func(o *FrontendOptions) { o.MTU = 60 }},
		{"GPU in the driver's memory", nil, func(o *FrontendOptions) { o.GPUs[0].Addr = 1 << 20 }},
		{"GPU nowhere", nil, func(o *FrontendOptions) { o.GPUs[0].Addr = 1<<64 - PageSize }},
		{"GPU without memory", nil, func(o *FrontendOptions) { o.GPUs[0].Size = 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r, err := attach(t, rigOptions{offer: c.offer, driver: c.driver}); err == nil {
				r.nic.Close()
				t.Error("no error")
			} else {
				t.Log(err)
			}
		})
	}
}

func TestAttachToNobody(t *testing.T) {
	testkit.CheckFDs(t)
	a, b := testkit.SocketPair(t)
	b.Close()
	if _, err := Attach(FrontendOptions{Conn: a, MAC: []byte{2, 0, 0, 0, 0, 1}}); err == nil {
		t.Error("no error")
	}
	if _, err := Attach(FrontendOptions{}); err == nil {
		t.Error("no error without a connection")
	}
}

func TestCloseUnderTraffic(t *testing.T) {
	r := newBoundRig(t, rigOptions{pages: 400})
	var senders sync.WaitGroup
	for i := range 2 {
		senders.Go(func() {
			frame := TxFrame{Header: tcpHeader(3000), Linear: make([]byte, 3000), Cookie: 1}
			var err error
			for err == nil {
				_, err = r.nic.Transmit(i, []TxFrame{frame})
				r.nic.Refill(1)
			}
			checkErr(t, "Transmit", err, ErrClosed)
		})
	}
	r.rcv.waitFrames(1000)
	testkit.OK(t, r.nic.Close())
	senders.Wait()
	checkErr(t, "second Close", r.nic.Close(), nil)
	checkErr(t, "BindQueue", r.nic.BindQueue(1, 3, r.gpu), ErrClosed)
	checkErr(t, "UnbindQueue", r.nic.UnbindQueue(1), ErrClosed)
	checkErr(t, "Err", r.nic.Err(), ErrClosed)
	checkErr(t, "AllocDMA", errOf(r.nic.AllocDMA(1)), ErrClosed)
	checkErr(t, "Hello", errOf(r.nic.Control().Hello(context.Background())), ErrClosed)
}

func TestCloseEndsBindThatWaits(t *testing.T) {
	r := newRig(t, rigOptions{pairs: 2, pages: 100})
	r.dev.do(func() { r.dev.hold = true })
	failed := make(chan error)
	go func() { failed <- r.nic.BindQueue(1, 3, r.gpu) }()
	for r.nic.Stats().Tx[0].Frames == 0 {
		r.dev.do(func() {})
	}
	r.nic.Close()
	if err := <-failed; err == nil {
		t.Error("BindQueue: no error")
	}
}

func TestReceiverMayTransmitAndRefill(t *testing.T) {
	r := newRig(t, rigOptions{pairs: 2, pages: 100})
	left := 1000
	each := func(f *RxFrame) {
		if left--; left > 0 {
			r.nic.Refill(1)
			if n, err := r.nic.Transmit(1, []TxFrame{{Header: f.Header, Cookie: uint64(left)}}); n != 1 || err != nil {
				t.Errorf("Transmit: %d, %v", n, err)
			}
		}
	}
	r.rcv.locked(func() { r.rcv.each = each })
	r.send(t, 0, TxFrame{Header: tcpHeader(0)})
	r.rcv.waitFrames(1000)
}

func TestStart(t *testing.T) {
	r := newRig(t, rigOptions{})
	if r.nic.Start(nil) == nil || r.nic.Start(r.rcv) == nil {
		t.Error("a second receiver, or none, is accepted")
	}
	early := testkit.Must(attach(t, rigOptions{pairs: 2}))(t)
	checkErr(t, "bind before Start", early.nic.BindQueue(1, 3, early.gpu), unix.EINVAL)
	checkErr(t, "Close", early.nic.Close(), nil)
}

func TestAllocDMA(t *testing.T) {
	r := newRig(t, rigOptions{})
	b, iova, err := r.nic.AllocDMA(2 << 20)
	if err != nil || len(b) != 2<<20 || iova%PageSize != 0 {
		t.Fatalf("%d bytes at %#x, %v", len(b), iova, err)
	}
	b[0], b[len(b)-1] = 1, 1
	for _, n := range []int{0, -1, 1 << 40} {
		if _, _, err := r.nic.AllocDMA(n); err == nil {
			t.Errorf("%d bytes: no error", n)
		}
	}
}
