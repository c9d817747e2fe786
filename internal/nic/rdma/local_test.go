package rdma

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// ended polls both ends, and checks that their completions have the statuses a and b, and IDs that count from 1 on.
func (p *pair) ended(a, b []control.WCStatus) {
	p.a.t.Helper()
	for i, d := range []*end{p.a, p.b} {
		want := [][]control.WCStatus{a, b}[i]
		var got []control.WCStatus
		for j, w := range d.poll() {
			got = append(got, w.Status)
			if w.ID != uint64(j+1) {
				p.a.t.Errorf("end %d: completion %d is of %d", i, j+1, w.ID)
			}
		}
		if !slices.Equal(got, want) {
			p.a.t.Fatalf("end %d: %v, not %v", i, got, want)
		}
	}
}

func (p *pair) states(a, b control.WCStatus) {
	p.a.t.Helper()
	for i, d := range []*end{p.a, p.b} {
		want := []control.WCStatus{a, b}[i]
		s := testkit.Must(d.QPStatus([]uint32{p.qa, p.qb}[i]))(p.a.t)
		if s.Cause != want || (s.State == control.QPError) != (want != 0) || s.Sends != 0 && want != 0 || s.Recvs != 0 &&
			want != 0 {
			p.a.t.Fatalf("end %d: %+v, not the cause %d", i, s, want)
		}
	}
}

func quick(p *control.QPPath) { p.MTU, p.Retries, p.RNR = 256, 2, 2 }

func (p *pair) recvs(sges ...[]control.SGE) {
	p.a.t.Helper()
	for i, s := range sges {
		r := control.WR{ID: uint64(i + 1), Op: control.WRRecv, SGEs: s}
		testkit.OK(p.a.t, p.b.PostRecv(control.Post{QPN: p.qb, WRs: []control.WR{r}}))
	}
}

const (
	good  = control.WCSuccess
	flush = control.WCFlushed
)

// Invariant: nic/rdma: A work request whose key does not allow its local memory fails, earlier ones
// complete, later ones are flushed, and no byte that the key does not allow is sent.
func TestOwnKeys(t *testing.T) {
	for name, sge := range map[string]func(e *end) control.SGE{
		"right":      func(e *end) control.SGE { return e.sge(1000, 600) },
		"no key":     func(e *end) control.SGE { return control.SGE{VA: base, Len: 600} },
		"wrong tag":  func(e *end) control.SGE { return control.SGE{VA: base, Len: 600, Key: e.mr ^ 1<<20} },
		"before it":  func(e *end) control.SGE { return control.SGE{VA: base - 1, Len: 600, Key: e.mr} },
		"beyond it":  func(e *end) control.SGE { return control.SGE{VA: base + memSize - 599, Len: 600, Key: e.mr} },
		"it wraps":   func(e *end) control.SGE { return control.SGE{VA: ^uint64(0) - 99, Len: 600, Key: e.mr} },
		"another PD": func(e *end) control.SGE { return control.SGE{VA: base, Len: 600, Key: e.otherPD()} },
		"no local write": func(e *end) control.SGE {
			return control.SGE{VA: base, Len: 600, Key: e.guest(control.AccessRemoteRead|control.AccessRemoteWrite, base, 0,
				memSize)}
		},
		"no memory": func(e *end) control.SGE {
			return control.SGE{VA: base, Len: 600, Key: e.guest(control.AccessLocalWrite, base, memSize, 4096)}
		},
	} {
		for _, op := range []control.WROp{control.WRWrite, control.WRSend, control.WRRead, control.WRRecv} {
			t.Run(fmt.Sprint(name, ", operation ", op), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					p := newPair(t, quick)
					sent := 0
					p.fate = func(p *wire.Packet) (int, bool) { sent += int(p.PayloadLen); return 1, false }
					wantA, wantB := slices.Clone(p.a.mem), slices.Clone(p.b.mem)
					ok := name == "right" || name == "no local write" && (op == control.WRWrite || op == control.WRSend)
					room := []control.SGE{p.b.sge(5000, 600)}
					if op == control.WRRecv {
						room = []control.SGE{sge(p.b)}
					}
					w := control.WR{ID: 2, Op: op, Flags: control.WRSignaled, SGEs: []control.SGE{p.a.sge(0, 600)}}
					if op == control.WRRecv {
						w.Op = control.WRSend
					} else {
						w.SGEs[0] = sge(p.a)
					}
					if w.Op != control.WRSend {
						w.Key, w.Remote = p.b.mr, base+9000
					}
					p.recvs(room, nil)
					near := control.WR{ID: 1, Op: control.WRWrite, Flags: control.WRSignaled, Key: p.b.mr, Remote: base,
						SGEs: []control.SGE{p.a.sge(0, 4)}}
					far := near
					far.ID = 3
					p.a.post(p.qa, near, w, far)
					p.run()
					switch {
					case ok && w.Op == control.WRSend:
						p.ended([]control.WCStatus{good, good, good}, []control.WCStatus{good})
					case ok:
						p.ended([]control.WCStatus{good, good, good}, nil)
					case op == control.WRRecv:
						p.ended([]control.WCStatus{good, control.WCRemoteOperation, flush},
							[]control.WCStatus{control.WCLocalProtection, flush})
						p.states(control.WCRemoteOperation, control.WCRemoteOperation)
					default:
						p.ended([]control.WCStatus{good, control.WCLocalProtection, flush}, nil)
						p.states(control.WCLocalProtection, 0)
						most := 36 + 20 // bytes of UDP payload of near and its ACK
						if name == "beyond it" {
							most += 599
						}
						if w.Op != control.WRRead && sent > most {
							t.Errorf("%d bytes were sent, and %d may be", sent, most)
						}
					}
					if !slices.Equal(p.a.mem, wantA) || !slices.Equal(p.b.mem, wantB) { // messages carry zeros and so change nothing
						t.Error("wrong bytes")
					}
				})
			})
		}
	}
}

