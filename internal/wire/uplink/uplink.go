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
	MTU int          // the greatest MTU that a NIC of the switch may have, in bytes; 0: 1500
	NIC string       // with that MTU, for messages
	Log *slog.Logger // nil: none
	// Storm is the LinkOptions.Storm of the uplink's link, for the frames that come in.
	Storm int
	// Keep registers the file of a listening Unix socket with another process that can remove the file later. At
	// its end the uplink calls remove; if Keep is nil, it removes the file itself.
	Keep func(path string, dir bool) (remove func() error, err error)
	// Failed is called once, from a goroutine of the uplink, if the uplink ends by itself; nil: the error is
	// logged.
	Failed func(err error)

	now func() time.Time // tests
}

// tags is the length of two VLAN tags.
const tags = 8

// carrier moves frames to and from the outside. One goroutine calls read, another write.
type carrier interface {
	// mtu returns the length of the longest packet, or 0 for any, and why, for an error message.
	mtu() (n int, why string)
	// room is how many bytes precede a frame in the buffers of write, for the carrier's header.
	room() int
	// read passes incoming frames to in, which copies them, until the carrier ends. A tap's virtio_net_hdr
	// precedes the frame in b.
	read(in func(b []byte)) error
	// write sends frames; it drops frames that the socket refuses. It calls wait before it waits for the socket.
	write(fs []*frame, wait func())
	// close ends read and write. Any goroutine may call it, more than once.
	close() error
}

// Uplink is a port of the switch that leads out of the process.
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
	failed error         // nil: Close was called. Set before ended is closed
	gone   error         // the error of closing the carrier. Set before ended is closed
}

// New makes an uplink and attaches it to a switch. Ports whose MACs the uplink has to recognize must be
// attached before.
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

// fail ends the uplink; its port stays, and drops the frames. Only the first call has an effect.
func (u *Uplink) fail(err error) {
	u.end.Do(func() {
		if u.failed = err; err != nil && u.o.Failed == nil {
			u.count.log.Error("uplink closed", "err", err)
		}
		u.gone = u.c.close()
		close(u.ended)
		u.out.each((*lane).relieve) // after ended is closed, so no sender waits on
		if err != nil && u.o.Failed != nil {
			u.o.Failed(fmt.Errorf("uplink %s: %w", u.o.Name, err))
		}
	})
}

// Close detaches the uplink from its switch, and frees it.
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
