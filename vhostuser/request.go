package vhostuser

import "fmt"

// Request is the type of a message from the frontend (vhost-user.rst, "Front-end message types").
type Request uint32

// The requests.
const (
	GetFeatures         Request = 1  // VHOST_USER_GET_FEATURES
	SetFeatures         Request = 2  // VHOST_USER_SET_FEATURES
	SetOwner            Request = 3  // VHOST_USER_SET_OWNER
	ResetOwner          Request = 4  // VHOST_USER_RESET_OWNER
	SetMemTable         Request = 5  // VHOST_USER_SET_MEM_TABLE
	SetLogBase          Request = 6  // VHOST_USER_SET_LOG_BASE
	SetLogFD            Request = 7  // VHOST_USER_SET_LOG_FD
	SetVringNum         Request = 8  // VHOST_USER_SET_VRING_NUM
	SetVringAddr        Request = 9  // VHOST_USER_SET_VRING_ADDR
	SetVringBase        Request = 10 // VHOST_USER_SET_VRING_BASE
	GetVringBase        Request = 11 // VHOST_USER_GET_VRING_BASE
	SetVringKick        Request = 12 // VHOST_USER_SET_VRING_KICK
	SetVringCall        Request = 13 // VHOST_USER_SET_VRING_CALL
	SetVringErr         Request = 14 // VHOST_USER_SET_VRING_ERR
	GetProtocolFeatures Request = 15 // VHOST_USER_GET_PROTOCOL_FEATURES
	SetProtocolFeatures Request = 16 // VHOST_USER_SET_PROTOCOL_FEATURES
	GetQueueNum         Request = 17 // VHOST_USER_GET_QUEUE_NUM
	SetVringEnable      Request = 18 // VHOST_USER_SET_VRING_ENABLE
	SendRARP            Request = 19 // VHOST_USER_SEND_RARP
	NetSetMTU           Request = 20 // VHOST_USER_NET_SET_MTU
	SetBackendReqFD     Request = 21 // VHOST_USER_SET_BACKEND_REQ_FD
	IOTLBMsg            Request = 22 // VHOST_USER_IOTLB_MSG
	SetVringEndian      Request = 23 // VHOST_USER_SET_VRING_ENDIAN
	GetConfig           Request = 24 // VHOST_USER_GET_CONFIG
	SetConfig           Request = 25 // VHOST_USER_SET_CONFIG
	CreateCryptoSession Request = 26 // VHOST_USER_CREATE_CRYPTO_SESSION
	CloseCryptoSession  Request = 27 // VHOST_USER_CLOSE_CRYPTO_SESSION
	PostcopyAdvise      Request = 28 // VHOST_USER_POSTCOPY_ADVISE
	PostcopyListen      Request = 29 // VHOST_USER_POSTCOPY_LISTEN
	PostcopyEnd         Request = 30 // VHOST_USER_POSTCOPY_END
	GetInflightFD       Request = 31 // VHOST_USER_GET_INFLIGHT_FD
	SetInflightFD       Request = 32 // VHOST_USER_SET_INFLIGHT_FD
	GPUSetSocket        Request = 33 // VHOST_USER_GPU_SET_SOCKET
	ResetDevice         Request = 34 // VHOST_USER_RESET_DEVICE
	VringKick           Request = 35 // VHOST_USER_VRING_KICK
	GetMaxMemSlots      Request = 36 // VHOST_USER_GET_MAX_MEM_SLOTS
	AddMemReg           Request = 37 // VHOST_USER_ADD_MEM_REG
	RemMemReg           Request = 38 // VHOST_USER_REM_MEM_REG
	SetStatus           Request = 39 // VHOST_USER_SET_STATUS
	GetStatus           Request = 40 // VHOST_USER_GET_STATUS
	GetSharedObject     Request = 41 // VHOST_USER_GET_SHARED_OBJECT
	SetDeviceStateFD    Request = 42 // VHOST_USER_SET_DEVICE_STATE_FD
	CheckDeviceState    Request = 43 // VHOST_USER_CHECK_DEVICE_STATE
	GetShmemConfig      Request = 44 // VHOST_USER_GET_SHMEM_CONFIG
)

// String returns the request's name without VHOST_USER_, or its number.
func (r Request) String() string {
	if int64(r) < int64(len(rules)) && rules[r].name != "" {
		return rules[r].name
	}
	return fmt.Sprintf("request %d", uint32(r))
}
