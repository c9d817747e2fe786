package mistakes

import (
	"context"
	"errors"
	"flag"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/engine"
	"vnic.dev/vnic/internal/inuse"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/stack"
)

// TestMain lets 16 mistakes run at the same time, as they mostly wait.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	testkit.Main(m)
}

const (
	gpuSize = 16 << 20
	limit   = 6 * time.Second // the stall limit: a peer must answer a probe within half of it
	port    = 5201
)

type bounded struct {
	devmem.Device
	listens func(port uint16) chan struct{}
}

func (b bounded) Listen(local netip.AddrPort) (devmem.Listener, error) {
	l, err := b.Device.Listen(local)
	if err != nil {
		return nil, err
	}
	close(b.listens(local.Port()))
	return listener{l}, nil
}

type listener struct{ devmem.Listener }

func (l listener) AcceptConn() (devmem.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), peerLimit, os.ErrDeadlineExceeded)
	defer cancel()
	return devmem.Accept(ctx, l.Listener)
}

const peerLimit = 8 * time.Second

func sides(t *testing.T) [2]*Side {
	l := testkit.Must(lab.Open(lab.Uniform(2, lab.NIC{Model: lab.Virtio, QueuePairs: 4}, gpuSize),
		lab.Options{Log: labtest.Log(t)}))(t)
	t.Cleanup(func() { testkit.OK(t, l.Close()) })
	addrs := [2]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
	var both [2]*Side
	var listens [2]func(port uint16) chan struct{}
	for i := range listens {
		var mu sync.Mutex
		m := map[uint16]chan struct{}{}
		listens[i] = func(port uint16) chan struct{} {
			mu.Lock()
			defer mu.Unlock()
			if m[port] == nil {
				m[port] = make(chan struct{})
			}
			return m[port]
		}
	}
	for i := range both {
		p := l.Port(i)
		n := testkit.Must(p.InProcess(driver.Options{QueuePairs: p.QueuePairs, HostQueues: 1}))(t)
		st := testkit.Must(stack.New(n, n.Control(), stack.Options{Addresses: []netip.Prefix{netip.PrefixFrom(addrs[i], 24)},
			MinRTO: 200 * time.Millisecond}))(t)
		s := &Side{Device: bounded{st, listens[i]}, Addr: addrs[i], Peer: addrs[1-i], Queue: 3, Queues: 4,
			GPU: n.GPUs()[0].ID, Size: gpuSize, Memory: engine.New(n.Control(), n), Stall: limit}
		s.Connect = func(ctx context.Context, port uint16) (devmem.Conn, error) {
			select {
			case <-listens[1-i](port):
				return s.Dial(ctx, netip.AddrPortFrom(s.Addr, 0), netip.AddrPortFrom(s.Peer, port))
			case <-time.After(peerLimit):
				return nil, os.ErrDeadlineExceeded
			}
		}
		device := t.TempDir()
		s.Second = func() error {
			c := testkit.Must(inuse.Claim(device))(t)
			defer func() { testkit.OK(t, c.Close()) }()
			_, err := inuse.Claim(device)
			return err
		}
		s.Crash = func() { _ = n.Close() } // connections end without a FIN
		both[i] = s
	}
	return both
}

func (m Mistake) make(t *testing.T) (a, b error) {
	both := sides(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for i, f := range []func(context.Context, *Side, uint16) error{m.A, m.B} {
		wg.Go(func() {
			s := both[i]
			var err error
			if f != nil {
				err = f(ctx, s, port)
			}
			if f != nil || m.B == nil {
				_ = s.Close() // a crashed device returns an error
			}
			if i == 0 {
				a = err
			} else {
				b = err
			}
		})
	}
	wg.Wait()
	return a, b
}

// Invariant: devmem: Each of the mistakes in docs/mistakes.md ends by itself, and the first line of
// its error is as the page has it; a program without a mistake succeeds.
func TestEachMistakeIsNamed(t *testing.T) {
	rows, err := Rows("../../../docs/mistakes.md")
	testkit.OK(t, err)
	t.Run(Right.Name, func(t *testing.T) {
		a, b := Right.make(t)
		testkit.OK(t, errors.Join(a, b))
	})
	if testing.Short() {
		return // many mistakes wait until a limit has passed
	}
	for _, m := range List {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			a, b := m.make(t)
			t.Logf("a: %v\nb: %v", a, b)
			if a == nil {
				t.Fatal("nothing is said")
			}
			first, more, _ := strings.Cut(a.Error(), "\n")
			if more != "" {
				t.Errorf("more than a line: %s", more)
			}
			if !rows.Say(m.Name, first) {
				t.Errorf("docs/mistakes.md has no line for that: %s", first)
			}
			if m.Peer && b != nil {
				t.Errorf("b: %v", b)
			}
		})
	}
}

// docs/mistakes.md has exactly the mistakes of the list, and no message of one fits another one.
func TestDocumentationTellsMistakesApart(t *testing.T) {
	rows, err := Rows("../../../docs/mistakes.md")
	testkit.OK(t, err)
	known := map[string]bool{}
	for _, m := range List {
		known[m.Name] = true
		if len(rows[m.Name]) == 0 {
			t.Errorf("%s is not documented", m.Name)
		}
		for _, message := range rows[m.Name] {
			for other := range rows {
				if other != m.Name && rows.Say(other, message) {
					t.Errorf("%q is the message of %s and of %s", message, m.Name, other)
				}
			}
		}
	}
	for name := range rows {
		if !known[name] {
			t.Errorf("nobody makes this mistake: %s", name)
		}
	}
}
