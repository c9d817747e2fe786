package vhostuser

import "fmt"

// answer is how the Backend answers a request. With the zero value it only sends an acknowledgement, if one is due
// (REPLY_ACK).
type answer uint8

const (
	// as with the zero value, but any failure ends the connection if no acknowledgement is due: both ends would disagree
	mustSucceed answer = iota + 1
	ownReply           // by a reply of the request's own, and no acknowledgement, if the request is served
)

// span is a range of allowed numbers.
type span struct{ min, max uint32 }

var (
	one      = span{1, 1}
	optional = span{0, 1}
)

func exactly(n uint32) span { return span{n, n} }

type handler func(*session, *message) (reply []byte, err error)

// rule describes the form of a request, and its handler.
type rule struct {
	name     string // without VHOST_USER_
	body     span   // bytes of payload
	fds      span   // descriptors in the ancillary data
	answer   answer
	needs    ProtocolFeatures // features that must be offered, but need not be acked: GET_QUEUE_NUM may come earlier
	handle   handler
	unserved string // why the Backend refuses the request; empty: it serves it
}

// rules are indexed by request.
var rules = [...]rule{
	GetFeatures: {name: "GET_FEATURES", answer: ownReply, handle: (*session).getFeatures},
	SetFeatures: {name: "SET_FEATURES", body: exactly(u64Len), answer: mustSucceed, handle: (*session).setFeatures},
	SetOwner:    {name: "SET_OWNER", handle: (*session).setOwner},
	ResetOwner:  {name: "RESET_OWNER", handle: (*session).resetOwner},
	SetMemTable: {name: "SET_MEM_TABLE", body: span{memTableHeadLen, memTableHeadLen + MaxTableRegions*memRegionLen},
		fds: span{0, MaxTableRegions}, answer: mustSucceed, handle: (*session).setMemTable},
	SetLogBase:   {name: "SET_LOG_BASE", unserved: "live migration is not supported"},
	SetLogFD:     {name: "SET_LOG_FD", unserved: "live migration is not supported"},
	SetVringNum:  {name: "SET_VRING_NUM", body: exactly(vringStateLen), handle: withState((*session).setVringNum)},
	SetVringAddr: {name: "SET_VRING_ADDR", body: exactly(vringAddrLen), handle: (*session).setVringAddr},
	SetVringBase: {name: "SET_VRING_BASE", body: exactly(vringStateLen), handle: withState((*session).setVringBase)},
	GetVringBase: {name: "GET_VRING_BASE", body: exactly(vringStateLen), answer: ownReply,
		handle: withState((*session).getVringBase)},
	SetVringKick: {name: "SET_VRING_KICK", body: exactly(u64Len), fds: optional,
		handle: withFD((*session).setVringKick)},
	SetVringCall: {name: "SET_VRING_CALL", body: exactly(u64Len), fds: optional,
		handle: withFD((*session).setVringCall)},
	SetVringErr: {name: "SET_VRING_ERR", body: exactly(u64Len), fds: optional,
		handle: withFD((*session).setVringErr)},
	GetProtocolFeatures: {name: "GET_PROTOCOL_FEATURES", answer: ownReply, handle: (*session).getProtocolFeatures},
	SetProtocolFeatures: {name: "SET_PROTOCOL_FEATURES", body: exactly(u64Len), answer: mustSucceed,
		handle: (*session).setProtocolFeatures},
	GetQueueNum: {name: "GET_QUEUE_NUM", answer: ownReply, needs: ProtocolMQ, handle: (*session).getQueueNum},
	SetVringEnable: {name: "SET_VRING_ENABLE", body: exactly(vringStateLen),
		handle: withState((*session).setVringEnable)},
	SendRARP:  {name: "SEND_RARP", body: exactly(u64Len), needs: ProtocolRARP, handle: (*session).sendRARP},
	NetSetMTU: {name: "NET_SET_MTU", body: exactly(u64Len), needs: ProtocolMTU, handle: (*session).netSetMTU},
	SetBackendReqFD: {name: "SET_BACKEND_REQ_FD", fds: one, needs: ProtocolBackendReq,
		handle: (*session).setBackendReqFD},
	IOTLBMsg: {name: "IOTLB_MSG",
		unserved: "a guest IOMMU is not supported: start the device without iommu_platform=on"},
	SetVringEndian: {name: "SET_VRING_ENDIAN", unserved: "cross-endian legacy devices are not supported"},
	GetConfig: {name: "GET_CONFIG", body: span{configHeadLen, configHeadLen + MaxConfig}, answer: ownReply,
		needs: ProtocolConfig, handle: (*session).getConfig},
	SetConfig: {name: "SET_CONFIG", body: span{configHeadLen, configHeadLen + MaxConfig}, needs: ProtocolConfig,
		handle: (*session).setConfig},
	CreateCryptoSession: {name: "CREATE_CRYPTO_SESSION", unserved: "not a crypto device"},
	CloseCryptoSession:  {name: "CLOSE_CRYPTO_SESSION", unserved: "not a crypto device"},
	PostcopyAdvise:      {name: "POSTCOPY_ADVISE", unserved: "postcopy migration is not supported"},
	PostcopyListen:      {name: "POSTCOPY_LISTEN", unserved: "postcopy migration is not supported"},
	PostcopyEnd:         {name: "POSTCOPY_END", unserved: "postcopy migration is not supported"},
	GetInflightFD:       {name: "GET_INFLIGHT_FD", unserved: "inflight tracking is not supported"},
	SetInflightFD:       {name: "SET_INFLIGHT_FD", unserved: "inflight tracking is not supported"},
	GPUSetSocket:        {name: "GPU_SET_SOCKET", unserved: "not a display device"},
	ResetDevice:         {name: "RESET_DEVICE", needs: ProtocolResetDevice, handle: (*session).resetDevice},
	VringKick:           {name: "VRING_KICK", unserved: "in-band notifications are not supported"},
	GetMaxMemSlots: {name: "GET_MAX_MEM_SLOTS", answer: ownReply, needs: ProtocolMemSlots,
		handle: (*session).getMaxMemSlots},
	AddMemReg: {name: "ADD_MEM_REG", body: exactly(singleRegionLen), fds: one, answer: mustSucceed,
		needs: ProtocolMemSlots, handle: (*session).addMemReg},
	// "For compatibility with existing incorrect implementations, the back-end MAY accept messages with one file
	// descriptor."
	RemMemReg: {name: "REM_MEM_REG", body: exactly(singleRegionLen), fds: optional, answer: mustSucceed,
		needs: ProtocolMemSlots, handle: (*session).remMemReg},
	SetStatus:        {name: "SET_STATUS", body: exactly(u64Len), needs: ProtocolStatus, handle: (*session).setStatus},
	GetStatus:        {name: "GET_STATUS", answer: ownReply, needs: ProtocolStatus, handle: (*session).getStatus},
	GetSharedObject:  {name: "GET_SHARED_OBJECT", unserved: "shared objects are not supported"},
	SetDeviceStateFD: {name: "SET_DEVICE_STATE_FD", unserved: "device state transfer is not supported"},
	CheckDeviceState: {name: "CHECK_DEVICE_STATE", unserved: "device state transfer is not supported"},
	GetShmemConfig:   {name: "GET_SHMEM_CONFIG", unserved: "shared memory regions are not supported"},
}

