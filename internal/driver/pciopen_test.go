package driver

import (
	"os"
	"runtime"
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/vhostuser"
)

// The device's registers are a file: they keep the values written last, so at the end the addresses of the queue that
// was set up last, transmit queue 0.
func TestPCIDeviceFromOpenToClose(t *testing.T) {
	testkit.CheckFDs(t)
	tree := newPCITree(t)
	dir := tree.nic(testNIC)
	tree.gpu("0000:00:03.0", 1<<32, testGPUSize)
	bar := tree.bar(dir)
	mem := fakeHugePages()
	n := testkit.Must(openPCI(tree.root, mem, PCIOptions{}))(t)
	defer n.Close()
	if n.MAC().String() != "52:54:00:01:02:03" || n.MTU() != 1500 || n.QueuePairs() != 1 ||
		n.GPUs()[0].Size != testGPUSize {
		t.Errorf("%v, MTU %d, %d pairs, GPUs %+v", n.MAC(), n.MTU(), n.QueuePairs(), n.GPUs())
	}
	for path, want := range map[string]string{
		"sys/bus/pci/drivers/virtio-pci/unbind":    testNIC,
		dir + "driver_override":                    uioDriver,
		"sys/bus/pci/drivers/uio_pci_generic/bind": testNIC,
	} {
		testkit.Equal(t, path, tree.read(path), want)
	}
	if s := bar.read8(regDeviceStatus); s != statusAcknowledge|statusDriver|statusFeaturesOK|statusDriverOK {
		t.Errorf("device status %#x", s)
	}
	testkit.Equal(t, "features 32 to 63", uint64(bar.read32(regDriverFeature)), vhostuser.FeatureVersion1>>32)
	command := func() uint16 { return le.Uint16([]byte(tree.read(dir + "config"))[pciCommand:]) }
	for command()&commandINTxDisable != 0 {
		runtime.Gosched()
	}
	if c := command(); c != 0x103|commandMemory|commandMaster {
		t.Errorf("command register %#x", c)
	}

	r := newTestReceiver(nil)
	testkit.OK(t, n.Start(r))
	if k, err := n.Transmit(0, []TxFrame{{Header: tcpHeader(0), Cookie: 9, Device: []Range{{0, 100, 5}}}}); k != 1 ||
		err != nil {
		t.Fatalf("Transmit: %d, %v", k, err)
	}
	notify := bar[0x3000:]
	if q := notify.read16(0); q != 1 { // all queues have notify offset 0 here
		t.Errorf("notified of queue %d", q)
	}
	used := testkit.Must(mem.Slice(common{bar}.read64(regQueueDevice), 12))(t)
	le.PutUint32(used[4:], 0)       // id
	le.PutUint32(used[8:], 0)       // length
	le.PutUint32(used[0:], 0|1<<16) // flags, idx
	bar.write8(0x1000, 1)           // the ISR
	intr := testkit.Must(os.OpenFile(tree.path("dev/uio0"), os.O_WRONLY, 0))(t)
	defer intr.Close()
	cfg := testkit.Must(pciDev{dir: tree.path(dir)}.openConfig())(t)
	defer cfg.f.Close()
	cfg.setCommand(commandINTxDisable, 0)
	intr.Write([]byte{1, 0, 0, 0})
	r.wait(func() bool { return len(r.cookies) == 1 && r.cookies[0] == 9 })
	for command()&commandINTxDisable != 0 {
		runtime.Gosched()
	}

	checkErr(t, "Close", n.Close(), nil)
	testkit.Equal(t, "device status after Close", bar.read8(regDeviceStatus), 0)
	if c := command(); c&commandMaster != 0 || c&commandINTxDisable == 0 {
		t.Errorf("command register %#x after Close", c)
	}
}

func TestRegisterAccess(t *testing.T) {
	r := regs(make([]byte, 64))
	r.write8(1, 0xaa)
	r.write16(2, 0xbbcc)
	r.write32(4, 0xdeadbeef)
	common{r}.write64(8, 0x0123456789abcdef)
	if r.read8(1) != 0xaa || r.read16(2) != 0xbbcc || r.read32(4) != 0xdeadbeef ||
		(common{r}).read64(8) != 0x0123456789abcdef {
		t.Errorf("% x", []byte(r))
	}
	for _, f := range []func(){
		func() { r.read32(61) }, func() { r.write16(63, 0) }, func() { r.read8(64) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("an access outside of the registers")
				}
			}()
			f()
		}()
	}
}
