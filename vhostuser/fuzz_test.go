package vhostuser

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"vnic.dev/vnic/internal/peer"
	"vnic.dev/vnic/internal/peer/peertest"
	"vnic.dev/vnic/internal/testkit"
)

// FuzzMessage decodes headers and payloads, encodes the results again, and compares the bytes (without the first 8 of a
// memory message's payload).
func FuzzMessage(f *testing.F) {
	for _, a := range [][]byte{
		raw(GetFeatures, Version),
		raw(SetVringNum, Version|FlagNeedReply, stateBody(3, 64)...),
		raw(SetVringKick, Version, u64Body(vringNoFD|7)...),
		raw(SetVringAddr, Version, make([]byte, vringAddrLen)...),
		raw(SetMemTable, Version, tableBody(memRegion{1, 2, 3, 4}, memRegion{5, 6, 7, 8})...),
		raw(AddMemReg, Version, singleBody(memRegion{1, 2, 3, 4})...),
		raw(GetConfig, Version, append(stateBody(2, 3), 0, 0, 0, 0, 1, 2, 3)...),
	} {
		f.Add(a)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerLen {
			return
		}
		h := peer.Decode[Header](b)
		if head := peer.Append(nil, h); !bytes.Equal(head, b[:headerLen]) {
			t.Fatalf("header % x from % x", head, b[:headerLen])
		}
		body := b[headerLen:]
		h.Size = uint32(len(body))
		ru, err := ruleFor(&h, allProtocol)
		if err != nil {
			if !errors.Is(err, ErrBadMessage) && !errors.Is(err, ErrUnsupported) {
				t.Fatal(err)
			}
			return
		}
		if len(body) > maxPayload || ru.body.max > maxPayload {
			t.Fatalf("%v: %d bytes are let pass", h.Request, len(body))
		}
		again := func(got, want []byte) {
			if !bytes.Equal(got, want) {
				t.Fatalf("%v: % x from % x", h.Request, got, want)
			}
		}
		switch h.Request {
		case SetVringNum, SetVringBase, GetVringBase, SetVringEnable:
			again(peer.Append(nil, peer.Decode[vringState](body)), body)
		case SetVringAddr:
			again(peer.Append(nil, peer.Decode[vringAddr](body)), body)
		case AddMemReg, RemMemReg:
			r := peer.Decode[singleRegion](body)
			again(singleBody(r.memRegion)[8:], body[8:])
			_ = r.check()
		case SetMemTable:
			regions, err := decodeMemTable(body)
			if err != nil {
				return
			}
			again(tableBody(regions...)[8:], body[8:])
			known := make([]region, len(regions))
			for i := range regions {
				known[i].memRegion = regions[i]
				if regions[i].check() == nil {
					if found, err := translate(known[:i+1], regions[i].User, 1); err != nil || i == 0 &&
						found != (location{gpa: regions[i].GPA, off: regions[i].Offset}) {
						t.Fatalf("%+v: %+v, %v", regions[i], found, err)
					}
				}
			}
		case GetConfig, SetConfig:
			head, data, err := decodeConfig(body)
			if err != nil {
				return
			}
			again(append(peer.Append(nil, head), data...), body)
		}
	})
}

// script is a fuzzer's input: operations, each a byte and then the bytes of its arguments. step reads them.
type script struct {
	peertest.Script
	sock *conn
	mem  int
	ev   int
}

// region returns a region of up to 512 KiB, perhaps empty, whose addresses and size are multiples of 64 KiB.
func (s *script) region() memRegion {
	a, n, o := uint64(s.Next()%24), uint64(s.Next()%9), uint64(s.Next()%20)
	return memRegion{a << 16, n << 16, userBase + o<<16, o << 16}
}