func (d *end) otherPD() uint32 {
	pd := d.pd
	defer func() { d.pd = pd }()
	d.pd = testkit.Must(d.AddPD())(d.t)
	return d.guest(control.AccessLocalWrite, base, 0, memSize)
}

// The source or destination of a message goes away after some of its packets: the MR, or the memory behind it.
func TestMemoryGoesAwayInAMessage(t *testing.T) {
	const n, size = 90, 256 // packets, and bytes in each
	type ends struct{ a, b []control.WCStatus }
	for name, c := range map[string]struct {
		op           control.WROp
		there        bool // the memory of the responder goes away, not that of the requester
		mr, unmapped ends
	}{
		"WRITE from": {control.WRWrite, false, ends{[]control.WCStatus{control.WCLocalProtection, flush}, nil},
			ends{[]control.WCStatus{control.WCLocalProtection, flush}, nil}},
		"WRITE to": {control.WRWrite, true, ends{[]control.WCStatus{control.WCRemoteAccess, flush},
			[]control.WCStatus{flush}},
			ends{[]control.WCStatus{control.WCRemoteOperation, flush}, []control.WCStatus{flush}}},
		"READ to": {control.WRRead, false, ends{[]control.WCStatus{control.WCLocalProtection, flush}, nil},
			ends{[]control.WCStatus{control.WCLocalProtection, flush}, nil}},
		"READ from": {control.WRRead, true, ends{[]control.WCStatus{control.WCRemoteAccess, flush},
			[]control.WCStatus{flush}},
			ends{[]control.WCStatus{control.WCRemoteOperation, flush}, []control.WCStatus{flush}}},
		"SEND from": {control.WRSend, false, ends{[]control.WCStatus{control.WCLocalProtection, flush}, nil},
			ends{[]control.WCStatus{control.WCLocalProtection, flush}, nil}},
		"SEND to": {control.WRSend, true, ends{[]control.WCStatus{control.WCRemoteOperation, flush},
			[]control.WCStatus{control.WCLocalProtection}},
			ends{[]control.WCStatus{control.WCRemoteOperation, flush}, []control.WCStatus{control.WCLocalProtection}}},
	} {
		for _, unmap := range []bool{false, true} {
			for _, passed := range []int{1, 31, 33, 40, 70} {
				t.Run(fmt.Sprintf("%s, unmapped: %v, %d", name, unmap, passed), func(t *testing.T) {
					bubble(t, func(t *testing.T) {
						p := newPair(t, quick)
						const all = control.AccessLocalWrite | control.AccessRemoteRead | control.AccessRemoteWrite
						ka, kb := p.a.guest(all, base, 4096, n*size), p.b.guest(all, base, 4096, n*size)
						w := control.WR{ID: 1, Op: c.op, SGEs: []control.SGE{{VA: base, Len: n * size, Key: ka}}}
						if c.op == control.WRSend {
							p.recvs([]control.SGE{{VA: base, Len: n * size, Key: kb}})
						} else {
							w.Key, w.Remote = kb, base
							p.recvs(nil)
						}
						count := 0
						p.fate = func(f *wire.Packet) (int, bool) {
							if f.PayloadLen < size { // it carries no payload of the message
								return 1, false
							}
							if count++; count == passed {
								d, key := p.a, ka
								if c.there {
									d, key = p.b, kb
								}
								if unmap {
									d.lose()
								} else {
									go d.DelMR(key) // DelMR waits for goroutines that use the Engine's objects
									for d.regionOf(key) != nil {
										time.Sleep(time.Nanosecond)
									}
								}
							}
							return 1, false
						}
						p.a.post(p.qa, w, control.WR{ID: 2, Op: control.WRWrite})
						p.run()
						want := c.mr
						if unmap {
							want = c.unmapped
						}
						p.ended(want.a, want.b)
						s := testkit.Must(p.a.QPStatus(p.qa))(t)
						testkit.Equal(t, "state", s.State, control.QPError)
					})
				})
			}
		}
	}
}

