package gve

import "log/slog"

// Offsets of the registers of BAR0, which are big endian (gve_register.h, struct gve_registers).
const (
	regDeviceStatus  = 0x00
	regDriverStatus  = 0x04
	regMaxTx         = 0x08
	regMaxRx         = 0x0c
	regPFN           = 0x10 // address of the admin queue, in pages of 4 KiB
	regDoorbell      = 0x14 // doorbell of the admin queue
	regEvents        = 0x18
	regDriverVersion = 0x1f // one byte; the driver writes its version byte by byte
	regBaseHi        = 0x20
	regBaseLo        = 0x24
	regLength        = 0x28 // length of the admin queue, in bytes
	regsLen          = 0x2a
)

// Bits of the device status (enum gve_device_status_flags).
const (
	statusReset     = 1 << 1 // GVE_DEVICE_STATUS_RESET_MASK: the device asks for a reset
	statusLink      = 1 << 2 // GVE_DEVICE_STATUS_LINK_STATUS_MASK
	statusResetDone = 1 << 4 // GVE_DEVICE_STATUS_DEVICE_IS_RESET
)

// Bits of the driver status (enum gve_driver_status_flags).
const (
	driverRun   = 1 << 0 // GVE_DRIVER_STATUS_RUN_MASK
	driverReset = 1 << 1 // GVE_DRIVER_STATUS_RESET_MASK
)

const maxVersion = 64

// registers keep what the driver has written since the last reset; run also sets pfn.
type registers struct {
	driverStatus   uint32
	pfn            uint32
	doorbell       uint32
	baseHi, baseLo uint32
	length         uint16
	version        []byte // first maxVersion bytes of the driver's version, until its newline comes
}

func (d *Device) readRegs(off uint64, b []byte) {
	var r [regsLen]byte
	be.PutUint32(r[regDeviceStatus:], d.status.Load())
	be.PutUint32(r[regDriverStatus:], d.regs.driverStatus)
	be.PutUint32(r[regMaxTx:], uint32(len(d.tx)))
	be.PutUint32(r[regMaxRx:], uint32(len(d.rx)))
	if d.status.Load()&statusReset == 0 { // else it reads 0: so iPXE notices that it has to restart the NIC
		be.PutUint32(r[regPFN:], d.regs.pfn)
	}
	be.PutUint32(r[regDoorbell:], d.regs.doorbell)
	be.PutUint32(r[regEvents:], d.aq.done)
	be.PutUint32(r[regBaseHi:], d.regs.baseHi)
	be.PutUint32(r[regBaseLo:], d.regs.baseLo)
	be.PutUint16(r[regLength:], d.regs.length)
	clear(b)
	if off < regsLen {
		copy(b, r[off:])
	}
}

var writable = [...]struct {
	off, size uint64
	write     func(d *Device, v uint32)
}{
	{regDriverStatus, 4, (*Device).writeDriverStatus},
	{regPFN, 4, (*Device).writePFN},
	{regDoorbell, 4, (*Device).writeDoorbell},
	{regDriverVersion, 1, (*Device).writeVersion},
	{regBaseHi, 4, func(d *Device, v uint32) { d.regs.baseHi = v }},
	{regBaseLo, 4, func(d *Device, v uint32) { d.regs.baseLo = v }},
	{regLength, 2, func(d *Device, v uint32) { d.regs.length = uint16(v) }},
}

// writeRegs handles a write to BAR0. A register that the write covers only in part does not change.
func (d *Device) writeRegs(off uint64, b []byte) {
	for i := range writable {
		r := &writable[i]
		if r.off < off || r.off-off > uint64(len(b)) || r.size > uint64(len(b))-(r.off-off) {
			continue
		}
		var v uint32
		for _, c := range b[r.off-off:][:r.size] {
			v = v<<8 | uint32(c)
		}
		r.write(d, v)
	}
}

func (d *Device) writeDriverStatus(v uint32) {
	switch {
	case v&driverReset != 0:
		d.driverResets()
	case v&driverRun != 0:
		d.run()
	}
	d.regs.driverStatus = v
}

func (d *Device) driverResets() {
	d.limited.reset.Log(d.log, slog.LevelInfo, "the driver resets the NIC")
	d.reset()
}

// writePFN keeps the value; 0 resets the device. Linux 7.2 uses the register only of a device with
// revision 0 (gve_adminq.c, gve_adminq_release), which this one does not have. iPXE (drivers/net/gve.c) writes 0 to
// reset the device (gve_reset), and takes a register that reads 0 as a reset by the host (gve_admin_wait,
// gve_watchdog).
func (d *Device) writePFN(v uint32) {
	if v == 0 {
		d.driverResets()
	}
	d.regs.pfn = v
}

// writeVersion receives one byte of the driver version, and keeps at most maxVersion; at a newline it logs them.
func (d *Device) writeVersion(v uint32) {
	if c := byte(v); c != '\n' {
		if len(d.regs.version) < maxVersion {
			d.regs.version = append(d.regs.version, c)
		}
		return
	}
	d.limited.version.Log(d.log, slog.LevelInfo, "driver", "version", text(d.regs.version))
	d.regs.version = d.regs.version[:0]
}
