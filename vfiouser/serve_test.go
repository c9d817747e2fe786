package vfiouser_test

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/peer/peertest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/vfiotest"
	"vnic.dev/vnic/vfiouser"
)

var le = binary.LittleEndian

func TestVersion(t *testing.T) {
	const all = `{"capabilities":{"max_msg_fds":16,"max_data_xfer_size":1048576,"max_dma_maps":65535,`
	const little = `{"capabilities":{"max_msg_fds":1,"max_data_xfer_size":64,"max_dma_maps":2,"write_multiple":false}}`
	for _, c := range []struct {
		name, proposed, answer string
		minor                  uint16
	}{
		{"QEMU", `{"capabilities": {"pgsizes": 4096, "max_msg_fds": 16, "max_dma_maps": 65535, ` +
			`"max_data_xfer_size": 1048576, "migration": {"pgsize": 4096}, "write_multiple": true}}`,
			all + `"pgsizes":4096,"write_multiple":true}}`, 0},
		{"little", little, little, 1},
		{"much", `{"capabilities":{"max_msg_fds":1000,"max_data_xfer_size":1099511627776,"max_dma_maps":1000000,` +
			`"pgsizes":18446744073709547520}}`, all + `"pgsizes":18446744073709547520}}`, 65535},
		{"pages of all sizes", `{"capabilities":{"pgsizes":18446744073709551615}}`,
			`{"capabilities":{"pgsizes":18446744073709547520}}`, 0},
		{"pages smaller than there are", `{"capabilities":{"pgsizes":2049}}`, `{"capabilities":{}}`, 0},
		{"nothing known", `{"capabilities":{"twin_socket":{"supported":true}},"more":[1]}`, `{"capabilities":{}}`, 0},
		{"no capabilities", `{"later":{"a":"bcdefghijklmn"}}`, `{"capabilities":{}}`, 0},
		{"no JSON", "", "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			testkit.CheckFDs(t)
			h := newHost(t)
			l := h.dial()
			got, err := l.Version(0, c.minor, c.proposed)
			must(t, err)
			testkit.Equal(t, "answer", got, c.answer)
			h.works(l, guestIOVA)
			_, err = l.Version(0, 0, "")
			want(t, err, unix.EINVAL)
		})
	}
}

func TestConnectAsQEMU(t *testing.T) {
	testkit.CheckFDs(t)
	h := newHost(t)
	a, b := testkit.SocketPair(t)
	result := make(chan error, 1)
	go func() { result <- h.server.Serve(t.Context(), b) }()
	c, err := vfiotest.Connect(a)
	must(t, err)
	if !strings.Contains(c.Capabilities(), `"write_multiple":true`) {
		t.Errorf("capabilities: %s", c.Capabilities())
	}
	must(t, c.Close())
	must(t, <-result)
}

func TestInfo(t *testing.T) {
	h, l := serving(t)
	info, err := l.Info()
	if err != nil || info != (vfiotest.Info{Reset: true, PCI: true, Regions: 9, IRQs: 5}) {
		t.Errorf("info: %+v, %v", info, err)
	}
	all := vfiotest.RegionInfo{Size: regsSize, Read: true, Write: true}
	for i, w := range []vfiotest.RegionInfo{all, all, {Size: doorSize, Write: true}, {}, {}, {},
		{Size: romSize, Read: true}, all, {}} {
		if got, err := l.RegionInfo(i); err != nil || got != w {
			t.Errorf("region %d: %+v, %v, wanted %+v", i, got, err, w)
		}
	}
	for i, w := range []int{0, 0, vectors, 0, 0} {
		if got, err := l.IRQCount(i); err != nil || got != w {
			t.Errorf("IRQ index %d: %d, %v, wanted %d", i, got, err, w)
		}
	}
	_, err = l.RegionInfo(9)
	want(t, err, unix.EINVAL)
	_, err = l.IRQCount(5)
	want(t, err, unix.EINVAL)
	must(t, l.HangUp())
	h.WantCalls("Disconnected")
}

