package control

import "syscall"

// EtherType of control frames: IEEE 802 local experimental 1.
const EtherType = 0x88B5

const (
	EthernetLen = 14
	HeaderLen   = 20
	MaxFrame    = 1500 // with the Ethernet header
	MaxData     = MaxFrame - EthernetLen - HeaderLen
)

// Version of the protocol. Requests with another version fail with EPROTONOSUPPORT.
const Version = 1

// MAC is the destination of requests and the source of replies and notifies.
var MAC = [6]byte{0x02, 0x76, 0x6e, 0x69, 0x63, 0x01}

// Kind is the direction and purpose of a frame.
type Kind uint8

// Kinds of frames.
const (
	KindRequest Kind = 1 // driver to NIC
	KindReply   Kind = 2 // NIC to driver, with the session and number of its request
	KindNotify  Kind = 3 // NIC to driver, session and number 0; may be lost
)

// Class groups commands.
type Class uint8

const (
	ClassInfo        Class = 1
	ClassSplit       Class = 2
	ClassFlow        Class = 3
	ClassRSS         Class = 4
	ClassGPU         Class = 5
	ClassBuffer      Class = 6
	ClassBinding     Class = 7
	ClassFlowCounter Class = 8
	ClassJob         Class = 9
	ClassRDMA        Class = 10
)

// Command is the number of a command in its class.
type Command uint8

// Commands, by class.
const (
	InfoHello Command = 1

	SplitSet Command = 1
	SplitGet Command = 2

	FlowAdd  Command = 1
	FlowDel  Command = 2
	FlowList Command = 3

	RSSSet Command = 1
	RSSGet Command = 2

	GPUList    Command = 1
	GPUMapList Command = 2

	BufferRegister   Command = 1
	BufferUnregister Command = 2
	BufferList       Command = 3

	BindingRx       Command = 1
	BindingTx       Command = 2
	BindingUndo     Command = 3
	BindingList     Command = 4
	FlowCounterAdd  Command = 1
	FlowCounterRead Command = 2
	FlowCounterDel  Command = 3
	FlowCounterPort Command = 4
	JobSubmit       Command = 1
	JobPoll         Command = 2
	JobCancel       Command = 3
	JobCompleted    Command = 4 // notify

	RDMAInfo        Command = 1
	RDMAPDAdd       Command = 2
	RDMAPDDel       Command = 3
	RDMAMRAdd       Command = 4
	RDMAMRMore      Command = 5
	RDMAMRDel       Command = 6
	RDMACQAdd       Command = 7
	RDMACQDel       Command = 8
	RDMACQPoll      Command = 9
	RDMAQPAdd       Command = 10
	RDMAQPConnect   Command = 11
	RDMAQPDel       Command = 12
	RDMAQPStatus    Command = 13
	RDMAPostSend    Command = 14
	RDMAPostRecv    Command = 15
	RDMACountsRead  Command = 16
	RDMAMailboxSet  Command = 17
	RDMAPageList    Command = 18
	RDMAPageAnswer  Command = 19
	RDMAPageCounts  Command = 20
	RDMACompletions Command = 21 // notify: a CQ's number
	RDMAPages       Command = 22 // notify
)

// Header precedes the data of a control frame, after the Ethernet header, little endian.
type Header struct {
	Version    uint8         // offset 0
	Kind       Kind          // 1
	Class      Class         // 2
	Command    Command       // 3
	Session    uint32        // 4: random, chosen by the client, not 0; 0 in a notify
	Seq        uint32        // 8: each new request of a session adds one; 0 in a notify
	Generation uint32        // 12: of the port's state; 0 in a request
	Errno      syscall.Errno // 16: Linux's number as u16; 0 in a request, in a notify and in success
	Len        uint16        // 18: bytes of data that follow
}
