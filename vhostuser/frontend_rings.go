package vhostuser

import (
	"fmt"

	"vnic.dev/vnic/internal/peer"
)

// VringSetup describes a ring to the backend.
type VringSetup struct {
	Index             int
	Size              uint16
	Desc, Avail, Used uint64 // user addresses, in shared memory
	Base              uint32 // the result of GetVringBase, or 0
	// Kick and Call are eventfds, which the caller keeps; -1 is none. A Backend of this package makes them
	// non-blocking.
	Kick, Call int
}

// SetupVring sends the size, base and addresses of a ring, and then its call and kick eventfds.
func (f *Frontend) SetupVring(v VringSetup) error {
	if err := f.vringState(SetVringNum, v.Index, uint32(v.Size)); err != nil {
		return err
	}
	if err := f.vringState(SetVringBase, v.Index, v.Base); err != nil {
		return err
	}
	if err := f.SetVringAddr(v.Index, v.Desc, v.Avail, v.Used); err != nil {
		return err
	}
	if err := f.SetVringCall(v.Index, v.Call); err != nil {
		return err
	}
	return f.SetVringKick(v.Index, v.Kick)
}

// SetVringAddr sets the user addresses of a ring's parts.
func (f *Frontend) SetVringAddr(i int, desc, avail, used uint64) error {
	if err := checkIndex(i); err != nil {
		return err
	}
	a := vringAddr{Index: uint32(i), Desc: desc, Avail: avail, Used: used}
	return f.command(SetVringAddr, peer.Append(nil, a))
}

// SetVringKick sets the eventfd that notifies the backend of new buffers; -1 asks the backend to
// poll the ring.
func (f *Frontend) SetVringKick(i, fd int) error { return f.vringFD(SetVringKick, i, fd) }

// SetVringCall sets the eventfd that notifies the driver of used buffers; -1 is none.
func (f *Frontend) SetVringCall(i, fd int) error { return f.vringFD(SetVringCall, i, fd) }

// SetVringErr sets the eventfd by which the backend reports a broken ring; -1 is none.
func (f *Frontend) SetVringErr(i, fd int) error { return f.vringFD(SetVringErr, i, fd) }

// SetEnable enables or disables ring i.
func (f *Frontend) SetEnable(i int, on bool) error {
	n := uint32(0)
	if on {
		n = 1
	}
	return f.vringState(SetVringEnable, i, n)
}

// GetVringBase stops ring i and returns its next available index.
func (f *Frontend) GetVringBase(i int) (uint32, error) {
	if err := checkIndex(i); err != nil {
		return 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	reply, err := f.query(GetVringBase, peer.Append(nil, vringState{Index: uint32(i)}), vringStateLen)
	if err != nil {
		return 0, err
	}
	v := peer.Decode[vringState](reply)
	if v.Index != uint32(i) || v.Num > 0xffff {
		err := fmt.Errorf("GET_VRING_BASE: answer of ring %d, base %#x, to ring %d: %w", v.Index, v.Num, i, ErrBadMessage)
		f.fail(err)
		return 0, err
	}
	return v.Num, nil
}

func checkIndex(i int) error {
	if i < 0 || i >= MaxVrings {
		return fmt.Errorf("ring %d: %w", i, errTooLong)
	}
	return nil
}

func (f *Frontend) vringState(r Request, i int, num uint32) error {
	if err := checkIndex(i); err != nil {
		return err
	}
	return f.command(r, peer.Append(nil, vringState{uint32(i), num}))
}

func (f *Frontend) vringFD(r Request, i, fd int) error {
	if err := checkIndex(i); err != nil {
		return err
	}
	if fd < 0 {
		return f.command(r, le.AppendUint64(nil, uint64(i)|vringNoFD))
	}
	return f.command(r, le.AppendUint64(nil, uint64(i)), fd)
}
