package gve

import (
	"slices"
	"sync"
	"time"
)

// Counters of the stats report (gve_adminq.h, enum gve_stat_names) that are the device's.
const (
	statDrops = 65 // RX_QUEUE_DROP_CNT; then RX_NO_BUFFERS_POSTED, RX_DROPS_PACKET_OVER_MRU, RX_DROPS_INVALID_CHECKSUM

	statLen        = 16 // struct stats
	statsHeadLen   = 8  // struct gve_stats_report
	statsPerQueue  = 4  // NIC_RX_STATS_REPORT_NUM
	maxStatsReport = 1 << 20
	minStatsPeriod = 100 * time.Millisecond
	maxStatsPeriod = time.Hour
	// freshStats is how old a change may be before it is reported, whatever the period: that of the
	// kernel's driver is 20 s, and a user of ethtool -S is to see drops before
	// the sender's timer has backed off for long.
	freshStats = 500 * time.Millisecond
)

// statsReport is the memory in which the driver wants to find counters: written_count u64, and
// {name u32, queue u32, value u64} for each. The first are the driver's own; the device's are the
// last ones, four for each receive queue that there is (gve_get_ethtool_stats counts them from the
// end, less those of queues that are stopped).
type statsReport struct {
	dev *Device
	mem *memory

	mu     sync.Mutex // guards what follows; held over a write, so that none comes behind detach
	addr   uint64
	count  int // counters that there is room for; 0: no report
	period time.Duration
	due    time.Time
	queues []int  // receive queues that there are
	was    int    // how many counters were written last
	sum    uint64 // of them: they only rise
}

// reportStats carries out REPORT_STATS: length u64, where u64, interval u64 in ms. A length of 0 ends reports.
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

// detach ends reports: when it returns none is written any more.
func (s *statsReport) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count, s.was = 0, 0
}

// live notes that a receive queue begins or ends.
func (s *statsReport) live(id int, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues = slices.DeleteFunc(s.queues, func(q int) bool { return q == id })
	if on {
		s.queues = append(s.queues, id)
	}
}

// write writes the counters if that is due or they have changed, and says when to look again; the
// zero Time: never, there is no report.
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

// counters are a receive queue's, in the order of the report.
func (s *statsReport) counters(queue int) [statsPerQueue]uint64 {
	rx, _ := s.dev.port.QueueCounters(queue)
	own := &s.dev.rx[queue].count
	return [statsPerQueue]uint64{rx.Drops, own.noBuffer.get(), own.tooBig.get(), own.badCsum.get()}
}

// changed says whether the counters are others than those written last. The caller holds mu.
func (s *statsReport) changed() bool {
	var sum uint64
	for _, q := range s.queues {
		for _, v := range s.counters(q) {
			sum += v
		}
	}
	return sum != s.sum
}

// put writes the counters. The caller holds mu.
func (s *statsReport) put() {
	is := statsPerQueue * len(s.queues)
	n := max(is, s.was)
	if n > s.count {
		return // the driver had fewer queues in mind
	}
	out := make([]byte, (n-is)*statLen, n*statLen) // those of queues that are gone become zeros, which is no name
	s.sum = 0
	for _, q := range s.queues {
		for i, v := range s.counters(q) {
			out = be.AppendUint64(be.AppendUint32(be.AppendUint32(out, uint32(statDrops+i)), uint32(q)), v)
			s.sum += v
		}
	}
	s.was = is
	// Memory that has gone meanwhile is the driver's mistake, and its own loss.
	_ = s.mem.write(s.addr+statsHeadLen+uint64(s.count-n)*statLen, out)
}
