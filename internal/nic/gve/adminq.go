package gve

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
)

// Commands of the admin queue (gve_adminq.h, enum gve_adminq_opcodes), and the layout of its slots.
const (
	opDescribeDevice     = 0x1
	opConfigureResources = 0x2
	opCreateTx           = 0x5
	opCreateRx           = 0x6
	opDestroyTx          = 0x7
	opDestroyRx          = 0x8
	opDeconfigure        = 0x9
	opConfigureRSS       = 0xa
	opReportStats        = 0xc
	opReportLinkSpeed    = 0xd
	opGetPtypeMap        = 0xe
	opVerifyDriver       = 0xf
	opQueryFlowRules     = 0x10
	opReportTime         = 0x11
	opQueryRSS           = 0x12
	opExtended           = 0xff
	opConfigureFlowRule  = 0x101 // inside opExtended
	slotLen              = 64
	adminPage            = 4096 // unit of regPFN
	slotStatus           = 4    // offset of the status in a slot
	bodyLen              = 56
)

// body is the part of a slot behind opcode and status.
type body [bodyLen]byte

// decode reads a big-endian struct from the beginning of b, which must be long enough.
func decode[T any](b []byte) (v T) {
	_, _ = binary.Decode(b, be, &v)
	return v
}

// adminQueue is the ring of commands. The control goroutine owns it.
//
// Commands are carried out inside the register write that rings the doorbell (gve_adminq_kick_and_wait).
type adminQueue struct {
	running bool
	base    uint64
	slots   uint32 // a power of two
	done    uint32 // commands carried out since the queue started, modulo 2^32
}

// run starts the admin queue with the address and the length in the registers, after a reset of the device if an
// earlier driver has not reset it. If the length is invalid, run stops the admin queue.
func (d *Device) run() {
	if d.used { // an earlier driver has not reset the device
		regs := d.regs
		d.reset()
		d.regs = regs
	}
	slots := uint32(d.regs.length) / slotLen
	if slots == 0 || bits.OnesCount32(slots) != 1 || d.regs.length%slotLen != 0 {
		d.stopAdminQueue(fmt.Errorf("length %d: not a power of two of %d byte slots", d.regs.length, slotLen))
		return
	}
	d.used = true
	d.status.And(^uint32(statusResetDone))
	d.aq = adminQueue{running: true, base: uint64(d.regs.baseHi)<<32 | uint64(d.regs.baseLo), slots: slots}
	d.regs.pfn = uint32(d.aq.base / adminPage)
}

// writeDoorbell carries out the commands that the driver has posted since the last write, if the admin queue runs.
// count is the number of commands posted since the queue started, modulo 2^32.
func (d *Device) writeDoorbell(count uint32) {
	d.regs.doorbell = count
	q := &d.aq
	if !q.running {
		return
	}
	if n := count - q.done; n > q.slots {
		d.stopAdminQueue(fmt.Errorf("doorbell %d: %d commands in %d slots", count, n, q.slots))
		return
	}
	for q.done != count {
		if err := d.command(q.base + uint64(q.done&(q.slots-1))*slotLen); err != nil {
			d.stopAdminQueue(err)
			return
		}
		q.done++
	}
}

// stopAdminQueue stops the admin queue until the driver starts it again (run), and logs err.
func (d *Device) stopAdminQueue(err error) {
	d.aq.running = false
	d.limited.stop.Log(d.log, slog.LevelError, "admin queue stopped until the driver resets the NIC", "err", err)
}

// command carries out the command in a slot. It returns an error only if it cannot read or write the
// slot; the driver gets the command's result as the slot's status.
func (d *Device) command(slot uint64) error {
	var b [slotLen]byte
	if err := d.mem.read(slot, b[:]); err != nil {
		return err
	}
	op := be.Uint32(b[:])
	err := d.execute(op, (*body)(b[slotLen-bodyLen:]))
	st := statusOf(err)
	if st != statusPassed {
		d.limited.refusal.Log(d.log, slog.LevelWarn, "command refused", "command", commandName(op), "status", st, "err", err)
	}
	var out [4]byte
	be.PutUint32(out[:], uint32(st))
	return d.mem.write(slot+slotStatus, out[:])
}

var commands = map[uint32]struct {
	name string
	run  func(*Device, *body) error
}{
	opDescribeDevice:     {"DESCRIBE_DEVICE", (*Device).describe},
	opVerifyDriver:       {"VERIFY_DRIVER_COMPATIBILITY", (*Device).verifyDriver},
	opConfigureResources: {"CONFIGURE_DEVICE_RESOURCES", (*Device).configure},
	opDeconfigure:        {"DECONFIGURE_DEVICE_RESOURCES", func(d *Device, _ *body) error { return d.deconfigure() }},
	opCreateTx:           {"CREATE_TX_QUEUE", (*Device).createTx},
	opCreateRx:           {"CREATE_RX_QUEUE", (*Device).createRx},
	opDestroyTx:          {"DESTROY_TX_QUEUE", (*Device).destroyTx},
	opDestroyRx:          {"DESTROY_RX_QUEUE", (*Device).destroyRx},
	opConfigureRSS:       {"CONFIGURE_RSS", (*Device).configureRSS},
	opQueryRSS:           {"QUERY_RSS", (*Device).queryRSS},
	opReportStats:        {"REPORT_STATS", (*Device).reportStats},
	opReportLinkSpeed:    {"REPORT_LINK_SPEED", (*Device).reportLinkSpeed},
	opGetPtypeMap:        {"GET_PTYPE_MAP", (*Device).getPtypeMap},
	opQueryFlowRules:     {"QUERY_FLOW_RULES", (*Device).queryFlowRules},
	opReportTime:         {"REPORT_NIC_TIMESTAMP", (*Device).reportTime},
	opExtended:           {"EXTENDED", (*Device).extended},
}

func (d *Device) execute(op uint32, b *body) error {
	if c, ok := commands[op]; ok {
		return c.run(d, b)
	}
	return statusUnimplemented
}

func commandName(op uint32) string {
	if c, ok := commands[op]; ok {
		return c.name
	}
	return fmt.Sprintf("%#x", op)
}

// extended carries out an inner command, one that is too long for a slot. The body has the inner command's opcode
// (u32), length (u32) and address (u64).
func (d *Device) extended(b *body) error {
	op, n, addr := be.Uint32(b[0:]), be.Uint32(b[4:]), be.Uint64(b[8:])
	if op != opConfigureFlowRule {
		return fmt.Errorf("inner command %#x: %w", op, statusUnimplemented)
	}
	var inner [flowCommandLen]byte
	if n != uint32(len(inner)) {
		return fmt.Errorf("inner command of %d bytes, not %d: %w", n, len(inner), statusInvalidArgument)
	}
	if err := d.mem.read(addr, inner[:]); err != nil {
		return err
	}
	return d.configureFlowRule(&inner)
}

func invalid(format string, args ...any) error {
	return errors.Join(fmt.Errorf(format, args...), statusInvalidArgument)
}
