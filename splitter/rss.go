package splitter

// KeyLen is the length of a Toeplitz key in bytes.
const KeyLen = 40

// DefaultKey is the key of Microsoft's RSS verification suite, which most drivers come up with.
var DefaultKey = [KeyLen]byte{
	0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
	0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
	0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
}

// Toeplitz hashes a flow bit by bit: addresses, then ports. Ports that are 0 add nothing, so a flow without ports gets
// the 2-tuple hash. It is the reference; RSS.Hash gives the same and is for the fast path.
func Toeplitz(key *[KeyLen]byte, f *Flow) uint32 { return 0 }

// RSS spreads flows over queues. It is immutable once made: replace it through an atomic pointer.
type RSS struct {
	Key   [KeyLen]byte
	Table []uint16 // queue by hash; a power of two long
}

// NewRSS makes an RSS; the length of table must be a power of two.
func NewRSS(key [KeyLen]byte, table []uint16) (*RSS, error) {
	return &RSS{Key: key, Table: table}, nil
}

// Hash gives the flow's Toeplitz hash.
func (r *RSS) Hash(f *Flow) uint32 { return 0 }

// Queue gives the queue for a hash.
func (r *RSS) Queue(hash uint32) uint16 { return 0 }
