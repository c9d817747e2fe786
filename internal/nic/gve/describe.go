package gve

import (
	"bytes"
	"fmt"
	"log/slog"
)

const (
	descriptorLen     = 40 // struct gve_device_descriptor
	descriptorVersion = 1  // GVE_ADMINQ_DEVICE_DESCRIPTOR_VERSION
)

// describe carries out DESCRIBE_DEVICE. The body has address (u64), version (u32) and room (u32).
func (d *Device) describe(b *body) error {
	addr, version, room := be.Uint64(b[0:]), be.Uint32(b[8:]), be.Uint32(b[12:])
	if version != descriptorVersion {
		return fmt.Errorf("descriptor version %d, not %d: %w", version, descriptorVersion, statusUnimplemented)
	}
	out := d.descriptor()
	if room < uint32(len(out)) {
		return fmt.Errorf("%d bytes for a descriptor of %d: %w", room, len(out), statusResourceExhausted)
	}
	return d.mem.write(addr, out)
}

func (d *Device) descriptor() []byte {
	options, n := d.options()
	var b [descriptorLen]byte
	// The fields at 0 (max_registered_pages), 20 and 22 (pages of a queue page list) stay 0.
	be.PutUint16(b[10:], uint16(d.conf.TxRing))
	be.PutUint16(b[12:], uint16(d.conf.RxRing))
	be.PutUint16(b[14:], uint16(d.conf.Queues)) // default_num_queues
	be.PutUint16(b[16:], d.conf.Port.MTU)
	be.PutUint16(b[18:], counters)
	copy(b[24:30], d.conf.Port.MAC[:])
	be.PutUint16(b[30:], n)
	be.PutUint16(b[32:], uint16(descriptorLen+len(options))) // total_length
	return append(b[:], options...)
}

// counters is the number of event counters for which the driver makes room. DQO uses none, but the driver
// cannot allocate memory of 0 bytes.
const counters = 1

// struct gve_driver_info
const (
	driverInfoLen = 304
	capDQORDA     = 1 << 3 // gve_driver_capability_dqo_rda
)

// verifyDriver carries out VERIFY_DRIVER_COMPATIBILITY. The body has length (u64) and address (u64).
func (d *Device) verifyDriver(b *body) error {
	n, addr := be.Uint64(b[0:]), be.Uint64(b[8:])
	if n != driverInfoLen {
		return invalid("%d bytes about the driver, not %d", n, driverInfoLen)
	}
	var info [driverInfoLen]byte
	if err := d.mem.read(addr, info[:]); err != nil {
		return err
	}
	caps := be.Uint64(info[16:])
	d.limited.driver.Log(d.log, slog.LevelInfo, "driver", "os", info[0], "release", text(info[48:176]), "version",
		text(info[176:304]),
		"capabilities", fmt.Sprintf("%#x", caps))
	if caps&capDQORDA == 0 {
		return fmt.Errorf("the driver cannot do DQO-RDA, and this NIC nothing else: %w", statusFailedPrecondition)
	}
	return nil
}

func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(bytes.ToValidUTF8(b, []byte("?")))
}

// getPtypeMap carries out GET_PTYPE_MAP. The body has length (u64) and address (u64).
func (d *Device) getPtypeMap(b *body) error {
	m := ptypeMap()
	if n := be.Uint64(b[0:]); n != uint64(len(m)) {
		return invalid("room of %d bytes for a map of %d", n, len(m))
	}
	return d.mem.write(be.Uint64(b[8:]), m)
}
