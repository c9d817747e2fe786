package nvmetcp

import "fmt"

// Opcodes (Base 5 and 6, NVM command set; Fabrics 3).
const (
	opWrite       = 0x01
	opRead        = 0x02
	opIdentify    = 0x06 // opIdentify and opSetFeatures are sent on the admin queue
	opSetFeatures = 0x09
	opFabrics     = 0x7f
)

// FCTYPE of Fabrics commands (Fabrics 3).
const (
	fabricsPropertySet = 0x00
	fabricsConnect     = 0x01
	fabricsPropertyGet = 0x04
)

// Offsets of properties (Base 3.1).
const (
	propCAP  = 0x00 // a property of 8 bytes; the others have 4
	propCC   = 0x14
	propCSTS = 0x1c
)

// Fields of CC and CSTS (Base 3.1.5, 3.1.6).
const (
	ccEnable     = 1 << 0
	ccShutdown   = 1 << 14 // SHN: normal shutdown
	ccSQES       = 6 << 16 // IOSQES: submission queue entries have 64 bytes
	ccCQES       = 4 << 20 // IOCQES: completion queue entries have 16 bytes
	cstsReady    = 1 << 0
	cstsFatal    = 1 << 1 // CFS: the controller has failed
	cstsShutMask = 3 << 2
	cstsShutDone = 2 << 2 // SHST: shutdown is complete
)

// SGL descriptors (Base 4.4; Fabrics 2.3.1): type and subtype.
const (
	sglInCapsule = 0x01 // the data is in the capsule, and the address is an offset there
	sglTransport = 0x5a
)

const (
	sqeLen       = 64
	usesSGL      = 1 << 6 // PSDT 01b: the command has an SGL
	noSQFlow     = 1 << 2 // CATTR of Connect (Fabrics 3.3): no SQ flow control
	anyCNTLID    = 0xffff
	connectLen   = 1024
	identifyLen  = 4096
	queuesFID    = 0x07 // feature Number of Queues (Base 5.21.1.7)
	cnsNamespace = 0x00
	cnsCtrl      = 0x01
)

// sqe is a submission queue entry (Base 4.2).
type sqe [sqeLen]byte

func newSQE(opcode uint8, nsid uint32) *sqe {
	var s sqe
	s[0], s[1] = opcode, usesSGL
	le.PutUint32(s[4:], nsid)
	return &s
}

func newFabrics(kind uint8) *sqe {
	s := newSQE(opFabrics, 0)
	s[4] = kind
	return s
}

func (s *sqe) setCID(cid uint16) { le.PutUint16(s[2:], cid) }

// setSGL sets SGL1 to address 0, length n, and the type and subtype in kind.
func (s *sqe) setSGL(kind uint8, n uint32) {
	le.PutUint64(s[24:], 0)
	le.PutUint32(s[32:], n)
	s[39] = kind
}

func (s *sqe) setDword(i int, v uint32) { le.PutUint32(s[4*i:], v) }

// setBlocks sets SLBA, and NLB for n blocks, 1 or more (Base 6.9, 6.15).
func (s *sqe) setBlocks(lba uint64, n uint32) {
	le.PutUint64(s[40:], lba)
	le.PutUint16(s[48:], uint16(n-1))
}

// connectSQE returns Connect (Fabrics 3.3) for queue qid, which has size entries; attr is CATTR.
func connectSQE(qid uint16, size int, attr uint8) *sqe {
	s := newFabrics(fabricsConnect)
	le.PutUint16(s[42:], qid)
	le.PutUint16(s[44:], uint16(size-1))
	s[46] = attr
	return s
}

func connectData(hostID [16]byte, cntlid uint16, subNQN, hostNQN string) []byte {
	b := make([]byte, connectLen)
	copy(b, hostID[:])
	le.PutUint16(b[16:], cntlid)
	copy(b[256:511], subNQN)
	copy(b[512:767], hostNQN)
	return b
}

// connectFault names what the target refused in Connect: the parameter that begins at the byte whose number is in the
// result of a response with status Invalid Parameters (Fabrics 3.3), or, if none begins there, that byte.
func connectFault(result uint64) string {
	off, inData := uint16(result), result>>16&1 != 0
	type place struct {
		off    uint16
		inData bool
	}
	names := map[place]string{{0, true}: "HOSTID", {16, true}: "CNTLID", {256, true}: "SUBNQN", {512, true}: "HOSTNQN",
		{40, false}: "RECFMT", {42, false}: "QID", {44, false}: "SQSIZE", {46, false}: "CATTR", {48, false}: "KATO"}
	if s := names[place{off, inData}]; s != "" {
		return s
	}
	if inData {
		return fmt.Sprintf("byte %d of the data", off)
	}
	return fmt.Sprintf("byte %d of the command", off)
}
