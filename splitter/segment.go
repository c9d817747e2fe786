package splitter

import "errors"

// ErrBadGSO says that a super-packet contradicts itself: its type, its headers and its segment size do not fit.
var ErrBadGSO = errors.New("bad super-packet")

// Segmenter cuts one super-packet into MSS segments or into smaller super-packets of k times the MSS. It works by
// payload offset, in any order, so segments can be left out. It is reused: Init again for the next packet.
type Segmenter struct{}

// Init starts on a packet: hdr is its header (HdrLen bytes, kept until the next Init and never written), m its Meta.
// The Csum of m must be CsumPartial or CsumGood. A packet that is no super-packet (GSONone) is one segment.
func (s *Segmenter) Init(hdr []byte, m *Meta, payloadLen uint32) error { return ErrBadGSO }

// MSS is the payload length of a segment (only the last one is shorter).
func (s *Segmenter) MSS() uint32 { return 0 }

// Segments says how many segments the packet is.
func (s *Segmenter) Segments() uint32 { return 0 }

// Piece writes the header of the piece that carries payload [off, off+n) to dst, which has room for HdrLen bytes, and
// fills in its Meta. off is a multiple of the MSS; n is too, or goes to the end. A piece of more than one segment is a
// super-packet. The checksum is left partial.
func (s *Segmenter) Piece(dst []byte, m *Meta, off, n uint32) error { return ErrBadGSO }

// Complete turns the partial checksum of a piece that Piece wrote into a full one, its payload adding up to payloadSum.
func (s *Segmenter) Complete(dst []byte, m *Meta, payloadSum uint16) {}