func TestRegionsAreReadAndWritten(t *testing.T) {
	h, l := serving(t)
	var id [4]byte
	must(t, l.Read(vfiouser.RegionConfig, 0, id[:]))
	if le.Uint32(id[:]) != 0x10f01af4 {
		t.Errorf("vendor and device: % x", id)
	}
	must(t, l.Write(0, regsSize-2, []byte{1, 2}))
	all := make([]byte, regsSize)
	must(t, l.Read(0, 0, all))
	if all[regsSize-2] != 1 || all[regsSize-1] != 2 {
		t.Error("what was written is not read")
	}
	h.Take()

	must(t, l.Post(0, 0, []byte{1}))
	must(t, l.Post(2, 4, []byte{2, 0, 0, 0}))
	must(t, l.WriteMulti(vfiotest.Write{Region: 2, Off: 8, Data: []byte{3}},
		vfiotest.Write{Region: 0, Off: 16, Data: []byte{1, 2, 3, 4, 5, 6, 7, 8}}))
	must(t, l.WriteMulti())
	must(t, l.Post(2, 12, []byte{5}))
	must(t, l.Read(0, 16, id[:]))
	h.WantCalls("Write 0 0x0 01", "Write 2 0x4 02 00 00 00", "Write 2 0x8 03",
		"Write 0 0x10 01 02 03 04 05 06 07 08", "Write 2 0xc 05", "Read 0 0x10+4")
}

// QEMU joins small posted writes in a posted WRITE_MULTI while many of its messages wait to be sent
// (hw/vfio-user/device.c, VFIO_USER_OUT_HIGH).
func TestPostedWriteMulti(t *testing.T) {
	h, l := serving(t)
	body := multi(1, access(2, 4, 4, 9, 0, 0, 0, 0xff, 0xff, 0xff, 0xff))
	l.post(t, vfiouser.Header{Command: vfiouser.CmdRegionWriteMulti, Flags: vfiouser.FlagNoReply}, body)
	must(t, l.Reset())
	h.WantCalls("Write 2 0x4 09 00 00 00", "Reset")
}

func TestLargestTransfer(t *testing.T) {
	testkit.CheckFDs(t)
	h := newHost(t)
	h.info.Regions[2] = vfiouser.Region{Size: 2 * vfiouser.MaxTransfer, Read: true, Write: true}
	l := h.connect()
	b := make([]byte, vfiouser.MaxTransfer)
	must(t, l.Write(2, vfiouser.MaxTransfer, b))
	must(t, l.Read(2, 0, b))
	b = append(b, 0)
	want(t, l.Read(2, 0, b), unix.EINVAL)
	h.works(l, guestIOVA)
}

func TestDeviceErrorsAreAnswered(t *testing.T) {
	h, l := serving(t)
	e := event(t)
	for _, c := range []struct {
		method string
		do     func() error
	}{
		{"Read", func() error { return l.Read(0, 0, make([]byte, 4)) }},
		{"Write", func() error { return l.Write(0, 0, make([]byte, 4)) }},
		{"Write", func() error { return l.WriteMulti(vfiotest.Write{Region: 0, Data: []byte{1}}) }},
		{"SetIRQ", func() error { return l.SetIRQ(vfiouser.IRQMSIX, 0, e) }},
		{"SetIRQ", func() error { return l.SetIRQ(vfiouser.IRQMSIX, 0, nil) }},
		{"DisableIRQs", func() error { return l.DisableIRQs(vfiouser.IRQMSIX) }},
		{"Reset", func() error { return l.Reset() }},
	} {
		h.FailWith(c.method, unix.EAGAIN)
		want(t, c.do(), unix.EAGAIN)
		h.FailWith(c.method, errors.New("no errno"))
		want(t, c.do(), unix.EIO)
		h.FailWith(c.method, nil)
		must(t, c.do())
	}
	h.FailWith("Write", unix.EAGAIN)
	must(t, l.Post(0, 0, []byte{1}))
	h.FailWith("Write", nil)
	h.works(l, guestIOVA)
}

func TestNoReset(t *testing.T) {
	testkit.CheckFDs(t)
	h := newHost(t)
	h.info.Reset = false
	l := h.connect()
	if info, err := l.Info(); err != nil || info.Reset {
		t.Errorf("info: %+v, %v", info, err)
	}
	want(t, l.Reset(), unix.ENOTSUP)
	must(t, l.HangUp())
	h.WantCalls("Disconnected")
}

