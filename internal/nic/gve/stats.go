package gve

import (
	"slices"
	"sync"
	"time"
)

// The stats report (gve_adminq.h, enum gve_stat_names).
const (
	statDrops = 65 // RX_QUEUE_DROP_CNT; 66-68: RX_NO_BUFFERS_POSTED, RX_DROPS_PACKET_OVER_MRU, RX_DROPS_INVALID_CHECKSUM

	statLen        = 16 // length of struct stats
	statsHeadLen   = 8  // length of struct gve_stats_report without counters
	statsPerQueue  = 4  // NIC_RX_STATS_REPORT_NUM
	maxStatsReport = 1 << 20
	minStatsPeriod = 100 * time.Millisecond
	maxStatsPeriod = time.Hour
	// freshStats is the longest time between two looks for changed counters, if the driver has asked for reports: the
	// period of Linux's driver is 20 s.
	freshStats = 500 * time.Millisecond
)

// statsReport describes the driver's memory for counters: written_count u64, then {name u32, queue u32, value u64} for
// each counter. The device writes the last counters, four for each existing receive queue (gve_get_ethtool_stats).
type statsReport struct {
	dev *Device
	mem *memory

	mu     sync.Mutex // guards mem and the fields below; write holds it, so that no write follows detach
	addr   uint64
	count  int // room for counters; 0: no report
	period time.Duration
	due    time.Time
	queues []int  // existing receive queues
	was    int    // number of counters in the last report; 0: none since attach
	sum    uint64 // sum of the counters in the last report; counters only rise
}

// reportStats carries out REPORT_STATS. The body has length (u64), address (u64), and interval (u64) in ms. Length 0
// ends reports.
func (d *Device) reportStats(b *body) error {
	n, addr, every := be.Uint64(b[0:]), be.Uint64(b[8:]), be.Uint64(b[16:])
	if n == 0 {
		d.stats.detach()
		return nil
	}
	if n < statsHeadLen || n > maxStatsReport {
		return invalid("stats report of %d bytes, not %d to %d", n, statsHeadLen, maxStatsReport)
	}
	if err := d.mem.has(addr, n); err != nil {
		return err
	}
	period := time.Duration(min(every, uint64(maxStatsPeriod/time.Millisecond))) * time.Millisecond
	d.stats.attach(addr, int(n-statsHeadLen)/statLen, max(period, minStatsPeriod))
	d.monitor.Wake()
	return nil
}

func (s *statsReport) attach(addr uint64, count int, period time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addr, s.count, s.period, s.due, s.was = addr, count, period, time.Now(), 0
}

// detach ends reports: after it returns, none is written.
func (s *statsReport) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count, s.was = 0, 0
}

// live records whether a receive queue exists.
func (s *statsReport) live(id int, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues = slices.DeleteFunc(s.queues, func(q int) bool { return q == id })
	if on {
		s.queues = append(s.queues, id)
	}
}

// write writes the report if it is due, or if counters have changed, and returns when to call write again. If the
// driver has asked for no reports, it writes nothing and returns the zero Time.
func (s *statsReport) write(now time.Time) (next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count == 0 {
		return time.Time{}
	}
	due := !now.Before(s.due)
	if due || s.changed() {
		s.put()
	}
	if due {
		s.due = now.Add(s.period)
	}
	if next = now.Add(freshStats); s.due.Before(next) {
		next = s.due
	}
	return next
}

func (s *statsReport) counters(queue int) [statsPerQueue]uint64 {
	rx, _ := s.dev.port.QueueCounters(queue)
	count := &s.dev.rx[queue].count
	return [statsPerQueue]uint64{rx.Drops, count.noBuffer.get(), count.tooBig.get(), count.badCsum.get()}
}

func (s *statsReport) changed() bool {
	var sum uint64
	for _, q := range s.queues {
		for _, v := range s.counters(q) {
			sum += v
		}
	}
	return sum != s.sum
}

// put writes the report, if the driver's memory has room for the counters. The caller holds mu.
func (s *statsReport) put() {
	now := statsPerQueue * len(s.queues)
	n := max(now, s.was)
	if n > s.count {
		return // no room
	}
	out := make([]byte, (n-now)*statLen, n*statLen) // counters of ended queues become zeros: no counter has name 0
	s.sum = 0
	for _, q := range s.queues {
		for i, v := range s.counters(q) {
			out = be.AppendUint64(be.AppendUint32(be.AppendUint32(out, uint32(statDrops+i)), uint32(q)), v)
			s.sum += v
		}
	}
	s.was = now
	// An error means that the device can no longer write to all of the driver's memory for the report.
	_ = s.mem.write(s.addr+statsHeadLen+uint64(s.count-n)*statLen, out)
}
