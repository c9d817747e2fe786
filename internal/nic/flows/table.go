package flows

import (
	"sync"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/splitter"
)

// DefaultRows is the usual argument n of New, which has no default itself.
const DefaultRows = 1024

// MaxRows bounds the rows that New makes, unless one block for each shard takes more.
const MaxRows = 1 << 15

const blockRows = 8

// NumReasons bounds the number of drop reasons (wire.NumDropReasons).
const NumReasons = 22

// Counts are the counters of a flow in one direction.
type Counts struct {
	Packets  uint64 // without dropped ones, except sent packets that a link lost (wire.DropLinkLoss)
	Segments uint64 // a GSO packet counts as the segments that it stands for
	Header   uint64 // header bytes; a GSO packet's header counts once
	Device   uint64 // payload bytes in registered buffers of GPU memory
	GPUFile  uint64 // payload bytes in other GPU memory
	Host     uint64 // payload bytes in other memory, and Bounced
	Bounced  uint64 // part of Host: payload bytes from or for a GPU
	Again    uint64 // TCP payload bytes below the highest sequence number so far
	Lost     uint64 // payload bytes of dropped packets
	Drops    [NumReasons]uint32
}

// Payload returns the bytes of payload.
func (c *Counts) Payload() uint64 { return c.Device + c.GPUFile + c.Host }

// Dropped returns the number of dropped packets.
func (c *Counts) Dropped() (n uint64) {
	for _, d := range c.Drops {
		n += uint64(d)
	}
	return n
}

func (c *Counts) add(o *Counts) {
	c.Packets += o.Packets
	c.Segments += o.Segments
	c.Header += o.Header
	c.Device += o.Device
	c.GPUFile += o.GPUFile
	c.Host += o.Host
	c.Bounced += o.Bounced
	c.Again += o.Again
	c.Lost += o.Lost
	for i, n := range &o.Drops {
		if n > 0 {
			c.Drops[i] += n
		}
	}
}

// Peer has the highest acknowledgment number in a TCP flow since the last SYN, and the window with it. It describes the
// other direction of the connection.
type Peer struct {
	Known  bool
	Window uint16 // unscaled
	Ack    uint32 // the bytes of the other direction before it have arrived
}

// Row is the account of one flow.
type Row struct {
	Flow  splitter.Flow // zero: frames that are not IP, or are malformed
	Flags uint8         // TCP flags seen
	Rule  uint32        // id of the flow rule of its latest packet that had one; 0: none
	Begun bool
	Top   uint32 // sequence number behind the highest byte of payload
	Peer
	First time.Time // time of the first batch since the flow got its row
	Last  time.Time
	Counts
}

// Others are the summed counters of flows that have lost their rows.
type Others struct {
	Flows uint64 // times that a flow lost its row
	Counts
}

type row struct {
	flow  splitter.Flow
	used  bool
	begun bool
	flags uint8
	rule  uint32
	top   uint32 // sequence number behind the highest byte of payload
	Peer
	hash        uint64
	first, last int64 // Unix time in nanoseconds
	Counts
}

// Table has the rows of a port.
type Table struct {
	rows   []row
	blocks atomic.Int64
	shards []*Shard
	now    func() int64
}

// New makes a table with at least min(n, MaxRows) rows, and at least one block for each of its shards.
func New(n, shards int) *Table {
	blocks := max((min(n, MaxRows)+blockRows-1)/blockRows, shards)
	t := &Table{rows: make([]row, blocks*blockRows), now: func() int64 { return time.Now().UnixNano() }}
	size := 2
	for size < 2*len(t.rows) {
		size *= 2
	}
	for range shards {
		t.shards = append(t.shards, &Shard{table: t, index: make([]uint16, size), blocks: make([]uint16, 0, blocks)})
	}
	for i, s := range t.shards { // others cannot take a shard's last block
		s.add(uint16(i))
	}
	t.blocks.Store(int64(shards))
	return t
}

// Rows returns the number of rows.
func (t *Table) Rows() int { return len(t.rows) }

// Shard returns shard i.
func (t *Table) Shard(i int) *Shard { return t.shards[i] }

func (t *Table) block() (uint16, bool) {
	most := int64(len(t.rows) / blockRows)
	for {
		n := t.blocks.Load()
		if n == most {
			return 0, false
		}
		if t.blocks.CompareAndSwap(n, n+1) {
			return uint16(n), true
		}
	}
}

// Shard is one queue's part of a table in one direction. Its owner counts packets (At, Flush); any goroutine may
// call Read.
type Shard struct {
	table *Table

	// Used by the owner.
	accs  [accs]Acc
	n     int
	place int // index of the Acc used last

	held atomic.Int32 // len(blocks); changed under mu

	mu     sync.Mutex
	index  []uint16 // 1 + index of the row, by hash of the flow; 0: empty
	blocks []uint16
	used   int
	hand   int
	lost   int // blocks that other shards have taken
	rest   Others
}

// find returns the row of a flow, new if necessary. The caller holds mu.
func (s *Shard) find(f *splitter.Flow, hash uint64, now int64) *row {
	mask := uint64(len(s.index) - 1)
	for i := hash; ; i++ {
		slot := s.index[i&mask]
		if slot == 0 {
			break
		}
		if r := &s.table.rows[slot-1]; r.hash == hash && r.flow == *f {
			return r
		}
	}
	slot := s.free()
	r := &s.table.rows[slot]
	*r = row{flow: *f, used: true, hash: hash, first: now}
	i := hash
	for s.index[i&mask] != 0 {
		i++
	}
	s.index[i&mask] = slot + 1
	return r
}

