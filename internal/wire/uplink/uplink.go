package uplink

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// Options configure an uplink.
type Options struct {
	Config
	MTU int          // the largest MTU of the switch's NICs, in bytes; 0: 1500
	NIC string       // name of a NIC with that MTU, for an error message of New; "": not known
	Log *slog.Logger // nil: the uplink logs nothing
	// Storm is how many frames to group addresses may come in a second, on average (wire.LinkOptions.Storm); 0: any
	// number.
	Storm int
	// Keep is called for the file of a listening Unix socket, with dir false: it may register the file with another
	// process that can remove it later. At its end the uplink calls remove. If Keep is nil, the uplink removes the
	// file itself.
	Keep func(path string, dir bool) (remove func() error, err error)
	// Failed is called once, from a goroutine of the uplink, if the uplink ends before Close. It must not wait for
	// Close. If Failed is nil, the uplink logs the error instead.
	Failed func(err error)

	now func() time.Time // set by tests; nil: time.Now
}

// tags is the length of two VLAN tags, in bytes.
const tags = 8

// carrier moves frames between the uplink and a VXLAN tunnel, a stream or a tap device. One goroutine calls read,
// another write.
type carrier interface {
	// mtu returns the MTU that the carrier found when it was opened, 0 if it has none, and for an error message where
	// the MTU comes from.
	mtu() (n int, why string)
	// room returns how many bytes for the carrier's header precede each frame in the buffers of write.
	room() int
	// read passes incoming frames to in, which copies them, until close or an error ends it; it returns the error. A
	// tap's virtio_net_hdr precedes the frame in b.
	read(in func(b []byte)) error
	// write sends frames, and drops frames that it cannot send. It calls wait before it waits until the socket or tap
	// takes a frame.
	write(fs []*frame, wait func())
	// close makes read return, and write drop its frames. Any goroutine may call it, more than once.
	close() error
}

// Uplink is a port of the switch that connects it to a network outside of this process.
type Uplink struct {
	o     Options
	sw    *wire.Switch
	link  *wire.Link
	c     carrier
	in    *inbox
	out   *outbox
	count *counters
	work  sync.WaitGroup

	end    sync.Once
	ended  chan struct{} // closed when the uplink has ended
	failed error         // the error that ended the uplink; nil: Close ended it. Set before ended is closed
	gone   error         // the error of carrier.close. Set before ended is closed
}

// New makes an uplink and attaches it to a switch. Attach ports that have an Identity before: the uplink drops incoming
// frames from their MACs, but not from a MAC that the switch has already seen behind the uplink.
func New(sw *wire.Switch, o Options) (*Uplink, error) {
	if err := o.Check(); err != nil {
		return nil, fmt.Errorf("uplink %s: %w", o.Name, err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.MTU == 0 {
		o.MTU = 1500
	}
	if o.now == nil {
		o.now = time.Now
	}
	u := &Uplink{o: o, sw: sw, count: &counters{log: o.Log.With("uplink", o.Name)}, ended: make(chan struct{})}
	err := u.open()
	if err == nil {
		err = u.checkMTU()
	}
	if err == nil {
		u.out = newOutbox(u)
		u.in, err = newInbox(u)
	}
	if err == nil {
		u.link, err = sw.Attach(&port{u}, wire.LinkOptions{Storm: o.Storm})
	}
	if err != nil {
		if u.in != nil {
			u.in.sender.Close()
		}
		if u.c != nil {
			err = errors.Join(err, u.c.close())
		}
		return nil, fmt.Errorf("uplink %s: %w", o.Name, err)
	}
	u.count.link = u.link
	u.in.sender.Start(-1, false)
	u.work.Go(u.out.run)
	u.work.Go(u.read)
	return u, nil
}

func (u *Uplink) open() (err error) {
	switch o := &u.o; {
	case o.VXLAN != nil:
		u.c, err = openVXLAN(o.VXLAN, o.MTU+splitter.EthLen+tags, u.count)
	case o.Stream != nil:
		u.c, err = openStream(o.Stream, o.MTU+splitter.EthLen+tags, u.count, o.Keep)
	default:
		u.c, err = openTap(o.Tap, u.count)
	}
	return err
}

func (u *Uplink) checkMTU() error {
	n, why := u.c.mtu()
	if n == 0 || n >= u.o.MTU {
		return nil
	}
	who := "NICs have"
	if u.o.NIC != "" {
		who = "NIC " + u.o.NIC + " has"
	}
	return fmt.Errorf("it carries packets of %d bytes (%s), and %s an MTU of %d: give all NICs one of %d at most "+
		"(mtu: %d in the lab file, or --mtu %d)", n, why, who, u.o.MTU, n, n, n)
}

func (u *Uplink) read() {
	if err := u.c.read(u.in.add); err != nil {
		u.fail(err)
	}
}

// fail closes the carrier; err is why, or nil for Close. The port stays attached, and drops the frames that it gets.
// Only the first call has an effect.
func (u *Uplink) fail(err error) {
	u.end.Do(func() {
		if u.failed = err; err != nil && u.o.Failed == nil {
			u.count.log.Error("uplink closed", "err", err)
		}
		u.gone = u.c.close()
		close(u.ended)
		u.out.each((*lane).relieve) // after ended is closed: wakes all waiting senders
		if err != nil && u.o.Failed != nil {
			u.o.Failed(fmt.Errorf("uplink %s: %w", u.o.Name, err))
		}
	})
}

// Close ends the uplink, waits for its goroutines, and detaches it from its switch. It does not return the error that
// Failed has got.
func (u *Uplink) Close() error {
	u.fail(nil)
	u.work.Wait()
	u.in.sender.Close()
	err := u.sw.Detach(u.link)
	if errors.Is(err, wire.ErrDetached) {
		err = nil
	}
	return errors.Join(u.gone, err)
}
