package gve

import (
	"time"

	"vnic.dev/vnic/internal/lab/shape"
)

// Timestamps of received frames: option NIC_TIMESTAMP, REPORT_NIC_TIMESTAMP, and the low half of a
// time in each completion. They are off by default: if the device offers them, the driver asks for
// the time every 250 ms even if nobody uses timestamps (gve_ptp_do_aux_work). And the driver does
// not tell the device when somebody uses them (gve_set_ts_config), so the device would read the
// clock for each batch of frames.

const nicTimeLen = 40 // struct gve_nic_ts_report: the time, and 32 bytes of zeros

// started is the difference between the clock of this process's NICs and shape.Now.
var started = time.Now().UnixNano() - shape.Now()

// nicTime is the clock of all NICs of this process, in nanoseconds: the host's time of day when the
// process started, plus monotonic time since. It never jumps.
func nicTime() int64 { return started + shape.Now() }

// reportTime carries out REPORT_NIC_TIMESTAMP: length u64, address u64. It writes the time to that
// address. From this time the driver completes the low halves of times in completions, if they are
// less than 2 s away.
func (d *Device) reportTime(b *body) error {
	if d.common.clock == nil {
		return statusUnimplemented // the device has not offered the option NIC_TIMESTAMP
	}
	if n := be.Uint64(b[0:]); n != nicTimeLen {
		return invalid("room of %d bytes for a time of %d", n, nicTimeLen)
	}
	var out [nicTimeLen]byte
	be.PutUint64(out[:], uint64(d.common.clock()))
	return d.mem.write(be.Uint64(b[8:]), out[:])
}
