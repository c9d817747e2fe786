package vfiotest

import (
	"fmt"

	"vnic.dev/vnic/vfiouser"
)

// Info is the reply to DEVICE_GET_INFO: two of its flags, and the numbers of regions and of interrupt indexes.
type Info struct {
	Reset, PCI    bool
	Regions, IRQs int
}

// Info sends DEVICE_GET_INFO and returns the reply.
func (c *Client) Info() (Info, error) {
	r, err := c.Request(vfiouser.CmdGetInfo, words(16, 0, 0, 0), 16)
	if err != nil {
		return Info{}, err
	}
	flags := le.Uint32(r[4:])
	return Info{flags&1 != 0, flags&2 != 0, int(le.Uint32(r[8:])), int(le.Uint32(r[12:]))}, nil
}

// RegionInfo is the reply to DEVICE_GET_REGION_INFO: the region's size in bytes, and whether the client may read and
// write it.
type RegionInfo struct {
	Size        uint64
	Read, Write bool
}

// RegionInfo sends DEVICE_GET_REGION_INFO for a region and returns the reply.
func (c *Client) RegionInfo(region int) (RegionInfo, error) {
	r, err := c.Request(vfiouser.CmdGetRegionInfo, append(words(32, 0, uint32(region), 0), make([]byte, 16)...), 32)
	if err != nil {
		return RegionInfo{}, err
	}
	if le.Uint32(r) != 32 || le.Uint32(r[8:]) != uint32(region) || le.Uint32(r[12:]) != 0 || le.Uint64(r[24:]) != 0 {
		return RegionInfo{}, fmt.Errorf("region %d: reply % x", region, r)
	}
	flags := le.Uint32(r[4:])
	if flags&^3 != 0 {
		return RegionInfo{}, fmt.Errorf("region %d: flags %#x", region, flags)
	}
	return RegionInfo{le.Uint64(r[16:]), flags&1 != 0, flags&2 != 0}, nil
}

// IRQCount returns how many vectors an interrupt index has (DEVICE_GET_IRQ_INFO).
func (c *Client) IRQCount(index int) (int, error) {
	r, err := c.Request(vfiouser.CmdGetIRQInfo, words(16, 0, uint32(index), 0), 16)
	if err != nil {
		return 0, err
	}
	n := le.Uint32(r[12:])
	if le.Uint32(r[8:]) != uint32(index) || (n > 0) != (le.Uint32(r[4:]) == 1) {
		return 0, fmt.Errorf("IRQ index %d: reply % x", index, r)
	}
	return int(n), nil
}

// Access returns the body of a REGION_READ request, or what precedes the data of a write in the body of a REGION_WRITE
// or REGION_WRITE_MULTI request.
func Access(region int, off uint64, count int) []byte {
	b := le.AppendUint64(nil, off)
	b = le.AppendUint32(b, uint32(region))
	return le.AppendUint32(b, uint32(count))
}

// Read reads len(b) bytes of a region, from offset off on, into b.
func (c *Client) Read(region int, off uint64, b []byte) error {
	head := Access(region, off, len(b))
	r, err := c.Request(vfiouser.CmdRegionRead, head, len(head)+len(b))
	if err != nil {
		return err
	}
	if string(r[:len(head)]) != string(head) {
		return fmt.Errorf("REGION_READ: reply % x to % x", r[:len(head)], head)
	}
	copy(b, r[len(head):])
	return nil
}

// Write writes b to a region, from offset off on, and waits for the reply.
func (c *Client) Write(region int, off uint64, b []byte) error {
	head := Access(region, off, len(b))
	r, err := c.Request(vfiouser.CmdRegionWrite, append(head, b...), 16)
	if err != nil {
		return err
	}
	if string(r) != string(head) {
		return fmt.Errorf("REGION_WRITE: reply % x to % x", r, head)
	}
	return nil
}

// Post sends a write of b to a region, from offset off on, that asks for no reply.
func (c *Client) Post(region int, off uint64, b []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Send(Message{Header: vfiouser.Header{Command: vfiouser.CmdRegionWrite, Flags: vfiouser.FlagNoReply},
		Body: append(Access(region, off, len(b)), b...)})
}

// Write is one of the writes of a WriteMulti; Data has at most 8 bytes.
type Write struct {
	Region int
	Off    uint64
	Data   []byte
}

// WriteMulti asks for several writes with one message (REGION_WRITE_MULTI), and waits for the reply.
func (c *Client) WriteMulti(writes ...Write) error {
	b := le.AppendUint64(nil, uint64(len(writes)))
	for _, w := range writes {
		b = append(b, Access(w.Region, w.Off, len(w.Data))...)
		var data [8]byte
		copy(data[:], w.Data)
		b = append(b, data[:]...)
	}
	r, err := c.Request(vfiouser.CmdRegionWriteMulti, b, 8)
	if err != nil {
		return err
	}
	if n := le.Uint64(r); n != uint64(len(writes)) {
		return fmt.Errorf("REGION_WRITE_MULTI: %d of %d made", n, len(writes))
	}
	return nil
}

// Reset asks the server to reset the device, and waits for the reply.
func (c *Client) Reset() error {
	_, err := c.Request(vfiouser.CmdReset, nil, 0)
	return err
}

func words(ws ...uint32) []byte {
	var b []byte
	for _, w := range ws {
		b = le.AppendUint32(b, w)
	}
	return b
}
