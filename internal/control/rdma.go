package control

import (
	"cmp"
	"net/netip"
)

// The commands of RDMA make and use the objects of the InfiniBand verbs: protection domains (PD), memory
// regions (MR), completion queues (CQ) and reliably connected queue pairs (QP).

// RDMALimits are the NIC's maxima.
type RDMALimits struct {
	PDs      uint32 // offset 0
	MRs      uint32 // 4
	Ranges   uint32 // 8: of guest memory, in all MRs together
	CQs      uint32 // 12
	Depth    uint32 // 16: work requests in a QP's send queue, and in its receive queue; a CQ may have more entries
	QPs      uint32 // 20
	SGEs     uint16 // 24: of a work request
	Reads    uint16 // 26: of a QP, in progress in each direction
	MTU      uint16 // 28: the largest path MTU that fits the NIC's MTU; 0: none
	Flags    uint16 // 30: RDMAOnDemand
	Length   uint64 // 32: bytes of a work request of PostSend
	Regions  uint32 // 40: MRs on demand
	Requests uint32 // 44: requests for pages in progress
}

// RDMAOnDemand is set in RDMALimits.Flags if MRs may be on demand.
const RDMAOnDemand = 1

// MRKind is the kind of memory of an MR.
type MRKind uint8

// Kinds of MRs.
const (
	MRBuffer   MRKind = 1 // a registered buffer of a GPU, or a part of one
	MRGuest    MRKind = 2 // ranges of guest memory
	MROnDemand MRKind = 3 // pages that the NIC requests from the driver when it needs them (on demand)
)

// Bits of MR.Access. Reading by work requests of the port's own queue pairs needs none of them.
const (
	AccessLocalWrite  = 1
	AccessRemoteWrite = 2
	AccessRemoteRead  = 4
)

// MR is a memory region. Its addresses are in [VA, VA+Len).
type MR struct {
	Key    uint32    // offset 0: chosen by the NIC, not 0, and both local and remote key; 0 for AddMR
	PD     uint32    // 4
	Kind   MRKind    // 8
	Access uint8     // 9
	Buffer uint32    // 12: of MRBuffer, a registered buffer's id; of MROnDemand, the region's number in its driver
	VA     uint64    // 16
	Len    uint64    // 24
	Off    uint64    // 32: of MRBuffer, in the buffer; of MROnDemand, of the first byte in its first page
	GPU    uint16    // 40: of MROnDemand, the GPU whose private pages the MR may use
	Ranges []MRRange // 48, a count as u32 at 44: of MRGuest, the first ranges
}

// MRRange is a contiguous range of guest memory, at an address that the NIC uses.
type MRRange struct {
	IOVA uint64
	Len  uint64
}

// MaxMRRanges bounds the ranges in a frame.
const MaxMRRanges = 80

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
	head := mr{Key: m.Key, PD: m.PD, Kind: m.Kind, Access: m.Access, Buffer: m.Buffer, VA: m.VA, Len: m.Len, Off: m.Off,
		GPU: m.GPU, Ranges: uint32(len(m.Ranges))}
	return appendElems(b, head, m.Ranges, MaxMRRanges, tooManyRanges)
}

const tooManyRanges = "mr: %d ranges in a frame, at most %d"

func (m *MR) decode(data []byte) (int, error) {
	var w mr
	ranges, n, err := decodeElems[MRRange](data, &w, &w.Ranges, MaxMRRanges)
	*m = MR{Key: w.Key, PD: w.PD, Kind: w.Kind, Access: w.Access, Buffer: w.Buffer, VA: w.VA, Len: w.Len, Off: w.Off,
		GPU: w.GPU, Ranges: ranges}
	return n, err
}

// MRMore adds ranges to an MR of guest memory. The MR can be used when the lengths of its ranges add up to
// MR.Len.
type MRMore struct {
	Key    uint32    // offset 0
	Ranges []MRRange // 8, a count as u32 at 4
}

func (m MRMore) append(b []byte) ([]byte, error) {
	return appendElems(b, [2]uint32{m.Key, uint32(len(m.Ranges))}, m.Ranges, MaxMRRanges, tooManyRanges)
}

