package lab_test

import (
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/vfiotest"
	"vnic.dev/vnic/internal/wire"
)

func open(t *testing.T, d lab.Description, o lab.Options) *lab.Lab {
	t.Helper()
	w := testkit.Must(lab.Open(d, o))(t)
	t.Cleanup(func() { testkit.OK(t, w.Close()) })
	return w
}

// attach connects a guest to a port.
func attach(t *testing.T, p *lab.Port) *labtest.Guest {
	t.Helper()
	client, server := testkit.SocketPair(t)
	p.Connected(server)
	var gpus []driver.FrontendGPU
	if g := p.GPU(); g != nil {
		gpus = append(gpus, driver.FrontendGPU{ID: g.ID(), FD: int(g.File.Fd()), Size: g.Size()})
	}
	g, err := labtest.New(client, "02:76:6e:69:00:"+string([]byte{'0', byte('1' + p.Index)}),
		[]netip.Prefix{p.Addr4, p.Addr6}, gpus...)
	testkit.OK(t, err)
	return g
}

func TestGuestsReachEachOtherAndComeAgain(t *testing.T) {
	testkit.LeavesNothing(t)
	w := open(t, lab.Uniform(3, lab.NIC{Model: lab.Virtio}, 2<<20), lab.Options{})
	for range 2 {
		a, b, c := attach(t, w.Port(0)), attach(t, w.Port(1)), attach(t, w.Port(2))
		testkit.OK(t, errors.Join(a.Exchange(t.Context(), b, 100_000), b.Exchange(t.Context(), c, 100_000),
			a.Close(), b.Close(), c.Close()))
	}
}

func TestGVEAnswersByVFIOUser(t *testing.T) {
	testkit.LeavesNothing(t)
	w := open(t, lab.Uniform(2, lab.NIC{Model: lab.GVE}, 6<<20), lab.Options{})
	for range 2 {
		client, server := testkit.SocketPair(t)
		done := make(chan error, 1)
		go func() { done <- w.Port(1).Serve(t.Context(), server) }()
		c, err := vfiotest.Connect(client)
		testkit.OK(t, err)
		var id [4]byte
		if err := c.Read(7, 0, id[:]); err != nil || id != [4]byte{0xe0, 0x1a, 0x42, 0} {
			t.Errorf("PCI identity %x, %v", id, err)
		}
		testkit.OK(t, c.Close())
		testkit.OK(t, <-done)
	}
}

// Invariant: lab: Close ends the connections of ports, and closes services before ports.
func TestCloseEndsConnections(t *testing.T) {
	testkit.LeavesNothing(t)
	for _, nic := range []string{lab.Virtio, lab.GVE} {
		w, err := lab.Open(lab.Uniform(1, lab.NIC{Model: nic}, 0), lab.Options{})
		testkit.OK(t, err)
		p := w.Port(0)
		client, server := testkit.SocketPair(t)
		p.Connected(server)
		testkit.OK(t, w.Close())
		if _, err := client.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("%s: the connection is open: %v", nic, err)
		}
		_ = client.Close()
		client, server = testkit.SocketPair(t)
		defer client.Close()
		testkit.ErrorIs(t, p.Serve(t.Context(), server), lab.ErrClosed, "%s: served when closed", nic)
	}
}

// closer is a service whose Close appends its name if ports and links still exist.
type closer struct {
	w      *lab.Lab
	closed *[]string
	name   string
}

func (c closer) Close() error {
	if len(c.w.Ports()) > 0 && len(c.w.Switch().Links()) > 0 {
		*c.closed = append(*c.closed, c.name)
	}
	return nil
}

