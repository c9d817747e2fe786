package control

import "net/netip"

// RDMA's commands set up what the verbs of the InfiniBand specification name: protection domains (PD), memory regions
// (MR), completion queues (CQ) and reliably connected queue pairs (QP). They travel like all commands: a work request
// costs a frame, or a part of one, and a completion is read by a command, after a notice.

// RDMALimits is what the NIC holds at most.
type RDMALimits struct {
	PDs      uint32 // offset 0
	MRs      uint32 // 4
	Ranges   uint32 // 8: of guest memory, in all MRs together
	CQs      uint32 // 12
	Depth    uint32 // 16: of a QP's send and receive queues; a CQ may have more
	QPs      uint32 // 20
	SGEs     uint16 // 24: of a work request
	Reads    uint16 // 26: of a QP, under way in either direction
	MTU      uint16 // 28: the largest path MTU that the NIC's MTU leaves room for
	Flags    uint16 // 30: RDMAOnDemand
	Length   uint64 // 32: of a message
	Regions  uint32 // 40: on demand
	Requests uint32 // 44: for pages, under way
}

// RDMAOnDemand is set in RDMALimits' Flags if MRs may be on demand.
const RDMAOnDemand = 1

// MRKind says what an MR is made of.
type MRKind uint8

// Kinds of MRs.
const (
	MRBuffer   MRKind = 1 // a registered buffer of a GPU
	MRGuest    MRKind = 2 // ranges of guest memory
	MROnDemand MRKind = 3 // pages that the NIC asks for
)

// Access of an MR; reading by the NIC's own queue pairs is always allowed.
const (
	AccessLocalWrite  = 1
	AccessRemoteWrite = 2
	AccessRemoteRead  = 4
)

// MR is a memory region. Addresses in work requests and of the peer are in [VA, VA+Len).
type MR struct {
	Key    uint32    // offset 0: chosen by the NIC, not 0; local and remote key
	PD     uint32    // 4
	Kind   MRKind    // 8
	Access uint8     // 9
	Buffer uint32    // 12: of MRBuffer, a registered buffer's id; of MROnDemand, the region's number in its owner's driver
	VA     uint64    // 16
	Len    uint64    // 24
	Off    uint64    // 32: of MRBuffer, in the buffer; of MROnDemand, of the first byte in its first page
	GPU    uint16    // 40: of MROnDemand, whose private pages it may have
	Ranges []MRRange // 48, a count as u32 at 44: of MRGuest, the first ones
}

func (m MR) number() uint32 { return m.Key }

// MRRange is a piece of guest memory.
type MRRange struct {
	IOVA uint64
	Len  uint64
}

// MaxMRRanges is how many ranges a frame holds.
const MaxMRRanges = 80

// mr is the fixed part of an MR as it travels.
type mr struct {
	Key, PD uint32
	Kind    MRKind
	Access  uint8
	_       uint16
	Buffer  uint32
	VA      uint64
	Len     uint64
	Off     uint64
	GPU     uint16
	_       uint16
	Ranges  uint32
}

func (m MR) append(b []byte) ([]byte, error) {
	if len(m.Ranges) > MaxMRRanges {
		return nil, badData("mr: %d ranges in a frame, at most %d", len(m.Ranges), MaxMRRanges)
	}
	b, err := encode(b, mr{Key: m.Key, PD: m.PD, Kind: m.Kind, Access: m.Access, Buffer: m.Buffer, VA: m.VA, Len: m.Len,
		Off: m.Off, GPU: m.GPU, Ranges: uint32(len(m.Ranges))})
	if err == nil && len(m.Ranges) > 0 {
		b, err = encode(b, m.Ranges)
	}
	return b, err
}

func (m *MR) decode(data []byte) (int, error) {
	var w mr
	n, err := decodeFixed(data, &w)
	if err != nil {
		return n, err
	}
	*m = MR{Key: w.Key, PD: w.PD, Kind: w.Kind, Access: w.Access, Buffer: w.Buffer, VA: w.VA, Len: w.Len, Off: w.Off,
		GPU: w.GPU}
	var k int
	m.Ranges, k, err = decodeMany[MRRange](data[n:], w.Ranges, MaxMRRanges)
	return n + k, err
}

