package driver

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

func removedNIC(t *testing.T, n *NIC, name string) {
	t.Helper()
	<-n.failed
	checkErr(t, "Err", n.Err(), unix.ENODEV)
	testkit.ErrorSays(t, n.Err(), name+" has been removed")
	frame, err := []TxFrame{{Header: tcpHeader(0)}}, error(nil)
	for err == nil {
		_, err = n.Transmit(0, frame)
	}
	checkErr(t, "Transmit", err, unix.ENODEV)
	checkErr(t, "a command", errOf(n.Control().Hello(t.Context())), unix.ENODEV)
}

// The mappings of a device's BARs end with its removal: an access then faults, here because the registers' file is
// truncated.
func TestNICWhoseRegistersGoStops(t *testing.T) {
	testkit.CheckFDs(t)
	tree := newPCITree(t)
	dir := tree.nic(testNIC)
	n := testkit.Must(openPCI(tree.root, fakeHugePages(), PCIOptions{}))(t)
	defer n.Close()
	testkit.OK(t, n.Start(newTestReceiver(nil)))
	p := n.t.(*pci)
	if allocs := testing.AllocsPerRun(100, func() { p.kick(0) }); allocs != 0 {
		t.Errorf("a kick allocates %v times", allocs)
	}
	testkit.OK(t, os.Truncate(tree.path(dir, "resource4"), 0))
	_, _ = n.Transmit(0, []TxFrame{{Header: tcpHeader(0)}})
	removedNIC(t, n, testNIC)
	for what, err := range map[string]error{"config": p.config(0, make([]byte, 2)), "arm": errOf(p.arm()),
		"setupQueue": p.setupQueue(0, ringAddrs{}), "negotiate": errOf(p.negotiate())} {
		checkErr(t, what, err, unix.ENODEV)
	}
	if size := p.ringSize(0, 256); size != 0 {
		t.Errorf("a ring of %d entries at a device that is gone", size)
	}
	p.kick(0)
	checkErr(t, "Close", n.Close(), nil)
}

func TestFaultElsewhereIsAPanic(t *testing.T) {
	f := testkit.Memfd(t, PageSize)
	b := testkit.Must(unix.Mmap(int(f.Fd()), 0, PageSize, unix.PROT_READ, unix.MAP_SHARED))(t)
	defer unix.Munmap(b)
	testkit.OK(t, f.Truncate(0))
	p := &pci{}
	defer func() {
		if recover() == nil || p.gone.Load() {
			t.Error("no panic, or the device is said to be gone")
		}
	}()
	_ = p.touch(func() error { regs(b).read8(0); return nil })
}

func TestRemovalsThatTheKernelTells(t *testing.T) {
	const gpu = "0000:00:03.0"
	for _, c := range []struct {
		name, addr, want string
		use              bool
	}{
		{"the NIC", testNIC, testNIC, false},
		{"a GPU in use", gpu, "GPU 0 (" + gpu + ")", true},
		{"a GPU that is not used", gpu, "", false},
		{"another device", "0000:00:09.0", "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			testkit.CheckFDs(t)
			tree := newPCITree(t)
			tree.nic(testNIC)
			tree.gpu(gpu, 1<<32, testGPUSize)
			n := testkit.Must(openPCI(tree.root, fakeHugePages(), PCIOptions{}))(t)
			defer n.Close()
			testkit.OK(t, n.Start(newTestReceiver(nil)))
			frame := []TxFrame{{Header: tcpHeader(0), Device: []Range{{0, 100, 5}}}}
			if c.use {
				testkit.Must(n.Transmit(0, frame))(t)
			}
			r, w, err := os.Pipe()
			testkit.OK(t, err)
			heard := make(chan struct{})
			p := n.t.(*pci)
			go func() {
				defer close(heard)
				hearRemovals(r, p.removal(n.gone, n.removeGPUAt))
			}()
			testkit.Must(w.Write([]byte("remove@/devices/pci0000:10/0000:10:00.0/" + c.addr + "\x00ACTION=remove\x00")))(t)
			testkit.OK(t, w.Close())
			<-heard
			testkit.OK(t, r.Close())
			if c.want != "" {
				removedNIC(t, n, c.want)
				return
			}
			testkit.OK(t, n.Err())
			_, err = n.Transmit(0, frame)
			if gone := c.addr == gpu; gone != errors.Is(err, unix.ENODEV) {
				t.Errorf("a frame of the GPU's memory: %v", err)
			}
			testkit.Must(n.Transmit(0, []TxFrame{{Header: tcpHeader(0)}}))(t)
		})
	}
}

func TestRemovalEvents(t *testing.T) {
	for event, want := range map[string]string{
		"remove@/devices/pci0000:10/0000:11:00.0\x00ACTION=remove\x00": "0000:11:00.0",
		"remove@/devices/x/uio/uio0":                                   "uio0",
		"add@/devices/pci0000:10/0000:11:00.0\x00ACTION=add\x00":       "",
		"libudev\x00\xfe\xed":                                          "", "remove@": "", "remove@\x00": "", "": "",
	} {
		if name, ok := removedDevice([]byte(event)); name != want || ok != (want != "") {
			t.Errorf("%q: %q, %v", event, name, ok)
		}
	}
	events, err := listenUevents()
	if err != nil {
		t.Skip(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		hearRemovals(events, func(string) {})
	}()
	testkit.OK(t, events.Close())
	<-done
}

// A NIC from Attach stops when a GPU is removed that it has bound to a queue; UnbindQueue then returns the queue's
// pages.
func TestGPUThatIsRemovedFromAProcess(t *testing.T) {
	r := newBoundRig(t, rigOptions{})
	r.nic.RemoveGPU(99)
	testkit.OK(t, r.nic.Err())
	r.nic.RemoveGPU(3)
	removedNIC(t, r.nic, "GPU 3")
	checkErr(t, "BindQueue", r.nic.BindQueue(1, 3, r.gpu), unix.ENODEV)
	checkErr(t, "UnbindQueue", r.nic.UnbindQueue(1), nil)
	r.gpu.whole(t)
}

func TestSleeperRests(t *testing.T) {
	s, _ := newTestSleeper(t)
	testkit.OK(t, s.f.Close())
	if _, err := s.sleep(); err == nil {
		t.Fatal("a descriptor that is closed: no error")
	}
	for range 3 {
		s.wake()
		s.rest()
	}
}