// Invariant: lab: Close ends the connections of ports, and closes services before ports.
func TestServicesGoBeforePortsLastOneFirst(t *testing.T) {
	testkit.LeavesNothing(t)
	var closed []string
	service := func(name string) lab.Service {
		return func(w *lab.Lab) (io.Closer, error) { return closer{w, &closed, name}, nil }
	}
	bad := errors.New("bad")
	d, o := lab.Uniform(2, lab.NIC{Model: lab.Virtio}, 0), lab.Options{}
	o.Services = append(o.Services, service("a"), service("b"))
	w, err := lab.Open(d, o)
	testkit.OK(t, err)
	if err := w.Close(); err != nil || strings.Join(closed, "") != "ba" {
		t.Errorf("%q, %v", closed, err)
	}
	closed = nil
	o.Services = append(o.Services, func(*lab.Lab) (io.Closer, error) { return nil, bad })
	if w, err := lab.Open(d, o); w != nil || !errors.Is(err, bad) || strings.Join(closed, "") != "ba" {
		t.Errorf("%v, %v, closed %q", w, err, closed)
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	testkit.LeavesNothing(t)
	virtio := lab.NIC{Model: lab.Virtio}
	two := lab.Guest{NICs: []lab.NIC{virtio, {Model: lab.GVE}}, GPUs: []lab.GPU{{Memory: 2 << 20}}}
	none := lab.Guest{NICs: []lab.NIC{{Model: lab.Virtio, GPUs: []int{}}}, GPUs: []lab.GPU{{Memory: 2 << 20}}}
	far := lab.Guest{NICs: []lab.NIC{{Model: lab.Virtio, GPUs: []int{1}}}, GPUs: []lab.GPU{{Memory: 2 << 20}}}
	for want, d := range map[string]lab.Description{
		"--nic e1000": lab.Uniform(1, lab.NIC{Model: "e1000"}, 0),
		"0 ports":     lab.Uniform(0, virtio, 0),
		"251 ports":   lab.Uniform(251, virtio, 0),
		"--mtu 9199": lab.Uniform(1, lab.NIC{Model: lab.GVE,
			NICOptions: lab.NICOptions{MTU: 9199}}, 0),
		"--queues 17: 1 to 16 pairs":         lab.Uniform(1, lab.NIC{Model: lab.GVE, QueuePairs: 17}, 0),
		"NIC 0 of guest : timestamps: of m":  lab.Uniform(1, lab.NIC{Model: lab.Virtio, Timestamps: true}, 0),
		"--iommu: for guests whose NICs are": {Guests: []lab.Guest{{NICs: []lab.NIC{{Model: lab.GVE}, virtio}, IOMMU: true}}},
		"--iommu: not for guests whose GPUs": {Guests: []lab.Guest{{NICs: []lab.NIC{{Model: lab.GVE}}, IOMMU: true,
			Driver: lab.DriverVNICGPU, GPUs: []lab.GPU{{Memory: 2 << 20}}}}},
		"65 ports with GPU":                 lab.Uniform(65, virtio, 4096),
		"--gpu-memory 3M: not":              lab.Uniform(1, virtio, 3<<20),
		"--gpu-memory 1M: not":              lab.Uniform(1, lab.NIC{Model: lab.GVE}, 1<<20),
		"GPU 0 of guest : NICs of both":     {Guests: []lab.Guest{two}},
		"GPU 0 of guest : no NIC":           {Guests: []lab.Guest{none}},
		"NIC 0 of guest : gpus 1: not one ": {Guests: []lab.Guest{far}},
		"--rsc-usecs 1000001: ": lab.Uniform(1, lab.NIC{Model: lab.GVE,
			NICOptions: lab.NICOptions{RSCUsecs: 1e6 + 1}}, 0),
		"--loss 100%: not a part": lab.Uniform(1, lab.NIC{Model: lab.Virtio,
			Link: wire.LinkOptions{Up: lab.Impairment{Loss: 1}}}, 0),
	} {
		if w, err := lab.Open(d, lab.Options{}); w != nil || err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, %v", want, w, err)
		}
	}
	if lab.CheckLink(&lab.Impairment{Loss: 1}) == nil || lab.CheckLink(&lab.Impairment{Loss: 0.99}) != nil {
		t.Error("all segments may be lost, or not nearly all")
	}
	var missing *lab.MemoryError
	w, err := lab.Open(lab.Uniform(2, virtio, 1<<50), lab.Options{})
	if w != nil || !errors.As(err, &missing) || !strings.Contains(err.Error(), "each of 2 GPUs") {
		t.Errorf("%v, %v", w, err)
	}
}

func TestImpairedLinksLose(t *testing.T) {
	testkit.LeavesNothing(t)
	for _, loss := range []float64{0, 0.02} {
		d := lab.Uniform(2, lab.NIC{Model: lab.Virtio}, 0)
		d.Impair(lab.Impairment{Loss: loss, Seed: 1})
		w := testkit.Must(lab.Open(d, lab.Options{}))(t)
		a, b := attach(t, w.Port(0)), attach(t, w.Port(1))
		testkit.OK(t, errors.Join(a.Exchange(t.Context(), b, 600_000), a.Close(), b.Close()))
		for _, p := range w.Ports() {
			if lost := p.NIC().Link().Counters().Drops[wire.DropLinkLoss]; (lost > 0) != (loss > 0) {
				t.Errorf("%s lost %d segments, with --loss %g", p.Name, lost, loss)
			}
		}
		testkit.OK(t, w.Close())
	}
}

// A guest may have NICs of both models, each with the GPUs that it may address.
func TestGuestWithTwoModels(t *testing.T) {
	testkit.LeavesNothing(t)
	two := lab.Guest{
		NICs: []lab.NIC{{Model: lab.GVE, GPUs: []int{0}}, {Model: lab.Virtio, GPUs: []int{2, 1}}},
		GPUs: []lab.GPU{{Memory: 6 << 20}, {Memory: 4 << 20}, {Memory: 2 << 20}},
	}
	one := lab.Guest{NICs: []lab.NIC{{Model: lab.Virtio}}}
	w := open(t, lab.Description{Guests: []lab.Guest{two, one}}, lab.Options{})
	m := w.Machine(0)
	for i, g := range m.GPUs {
		if g.ID() != i || g.Node != (i == 0) {
			t.Errorf("GPU %d: number %d, a node: %v", i, g.ID(), g.Node)
		}
	}
	if len(m.GPUs) != 3 || len(m.Ports) != 2 || len(m.Ports[0].GPUs) != 1 || len(m.Ports[1].GPUs) != 2 ||
		len(w.Port(2).GPUs) != 0 || w.Port(2).Index != 2 {
		t.Errorf("%+v", m)
	}
	gpus, err := m.Ports[1].NIC().GPUs()
	if err != nil || len(gpus) != 2 || gpus[0].Attach != control.AttachBAR || gpus[0].P2P != control.P2PBus ||
		gpus[1].P2P != control.P2PBus {
		t.Errorf("%+v, %v", gpus, err)
	}
	if gpus, err = m.Ports[0].NIC().GPUs(); err != nil || len(gpus) != 1 || gpus[0].Attach != control.AttachNode ||
		gpus[0].Node != 1 {
		t.Errorf("%+v, %v", gpus, err)
	}
}
