package vhostuser

import (
	"cmp"
	"fmt"
	"slices"

	"vnic.dev/vnic/internal/peer"
	"vnic.dev/vnic/internal/scm"
)

type ringLocation struct{ desc, avail, used location }

// ring is a virtqueue as the frontend described it. The session owns the eventfds kick, call and err, -1 for
// none; while the ring is live, the device has duplicates.
type ring struct {
	size            uint16    // 0: unknown
	addr            vringAddr // user addresses
	haveAddr        bool
	haveKick        bool // SET_VRING_KICK came since the last stopRing
	kick, call, err int
	base            uint32
	enabled         bool

	live    bool         // the device has started it, and not stopped it since
	located ringLocation // where its parts were when the device started it last
	ran     bool         // the device has started it since the last stopRing
}

func newRing() ring { return ring{kick: -1, call: -1, err: -1} }

// complete reports whether the frontend has sent size, addresses and kick of the ring.
func (r *ring) complete() bool { return r.size > 0 && r.haveAddr && r.haveKick }

// locate finds the three parts of the ring (virtio 1.3, 2.7), always with the fields of VIRTIO_F_EVENT_IDX. A part that
// does not lie in a single region is ErrMemory.
func (r *ring) locate(regions []region) (p ringLocation, err error) {
	n := uint64(r.size)
	for _, part := range []struct {
		name      string
		user, len uint64
		location  *location
	}{
		{"descriptor table", r.addr.Desc, 16 * n, &p.desc},
		{"available ring", r.addr.Avail, 6 + 2*n, &p.avail},
		{"used ring", r.addr.Used, 6 + 8*n, &p.used},
	} {
		if *part.location, err = translate(regions, part.user, part.len); err != nil {
			return ringLocation{}, fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return p, nil
}

func (s *session) ring(m *message, i uint32) (*ring, error) {
	if int64(i) >= int64(len(s.rings)) {
		return nil, fmt.Errorf("%v: ring %d of %d: %w", m.Request, i, len(s.rings), ErrBadMessage)
	}
	return &s.rings[i], nil
}

func (s *session) anyLive() bool {
	return slices.ContainsFunc(s.rings, func(r ring) bool { return r.live })
}

// startRing makes the device start ring i if it is complete and not live.
func (s *session) startRing(i int) error {
	r := &s.rings[i]
	if r.live || !r.complete() {
		return nil
	}
	p, err := r.locate(s.regions)
	if err != nil {
		return fmt.Errorf("ring %d: %w", i, err)
	}
	v := Vring{Index: i, Size: r.size, Desc: p.desc.gpa, Avail: p.avail.gpa, Used: p.used.gpa, Base: r.base,
		Kick: -1, Call: -1, Err: -1, Running: r.ran}
	for _, d := range []struct {
		to   *int
		from int
	}{{&v.Kick, r.kick}, {&v.Call, r.call}, {&v.Err, r.err}} {
		if *d.to, err = scm.Dup(d.from); err != nil {
			scm.Close(v.Kick)
			scm.Close(v.Call)
			return fmt.Errorf("ring %d: %w", i, err)
		}
	}
	if err := s.dev.StartQueue(v); err != nil {
		return fmt.Errorf("ring %d: %w", i, err)
	}
	r.live, r.ran, r.located = true, true, p
	return nil
}

// pauseRing makes the device stop ring i if it is live, and stores its base.
func (s *session) pauseRing(i int) error {
	r := &s.rings[i]
	if !r.live {
		return nil
	}
	r.live = false
	base, err := s.dev.StopQueue(i)
	r.base = base
	return peer.Wrap(err, "ring %d: stop", i)
}

// whilePaused stops ring i if it is live, calls f to change it, also if it did not stop well, and starts it if it is
// complete then.
func (s *session) whilePaused(i int, f func()) error {
	err := s.pauseRing(i)
	f()
	if e := s.startRing(i); e != nil {
		return e
	}
	return err
}

// whileAllPaused calls f while all rings are stopped, and then starts the rings again that were live.
func (s *session) whileAllPaused(f func() error) (err error) {
	var live []int
	for i := range s.rings {
		if s.rings[i].live {
			live = append(live, i)
			err = cmp.Or(err, s.pauseRing(i))
		}
	}
	errs := []error{f(), err}
	for _, i := range live {
		errs = append(errs, s.startRing(i))
	}
	return cmp.Or(errs...)
}

// stopRing stops a ring until the next SET_VRING_KICK. It closes the call eventfd too, as libvhost-user does
// (vu_get_vring_base_exec).
func (s *session) stopRing(i int) error {
	err := s.pauseRing(i)
	r := &s.rings[i]
	scm.Close(r.kick)
	scm.Close(r.call)
	r.kick, r.call, r.haveKick, r.ran = -1, -1, false, false
	return err
}

// resetRing stops and disables ring i, and forgets its description. It keeps the eventfd err: QEMU sends it only once,
// before it resets the device.
func (s *session) resetRing(i int) error {
	err := s.stopRing(i)
	if e := s.enable(i, false); e != nil {
		err = e
	}
	r := newRing()
	r.err = s.rings[i].err
	s.rings[i] = r
	return err
}

func (s *session) enable(i int, on bool) error {
	r := &s.rings[i]
	if r.enabled == on {
		return nil
	}
	if err := s.dev.EnableQueue(i, on); err != nil {
		return fmt.Errorf("ring %d: enable %t: %w", i, on, err)
	}
	r.enabled = on
	return nil
}

func (s *session) enableAll(on bool) (err error) {
	for i := range s.rings {
		err = cmp.Or(err, s.enable(i, on))
	}
	return err
}

// withState returns a handler that decodes a vringState and passes it to handle with its ring.
func withState(handle func(s *session, m *message, r *ring, v vringState) ([]byte, error)) handler {
	return func(s *session, m *message) ([]byte, error) {
		v := peer.Decode[vringState](m.body)
		r, err := s.ring(m, v.Index)
		if err != nil {
			return nil, err
		}
		return handle(s, m, r, v)
	}
}

func (s *session) setVringNum(_ *message, r *ring, v vringState) ([]byte, error) {
	if v.Num == 0 || v.Num > MaxRingSize {
		return nil, fmt.Errorf("SET_VRING_NUM: ring %d of %d descriptors, not 1 to %d: %w", v.Index, v.Num, MaxRingSize,
			ErrBadMessage)
	}
	if uint32(r.size) == v.Num {
		return nil, nil
	}
	return nil, s.whilePaused(int(v.Index), func() { r.size = uint16(v.Num) })
}

func (s *session) setVringAddr(m *message) ([]byte, error) {
	a := peer.Decode[vringAddr](m.body)
	r, err := s.ring(m, a.Index)
	if err != nil {
		return nil, err
	}
	if a.Flags&vringLog != 0 {
		return nil, fmt.Errorf("SET_VRING_ADDR: ring %d: VHOST_VRING_F_LOG: live migration is not supported", a.Index)
	}
	if r.haveAddr && a.Desc == r.addr.Desc && a.Avail == r.addr.Avail && a.Used == r.addr.Used {
		return nil, s.startRing(int(a.Index)) // the frontend may have added missing memory
	}
	return nil, s.whilePaused(int(a.Index), func() { r.addr, r.haveAddr = a, true })
}

// setVringBase sets the next available index.
func (s *session) setVringBase(_ *message, r *ring, v vringState) ([]byte, error) {
	if v.Num > 0xffff {
		return nil, fmt.Errorf("SET_VRING_BASE: ring %d: %#x is no index of a split ring: %w", v.Index, v.Num, ErrBadMessage)
	}
	return nil, s.whilePaused(int(v.Index), func() { r.base = v.Num })
}

// getVringBase answers with a base even if the ring did not stop well.
func (s *session) getVringBase(m *message, r *ring, v vringState) ([]byte, error) {
	if err := s.stopRing(int(v.Index)); err != nil {
		s.refused(m, err)
	}
	v.Num = r.base
	return peer.Append(nil, v), nil
}

// withFD returns a handler that passes the ring that a request names and its eventfd to handle, which owns the eventfd;
// -1 is none.
func withFD(handle func(s *session, i int, r *ring, fd int) error) handler {
	return func(s *session, m *message) ([]byte, error) {
		i, want := int(uint8(m.u64())), 1
		if m.u64()&vringNoFD != 0 {
			want = 0
		}
		r, err := s.ring(m, uint32(i))
		if err != nil {
			return nil, err
		}
		if m.fds.Len() != want {
			return nil, fmt.Errorf("%v: ring %d: %d descriptors, not %d: %w", m.Request, i, m.fds.Len(), want, ErrBadMessage)
		}
		if want == 0 {
			return nil, handle(s, i, r, -1)
		}
		if err := scm.CheckEvent(m.fds.At(0)); err != nil {
			return nil, fmt.Errorf("%v: ring %d: %w: %w", m.Request, i, err, ErrBadMessage)
		}
		return nil, handle(s, i, r, m.fds.Take(0))
	}
}

func (s *session) setVringKick(i int, r *ring, fd int) error {
	return s.whilePaused(i, func() {
		scm.Close(r.kick)
		r.kick, r.haveKick = fd, true
	})
}

func (s *session) setVringCall(i int, r *ring, fd int) error {
	scm.Close(r.call)
	r.call = fd
	return s.giveEventFD(i, fd, s.dev.SetCall)
}

func (s *session) setVringErr(i int, r *ring, fd int) error {
	scm.Close(r.err)
	r.err = fd
	return s.giveEventFD(i, fd, s.dev.SetErr)
}

// giveEventFD passes a duplicate of fd to the device by set if ring i is live.
func (s *session) giveEventFD(i, fd int, set func(index, fd int) error) error {
	if !s.rings[i].live {
		return nil
	}
	fd, err := scm.Dup(fd)
	if err == nil {
		err = set(i, fd)
	}
	return peer.Wrap(err, "ring %d", i)
}

func (s *session) setVringEnable(_ *message, _ *ring, v vringState) ([]byte, error) {
	if v.Num > 1 {
		return nil, fmt.Errorf("SET_VRING_ENABLE: ring %d: %d is not 0 or 1: %w", v.Index, v.Num, ErrBadMessage)
	}
	return nil, s.enable(int(v.Index), v.Num == 1)
}