// MRMore adds ranges to an MR of guest memory, which is of use once they are as long as it is.
type MRMore struct {
	Key    uint32    // offset 0
	Ranges []MRRange // 8, a count as u32 at 4
}

func (m MRMore) append(b []byte) ([]byte, error) {
	if len(m.Ranges) > MaxMRRanges {
		return nil, badData("mr: %d ranges in a frame, at most %d", len(m.Ranges), MaxMRRanges)
	}
	b, err := encode(b, [2]uint32{m.Key, uint32(len(m.Ranges))})
	if err == nil && len(m.Ranges) > 0 {
		b, err = encode(b, m.Ranges)
	}
	return b, err
}

func (m *MRMore) decode(data []byte) (int, error) {
	var w [2]uint32
	n, err := decodeFixed(data, &w)
	if err != nil {
		return n, err
	}
	ranges, k, err := decodeMany[MRRange](data[n:], w[1], MaxMRRanges)
	*m = MRMore{Key: w[0], Ranges: ranges}
	return n + k, err
}

// decodeMany decodes n elements of fixed size, at most limit.
func decodeMany[T any](data []byte, n uint32, limit int) (elems []T, size int, err error) {
	if n > uint32(limit) {
		return nil, 0, badData("%d elements, at most %d", n, limit)
	}
	if n == 0 {
		return nil, 0, nil
	}
	elems = make([]T, n)
	size, err = decodeFixed(data, elems)
	return elems, size, err
}

// QP makes a queue pair.
type QP struct {
	PD      uint32 // offset 0
	SendCQ  uint32 // 4
	RecvCQ  uint32 // 8
	MaxSend uint32 // 12: work requests posted and not completed
	MaxRecv uint32 // 16
	_       uint32
}

// QPPath connects a queue pair: it may send and receive from then on (from INIT to RTS at once).
type QPPath struct {
	QPN       uint32     // offset 0
	RemoteQPN uint32     // 4: 24 bits
	SendPSN   uint32     // 8: 24 bits, of the first packet
	RecvPSN   uint32     // 12: 24 bits, of the first packet that is expected
	Local     netip.Addr // 16: as RoCEv2's packets have them
	Remote    netip.Addr // 32; 56, bit 0: IPv6, both
	MAC       [6]byte    // 48: where frames to Remote go
	MTU       uint16     // 54: payload of a packet: 256, 512, 1024, 2048 or 4096
	Timeout   uint8      // 57: an answer takes at most 4.096 us * 2^Timeout; 1 to 31
	Retries   uint8      // 58: 0 to 7, before a work request fails for want of an answer
	RNR       uint8      // 59: 0 to 6, before it fails as the peer has no receive posted; 7: without end
	RNRTimer  uint8      // 60: what peers are told to wait then: the specification's code, 0 to 31
	Reads     uint8      // 61: READs under way, that the peer answers
	ReadDepth uint8      // 62: READs of the peer that are answered at one time
	DSCP      uint8      // 63
}

type qpPath struct {
	QPN, RemoteQPN, SendPSN, RecvPSN uint32
	Local, Remote                    [16]byte
	MAC                              [6]byte
	MTU                              uint16
	IPv6                             bool
	Timeout, Retries, RNR, RNRTimer  uint8
	Reads, ReadDepth, DSCP           uint8
}

func (p QPPath) append(b []byte) ([]byte, error) {
	w := qpPath{QPN: p.QPN, RemoteQPN: p.RemoteQPN, SendPSN: p.SendPSN, RecvPSN: p.RecvPSN, MAC: p.MAC, MTU: p.MTU,
		IPv6: !p.Local.Is4(), Timeout: p.Timeout, Retries: p.Retries, RNR: p.RNR, RNRTimer: p.RNRTimer,
		Reads: p.Reads, ReadDepth: p.ReadDepth, DSCP: p.DSCP}
	if !p.Local.IsValid() || !p.Remote.IsValid() {
		return nil, badData("queue pair: %v and %v: both ends are needed", p.Local, p.Remote)
	}
	err := putAddr(&w.Local, p.Local, w.IPv6)
	if err == nil {
		err = putAddr(&w.Remote, p.Remote, w.IPv6)
	}
	if err != nil {
		return nil, err
	}
	return encode(b, w)
}