// step sends one message.
func (s *script) step() error {
	op, ring := s.Next(), uint32(s.Next()%5)
	flags := Version
	if op&0x80 != 0 {
		flags |= FlagNeedReply
	}
	var r Request
	var body []byte
	var fds []int
	switch op % 20 {
	case 0:
		r, body = SetProtocolFeatures, u64Body(uint64(allProtocol)&^uint64(s.Next()))
	case 1:
		r, body = SetFeatures, u64Body((testFeatures|FeatureProtocol)&^(uint64(s.Next())<<24))
	case 2, 3:
		r, body, fds = AddMemReg, singleBody(s.region()), []int{s.mem}
	case 4:
		r, body = RemMemReg, singleBody(s.region())
	case 5:
		regions := make([]memRegion, s.Next()%4)
		for i := range regions {
			regions[i] = s.region()
			fds = append(fds, s.mem)
		}
		r, body = SetMemTable, tableBody(regions...)
	case 6:
		r, body = SetVringNum, stateBody(ring, 1<<(s.Next()%17))
	case 7:
		r, body = SetVringBase, stateBody(ring, uint32(s.Next())<<9)
	case 8, 9:
		page := func() uint64 { return userBase + uint64(s.Next())<<12 }
		a := vringAddr{Index: ring, Flags: uint32(s.Next() % 2), Desc: page(), Avail: page(), Used: page()}
		r, body = SetVringAddr, peer.Append(nil, a)
	case 10, 11, 12:
		r = SetVringKick + Request(op%20-10)
		n := uint64(ring)
		switch s.Next() % 8 {
		case 0:
			n |= vringNoFD
		case 1:
			fds = []int{s.mem}
		case 2:
			fds = []int{s.ev, s.ev}
		default:
			fds = []int{s.ev}
		}
		body = u64Body(n)
	case 13:
		r, body = SetVringEnable, stateBody(ring, uint32(s.Next()%3))
	case 14:
		r, body = GetVringBase, stateBody(ring, 0)
	case 15:
		r, body = SetStatus, u64Body(uint64(s.Next()%2)*15)
	case 16:
		r = []Request{ResetDevice, ResetOwner, SetOwner, GetFeatures, GetQueueNum, GetStatus}[s.Next()%6]
	case 17:
		r, body = []Request{GetConfig, SetConfig}[s.Next()%2], append(stateBody(uint32(s.Next()), 4), 0, 0, 0, 0, 1, 2, 3, 4)
	case 18:
		r, fds = SetBackendReqFD, []int{s.ev}
	case 19: // any request below 256
		r = Request(s.Next())
		body = make([]byte, s.Next()%64)
		for i := range body {
			body[i] = s.Next()
		}
		for range s.Next() % 12 {
			fds = append(fds, s.ev)
		}
	}
	b := raw(r, flags, body...)
	if cut := s.Next(); cut >= 250 { // the message is sent by two writes
		n := int(cut-250) + 1
		if err := s.sock.sock.WriteFDs(b[:n], fds); err != nil {
			return err
		}
		b, fds = b[n:], nil
	}
	return s.sock.sock.WriteFDs(b, fds)
}

// FuzzSession plays a frontend that sends the messages of a script; then the host must serve another one.
//
// Invariant: vhostuser: A hostile frontend ends its own connection at most, and leaves nothing behind.
func FuzzSession(f *testing.F) {
	// The operations of good: 1 MiB of memory at 0, ring 0 on pages 1 to 3, kick, call, enable.
	good := []byte{
		0, 0, 0, 0, 1, 0, 0, 0, // protocol and other features
		5, 0, 2, 0, 8, 0, 8, 8, 8, 0, // two adjacent regions
		6, 0, 7, 0, 7, 0, 1, 0, 8, 0, 0, 1, 2, 3, 0, // 128 descriptors, base, addresses
		10, 0, 3, 0, 11, 0, 3, 0, 13, 0, 1, 0, // kick, call, enable
	}
	f.Add(append(good, 14, 0, 0))
	f.Add(append(good, 8, 0, 0, 4, 5, 6, 0, 10, 0, 3, 0, 6, 0, 8, 0, 7, 0, 9, 0, 11, 0, 0, 0))
	f.Add(append(good, 5, 0, 1, 0, 8, 8, 0, 4, 0, 0, 8, 8, 0, 2, 0, 0, 8, 0, 0))
	f.Add(append(good, 16, 0, 0, 0, 15, 0, 0, 0, 1, 0, 64, 0))
	f.Add(append(good, 0x80|17, 0, 0, 1, 0, 0x80|17, 0, 1, 1, 0, 17, 0, 0, 200, 0, 0x80|18, 0, 0, 18, 0, 0, 16, 0, 1, 0,
		16, 0, 4, 0,
		0x80|16, 0, 5, 0, 12, 0, 3, 0, 12, 1, 0, 0, 19, 0, 20, 8, 220, 5, 0, 0, 0, 0, 0, 0, 0, 0, 19, 0, 19, 8, 2, 1, 2, 3, 4,
		5, 0, 0, 0, 0))
	f.Add(append(good, 15, 0, 1, 0, 15, 0, 0, 0, 1, 0, 0, 0, 7, 0, 200, 0, 6, 0, 16, 0, 13, 0, 2, 0))
	f.Add(append(good, 0x80|14, 0, 255, 19, 0, 12, 8, 1, 1, 1, 1, 1, 1, 1, 1, 9, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4096 {
			return
		}
		testkit.CheckFDs(t)
		h := newHost(t)
		l := h.connect()
		s := &script{Script: b, sock: &l.conn, mem: memfd(t, guestSize), ev: eventfd(t)}
		s.Play(t, l.sock, l.Served, s.step, ErrBadMessage, ErrUnsupported, ErrMemory, io.ErrUnexpectedEOF)
		h.servesAnother()
	})
}