// lose makes a guest's memory unreachable, as Space.Remove does, without waiting for goroutines that use it.
func (d *end) lose() {
	go func() { _ = d.space.Remove(0, memSize) }()
	for {
		if _, err := d.space.TranslateMax(nil, 1, 0, 1, 0); err != nil {
			return
		}
		time.Sleep(time.Nanosecond)
	}
}

// If a peer does not answer, packets are sent again as often as configured; then the work requests fail.
func TestSilentPeer(t *testing.T) {
	for _, retries := range []uint8{0, 1, 7} {
		bubble(t, func(t *testing.T) {
			p := newPair(t, func(p *control.QPPath) { p.Retries, p.MTU, p.Timeout = retries, 256, 10 }) // a timeout of 4.2 ms
			p.fate = func(*wire.Packet) (int, bool) { return 0, false }
			p.a.post(p.qa, control.WR{ID: 1, Op: control.WRWrite, Key: p.b.mr, Remote: base, SGEs: []control.SGE{p.a.sge(0,
				5*256)}},
				control.WR{ID: 2, Op: control.WRRead, Key: p.b.mr, Remote: base, SGEs: []control.SGE{p.a.sge(0, 256)}},
				control.WR{ID: 3, Op: control.WRRead, Flags: control.WRFence, Key: p.b.mr, Remote: base,
					SGEs: []control.SGE{p.a.sge(0, 256)}})
			begin := time.Now()
			p.run()
			testkit.Equal(t, "frames", p.frames, 6*(1+int(retries)))
			p.ended([]control.WCStatus{control.WCRetriesExceeded, flush, flush}, nil)
			p.states(control.WCRetriesExceeded, 0)
			if d := time.Since(begin); d < time.Duration(1+retries)*4194304 || d > time.Duration(1+retries)*8<<20 {
				t.Errorf("it took %v", d)
			}
		})
	}
}

