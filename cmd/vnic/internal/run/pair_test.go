package run

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	_ "vnic.dev/vnic/internal/guestbin" // tests' guests run the program that make has built
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/transfer"
	"vnic.dev/vnic/internal/wire"
)

func TestMain(m *testing.M) { testkit.Main(withPairs{m}) }

type withPairs struct{ *testing.M }

// Run runs the tests, then ends the guests that they share.
func (m withPairs) Run() int {
	code := m.M.Run()
	for _, x := range pairs {
		if err := x.end(); err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			code = 1
		}
	}
	return code
}

// pair is two guests under QEMU in which nothing runs. The tests of this package share it, one
// after the other: each leaves it as it was. A test that fails ends it, and the next one boots
// another.
type pair struct {
	*runner
	im *machine.Images
}

var pairs = map[string]*pair{} // by name

const noP2P = " without P2P"

// booted gives the pair of guests with these NICs. QEMU and the kernel are fetched if they are not
// there.
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
			testkit.OK(t, x.end())
		}
	})
	return x
}

// unused is booted, but nothing has run in the pair that it gives: lossless transfers before leave TCP patient, and a
// sender may then see for minutes not that its receiver is gone.
func unused(t *testing.T, name string) *pair {
	t.Helper()
	if x := pairs[name]; x != nil {
		delete(pairs, name)
		testkit.OK(t, x.end())
	}
	return booted(t, name)
}

// pairOptions are of guests under QEMU.
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
	p := testkit.Must(o.plan())(t)
	x := &pair{im: testkit.Must(prepareGuests(t.Context(), &o))(t)}
	var err error
	if x.runner, err = newRunner(&o, p); err != nil {
		t.Fatal(errors.Join(err, x.im.Close()))
	}
	if err := x.start(context.Background(), x.im); err != nil {
		t.Fatal(errors.Join(err, x.end()))
	}
	return x
}

func (x *pair) end() error { return errors.Join(x.Close(), x.im.Close()) }

// run transfers as Do does, but for the boot: with other options, but for those of the lab's
// hardware.
func (x *pair) run(t *testing.T, o Options) *Report {
	t.Helper()
	testkit.OK(t, o.Check())
	p := testkit.Must(o.plan())(t)
	if models, _ := o.models(); models[0].Name != x.ends[0].nic.Model.Name {
		slices.Reverse(x.ends[:])
	}
	x.opt = &o
	x.port += 2000 // two modes of at most 1,000 ports each
	for i, e := range x.ends {
		e.opt, e.size = &o, p.window()
		x.relink(t, e, o.link(i))
	}
	rep, err := func() (*Report, error) {
		if err := x.setup(t.Context(), x.im); err != nil {
			return nil, err
		}
		return x.transfer(t.Context(), p)
	}()
	if err != nil {
		t.Fatal(x.blame(t.Context(), err))
	}
	for _, e := range x.ends {
		if err := e.guest.(transfer.Remote).Close(t.Context()); err != nil {
			t.Fatalf("guest %s: %v", e.name, err)
		}
		x.relink(t, e, wire.LinkOptions{})
	}
	testkit.OK(t, rep.check(&o))
	validReport(t, rep)
	return rep
}

// relink puts a NIC on another link. Nothing is under way.
func (x *pair) relink(t *testing.T, e *end, o wire.LinkOptions) {
	t.Helper()
	testkit.OK(t, errors.Join(x.sw.Detach(e.port.Link()), e.port.Attach(x.sw, o)))
}

// link is the link of end i.
func (o *Options) link(i int) wire.LinkOptions {
	d := lab.Uniform(i+1, lab.NIC{}, 0)
	d.Impair(o.Impairment)
	return d.Guests[i].NICs[0].Link
}
