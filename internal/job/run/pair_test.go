package run

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	_ "vnic.dev/vnic/internal/guestbin"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/transfer"
	"vnic.dev/vnic/internal/wire"
)

func TestMain(m *testing.M) { testkit.Main(withPairs{m}) }

type withPairs struct{ *testing.M }

func (m withPairs) Run() int {
	code := m.M.Run()
	for _, x := range pairs {
		if err := x.Close(); err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			code = 1
		}
	}
	return code
}

// pair is two guests under QEMU, which tests use one after the other. A test that succeeds leaves them as they were.
type pair struct {
	*runner
	s *stream
}

var pairs = map[string]*pair{} // by Options.NIC, followed by noP2P if peer-to-peer is off

const noP2P = " without P2P"

// booted returns the pair whose key in pairs is name; if there is none, it boots one. If the test fails, the pair is
// closed at the test's end, and a later call boots another.
func booted(t *testing.T, name string) *pair {
	t.Helper()
	testkit.Boots(t)
	x := pairs[name]
	if x == nil {
		x = boot(t, name)
		pairs[name] = x
	}
	t.Cleanup(func() {
		if t.Failed() {
			delete(pairs, name)
			testkit.OK(t, x.Close())
		}
	})
	return x
}

// unused closes the pair whose key is name, if there is one, and boots another.
func unused(t *testing.T, name string) *pair {
	t.Helper()
	if x := pairs[name]; x != nil {
		delete(pairs, name)
		testkit.OK(t, x.Close())
	}
	return booted(t, name)
}

func pairOptions(nic string, size uint64) Options {
	o := options(size)
	o.NIC, o.InProc, o.Memory, o.GPUMemory = nic, false, 512<<20, 512<<20
	return o
}

func boot(t *testing.T, name string) *pair {
	t.Helper()
	nic, off := strings.CutSuffix(name, noP2P)
	o := pairOptions(nic, 1)
	o.P2P = !off
	r := testkit.Must(newRunner(t.Context(), &o, func(error) {}))(t)
	x := &pair{runner: r, s: r.streams[0]}
	if err := x.Boot(context.Background()); err != nil {
		t.Fatal(errors.Join(err, x.Close()))
	}
	return x
}

// run transfers with the options o as Do does, but with the booted guests, whose links it gives o's impairments.
func (x *pair) run(t *testing.T, o Options) *Report {
	t.Helper()
	testkit.OK(t, o.Check())
	port := x.s.port + 2000 // of the two modes before, each used at most 1,000 ports
	x.opt, x.streams, x.ways = &o, nil, [][2]int{{0, 1}}
	if models, _ := o.models(); models[0].Name != x.desc.Guests[0].NICs[0].Model {
		x.ways = [][2]int{{1, 0}}
	}
	testkit.OK(t, x.plan())
	x.attach()
	x.s = x.streams[0]
	x.s.port = port
	for i, e := range x.s.ends {
		x.relink(t, e, o.link(i))
	}
	rep, err := func() (*Report, error) {
		if err := x.Setup(t.Context(), 0, x.take); err != nil {
			return nil, err
		}
		return x.transfer(t.Context())
	}()
	if err != nil {
		t.Fatal(x.blame(t.Context(), err))
	}
	for _, e := range x.s.ends {
		if err := e.Ops.(transfer.Remote).Close(t.Context()); err != nil {
			t.Fatalf("guest %s: %v", e.Name, err)
		}
		x.relink(t, e, wire.LinkOptions{})
	}
	validReport(t, rep)
	return rep
}

// relink replaces a NIC's link to the switch by one with the options o; no transfer may be running.
func (x *pair) relink(t *testing.T, e *end, o wire.LinkOptions) {
	t.Helper()
	testkit.OK(t, errors.Join(x.Lab.Switch().Detach(e.nic().Link()), e.nic().Attach(x.Lab.Switch(), o)))
}

func (o *Options) link(i int) wire.LinkOptions {
	d := lab.Uniform(i+1, lab.NIC{}, 0)
	d.Impair(o.Impairment)
	return d.Guests[i].NICs[0].Link
}
