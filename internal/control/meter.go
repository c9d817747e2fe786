package control

import (
	"cmp"
	"net/netip"
)

// FlowCounter identifies a connection whose packets the NIC counts on this port.
type FlowCounter struct {
	ID     uint32         // offset 0: chosen by the NIC, from 1
	Proto  uint8          // 5
	Local  netip.AddrPort // 8, 40: the guest's end; 4: 1 if IPv6
	Remote netip.AddrPort // 24, 42: of Local's family
}

func (m FlowCounter) number() uint32 { return m.ID }

type meter struct {
	ID                    uint32
	IPv6                  bool
	Proto                 uint8
	_                     uint16
	Local, Remote         [16]byte
	LocalPort, RemotePort uint16
	_                     uint32
}

func (m FlowCounter) append(b []byte) ([]byte, error) {
	if !m.Local.IsValid() || !m.Remote.IsValid() {
		return nil, badData("meter: %v and %v: both ends are needed", m.Local, m.Remote)
	}
	w := meter{ID: m.ID, IPv6: !m.Local.Addr().Is4(), Proto: m.Proto,
		LocalPort: m.Local.Port(), RemotePort: m.Remote.Port()}
	if err := cmp.Or(putAddr(&w.Local, m.Local.Addr(), w.IPv6), putAddr(&w.Remote, m.Remote.Addr(), w.IPv6)); err != nil {
		return nil, err
	}
	return encode(b, w)
}

func (m *FlowCounter) decode(data []byte) (int, error) {
	var w meter
	n, err := decodeFixed(data, &w)
	*m = FlowCounter{ID: w.ID, Proto: w.Proto, Local: netip.AddrPortFrom(getAddr(w.Local, w.IPv6), w.LocalPort),
		Remote: netip.AddrPortFrom(getAddr(w.Remote, w.IPv6), w.RemotePort)}
	return n, err
}

// DirCounters counts one direction. The payload counters stand for kinds of this port's memory.
type DirCounters struct {
	Packets      uint64 // a GSO packet counts as one
	Segments     uint64 // a GSO packet counts as the segments that it stands for
	HeaderBytes  uint64
	DeviceBytes  uint64 // payload in registered GPU buffers
	GPUFileBytes uint64 // payload in GPU memory outside of registered buffers
	HostBytes    uint64 // payload in host memory, BouncedBytes included
	BouncedBytes uint64 // payload that went through host memory to or from a GPU
	// payload of TCP retransmissions, in flow counters (0 in a port's totals); also in DeviceBytes, GPUFileBytes or
	// HostBytes
	RetransBytes uint64
	Drops        uint64 // packets dropped by this port; not in the counters above
	DroppedBytes uint64 // payload bytes of dropped packets
}

// All returns pointers to the counters, in the order of the fields.
func (c *DirCounters) All() [10]*uint64 {
	return [...]*uint64{&c.Packets, &c.Segments, &c.HeaderBytes, &c.DeviceBytes, &c.GPUFileBytes, &c.HostBytes,
		&c.BouncedBytes, &c.RetransBytes, &c.Drops, &c.DroppedBytes}
}

// Add adds the counters of more.
func (c *DirCounters) Add(more DirCounters) {
	from := more.All()
	for i, n := range c.All() {
		*n += *from[i]
	}
}

// FlowCounts has the values of a flow counter.
type FlowCounts struct {
	Rx DirCounters // offset 0
	Tx DirCounters // 80
}

// PortCounters has the totals of a port and of its engines.
type PortCounters struct {
	Rx, Tx DirCounters    // offsets 0, 80
	Engine EngineCounters // 160
}

// EngineCounters counts the work of a port's copy engine, but not the bytes that JobReduce adds.
type EngineCounters struct {
	Jobs       uint64 // ended
	Failed     uint64 // of Jobs: ended with an error
	Gathered   uint64 // bytes copied within GPU memory
	ToGuest    uint64 // bytes from GPU memory to guest RAM (D2H)
	FromGuest  uint64 // bytes from guest RAM to GPU memory (H2D)
	Filled     uint64 // bytes written by fill and poison
	Hashed     uint64 // bytes read by SHA-256
	TableBytes uint64 // bytes of tables read
}