// ruleFor checks a header and returns the rule for its request.
func ruleFor(h *Header, offered ProtocolFeatures) (*rule, error) {
	if v := h.Flags & FlagVersion; v != Version {
		return nil, fmt.Errorf("%v: protocol version %d, not %d: not a vhost-user frontend?: %w", h.Request, uint32(v),
			uint32(Version), ErrBadMessage)
	}
	if h.Flags&FlagReply != 0 {
		return nil, fmt.Errorf("%v: a reply where a request is due: %w", h.Request, ErrBadMessage)
	}
	if int64(h.Request) >= int64(len(rules)) || rules[h.Request].name == "" {
		return nil, fmt.Errorf("%v: unknown: %w", h.Request, ErrUnsupported)
	}
	ru := &rules[h.Request]
	if ru.unserved != "" {
		return nil, fmt.Errorf("%v: %s: %w", h.Request, ru.unserved, ErrUnsupported)
	}
	if missing := ru.needs &^ offered; missing != 0 {
		return nil, fmt.Errorf("%v: needs %v, which was not offered: %w", h.Request, missing, ErrUnsupported)
	}
	if h.Size < ru.body.min || h.Size > ru.body.max {
		return nil, fmt.Errorf("%v: payload of %d bytes, not %d to %d: %w", h.Request, h.Size, ru.body.min, ru.body.max,
			ErrBadMessage)
	}
	return ru, nil
}
