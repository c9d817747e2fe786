package vfiouser_test

import (
	"io"
	"testing"

	"vnic.dev/vnic/internal/peer/peertest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/vfiotest"
	"vnic.dev/vnic/vfiouser"
)

// script has the operations of a client, each a byte with its arguments, and the client's connection, memory and
// events.
type script struct {
	peertest.Script
	l      *link
	mem    *vfiotest.Memory
	events [3]*vfiotest.Event
}

// span reads a range of 0 to 39 whole pages from the script, near the beginning or the end of the address space.
func (s *script) span() (iova, size uint64) {
	a, n := uint64(s.Next()), uint64(s.Next()%40)
	if a >= 240 {
		return -(256 - a) << 12, n << 12
	}
	return a << 12, n << 12
}

// step sends the message of the script's next operation.
func (s *script) step() error {
	op := s.Next()
	var m vfiotest.Message
	m.ID = uint16(len(s.Script))
	if op&0x80 != 0 {
		m.Flags = vfiouser.FlagNoReply
	}
	switch op & 0x7f % 16 {
	case 0:
		m.Command, m.Body = vfiouser.CmdVersion, []byte("\x00\x00\x00\x00{\"capabilities\":{}}\x00")
		m.Body[0] = s.Next() % 2
	case 1, 2, 3:
		iova, size := s.span()
		m.Command, m.Body = vfiouser.CmdDMAMap, dmaMap(uint32(s.Next()%5), uint64(s.Next())<<11, iova, size)
		if op&0x40 != 0 {
			m.FDs = []int{s.mem.FD()}
		}
	case 4, 5:
		iova, size := s.span()
		m.Command, m.Body = vfiouser.CmdDMAUnmap, dmaUnmap(0, iova, size)
	case 6:
		m.Command, m.Body = vfiouser.CmdDMAUnmap, dmaUnmap(uint32(s.Next()%4), 0, 0)
	case 7:
		m.Command, m.Body = vfiouser.CmdGetRegionInfo, append(bare(uint32(s.Next()), 0, uint32(s.Next()%12), 0), zeros(16)...)
	case 8:
		m.Command, m.Body = vfiouser.CmdGetIRQInfo, bare(uint32(s.Next()), 0, uint32(s.Next()%8), 0)
	case 9, 10:
		n := int(s.Next() % 4)
		m.Command, m.Body = vfiouser.CmdSetIRQs, irqSet(0x24, int(s.Next()%4), int(s.Next()%30), n)
		for i := range int(s.Next() % 4) {
			m.FDs = append(m.FDs, s.events[i].FD())
		}
	case 11:
		m.Command, m.Body = vfiouser.CmdSetIRQs, irqSet(uint32(s.Next()), int(s.Next()%4), int(s.Next()%2),
			int(s.Next()%3))
	case 12:
		m.Command, m.Body = vfiouser.CmdRegionRead, access(int(s.Next()%10), uint64(s.Next())<<5, int(s.Next()))
	case 13:
		n := int(s.Next() % 9)
		m.Command, m.Body = vfiouser.CmdRegionWrite, access(int(s.Next()%10), uint64(s.Next())<<5, n, zeros(n)...)
		for i := range n {
			m.Body[16+i] = s.Next()
		}
	case 14:
		m.Command = []vfiouser.Command{vfiouser.CmdReset, vfiouser.CmdRegionWriteMulti,
			vfiouser.CmdRegionWriteMulti}[s.Next()%3]
		if m.Command == vfiouser.CmdRegionWriteMulti {
			n := int(s.Next() % 3)
			m.Body = multi(uint64(n))
			for range n {
				m.Body = append(m.Body, access(int(s.Next()%10), uint64(s.Next()), int(s.Next()%10), 1, 2, 3, 4, 5, 6, 7, 8)...)
			}
		}
	case 15: // any command up to 23, with up to 63 bytes of payload
		m.Command = vfiouser.Command(s.Next() % 24)
		m.Body = zeros(int(s.Next() % 64))
		for i := range m.Body {
			m.Body[i] = s.Next()
		}
		for range s.Next() % 18 {
			m.FDs = append(m.FDs, s.mem.FD())
		}
		if s.Next() > 200 {
			m.Size = uint32(s.Next())
		}
	}
	return s.l.Send(m)
}

// FuzzSession plays a client whose messages come from a script. Then the server must serve another client.
//
// Invariant: vfiouser: A hostile client ends its own connection at most, and leaves nothing behind.
func FuzzSession(f *testing.F) {
	version := []byte{0, 0}
	ram := []byte{0x41, 0, 32, 3, 0, 0x42, 32, 16, 1, 64} // two adjacent ranges, the second beyond the file's end
	f.Add(append(version, ram...))
	f.Add([]byte{12, 0, 0, 4})
	f.Add([]byte{0, 1})
	f.Add(append(append(version, ram...), 4, 0, 32, 4, 32, 16, 1, 250, 6, 3, 0, 6, 2))
	f.Add(append(append(version, ram...), 4, 0, 39, 4, 0, 48, 5, 255, 1, 0x41, 255, 1, 3, 0))
	f.Add(append(version, 9, 1, 2, 0, 1, 9, 3, 2, 21, 3, 9, 0, 2, 0, 0, 10, 1, 2, 0, 0, 11, 0x21, 2, 0, 0))
	f.Add(append(version, 0x8d, 4, 0, 1, 1, 2, 3, 4, 12, 0, 1, 4, 13, 8, 7, 0, 1, 2, 3, 4, 5, 6, 7, 8, 14, 0, 14, 1, 2, 0,
		4, 4, 2, 8, 8))
	f.Add(append(version, 7, 32, 7, 8, 16, 2, 7, 0, 0, 8, 16, 9))
	f.Add(append(version, 15, 3, 24, 24, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0))
	f.Add(append(version, 15, 13, 0, 0, 255, 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4096 {
			return
		}
		testkit.CheckFDs(t)
		h := newHost(t)
		l := h.dial()
		s := &script{Script: b, l: l, mem: memory(t, 1<<17), events: [3]*vfiotest.Event{event(t), event(t), event(t)}}
		s.Play(t, l.Conn(), l.Served, s.step, vfiouser.ErrBadMessage, io.ErrUnexpectedEOF)
		h.servesAnother()
	})
}