// Without posted receives, a SEND or a WRITE with immediate data fails after one RNR NAK more than the configured
// retries, unless these are infinite (7).
func TestNoReceive(t *testing.T) {
	for _, op := range []control.WROp{control.WRSend, control.WRSendImm, control.WRWriteImm} {
		for _, retries := range []uint8{0, 3, 7} {
			bubble(t, func(t *testing.T) {
				p := newPair(t, func(p *control.QPPath) { p.RNR, p.MTU = retries, 256 })
				w := control.WR{ID: 1, Op: op, Flags: control.WRSignaled, SGEs: []control.SGE{p.a.sge(0, 600)}}
				if op == control.WRWriteImm {
					w.Key, w.Remote = p.b.mr, base
				}
				p.a.post(p.qa, w)
				nak := 0
				p.fate = func(f *wire.Packet) (int, bool) {
					var h header
					if h.parse(bytesOf(f)) && h.op == opAck && h.syndrome&synKind == synRNR {
						if nak++; nak == 20 && retries == 7 {
							p.recvs([]control.SGE{p.b.sge(0, 600)})
						}
					}
					return 1, false
				}
				p.run()
				if retries == 7 {
					testkit.Equal(t, "NAKs", nak, 20)
					p.ended([]control.WCStatus{good}, []control.WCStatus{good})
					return
				}
				testkit.Equal(t, "NAKs", nak, int(retries)+1)
				p.ended([]control.WCStatus{control.WCRNRExceeded}, nil)
				p.states(control.WCRNRExceeded, 0)
			})
		}
	}
}

// Invariant: nic/rdma: A completion queue never overflows: a work request is posted only if its
// completion has a place.
func TestCompletionQueueNeverOverflows(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPair(t, nil)
		e := p.a
		cq := testkit.Must(e.AddCQ(5))(t)
		q := testkit.Must(e.AddQP(control.QP{PD: e.pd, SendCQ: cq, RecvCQ: cq, MaxSend: 8, MaxRecv: 8}))(t)
		other := testkit.Must(e.AddQP(control.QP{PD: e.pd, SendCQ: cq, RecvCQ: cq, MaxSend: 8, MaxRecv: 8}))(t)
		path := control.QPPath{QPN: q, RemoteQPN: 9, Local: e.ip, Remote: p.b.ip, MAC: p.b.c.MAC, MTU: 1024, Timeout: 5,
			Retries: 1,
			Reads:   1, ReadDepth: 1}
		testkit.OK(t, e.ConnectQP(path))
		post := func(q uint32, send bool, n int) error {
			o := control.Post{QPN: q}
			for range n {
				if send {
					o.WRs = append(o.WRs, control.WR{Op: control.WRWrite, Key: 1})
				} else {
					o.WRs = append(o.WRs, control.WR{Op: control.WRRecv})
				}
			}
			if send {
				return e.PostSend(o)
			}
			return e.PostRecv(o)
		}
		testkit.OK(t, post(q, false, 2))
		testkit.OK(t, post(other, false, 2))
		testkit.ErrorIs(t, post(q, true, 2), syscall.ENOSPC) // all or none
		testkit.OK(t, post(q, true, 1))
		testkit.ErrorIs(t, post(q, true, 1), syscall.ENOSPC)
		testkit.ErrorIs(t, post(other, false, 1), syscall.ENOSPC)
		p.run() // there is no peer: the retries run out
		poll := func() int { return len(testkit.Must(e.PollCQ(control.Poll{CQ: cq, Max: 100}))(t).WCs) }
		testkit.ErrorIs(t, post(q, true, 1), syscall.ENOSPC) // three completions, two receives still posted
		testkit.Equal(t, "completions", poll(), 3)
		testkit.OK(t, post(q, true, 3)) // flushed at once
		testkit.ErrorIs(t, post(q, false, 1), syscall.ENOSPC)
		testkit.Equal(t, "completions", poll(), 3)
		testkit.OK(t, e.DelQP(other)) // frees the slots of its receives
		testkit.OK(t, post(q, false, 5))
		testkit.ErrorIs(t, post(q, false, 1), syscall.ENOSPC)
		testkit.ErrorIs(t, e.DelCQ(cq), syscall.EBUSY)
		testkit.OK(t, e.DelQP(q))
		testkit.Equal(t, "completions", poll(), 5)
		testkit.OK(t, e.DelCQ(cq))
	})
}