func (p *QPPath) decode(data []byte) (int, error) {
	var w qpPath
	n, err := decodeFixed(data, &w)
	*p = QPPath{QPN: w.QPN, RemoteQPN: w.RemoteQPN, SendPSN: w.SendPSN, RecvPSN: w.RecvPSN, MAC: w.MAC, MTU: w.MTU,
		Local: getAddr(w.Local, w.IPv6), Remote: getAddr(w.Remote, w.IPv6), Timeout: w.Timeout, Retries: w.Retries,
		RNR: w.RNR, RNRTimer: w.RNRTimer, Reads: w.Reads, ReadDepth: w.ReadDepth, DSCP: w.DSCP}
	return n, err
}

// WROp is what a work request does.
type WROp uint8

// Operations of work requests.
const (
	WRWrite    WROp = 1
	WRWriteImm WROp = 2
	WRRead     WROp = 3
	WRSend     WROp = 4
	WRSendImm  WROp = 5
	WRRecv     WROp = 6 // of completions, and of work requests to receive
)

// Flags of work requests.
const (
	WRSignaled  = 1 // it has a completion if it goes well; one that fails always has
	WRSolicited = 2
	WRFence     = 4 // it waits for the READs before it
)

// SGE is a piece of local memory.
type SGE struct {
	VA  uint64
	Len uint32
	Key uint32
}

// MaxSGEs is the most that a work request has.
const MaxSGEs = 4

// WR is a work request.
type WR struct {
	ID     uint64 // offset 0: the user's, for the completion
	Op     WROp   // 8
	Flags  uint8  // 9; 10: how many SGEs, u16
	Imm    uint32 // 12
	Key    uint32 // 16: of the peer's MR
	Remote uint64 // 24: address in it
	SGEs   []SGE  // 32, 16 bytes each
}

type wr struct {
	ID     uint64
	Op     WROp
	Flags  uint8
	SGEs   uint16
	Imm    uint32
	Key    uint32
	_      uint32
	Remote uint64
}

// WRLen is the length of a work request with n SGEs, in bytes.
func WRLen(n int) int { return 32 + 16*n }

// Post posts work requests: all of them, or none.
type Post struct {
	QPN uint32 // offset 0
	WRs []WR   // 8; 4: how many, u32
}

// postHead is what precedes work requests.
const postHead = 8

// MaxPost is how many bytes of work requests (WRLen) a Post may have.
const MaxPost = MaxData - postHead

func (p Post) append(b []byte) ([]byte, error) {
	b, err := encode(b, [2]uint32{p.QPN, uint32(len(p.WRs))})
	for i := range p.WRs {
		r := &p.WRs[i]
		if len(r.SGEs) > MaxSGEs {
			return nil, badData("work request: %d SGEs, at most %d", len(r.SGEs), MaxSGEs)
		}
		if err == nil {
			b, err = encode(b, wr{ID: r.ID, Op: r.Op, Flags: r.Flags, SGEs: uint16(len(r.SGEs)), Imm: r.Imm, Key: r.Key,
				Remote: r.Remote})
		}
		if err == nil && len(r.SGEs) > 0 {
			b, err = encode(b, r.SGEs)
		}
	}
	return b, err
}

func (p *Post) decode(data []byte) (int, error) {
	var head [2]uint32
	n, err := decodeFixed(data, &head)
	if err != nil {
		return n, err
	}
	*p = Post{QPN: head[0]}
	for range head[1] { // each from bytes that are there: the count alone reserves nothing
		var w wr
		k, err := decodeFixed(data[n:], &w)
		if err != nil {
			return n, err
		}
		n += k
		sges, k, err := decodeMany[SGE](data[n:], uint32(w.SGEs), MaxSGEs)
		if err != nil {
			return n, err
		}
		n += k
		p.WRs = append(p.WRs, WR{ID: w.ID, Op: w.Op, Flags: w.Flags, Imm: w.Imm, Key: w.Key, Remote: w.Remote, SGEs: sges})
	}
	return n, nil
}

// WCStatus is how a work request ended: the numbers are those of Linux's enum ib_wc_status (include/rdma/ib_verbs.h).
type WCStatus uint8