func (m *MRMore) decode(data []byte) (int, error) {
	var w [2]uint32
	ranges, n, err := decodeElems[MRRange](data, &w, &w[1], MaxMRRanges)
	*m = MRMore{Key: w[0], Ranges: ranges}
	return n, err
}

// QP describes a new queue pair.
type QP struct {
	PD      uint32 // offset 0
	SendCQ  uint32 // 4
	RecvCQ  uint32 // 8
	MaxSend uint32 // 12: most work requests of PostSend that are not completed
	MaxRecv uint32 // 16: most work requests of PostRecv that are not completed
	_       uint32
}

// QPPath connects a queue pair, which goes from INIT to RTS at once.
type QPPath struct {
	QPN       uint32     // offset 0
	RemoteQPN uint32     // 4: 24 bits
	SendPSN   uint32     // 8: 24 bits, of the first packet of this end's requests
	RecvPSN   uint32     // 12: 24 bits, of the first packet expected of the peer's requests
	Local     netip.Addr // 16: source of the packets that this end sends
	Remote    netip.Addr // 32: the peer's; 56: 1 if Local and Remote are IPv6, else 0
	MAC       [6]byte    // 48: destination of frames to Remote
	MTU       uint16     // 54: most payload of a packet: 256, 512, 1024, 2048 or 4096
	Timeout   uint8      // 57: the NIC waits 4.096 us * 2^Timeout for an answer; 1 to 31
	Retries   uint8      // 58: retries after timeouts, 0 to 7
	RNR       uint8      // 59: retries, 0 to 6, after the peer's RNR NAKs (it is not ready); 7: no limit
	RNRTimer  uint8      // 60: the wait that this end's RNR NAKs ask for: the specification's code, 0 to 31
	Reads     uint8      // 61: READs of this end in progress, at most
	ReadDepth uint8      // 62: READs of the peer in progress, at most
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
	if err := cmp.Or(putAddr(&w.Local, p.Local, w.IPv6), putAddr(&w.Remote, p.Remote, w.IPv6)); err != nil {
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

// WROp is the operation of a work request.
type WROp uint8

// Operations of work requests.
const (
	WRWrite    WROp = 1
	WRWriteImm WROp = 2
	WRRead     WROp = 3
	WRSend     WROp = 4
	WRSendImm  WROp = 5
	WRRecv     WROp = 6 // for PostRecv, and in the completions of its work requests
)

// Flags of work requests of PostSend.
const (
	WRSignaled  = 1 // make a completion on success too; a failure makes one anyway
	WRSolicited = 2
	WRFence     = 4 // wait for the answers to earlier requests
)

// SGE (scatter/gather element) is a range of local memory: Len bytes at VA of the MR with Key.
type SGE struct {
	VA  uint64
	Len uint32
	Key uint32
}

// MaxSGEs is the maximum number of SGEs in a work request.
const MaxSGEs = 4

// WR is a work request.
type WR struct {
	ID     uint64 // offset 0: chosen by the user, repeated in the completion
	Op     WROp   // 8
	Flags  uint8  // 9; 10: how many SGEs, u16
	Imm    uint32 // 12
	Key    uint32 // 16: of the peer's MR
	Remote uint64 // 24: address in the peer's MR
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

// Post has work requests for a queue of a queue pair: the NIC posts all of them, or none.
type Post struct {
	QPN uint32 // offset 0
	WRs []WR   // 8; 4: how many, u32
}

const postHead = 8

// MaxPost is the maximum number of bytes of work requests (WRLen) in a Post.
const MaxPost = MaxData - postHead

func (p Post) append(b []byte) ([]byte, error) {
	b, err := encode(b, [2]uint32{p.QPN, uint32(len(p.WRs))})
	for i := range p.WRs {
		r := &p.WRs[i]
		head := wr{ID: r.ID, Op: r.Op, Flags: r.Flags, SGEs: uint16(len(r.SGEs)), Imm: r.Imm, Key: r.Key, Remote: r.Remote}
		if err == nil {
			b, err = appendElems(b, head, r.SGEs, MaxSGEs, "work request: %d SGEs, at most %d")
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
	for range head[1] {
		var w wr
		sges, k, err := decodeElems[SGE](data[n:], &w, &w.SGEs, MaxSGEs)
		if err != nil {
			return n, err
		}
		n += k
		p.WRs = append(p.WRs, WR{ID: w.ID, Op: w.Op, Flags: w.Flags, Imm: w.Imm, Key: w.Key, Remote: w.Remote, SGEs: sges})
	}
	return n, nil
}

// WCStatus is the result of a work request, numbered like Linux's enum ib_wc_status (include/rdma/ib_verbs.h)
// but for WCPagesUnavailable.
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
	WCPagesUnavailable WCStatus = 64 // a page on demand was not available
)

// WC is a work completion.
type WC struct {
	ID     uint64   // offset 0: the work request's
	QPN    uint32   // 8
	Status WCStatus // 12
	Op     WROp     // 13
	HasImm bool     // 14
	_      uint8
	Len    uint32 // 16: bytes received or read, on success; else 0
	Imm    uint32 // 20
}

// Poll asks for completions of a CQ, at most Max and at most MaxWCs. The NIC removes them from the CQ.
type Poll struct {
	CQ  uint32
	Max uint32
}

// Completions is the reply to a Poll.
type Completions struct {
	WCs  []WC // 8 and on; 0: how many, u32
	More bool // 4, u32: the CQ has more
}

// MaxWCs is how many completions fit in a frame.
const MaxWCs = (MaxData - 8) / 24

func (c Completions) append(b []byte) ([]byte, error) {
	head := [2]uint32{uint32(len(c.WCs)), 0}
	if c.More {
		head[1] = 1
	}
	return appendElems(b, head, c.WCs, MaxWCs, "%d completions in a frame, at most %d")
}

func (c *Completions) decode(data []byte) (int, error) {
	var head [2]uint32
	wcs, n, err := decodeElems[WC](data, &head, &head[0], MaxWCs)
	*c = Completions{WCs: wcs, More: head[1] == 1}
	return n, err
}

// QPState is the state of a queue pair.
type QPState uint8

// States in the InfiniBand specification's sense.
const (
	QPInit  QPState = 1
	QPReady QPState = 3 // RTS
	QPError QPState = 6
)

// QPStatus is the status of a queue pair.
type QPStatus struct {
	QPN     uint32   // offset 0
	State   QPState  // 4
	Cause   WCStatus // 5: in QPError, the first error (in a request of the peer: WCRemote...); else WCSuccess
	Reads   uint16   // 6: requests of READs in progress; a long READ takes several
	Sends   uint32   // 8: work requests of PostSend that are not completed
	Recvs   uint32   // 12: work requests of PostRecv that are not completed
	SendPSN uint32   // 16: of the next new packet of this end's requests
	Unacked uint32   // 20: of the oldest packet without an acknowledgement; SendPSN: there is none
	RecvPSN uint32   // 24: of the next packet expected of the peer's requests
	_       uint32
	Out, In RDMACounts // 32, 160
}

// RDMACounts counts one direction of a queue pair, or of a port's queue pairs. Out counts this port's
// requests and their answers; In counts the peer's requests and this port's answers. Each payload counter
// stands for one kind of this port's memory.
type RDMACounts struct {
	Requests     uint64 // packets of requests: sent, retransmissions included (Out), executed (In)
	Responses    uint64 // packets of answers: received (Out), sent (In)
	Messages     uint64 // completed messages; In: READs when they are accepted
	DeviceBytes  uint64 // payload in registered GPU buffers, or in private pages of a GPU
	GPUFileBytes uint64 // payload elsewhere in GPU memory
	HostBytes    uint64 // payload in host memory, BouncedBytes included
	BouncedBytes uint64 // payload that went through host memory to or from a GPU
	AgainPackets uint64 // Out: retransmissions; In: duplicates
	AgainBytes   uint64 // payload sent again: of retransmissions (Out), of answers to duplicate READs (In)
	Sequence     uint64 // NAKs for missing packets: received (Out), sent (In)
	NotReady     uint64 // RNR NAKs: received (Out), sent (In)
	Errors       uint64 // NAKs for errors: received (Out), sent (In)
	Timeouts     uint64 // Out: waits for an answer that timed out
	Discarded    uint64 // received packets dropped: unexpected, out of order, or as memory for them is missing
	_            [2]uint64
}

// RDMAPortCounts has the totals of a port. Device reset clears Out and In only.
type RDMAPortCounts struct {
	Out, In   RDMACounts
	ICRC      uint64 // packets with a wrong ICRC
	Unknown   uint64 // packets to no queue pair of this port, or not from its peer
	Malformed uint64
	_         uint64
}

// Mailbox is the page of a GPU's memory to which the GPU's driver writes invalidations: pages of MRs on demand that the
// NIC must not use any more (package internal/mailbox).
type Mailbox struct {
	GPU uint16 // offset 0
	_   [3]uint16
	Off uint64 // 8
}

// PageRequest asks the driver for pages of an MR on demand, by the notify RDMAPages, which the NIC repeats
// until the driver sends a PageAnswer, the request times out or the MR is deleted.
type PageRequest struct {
	ID     uint32 // offset 0: not 0
	Key    uint32 // 4: the MR's
	Region uint32 // 8: the region's number in its driver
	Count  uint16 // 12: pages
	Write  bool   // 14: the NIC will write to them
	InRAM  bool   // 15: the NIC cannot use private pages of the GPU: the driver must move them to RAM
	First  uint64 // 16: first page, from the start of the region
}

func (r PageRequest) number() uint32 { return r.ID }

// MaxPages is the maximum number of pages in a PageRequest.
const MaxPages = 64

// PageAnswer answers a PageRequest with an errno, or with an entry for each page, in the format of VNICGPU_FAULT
// (guest-images/vnicgpu/vnicgpu.h).
type PageAnswer struct {
	ID         uint32   // offset 0
	Generation uint32   // 4: of the region, when the entries were valid
	Errno      uint16   // 10: not 0: no page is available; 8, u16: number of entries
	Entries    []uint64 // 16
}

type pageAnswer struct {
	ID, Generation uint32
	Count, Errno   uint16
	_              uint32
}

func (a PageAnswer) append(b []byte) ([]byte, error) {
	head := pageAnswer{ID: a.ID, Generation: a.Generation, Count: uint16(len(a.Entries)), Errno: a.Errno}
	return appendElems(b, head, a.Entries, MaxPages, "pages: %d in an answer, at most %d")
}

func (a *PageAnswer) decode(data []byte) (int, error) {
	var w pageAnswer
	entries, n, err := decodeElems[uint64](data, &w, &w.Count, MaxPages)
	*a = PageAnswer{ID: w.ID, Generation: w.Generation, Errno: w.Errno, Entries: entries}
	return n, err
}

// PageCounts are the counters of an MR on demand.
type PageCounts struct {
	Requests      uint64 // requests for pages, without repeats
	Answers       uint64 // to Requests
	Stale         uint64 // pages in Answers, outdated by an invalidation
	MapsHost      uint64 // pages that the NIC learned from Answers, in RAM
	MapsGPU       uint64 // pages that the NIC learned from Answers, in a GPU
	Refused       uint64 // pages that were not available, or whose request timed out
	Invalidations uint64
	Invalidated   uint64 // learned pages that the NIC lost again, by Invalidations or at the end of the region
	Parked        uint64 // packets kept in the NIC until a page comes, or behind such a packet
	ParkedBytes   uint64 // payload of Parked
	NotReady      uint64 // packets that could not be kept so: refused with an RNR NAK, or dropped
	GPUBytes      uint64 // payload in private pages
	HostBytes     uint64 // payload in RAM
	Quarantined   uint64 // 1: no payload moves any more, as an invalidation failed; else 0
	_             [2]uint64
}

// Add adds the counters of o.
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
