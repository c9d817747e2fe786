package run

import (
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/transfer"
)

// Invariant: vnic run: Behind an IOMMU that translates, payload goes from GPU to GPU and not
// through host memory, and mappings come and go with the kernel's buffers.
func TestProofBehindAnIOMMU(t *testing.T) {
	testkit.Boots(t)
	o := pairOptions(NICGVE, 8<<20)
	o.IOMMU = true
	var ports []*lab.Port
	o.hook = func(r *runner) { ports = r.Lab.Ports() }
	rep := do(t, o)
	for _, wrong := range unproved(rep, &o) {
		t.Error(wrong)
	}
	for i := range rep.Runs {
		r := &rep.Runs[i]
		if r.Bytes != 8<<20 || !r.SHA256Match {
			t.Errorf("%s: %+v", r.Mode, r)
		}
		if r.Mode == transfer.Devmem && (r.TX.Device < r.Bytes || r.RX.Device < r.Bytes || r.TX.Host+r.RX.Host != 0) {
			t.Errorf("%+v", r)
		}
	}
	for _, p := range ports {
		n := p.Space().Generation()
		t.Logf("%s: %d changes of what is mapped", p.Name, n)
		if n < 1000 { // the guest's kernel maps buffers singly, and not all RAM at once
			t.Errorf("%s: %d changes of what is mapped", p.Name, n)
		}
	}
}

// Invariant: vnic run: An IOMMU is refused for devices that QEMU cannot put behind it, or that hang
// there.
func TestIOMMUIsRefused(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"":                               func(*Options) {},
		"all of model gve":               func(o *Options) { o.NIC = NICVirtio },
		"QEMU's virtio takes them past":  func(o *Options) { o.NIC = NICGVE + "," + NICVirtio },
		"would wait for ever":            func(o *Options) { o.GPUDriver = lab.DriverVNICGPU },
		"for guests whose NICs are all ": func(o *Options) { o.NIC, o.Rails = NICVirtio, 2 },
	} {
		o := Defaults()
		o.NIC, o.IOMMU = NICGVE, true
		change(&o)
		if err := o.Check(); want != "" {
			testkit.ErrorSays(t, err, want)
		} else {
			testkit.OK(t, err)
		}
	}
}
