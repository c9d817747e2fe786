package gve

import (
	"encoding/binary"

	"vnic.dev/vnic/internal/nic"
)

// Options of DESCRIBE_DEVICE (gve_adminq.h, enum gve_dev_opt_id), and their bits in DQO_RDA's mask (enum
// gve_sup_feature_mask). Linux's driver uses an option other than DQO_RDA only if the option is listed and its
// bit is set.
const (
	optDQORDA       = 0x4
	optModifyRing   = 0x6
	optJumbo        = 0x8
	optBufferSizes  = 0xa
	optFlowSteering = 0xb
	optNICTimestamp = 0xd
	optRSSConfig    = 0xe

	supModifyRing   = 1 << 0
	supJumbo        = 1 << 2
	supBufferSizes  = 1 << 4
	supFlowSteering = 1 << 5
	supRSSConfig    = 1 << 7
	supNICTimestamp = 1 << 8
	supported       = supModifyRing | supJumbo | supBufferSizes | supFlowSteering | supRSSConfig
)

const (
	optionHeadLen = 8 // length of struct gve_device_option

	// packetBuffer is the size of packet buffers that the device offers: one page.
	packetBuffer    = 4096
	minPacketBuffer = 1024
	// headerLimit is the most bytes that the device writes to a header buffer. A completion could report 1023 bytes
	// (gve_desc_dqo.h).
	headerLimit = 256

	minRing = 64 // descriptors, or receive buffers
	// minTxRing is the least length of transmit rings that the device reports (Linux: GVE_DEFAULT_MIN_TX_RING_SIZE),
	// unless Options.TxRing is less. The device accepts minRing.
	minTxRing = 256
	maxRing   = 4096 // entries: fewer than there are buffer ids of 16 bits
)

func (d *Device) options() (b []byte, n uint16) {
	add := func(id uint16, body ...any) {
		start := len(b)
		b = append(b, make([]byte, optionHeadLen)...) // the last four bytes: required_features_mask, none
		for _, v := range body {
			b, _ = binary.Append(b, be, v)
		}
		be.PutUint16(b[start:], id)
		be.PutUint16(b[start+2:], uint16(len(b)-start-optionHeadLen))
		n++
	}
	mask := uint32(supported)
	if d.conf.Timestamps {
		mask |= supNICTimestamp
	}
	add(optDQORDA, mask, uint32(0))
	add(optModifyRing, uint32(supModifyRing), uint16(d.conf.MaxRxRing), uint16(d.conf.MaxTxRing),
		uint16(min(minRing, d.conf.RxRing)), uint16(min(minTxRing, d.conf.TxRing)))
	add(optJumbo, uint32(supJumbo), d.conf.Port.MTU, uint16(0))
	add(optBufferSizes, uint32(supBufferSizes), uint16(packetBuffer), uint16(headerLimit))
	add(optFlowSteering, uint32(supFlowSteering), uint32(0), uint32(nic.MaxRules))
	if d.conf.Timestamps {
		add(optNICTimestamp, uint32(supNICTimestamp))
	}
	add(optRSSConfig, uint32(supRSSConfig), uint16(rssKeyLen), uint16(rssTableLen))
	return b, n
}