func TestInterrupts(t *testing.T) {
	h, l := serving(t)

	// QEMU enables MSI-X by a vector without an eventfd; then it sets a vector's eventfd, and again at each unmasking.
	must(t, l.SetIRQ(vfiouser.IRQMSIX, 0, nil))
	first, second := event(t), event(t)
	must(t, l.SetIRQ(vfiouser.IRQMSIX, 5, first))
	h.fire(t, 5)
	must(t, l.SetIRQ(vfiouser.IRQMSIX, 5, second))
	h.fire(t, 5)
	h.fire(t, 5)
	if a, b := first.Poll(), second.Poll(); a != 1 || b != 2 {
		t.Errorf("signalled %d and %d times", a, b)
	}
	must(t, l.SetIRQ(vfiouser.IRQMSIX, 5, nil))
	testkit.Equal(t, "eventfds are left", h.irqs(), 0)
	h.Take()

	var events []*vfiotest.Event
	for range vfiouser.MaxFDs {
		events = append(events, event(t))
	}
	must(t, l.SetIRQs(vfiouser.IRQMSIX, vectors-vfiouser.MaxFDs, events...))
	for i, e := range events {
		h.fire(t, vectors-vfiouser.MaxFDs+i)
		if e.Poll() != 1 {
			t.Errorf("event %d was not signalled", i)
		}
	}
	_, err := l.Request(vfiouser.CmdSetIRQs, irqSet(0x24, vfiouser.IRQMSIX, 20, 2), 0)
	must(t, err)
	testkit.Equal(t, "eventfds are left", h.irqs(), vfiouser.MaxFDs-2)
	must(t, l.DisableIRQs(vfiouser.IRQMSIX))
	testkit.Equal(t, "eventfds are left", h.irqs(), 0)
	must(t, l.DisableIRQs(vfiouser.IRQINTx)) // QEMU disables INTx, which the device does not have
	must(t, l.SetIRQs(vfiouser.IRQMSIX, 0, events...))
}

// QEMU's iothread and its vCPUs send requests without waiting for one another's replies.
func TestSeveralRequestsInFlight(t *testing.T) {
	h, l := serving(t)
	m := memory(t, guestSize)
	const n = 64
	for i := range uint16(n) {
		iova := guestIOVA + uint64(i)*8192
		l.post(t, vfiouser.Header{ID: 1000 + i, Command: vfiouser.CmdDMAMap}, dmaMap(3, uint64(i)*4096, iova, 4096), m.FD())
		l.post(t, vfiouser.Header{ID: 7, Command: vfiouser.CmdDMAMap}, dmaMap(1, 0, iova+4096, 4096))
	}
	for i := range uint16(n) {
		for _, id := range []uint16{1000 + i, 7} {
			if r, err := l.Receive(); err != nil || r.ID != id || r.Flags != vfiouser.FlagReply || len(r.Body) != 0 {
				t.Fatalf("reply %d: %+v, %v", id, r, err)
			}
		}
	}
	m.Bytes()[5*4096] = 55
	h.wantByte(guestIOVA+5*8192, 55)
	testkit.Equal(t, "regions", len(h.Space.Regions()), 128)
	must(t, l.UnmapAll())
	testkit.Equal(t, "regions after UNMAP of all", len(h.Space.Regions()), 0)
}

func TestServeTwice(t *testing.T) {
	h, l := serving(t)
	a, b := testkit.SocketPair(t)
	defer a.Close()
	peertest.WantError(t, "second Serve", h.server.Serve(t.Context(), b), vfiouser.ErrBusy)
	h.works(l, guestIOVA)
	must(t, l.HangUp())
	h.servesAnother()
}

func TestNilLog(t *testing.T) {
	testkit.CheckFDs(t)
	h := newHost(t)
	h.server = vfiouser.NewServer(h.recorder, h.Space, nil)
	h.servesAnother()
}

func TestCommandNames(t *testing.T) {
	if s := vfiouser.CmdDMAUnmap.String(); s != "DMA_UNMAP" {
		t.Error(s)
	}
	for _, c := range []vfiouser.Command{0, 19, 65535} {
		if s := c.String(); !strings.HasPrefix(s, "command ") {
			t.Error(s)
		}
	}
	if !slices.Contains(strings.Fields(vfiouser.CmdRegionWriteMulti.String()), "REGION_WRITE_MULTI") {
		t.Error(vfiouser.CmdRegionWriteMulti)
	}
}
