package lab_test

import (
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"

	"vnic.dev/vnic/driver"
	"vnic.dev/vnic/lab"
	"vnic.dev/vnic/lab/labtest"
	"vnic.dev/vnic/vfiouser/vfiotest"
)

func open(t *testing.T, d lab.Description, o lab.Options) *lab.Lab {
	t.Helper()
	w, err := lab.Open(d, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// attach has a guest on a port.
func attach(t *testing.T, p *lab.Port) *labtest.Guest {
	t.Helper()
	client, server, err := vfiotest.Pair() // any pair of sockets
	if err != nil {
		t.Fatal(err)
	}
	p.Connected(server)
	var gpus []driver.FrontendGPU
	if g := p.GPU(); g != nil {
		gpus = append(gpus, driver.FrontendGPU{ID: g.ID(), FD: int(g.File.Fd()), Size: g.Size()})
	}
	g, err := labtest.New(client, "02:76:6e:69:00:"+string([]byte{'0', byte('1' + p.Index)}), []netip.Prefix{p.Addr4, p.Addr6}, gpus...)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestGuestsReachEachOtherAndComeAgain(t *testing.T) {
	labtest.LeavesNothing(t)
	w := open(t, lab.Uniform(3, lab.NIC{Model: lab.Virtio}, 2<<20), lab.Options{})
	for range 2 {
		a, b, c := attach(t, w.Port(0)), attach(t, w.Port(1)), attach(t, w.Port(2))
		if err := errors.Join(a.Exchange(t.Context(), b, 100_000), b.Exchange(t.Context(), c, 100_000)); err != nil {
			t.Error(err)
		}
		if err := errors.Join(a.Close(), b.Close(), c.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestGVEAnswersByVFIOUser(t *testing.T) {
	labtest.LeavesNothing(t)
	w := open(t, lab.Uniform(2, lab.NIC{Model: lab.GVE}, 6<<20), lab.Options{})
	for range 2 { // one after the other
		client, server, err := vfiotest.Pair()
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- w.Port(1).Serve(t.Context(), server) }()
		c, err := vfiotest.Connect(client)
		if err != nil {
			t.Fatal(err)
		}
		var id [4]byte
		if err := c.Read(7, 0, id[:]); err != nil || id != [4]byte{0xe0, 0x1a, 0x42, 0} {
			t.Errorf("PCI identity %x, %v", id, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// Close ends what is served.
func TestCloseEndsConnections(t *testing.T) {
	labtest.LeavesNothing(t)
	for _, nic := range []string{lab.Virtio, lab.GVE} {
		w, err := lab.Open(lab.Uniform(1, lab.NIC{Model: nic}, 0), lab.Options{})
		if err != nil {
			t.Fatal(err)
		}
		p := w.Port(0)
		client, server, err := vfiotest.Pair()
		if err != nil {
			t.Fatal(err)
		}
		p.Connected(server)
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if _, err := client.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("%s: the connection is open: %v", nic, err)
		}
		_ = client.Close()
		client, server, err = vfiotest.Pair()
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if err := p.Serve(t.Context(), server); !errors.Is(err, lab.ErrClosed) {
			t.Errorf("%s: served when closed: %v", nic, err)
		}
	}
}

// closer notes that it was closed, while the ports were there.
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

func TestServicesGoBeforePortsLastOneFirst(t *testing.T) {
	labtest.LeavesNothing(t)
	var closed []string
	service := func(name string) lab.Service {
		return func(w *lab.Lab) (io.Closer, error) { return closer{w, &closed, name}, nil }
	}
	bad := errors.New("bad")
	d, o := lab.Uniform(2, lab.NIC{Model: lab.Virtio}, 0), lab.Options{}
	o.Services = append(o.Services, service("a"), service("b"))
	w, err := lab.Open(d, o)
	if err != nil {
		t.Fatal(err)
	}
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
	labtest.LeavesNothing(t)
	virtio := lab.NIC{Model: lab.Virtio}
	two := lab.Guest{NICs: []lab.NIC{virtio, {Model: lab.GVE}}, GPUs: []lab.GPU{{Memory: 2 << 20}}}
	none := lab.Guest{NICs: []lab.NIC{{Model: lab.Virtio, GPUs: []int{}}}, GPUs: []lab.GPU{{Memory: 2 << 20}}}
	far := lab.Guest{NICs: []lab.NIC{{Model: lab.Virtio, GPUs: []int{1}}}, GPUs: []lab.GPU{{Memory: 2 << 20}}}
	for want, d := range map[string]lab.Description{
		"--nic e1000":                      lab.Uniform(1, lab.NIC{Model: "e1000"}, 0),
		"0 ports":                          lab.Uniform(0, virtio, 0),
		"251 ports":                        lab.Uniform(251, virtio, 0),
		"--mtu 9199":                       lab.Uniform(1, lab.NIC{Model: lab.GVE, MTU: 9199}, 0),
		"17 queue pairs":                   lab.Uniform(1, lab.NIC{Model: lab.GVE, QueuePairs: 17}, 0),
		"17 ports with GPU":                lab.Uniform(17, virtio, 4096),
		"--gpu-memory 3M: not":             lab.Uniform(1, virtio, 3<<20),
		"--gpu-memory 1M: not":             lab.Uniform(1, lab.NIC{Model: lab.GVE}, 1<<20),
		"GPU 0 of guest : NICs of both":    {Guests: []lab.Guest{two}},
		"GPU 0 of guest : no NIC":          {Guests: []lab.Guest{none}},
		"NIC : GPU 1: not one of the gues": {Guests: []lab.Guest{far}},
	} {
		if w, err := lab.Open(d, lab.Options{}); w != nil || err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, %v", want, w, err)
		}
	}
	var missing *lab.MemoryError
	w, err := lab.Open(lab.Uniform(2, virtio, 1<<50), lab.Options{})
	if w != nil || !errors.As(err, &missing) || !strings.Contains(err.Error(), "each of 2 GPUs") {
		t.Errorf("%v, %v", w, err)
	}
}
