package vhostuser

import "fmt"

// answer says how a request is answered.
type answer uint8

const (
	ack answer = iota // only by REPLY_ACK, if asked; else a failure is logged
	// as ack, but a failure that the frontend does not hear of ends the connection: the two would
	// disagree
	vital
	own // by a reply of its own, so never by REPLY_ACK's as well
)

// span is how many there may be.
type span struct{ min, max uint32 }

var (
	none      = span{0, 0}
	one       = span{1, 1}
	oneOrNone = span{0, 1}
)

func exactly(n uint32) span { return span{n, n} }

// rule says what a request looks like and how it is served.
type rule struct {
	body   span // bytes of payload
	fds    span // descriptors in the ancillary data
	answer answer
	needs  ProtocolFeatures // what the device must have offered. Not acked: GET_QUEUE_NUM, for one, may come before
	handle func(*session, *message) (reply []byte, err error)
}

// rules are those of the requests that a Backend serves.
var rules = [...]rule{
	GetFeatures: {none, none, own, 0, (*session).getFeatures},
	SetFeatures: {exactly(u64Len), none, vital, 0, (*session).setFeatures},
	SetOwner:    {none, none, ack, 0, (*session).setOwner},
	ResetOwner:  {none, none, ack, 0, (*session).resetOwner},
	SetMemTable: {span{memTableHeadLen, memTableHeadLen + MaxTableRegions*memRegionLen}, span{0, MaxTableRegions},
		vital, 0, (*session).setMemTable},
	SetVringNum:         {exactly(vringStateLen), none, ack, 0, (*session).setVringNum},
	SetVringAddr:        {exactly(vringAddrLen), none, ack, 0, (*session).setVringAddr},
	SetVringBase:        {exactly(vringStateLen), none, ack, 0, (*session).setVringBase},
	GetVringBase:        {exactly(vringStateLen), none, own, 0, (*session).getVringBase},
	SetVringKick:        {exactly(u64Len), oneOrNone, ack, 0, (*session).setVringKick},
	SetVringCall:        {exactly(u64Len), oneOrNone, ack, 0, (*session).setVringCall},
	SetVringErr:         {exactly(u64Len), oneOrNone, ack, 0, (*session).setVringErr},
	GetProtocolFeatures: {none, none, own, 0, (*session).getProtocolFeatures},
	SetProtocolFeatures: {exactly(u64Len), none, vital, 0, (*session).setProtocolFeatures},
	GetQueueNum:         {none, none, own, ProtocolMQ, (*session).getQueueNum},
	SetVringEnable:      {exactly(vringStateLen), none, ack, 0, (*session).setVringEnable},
	SendRARP:            {exactly(u64Len), none, ack, ProtocolRARP, (*session).sendRARP},
	NetSetMTU:           {exactly(u64Len), none, ack, ProtocolMTU, (*session).netSetMTU},
	SetBackendReqFD:     {none, one, ack, ProtocolBackendReq, (*session).setBackendReqFD},
	GetConfig:           {span{configHeadLen, configHeadLen + MaxConfig}, none, own, ProtocolConfig, (*session).getConfig},
	SetConfig:           {span{configHeadLen, configHeadLen + MaxConfig}, none, ack, ProtocolConfig, (*session).setConfig},
	ResetDevice:         {none, none, ack, ProtocolResetDevice, (*session).resetDevice},
	GetMaxMemSlots:      {none, none, own, ProtocolMemSlots, (*session).getMaxMemSlots},
	AddMemReg:           {exactly(singleRegionLen), one, vital, ProtocolMemSlots, (*session).addMemReg},
	// "For compatibility with existing incorrect implementations, the back-end MAY accept messages with one file
	// descriptor." It is closed, like each that no handler takes.
	RemMemReg: {exactly(singleRegionLen), oneOrNone, vital, ProtocolMemSlots, (*session).remMemReg},
	SetStatus: {exactly(u64Len), none, ack, ProtocolStatus, (*session).setStatus},
	GetStatus: {none, none, own, ProtocolStatus, (*session).getStatus},
}

// unserved says why the requests that are known and not in rules end the connection.
var unserved = map[Request]string{
	SetLogBase:          "live migration is not supported",
	SetLogFD:            "live migration is not supported",
	IOTLBMsg:            "a guest IOMMU is not supported: start the device without iommu_platform=on",
	SetVringEndian:      "cross-endian legacy devices are not supported",
	CreateCryptoSession: "not a crypto device",
	CloseCryptoSession:  "not a crypto device",
	PostcopyAdvise:      "postcopy migration is not supported",
	PostcopyListen:      "postcopy migration is not supported",
	PostcopyEnd:         "postcopy migration is not supported",
	GetInflightFD:       "inflight tracking is not supported",
	SetInflightFD:       "inflight tracking is not supported",
	GPUSetSocket:        "not a display device",
	VringKick:           "in-band notifications are not supported",
	GetSharedObject:     "shared objects are not supported",
	SetDeviceStateFD:    "device state transfer is not supported",
	CheckDeviceState:    "device state transfer is not supported",
	GetShmemConfig:      "shared memory regions are not supported",
}

// ruleFor checks a request's header, before its payload is read, against what a device that offers offered serves.
func ruleFor(h *Header, offered ProtocolFeatures) (*rule, error) {
	if v := h.Flags & FlagVersion; v != Version {
		return nil, fmt.Errorf("%v: protocol version %d, not %d: not a vhost-user frontend?: %w", h.Request, uint32(v),
			uint32(Version), ErrBadMessage)
	}
	if h.Flags&FlagReply != 0 {
		return nil, fmt.Errorf("%v: a reply where a request is due: %w", h.Request, ErrBadMessage)
	}
	if why, ok := unserved[h.Request]; ok {
		return nil, fmt.Errorf("%v: %s: %w", h.Request, why, ErrUnsupported)
	}
	if int64(h.Request) >= int64(len(rules)) || rules[h.Request].handle == nil {
		return nil, fmt.Errorf("%v: unknown: %w", h.Request, ErrUnsupported)
	}
	ru := &rules[h.Request]
	if missing := ru.needs &^ offered; missing != 0 {
		return nil, fmt.Errorf("%v: needs %v, which was not offered: %w", h.Request, missing, ErrUnsupported)
	}
	if h.Size < ru.body.min || h.Size > ru.body.max {
		return nil, fmt.Errorf("%v: payload of %d bytes, not %d to %d: %w", h.Request, h.Size, ru.body.min, ru.body.max,
			ErrBadMessage)
	}
	return ru, nil
}
