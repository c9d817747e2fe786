package vfiouser

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/peer"
)

func (s *session) getInfo(m *message) error {
	d := peer.Decode[deviceInfo](m.body)
	if d.Argsz < infoLen {
		return fmt.Errorf("argsz %d: %w", d.Argsz, unix.EINVAL)
	}
	d = deviceInfo{Argsz: infoLen, Flags: infoPCI, Regions: NumRegions, IRQs: NumIRQs}
	if s.info.Reset {
		d.Flags |= infoReset
	}
	s.out = peer.Append(s.out, d)
	return nil
}

func (s *session) getRegionInfo(m *message) error {
	r := peer.Decode[regionInfo](m.body)
	if r.Argsz < regionInfoLen || r.Index >= NumRegions {
		return fmt.Errorf("argsz %d, index %d: %w", r.Argsz, r.Index, unix.EINVAL)
	}
	r = regionInfo{Argsz: regionInfoLen, Index: r.Index}
	if info := s.region(r.Index); info.Size > 0 {
		r.Size = info.Size
		if info.Read {
			r.Flags |= regionRead
		}
		if info.Write {
			r.Flags |= regionWrite
		}
	}
	s.out = peer.Append(s.out, r)
	return nil
}

// region returns region i of the device, or one of size 0 if the device has none.
func (s *session) region(i uint32) Region {
	if int64(i) >= int64(len(s.info.Regions)) {
		return Region{}
	}
	return s.info.Regions[i]
}

func (s *session) checkAccess(a *access, write bool) error {
	r := s.region(a.region)
	switch {
	case a.count == 0 || a.count > MaxTransfer:
		return fmt.Errorf("%v: not 1 to %d bytes: %w", a, MaxTransfer, unix.EINVAL)
	case a.offset > r.Size || uint64(a.count) > r.Size-a.offset:
		return fmt.Errorf("%v: the region has %#x bytes: %w", a, r.Size, unix.EINVAL)
	case write && !r.Write, !write && !r.Read:
		return fmt.Errorf("%v: not allowed: %w", a, unix.EPERM)
	}
	return nil
}

func (s *session) regionRead(m *message) error {
	var a access
	a.decode((*[accessLen]byte)(m.body))
	if err := s.checkAccess(&a, false); err != nil {
		return err
	}
	s.out = append(s.out, m.body...) // the reply's payload begins with the request's
	start := len(s.out)
	s.out = slices.Grow(s.out, int(a.count))[:start+int(a.count)]
	data := s.out[start:]
	clear(data)
	if err := s.dev.ReadRegion(int(a.region), a.offset, data); err != nil {
		return fmt.Errorf("%v: %w", &a, err)
	}
	return nil
}

func (s *session) regionWrite(m *message) error {
	var a access
	a.decode((*[accessLen]byte)(m.body))
	data := m.body[accessLen:]
	if uint64(a.count) != uint64(len(data)) {
		return fmt.Errorf("%v comes with %d bytes: %w", &a, len(data), unix.EINVAL)
	}
	if err := s.write(&a, data); err != nil {
		return err
	}
	s.out = append(s.out, m.body[:accessLen]...)
	return nil
}

func (s *session) write(a *access, data []byte) error {
	if err := s.checkAccess(a, true); err != nil {
		return err
	}
	if err := s.dev.WriteRegion(int(a.region), a.offset, data); err != nil {
		return fmt.Errorf("%v: %w", a, err)
	}
	return nil
}

// regionWriteMulti makes the writes in order, up to one that fails, or until the context of Serve has ended. Earlier
// writes stay.
func (s *session) regionWriteMulti(m *message) error {
	n, list := le.Uint64(m.body), m.body[multiHeadLen:]
	if n > maxPayload/multiLen || uint64(len(list)) != n*multiLen {
		return fmt.Errorf("%d writes in %d bytes: %w", n, len(list), unix.EINVAL)
	}
	for i := range int(n) {
		select {
		case <-s.stop:
			return fmt.Errorf("after %d of %d writes: %w", i, n, unix.ESHUTDOWN)
		default:
		}
		entry := list[i*multiLen:][:multiLen]
		var a access
		a.decode((*[accessLen]byte)(entry))
		if a.count > multiData {
			return fmt.Errorf("write %d of %d: %v: more than %d bytes: %w", i, n, &a, multiData, unix.EINVAL)
		}
		if err := s.write(&a, entry[accessLen:][:a.count]); err != nil {
			return fmt.Errorf("write %d of %d: %w", i, n, err)
		}
	}
	s.out = le.AppendUint64(s.out, n)
	return nil
}
