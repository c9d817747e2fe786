package badinput

const (
	noDescriptors = "rings and frames carry no descriptors"
	ownRing       = "a ring is its port's: what two do they do apart"
	onePort       = "a connection, and what it sets up, is its port's"
	oneCode       = "frames are the same code's on either device model: its rows are virtio's"
)

// noRow has reasons why a class has no row at a layer.
var noRow = map[class]map[layer]string{
	costly: {
		frames: "a frame is at most 64 KiB and 64 pieces: what it costs more is the ring's",
	},
	changed: {
		messages: "a message is copied before it is looked at: vhostuser FuzzSession",
		txRing:   "a chain is read once: virtq TestChainIsReadOnce",
		rxRing:   "the same",
		commands: "a request is copied before it is looked at: internal/nic/virtio TestGuestCannotForgeControlFrames",
		gateway: "it judges what the wire has judged, in memory of its own: internal/wire/gateway " +
			"TestNetstackGetsWhatWasJudged",
		vfio:      "a message is copied before it is looked at: vfiouser FuzzSession",
		registers: "a command is copied before it is looked at: internal/nic/gve FuzzDevice",
		gveTx:     "a descriptor is copied before it is looked at: internal/nic/gve FuzzTransmitRing",
		gveRx:     "the same: internal/nic/gve FuzzReceiveRing",
	},
	slow: {
		txRing:    "a sender that sends little harms nobody",
		frames:    "a frame is there or not",
		gateway:   "internal/wire/gateway TestSlowGuestsStarveNobody, and the row of one that takes nothing",
		registers: "a register write is whole or is not there: what takes little is vfio-user's",
		gveTx:     "a sender that sends little harms nobody",
	},
	disguised: {
		messages:  "a socket is its port: who connects has it",
		txRing:    ownRing,
		rxRing:    ownRing,
		commands:  "the row of a control frame among frames: only a NIC's own driver reaches its control channel",
		vfio:      "a socket is its port: who connects has it",
		registers: onePort,
		gveTx:     oneCode,
		gveRx:     ownRing,
	},
	descriptor: {
		txRing:    noDescriptors,
		rxRing:    noDescriptors,
		frames:    noDescriptors,
		commands:  noDescriptors,
		gateway:   noDescriptors,
		registers: noDescriptors,
		gveTx:     noDescriptors,
		gveRx:     noDescriptors,
	},
	repeated: {
		rxRing: "its rows are of costs, each with a thousand frames",
		frames: "each row of frames has a thousand",
	},
	together: {
		messages:  "connections share nothing but the registry of files: the row of two vfio-user clients is the same code",
		txRing:    ownRing,
		rxRing:    ownRing,
		commands:  onePort,
		registers: onePort,
		gveTx:     ownRing,
		gveRx:     ownRing,
	},
}