// Statuses.
const (
	WCSuccess          WCStatus = 0
	WCLocalLength      WCStatus = 1
	WCLocalProtection  WCStatus = 4
	WCFlushed          WCStatus = 5
	WCRemoteInvalid    WCStatus = 9
	WCRemoteAccess     WCStatus = 10
	WCRemoteOperation  WCStatus = 11
	WCRetriesExceeded  WCStatus = 12
	WCRNRExceeded      WCStatus = 13
	WCGeneral          WCStatus = 21
	WCPagesUnavailable WCStatus = 64 // ours: a page on demand was not to be had
)

// WC is a work completion.
type WC struct {
	ID     uint64   // offset 0: the work request's
	QPN    uint32   // 8
	Status WCStatus // 12
	Op     WROp     // 13
	HasImm bool     // 14
	_      uint8
	Len    uint32 // 16: bytes that were received or read
	Imm    uint32 // 20
}

// Poll asks for completions, which the CQ has no more then.
type Poll struct {
	CQ  uint32
	Max uint32
}

// Completions is what Poll gets.
type Completions struct {
	WCs  []WC // 8 and on; 0: how many, u32
	More bool // 4, u32: the CQ has more
}

// MaxWCs is how many completions a frame holds.
const MaxWCs = (MaxData - 8) / 24

func (c Completions) append(b []byte) ([]byte, error) {
	if len(c.WCs) > MaxWCs {
		return nil, badData("%d completions in a frame, at most %d", len(c.WCs), MaxWCs)
	}
	head := [2]uint32{uint32(len(c.WCs)), 0}
	if c.More {
		head[1] = 1
	}
	b, err := encode(b, head)
	if err == nil && len(c.WCs) > 0 {
		b, err = encode(b, c.WCs)
	}
	return b, err
}

func (c *Completions) decode(data []byte) (int, error) {
	var head [2]uint32
	n, err := decodeFixed(data, &head)
	if err != nil {
		return n, err
	}
	wcs, k, err := decodeMany[WC](data[n:], head[0], MaxWCs)
	*c = Completions{WCs: wcs, More: head[1] == 1}
	return n + k, err
}

// QPState says whether a queue pair works.
type QPState uint8

// States, of those of the specification: nothing is sent between INIT and RTS.
const (
	QPInit  QPState = 1
	QPReady QPState = 3 // RTS
	QPError QPState = 6
)

// QPStatus is what is known of a queue pair.
type QPStatus struct {
	QPN     uint32 // offset 0
	State   QPState
	Cause   WCStatus // 5: of the error: what failed first, here or, as the peer's request, WCRemote...
	Reads   uint16   // 6: READs under way
	Sends   uint32   // 8: work requests that are not complete
	Recvs   uint32   // 12: receives that are posted
	SendPSN uint32   // 16: of the next new packet
	Unacked uint32   // 20: of the oldest packet without an answer
	RecvPSN uint32   // 24: expected
	_       uint32
	Out, In RDMACounts // 32, 160
}

func (s QPStatus) number() uint32 { return s.QPN }

// RDMACounts counts one direction of a queue pair, or of all of a port. Out is what its own requests did, packets that
// answer them included; In what the peer's did. Payload bytes count by where they lie on this port's side.
type RDMACounts struct {
	Requests     uint64 // packets of requests: sent (Out), carried out (In)
	Responses    uint64 // packets of answers: received (Out), sent (In)
	Messages     uint64 // done
	DeviceBytes  uint64 // payload in registered GPU buffers, or in private pages of a GPU
	GPUFileBytes uint64 // payload elsewhere in GPU memory
	HostBytes    uint64 // payload in host memory
	BouncedBytes uint64 // of these, such as went through host memory to a GPU or from it
	AgainPackets uint64 // Out: sent again; In: seen before
	AgainBytes   uint64 // of these, payload: part of the bytes above if it was moved again
	Sequence     uint64 // NAKs for packets that lack: received (Out), sent (In)
	NotReady     uint64 // NAKs as no receive is posted, or a page is awaited: received (Out), sent (In)
	Errors       uint64 // NAKs for what is wrong: received (Out), sent (In)
	Timeouts     uint64 // Out: no answer in time
	Discarded    uint64 // packets that fit nothing
	_            [2]uint64
}