// free returns the index of a row for a new flow. For that it may evict another flow from its row. The caller holds mu.
func (s *Shard) free() uint16 {
	if s.used == blockRows*len(s.blocks) {
		b, ok := s.table.block()
		if !ok {
			b, ok = s.take()
		}
		if !ok {
			return s.evict()
		}
		s.add(b)
	}
	slot := s.blocks[s.used/blockRows]*blockRows + uint16(s.used%blockRows)
	s.used++
	return slot
}

func (s *Shard) add(block uint16) {
	s.blocks = append(s.blocks, block)
	s.held.Store(int32(len(s.blocks)))
}

// take takes a block from the shard that has most, if s has less than its equal part. It returns false if it took none,
// as when no shard has more than its part, or when the other shard's lock is held.
func (s *Shard) take() (uint16, bool) {
	part := len(s.table.rows) / blockRows / len(s.table.shards)
	if len(s.blocks) >= part {
		return 0, false
	}
	most := s
	for _, o := range s.table.shards {
		if o.held.Load() > most.held.Load() {
			most = o
		}
	}
	// The owner holds its shard's lock, so it must not wait for another one's: two owners could deadlock.
	if int(most.held.Load()) <= part || !most.mu.TryLock() {
		return 0, false
	}
	defer most.mu.Unlock()
	return most.give(part)
}

// give removes the least used block from the shard and returns it, if the shard has more blocks than the number part.
// The caller holds mu.
func (s *Shard) give(part int) (uint16, bool) {
	if len(s.blocks) <= part {
		return 0, false
	}
	least, uses, last := 0, ^uint64(0), int64(0)
	for i, b := range s.blocks {
		n, latest := uint64(0), int64(0)
		for _, r := range s.table.rows[int(b)*blockRows : (int(b)+1)*blockRows] {
			if r.used {
				n, latest = max(n, r.uses()), max(latest, r.last)
			}
		}
		if n < uses || n == uses && latest < last {
			least, uses, last = i, n, latest
		}
	}
	block := s.blocks[least]
	for i := range uint16(blockRows) {
		if slot := block*blockRows + i; s.table.rows[slot].used {
			s.forget(slot)
			s.table.rows[slot] = row{}
			s.used--
		}
	}
	s.blocks = append(s.blocks[:least], s.blocks[least+1:]...)
	s.held.Store(int32(len(s.blocks)))
	if s.lost++; s.hand > least {
		s.hand--
	}
	s.hand %= len(s.blocks)
	return block, true
}

// evict takes the row from the least used flow in the next block of the shard (hand), and returns the row's index.
func (s *Shard) evict() uint16 {
	first := s.blocks[s.hand] * blockRows
	s.hand = (s.hand + 1) % len(s.blocks)
	least := first
	for slot := first + 1; slot < first+blockRows; slot++ {
		a, b := &s.table.rows[slot], &s.table.rows[least]
		if n, m := a.uses(), b.uses(); n < m || n == m && a.last < b.last {
			least = slot
		}
	}
	s.forget(least)
	return least
}

func (s *Shard) forget(slot uint16) {
	s.unlink(slot)
	s.rest.Flows++
	s.rest.add(&s.table.rows[slot].Counts)
}

func (r *row) uses() uint64 { return r.Packets + r.Dropped() }

// unlink removes a row from the index (open addressing), and moves entries behind it to places where find will
// find them.
func (s *Shard) unlink(slot uint16) {
	mask := uint64(len(s.index) - 1)
	hole := s.table.rows[slot].hash & mask
	for s.index[hole] != slot+1 {
		hole = (hole + 1) & mask
	}
	for i := (hole + 1) & mask; s.index[i] != 0; i = (i + 1) & mask {
		home := s.table.rows[s.index[i]-1].hash & mask
		if (i-home)&mask >= (i-hole)&mask { // find will find the row in the hole
			s.index[hole] = s.index[i]
			hole = i
		}
	}
	s.index[hole] = 0
}

// Read returns the given slice with the shard's rows appended, in any order, and the sum over flows that have lost
// their rows.
func (s *Shard) Read(to []Row) ([]Row, Others) {
	r := reading{s: s, rows: to, begin: len(to), lost: -1}
	for r.step() {
	}
	return r.rows, r.rest
}

// reading is the state of a Read, which releases the lock after each block.
type reading struct {
	s     *Shard
	rows  []Row
	begin int // index in rows of the shard's first row
	block int // index of the block to read next
	lost  int // Shard.lost at the first block
	rest  Others
}

// step reads one block and returns true. If no block is left, it reads the shard's Others and returns false.
func (r *reading) step() (more bool) {
	s := r.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost != r.lost { // start again: the rows of a taken block may have been read
		r.rows, r.block, r.lost = r.rows[:r.begin], 0, s.lost
	}
	if r.block == len(s.blocks) {
		r.rest = s.rest
		return false
	}
	first := int(s.blocks[r.block]) * blockRows
	for i := range s.table.rows[first : first+blockRows] {
		if o := &s.table.rows[first+i]; o.used {
			r.rows = append(r.rows, Row{Flow: o.flow, Flags: o.flags, Rule: o.rule, Begun: o.begun, Top: o.top, Peer: o.Peer,
				First: time.Unix(0, o.first), Last: time.Unix(0, o.last), Counts: o.Counts})
		}
	}
	r.block++
	return true
}
