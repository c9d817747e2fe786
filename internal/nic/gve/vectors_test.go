package gve

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/vfiouser"
)

// Invariant: nic/gve: An armed queue vector fires at most once until it is armed again, or its
// eventfd is replaced during a signal; interrupts that are due meanwhile are raised as one.
func TestVectorFiresOnce(t *testing.T) {
	c := newConfigured(t, 1)
	e := c.irq(1)
	expect := func(what string, n uint64) {
		t.Helper()
		testkit.Equal(t, "interrupts "+what, e.fired(), n)
	}
	c.dev.vectors.fire(1)
	expect("before it was armed", 0)
	c.bell(irqDoorbells+1, irqEnable)
	expect("what came before", 1)
	c.bell(irqDoorbells+1, irqEnable)
	expect("armed, and nothing came", 0)
	c.dev.vectors.fire(1)
	c.dev.vectors.fire(1)
	c.dev.vectors.fire(1)
	expect("armed once", 1)
	c.bell(irqDoorbells+1, irqEnable|3<<3) // the interval is kept
	expect("those that came while it was masked", 1)
	c.bell(irqDoorbells+1, irqEnable)
	c.bell(irqDoorbells+1, 0)
	c.dev.vectors.fire(1)
	expect("masked by the driver", 0)
	// The frontend takes the eventfd away for a while.
	c.OK(c.dev.SetIRQ(vfiouser.IRQMSIX, 1, -1))
	c.bell(irqDoorbells+1, irqEnable)
	e2 := c.irq(1)
	expect("an eventfd that was taken away", 0)
	e = e2
	expect("a new one", 1)
	c.OK(c.dev.DisableIRQs(vfiouser.IRQMSIX))
	c.bell(irqDoorbells+1, irqEnable)
	c.dev.vectors.fire(1)
	expect("none any more", 0)
	// A reset clears latched interrupts.
	c.reset()
	c.start()
	c.configure(2)
	e = c.irq(1)
	c.bell(irqDoorbells+1, irqEnable)
	expect("after reset", 0)
}

// The management vector is the vector behind those for the notification blocks, or vector 0 if they begin at 1. It is
// never masked.
func TestManagementVector(t *testing.T) {
	for _, base := range []uint32{0, 1} {
		c := newCtl(t, queues(2))
		c.start()
		var es []*event
		for v := range 5 {
			es = append(es, c.irq(v))
		}
		cmd := c.resources(4)
		cmd.Base = base
		c.pass(opConfigureResources, cmd)
		c.bell(irqDoorbells+3, irqEnable)
		want := make([]uint64, 5)
		management := 4 * (1 - int(base))
		link := func(up bool) {
			c.dev.SetLink(up)
			want[management]++
			testkit.Equal(t, "link", c.read32(regDeviceStatus)&statusLink != 0, up)
		}
		link(false)
		link(true)
		c.dev.vectors.fire(3 + int(base)) // of block 3
		want[3+base]++
		var got []uint64
		for _, e := range es {
			got = append(got, e.fired())
		}
		if !slices.Equal(got, want) {
			t.Errorf("base %d: interrupts %d, not %d", base, got, want)
		}
		c.reset()
		c.dev.SetLink(false) // there is no driver to notify
		c.dev.SetLink(true)
	}
}

// The frontend makes an eventfd blocking and leaves it full.
//
// Invariant: nic/gve: A frontend that blocks its eventfd delays nobody else.
func TestStuckInterrupt(t *testing.T) {
	for name, replaced := range map[string]bool{"stays": false, "replaced": true} {
		t.Run(name, func(t *testing.T) {
			c := newConfigured(t, 1)
			e := c.irq(0)
			_, err := unix.Write(e.fd, le.AppendUint64(nil, ^uint64(0)-1))
			c.OK(err)
			c.OK(unix.SetNonblock(e.fd, false)) // a flag of the open file, so it applies to the device's descriptor too
			c.bell(irqDoorbells, irqEnable)
			done := make(chan struct{})
			go func() {
				defer close(done)
				c.dev.vectors.fire(0)
			}()
			if replaced {
				e = c.irq(0)
				<-done
				c.bell(irqDoorbells, irqEnable)
				c.dev.vectors.fire(0)
			}
			<-done
			c.OK(unix.SetNonblock(e.fd, true))
			if e.fired() == 0 && !c.dev.vectors.Quarantined() { // the monitor may have taken the eventfd away first
				t.Error("no interrupt")
			}
		})
	}
}

// An interrupt in progress while its eventfd is taken away goes to the next eventfd.
func TestInterruptOnItsWay(t *testing.T) {
	c := newConfigured(t, 1)
	c.irq(0)
	v := c.dev.vectors.get(0)
	v.eventFD.Enter() // an interrupt in progress
	old := v.eventFD
	c.OK(c.dev.DisableIRQs(vfiouser.IRQMSIX))
	old.Write()
	if e := c.irq(0); e.fired() == 0 {
		t.Error("no interrupt on the new eventfd")
	}
}

// Invariant: hot path: Nothing is allocated for a packet.
func TestFireAllocatesNothing(t *testing.T) {
	c := newConfigured(t, 1)
	c.irq(0)
	if n := testing.AllocsPerRun(1000, func() {
		c.dev.vectors.fire(0)
		c.dev.vectors.arm(0, irqEnable)
	}); n != 0 {
		t.Errorf("an interrupt allocates %v times", n)
	}
}
