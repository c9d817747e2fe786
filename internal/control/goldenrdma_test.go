package control

import (
	"net/netip"
	"reflect"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// filled returns a struct in whose unsigned numbers the bytes count up from first; other fields are zero.
func filled[T any](first byte) (v T) {
	next := first
	var fill func(f reflect.Value)
	fill = func(f reflect.Value) {
		switch {
		case f.Kind() == reflect.Struct:
			for i := range f.NumField() {
				if f.Type().Field(i).Name != "_" {
					fill(f.Field(i))
				}
			}
		case f.CanUint():
			n := uint64(0)
			for i := range f.Type().Size() {
				n |= uint64(next) << (8 * i)
				next++
			}
			f.SetUint(n)
		}
	}
	fill(reflect.ValueOf(&v).Elem())
	return v
}

func goldenRDMAObjects() []exchange {
	limits, addPD, delPD := get((*Client).RDMALimits), get((*Client).AddPD), set((*Client).DelPD, 0x01020304)
	addMR := func(m MR) clientCall { return send((*Client).AddMR, m) }
	more := func(m MRMore) clientCall { return set((*Client).MoreMR, m) }
	addCQ := func(depth uint32) clientCall { return send((*Client).AddCQ, depth) }
	poll := send((*Client).PollCQ, Poll{CQ: 0x01020304, Max: 0x11121314})
	buffer := MR{PD: 1, Kind: MRBuffer, Access: AccessRemoteWrite, Buffer: 2, VA: 1 << 40, Len: 4096}
	guest := MR{PD: 0x01020304, Kind: MRGuest, Access: 7, VA: 0x1112131415161718, Len: 0x2122232425262728,
		Ranges: []MRRange{{0x3132333435363738, 0x4142434445464748}, {1 << 30, 4096}}}
	pages := MR{Key: 0x01020304, PD: 0x11121314, Kind: MROnDemand, Access: 0xf7, Buffer: 0x21222324,
		VA: 0x3132333435363738, Len: 0x4142434445464748, Off: 0x5152535455565758, GPU: 0x6162}
	full := numbered(MaxMRRanges, func(i uint32) MRRange { return MRRange{uint64(i) << 12, uint64(i) << 20} })
	wcs := numbered(MaxWCs, func(i uint32) WC { return WC{ID: uint64(i), QPN: 9, Op: WRRead, Len: i} })
	failed := WC{ID: 0x0102030405060708, QPN: 0x11121314, Status: WCRemoteAccess, Op: WRWrite}
	received := WC{ID: 1<<64 - 1, QPN: 1, Op: WRRecv, HasImm: true, Len: 0x21222324, Imm: 0x31323334}
	lost := WC{Status: WCPagesUnavailable}
	return []exchange{
		{"10.1 RDMA limits: every field", limits, filled[RDMALimits](1)},
		{"10.1 RDMA limits: all zero", limits, RDMALimits{}},
		{"10.1 RDMA limits: refused", limits, refusal(syscall.EOPNOTSUPP, "this NIC has no RDMA")},
		{"10.2 add PD", addPD, uint32(0x01020304)},
		{"10.2 add PD: refused", addPD, refusal(syscall.ENOSPC, "all in use")},
		{"10.3 delete PD", delPD, nil},
		{"10.3 delete PD: refused", delPD, refusal(syscall.EBUSY, "it has MRs")},
		{"10.4 add MR: a buffer", addMR(buffer), uint32(1)},
		{"10.4 add MR: guest memory, two ranges", addMR(guest), uint32(0x01020304)},
		{"10.4 add MR: guest memory, as many ranges as a frame holds", addMR(MR{Kind: MRGuest, Ranges: full}), uint32(2)},
		{"10.4 add MR: on demand, every field", addMR(pages), uint32(3)},
		{"10.4 add MR: refused", addMR(buffer), refusal(syscall.ENOENT, "no buffer 2")},
		{"10.5 add ranges: one", more(MRMore{0x01020304, []MRRange{{0x1112131415161718, 0x2122232425262728}}}), nil},
		{"10.5 add ranges: as many as a frame holds", more(MRMore{Key: 1, Ranges: full}), nil},
		{"10.5 add ranges: none", more(MRMore{Key: 1}), nil},
		{"10.5 add ranges: refused", more(MRMore{Key: 1}), refusal(syscall.EINVAL, "it is as long as it may be")},
		{"10.6 delete MR", set((*Client).DelMR, 0x01020304), nil},
		{"10.6 delete MR: refused", set((*Client).DelMR, 0x01020304), refusal(syscall.ENOENT, "no MR")},
		{"10.7 add CQ", addCQ(0x01020304), uint32(0x11121314)},
		{"10.7 add CQ: refused", addCQ(0), refusal(syscall.EINVAL, "a depth of 0")},
		{"10.8 delete CQ", set((*Client).DelCQ, 0x01020304), nil},
		{"10.8 delete CQ: refused", set((*Client).DelCQ, 0x01020304), refusal(syscall.EBUSY, "queue pairs have it")},
		{"10.9 poll CQ: none", poll, Completions{}},
		{"10.9 poll CQ: done, failed, received; there are others", poll,
			Completions{WCs: []WC{{ID: 1, QPN: 2, Op: WRWrite}, failed, received, lost}, More: true}},
		{"10.9 poll CQ: as many as a frame holds", poll, Completions{WCs: wcs}},
		{"10.9 poll CQ: refused", poll, refusal(syscall.ENOENT, "no CQ")},
	}
}

func goldenRDMAQueues() []exchange {
	add := send((*Client).AddQP, QP{PD: 0x01020304, SendCQ: 0x11121314, RecvCQ: 0x21222324, MaxSend: 0x31323334,
		MaxRecv: 0x41424344})
	path4 := QPPath{QPN: 1, RemoteQPN: 2, Local: netip.MustParseAddr("10.0.0.1"), Remote: netip.MustParseAddr("10.0.0.2"),
		MAC: driverMAC, MTU: 1024, Timeout: 14, Retries: 7, RNR: 7, RNRTimer: 12, Reads: 16, ReadDepth: 16}
	path6 := QPPath{QPN: 0x01020304, RemoteQPN: 0x11121314, SendPSN: 0x21222324, RecvPSN: 0x31323334,
		Local: netip.MustParseAddr("fd00:1:2:3:4:5:6:7"), Remote: netip.MustParseAddr("fe80::1"),
		MAC: [6]byte{1, 2, 3, 4, 5, 6}, MTU: 0x4142, Timeout: 0x51, Retries: 0x52, RNR: 0x53, RNRTimer: 0x54, Reads: 0x55,
		ReadDepth: 0x56, DSCP: 0x57}
	connect := func(p QPPath) clientCall { return set((*Client).ConnectQP, p) }
	status := send((*Client).QPStatus, 0x01020304)
	sge := SGE{VA: 0x0102030405060708, Len: 0x11121314, Key: 0x21222324}
	write := WR{ID: 0x0102030405060708, Op: WRWriteImm, Flags: WRSignaled | WRSolicited | WRFence, Imm: 0x11121314,
		Key: 0x21222324, Remote: 0x3132333435363738, SGEs: []SGE{sge, {VA: 1, Len: 2, Key: 3}}}
	most := WR{Op: WRSend, SGEs: slices.Repeat([]SGE{sge}, MaxSGEs)}
	long := Post{QPN: 3, WRs: numbered(MaxPost/uint32(WRLen(1)), func(i uint32) WR {
		return WR{ID: uint64(i), Op: WRRead, Flags: WRSignaled, Key: 1, Remote: uint64(i) << 20,
			SGEs: []SGE{{Len: i, Key: 2}}}
	})}
	post := func(p Post) clientCall { return set((*Client).PostSend, p) }
	receive := set((*Client).PostRecv, Post{QPN: 0x01020304, WRs: []WR{{ID: 7, Op: WRRecv, SGEs: []SGE{sge}},
		{ID: 8, Op: WRRecv}}})
	counts := get((*Client).RDMACounts)
	return []exchange{
		{"10.10 add queue pair", add, uint32(0x51525354)},
		{"10.10 add queue pair: refused", add, refusal(syscall.ENOENT, "no CQ")},
		{"10.11 connect: IPv4", connect(path4), nil},
		{"10.11 connect: IPv6, every field", connect(path6), nil},
		{"10.11 connect: refused", connect(path4), refusal(syscall.EINVAL, "it is connected")},
		{"10.12 delete queue pair", set((*Client).DelQP, 0x01020304), nil},
		{"10.12 delete queue pair: refused", set((*Client).DelQP, 0x01020304), refusal(syscall.ENOENT, "no queue pair")},
		{"10.13 queue pair's status: every field", status, filled[QPStatus](1)},
		{"10.13 queue pair's status: new", status, QPStatus{QPN: 1, State: QPInit}},
		{"10.13 queue pair's status: refused", status, refusal(syscall.ENOENT, "no queue pair")},
		{"10.14 post: WRITE with immediate, two pieces; SEND of as many pieces as there may be; nothing",
			post(Post{0x01020304, []WR{write, most, {}}}), nil},
		{"10.14 post: as many READs as a frame holds", post(long), nil},
		{"10.14 post: nothing", post(Post{QPN: 1}), nil},
		{"10.14 post: refused", post(Post{QPN: 1}), refusal(syscall.ENOSPC, "the queue has 2 places left")},
		{"10.15 post receives", receive, nil},
		{"10.15 post receives: refused", receive, refusal(syscall.ENOSPC, "the queue is full")},
		{"10.16 RDMA's counters: every counter", counts, filled[RDMAPortCounts](1)},
		{"10.16 RDMA's counters: refused", counts, refusal(syscall.EIO, "no counters")},
	}
}

func goldenRDMAPages() []exchange {
	mailbox := set((*Client).SetMailbox, Mailbox{GPU: 0x0102, Off: 0x1112131415161718})
	list := get((*Client).PageRequests)
	full := PageRequest{ID: 0x01020304, Key: 0x11121314, Region: 0x21222324, Count: 0x3132, Write: true, InRAM: true,
		First: 0x4142434445464748}
	many := numbered(64, func(i uint32) PageRequest { return PageRequest{ID: i, Key: 1, Count: 1, First: uint64(i)} })
	answer := func(a PageAnswer) clientCall { return set((*Client).AnswerPages, a) }
	entries := numbered(MaxPages, func(i uint32) uint64 { return uint64(i)<<12 | 1 })
	counts := send((*Client).PageCounts, 0x01020304)
	return []exchange{
		{"10.17 set mailbox", mailbox, nil},
		{"10.17 set mailbox: refused", mailbox, refusal(syscall.ENODEV, "no GPU 258")},
		{"10.18 list page requests: none", list, []PageRequest(nil)},
		{"10.18 list page requests: every field", list, []PageRequest{{ID: 1, InRAM: true}, full}},
		{"10.18 list page requests: 64, in two frames", list, many},
		{"10.18 list page requests: refused", list, refusal(syscall.EIO, "no list")},
		{"10.19 answer: two pages", answer(PageAnswer{ID: 0x01020304, Generation: 0x11121314,
			Entries: []uint64{0x2122232425262728, 0}}), nil},
		{"10.19 answer: as many pages as there may be", answer(PageAnswer{ID: 1, Entries: entries}), nil},
		{"10.19 answer: none is to be had", answer(PageAnswer{ID: 1, Errno: 0x0102}), nil},
		{"10.19 answer: refused", answer(PageAnswer{ID: 1}), refusal(syscall.ENOENT, "no such request")},
		{"10.20 pages' counters: every counter", counts, filled[PageCounts](1)},
		{"10.20 pages' counters: refused", counts, refusal(syscall.EINVAL, "not on demand")},
	}
}

func goldenRDMANotify(t *testing.T) string {
	h := &goldenHandler{generation: 0x0a0b0c0d}
	l := newGoldenLink(t, h, ClientOptions{})
	l.text.WriteString("# Class 10: notifies\n")
	var got []any
	defer l.client.OnRDMA(RDMAEvents{
		Completions: func(cq uint32) { got = append(got, cq) },
		Pages:       func(r PageRequest) { got = append(got, r) },
	})()
	full := filled[PageRequest](1)
	full.Write = true
	var want []any
	for _, cq := range []uint32{1, 0x01020304} {
		l.say("10.21 completions: CQ %#x", cq)
		l.toDriver(l.d.NotifyCompletions(nil, driverMAC, cq))
		want = append(want, cq)
	}
	for _, r := range []PageRequest{{ID: 1, Key: 2, Region: 3, Count: 4, First: 5, InRAM: true}, full} {
		l.say("10.22 pages")
		l.toDriver(l.d.NotifyPages(nil, driverMAC, &r))
		want = append(want, r)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	return l.text.String()
}
