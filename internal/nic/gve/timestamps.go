package gve

import (
	"time"

	"vnic.dev/vnic/internal/lab/shape"
)

// Timestamps of received frames (Options.Timestamps) are off by default. If they are on, Linux's driver asks for the
// time every 250 ms even if no program uses timestamps (gve_ptp_do_aux_work), and does not inform the device when a
// program does (gve_set_ts_config).

const nicTimeLen = 40 // length of struct gve_nic_ts_report: the time (u64), and 32 bytes of zeros

// started is the difference between the time of day and shape.Now when the process started,
// in nanoseconds.
var started = time.Now().UnixNano() - shape.Now()

// nicTime is the clock of the process's gVNICs in nanoseconds: the time of day when the process started, plus the
// monotonic time since.
func nicTime() int64 { return started + shape.Now() }

// reportTime carries out REPORT_NIC_TIMESTAMP. The body has length (u64) and address (u64).
func (d *Device) reportTime(b *body) error {
	if d.common.clock == nil {
		return statusUnimplemented // the option is not offered
	}
	if n := be.Uint64(b[0:]); n != nicTimeLen {
		return invalid("room of %d bytes for a time of %d", n, nicTimeLen)
	}
	var out [nicTimeLen]byte
	be.PutUint64(out[:], uint64(d.common.clock()))
	return d.mem.write(be.Uint64(b[8:]), out[:])
}
