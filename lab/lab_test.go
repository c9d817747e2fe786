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
	"vnic.dev/vnic/qemu"
	"vnic.dev/vnic/vfiouser/vfiotest"
)

func open(t *testing.T, o lab.Options) *lab.Lab {
	t.Helper()
	w, err := lab.New(o)
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
		gpus = append(gpus, driver.FrontendGPU{ID: g.ID(), FD: int(p.GPUFile().Fd()), Size: g.Size()})
	}
	g, err := labtest.New(client, "02:76:6e:69:00:"+string([]byte{'0', byte('1' + p.Index)}), []netip.Prefix{p.Addr4, p.Addr6}, gpus...)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestGuestsReachEachOtherAndComeAgain(t *testing.T) {
	labtest.LeavesNothing(t)
	w := open(t, lab.Options{NIC: lab.Virtio, Ports: make([]lab.PortOptions, 3), GPUMemory: 2 << 20})
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
	w := open(t, lab.Options{NIC: lab.GVE, Ports: make([]lab.PortOptions, 2), GPUMemory: 6 << 20})
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
		w, err := lab.New(lab.Options{NIC: nic, Ports: make([]lab.PortOptions, 1)})
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
	service := func(name string) func(*lab.Lab) (io.Closer, error) {
		return func(w *lab.Lab) (io.Closer, error) { return closer{w, &closed, name}, nil }
	}
	bad := errors.New("bad")
	o := lab.Options{NIC: lab.Virtio, Ports: make([]lab.PortOptions, 2)}
	o.Services = append(o.Services, service("a"), service("b"))
	w, err := lab.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil || strings.Join(closed, "") != "ba" {
		t.Errorf("%q, %v", closed, err)
	}
	closed = nil
	o.Services = append(o.Services, func(*lab.Lab) (io.Closer, error) { return nil, bad })
	if w, err := lab.New(o); w != nil || !errors.Is(err, bad) || strings.Join(closed, "") != "ba" {
		t.Errorf("%v, %v, closed %q", w, err, closed)
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	labtest.LeavesNothing(t)
	for want, o := range map[string]lab.Options{
		"--nic e1000":          {NIC: "e1000", Ports: make([]lab.PortOptions, 1)},
		"0 ports":              {NIC: lab.Virtio},
		"251 ports":            {NIC: lab.Virtio, Ports: make([]lab.PortOptions, 251)},
		"--mtu 9199":           {NIC: lab.GVE, Ports: make([]lab.PortOptions, 1), MTU: 9199},
		"17 queue pairs":       {NIC: lab.GVE, Ports: make([]lab.PortOptions, 1), QueuePairs: 17},
		"17 ports with GPU":    {NIC: lab.Virtio, Ports: make([]lab.PortOptions, 17), GPUMemory: 4096},
		"--gpu-memory 3M: not": {NIC: lab.Virtio, Ports: make([]lab.PortOptions, 1), GPUMemory: 3 << 20},
		"--gpu-memory 1M: not": {NIC: lab.GVE, Ports: make([]lab.PortOptions, 1), GPUMemory: 1 << 20},
	} {
		if w, err := lab.New(o); w != nil || err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, %v", want, w, err)
		}
	}
	var missing *qemu.Missing
	w, err := lab.New(lab.Options{NIC: lab.Virtio, Ports: make([]lab.PortOptions, 2), GPUMemory: 1 << 50})
	if w != nil || !errors.As(err, &missing) || !strings.Contains(err.Error(), "each of 2 GPUs") {
		t.Errorf("%v, %v", w, err)
	}
}
