package control

import "net/netip"

// Meter names a connection to be counted on this port. Both directions are counted.
type Meter struct {
	ID     uint32         // offset 0: chosen by the NIC, from 1
	Proto  uint8          // 5
	Local  netip.AddrPort // 8, 40: as the port's guest sees it: received packets go from Remote to Local; 4: 1 if IPv6
	Remote netip.AddrPort // 24, 42: of the same family
}

const meterLen = 48 // 6: two bytes, 44: four bytes, zero

func (m *Meter) encode(b *[meterLen]byte) error {
	*b = [meterLen]byte{}
	v6 := !m.Local.Addr().Is4()
	le.PutUint32(b[0:], m.ID)
	b[4], b[5] = flag(v6), m.Proto
	if !m.Local.IsValid() || !m.Remote.IsValid() {
		return badData("meter: %v and %v: both ends are needed", m.Local, m.Remote)
	}
	if err := putAddr((*[16]byte)(b[8:]), m.Local.Addr(), v6); err != nil {
		return err
	}
	if err := putAddr((*[16]byte)(b[24:]), m.Remote.Addr(), v6); err != nil {
		return err
	}
	le.PutUint16(b[40:], m.Local.Port())
	le.PutUint16(b[42:], m.Remote.Port())
	return nil
}

func (m *Meter) decode(b *[meterLen]byte) error {
	if b[4] > 1 || !zero(b[6:8]) || !zero(b[44:]) {
		return badData("meter: family %d, or reserved bytes not zero", b[4])
	}
	local, err := getAddr((*[16]byte)(b[8:]), true, b[4] == 1)
	if err != nil {
		return err
	}
	remote, err := getAddr((*[16]byte)(b[24:]), true, b[4] == 1)
	if err != nil {
		return err
	}
	*m = Meter{
		ID: le.Uint32(b[0:]), Proto: b[5],
		Local: netip.AddrPortFrom(local, le.Uint16(b[40:])), Remote: netip.AddrPortFrom(remote, le.Uint16(b[42:])),
	}
	return nil
}

// DirCounters counts one direction. Payload bytes are counted by where they lie on this port's side: the memory
// written for received packets, the memory read for sent ones.
type DirCounters struct {
	Packets      uint64 // as the guest saw or sent them: a super-packet is one
	Segments     uint64 // as packets of the wire's size: a super-packet is many
	HeaderBytes  uint64
	DeviceBytes  uint64 // payload in registered GPU buffers
	GPUFileBytes uint64 // payload in GPU memory outside of every registered buffer
	HostBytes    uint64 // payload in host memory
	BouncedBytes uint64 // payload that went through host memory on its way to or from a GPU, as P2P was not possible
	RetransBytes uint64 // payload bytes seen again: part of the three payload counters above
	Drops        uint64 // packets dropped by this port, not in the counters above
	DroppedBytes uint64 // payload bytes of these
}

const dirLen = 10 * 8

func (c *DirCounters) fields() [10]*uint64 {
	return [...]*uint64{&c.Packets, &c.Segments, &c.HeaderBytes, &c.DeviceBytes, &c.GPUFileBytes, &c.HostBytes,
		&c.BouncedBytes, &c.RetransBytes, &c.Drops, &c.DroppedBytes}
}

// MeterCounters is what a meter has seen.
type MeterCounters struct {
	Rx DirCounters // offset 0
	Tx DirCounters // 80
}

const countersLen = 2 * dirLen

func (c *MeterCounters) encode(b *[countersLen]byte) {
	for i, d := range [...]*DirCounters{&c.Rx, &c.Tx} {
		for j, f := range d.fields() {
			le.PutUint64(b[i*dirLen+j*8:], *f)
		}
	}
}

func (c *MeterCounters) decode(b *[countersLen]byte) error {
	for i, d := range [...]*DirCounters{&c.Rx, &c.Tx} {
		for j, f := range d.fields() {
			*f = le.Uint64(b[i*dirLen+j*8:])
		}
	}
	return nil
}

// PortCounters is what a port has seen in all, and what its engines did.
type PortCounters struct {
	Rx, Tx DirCounters    // offsets 0, 80
	Engine EngineCounters // 160
}

// EngineCounters counts the work of a port's copy engines.
type EngineCounters struct {
	Jobs       uint64 // ended, in whatever way
	Failed     uint64 // of these, with an error
	Gathered   uint64 // bytes within GPU memory
	ToGuest    uint64 // bytes from GPU memory to guest RAM (D2H)
	FromGuest  uint64 // bytes from guest RAM to GPU memory (H2D)
	Filled     uint64 // bytes written by fill and poison
	Hashed     uint64 // bytes read by SHA-256
	TableBytes uint64 // bytes of tables read
}

func (c *EngineCounters) fields() [8]*uint64 {
	return [...]*uint64{&c.Jobs, &c.Failed, &c.Gathered, &c.ToGuest, &c.FromGuest, &c.Filled, &c.Hashed, &c.TableBytes}
}

const portLen = countersLen + 8*8

func (c *PortCounters) encode(b *[portLen]byte) {
	m := MeterCounters{Rx: c.Rx, Tx: c.Tx}
	m.encode((*[countersLen]byte)(b[:]))
	for i, f := range c.Engine.fields() {
		le.PutUint64(b[countersLen+i*8:], *f)
	}
}

func (c *PortCounters) decode(b *[portLen]byte) error {
	var m MeterCounters
	if err := m.decode((*[countersLen]byte)(b[:])); err != nil {
		return err
	}
	c.Rx, c.Tx = m.Rx, m.Tx
	for i, f := range c.Engine.fields() {
		*f = le.Uint64(b[countersLen+i*8:])
	}
	return nil
}