// RDMAPortCounts is all of a port.
type RDMAPortCounts struct {
	Out, In   RDMACounts
	ICRC      uint64 // packets with a wrong ICRC
	Unknown   uint64 // to no queue pair of ours, or not from its peer
	Malformed uint64
	_         uint64
}

// Mailbox says where a GPU's driver tells of invalidations: a page of its memory (package internal/mailbox). An MR on
// demand is of a GPU that has one.
type Mailbox struct {
	GPU uint16 // offset 0
	_   [3]uint16
	Off uint64 // 8
}

// PageRequest asks for pages of an MR on demand. It is a notify, RDMAPages, and is repeated until there is a
// PageAnswer; RDMAPageList asks for those without one.
type PageRequest struct {
	ID     uint32 // offset 0: not 0
	Key    uint32 // 4: the MR's
	Region uint32 // 8: its number in the driver
	Count  uint16 // 12: pages
	Write  bool   // 14: they are to be written
	InRAM  bool   // 15: the NIC does not reach the GPU: private pages are of no use to it
	First  uint64 // 16: page, from the start of the region
}

func (r PageRequest) number() uint32 { return r.ID }

// MaxPages is how many pages a PageRequest asks for at most.
const MaxPages = 64

// PageAnswer answers a PageRequest: with one entry for each page, as the driver's ioctl FAULT makes them
// (guest-images/vnicgpu/vnicgpu.h).
type PageAnswer struct {
	ID         uint32   // offset 0
	Generation uint32   // 4: of the region, when the entries were true
	Errno      uint16   // 10; 8, u16: how many entries. Not 0: no page is to be had
	Entries    []uint64 // 16
}

type pageAnswer struct {
	ID, Generation uint32
	Count, Errno   uint16
	_              uint32
}

func (a PageAnswer) append(b []byte) ([]byte, error) {
	if len(a.Entries) > MaxPages {
		return nil, badData("pages: %d in an answer, at most %d", len(a.Entries), MaxPages)
	}
	b, err := encode(b, pageAnswer{ID: a.ID, Generation: a.Generation, Count: uint16(len(a.Entries)), Errno: a.Errno})
	if err == nil && len(a.Entries) > 0 {
		b, err = encode(b, a.Entries)
	}
	return b, err
}

func (a *PageAnswer) decode(data []byte) (int, error) {
	var w pageAnswer
	n, err := decodeFixed(data, &w)
	if err != nil {
		return n, err
	}
	entries, k, err := decodeMany[uint64](data[n:], uint32(w.Count), MaxPages)
	*a = PageAnswer{ID: w.ID, Generation: w.Generation, Errno: w.Errno, Entries: entries}
	return n + k, err
}

// PageCounts is what an MR on demand has seen.
type PageCounts struct {
	Requests      uint64 // for pages
	Answers       uint64
	Stale         uint64 // answers that an invalidation had overtaken
	MapsHost      uint64 // pages that became known, in RAM
	MapsGPU       uint64 // in a GPU
	Refused       uint64 // pages that were not to be had
	Invalidations uint64
	Invalidated   uint64 // pages
	Parked        uint64 // packets that waited for a page here
	ParkedBytes   uint64
	NotReady      uint64 // packets that were refused, to be sent again, as no more could wait
	GPUBytes      uint64 // payload in private pages
	HostBytes     uint64 // in RAM
	Quarantined   uint64 // 1: nothing moves any more
	_             [2]uint64
}

// Add adds counts.
func (c *RDMACounts) Add(o *RDMACounts) {
	c.Requests += o.Requests
	c.Responses += o.Responses
	c.Messages += o.Messages
	c.DeviceBytes += o.DeviceBytes
	c.GPUFileBytes += o.GPUFileBytes
	c.HostBytes += o.HostBytes
	c.BouncedBytes += o.BouncedBytes
	c.AgainPackets += o.AgainPackets
	c.AgainBytes += o.AgainBytes
	c.Sequence += o.Sequence
	c.NotReady += o.NotReady
	c.Errors += o.Errors
	c.Timeouts += o.Timeouts
	c.Discarded += o.Discarded
}
